//! A ledger that a person restored from an older copy: its tokens show it, and the coupon system's statement mends it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::failpoints;
use anabranch_schemas::celebration::Occurrence;
use jiff::SignedDuration;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::issuing::Chain;
use crate::ports::{CouponSystem, Gift, Ledger, Register, Uniques};
use crate::programme::Programme;
use crate::records::{
    Candidate, CouponKey, FailedOutcome, LAST_WORD, LedgerRow, LedgerTokens, MEMBERS_MAX, Member, Reason,
    RefusedDay, RowState, RunKey, Unique, UserLedger, UsersLedger, part,
};
use crate::reserving::settle;

/// A coupon that the coupon system reports as given. The statement does not say for which day.
#[derive(Debug, Clone)]
pub struct GivenCoupon {
    pub key: CouponKey,
    pub coupon: Arc<str>,
    /// The date of giving; after the end of the occurrence its last day.
    pub latest_day: Date,
}

impl GivenCoupon {
    /// Takes the date of giving in the zone of the coupon's programme, and in UTC if no programme has the name.
    ///
    /// `None` for a coupon that was given years after its occurrence, or more than a day before it.
    pub fn of(gift: Gift, programmes: &[Programme]) -> Option<Self> {
        let Gift { key, coupon, given_at } = gift;
        let programme = programmes.iter().find(|programme| programme.name == key.programme);
        let zone = programme.map_or(TimeZone::UTC, |programme| programme.time_zone.clone());
        let given_on = given_at.to_zoned(zone).date();
        let is_day = |day: &Date| is_day_of(key.occurrence, *day);
        let mut back = std::iter::successors(Some(given_on), |day| day.yesterday().ok()).take(DAYS_AFTER_MAX);
        // The clock of the coupon system may be a little behind at the beginning of a year.
        let latest_day = back.find(is_day).or_else(|| given_on.tomorrow().ok().filter(is_day))?;
        Some(Self { key, coupon, latest_day })
    }
}

/// Days before the latest day of a coupon on which a cohort may have its user.
const DAYS_BACK: usize = 31;
/// Days after the end of its occurrence on which a coupon may be given: a person may send a dead letter late.
const DAYS_AFTER_MAX: usize = 4_000;

fn is_day_of(occurrence: Occurrence, day: Date) -> bool {
    Occurrence::of(occurrence.calendar, day) == Some(occurrence)
}

/// Returns the days whose cohort may have the user of a coupon, the likeliest first. The day after the latest one is
/// among them, since zones of programmes change.
fn days(latest: Date) -> impl Iterator<Item = Date> {
    let earlier = std::iter::successors(latest.yesterday().ok(), |day| day.yesterday().ok());
    [Some(latest), latest.tomorrow().ok()].into_iter().flatten().chain(earlier.take(DAYS_BACK))
}

/// Compares the ledger's tokens with the register; there is no verdict when the register moved meanwhile.
pub async fn compare<L: Ledger, R: Register>(
    ledger: &L,
    register: &R,
) -> Result<(Option<Chain>, LedgerTokens, Unique), Fault> {
    let before = register.read().await?;
    let tokens = ledger.tokens().await?;
    let is_still = register.read().await? == before;
    Ok((is_still.then(|| Chain::of(tokens, before)), tokens, before))
}

/// Returns the fault that stops all grants.
pub fn fault() -> Fault {
    let found = "it lacks calls that the register has: it was restored from an older copy";
    Fault::new(Code::CouponLedgerRestored, "coupon ledger", found)
        .needs("the coupons that the coupon system gave after the copy was made")
        .remedy(
            "`anabranch --config FILE dispatch take-in` with the coupon system's statement; a person decides about \
             coupons that the statement does not have any more",
        )
}

/// The coupons of a statement that have the same latest day, in one part of a programme: one table of the ledger.
struct PartCoupons<'s> {
    latest: RunKey,
    coupons: Vec<&'s GivenCoupon>,
}

/// Sorts the coupons of a statement by latest day and part, in the statement's order within each.
fn parts(statement: &[GivenCoupon]) -> Vec<PartCoupons<'_>> {
    let mut parts: BTreeMap<(&Arc<str>, Date, u64), Vec<&GivenCoupon>> = BTreeMap::new();
    for given in statement {
        let of = (&given.key.programme, given.latest_day, part(given.key.user));
        parts.entry(of).or_default().push(given);
    }
    let of = |programme: &Arc<str>, day| RunKey { programme: programme.clone(), day };
    let parts = parts.into_iter();
    parts.map(|((name, day, _), coupons)| PartCoupons { latest: of(name, day), coupons }).collect()
}

/// The outcome of a transaction that settles coupons of a statement.
struct SettledCoupons {
    /// Whether the ledger has the run.
    has_run: bool,
    /// Whether each coupon is settled, in order.
    are_settled: Vec<bool>,
}

/// Settles coupons for the day of their row, or for a run whose cohort has their user.
///
/// `anyway`: settles each of them, for want of a better day.
fn settle_all(
    ledger: &mut UsersLedger,
    run: &RunKey,
    coupons: &[&GivenCoupon],
    anyway: bool,
) -> SettledCoupons {
    let has_run = ledger.users.values().any(|user| user.run.is_some());
    let settle = |given: &&GivenCoupon| {
        let user = ledger.users.get_mut(&given.key.user);
        user.is_some_and(|user| settle_given(user, run, given, anyway))
    };
    SettledCoupons { has_run, are_settled: coupons.iter().map(settle).collect() }
}

/// Settles one coupon unless its day is another one; returns whether it is settled.
fn settle_given(user: &mut UserLedger, run: &RunKey, given: &GivenCoupon, anyway: bool) -> bool {
    let (key, calendar) = (&given.key, given.key.occurrence.calendar);
    let row = user.rows.get(&key.occurrence);
    if row.is_some_and(|row| row.state == RowState::Settled) {
        return true;
    }
    let kept = row.filter(|row| keeps_its_day(row)).map(|row| row.day);
    // A refusal of the day speaks for another day of the occurrence.
    let is_owed = user.claims.contains_key(&calendar) && !user.refusals.contains_key(&(run.day, calendar));
    let of_run = (is_owed || anyway).then_some(run.day);
    let Some(day) = kept.or(of_run) else { return false };
    if kept.is_none()
        && let Some(row) = user.rows.get_mut(&key.occurrence)
    {
        // As a granter of the day that takes the row over.
        if row.day != day {
            let refused = RefusedDay { wave: LAST_WORD, reason: Reason::OtherDay };
            user.refusals.entry((row.day, row.calendar)).or_insert(refused);
        }
        (row.coupon, row.version) = (given.coupon.clone(), None);
        (row.tries, row.by_hand, row.absent_since) = (0, false, None);
    }
    let candidate = Candidate {
        run: RunKey { programme: run.programme.clone(), day },
        member: Member { user: key.user, calendar },
        wave: LAST_WORD,
    };
    // The statement does not say by which rules a coupon was given.
    settle(user, &candidate, key, &given.coupon, None);
    true
}

/// Returns whether no other day can have taken the row over since it was copied.
fn keeps_its_day(row: &LedgerRow) -> bool {
    match row.state {
        RowState::Refused(reason) => reason == Reason::SourceUnreadable,
        RowState::Failed(outcome) => outcome != FailedOutcome::NothingGiven,
        RowState::Reserved | RowState::Issued { .. } | RowState::Settled => true,
    }
}

/// The settlement of a statement by some tasks, each of which settles one part after the other.
struct Settlement<'s, L> {
    ledger: &'s L,
    parts: Vec<PartCoupons<'s>>,
    /// Index of the part that no task has begun.
    next: AtomicUsize,
    /// Days that the ledger has no run of.
    without_run: Mutex<BTreeSet<RunKey>>,
}

impl<L: Ledger> Settlement<'_, L> {
    /// Settles parts until none is left, a hundred coupons a transaction.
    async fn run(&self) -> Result<(), Fault> {
        while let Some(part) = self.parts.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            for coupons in part.coupons.chunks(MEMBERS_MAX) {
                self.settle(&part.latest, coupons.to_vec()).await?;
                failpoints::reach("coupons-after-first-settled").await;
            }
        }
        Ok(())
    }

    /// Settles coupons of one latest day: nearly all of them in the first transaction.
    async fn settle(&self, latest: &RunKey, mut left: Vec<&GivenCoupon>) -> Result<(), Fault> {
        for day in days(latest.day) {
            let run = RunKey { programme: latest.programme.clone(), day };
            if day != latest.day && self.lock().contains(&run) {
                continue;
            }
            let is_day = |given: &&GivenCoupon| is_day_of(given.key.occurrence, day);
            let (asked, mut others): (Vec<_>, Vec<_>) = left.into_iter().partition(is_day);
            others.extend(self.settle_on(&run, asked, false).await?);
            left = others;
            if left.is_empty() {
                return Ok(());
            }
        }
        self.settle_on(latest, left, true).await.map(drop)
    }

    /// Settles coupons in one transaction; returns the others, whose day is not that of the run.
    async fn settle_on<'c>(
        &self,
        run: &RunKey,
        coupons: Vec<&'c GivenCoupon>,
        anyway: bool,
    ) -> Result<Vec<&'c GivenCoupon>, Fault> {
        if coupons.is_empty() {
            return Ok(coupons);
        }
        let users: Vec<u64> = coupons.iter().map(|given| given.key.user).collect();
        let write = |l: &mut UsersLedger| settle_all(l, run, &coupons, anyway);
        let SettledCoupons { has_run, are_settled } = self.ledger.with_users(run, &users, write).await?;
        if !has_run {
            self.lock().insert(run.clone());
        }
        let left = coupons.iter().zip(are_settled).filter(|(_, is_settled)| !is_settled);
        Ok(left.map(|(given, _)| *given).collect())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<RunKey>> {
        self.without_run.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A restored ledger that is being mended.
struct Mend {
    /// The register before the statement was asked for: after that no granter may have called.
    register: Unique,
    /// The last token of the ledger: a copy that is restored meanwhile lacks it.
    marker: Unique,
}

/// Returns the tokens of the ledger and the register; a fault unless the ledger was restored.
pub async fn require_restored<L: Ledger, R: Register>(
    ledger: &L,
    register: &R,
) -> Result<(LedgerTokens, Unique), Fault> {
    let (chain, tokens, before) = compare(ledger, register).await?;
    let found = match chain {
        Some(Chain::Restored) => return Ok((tokens, before)),
        Some(Chain::Level | Chain::RegisterLagging) => "it was not restored, or it was mended since",
        None => "another process issues or mends at this time",
    };
    Err(Fault::new(Code::DispatchRefused, "coupon ledger", found)
        .needs("a ledger that granters and dispatchers name with `coupon-ledger-restored`"))
}

/// Writes a marker into a ledger that was restored. Its tokens differ from the register all the same, so nothing is
/// granted.
async fn begin_mend<L: Ledger, R: Register, U: Uniques>(
    ledger: &L,
    register: &R,
    process: &U,
) -> Result<Mend, Fault> {
    failpoints::reach("coupons-before-take-in").await;
    // A marker would stop a ledger that was not restored.
    let (tokens, register) = require_restored(ledger, register).await?;
    let marker = process.fresh();
    match ledger.begin_tokens(tokens.latest, marker).await? {
        true => Ok(Mend { register, marker }),
        false => Err(moved()),
    }
}

/// The cause of a fault after which the same question may have another end.
const MOVED: &str = "another process issued or mended meanwhile, or the ledger was restored once more";

fn moved() -> Fault {
    fault().caused_by(MOVED)
}

/// Returns whether [`ask_and_take_in`] would have the same fault again, so that a person decides.
pub fn needs_person(fault: &Fault) -> bool {
    fault.code() == Code::CouponLedgerRestored && !fault.causes().iter().any(|cause| cause == MOVED)
}

/// Settles a statement, eight parts at once, and then begins a new chain of tokens behind the marker.
async fn end_mend<L: Ledger, R: Register, U: Uniques>(
    (ledger, register, process): (&L, &R, &U),
    mend: Mend,
    statement: &[GivenCoupon],
) -> Result<(), Fault> {
    let (next, without_run) = (AtomicUsize::new(0), Mutex::default());
    let all = Settlement { ledger, parts: parts(statement), next, without_run };
    tokio::try_join!(all.run(), all.run(), all.run(), all.run(), all.run(), all.run(), all.run(), all.run())?;
    let token = process.fresh();
    failpoints::reach("coupons-before-register").await;
    if !register.swap(mend.register, token).await? {
        return Err(moved());
    }
    failpoints::reach("coupons-after-register").await;
    // The ledger gets the token last: until then its tokens differ from the register, and nothing is granted.
    if !ledger.begin_tokens(mend.marker, token).await? {
        return Err(moved());
    }
    failpoints::reach("coupons-after-take-in").await;
    Ok(())
}

/// Settles every coupon of a complete statement that a person has, and then begins a new chain of tokens.
///
/// The statement reaches back to before the copy was made. The caller has waited until connections of that time are
/// closed, so no call of theirs arrives any more. Running it again after a crash does the same. A ledger that was not
/// restored is refused and stays as it is.
pub async fn take_in<L: Ledger, R: Register, U: Uniques>(
    ledger: &L,
    register: &R,
    process: &U,
    statement: &[GivenCoupon],
) -> Result<(), Fault> {
    let mend = begin_mend(ledger, register, process).await?;
    end_mend((ledger, register, process), mend, statement).await
}

/// Difference between the clocks of the ledger's server and of the coupon system, at most.
const CLOCKS_DIFFER_MAX: SignedDuration = SignedDuration::from_hours(24);

/// Does as [`take_in`] with a statement that it asks the coupon system for; returns the number of its coupons.
///
/// The restored copy has the time of its last issue, and lacks later ones. A copy without that time, or a coupon system
/// without a statement, needs a person.
pub async fn ask_and_take_in<L: Ledger, R: Register, U: Uniques, C: CouponSystem>(
    ledger: &L,
    register: &R,
    process: &U,
    (system, programmes): (&C, &[Programme]),
) -> Result<usize, Fault> {
    let mend = begin_mend(ledger, register, process).await?;
    let issued_at = ledger.issued_at().await?;
    let issued_at =
        issued_at.ok_or_else(|| fault().caused_by("the copy lacks the time of its last issue"))?;
    let (mut statement, mut position) = (Vec::new(), Some(0));
    while let Some(first) = position {
        let page = system.statement(issued_at - CLOCKS_DIFFER_MAX, first).await?;
        let page = page.ok_or_else(|| fault().caused_by("the coupon system has no statement"))?;
        for gift in page.gifts {
            let given = GivenCoupon::of(gift, programmes);
            statement.push(given.ok_or_else(|| {
                fault().caused_by("the coupon system's statement has a coupon of another year than its time")
            })?);
        }
        position = page.next;
    }
    end_mend((ledger, register, process), mend, &statement).await?;
    Ok(statement.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_that_another_process_disturbed_or_that_got_no_answer_may_be_asked_again() {
        assert!(needs_person(&fault().caused_by("the coupon system has no statement")));
        assert!(!needs_person(&moved()));
        assert!(!needs_person(&Fault::new(Code::CouponSystemUnreachable, "coupon system", "no answer")));
    }
}
