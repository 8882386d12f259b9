//! The past reconciliations and those under way, for the API and the live page. This process reads them on request, and
//! keeps them in memory.
//!
//! One read of history and registers answers all requests within [`FRESH`]. Of a report only its figures are kept. New
//! reports are added to the list. After [`VERIFIED_FOR`] the whole list is read again, so a report that someone changed
//! in the history appears as `broken` here too.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anabranch_pipeline::config::reconcile::Mode;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::History;
use anabranch_pipeline::reconcile::{Seal, StoreReport};
use anabranch_pipeline::records::{Outcome, PastReconciliation};
use anabranch_pipeline::wall_clock;
use serde::Serialize;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, timeout};

use super::{RunningReconciliation, parsed, underway};
use crate::wiring::Wiring;

/// Past reconciliations that are kept, at most: a year of daily ones, and some by hand.
const KEPT_MAX: u64 = 500;
/// Reports that one query reads, at most; each may have a megabyte.
const READ_AT_ONCE: usize = 20;
/// Time for which the list answers requests without a read; reconciliations take minutes at least.
const FRESH: Duration = Duration::from_secs(5);
/// Time after which the whole list is read, and every seal checked, again.
const VERIFIED_FOR: Duration = Duration::from_secs(120);
/// Time that a request waits for servers that do not answer.
const WAIT_MAX: Duration = Duration::from_secs(4);
/// Reasons of one store, at most; `anabranch reconcile show` has them all.
const REASONS_MAX: usize = 20;

/// The figures of one store, which is a projection or a cache; [`StoreReport`] explains them.
#[derive(Debug, Clone, Serialize)]
pub struct StoreEntry {
    store: String,
    verdict: Outcome,
    tables: u64,
    rows_source: u64,
    rows_expected: u64,
    rows_derived: u64,
    candidates: u64,
    drifted: u64,
    repaired: u64,
    confirmed: u64,
    left: u64,
    again: u64,
    foreign_rows: u64,
    is_gate_closed: bool,
    /// Number of reasons why something was not read or decided; `reasons` has the first of them.
    reasons_count: usize,
    reasons: Vec<String>,
    seconds: f64,
}

impl From<&StoreReport> for StoreEntry {
    fn from(report: &StoreReport) -> Self {
        Self {
            store: report.store.clone(),
            verdict: report.outcome(),
            tables: report.tables,
            rows_source: report.rows_source,
            rows_expected: report.rows_expected,
            rows_derived: report.rows_derived,
            candidates: report.candidates,
            drifted: report.drifted(),
            repaired: report.repaired,
            confirmed: report.confirmed,
            left: report.left,
            again: report.again,
            foreign_rows: report.foreign_rows,
            is_gate_closed: report.is_gate_closed,
            reasons_count: report.incomplete.len(),
            reasons: report.incomplete.iter().take(REASONS_MAX).cloned().collect(),
            seconds: report.seconds,
        }
    }
}

/// One past reconciliation.
#[derive(Debug, Clone, Serialize)]
pub struct HistoryEntry {
    pub number: u64,
    id: String,
    /// `None` when another version wrote the report in another form. Then `mode` and `is_whole` are `None` too, and
    /// `stores` is empty.
    begun_at_ms: Option<u64>,
    ended_at_ms: u64,
    verdict: Outcome,
    /// `whole`, `broken` (the record differs from the signed one, or another key signed it) or `unlinked` (the record
    /// before it is gone, or differs from the one at the time of signing). `is_whole` is about the extent, not about
    /// the seal.
    seal: &'static str,
    mode: Option<Mode>,
    /// Whether it compared every store, as configured.
    is_whole: Option<bool>,
    stores: Vec<StoreEntry>,
}

impl HistoryEntry {
    fn of(past: &PastReconciliation, seal: Seal) -> Self {
        let report = parsed(&past.report);
        Self {
            number: past.number,
            id: past.id.clone(),
            begun_at_ms: report.as_ref().map(|report| report.begun_at_ms),
            ended_at_ms: past.ended_at_ms,
            verdict: past.verdict,
            seal: match seal {
                Seal::Whole => "whole",
                Seal::Broken => "broken",
                Seal::Unlinked => "unlinked",
            },
            mode: report.as_ref().map(|report| report.mode),
            is_whole: report.as_ref().map(|report| report.is_whole),
            stores: report.iter().flat_map(|report| &report.stores).map(StoreEntry::from).collect(),
        }
    }

    /// Removes the reasons, which may name hosts.
    pub fn leave_out_reasons(&mut self) {
        self.stores.iter_mut().for_each(|store| store.reasons.clear());
    }
}

/// A reconciliation that is not over; [`RunningReconciliation`] explains the fields.
#[derive(Debug, Clone, Serialize)]
pub struct Progress {
    id: String,
    command: String,
    begun_at_ms: u64,
    windows: u32,
    done: Vec<StoreEntry>,
    current: Option<StoreEntry>,
    /// Finished share of the current store, from 0 to 1.
    share: f64,
}

impl Progress {
    pub fn leave_out_reasons(&mut self) {
        self.done.iter_mut().chain(&mut self.current).for_each(|store| store.reasons.clear());
    }
}

impl From<RunningReconciliation> for Progress {
    fn from(underway: RunningReconciliation) -> Self {
        Self {
            done: underway.done.iter().map(StoreEntry::from).collect(),
            current: underway.current.as_ref().map(StoreEntry::from),
            id: underway.id,
            command: underway.command,
            begun_at_ms: underway.begun_at_ms,
            windows: underway.windows,
            share: underway.share,
        }
    }
}

/// The list as it was read last, with the times of its reads.
#[derive(Debug, Default)]
pub struct BookSnapshot {
    pub entries: BTreeMap<u64, HistoryEntry>,
    pub underway: Vec<Progress>,
    pub read_at_ms: Option<u64>,
    /// Code of the failure of the last read; `None` = it succeeded.
    pub code: Option<Code>,
    pub is_signed: bool,
    /// Time of the last attempt to read, also of a failed one.
    looked_at: Option<Instant>,
    /// Time of the last read of the whole list.
    verified_at: Option<Instant>,
}

/// The list, shared by all requests. Cheap to clone.
#[derive(Clone)]
pub struct ReconciliationBook(Arc<(Wiring, Mutex<BookSnapshot>)>);

impl ReconciliationBook {
    pub fn new(wiring: &Wiring) -> Self {
        let is_signed = wiring.config().reconcile.signing_key.is_some();
        Self(Arc::new((wiring.clone(), Mutex::new(BookSnapshot { is_signed, ..BookSnapshot::default() }))))
    }

    /// Returns the list, at most [`FRESH`] old; if it cannot be read within [`WAIT_MAX`], the last list with the code
    /// of the failure. Other requests wait while one reads, or holds the returned guard.
    pub async fn read(&self) -> MutexGuard<'_, BookSnapshot> {
        let (wiring, kept) = &*self.0;
        let mut kept = kept.lock().await;
        if kept.looked_at.is_none_or(|at| at.elapsed() >= FRESH) {
            let code = match timeout(WAIT_MAX, read_history(wiring, &mut kept)).await {
                Ok(Ok(())) => None,
                Ok(Err(fault)) => Some(fault.code()),
                Err(_) => Some(Code::TimedOut),
            };
            kept.code = code;
            kept.looked_at = Some(Instant::now());
        }
        kept
    }
}

async fn read_history(wiring: &Wiring, kept: &mut BookSnapshot) -> Result<(), Fault> {
    let history = wiring.history()?;
    let newest = history.newest_number().await?.unwrap_or(0);
    let is_verified = kept.verified_at.is_some_and(|at| at.elapsed() < VERIFIED_FOR);
    let known = kept.entries.keys().next_back().copied().unwrap_or(0);
    if !is_verified || newest < known {
        kept.entries = entries(wiring, &history, newest.saturating_sub(KEPT_MAX)).await?;
        kept.verified_at = Some(Instant::now());
    } else if newest > known {
        kept.entries.append(&mut entries(wiring, &history, known).await?);
        while kept.entries.len() as u64 > KEPT_MAX {
            kept.entries.pop_first();
        }
    }
    let (scheduled, by_hand) = underway(wiring).await?;
    kept.underway = [scheduled, by_hand].into_iter().flatten().map(Progress::from).collect();
    kept.read_at_ms = Some(wall_clock::now_ms());
    Ok(())
}

/// Returns the entries after this number. It reads the record of this number too, because the signature of the next one
/// covers it.
async fn entries(
    wiring: &Wiring,
    history: &impl History,
    after: u64,
) -> Result<BTreeMap<u64, HistoryEntry>, Fault> {
    let key = wiring.config().reconcile.signing_key.as_ref();
    let mut entries = BTreeMap::new();
    let mut before: Option<PastReconciliation> = None;
    loop {
        let number = before.as_ref().map_or(after.saturating_sub(1), |before| before.number);
        let page = history.after(number, READ_AT_ONCE).await?;
        if page.is_empty() {
            return Ok(entries);
        }
        for past in page {
            if past.number > after {
                entries.insert(past.number, HistoryEntry::of(&past, Seal::of(&past, before.as_ref(), key)));
            }
            before = Some(past);
        }
    }
}
