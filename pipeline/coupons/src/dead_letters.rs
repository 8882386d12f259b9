//! Dead letters: the actions of a person on a ledger row that failed.

use jiff::SignedDuration;

use crate::records::{
    Candidate, CouponKey, FailedOutcome, LAST_WORD, LedgerRow, Member, Reason, RefusedDay, RowState, RunKey,
    UserLedger,
};
use crate::reserving::settle;

/// A person's decision about a dead letter of unknown outcome whose key the coupon system has forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The coupon was given.
    Given,
    /// The coupon was not given.
    NotGiven,
}

/// The reason why a dead letter was left as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftAlone {
    /// The row is no dead letter.
    NoDeadLetter,
    /// A granter works on the row, or its call may have given the coupon.
    UnderWay,
    /// The coupon system has forgotten the key: a decision is needed, not a retry.
    NeedsDecision,
}

/// Sends a dead letter again. One of unknown outcome asks for its key first, so it goes back to the state of a call. A
/// letter that was sent again before stays as it is, because its message may have been lost.
pub fn requeue(
    ledger: &mut UserLedger,
    key: &CouponKey,
    memory: SignedDuration,
) -> Result<Candidate, LeftAlone> {
    let now = ledger.now;
    let row = ledger.rows.get_mut(&key.occurrence).ok_or(LeftAlone::NoDeadLetter)?;
    if row.is_sent_again() {
        return Ok(candidate_of(key, row));
    }
    let RowState::Failed(outcome) = row.state else { return Err(LeftAlone::NoDeadLetter) };
    row.state = match outcome {
        FailedOutcome::NothingGiven => RowState::Refused(Reason::OtherDay),
        FailedOutcome::Unknown { first_called_at } if now.duration_since(first_called_at) < memory => {
            RowState::Issued { first_called_at }
        }
        FailedOutcome::Unknown { .. } => return Err(LeftAlone::NeedsDecision),
    };
    (row.tries, row.by_hand) = (0, true);
    let candidate = candidate_of(key, row);
    if outcome == FailedOutcome::NothingGiven {
        ledger.refusals.remove(&(candidate.run.day, candidate.member.calendar));
    }
    Ok(candidate)
}

/// Records a person's finding about a dead letter. A letter that was sent again may be one that no granter can decide,
/// so a person decides it too, unless a call may be under way.
pub fn decide(ledger: &mut UserLedger, key: &CouponKey, decision: Decision) -> Result<(), LeftAlone> {
    let now = ledger.now;
    let row = ledger.rows.get_mut(&key.occurrence).ok_or(LeftAlone::NoDeadLetter)?;
    if !row.is_letter() {
        return Err(LeftAlone::NoDeadLetter);
    }
    let is_issued = matches!(row.state, RowState::Issued { .. });
    if is_issued || (row.is_held() && row.is_young(now)) {
        return Err(LeftAlone::UnderWay);
    }
    match decision {
        Decision::NotGiven => row.state = RowState::Failed(FailedOutcome::NothingGiven),
        Decision::Given => {
            let (candidate, coupon, version) = (candidate_of(key, row), row.coupon.clone(), row.version);
            settle(ledger, &candidate, key, &coupon, version);
        }
    }
    Ok(())
}

/// Ends a dead letter by a person's finding. A coupon that was not given is refused for its day, also in later waves.
pub fn end(ledger: &mut UserLedger, key: &CouponKey, decision: Decision) -> Result<(), LeftAlone> {
    decide(ledger, key, decision)?;
    if decision == Decision::NotGiven
        && let Some(row) = ledger.rows.get_mut(&key.occurrence)
    {
        (row.state, row.by_hand) = (RowState::Refused(Reason::Dropped), false);
        let refused = RefusedDay { wave: LAST_WORD, reason: Reason::Dropped };
        ledger.refusals.insert((row.day, row.calendar), refused);
    }
    Ok(())
}

/// Returns the candidate of a row that is sent again.
pub fn candidate_of(key: &CouponKey, row: &LedgerRow) -> Candidate {
    Candidate {
        run: RunKey { programme: key.programme.clone(), day: row.day },
        member: Member { user: key.user, calendar: row.calendar },
        wave: LAST_WORD,
    }
}
