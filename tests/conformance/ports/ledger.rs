//! The coupon ledger: one holder of a row, one issuer after another, and exact rereading of stored rows.

mod sweeps;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anabranch_connectors::memory::MemoryLedger;
use anabranch_connectors::mysql::ledger::{MySqlLedger, setup};
use anabranch_coupons::days::{CohortPage, Fence, add_page, begin, end_wave, take_over};
use anabranch_coupons::ports::Ledger;
use anabranch_coupons::programme::Programme;
use anabranch_coupons::records::{
    ATTEMPT_TIMEOUT, Candidate, CouponKey, Cursor, DayReconciliation, DayRun, FailedOutcome, LedgerRow,
    LedgerTokens, Member, PARTS, Reason, RefusedDay, RowState, RunKey, Unique, UserLedger,
};
use anabranch_coupons::reserving::{MessageEnd, reserve};
use anabranch_schemas::celebration::{Calendar, Occurrence};
use anabranch_schemas::shard::ShardId;
use futures::future::join_all;
use jiff::civil::{Date, date};
use jiff::{SignedDuration, Timestamp, ToSpan};
use tokio::runtime::{Handle, RuntimeFlavor};

use self::sweeps::expect_sweeps;
use crate::derived::StoreSite;
use crate::source::DatabaseKind;

pub const FIRST: Unique = Unique(1);
/// Longest wait for a second transaction, as locks may keep it from reading.
const MEETING_MAX: Duration = Duration::from_secs(2);

pub trait Ground {
    type Ledger: Ledger + Clone + 'static;

    async fn start() -> Self;
    fn ledger(&self) -> Self::Ledger;
}

pub struct Twin(MemoryLedger);

impl Ground for Twin {
    type Ledger = MemoryLedger;

    async fn start() -> Self {
        Self(MemoryLedger::new(FIRST))
    }

    fn ledger(&self) -> MemoryLedger {
        self.0.clone()
    }
}

pub struct Server {
    pub site: StoreSite,
    pub ledger: MySqlLedger,
}

impl Server {
    pub async fn further(kind: DatabaseKind) -> Option<Self> {
        Some(Self::on(StoreSite::further(kind).await?).await)
    }

    /// A ledger on a server that no other test uses.
    pub async fn alone() -> Self {
        Self::on(StoreSite::alone().await).await
    }

    async fn on(site: StoreSite) -> Self {
        let target = site.target("target-a");
        setup(&target, FIRST).await.unwrap();
        let ledger = MySqlLedger::open(&target, 8).await.unwrap();
        Self { site, ledger }
    }
}

impl Ground for Server {
    type Ledger = MySqlLedger;

    async fn start() -> Self {
        Self::further(DatabaseKind::MariaDb).await.unwrap()
    }

    fn ledger(&self) -> MySqlLedger {
        self.ledger.clone()
    }
}

on_twin_and_both_kinds_of_server!(Twin, Server:
    a_day_is_begun_frozen_and_swept,
    rows_of_every_state_are_read_as_they_were_written,
    of_granters_that_race_for_a_hundred_users_each_user_has_one,
    issuers_that_race_come_one_after_another,
);

pub fn today() -> Date {
    Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date()
}

pub fn programme() -> Programme {
    let text = "name = 'birthday'\ncoupon = 'cake'\ntime_zone = 'UTC'\nleap_day = 'feb28'\n";
    Programme::parse_all(&[text.parse().unwrap()]).unwrap().remove(0)
}

pub fn run_of(day: Date) -> RunKey {
    RunKey { programme: Arc::from("birthday"), day }
}

pub fn shard(number: u64) -> ShardId {
    ShardId::from_u64(number).unwrap()
}

fn shard_of(user: u64) -> ShardId {
    shard(user % 1_000 + 10)
}

/// Today's run with these users, frozen once.
pub async fn frozen(ledger: &impl Ledger, users: impl IntoIterator<Item = u64>) -> RunKey {
    let run = run_of(today());
    let (programme, own_clock) = (programme(), Timestamp::now() + SignedDuration::from_hours(1));
    ledger.with_programme(&run.programme, |l| begin(l, &programme, own_clock, Unique(7))).await.unwrap();
    let member = |user| (Member { user, calendar: Calendar::Solar }, vec![shard_of(user)]);
    let page =
        CohortPage { members: users.into_iter().map(member).collect(), misplaced: 3, is_after_barrier: true };
    let begun = ledger.with_run(&run, &[], |l| take_over(l, 0, Unique(8))).await.unwrap().unwrap();
    let fence = Fence { wave: 0, revision: Unique(8), cursor: begun.cursor };
    let cursor = Cursor { table: 1, after: None };
    assert!(ledger.with_run(&run, &page.members, |l| add_page(l, fence, &page, cursor)).await.unwrap());
    let fence = Fence { cursor, ..fence };
    assert!(ledger.with_run(&run, &[], |l| end_wave(l, fence, true)).await.unwrap());
    run
}

/// All users of one part, as a message has them.
pub fn hundred() -> Vec<u64> {
    (1..=100).map(|number| number * PARTS + 3).collect()
}

async fn a_day_is_begun_frozen_and_swept(ground: impl Ground) {
    let ledger = ground.ledger();
    let users: Vec<u64> = hundred().into_iter().chain([u64::MAX >> 1, 5, 6]).collect();
    let run = frozen(&ledger, users.iter().copied().rev()).await;

    // A day that is begun again stays as it is, and the programme continues after it.
    let programme = programme();
    let (next, open, leap_days) = ledger
        .with_programme(&run.programme, |l| {
            l.begun.push((run.day, DayRun { count: 77, ..begun(&programme, run.day) }));
            (l.next, l.open.clone(), l.leap_days.clone())
        })
        .await
        .unwrap();
    assert_eq!((next, open), (Some(run.day.tomorrow().unwrap()), vec![run.day]));
    assert_eq!(leap_days, BTreeMap::from([(run.day.year(), programme.leap_day)]));

    // A page that is offered again is already there, and its shards are united.
    let user = users[0];
    let member = Member { user, calendar: Calendar::Solar };
    let again = [(member, vec![shard(9)]), (Member { calendar: Calendar::Lunar, ..member }, vec![])];
    let (stored, present) = ledger
        .with_run(&run, &again, |l| {
            l.added = again.to_vec();
            let run = l.run.as_mut().unwrap();
            (run.sum, run.cursor) = (run.sum.wrapping_sub(1), Cursor { table: 2, after: Some(u64::MAX) });
            let ended_at = Timestamp::from_millisecond(1_800_000_000_123).unwrap();
            run.reconciliation = Some(DayReconciliation { id: Arc::from("20270115T080000Z"), ended_at });
            (l.run.clone().unwrap(), l.present.clone())
        })
        .await
        .unwrap();
    assert_eq!(present, BTreeSet::from([member]));
    assert_eq!((stored.count, stored.frozen, stored.misplaced), (users.len() as u64, 1, 3));
    assert_eq!((&stored.rules, stored.revision), (&programme, Unique(8)));
    assert!(stored.is_after_barrier && !stored.is_closed);
    expect_sweeps(&ledger, &run, stored).await;
    let claims = ledger.with_users(&run, &[user], |l| l.users[&user].claims.clone()).await.unwrap();
    assert_eq!(
        claims[&Calendar::Solar],
        BTreeSet::from([shard_of(user), shard(9)]).into_iter().collect::<Vec<_>>()
    );
    assert_eq!(claims[&Calendar::Lunar], []);

    // A user who has a row of the day and is no member is found between the members.
    let (stranger, occurrence) = (users[1] + PARTS / 2, Occurrence::of(Calendar::Solar, run.day).unwrap());
    ledger
        .with_users(&run, &[stranger], |l| put(l.users.get_mut(&stranger).unwrap(), occurrence, row(run.day)))
        .await
        .unwrap();
    let (mut after, mut found) = (None, Vec::new());
    loop {
        let (_, page) = ledger.member_states(&run, after, 9).await.unwrap();
        let Some(last) = page.last() else { break };
        assert!(page.len() <= 9);
        after = Some(last.member);
        found.extend(page);
    }
    let mut expected: Vec<Member> = users
        .iter()
        .chain([&stranger])
        .map(|user| Member { user: *user, calendar: Calendar::Solar })
        .collect();
    expected.push(Member { calendar: Calendar::Lunar, ..member });
    expected.sort();
    assert_eq!(found.iter().map(|member_state| member_state.member).collect::<Vec<_>>(), expected);
    let strangers: Vec<_> = found.iter().filter(|member_state| !member_state.is_member).collect();
    assert_eq!((strangers.len(), strangers[0].member.user), (1, stranger));
    assert_eq!(strangers[0].row, Some(row(run.day)));
    assert_eq!(found.iter().filter(|member_state| member_state.row.is_some()).count(), 1);
}

fn begun(programme: &Programme, day: Date) -> DayRun {
    let now = programme.at(day, programme.starts_at).unwrap();
    let mut ledger = anabranch_coupons::records::ProgrammeLedger {
        now,
        next: Some(day),
        leap_days: BTreeMap::new(),
        open: Vec::new(),
        begun: Vec::new(),
    };
    begin(&mut ledger, programme, now, Unique(6));
    ledger.begun.remove(0).1
}

pub fn row(day: Date) -> LedgerRow {
    LedgerRow {
        state: RowState::Reserved,
        day,
        calendar: Calendar::Solar,
        attempt: Unique(u128::MAX - 1),
        changed_at: "2027-05-04T01:02:03.000004Z".parse().unwrap(),
        tries: 0,
        coupon: "Torte 'ä' \\ 🎂".into(),
        version: Some("0c0ffee1".parse().unwrap()),
        by_hand: false,
        absent_since: None,
    }
}

fn put(user: &mut UserLedger, occurrence: Occurrence, row: LedgerRow) {
    user.rows.insert(occurrence, row);
}

async fn rows_of_every_state_are_read_as_they_were_written(ground: impl Ground) {
    let ledger = ground.ledger();
    let at: Timestamp = "2026-12-31T23:59:59.999999Z".parse().unwrap();
    let first = date(2027, 5, 4);
    let run = run_of(first);
    // Users of three parts, in one transaction.
    let users = [3, 4, 4 + PARTS, 9];
    let written = rows_of_every_state(first, at);
    let refusals = BTreeMap::from([
        ((first, Calendar::Solar), RefusedDay { wave: 2, reason: Reason::WithinGap }),
        ((first, Calendar::Lunar), RefusedDay { wave: u8::MAX, reason: Reason::OtherDay }),
    ]);
    ledger
        .with_users(&run, &users, |l| {
            assert_eq!(l.users.keys().copied().collect::<Vec<_>>(), [3, 4, 9, 20]);
            for user in l.users.values_mut() {
                (user.rows, user.refusals) = (written.clone(), refusals.clone());
            }
        })
        .await
        .unwrap();
    let read = ledger.with_users(&run, &[20, 9, 9, 4, 3], |l| l.users.clone()).await.unwrap();
    for user in users {
        assert_eq!((&read[&user].rows, &read[&user].refusals), (&written, &refusals));
        assert!(read[&user].run.is_none() && read[&user].claims.is_empty());
    }
    let of_another = RunKey { programme: Arc::from("other"), day: first };
    let other = ledger.with_users(&of_another, &users, |l| l.users.clone()).await.unwrap();
    assert!(other.values().all(|user| user.rows.is_empty() && user.refusals.is_empty()));

    rows_alone(&ledger, &run, &written, &refusals).await;
    rows_of_many_users(&ledger, &written).await;

    // Every row is changed, and one refusal is withdrawn.
    let changed: BTreeMap<_, _> = written
        .iter()
        .map(|(key, row)| {
            let version = programme().version();
            (*key, LedgerRow { tries: row.tries + 1, coupon: "b".into(), version, ..row.clone() })
        })
        .collect();
    ledger
        .with_users(&run, &[9], |l| {
            let user = l.users.get_mut(&9).unwrap();
            user.rows = changed.clone();
            user.refusals.remove(&(first, Calendar::Lunar));
        })
        .await
        .unwrap();
    let read = ledger.with_users(&run, &users, |l| l.users.clone()).await.unwrap();
    assert_eq!((&read[&9].rows, read[&9].refusals.len()), (&changed, 1));
    assert_eq!((&read[&3].rows, read[&3].refusals.len()), (&written, 2));

    // Each user has two letters that wait for a person, and one that a person sent again.
    let letters = all_letters(&ledger, &run).await;
    assert_eq!(letters.len(), 3 * users.len());
    assert!(letters.is_sorted_by(|(one, _), (two, _)| one < two));
    assert!(letters.iter().all(|(_, row)| row.is_letter()));
}

/// Rows of many users that differ only in their users are read as they were written, whatever numbers the users have.
async fn rows_of_many_users(ledger: &impl Ledger, written: &BTreeMap<Occurrence, LedgerRow>) {
    let run = RunKey { programme: Arc::from("many"), day: today() };
    let users: Vec<u64> =
        (0..6).map(|number| u64::MAX - number * PARTS).chain((0..6).map(|n| (n + 1) * PARTS - 1)).collect();
    let put_all = ledger.with_users(&run, &users, |l| {
        l.users.values_mut().for_each(|user| user.rows = written.clone());
    });
    put_all.await.unwrap();
    let read = ledger.with_users(&run, &users, |l| l.users.clone()).await.unwrap();
    assert_eq!(read.len(), users.len());
    for (user, ledger) in read {
        assert_eq!(ledger.rows, *written, "of user {user}");
    }
}

/// Rows are read alone, and new refusals join earlier ones. All of it is read without a lock.
async fn rows_alone(
    ledger: &impl Ledger,
    run: &RunKey,
    written: &BTreeMap<Occurrence, LedgerRow>,
    refusals: &BTreeMap<(Date, Calendar), RefusedDay>,
) {
    let unlocked = ledger.read_users(run, &[4]).await.unwrap();
    assert_eq!(unlocked.tokens, LedgerTokens { latest: FIRST, before: None });
    assert_eq!((&unlocked.users[&4].rows, &unlocked.users[&4].refusals), (written, refusals));
    let later = (run.day.tomorrow().unwrap(), Calendar::Solar);
    let refused = RefusedDay { wave: 1, reason: Reason::SourceRowGone };
    ledger
        .with_rows(run, &[4 + PARTS], |l| {
            let user = l.users.get_mut(&(4 + PARTS)).unwrap();
            assert_eq!(user.rows, *written);
            assert!(user.refusals.is_empty() && user.claims.is_empty() && user.run.is_none());
            user.refusals.insert(later, refused);
            user.refusals.insert((run.day, Calendar::Lunar), refused);
        })
        .await
        .unwrap();
    let read = ledger.read_users(run, &[4 + PARTS]).await.unwrap();
    let mut refusals = refusals.clone();
    refusals.extend([(later, refused), ((run.day, Calendar::Lunar), refused)]);
    assert_eq!((&read.users[&(4 + PARTS)].rows, &read.users[&(4 + PARTS)].refusals), (written, &refusals));
}

/// A row in each state, of several years and both calendars.
fn rows_of_every_state(first: Date, at: Timestamp) -> BTreeMap<Occurrence, LedgerRow> {
    let failed = [FailedOutcome::NothingGiven, FailedOutcome::Unknown { first_called_at: at }];
    let states = [RowState::Reserved, RowState::Issued { first_called_at: at }, RowState::Settled];
    let refused = Reason::ALL.map(RowState::Refused);
    let states = states.into_iter().chain(refused).chain(failed.map(RowState::Failed));
    let mut rows = BTreeMap::new();
    for (number, state) in states.enumerate() {
        let day = first.checked_add((number as i32).years()).unwrap();
        let calendar = if number % 2 == 0 { Calendar::Solar } else { Calendar::Lunar };
        let row = LedgerRow {
            state,
            calendar,
            tries: number as u32,
            by_hand: number % 3 == 0,
            absent_since: (number % 2 == 1).then_some(at),
            version: (number % 3 == 1).then(|| "00000007".parse().unwrap()),
            ..row(day)
        };
        rows.insert(Occurrence::of(calendar, day).unwrap(), row);
    }
    rows
}

/// The open letters of a run's programme, page by page.
async fn all_letters(ledger: &impl Ledger, run: &RunKey) -> Vec<(CouponKey, LedgerRow)> {
    let (mut letters, mut after) = (Vec::new(), None);
    loop {
        let page = ledger.dead_letters(&run.programme, after.as_ref(), 3).await.unwrap();
        let Some((last, _)) = page.last() else { return letters };
        after = Some(last.clone());
        letters.extend(page);
    }
}

async fn of_granters_that_race_for_a_hundred_users_each_user_has_one(ground: impl Ground) {
    let ledger = ground.ledger();
    let users = hundred();
    let run = frozen(&ledger, users.clone()).await;
    assert_eq!(race(&ledger, &run, 100).await, (users.len(), 5 * users.len()), "of rows that nobody had");

    // The same race for abandoned rows.
    ledger
        .with_users(&run, &users, |l| {
            for row in l.users.values_mut().flat_map(|user| user.rows.values_mut()) {
                row.changed_at -= ATTEMPT_TIMEOUT;
            }
        })
        .await
        .unwrap();
    assert_eq!(race(&ledger, &run, 200).await, (users.len(), 5 * users.len()), "of abandoned rows");
}

/// Waits for a second transaction, except on the twin's runtime, whose one thread cannot run two.
pub fn meet(read: &AtomicUsize) {
    if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
        return;
    }
    tokio::task::block_in_place(|| {
        let until = Instant::now() + MEETING_MAX;
        while read.load(Ordering::SeqCst) < 2 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
}

/// Six granters reserve the same users; returns how many rows they hold, and how many they were too late for. The first
/// waits after its read until another has read too, or is blocked.
async fn race(ledger: &(impl Ledger + Clone + 'static), run: &RunKey, attempts: u128) -> (usize, usize) {
    let read = Arc::new(AtomicUsize::new(0));
    let granters = (0..6).map(|granter| {
        let (ledger, run, read) = (ledger.clone(), run.clone(), Arc::clone(&read));
        tokio::spawn(async move {
            // Half of the granters take the reverse order.
            let mut order = hundred();
            if granter % 2 == 0 {
                order.reverse();
            }
            let taken = ledger.with_users(&run, &order, |l| {
                let reserve = |user: &u64| {
                    let member = Member { user: *user, calendar: Calendar::Solar };
                    let candidate = Candidate { run: run.clone(), member, wave: 1 };
                    reserve(l.users.get_mut(user).unwrap(), &candidate, Unique(attempts + granter))
                };
                read.fetch_add(1, Ordering::SeqCst);
                meet(&read);
                order.iter().map(reserve).collect::<Vec<_>>()
            });
            taken.await.unwrap()
        })
    });
    let (mut held, mut late) = (0, 0);
    for taken in join_all(granters).await {
        for taken in taken.unwrap() {
            match taken {
                Ok(_) => held += 1,
                Err(MessageEnd::Later) => late += 1,
                Err(MessageEnd::Done) => panic!("nobody is done"),
            }
        }
    }
    (held, late)
}

async fn issuers_that_race_come_one_after_another(ground: impl Ground) {
    let ledger = ground.ledger();
    let run = frozen(&ledger, hundred()).await;
    assert_eq!(ledger.tokens().await.unwrap(), LedgerTokens { latest: FIRST, before: None });
    assert_eq!(ledger.issued_at().await.unwrap(), None);
    let issuers = (0..6u128).map(|issuer| {
        let (ledger, run) = (ledger.clone(), run.clone());
        tokio::spawn(async move {
            let mut before = Vec::new();
            for number in 0..5 {
                let token = Unique(1_000 + issuer * 10 + number);
                let user = hundred()[issuer as usize];
                let users = [user];
                let issued = ledger.with_users(&run, &users, |l| {
                    let before = l.tokens.latest;
                    l.tokens = LedgerTokens { latest: token, before: Some(before) };
                    let occurrence = Occurrence::of(Calendar::Solar, run.day).unwrap();
                    let user = l.users.get_mut(&user).unwrap();
                    let tries = user.rows.get(&occurrence).map_or(0, |row| row.tries) + 1;
                    put(user, occurrence, LedgerRow { tries, ..row(run.day) });
                    before
                });
                before.push(issued.await.unwrap());
            }
            before
        })
    });
    let mut before = BTreeSet::new();
    for issuer in join_all(issuers).await {
        before.extend(issuer.unwrap());
    }
    assert_eq!(before.len(), 30, "no two of them came behind the same token");
    for user in &hundred()[..6] {
        let rows = ledger.with_users(&run, &[*user], |l| l.users[user].rows.clone()).await.unwrap();
        assert_eq!(rows.values().map(|row| row.tries).collect::<Vec<_>>(), [5]);
    }
    let latest = ledger.tokens().await.unwrap().latest;
    let issued_at = ledger.issued_at().await.unwrap();
    assert!(issued_at.is_some(), "an issue has its time");
    assert!(!ledger.begin_tokens(FIRST, Unique(5)).await.unwrap(), "another token is the last one");
    assert_eq!(ledger.tokens().await.unwrap().latest, latest);
    assert!(ledger.begin_tokens(latest, Unique(5)).await.unwrap());
    assert_eq!(ledger.issued_at().await.unwrap(), issued_at, "a new chain is no issue");
    assert_eq!(ledger.tokens().await.unwrap(), LedgerTokens { latest: Unique(5), before: None });
}
