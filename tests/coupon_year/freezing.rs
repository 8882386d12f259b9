//! A freeze that reads ahead: the rows that it has written when a read fails, and how far it reads ahead. A sweep after
//! it makes way for lanes.

#![expect(clippy::unwrap_used, reason = "the whole file is tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anabranch_connectors::memory::MemoryLedger;
use anabranch_coupons::days::{Fence, begin, end_wave, take_over};
use anabranch_coupons::dispatching::Dispatcher;
use anabranch_coupons::freezing::{Wave, freeze};
use anabranch_coupons::ports::{
    Clock, CohortRow, CohortRows, DayReports, Ledger, Reconciled, Register, Uniques, WorkQueue,
};
use anabranch_coupons::programme::Programme;
use anabranch_coupons::records::{Cursor, DayRun, Message, RunKey, Unique};
use anabranch_coupons::report::Report;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::celebration::{Birthday, Calendar, Occurrence};
use anabranch_schemas::shard::ShardId;
use jiff::Timestamp;
use jiff::tz::TimeZone;

const USERS: u64 = 80_000;
const PAGE_ROWS: u64 = 1_000;
/// Most rows that a freeze may hold in memory: pages of two transactions, pages that wait, and one that is being read.
const AHEAD_MAX: u64 = 51 * PAGE_ROWS;
/// Members that a sweep reads at once.
const SWEEP_ROWS: u64 = 5_000;

/// A table of users 1, 2, 3 …, whose page number `fails_at` cannot be read.
struct Tables {
    users: u64,
    ledger: MemoryLedger,
    key: RunKey,
    pages: AtomicUsize,
    fails_at: Option<usize>,
    furthest: AtomicU64,
    ways_made: AtomicU64,
}

impl Tables {
    fn new(ledger: &MemoryLedger, key: &RunKey, fails_at: Option<usize>) -> Self {
        let (ledger, key) = (ledger.clone(), key.clone());
        let (pages, furthest, ways_made) = Default::default();
        Self { users: USERS, ledger, key, pages, fails_at, furthest, ways_made }
    }
}

impl CohortRows for Tables {
    async fn barrier(&self) -> Result<bool, Fault> {
        Ok(true)
    }

    async fn page(&self, table: Birthday, after: Option<u64>, limit: usize) -> Result<Vec<CohortRow>, Fault> {
        if Some(self.pages.fetch_add(1, Ordering::Relaxed) + 1) == self.fails_at {
            return Err(Fault::new(Code::TargetUnreachable, "birthday tables", "the connection broke"));
        }
        let first = after.unwrap_or(0) + 1;
        let written = stored(&self.ledger, &self.key).await.cursor.after.unwrap_or(0);
        self.furthest.fetch_max(first.saturating_sub(written), Ordering::Relaxed);
        let shard = ShardId::from_u64(7).unwrap();
        let row = |user| CohortRow { user, shard, birthday: table, calendar: Calendar::Solar };
        Ok((first..=self.users).take(limit).map(row).collect())
    }

    async fn follow(&self, _: &[Birthday], _: &[(u64, Occurrence)]) -> Result<(), Fault> {
        Ok(())
    }

    async fn reconciled(&self) -> Result<Option<Reconciled>, Fault> {
        Ok(None)
    }

    async fn make_way(&self, _: Duration) {
        self.ways_made.fetch_add(1, Ordering::Relaxed);
    }
}

/// A queue that keeps no message, a chain that keeps no report, the register of a ledger that never issued, and the
/// process of a dispatcher.
struct Quiet;

impl WorkQueue for Quiet {
    async fn publish(&self, _: &[Message]) -> Result<(), Fault> {
        Ok(())
    }
}

impl DayReports for Quiet {
    async fn keep(&self, _: &RunKey, _: &DayRun, _: &Report) -> Result<(), Fault> {
        Ok(())
    }
}

impl Register for Quiet {
    async fn read(&self) -> Result<Unique, Fault> {
        Ok(Unique(1))
    }

    async fn swap(&self, _: Unique, _: Unique) -> Result<bool, Fault> {
        Ok(false)
    }
}

impl Clock for Quiet {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

impl Uniques for Quiet {
    fn fresh(&self) -> Unique {
        Unique(9)
    }
}

/// A queue without room, and how often it refused messages.
struct FullQueue(AtomicUsize);

impl WorkQueue for FullQueue {
    async fn publish(&self, messages: &[Message]) -> Result<(), Fault> {
        if messages.is_empty() {
            return Ok(());
        }
        self.0.fetch_add(1, Ordering::Relaxed);
        Err(Fault::new(Code::LogFull, "stream", "no room for more"))
    }
}

async fn stored(ledger: &MemoryLedger, key: &RunKey) -> DayRun {
    ledger.with_run(key, &[], |l| l.run.clone()).await.unwrap().unwrap()
}

fn dispatcher<Q>(
    ledger: MemoryLedger,
    cohort: Tables,
    queue: Q,
) -> Dispatcher<MemoryLedger, Tables, Q, Quiet, Quiet> {
    Dispatcher { ledger, cohort, queue, register: Quiet, process: Quiet, resends: Arc::default() }
}

fn programme() -> Programme {
    programme_with("")
}

fn programme_with(more: &str) -> Programme {
    let text = "name = 'birthday'\ncoupon = 'cake'\ntime_zone = 'UTC'\nleap_day = 'feb28'\ncalendars = ['solar']\n\
                waits_until = '00:00'\n";
    Programme::parse_all(&[format!("{text}{more}").parse().unwrap()]).unwrap().remove(0)
}

async fn begun() -> (MemoryLedger, RunKey) {
    begun_with(programme()).await
}

async fn begun_with(programme: Programme) -> (MemoryLedger, RunKey) {
    let ledger = MemoryLedger::new(Unique(1));
    let now = Timestamp::now();
    ledger.with_programme(&programme.name, |l| begin(l, &programme, now, Unique(2))).await.unwrap();
    // A day of a month other than February has one table.
    let key = RunKey { programme: programme.name, day: now.to_zoned(TimeZone::UTC).date() };
    (ledger, key)
}

/// Takes the freeze over, as each pass does, and runs it.
async fn frozen(ledger: &MemoryLedger, tables: &Tables, revision: Unique) -> Result<Option<Cursor>, Fault> {
    let key = &tables.key;
    let run = ledger.with_run(key, &[], |l| take_over(l, 0, revision)).await.unwrap().unwrap();
    freeze(ledger, tables, Wave { key, run: &run, number: 0, is_after_barrier: true }).await
}

#[tokio::test]
async fn a_freeze_whose_reading_fails_ends_no_wave_and_goes_on_where_it_has_written() {
    let (ledger, key) = begun().await;
    let first = Tables::new(&ledger, &key, Some(5));
    let fault = frozen(&ledger, &first, Unique(3)).await.expect_err("a page could not be read");
    assert_eq!(fault.code(), Code::TargetUnreachable);
    let run = stored(&ledger, &key).await;
    assert_eq!((run.count, run.cursor), (4 * PAGE_ROWS, Cursor { table: 0, after: Some(4 * PAGE_ROWS) }));
    assert_eq!(run.frozen, 0);

    let tables = run.birthdays(key.day).len();
    let second = Tables::new(&ledger, &key, None);
    let end = frozen(&ledger, &second, Unique(4)).await.unwrap();
    assert_eq!(end, Some(Cursor { table: tables, after: None }));
    let run = stored(&ledger, &key).await;
    assert_eq!(run.count, USERS, "nobody is left out and nobody counted twice");
    let fence = Fence { wave: 0, revision: Unique(4), cursor: run.cursor };
    assert!(ledger.with_run(&key, &[], |l| end_wave(l, fence, true)).await.unwrap());
    let ahead = second.furthest.load(Ordering::Relaxed);
    assert!(ahead > PAGE_ROWS, "pages are read while others wait to be written");
    assert!(ahead <= AHEAD_MAX, "it reads {ahead} users ahead");
}

#[tokio::test]
async fn a_freezer_that_was_overtaken_writes_nothing_of_what_it_read_ahead() {
    let (ledger, key) = begun().await;
    let tables = Tables::new(&ledger, &key, None);
    let run = ledger.with_run(&key, &[], |l| take_over(l, 0, Unique(3))).await.unwrap().unwrap();
    ledger.with_run(&key, &[], |l| take_over(l, 0, Unique(4))).await.unwrap().unwrap();
    let wave = Wave { key: &key, run: &run, number: 0, is_after_barrier: true };
    assert_eq!(freeze(&ledger, &tables, wave).await.unwrap(), None);
    assert_eq!(stored(&ledger, &key).await.count, 0);
}

#[tokio::test]
async fn a_sweep_makes_way_for_lanes_after_each_full_page() {
    for (users, ways) in [(USERS, USERS / SWEEP_ROWS), (SWEEP_ROWS - 1, 0)] {
        let (ledger, key) = begun().await;
        let cohort = Tables { users, ..Tables::new(&ledger, &key, None) };
        let dispatcher = dispatcher(ledger, cohort, Quiet);
        let passed = dispatcher.pass(&programme(), &Quiet).await.unwrap();
        assert_eq!(passed.days.first().map(|day| day.report.eligible), Some(users));
        assert_eq!(dispatcher.cohort.ways_made.load(Ordering::Relaxed), ways, "of {users} users");
    }
}

#[tokio::test]
async fn a_sweep_that_fills_the_queue_publishes_no_more_and_counts_to_the_end() {
    let (ledger, key) = begun().await;
    let users = 3 * SWEEP_ROWS;
    let cohort = Tables { users, ..Tables::new(&ledger, &key, None) };
    let queue = FullQueue(AtomicUsize::new(0));
    let dispatcher = dispatcher(ledger, cohort, queue);
    let passed = dispatcher.pass(&programme(), &Quiet).await.unwrap();
    let counts = passed.days.first().map(|day| (day.report.eligible, day.report.missed));
    assert_eq!(counts, Some((users, users)));
    assert_eq!(dispatcher.queue.0.load(Ordering::Relaxed), 1, "it publishes no more in this pass");
}

#[tokio::test]
async fn a_day_that_waits_for_a_reconciliation_is_passed_as_one_that_waits_and_freezes_nothing() {
    let careful = programme_with("without_reconciliation = 'stop'\n");
    let (ledger, key) = begun_with(careful.clone()).await;
    let cohort = Tables::new(&ledger, &key, None);
    let dispatcher = dispatcher(ledger, cohort, Quiet);
    let passed = dispatcher.pass(&careful, &Quiet).await.unwrap();
    let day = passed.days.first().map(|day| (day.day, day.is_waiting, day.frozen, day.is_closed));
    assert_eq!(day, Some((key.day, true, 0, false)));
    assert_eq!(stored(&dispatcher.ledger, &key).await.count, 0);
}

#[tokio::test]
async fn a_day_with_a_fault_holds_no_other_up_and_the_other_is_handed_on() {
    let programme = programme();
    let ledger = MemoryLedger::new(Unique(1));
    let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
    ledger.with_programme(&programme.name, |l| l.next = today.yesterday().ok()).await.unwrap();
    let key = RunKey { programme: programme.name.clone(), day: today };
    // The first page is one of yesterday.
    let cohort = Tables { users: 3, ..Tables::new(&ledger, &key, Some(1)) };
    let dispatcher = dispatcher(ledger, cohort, Quiet);
    let passed = dispatcher.pass(&programme, &Quiet).await.unwrap();
    assert_eq!(passed.fault.map(|fault| fault.code()), Some(Code::TargetUnreachable));
    let days: Vec<_> = passed.days.iter().map(|day| (day.day, day.report.eligible)).collect();
    assert_eq!(days, [(today, 3)]);
}

#[tokio::test]
async fn a_noon_whose_reading_fails_leaves_midnights_members_swept_and_its_fault_is_handed_on() {
    let programme = programme_with("noon_at = '00:00:01'\n");
    let (ledger, key) = begun_with(programme.clone()).await;
    // Midnight reads the users of each table, and then its end.
    let tables = stored(&ledger, &key).await.birthdays(key.day).len();
    let cohort = Tables { users: 3, ..Tables::new(&ledger, &key, Some(2 * tables + 1)) };
    let queue = FullQueue(AtomicUsize::new(0));
    let dispatcher = dispatcher(ledger, cohort, queue);
    let passed = dispatcher.pass(&programme, &Quiet).await.unwrap();
    assert_eq!(passed.fault.map(|fault| fault.code()), Some(Code::TargetUnreachable));
    let days: Vec<_> = passed.days.iter().map(|day| (day.frozen, day.report.missed, day.is_closed)).collect();
    assert_eq!(days, [(1, 3, false)], "midnight's members are counted, and the day waits for noon");
    assert_eq!(dispatcher.queue.0.load(Ordering::Relaxed), 1, "midnight's members are published");
    assert_eq!(stored(&dispatcher.ledger, &key).await.frozen, 1);

    // The next pass can read the tables.
    let passed = dispatcher.pass(&programme, &Quiet).await.unwrap();
    assert!(passed.fault.is_none());
    assert_eq!(passed.days.first().map(|day| (day.frozen, day.report.eligible)), Some((2, 3)));
}
