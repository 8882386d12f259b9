//! Decisions of a granter before it calls: it takes the row, learns an earlier outcome, and judges the source row.

use std::sync::Arc;

use anabranch_schemas::celebration::{Birthday, Calendar, Occurrence};
use anabranch_schemas::shard::ShardId;
use jiff::{SignedDuration, Timestamp};

use crate::ports::SourceRow;
use crate::programme::ProgrammeVersion;
use crate::records::{
    ATTEMPT_TIMEOUT, Candidate, CouponKey, DayRun, FailedOutcome, LAST_WORD, LedgerRow, Reason, RefusedDay,
    RowChange, RowState, Unique, UserLedger,
};

/// Time for which half of a rename may be invisible, since it writes two shards.
pub const RENAME_WAIT: SignedDuration = SignedDuration::from_hours(10);
/// Answers about a user that gave no coupon, after which the row becomes a dead letter.
pub const TRIES_MAX: u32 = 3;

/// The end of a candidate's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageEnd {
    /// Nothing is left to do for the candidate.
    Done,
    /// The candidate waits: the message comes again, or a later pass publishes the member again.
    Later,
}

/// A row that an attempt holds.
#[derive(Debug, Clone)]
pub struct TakenRow {
    pub key: CouponKey,
    pub attempt: Unique,
    /// The run of the day.
    pub run: Arc<DayRun>,
    /// The birthdays of the day.
    pub birthdays: Vec<Birthday>,
    /// The version of the row, which stays beside its coupon.
    pub version: Option<ProgrammeVersion>,
    /// The coupon of the row.
    pub coupon: Arc<str>,
    /// Whether an earlier attempt may have called.
    pub may_have_called: bool,
    /// Whether the ledger lacks the row; the issue writes it.
    pub is_new: bool,
    /// Time of the ledger's server when the row was read.
    pub read_at: Timestamp,
    pub claims: Vec<ShardId>,
}

/// Takes the row of the occurrence for an attempt, if the day and the row allow it. A row that the ledger lacks is new;
/// changing any other row is the first transaction.
pub fn reserve(
    ledger: &mut UserLedger,
    candidate: &Candidate,
    attempt: Unique,
) -> Result<TakenRow, MessageEnd> {
    let Some(key) = candidate.key() else { return Err(MessageEnd::Done) };
    let Candidate { run: of, member, wave } = candidate;
    let now = ledger.now;
    let by_hand = ledger.rows.get(&key.occurrence).is_some_and(|row| row.by_hand && row.day == of.day);
    let Some(run) = &ledger.run else {
        return Err(if by_hand { MessageEnd::Later } else { MessageEnd::Done });
    };
    let is_open = !run.is_closed && ledger.claims.contains_key(&member.calendar);
    if !(is_open || by_hand) {
        return Err(MessageEnd::Done);
    }
    let refused = ledger.refusals.get(&(of.day, member.calendar)).map(|refused| refused.wave);
    let mut row = match ledger.rows.get(&key.occurrence) {
        Some(row) if row.is_unread() && row.day == of.day => {
            LedgerRow { state: RowState::Reserved, ..row.clone() }
        }
        Some(row) if !is_free(row, candidate) => {
            if !(row.is_held() || row.is_unread()) {
                return Err(MessageEnd::Done);
            }
            if row.day != of.day || row.is_young(now) {
                return Err(MessageEnd::Later);
            }
            row.clone()
        }
        _ if refused >= Some(*wave) && !by_hand => return Err(MessageEnd::Done),
        before => {
            if let Some(before) = before.filter(|before| before.day != of.day) {
                let refused = RefusedDay { wave: LAST_WORD, reason: Reason::OtherDay };
                ledger.refusals.entry((before.day, before.calendar)).or_insert(refused);
            }
            LedgerRow {
                state: RowState::Reserved,
                day: of.day,
                calendar: member.calendar,
                attempt,
                changed_at: now,
                tries: 0,
                coupon: run.rules.coupon.clone(),
                version: run.version,
                by_hand,
                absent_since: None,
            }
        }
    };
    let is_new = !ledger.rows.contains_key(&key.occurrence);
    (row.attempt, row.changed_at) = (attempt, now);
    let taken = TakenRow {
        attempt,
        run: run.clone(),
        birthdays: run.birthdays(of.day),
        version: row.version,
        coupon: row.coupon.clone(),
        may_have_called: matches!(row.state, RowState::Issued { .. }),
        claims: ledger.claims.get(&member.calendar).cloned().unwrap_or_default(),
        is_new,
        read_at: now,
        key,
    };
    ledger.rows.insert(taken.key.occurrence, row);
    Ok(taken)
}

/// Writes a new row as it was reserved, unless the ledger has a row of another attempt by now.
///
/// An attempt without a row leaves nothing that ages, so the age of its read ends it. A granter that slept must not
/// insert a row into a day that was closed meanwhile, nor into one that a restored ledger began anew by other rules.
pub fn reserve_new(
    ledger: &mut UserLedger,
    candidate: &Candidate,
    taken: &TakenRow,
) -> Result<(), MessageEnd> {
    let now = ledger.now;
    let has_row = ledger.rows.contains_key(&taken.key.occurrence);
    let is_old = now >= taken.read_at + ATTEMPT_TIMEOUT;
    let is_same_day = ledger.run.as_ref().is_some_and(|run| is_open_by(run, &taken.run));
    if !has_row && (is_old || !is_same_day) {
        return Err(MessageEnd::Later);
    }
    ledger.rows.entry(taken.key.occurrence).or_insert_with(|| LedgerRow {
        state: RowState::Reserved,
        day: candidate.run.day,
        calendar: candidate.member.calendar,
        attempt: taken.attempt,
        changed_at: now,
        tries: 0,
        coupon: taken.coupon.clone(),
        version: taken.run.version,
        by_hand: false,
        absent_since: None,
    });
    Ok(())
}

/// Returns whether a run is open by the rules of the run that an attempt read.
fn is_open_by(run: &DayRun, read: &DayRun) -> bool {
    !run.is_closed && run.rules == read.rules
}

/// Returns whether no call for the occurrence was ever carried out, so that this day may take the row.
fn is_free(row: &LedgerRow, candidate: &Candidate) -> bool {
    match row.state {
        // The row's own day has not decided yet, and goes on.
        RowState::Refused(Reason::SourceUnreadable) => false,
        RowState::Refused(_) => true,
        RowState::Failed(FailedOutcome::NothingGiven) => row.day != candidate.run.day,
        RowState::Failed(FailedOutcome::Unknown { .. })
        | RowState::Reserved
        | RowState::Issued { .. }
        | RowState::Settled => false,
    }
}

/// Returns the row if the attempt still holds it in the state in which it left it.
pub fn own(
    ledger: &mut UserLedger,
    occurrence: Occurrence,
    attempt: Unique,
    is_issued: bool,
) -> Option<&mut LedgerRow> {
    let row = ledger.rows.get_mut(&occurrence)?;
    let is_state = match row.state {
        RowState::Reserved => !is_issued,
        RowState::Issued { .. } => is_issued,
        RowState::Settled | RowState::Refused(_) | RowState::Failed(_) => false,
    };
    (row.attempt == attempt && is_state).then_some(row)
}

/// Settles the row of a given coupon at any time, for any attempt that learned of it, also where the row is gone. A row
/// that it inserts gets `version`, the one that stood beside the coupon; `None` if it is not known.
pub fn settle(
    ledger: &mut UserLedger,
    candidate: &Candidate,
    key: &CouponKey,
    coupon: &Arc<str>,
    version: Option<ProgrammeVersion>,
) {
    let now = ledger.now;
    let row = ledger.rows.entry(key.occurrence).or_insert_with(|| LedgerRow {
        state: RowState::Settled,
        day: candidate.run.day,
        calendar: candidate.member.calendar,
        attempt: Unique(0),
        changed_at: now,
        tries: 0,
        coupon: coupon.clone(),
        version,
        by_hand: false,
        absent_since: None,
    });
    row.state = RowState::Settled;
    (row.day, row.calendar, row.changed_at) = (candidate.run.day, candidate.member.calendar, now);
}

/// Returns the change that settles a row as it was issued; the result equals that of [`settle`] if no other attempt
/// changed the row. It reads no clock, so the row keeps the time of its issue.
pub fn settled(candidate: &Candidate, key: &CouponKey, issued: &LedgerRow) -> RowChange {
    let after = LedgerRow { state: RowState::Settled, ..issued.clone() };
    RowChange { user: candidate.member.user, occurrence: key.occurrence, before: issued.clone(), after }
}

/// Handles a key of an earlier call that the coupon system does not know; `memory` is how long it promises to know one.
pub fn denied(ledger: &mut UserLedger, taken: &TakenRow, memory: SignedDuration) -> Result<(), MessageEnd> {
    let now = ledger.now;
    let row = own(ledger, taken.key.occurrence, taken.attempt, true).ok_or(MessageEnd::Later)?;
    let RowState::Issued { first_called_at } = row.state else { return Err(MessageEnd::Later) };
    row.changed_at = now;
    if now.duration_since(first_called_at) >= memory {
        // A system that has forgotten the key cannot deny it, so a person decides.
        row.state = RowState::Failed(FailedOutcome::Unknown { first_called_at });
        return Err(MessageEnd::Done);
    }
    row.state = RowState::Reserved;
    if row.tries >= TRIES_MAX {
        row.state = RowState::Failed(FailedOutcome::NothingGiven);
        return Err(MessageEnd::Done);
    }
    Ok(())
}

/// The judgement of the source rows about a coupon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DueState {
    Due,
    NotDue(Reason),
    /// There is no row at all, which may be half of a rename.
    Absent,
}

/// Judges the source rows of a user by the rules of the day.
pub fn judge(rows: &[SourceRow], taken: &TakenRow, calendar: Calendar, now: Timestamp) -> DueState {
    if rows.is_empty() {
        return DueState::Absent;
    }
    let celebrates = |row: &&SourceRow| {
        let birthday = match row.calendar {
            Calendar::Solar => row.solar.map(Birthday::Solar),
            Calendar::Lunar => row.lunar.map(Birthday::Lunar),
        };
        row.calendar == calendar && birthday.is_some_and(|birthday| taken.birthdays.contains(&birthday))
    };
    let Some(row) = rows.iter().find(celebrates) else { return DueState::NotDue(Reason::NotTheirBirthday) };
    if row.born.is_some_and(|born| taken.run.rules.placeholder_dates.contains(&born)) {
        return DueState::NotDue(Reason::PlaceholderDate);
    }
    let cool_off = SignedDuration::from_hours(24 * i64::from(taken.run.rules.cool_off_days));
    let changed_at = rows.iter().filter_map(|row| row.changed_at).max();
    // A time ahead of the ledger's clock counts as a change of this moment, but only while there is a cool-off.
    let is_late = |changed_at| !cool_off.is_zero() && now.duration_since(changed_at) < cool_off;
    if changed_at.is_some_and(is_late) {
        return DueState::NotDue(Reason::ChangedLately);
    }
    DueState::Due
}

/// The transaction after the source read: refuses a row that is not due for the wave; a user without rows waits first.
pub fn judged(
    ledger: &mut UserLedger,
    candidate: &Candidate,
    taken: &TakenRow,
    verdict: DueState,
) -> Result<(), MessageEnd> {
    let now = ledger.now;
    let row = own(ledger, taken.key.occurrence, taken.attempt, false).ok_or(MessageEnd::Later)?;
    let reason = match verdict {
        DueState::Due => {
            row.absent_since = None;
            return Ok(());
        }
        DueState::NotDue(reason) => reason,
        DueState::Absent => {
            let since = *row.absent_since.get_or_insert(now);
            if now < since + RENAME_WAIT {
                return Err(MessageEnd::Later);
            }
            Reason::SourceRowGone
        }
    };
    refuse(ledger, candidate, taken, reason);
    Err(MessageEnd::Done)
}

/// The transaction after a source read that failed. The row waits until the latest hour. Then the report counts the
/// user as missed, but nothing is decided: the next pass reads again.
pub fn unread(ledger: &mut UserLedger, candidate: &Candidate, taken: &TakenRow) -> MessageEnd {
    let now = ledger.now;
    let Some(row) = own(ledger, taken.key.occurrence, taken.attempt, false) else { return MessageEnd::Later };
    let rules = &taken.run.rules;
    let is_early = rules.at(candidate.run.day, rules.latest_at).is_some_and(|latest| now < latest);
    // A letter that a person sent again stays reserved after the latest hour too: passes publish it again until a
    // granter can read its source rows. Once it was refused, no pass would publish it.
    if is_early || row.by_hand {
        return MessageEnd::Later;
    }
    (row.state, row.changed_at) = (RowState::Refused(Reason::SourceUnreadable), now);
    MessageEnd::Done
}

/// Refuses the day, not the occurrence: a later wave judges again, and another day may take the row.
pub fn refuse(ledger: &mut UserLedger, candidate: &Candidate, taken: &TakenRow, reason: Reason) {
    let refused = RefusedDay { wave: candidate.wave, reason };
    ledger.refusals.insert((candidate.run.day, candidate.member.calendar), refused);
    if let Some(row) = ledger.rows.get_mut(&taken.key.occurrence) {
        (row.state, row.by_hand, row.absent_since) = (RowState::Refused(reason), false, None);
    }
}
