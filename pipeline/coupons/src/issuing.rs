//! Decisions around a call: the minimum gap, the tokens of the ledger, and the change of a row after an answer.

use jiff::civil::Date;

use crate::ports::{Answer, SourceRow};
use crate::records::{
    ATTEMPT_TIMEOUT, Candidate, CouponKey, FailedOutcome, LedgerRow, LedgerTokens, Reason, RowState, Unique,
    UserLedger, UsersLedger,
};
use crate::reserving::{MessageEnd, TRIES_MAX, TakenRow, judge, judged, own, refuse, reserve_new, unread};

/// The relation of the ledger's tokens to the register outside of its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chain {
    /// The register has the latest token.
    Level,
    /// The last issuer died before it moved the register: the next one moves it first.
    RegisterLagging,
    /// The register has a token that the ledger lacks: a person restored the ledger from a copy.
    Restored,
}

impl Chain {
    /// Compares tokens that were read while the register did not move.
    pub fn of(tokens: LedgerTokens, register: Unique) -> Self {
        if tokens.latest == register {
            Self::Level
        } else if tokens.before == Some(register) {
            Self::RegisterLagging
        } else {
            Self::Restored
        }
    }
}

/// A row that an attempt holds, with the source rows that the attempt read before the call.
#[derive(Debug, Clone)]
pub struct HeldRow {
    pub candidate: Candidate,
    pub taken: TakenRow,
    /// The user's source rows; `None` where a table could not be read.
    pub source: Option<Vec<SourceRow>>,
}

/// Another transaction has issued since the register was read: this one changed nothing, and the register is read
/// again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainMoved;

/// The transaction before a call: judges the source rows of each candidate and issues those that are due, under one
/// token.
///
/// `register` was read before the transaction began. So the transaction sees every row of each issue up to that token,
/// and fails after a later issue. Two days of one user without any row therefore see each other, too.
pub fn issue(
    ledger: &mut UsersLedger,
    batch: &[HeldRow],
    token: Unique,
    register: Unique,
) -> Result<Vec<Result<LedgerRow, MessageEnd>>, ChainMoved> {
    if ledger.tokens.latest != register {
        return Err(ChainMoved);
    }
    let mut ends = Vec::with_capacity(batch.len());
    for held in batch {
        let user = ledger.users.get_mut(&held.candidate.member.user).ok_or(MessageEnd::Later);
        let end = user.and_then(|user| {
            if held.taken.is_new {
                reserve_new(user, &held.candidate, &held.taken)?;
            }
            let Some(source) = &held.source else { return Err(unread(user, &held.candidate, &held.taken)) };
            let verdict = judge(source, &held.taken, held.candidate.member.calendar, user.now);
            judged(user, &held.candidate, &held.taken, verdict)?;
            issue_user(user, &held.candidate, &held.taken)
        });
        ends.push(end);
    }
    if ends.iter().any(Result::is_ok) {
        ledger.tokens = LedgerTokens { latest: token, before: Some(register) };
    }
    Ok(ends)
}

/// Returns whether the ledger has each row that a transaction issued and the register has the ledger's latest token.
///
/// A copy without these rows would then differ from the register, whichever process moved the register.
pub fn is_registered(ledger: &UsersLedger, batch: &[HeldRow], register: Unique) -> bool {
    let stands = |held: &HeldRow| {
        let user = ledger.users.get(&held.candidate.member.user);
        let row = user.and_then(|user| user.rows.get(&held.taken.key.occurrence));
        row.is_some_and(|row| {
            row.attempt == held.taken.attempt && matches!(row.state, RowState::Issued { .. })
        })
    };
    ledger.tokens.latest == register && batch.iter().all(stands)
}

/// Issues a row unless another coupon is near; returns the row as issued. When two days race, the second one to issue
/// sees the first one's row: the token puts their transactions in order.
pub fn issue_user(
    ledger: &mut UserLedger,
    candidate: &Candidate,
    taken: &TakenRow,
) -> Result<LedgerRow, MessageEnd> {
    let now = ledger.now;
    own(ledger, taken.key.occurrence, taken.attempt, false).ok_or(MessageEnd::Later)?;
    match nearest(ledger, &taken.key, candidate.run.day, taken.run.rules.gap_days) {
        Some(NearbyCoupon::Given) => {
            refuse(ledger, candidate, taken, Reason::WithinGap);
            return Err(MessageEnd::Done);
        }
        // A call under way may still give nothing.
        Some(NearbyCoupon::UnderWay) => return Err(MessageEnd::Later),
        None => {}
    }
    let row = own(ledger, taken.key.occurrence, taken.attempt, false).ok_or(MessageEnd::Later)?;
    (row.state, row.changed_at) = (RowState::Issued { first_called_at: now }, now);
    Ok(row.clone())
}

/// A row of another occurrence less than the gap away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum NearbyCoupon {
    UnderWay,
    /// The row has a coupon, or is a dead letter that may have one.
    Given,
}

/// Returns the nearest obstacle by celebrated days, before and after; the time of a grant does not count.
fn nearest(ledger: &UserLedger, key: &CouponKey, day: Date, gap_days: u32) -> Option<NearbyCoupon> {
    let others = ledger.rows.iter().filter(|(occurrence, row)| {
        let distance_days = day.since(row.day).map_or(i32::MAX, |span| span.get_days().abs());
        **occurrence != key.occurrence && distance_days < i32::try_from(gap_days).unwrap_or(i32::MAX)
    });
    let near = others.filter_map(|(_, row)| match row.state {
        RowState::Settled | RowState::Failed(FailedOutcome::Unknown { .. }) => Some(NearbyCoupon::Given),
        RowState::Issued { .. } => Some(NearbyCoupon::UnderWay),
        RowState::Reserved | RowState::Refused(_) | RowState::Failed(FailedOutcome::NothingGiven) => None,
    });
    near.max()
}

/// The transaction after an answer that gave nothing. `counts` tells whether the answer was about this user.
pub fn answered(ledger: &mut UserLedger, taken: &TakenRow, answer: Answer, counts: bool) -> MessageEnd {
    let now = ledger.now;
    let Some(row) = own(ledger, taken.key.occurrence, taken.attempt, true) else { return MessageEnd::Later };
    let RowState::Issued { first_called_at } = row.state else { return MessageEnd::Later };
    row.tries += u32::from(counts);
    let is_last = row.tries >= TRIES_MAX || answer == Answer::Mismatch;
    let outcome = match answer {
        // A key that was used with another coupon gave that one, so a person decides.
        Answer::Error | Answer::Unknown | Answer::Given | Answer::Mismatch => {
            FailedOutcome::Unknown { first_called_at }
        }
        Answer::Rejected | Answer::Busy | Answer::PoolEmpty | Answer::ConnectionExpired => {
            FailedOutcome::NothingGiven
        }
    };
    if is_last {
        (row.state, row.changed_at) = (RowState::Failed(outcome), now);
        return MessageEnd::Done;
    }
    if outcome == FailedOutcome::NothingGiven {
        // An attempt that was asked to come later is over: the row is old at once, and the next attempt takes it.
        let changed_at = if answer.has_done_nothing_yet() { now - ATTEMPT_TIMEOUT } else { now };
        (row.state, row.changed_at) = (RowState::Reserved, changed_at);
    }
    MessageEnd::Later
}
