//! A target in memory. It stores versioned rows and one progress row a lane, changed in one step; or, as a search
//! server does, documents in a step each, and progress after them.
//!
//! A flush reaches the server when it is due, even if the process that sent it is gone by then.

mod withdrawn;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::ops::Bound;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{ClaimsPage, LaneStore, ShardPage};
use anabranch_pipeline::records::{
    Cell, CellRef, Claimed, DerivedRow, Flush, LaneId, Mutation, MutationAction, Progress, Replacement,
    RetiredShards,
};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use tokio::time::Instant;

use super::{LOST, Refused, UNHEARD, Weather, lock};
use crate::scan_cursor;

/// A server of documents remembers a removal for this time, and takes it for a newer version.
const REMEMBERED: Duration = Duration::from_millis(300);
/// A lane writes nothing for this time after it has removed documents.
const FORGOTTEN_AFTER: Duration = REMEMBERED.saturating_add(Duration::from_millis(100));

/// A claim: table, shard, key columns.
type Claim = (u32, ShardId, Box<[Cell]>);

/// A withdrawal: the versions above the first position, if there is one, up to the second.
type Withdrawal = ((ShardId, Option<Lsn>), Lsn);

/// A derived row: the version and the value columns.
pub type StoredRow = (Lsn, Box<[Cell]>);

/// Storage model of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreKind {
    /// Rows and progress in one transaction.
    Rows,
    /// Each document under its own version, then progress. A deleted document stays as a tombstone. To make room for a
    /// replay, a document is removed, but only while it is the one that was found.
    Documents,
}

/// A flush, or a part of it, on its way; the server does not know the sender.
#[derive(Debug, Clone)]
struct SentFlush {
    lane: LaneId,
    tables: Arc<BTreeSet<u32>>,
    withdrawals: Vec<Withdrawal>,
    /// Documents to remove, each with the write that was found.
    removals: Vec<(Claim, u64)>,
    replacement: Option<Replacement>,
    mutations: Vec<Mutation>,
    progress: Option<Progress>,
    /// Shards that were retired before this flush, and those that it retires. A store of documents has none.
    kept: RetiredShards,
    retired: RetiredShards,
}

#[derive(Debug, Default)]
struct State {
    rows: BTreeMap<Claim, StoredRow>,
    /// Versions of removed documents.
    tombstones: BTreeMap<Claim, Lsn>,
    /// Number of the write that made each document; manual writes are not counted.
    written: BTreeMap<Claim, u64>,
    writes: u64,
    /// Versions of removed documents, and the time until which they are known.
    removed: BTreeMap<Claim, (Lsn, Instant)>,
    progress: BTreeMap<LaneId, Progress>,
    /// Retired shards of each lane, each with the position of its last retirement.
    retired: BTreeMap<LaneId, RetiredShards>,
    on_the_way: BTreeMap<(Instant, u64), SentFlush>,
    outcomes: BTreeMap<u64, Result<(), Fault>>,
    sent: u64,
    down: bool,
    /// Commits that were refused because another process had moved the lane.
    fenced: u64,
}

/// One server's derived tables.
#[derive(Debug, Clone)]
pub struct MemoryTarget {
    state: Arc<Mutex<State>>,
    weather: Weather,
    store_kind: StoreKind,
}

impl MemoryTarget {
    pub fn new(weather: Weather, store_kind: StoreKind) -> Self {
        Self { state: Arc::default(), weather, store_kind }
    }

    /// Returns the store of a lane that owns these tables; its progress row is created at its first use.
    pub fn lane(&self, id: LaneId, tables: Arc<BTreeSet<u32>>) -> MemoryStore {
        MemoryStore { target: self.clone(), id, tables, removed_at: None }
    }

    /// Returns every row: (table, shard, key) → (version, values).
    pub fn rows(&self) -> BTreeMap<Claim, StoredRow> {
        self.with(|state| state.rows.clone())
    }

    /// Returns rows, tombstones, progress and retired shards as text, to be compared.
    pub fn stored(&self) -> String {
        self.with(|state| format!("{:?}", (&state.rows, &state.tombstones, &state.progress, &state.retired)))
    }

    /// Returns every row from a bound on, in the order of claims.
    pub(super) fn rows_from(&self, from: Bound<Claim>) -> Vec<(Claim, StoredRow)> {
        let owned = |(claim, row): (&Claim, &StoredRow)| (claim.clone(), row.clone());
        self.with(|state| state.rows.range((from, Bound::Unbounded)).map(owned).collect())
    }

    pub(super) fn weather(&self) -> &Weather {
        &self.weather
    }

    /// Returns the progress of the lanes of one source that have begun.
    pub fn progress(&self, source: &str) -> BTreeMap<LaneId, Progress> {
        self.with(|state| {
            let of_source = state.progress.iter().filter(|(id, _)| id.source == source);
            of_source.map(|(id, progress)| (id.clone(), progress.clone())).collect()
        })
    }

    /// Returns whether a row belongs to a source table that a lane has retired.
    pub(super) fn is_retired(&self, shard: ShardId, version: Lsn) -> bool {
        self.with(|state| {
            state.retired.values().any(|of_lane| of_lane.get(&shard).is_some_and(|at| version <= *at))
        })
    }

    /// Changes rows without their lanes, as a manual write does.
    pub fn tamper(&self, change: impl FnOnce(&mut BTreeMap<Claim, StoredRow>)) {
        self.with(|state| change(&mut state.rows));
    }

    /// Takes the server down, or brings it back; flushes on the way still arrive.
    pub fn set_down(&self, down: bool) {
        self.with(|state| state.down = down);
    }

    pub fn is_down(&self) -> bool {
        self.with(|state| state.down)
    }

    /// Returns the number of commits that were refused because another process had moved the lane.
    pub fn fenced(&self) -> u64 {
        self.with(|state| state.fenced)
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = lock(&self.state);
        let now = Instant::now();
        while let Some(next) = state.on_the_way.first_entry()
            && next.key().0 <= now
        {
            let ((at, number), sent) = next.remove_entry();
            let outcome = state.apply(sent, self.store_kind, at);
            state.fenced += u64::from(outcome.is_err());
            state.outcomes.insert(number, outcome);
        }
        work(&mut state)
    }
}

impl State {
    fn write_of(&self, claim: &Claim) -> u64 {
        self.written.get(claim).copied().unwrap_or(0)
    }

    fn apply(&mut self, sent: SentFlush, store_kind: StoreKind, at: Instant) -> Result<(), Fault> {
        if let Some(progress) = sent.progress {
            let stored = self.progress.entry(sent.lane.clone()).or_default();
            if stored.revision + 1 != progress.revision {
                return Err(fenced(&sent.lane, stored.revision, progress.revision));
            }
            *stored = progress;
        }
        for (shard, at) in sent.retired {
            let last = self.retired.entry(sent.lane.clone()).or_default().entry(shard).or_insert(at);
            *last = at.max(*last);
        }
        for withdrawal in &sent.withdrawals {
            let lsn = &withdrawal.1;
            let is_meant = |claim: &Claim, version| is_withdrawn(claim, version, &sent.tables, *withdrawal);
            let meant = self.rows.extract_if(.., |claim, (version, _)| is_meant(claim, *version));
            match store_kind {
                StoreKind::Rows => meant.for_each(drop),
                StoreKind::Documents => self.tombstones.extend(meant.map(|(claim, _)| (claim, *lsn))),
            }
        }
        for (claim, found) in sent.removals {
            if self.write_of(&claim) == found
                && let Some((version, _)) = self.rows.remove(&claim)
            {
                self.removed.insert(claim, (version, at + REMEMBERED));
            }
        }
        if let Some(replacement) = &sent.replacement {
            let written = |claim: &Claim| sent.mutations.iter().any(|mutation| mutation.is_of(claim));
            self.rows.retain(|claim, (version, _)| {
                let is_retired = sent.kept.get(&claim.1).is_some_and(|at| *version <= *at);
                if is_retired || !is_replaced(claim, &sent.tables, replacement) {
                    return true;
                }
                *version = (*version).min(replacement.low);
                written(claim)
            });
        }
        for mutation in sent.mutations {
            let claim = (mutation.table, mutation.shard, mutation.key);
            let row = self.rows.get(&claim).map(|(version, _)| *version);
            let is_older =
                row.max(self.tombstones.get(&claim).copied()).is_some_and(|version| version > mutation.lsn);
            let removed = self.removed.get(&claim).filter(|(_, until)| at < *until);
            if is_older || removed.is_some_and(|(version, _)| mutation.lsn <= *version) {
                continue;
            }
            self.tombstones.remove(&claim);
            self.writes += 1;
            self.written.insert(claim.clone(), self.writes);
            match mutation.action {
                MutationAction::Upsert(values) => {
                    self.rows.insert(claim, (mutation.lsn, (*values).into()));
                }
                MutationAction::Delete => {
                    self.rows.remove(&claim);
                    if store_kind == StoreKind::Documents {
                        self.tombstones.insert(claim, mutation.lsn);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Whether a withdrawal of the shard covers this claim.
fn is_withdrawn(
    (table, owner, _): &Claim,
    version: Lsn,
    tables: &BTreeSet<u32>,
    ((shard, above), lsn): Withdrawal,
) -> bool {
    let is_meant = *owner == shard && above.is_none_or(|above| version > above) && version <= lsn;
    is_meant && tables.contains(table)
}

fn is_replaced((table, shard, key): &Claim, tables: &BTreeSet<u32>, replacement: &Replacement) -> bool {
    tables.contains(table) && replacement.covers(*shard, key)
}

fn fenced(lane: &LaneId, stored: u64, next: u64) -> Fault {
    let found = format!("revision {stored} is stored, {next} follows it");
    Fault::new(Code::TargetFenced, format!("lane {lane}"), found)
        .needs("the progress that this process read last")
}

/// The store of one lane.
#[derive(Debug)]
pub struct MemoryStore {
    target: MemoryTarget,
    id: LaneId,
    tables: Arc<BTreeSet<u32>>,
    /// Time of the last removal of documents.
    removed_at: Option<Instant>,
}

impl MemoryStore {
    fn broken(&self) -> Fault {
        Fault::new(Code::TargetUnreachable, format!("lane {}", self.id), "the connection broke")
    }
}

impl LaneStore for MemoryStore {
    async fn load(&mut self) -> Result<Progress, Fault> {
        self.target.weather.pause().await;
        self.target.weather.answer(Refused::Target)?;
        if self.target.is_down() {
            return Err(self.broken());
        }
        Ok(self.target.with(|state| state.progress.entry(self.id.clone()).or_default().clone()))
    }

    async fn shards_with_rows(&mut self, shards: BTreeSet<ShardId>) -> Result<BTreeSet<ShardId>, Fault> {
        if !self.is_atomic() {
            return Ok(shards);
        }
        self.target.weather.pause().await;
        self.target.weather.answer(Refused::Target)?;
        if self.target.is_down() {
            return Err(self.broken());
        }
        let present = self.find(|(table, shard, _), _| self.tables.contains(table) && shards.contains(shard));
        Ok(present.into_iter().map(|((_, shard, _), _)| shard).collect())
    }

    async fn withdrawn_claims(
        &mut self,
        withdrawals: &[(ShardId, Lsn)],
        page: &ClaimsPage,
        limit: NonZeroUsize,
    ) -> Result<(Vec<Mutation>, Option<ClaimsPage>), Fault> {
        self.claims_of(withdrawals, page, limit).await
    }

    async fn rows_of_shard(
        &mut self,
        page: &ShardPage,
        limit: NonZeroUsize,
        visit: &mut (dyn FnMut(DerivedRow<'_>) + Send),
    ) -> Result<Option<ShardPage>, Fault> {
        if !self.is_atomic() {
            return Err(Fault::new(
                Code::Internal,
                format!("lane {}", self.id),
                "documents are not compared",
            ));
        }
        let after = page.after.as_ref().and_then(scan_cursor::decode).map(|(_, key)| key);
        let rows = self.target.ask(|target| {
            let of_page = target.rows().into_iter().filter(|((table, shard, key), _)| {
                let is_first = *table == page.table;
                self.tables.contains(table)
                    && *shard == page.shard
                    && *table >= page.table
                    && (!is_first || after.as_ref().is_none_or(|after| key > after))
            });
            of_page.take(limit.get()).collect()
        });
        let rows = rows.await?;
        let mut next = None;
        for ((table, shard, key), (version, values)) in &rows {
            let key: Vec<CellRef<'_>> = key.iter().map(Cell::borrowed).collect();
            let values: Vec<CellRef<'_>> = values.iter().map(Cell::borrowed).collect();
            let row = Claimed { table: *table, shard: *shard, key: &key, values: &values };
            visit(match self.target.is_retired(*shard, *version) {
                true => DerivedRow::Retired(row),
                false => DerivedRow::Claimed(row),
            });
            let after = Some(scan_cursor::after_row(shard.as_u64(), &key));
            next = Some(ShardPage { shard: *shard, table: *table, after });
        }
        Ok(next.filter(|_| rows.len() == limit.get()))
    }

    fn is_atomic(&self) -> bool {
        self.target.store_kind == StoreKind::Rows
    }

    async fn commit(&mut self, flush: &Flush) -> Result<(), Fault> {
        let kept = self.target.with(|state| state.retired.get(&self.id).cloned().unwrap_or_default());
        let mut retired = RetiredShards::new();
        for retirement in &flush.retirements {
            let last = retired.entry(retirement.table.shard).or_insert(retirement.at);
            *last = retirement.at.max(*last);
        }
        let whole = SentFlush {
            lane: self.id.clone(),
            tables: match flush.withdrawals.is_empty() {
                true => self.tables.clone(),
                false => Arc::new(
                    self.tables.iter().copied().filter(|table| flush.withdraws_from(*table)).collect(),
                ),
            },
            withdrawals: flush.withdrawn_versions(&kept).into_iter().collect(),
            removals: Vec::new(),
            replacement: flush.replacement.clone(),
            mutations: flush.ordered().iter().map(|mutation| mutation.to_owned()).collect(),
            progress: Some(flush.progress.clone()),
            kept,
            retired,
        };
        match self.target.store_kind {
            StoreKind::Rows => self.send(whole).await,
            StoreKind::Documents => self.send_in_parts(whole).await,
        }
    }
}

impl MemoryStore {
    /// Sends a flush as a lane of documents does: it checks progress, sends removals and withdrawals, then documents in
    /// two concurrent requests, then progress.
    async fn send_in_parts(&mut self, mut whole: SentFlush) -> Result<(), Fault> {
        let progress = whole.progress.take().expect("a flush has progress");
        self.require_revision_before(&progress).await?;
        let (lane, tables) = (whole.lane.clone(), whole.tables.clone());
        let part = || SentFlush {
            lane: lane.clone(),
            tables: tables.clone(),
            withdrawals: Vec::new(),
            removals: Vec::new(),
            replacement: None,
            mutations: Vec::new(),
            progress: None,
            kept: RetiredShards::new(),
            retired: RetiredShards::new(),
        };
        // A withdrawal above every position of the lane: the lane begins anew from nothing.
        let (emptied, withdrawals): (Vec<_>, Vec<_>) =
            whole.withdrawals.into_iter().partition(|(_, lsn)| *lsn > progress.position);
        if !emptied.is_empty() {
            let removals = self.find(|claim, version| {
                emptied.iter().any(|withdrawal| is_withdrawn(claim, version, &self.tables, *withdrawal))
            });
            self.require_revision_before(&progress).await?;
            self.send(SentFlush { removals, ..part() }).await?;
            self.removed_at = Some(Instant::now());
        }
        if !withdrawals.is_empty() {
            self.send(SentFlush { withdrawals, ..part() }).await?;
        }
        let mut mutations = whole.mutations;
        if let Some(replacement) = &whole.replacement {
            let is_replaced = |claim: &Claim| is_replaced(claim, &self.tables, replacement);
            let present = self.find(|claim, _| is_replaced(claim));
            let above = self.find(|claim, version| is_replaced(claim) && version > replacement.low);
            if !above.is_empty() {
                self.require_revision_before(&progress).await?;
                self.send(SentFlush { removals: above, ..part() }).await?;
                self.removed_at = Some(Instant::now());
            }
            for (claim, _) in present {
                if !mutations.iter().any(|mutation| mutation.is_of(&claim)) {
                    let (table, shard, key) = claim;
                    let (lsn, action) = (replacement.low, MutationAction::Delete);
                    mutations.push(Mutation { table, shard, key, lsn, action });
                }
            }
        }
        if let Some(removed_at) = self.removed_at.take_if(|_| !mutations.is_empty()) {
            tokio::time::sleep_until(removed_at + FORGOTTEN_AFTER).await;
        }
        let other = mutations.split_off(mutations.len() / 2);
        let (one, other) = (SentFlush { mutations, ..part() }, SentFlush { mutations: other, ..part() });
        let again = whole.replacement.map(|_| [one.clone(), other.clone()]);
        futures::try_join!(self.send(one), self.send(other))?;
        if let Some([one, other]) = again
            && !(self.holds(&one.mutations) && self.holds(&other.mutations))
        {
            // An overtaken process has just removed documents above the watermark, and the server remembers them.
            tokio::time::sleep(FORGOTTEN_AFTER).await;
            futures::try_join!(self.send(one), self.send(other))?;
        }
        self.send(SentFlush { progress: Some(progress), ..part() }).await
    }

    /// Whether every written document exists.
    fn holds(&self, mutations: &[Mutation]) -> bool {
        let claim = |mutation: &Mutation| (mutation.table, mutation.shard, mutation.key.clone());
        let written = |mutation: &&Mutation| mutation.action != MutationAction::Delete;
        self.target.with(|state| {
            mutations.iter().filter(written).all(|mutation| state.rows.contains_key(&claim(mutation)))
        })
    }

    async fn require_revision_before(&mut self, next: &Progress) -> Result<(), Fault> {
        let stored = self.load().await?.revision;
        if stored + 1 == next.revision { Ok(()) } else { Err(fenced(&self.id, stored, next.revision)) }
    }

    /// Returns the present documents that `is_meant` accepts.
    fn find(&self, is_meant: impl Fn(&Claim, Lsn) -> bool) -> Vec<(Claim, u64)> {
        self.target.with(|state| {
            let meant = state.rows.iter().filter(|(claim, (version, _))| is_meant(claim, *version));
            meant.map(|(claim, _)| (claim.clone(), state.write_of(claim))).collect()
        })
    }

    async fn send(&self, sent: SentFlush) -> Result<(), Fault> {
        let weather = &self.target.weather;
        weather.answer(Refused::Target)?;
        weather.answer(Refused::Flushes)?;
        let due = weather.due(Instant::now());
        if self.target.is_down() || weather.strikes_in(LOST) {
            return Err(self.broken());
        }
        let number = self.target.with(|state| {
            state.sent += 1;
            state.on_the_way.insert((due, state.sent), sent);
            state.sent
        });
        // If the call is dropped here, the flush still happens later.
        tokio::time::sleep_until(due).await;
        let outcome = self.target.with(|state| state.outcomes.remove(&number)).expect("it was due");
        // If the call is dropped here, the caller does not know that the flush has happened.
        weather.pause().await;
        if weather.strikes_in(UNHEARD) { Err(self.broken()) } else { outcome }
    }
}
