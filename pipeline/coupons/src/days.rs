//! Decisions of the dispatcher: when a day begins, when a wave is due, which rows a page adds, when a run is closed.

use std::collections::BTreeSet;

use anabranch_schemas::celebration::{Birthday, Calendar};
use anabranch_schemas::shard::ShardId;
use jiff::civil::Date;
use jiff::{SignedDuration, Timestamp};
use xxhash_rust::xxh3::xxh3_128;

use crate::issuing::Chain;
use crate::ports::{CohortRow, Reconciled};
use crate::programme::{Programme, WithoutReconciliation};
use crate::records::{
    Cursor, DayReconciliation, DayRun, FailedOutcome, Member, MemberState, ProgrammeLedger, RowState,
    RunLedger, Unique, WAVES,
};

/// Days that one transaction begins, at most; the next pass begins the rest.
const DAYS_BEGUN_MAX: usize = 31;
/// Time from noon to the end of a reconciliation, at least, for a catch-up: it began after the day's late changes.
pub const CATCH_UP_AFTER_NOON: SignedDuration = SignedDuration::from_hours(10);

/// Begins every day that has come and has no run, in turn: each once, and none is left out.
pub fn begin(ledger: &mut ProgrammeLedger, programme: &Programme, own_clock: Timestamp, revision: Unique) {
    // Both clocks have reached the day: a clock that runs ahead begins nothing early.
    let now = own_clock.min(ledger.now);
    let today = now.to_zoned(programme.time_zone.clone()).date();
    let mut day = ledger.next.unwrap_or(today);
    for _ in 0..DAYS_BEGUN_MAX {
        if programme.at(day, programme.starts_at).is_none_or(|starts_at| now < starts_at) {
            break;
        }
        let rules = rules(ledger, programme, day);
        ledger.leap_days.insert(day.year(), rules.leap_day);
        ledger.begun.push((day, DayRun::new(rules, revision)));
        ledger.open.push(day);
        let Ok(next) = day.tomorrow() else { break };
        day = next;
    }
    ledger.next = Some(day);
}

/// Returns the rules with which a day begins. The year's first run sets the rule for 29 February: a change of it holds
/// from the next year on.
pub fn rules(ledger: &ProgrammeLedger, programme: &Programme, day: Date) -> Programme {
    let leap_day = ledger.leap_days.get(&day.year()).copied().unwrap_or(programme.leap_day);
    Programme { leap_day, ..programme.clone() }
}

impl DayRun {
    fn new(rules: Programme, revision: Unique) -> Self {
        Self {
            version: rules.version(),
            rules,
            revision,
            sweeps: vec![revision],
            frozen: 0,
            cursor: Cursor::default(),
            count: 0,
            sum: 0,
            misplaced: 0,
            is_after_barrier: true,
            is_closed: false,
            reconciliation: None,
        }
    }

    /// Returns whether the next wave may be frozen now.
    pub fn is_due(&self, day: Date, now: Timestamp, reconciled_at: Option<Timestamp>) -> bool {
        let Some(noon) = self.rules.at(day, self.rules.noon_at) else { return false };
        match self.frozen {
            0 => self.relies(day, now, reconciled_at),
            1 => now >= noon,
            2 => reconciled_at.is_some_and(|at| at >= noon + CATCH_UP_AFTER_NOON),
            _ => false,
        }
    }

    /// Returns whether the run has frozen nothing because no reconciliation is young enough, and the set time has not
    /// come or does not count.
    pub fn waits_for_reconciliation(
        &self,
        day: Date,
        now: Timestamp,
        reconciled_at: Option<Timestamp>,
    ) -> bool {
        !self.is_closed && self.frozen == 0 && !self.relies(day, now, reconciled_at)
    }

    /// Returns whether midnight may rely on the last good reconciliation, or go on without one.
    fn relies(&self, day: Date, now: Timestamp, reconciled_at: Option<Timestamp>) -> bool {
        let rules = &self.rules;
        let Some(until) = rules.at(day, rules.waits_until) else { return false };
        reconciled_at.is_some_and(|at| self.is_young(day, at))
            || now >= until && rules.without_reconciliation == WithoutReconciliation::Go
    }

    /// Returns whether a reconciliation that ended then is young enough for a day.
    fn is_young(&self, day: Date, ended_at: Timestamp) -> bool {
        let starts_at = self.rules.at(day, self.rules.starts_at);
        starts_at.is_some_and(|starts_at| starts_at.duration_since(ended_at) <= self.rules.reconciliation_age)
    }

    /// Returns the source tables that the last good reconciliation does not prove, while the day leaves their users
    /// out.
    ///
    /// These users wait as the whole day waits without a reconciliation: until the set time, and then as the programme
    /// says.
    pub fn unproven_tables<'r>(
        &self,
        day: Date,
        now: Timestamp,
        reconciled: Option<&'r Reconciled>,
    ) -> Option<&'r BTreeSet<ShardId>> {
        let rules = &self.rules;
        let unproven = &reconciled?.unproven;
        let is_over = rules.at(day, rules.waits_until).is_some_and(|until| now >= until);
        let goes_on = is_over && rules.without_reconciliation == WithoutReconciliation::Go;
        (!unproven.is_empty() && !goes_on).then_some(unproven)
    }
}

/// A wave that this freezer works on, under its revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence {
    pub wave: u8,
    pub revision: Unique,
    /// The run's cursor that the freezer expects; a restored ledger may have an earlier one.
    pub cursor: Cursor,
}

impl Fence {
    /// Returns whether the run still belongs to this freezer.
    pub fn holds(self, run: &DayRun) -> bool {
        let is_there = run.frozen == self.wave && run.cursor == self.cursor;
        !run.is_closed && is_there && run.revision == self.revision
    }
}

/// Takes the freeze of the next wave over from any earlier freezer.
pub fn take_over(ledger: &mut RunLedger, wave: u8, revision: Unique) -> Option<DayRun> {
    let run = ledger.run.as_mut().filter(|run| !run.is_closed && run.frozen == wave)?;
    run.revision = revision;
    Some(run.clone())
}

/// Members of a page with the shard tables that name them, and the number of misplaced rows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CohortPage {
    pub members: Vec<(Member, Vec<ShardId>)>,
    pub misplaced: u64,
    /// Whether the tables were read after the barrier.
    pub is_after_barrier: bool,
}

/// Sorts the rows of a page. A row with a birthday of another table gives no coupon, and is counted. A user who
/// celebrates by the other calendar is in its table too, and is skipped. The date itself is not compared, since 29
/// February and day 30 are celebrated on other days.
pub fn members(table: Birthday, rows: &[CohortRow]) -> CohortPage {
    let mut page = CohortPage::default();
    for row in rows {
        if row.birthday != table {
            page.misplaced += 1;
        } else if row.calendar == table.calendar() {
            let member = Member { user: row.user, calendar: row.calendar };
            match page.members.last_mut() {
                Some((last, shards)) if *last == member => shards.push(row.shard),
                _ => page.members.push((member, vec![row.shard])),
            }
        }
    }
    page
}

/// Writes a page under the fence; returns `false` when another freezer has taken over.
pub fn add_page(ledger: &mut RunLedger, fence: Fence, page: &CohortPage, cursor: Cursor) -> bool {
    let Some(run) = ledger.run.as_mut() else { return false };
    if !fence.holds(run) {
        return false;
    }
    for (member, _) in page.members.iter().filter(|(member, _)| !ledger.present.contains(member)) {
        run.count += 1;
        run.sum = run.sum.wrapping_add(hash(*member));
    }
    run.misplaced += page.misplaced;
    // Another freezer may end the wave: it must not claim the barrier for rows that lacked it.
    run.is_after_barrier &= page.is_after_barrier;
    run.cursor = cursor;
    ledger.added.extend(page.members.iter().cloned());
    true
}

/// Ends a wave under the fence; returns `false` when another freezer has taken over.
pub fn end_wave(ledger: &mut RunLedger, fence: Fence, is_after_barrier: bool) -> bool {
    let Some(run) = ledger.run.as_mut() else { return false };
    if !fence.holds(run) {
        return false;
    }
    run.is_after_barrier &= is_after_barrier;
    (run.frozen, run.cursor) = (fence.wave + 1, Cursor::default());
    true
}

/// Records the reconciliation that midnight relied on, if it is young enough for the day.
pub fn rely(ledger: &mut RunLedger, day: Date, reconciled: Option<&Reconciled>) {
    let Some(run) = ledger.run.as_mut() else { return };
    let young = reconciled.filter(|reconciled| run.is_young(day, reconciled.ended_at));
    run.reconciliation = young
        .map(|reconciled| DayReconciliation { id: reconciled.id.clone(), ended_at: reconciled.ended_at });
}

/// Adds a user that a restored ledger's row names to the cohort of the day. A closed run keeps the cohort that its last
/// report counts.
pub fn join(ledger: &mut RunLedger, member: Member) {
    let Some(run) = ledger.run.as_mut().filter(|run| !run.is_closed) else { return };
    if !ledger.present.contains(&member) {
        run.count += 1;
        run.sum = run.sum.wrapping_add(hash(member));
        ledger.added.push((member, Vec::new()));
    }
}

/// A reading of all members of a run, under a number of its own. Sweeps of several passes may overlap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sweep {
    pub number: Unique,
    /// The run when the sweep began.
    pub run: DayRun,
}

impl Sweep {
    /// Returns whether the run is open and knows this sweep.
    fn is_of(&self, run: &DayRun) -> bool {
        !run.is_closed && run.sweeps.contains(&self.number)
    }
}

/// Begins to sweep an open run, beside any other sweep; returns `None` for a run that is not open.
pub fn begin_sweep(ledger: &mut RunLedger, number: Unique) -> Option<Sweep> {
    let run = ledger.run.as_mut().filter(|run| !run.is_closed && run.frozen > 0)?;
    run.add_sweep(number);
    Some(Sweep { number, run: run.clone() })
}

/// Gives a sweep a new number, after it found every member done; returns `None` if the run does not know the sweep.
pub fn continue_sweep(ledger: &mut RunLedger, swept: &Sweep, number: Unique) -> Option<Sweep> {
    let run = ledger.run.as_mut().filter(|run| swept.is_of(run))?;
    run.sweeps.retain(|known| *known != swept.number);
    run.add_sweep(number);
    Some(Sweep { number, run: run.clone() })
}

/// Returns whether a run in which a sweep found every member done may be closed.
///
/// `register` was read after the members were. A ledger with other tokens, or without the sweep, was restored
/// meanwhile.
pub fn may_close(ledger: &RunLedger, swept: &Sweep, register: Unique) -> bool {
    let is_restored = Chain::of(ledger.tokens, register) == Chain::Restored;
    let is_known = ledger.run.as_ref().is_some_and(|run| swept.is_of(run));
    swept.run.frozen == WAVES && !is_restored && is_known
}

/// Closes a run that [`may_close`]; returns whether it did.
pub fn close(ledger: &mut RunLedger, swept: &Sweep, register: Unique) -> bool {
    let may_close = may_close(ledger, swept, register);
    if let Some(run) = ledger.run.as_mut().filter(|_| may_close) {
        run.is_closed = true;
    }
    may_close
}

/// Returns a hash of a member: sums of hashes compare two cohorts whatever their order.
pub fn hash(member: Member) -> u128 {
    let calendar = match member.calendar {
        Calendar::Solar => 0,
        Calendar::Lunar => 1,
    };
    let mut bytes = [calendar; 9];
    bytes[..8].copy_from_slice(&member.user.to_le_bytes());
    xxh3_128(&bytes)
}

/// The work that is left for a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberNeed {
    /// The member has a coupon, a dead letter, or a refusal of the newest wave.
    Nothing,
    /// A young attempt is at work, or could not read the source lately: the member is left alone.
    InFlight,
    /// The member needs a message.
    Message,
}

/// Returns whether every table that names the member is unproven.
pub fn is_held(member_state: &MemberState, unproven: &BTreeSet<ShardId>) -> bool {
    !member_state.shards.is_empty() && member_state.shards.iter().all(|shard| unproven.contains(shard))
}

/// Returns the work that is left for a member of a run, from the ledger alone.
pub fn need(member_state: &MemberState, day: Date, frozen: u8, now: Timestamp) -> MemberNeed {
    let row = member_state.row.as_ref();
    // A refusal decides nothing about a row that a later message has taken, or could not decide.
    let is_undecided = row.is_some_and(|row| row.is_held() || row.is_unread());
    let is_of_day = row.is_some_and(|row| row.day == day);
    let is_refused = member_state.refused.is_some_and(|refused| refused.wave >= frozen);
    let is_final = row.is_some_and(|row| match row.state {
        RowState::Settled | RowState::Failed(FailedOutcome::Unknown { .. }) => true,
        RowState::Failed(FailedOutcome::NothingGiven) => is_of_day,
        RowState::Reserved | RowState::Issued { .. } | RowState::Refused(_) => false,
    });
    if is_final || is_refused && !(is_of_day && is_undecided) {
        MemberNeed::Nothing
    } else if row.is_some_and(|row| is_undecided && row.is_young(now)) {
        MemberNeed::InFlight
    } else {
        MemberNeed::Message
    }
}
