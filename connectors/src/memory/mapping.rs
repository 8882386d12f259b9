//! Mapping tables in memory, and the outbox of their cache: a flush changes both in one step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{
    CacheRecord, MappingStore, OUTBOX_RETENTION, Outbox, OutboxBacklog, OutboxRow,
};
use anabranch_pipeline::records::{Claims, DeviceClaim};
use anabranch_schemas::serial::StoredCode;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Refused, Weather, lock, request};

/// Values that a flush has touched.
#[derive(Debug)]
struct TouchedCodes {
    codes: Vec<StoredCode>,
    written_at: Instant,
    /// Time by which the server's clock was set back since then.
    set_back: Duration,
    drained_at: Option<Instant>,
}

#[derive(Debug, Default)]
struct State {
    sets: BTreeMap<StoredCode, Vec<DeviceClaim>>,
    outbox: BTreeMap<u64, TouchedCodes>,
    flushes: u64,
    /// Rows that were drained, including those that became pending again.
    drained: BTreeSet<u64>,
    record: Option<CacheRecord>,
}

/// One target's mapping tables.
#[derive(Debug, Clone)]
pub struct MemoryMapping {
    state: Arc<Mutex<State>>,
    touched: Arc<Notify>,
    weather: Weather,
}

impl MemoryMapping {
    pub fn new(weather: Weather) -> Self {
        Self { state: Arc::default(), touched: Arc::default(), weather }
    }

    /// Gives each code this set, and stores in the outbox that it was touched; returns the id of the outbox row.
    pub fn flush(&self, sets: Vec<(StoredCode, Vec<DeviceClaim>)>) -> u64 {
        let mut state = lock(&self.state);
        state.flushes += 1;
        let (id, codes) = (state.flushes, sets.iter().map(|(code, _)| code.clone()).collect());
        state.sets.extend(sets);
        let (written_at, set_back) = (Instant::now(), Duration::ZERO);
        state.outbox.insert(id, TouchedCodes { codes, written_at, set_back, drained_at: None });
        self.touched.notify_waiters();
        id
    }

    /// Flushes as a lane that knows of no cache does.
    pub fn flush_without_cache(&self, sets: Vec<(StoredCode, Vec<DeviceClaim>)>) {
        let mut state = lock(&self.state);
        state.sets.extend(sets);
        state.record = None;
    }

    /// Sets the clock back with which the server dates rows of the outbox.
    pub fn set_clock_back(&self, by: Duration) {
        lock(&self.state).outbox.values_mut().for_each(|noted| noted.set_back += by);
    }

    /// Returns the set of a code at once.
    pub fn set(&self, code: &StoredCode) -> Vec<DeviceClaim> {
        lock(&self.state).sets.get(code).cloned().unwrap_or_default()
    }

    /// Whether the row of a flush was ever drained.
    pub fn was_drained(&self, id: u64) -> bool {
        lock(&self.state).drained.contains(&id)
    }

    async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut State) -> T + Send + 'static,
    ) -> Result<T, Fault> {
        self.weather.answer(Refused::Target)?;
        let state = self.state.clone();
        let answer = request(&self.weather, move || work(&mut lock(&state))).await;
        answer.ok_or_else(|| Fault::new(Code::TargetUnreachable, "target", "the connection broke"))
    }
}

impl MappingStore for MemoryMapping {
    async fn claims(&self, codes: &[StoredCode], limit: usize) -> Result<Vec<Claims>, Fault> {
        let codes = codes.to_vec();
        self.ask(move |state| codes.iter().map(|code| state.claims(code, None, limit)).collect()).await
    }

    async fn page(
        &self,
        code: &StoredCode,
        after: Option<&DeviceClaim>,
        limit: usize,
    ) -> Result<Claims, Fault> {
        let (code, after) = (code.clone(), after.cloned());
        self.ask(move |state| state.claims(&code, after.as_ref(), limit)).await
    }
}

impl State {
    fn claims(&self, code: &StoredCode, after: Option<&DeviceClaim>, limit: usize) -> Claims {
        let set = self.sets.get(code).map(Vec::as_slice).unwrap_or_default();
        let later: Vec<&DeviceClaim> =
            set.iter().filter(|claim| after.is_none_or(|after| *claim > after)).collect();
        let is_cut = later.len() > limit;
        Claims { claims: later.into_iter().take(limit).cloned().collect(), is_cut }
    }

    fn is_recorded(&self, incarnation: &str) -> bool {
        self.record.as_ref().is_some_and(|record| record.incarnation == incarnation)
    }

    fn pending(&self) -> impl Iterator<Item = (&u64, &TouchedCodes)> {
        self.outbox.iter().filter(|(_, noted)| noted.drained_at.is_none())
    }
}

impl Outbox for MemoryMapping {
    async fn pending(&self, rows: usize) -> Result<Vec<OutboxRow>, Fault> {
        self.ask(move |state| {
            let pending = state.pending().take(rows);
            pending.map(|(id, noted)| OutboxRow { id: *id, codes: noted.codes.clone() }).collect()
        })
        .await
    }

    fn touched(&self) -> impl Future<Output = ()> + Send {
        self.touched.notified()
    }

    async fn drained(&self, ids: &[u64], incarnation: &str) -> Result<(), Fault> {
        let (ids, incarnation) = (ids.to_vec(), incarnation.to_owned());
        self.ask(move |state| {
            if !state.is_recorded(&incarnation) {
                return;
            }
            for id in ids {
                if let Some(noted) = state.outbox.get_mut(&id) {
                    noted.drained_at = Some(Instant::now());
                    state.drained.insert(id);
                }
            }
        })
        .await
    }

    async fn repeat(&self) -> Result<(), Fault> {
        self.ask(|state| state.outbox.values_mut().for_each(|noted| noted.drained_at = None)).await
    }

    async fn forget(&self) -> Result<(), Fault> {
        let is_kept =
            |noted: &TouchedCodes| noted.drained_at.is_none_or(|at| at.elapsed() < OUTBOX_RETENTION);
        self.ask(move |state| state.outbox.retain(|_, noted| is_kept(noted))).await
    }

    async fn record(&self) -> Result<Option<CacheRecord>, Fault> {
        self.ask(|state| state.record.clone()).await
    }

    async fn begin(&self, before: Option<&str>, record: &CacheRecord) -> Result<(), Fault> {
        let Some(before) = before else {
            let begun = record.clone();
            return self.ask(move |state| _ = state.record.get_or_insert(begun)).await;
        };
        self.settle(before, &record.incarnation).await
    }

    async fn settle(&self, round: &str, incarnation: &str) -> Result<(), Fault> {
        let (round, incarnation) = (round.to_owned(), incarnation.to_owned());
        self.ask(move |state| {
            if let Some(record) = state.record.as_mut().filter(|record| record.incarnation == round) {
                record.incarnation = incarnation;
            }
        })
        .await
    }

    async fn set_time_to_live(&self, time_to_live: Duration) -> Result<(), Fault> {
        self.ask(move |state| state.record.iter_mut().for_each(|record| record.time_to_live = time_to_live))
            .await
    }

    async fn backlog(&self) -> Result<Option<OutboxBacklog>, Fault> {
        self.ask(|state| {
            let (oldest, noted) = state.pending().next()?;
            let age = noted.written_at.elapsed().abs_diff(noted.set_back);
            Some(OutboxBacklog { oldest: *oldest, newest: state.flushes, age })
        })
        .await
    }
}
