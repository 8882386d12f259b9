//! Freezes the tables of a day: one task reads pages ahead while two others write the pages before them.
//!
//! The reader goes through the tables in the order of users, and the writers add the rows to the cohort in the same
//! order. So one cursor says how far a freeze is, whichever task is killed and when: rows that were read ahead and not
//! written are read again. A writer puts all waiting pages into one transaction, so a slow commit makes the next one
//! larger. Two transactions insert their rows at once; the second one locks the run, compares the cursor and commits
//! only after the first one has.

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::failpoints;
use tokio::sync::{Mutex, mpsc};

use crate::days::{CohortPage, Fence, add_page, members};
use crate::ports::{CohortRows, Ledger};
use crate::records::{Cursor, DayRun, RunKey, RunLedger};
use crate::turns::PageTurns;

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
    let writing = Writing {
        ledger,
        wave,
        waiting: Mutex::new(WaitingPages { pages, cursor: wave.run.cursor }),
        turns: PageTurns::new(wave.run.cursor),
    };
    let (read, one, other) = tokio::join!(read(cohort, wave, ahead), writing.run(), writing.run());
    one.and(other)?;
    read?;
    Ok(writing.turns.reached())
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

/// Pages that were read, in their order.
struct WaitingPages {
    pages: mpsc::Receiver<PageRead>,
    /// The point where the next page begins.
    cursor: Cursor,
}

/// The writers of a freeze. Each writes under the fence of the run's revision, in the order of pages.
struct Writing<'w, L> {
    ledger: &'w L,
    wave: Wave<'w>,
    waiting: Mutex<WaitingPages>,
    turns: PageTurns,
}

impl<L: Ledger> Writing<'_, L> {
    /// Writes pages until they end or no transaction after the last one can be committed.
    async fn run(&self) -> Result<(), Fault> {
        while let Some((begins, read)) = self.next().await {
            let fence = Fence { wave: self.wave.number, revision: self.wave.run.revision, cursor: begins };
            // A user may be in two tables of a day. The transactions of one table alone have no user in common, so none
            // waits for a row of the other one, which waits for its turn.
            if begins.after.is_none() && !self.turns.at(begins).comes().await {
                return Ok(());
            }
            failpoints::reach("coupons-before-page").await;
            let (key, page) = (self.wave.key, &read.page);
            let decide = |ledger: &mut RunLedger| add_page(ledger, fence, page, read.cursor);
            let added = self.ledger.add_in_turn(key, &page.members, &self.turns.at(begins), decide).await;
            if !matches!(added, Ok(Some(true))) {
                self.stop().await;
                return added.map(|_| ());
            }
            failpoints::reach("coupons-after-page").await;
            self.turns.written(read.cursor);
        }
        Ok(())
    }

    /// Returns the waiting pages that one transaction takes, and the point where they begin.
    async fn next(&self) -> Option<(Cursor, PageRead)> {
        let mut waiting = self.waiting.lock().await;
        let mut read = waiting.pages.recv().await?;
        while read.has_room() {
            let Ok(next) = waiting.pages.try_recv() else { break };
            read.append(next);
        }
        let begins = std::mem::replace(&mut waiting.cursor, read.cursor);
        Some((begins, read))
    }

    /// Lets no later transaction have its turn, and the reader end.
    async fn stop(&self) {
        self.turns.end();
        self.waiting.lock().await.pages.close();
    }
}
