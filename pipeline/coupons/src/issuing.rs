//! Decisions around a call: the minimum gap, the tokens of the ledger, and what an answer does to the row.

use jiff::civil::Date;

use crate::ports::{Answer, SourceRow};
use crate::records::{
    Candidate, CouponKey, FailedOutcome, LedgerRow, LedgerTokens, Reason, RowState, Unique, UserLedger,
    UsersLedger,
};
use crate::reserving::{Carried, TRIES_MAX, Taken, judge, looked, own, refuse, reserve_new, unread};

/// How the ledger's tokens stand to the register outside of its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chain {
    /// The register has the latest token.
    Level,
    /// The last issuer died before it told the register: the register is moved first.
    RegisterBehind,
    /// The register knows a token that the ledger lacks: somebody restored the ledger.
    Restored,
}

impl Chain {
    /// Compares tokens that were read while the register did not move.
    pub fn of(tokens: LedgerTokens, register: Unique) -> Self {
        if tokens.latest == register {
            Self::Level
        } else if tokens.before == Some(register) {
            Self::RegisterBehind
        } else {
            Self::Restored
        }
    }
}

/// A row that an attempt holds, and what it read of the source before the call.
#[derive(Debug, Clone)]
pub struct Held {
    pub candidate: Candidate,
    pub taken: Taken,
    /// The user's source rows; `None` where a table could not be read.
    pub source: Option<Vec<SourceRow>>,
}

/// Another transaction has issued since the register was read: nothing was changed, and the register is read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainMoved;

/// The transaction before a call: judges the source rows of each candidate and issues those that are due, all under
/// one token.
///
/// `register` was read before the transaction began. So what it reads has every row of each issue up to that token, and
/// a later issue lets it fail: also two days of one user without any row see one another.
pub fn issue(
    ledger: &mut UsersLedger,
    batch: &[Held],
    token: Unique,
    register: Unique,
) -> Result<Vec<Result<LedgerRow, Carried>>, ChainMoved> {
    if ledger.tokens.latest != register {
        return Err(ChainMoved);
    }
    let mut ends = Vec::with_capacity(batch.len());
    for held in batch {
        let user = ledger.users.get_mut(&held.candidate.member.user).ok_or(Carried::Later);
        let end = user.and_then(|user| {
            if held.taken.is_new {
                reserve_new(user, &held.candidate, &held.taken);
            }
            let Some(source) = &held.source else { return Err(unread(user, &held.candidate, &held.taken)) };
            let verdict = judge(source, &held.taken, held.candidate.member.calendar, user.now);
            looked(user, &held.candidate, &held.taken, verdict)?;
            issue_user(user, &held.candidate, &held.taken)
        });
        ends.push(end);
    }
    if ends.iter().any(Result::is_ok) {
        ledger.tokens = LedgerTokens { latest: token, before: Some(register) };
    }
    Ok(ends)
}

/// Whether each row that a transaction issued stands in a ledger whose latest token the register has.
///
/// Then a copy that lacks these rows would differ from the register, whoever moved the register there.
pub fn is_told(ledger: &UsersLedger, batch: &[Held], register: Unique) -> bool {
    let stands = |held: &Held| {
        let user = ledger.users.get(&held.candidate.member.user);
        let row = user.and_then(|user| user.rows.get(&held.taken.key.occurrence));
        row.is_some_and(|row| {
            row.attempt == held.taken.attempt && matches!(row.state, RowState::Issued { .. })
        })
    };
    ledger.tokens.latest == register && batch.iter().all(stands)
}

/// Issues a row unless another coupon is near. Of two days that race the second one to issue sees the first one's row:
/// their transactions follow one another by the token.
/// Returns the row as it stands then.
pub fn issue_user(
    ledger: &mut UserLedger,
    candidate: &Candidate,
    taken: &Taken,
) -> Result<LedgerRow, Carried> {
    let now = ledger.now;
    own(ledger, taken.key.occurrence, taken.attempt, false).ok_or(Carried::Later)?;
    match nearest(ledger, &taken.key, candidate.run.day, taken.run.rules.gap_days) {
        Some(Near::Given) => {
            refuse(ledger, candidate, taken, Reason::WithinGap);
            return Err(Carried::Done);
        }
        // A call under way may still come to nothing.
        Some(Near::UnderWay) => return Err(Carried::Later),
        None => {}
    }
    let row = own(ledger, taken.key.occurrence, taken.attempt, false).ok_or(Carried::Later)?;
    (row.state, row.changed_at) = (RowState::Issued { first_called_at: now }, now);
    Ok(row.clone())
}

/// What stands less than the gap away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Near {
    UnderWay,
    /// A coupon, or a dead letter that may be one.
    Given,
}

/// The nearest hindrance by celebrated days, before and after: a grant's own time says nothing.
fn nearest(ledger: &UserLedger, key: &CouponKey, day: Date, gap_days: u32) -> Option<Near> {
    let others = ledger.rows.iter().filter(|(occurrence, row)| {
        let apart = day.since(row.day).map_or(i32::MAX, |span| span.get_days().abs());
        **occurrence != key.occurrence && apart < i32::try_from(gap_days).unwrap_or(i32::MAX)
    });
    let near = others.filter_map(|(_, row)| match row.state {
        RowState::Settled | RowState::Failed(FailedOutcome::Unknown { .. }) => Some(Near::Given),
        RowState::Issued { .. } => Some(Near::UnderWay),
        RowState::Reserved | RowState::Refused(_) | RowState::Failed(FailedOutcome::NothingGiven) => None,
    });
    near.max()
}

/// The transaction after an answer that gave nothing. `counts` says whether the system answered about this user.
pub fn answered(ledger: &mut UserLedger, taken: &Taken, answer: Answer, counts: bool) -> Carried {
    let now = ledger.now;
    let Some(row) = own(ledger, taken.key.occurrence, taken.attempt, true) else { return Carried::Later };
    let RowState::Issued { first_called_at } = row.state else { return Carried::Later };
    row.tries += u32::from(counts);
    let is_last = row.tries >= TRIES_MAX || answer == Answer::Mismatch;
    let outcome = match answer {
        // A key that was used with another coupon gave that one: a person decides.
        Answer::Unknown | Answer::Given | Answer::Mismatch => FailedOutcome::Unknown { first_called_at },
        Answer::Rejected | Answer::Busy | Answer::PoolEmpty | Answer::ConnectionExpired => {
            FailedOutcome::NothingGiven
        }
    };
    if is_last {
        (row.state, row.changed_at) = (RowState::Failed(outcome), now);
        return Carried::Done;
    }
    if outcome == FailedOutcome::NothingGiven {
        (row.state, row.changed_at) = (RowState::Reserved, now);
    }
    Carried::Later
}
