//! Freezes the tables of a day: one task reads pages ahead while another writes the pages before them.
//!
//! The reader goes through the tables in the order of users, and the writer adds the rows to the cohort in the same
//! order. So one cursor says how far a freeze is, whichever task is killed and when: rows that were read ahead and not
//! written are read again. The writer puts all waiting pages into one transaction, so a slow commit makes the next one
//! larger.

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::failpoints;
use tokio::sync::mpsc;

use crate::days::{CohortPage, Fence, add_page, members};
use crate::ports::{CohortRows, Ledger};
use crate::records::{Cursor, DayRun, RunKey};

/// Pages that wait while others are written, at most: as many as one transaction takes.
const PAGES_AHEAD: usize = 16;
/// Rows from which a transaction takes no further page: less than a megabyte of SQL, whose commit costs a fifteenth of
/// its work.
const TRANSACTION_ROWS: usize = 16_000;

/// A wave of a run, as the freezer that took it over works on it.
#[derive(Debug, Clone, Copy)]
pub struct Wave<'a> {
    pub key: &'a RunKey,
    /// The run under the freezer's revision.
    pub run: &'a DayRun,
    pub number: u8,
    pub is_after_barrier: bool,
}

/// Pages that were read and are not written yet.
struct PageRead {
    page: CohortPage,
    rows: usize,
    /// The point where the freeze resumes after these pages.
    cursor: Cursor,
}

impl PageRead {
    /// Returns whether a transaction with these rows takes a further page. No transaction has rows of two tables, so
    /// the users that it offers lie together.
    fn has_room(&self) -> bool {
        self.rows < TRANSACTION_ROWS && self.cursor.after.is_some()
    }

    /// Adds the page that was read next.
    fn append(&mut self, next: Self) {
        self.page.members.extend(next.page.members);
        self.page.misplaced += next.page.misplaced;
        (self.rows, self.cursor) = (self.rows + next.rows, next.cursor);
    }
}

/// Adds the day's tables to the cohort from the run's cursor on. Returns the cursor after the last row; `None` when
/// another freezer has taken over.
///
/// When a read fails, the rows before it are written first, and then the fault is returned.
pub async fn freeze<L: Ledger, B: CohortRows>(
    ledger: &L,
    cohort: &B,
    wave: Wave<'_>,
) -> Result<Option<Cursor>, Fault> {
    let (ahead, pages) = mpsc::channel(PAGES_AHEAD);
    let (read, written) = tokio::join!(read(cohort, wave, ahead), write(ledger, wave, pages));
    let written = written?;
    read?;
    Ok(written)
}

/// Reads pages until the tables end or the writer has stopped.
async fn read<B: CohortRows>(cohort: &B, wave: Wave<'_>, ahead: mpsc::Sender<PageRead>) -> Result<(), Fault> {
    let limit = wave.run.rules.page_rows.get() as usize;
    let tables = wave.run.birthdays(wave.key.day);
    let mut cursor = wave.run.cursor;
    while let Some(table) = tables.get(cursor.table) {
        let rows = cohort.page(*table, cursor.after, limit).await?;
        cursor = match rows.last() {
            Some(last) => Cursor { after: Some(last.user), ..cursor },
            None => Cursor { table: cursor.table + 1, after: None },
        };
        let page = CohortPage { is_after_barrier: wave.is_after_barrier, ..members(*table, &rows) };
        if ahead.send(PageRead { page, rows: rows.len(), cursor }).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Writes the pages under the fence of the run's revision.
async fn write<L: Ledger>(
    ledger: &L,
    wave: Wave<'_>,
    mut pages: mpsc::Receiver<PageRead>,
) -> Result<Option<Cursor>, Fault> {
    let mut cursor = wave.run.cursor;
    while let Some(mut read) = pages.recv().await {
        while read.has_room() {
            let Ok(next) = pages.try_recv() else { break };
            read.append(next);
        }
        let fence = Fence { wave: wave.number, revision: wave.run.revision, cursor };
        let PageRead { page, cursor: next, .. } = &read;
        failpoints::reach("coupons-before-page").await;
        if !ledger.with_run(wave.key, &page.members, |l| add_page(l, fence, page, *next)).await? {
            return Ok(None);
        }
        failpoints::reach("coupons-after-page").await;
        cursor = *next;
    }
    Ok(Some(cursor))
}
