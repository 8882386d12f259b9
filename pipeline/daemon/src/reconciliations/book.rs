//! The past reconciliations and those under way, for the API and the live page. This process reads them on request, and
//! keeps them in memory.
//!
//! One read of history and registers answers all requests within [`FRESH`]. Of a report only its figures are kept. New
//! reports are added to the list. After [`VERIFIED_FOR`] the whole list is read again, so a report that was changed
//! in the history appears as `broken` here too. This read begins with the newest reports. If a slow server does not end
//! it within [`WAIT_MAX`], its result stays, and the next request reads on from there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anabranch_pipeline::config::Secret;
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
const READ_AT_ONCE: u64 = 20;
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
    /// Number of older reconciliations, which the list leaves out.
    pub older: u64,
    /// Whether each reconciliation of the list was read at least once.
    is_complete: bool,
    /// Time of the last attempt to read, also of a failed one.
    looked_at: Option<Instant>,
    /// Time at which the last read of the whole list began.
    verified_at: Option<Instant>,
    /// Greatest number that this read has still to reach; `None` = it has ended.
    unread_up_to: Option<u64>,
    /// Queries of such reads that were answered.
    blocks_read: u64,
    /// Number of times that [`READ_AT_ONCE`] was halved, because one query took longer than a request waits.
    halvings: u32,
}

impl BookSnapshot {
    /// Number of reconciliations that will be listed and were not read yet; `None` = the newest number is not known.
    pub fn unread(&self) -> Option<u64> {
        if self.is_complete {
            return Some(0);
        }
        self.unread_up_to.map(|number| number.saturating_sub(self.older))
    }

    /// Reads within [`WAIT_MAX`]. The answers to finished queries stay, also when the next query fails. The list and
    /// the registers are read beside each other: a server that is away holds up only its own part.
    async fn read(
        &mut self,
        history: &impl History,
        key: Option<&Secret>,
        underway: impl Future<Output = Result<Vec<Progress>, Fault>>,
    ) {
        let blocks_before = self.blocks_read;
        let (mut list, mut registers) = (None, None);
        let of_list = async { list = Some(self.read_on(history, key).await) };
        let of_registers = async { registers = Some(underway.await) };
        _ = timeout(WAIT_MAX, async { tokio::join!(of_list, of_registers) }).await;
        let list_code = match list {
            Some(Ok(())) => {
                self.halvings = 0;
                None
            }
            Some(Err(fault)) => Some(fault.code()),
            None if self.blocks_read > blocks_before => None,
            None => {
                self.halvings = self.halvings.saturating_add(1);
                Some(Code::TimedOut)
            }
        };
        let registers_code = match registers {
            Some(Ok(found)) => {
                self.underway = found;
                None
            }
            Some(Err(fault)) => Some(fault.code()),
            None => Some(Code::TimedOut),
        };
        self.ended(list_code.or(registers_code));
    }

    fn ended(&mut self, code: Option<Code>) {
        self.code = code;
        self.looked_at = Some(Instant::now());
    }

    async fn read_on(&mut self, history: &impl History, key: Option<&Secret>) -> Result<(), Fault> {
        let newest = history.newest_number().await?.unwrap_or(0);
        let older = newest.saturating_sub(KEPT_MAX);
        let is_replaced = self.entries.keys().next_back().is_some_and(|last| newest < *last);
        let is_verified = self.verified_at.is_some_and(|at| at.elapsed() < VERIFIED_FOR);
        self.older = older;
        self.entries.retain(|number, _| *number > older && *number <= newest);
        if is_replaced || (self.unread_up_to.is_none() && !is_verified) {
            self.unread_up_to = Some(newest);
            self.verified_at = Some(Instant::now());
        }
        let last = self.entries.keys().next_back().copied().unwrap_or(older);
        let mut known = last.max(self.unread_up_to.unwrap_or(0));
        while known < newest {
            let up_to = newest.min(known + self.at_once());
            self.read_block(history, key, known, up_to).await?;
            known = up_to;
        }
        self.read_at_ms = Some(wall_clock::now_ms());
        while let Some(up_to) = self.unread_up_to.filter(|number| *number > older) {
            let after = up_to.saturating_sub(self.at_once()).max(older);
            self.read_block(history, key, after, up_to).await?;
            self.unread_up_to = Some(after);
            self.blocks_read += 1;
        }
        self.unread_up_to = None;
        self.is_complete = true;
        Ok(())
    }

    fn at_once(&self) -> u64 {
        READ_AT_ONCE.checked_shr(self.halvings).unwrap_or(0).max(1)
    }

    /// Reads the entries after one number, up to another. It reads the record of the first number too, because the
    /// signature of the next one covers it.
    async fn read_block(
        &mut self,
        history: &impl History,
        key: Option<&Secret>,
        after: u64,
        up_to: u64,
    ) -> Result<(), Fault> {
        let page = history.after(after.saturating_sub(1), (up_to - after + 1) as usize).await?;
        self.entries.retain(|number, _| *number <= after || *number > up_to);
        let mut before: Option<&PastReconciliation> = None;
        for past in &page {
            if past.number > after && past.number <= up_to {
                self.entries.insert(past.number, HistoryEntry::of(past, Seal::of(past, before, key)));
            }
            before = Some(past);
        }
        Ok(())
    }
}

/// The list, shared by all requests. Cheap to clone.
#[derive(Clone)]
pub struct ReconciliationBook(Arc<(Wiring, Mutex<BookSnapshot>)>);

impl ReconciliationBook {
    pub fn new(wiring: &Wiring) -> Self {
        let is_signed = wiring.config().reconcile.signing_key.is_some();
        Self(Arc::new((wiring.clone(), Mutex::new(BookSnapshot { is_signed, ..BookSnapshot::default() }))))
    }

    /// Returns the list, at most [`FRESH`] old; if it cannot be read within [`WAIT_MAX`], the list as far as it is
    /// known, with the code of the failure. Other requests wait while one reads, or holds the returned guard.
    pub async fn read(&self) -> MutexGuard<'_, BookSnapshot> {
        let (wiring, kept) = &*self.0;
        let mut kept = kept.lock().await;
        if kept.looked_at.is_none_or(|at| at.elapsed() >= FRESH) {
            let key = wiring.config().reconcile.signing_key.as_ref();
            match wiring.history() {
                Ok(history) => Box::pin(kept.read(&history, key, progress(wiring))).await,
                Err(fault) => kept.ended(Some(fault.code())),
            }
        }
        kept
    }
}

/// Returns the reconciliations that are not over.
async fn progress(wiring: &Wiring) -> Result<Vec<Progress>, Fault> {
    let (scheduled, by_hand) = underway(wiring).await?;
    Ok([scheduled, by_hand].into_iter().flatten().map(Progress::from).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use anabranch_pipeline::reconcile::seal;
    use tokio::time::{advance, sleep};

    use super::*;

    /// A history in memory, whose queries take the same time for each row that they ask for.
    struct Rows {
        rows: Vec<PastReconciliation>,
        per_row: Duration,
        queries: AtomicUsize,
    }

    impl Rows {
        fn of(count: u64, per_row: Duration) -> Self {
            let mut rows: Vec<PastReconciliation> = Vec::new();
            for number in 1..=count {
                let id = format!("reconciliation-{number}");
                rows.push(seal(rows.last(), (&id, number, Outcome::Clean), "{}".to_owned(), None));
            }
            Self { rows, per_row, queries: AtomicUsize::new(0) }
        }

        fn append_one(&mut self) {
            let row = seal(self.rows.last(), ("another", 7, Outcome::Clean), "{}".to_owned(), None);
            self.rows.push(row);
        }

        fn queries(&self) -> usize {
            self.queries.load(Ordering::Relaxed)
        }
    }

    impl History for Rows {
        async fn newest_number(&self) -> Result<Option<u64>, Fault> {
            Ok(self.rows.last().map(|row| row.number))
        }

        async fn newest(&self, reconciliations: usize) -> Result<Vec<PastReconciliation>, Fault> {
            Ok(self.rows.iter().rev().take(reconciliations).cloned().collect())
        }

        async fn after(&self, number: u64, reconciliations: usize) -> Result<Vec<PastReconciliation>, Fault> {
            self.queries.fetch_add(1, Ordering::Relaxed);
            sleep(self.per_row * reconciliations as u32).await;
            let after = self.rows.iter().filter(|row| row.number > number);
            Ok(after.take(reconciliations).cloned().collect())
        }

        async fn numbered(&self, number: u64) -> Result<Option<PastReconciliation>, Fault> {
            Ok(self.rows.iter().find(|row| row.number == number).cloned())
        }

        async fn named(&self, id: &str) -> Result<Option<PastReconciliation>, Fault> {
            Ok(self.rows.iter().find(|row| row.id == id).cloned())
        }

        async fn append(&self, _: &PastReconciliation) -> Result<(), Fault> {
            unreachable!("the list only reads")
        }
    }

    async fn read(book: &mut BookSnapshot, rows: &Rows) {
        book.read(rows, None, async { Ok(Vec::new()) }).await;
    }

    fn seals(book: &BookSnapshot, seal: &str) -> Vec<u64> {
        book.entries.values().filter(|entry| entry.seal == seal).map(|entry| entry.number).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_that_was_changed_is_broken_here_after_two_minutes_and_costs_no_query_before() {
        let (mut book, mut rows) = (BookSnapshot::default(), Rows::of(30, Duration::ZERO));
        read(&mut book, &rows).await;
        assert_eq!((seals(&book, "whole").len(), rows.queries(), book.unread()), (30, 2, Some(0)));
        rows.rows[3].report.push(' ');
        rows.append_one();
        advance(Duration::from_secs(60)).await;
        read(&mut book, &rows).await;
        assert_eq!((seals(&book, "whole").len(), rows.queries()), (31, 3), "only the new one is read");
        advance(Duration::from_secs(61)).await;
        read(&mut book, &rows).await;
        assert_eq!((seals(&book, "broken"), book.entries.len()), (vec![4], 31));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_history_is_read_on_with_each_request_and_the_newest_reports_come_first() {
        let (mut book, rows) = (BookSnapshot::default(), Rows::of(45, Duration::from_millis(170)));
        read(&mut book, &rows).await;
        let first = book.entries.keys().next().copied();
        assert_eq!((first, book.entries.len(), book.unread(), book.code), (Some(26), 20, Some(25), None));
        for _ in 0..2 {
            read(&mut book, &rows).await;
        }
        assert_eq!((seals(&book, "whole").len(), book.unread(), book.code), (45, Some(0), None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_query_that_takes_too_long_is_tried_with_fewer_reports() {
        let (mut book, rows) = (BookSnapshot::default(), Rows::of(3, Duration::from_millis(1_500)));
        read(&mut book, &rows).await;
        assert_eq!((book.entries.len(), book.unread(), book.code), (0, Some(3), Some(Code::TimedOut)));
        for _ in 0..10 {
            read(&mut book, &rows).await;
        }
        assert_eq!((seals(&book, "whole").len(), book.unread(), book.code), (3, Some(0), None));
    }

    #[tokio::test(start_paused = true)]
    async fn registers_that_cannot_be_read_hide_no_report_and_their_code_is_shown() {
        let rows = Rows::of(30, Duration::ZERO);
        let mut book = BookSnapshot::default();
        assert_eq!(book.unread(), None);
        book.read(&rows, None, async { Err(Fault::new(Code::LogUnreachable, "log", "away")) }).await;
        assert_eq!((book.entries.len(), book.unread(), book.code), (30, Some(0), Some(Code::LogUnreachable)));
        let mut book = BookSnapshot::default();
        book.read(&rows, None, std::future::pending()).await;
        let (unread, code) = (book.unread(), book.code);
        assert_eq!((book.entries.len(), unread, code, book.halvings), (30, Some(0), Some(Code::TimedOut), 0));
    }

    #[tokio::test(start_paused = true)]
    async fn five_hundred_reports_are_listed_and_the_number_of_older_ones_is_known() {
        let (mut book, mut rows) = (BookSnapshot::default(), Rows::of(510, Duration::ZERO));
        read(&mut book, &rows).await;
        assert_eq!((seals(&book, "whole").len(), book.older, book.unread()), (500, 10, Some(0)));
        // A history that was replaced by an older one is read anew.
        rows.rows.truncate(7);
        read(&mut book, &rows).await;
        assert_eq!((seals(&book, "whole").len(), book.older), (7, 0));
    }
}
