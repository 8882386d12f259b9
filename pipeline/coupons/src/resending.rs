//! Letters that a person sent again are published again every half hour, until a granter has decided about them.
//!
//! A message may be lost, and a closed run has no sweep. So a pass reads these rows from the ledger. While granters do
//! not work, each publication adds a copy of each letter to the queue, so a process remembers when it last did so.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anabranch_pipeline::error::{Code, Fault};
use jiff::Timestamp;
use jiff::civil::Date;
use tokio::time::Instant;

use crate::ports::{Ledger, WorkQueue};
use crate::records::{
    ATTEMPT_TIMEOUT, CouponKey, LAST_WORD, LedgerRow, MEMBERS_MAX, Member, Message, RowState, RunKey, part,
};

/// Letters that are read at once.
const PAGE: usize = 1_000;

/// The present round of each programme. Only the process remembers, so another one publishes once more.
#[derive(Debug, Default)]
pub struct Resends(Mutex<BTreeMap<Arc<str>, Round>>);

/// One publication of all letters of a programme. If the queue is full, later passes go on with the round.
#[derive(Debug, Clone)]
struct Round {
    begun_at: Instant,
    /// The last letter that was read while the queue had room.
    last: Option<CouponKey>,
    has_ended: bool,
}

impl Resends {
    /// Returns the round of a programme; a new one half an hour after one that has ended began.
    fn round(&self, programme: &Arc<str>, now: Instant) -> Round {
        let begun = || Round { begun_at: now, last: None, has_ended: false };
        let known = self.rounds().get(programme).cloned();
        let is_present = |round: &Round| {
            !round.has_ended || now.duration_since(round.begun_at) < ATTEMPT_TIMEOUT.unsigned_abs()
        };
        known.filter(is_present).unwrap_or_else(begun)
    }

    fn keep(&self, programme: &Arc<str>, round: &Round) {
        self.rounds().insert(programme.clone(), round.clone());
    }

    fn rounds(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Round>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Round {
    /// Returns the letters of a page that the round has not reached yet.
    fn rest<'a>(&self, page: &'a [(CouponKey, LedgerRow)]) -> &'a [(CouponKey, LedgerRow)] {
        if self.has_ended {
            return &[];
        }
        &page[page.partition_point(|(key, _)| Some(key) <= self.last.as_ref())..]
    }
}

/// Publishes the letters of a programme that were sent again and that no young attempt holds, once in half an hour.
/// Returns how many letters wait for a person.
///
/// A clock that is wrong publishes a letter early or late, which does no harm.
pub async fn resend<L: Ledger, Q: WorkQueue>(
    ledger: &L,
    queue: &Q,
    programme: &Arc<str>,
    now: Timestamp,
    resends: &Resends,
) -> Result<u64, Fault> {
    let mut round = resends.round(programme, Instant::now());
    let (mut waiting, mut has_room, mut after) = (0u64, true, None);
    loop {
        let page = ledger.dead_letters(programme, after.as_ref(), PAGE).await?;
        let Some((last, _)) = page.last() else { break };
        after = Some(last.clone());
        waiting += page.iter().filter(|(_, row)| matches!(row.state, RowState::Failed(_))).count() as u64;
        if round.has_ended || !has_room {
            continue;
        }
        has_room = publish(queue, &messages(programme, round.rest(&page), now)).await?;
        if has_room {
            round.last = round.last.max(after.clone());
            resends.keep(programme, &round);
        }
    }
    round.has_ended |= has_room;
    resends.keep(programme, &round);
    Ok(waiting)
}

/// Publishes messages; returns whether the queue had room.
async fn publish<Q: WorkQueue>(queue: &Q, messages: &[Message]) -> Result<bool, Fault> {
    if messages.is_empty() {
        return Ok(true);
    }
    match queue.publish(messages).await {
        Ok(()) => Ok(true),
        Err(fault) if fault.code() == Code::LogFull => {
            tracing::warn!(%fault, "the other letters that were sent again are published by a later pass");
            Ok(false)
        }
        Err(fault) => Err(fault),
    }
}

/// Returns messages for the letters of a page that were sent again and that no young attempt holds.
fn messages(programme: &Arc<str>, page: &[(CouponKey, LedgerRow)], now: Timestamp) -> Vec<Message> {
    let mut parts: BTreeMap<(Date, u64), Vec<Member>> = BTreeMap::new();
    for (key, row) in page {
        if row.is_sent_again() && !(row.is_held() && row.is_young(now)) {
            let member = Member { user: key.user, calendar: row.calendar };
            parts.entry((row.day, part(key.user))).or_default().push(member);
        }
    }
    let mut messages = Vec::new();
    for ((day, _), members) in parts {
        let run = RunKey { programme: programme.clone(), day };
        messages.extend(members.chunks(MEMBERS_MAX).map(|members| Message {
            run: run.clone(),
            members: members.to_vec(),
            wave: LAST_WORD,
        }));
    }
    messages
}

#[cfg(test)]
mod tests {
    use anabranch_schemas::celebration::{Calendar, Occurrence};

    use super::*;
    use crate::records::{FailedOutcome, Reason, Unique};

    fn letter(user: u64, state: RowState, by_hand: bool, changed_at: Timestamp) -> (CouponKey, LedgerRow) {
        let occurrence = Occurrence { calendar: Calendar::Solar, year: 2027 };
        let row = LedgerRow {
            state,
            day: jiff::civil::date(2027, 5, 4),
            calendar: Calendar::Solar,
            attempt: Unique(1),
            changed_at,
            tries: 0,
            coupon: "cake".into(),
            version: None,
            by_hand,
            absent_since: None,
        };
        (CouponKey { user, programme: Arc::from("birthday"), occurrence }, row)
    }

    #[test]
    fn a_process_publishes_the_letters_once_in_half_an_hour_and_goes_on_after_a_full_queue() {
        let programme: Arc<str> = Arc::from("birthday");
        let (resends, began) = (Resends::default(), Instant::now());
        let sent = RowState::Refused(Reason::OtherDay);
        let page = [1, 2, 3].map(|user| letter(user, sent, true, Timestamp::UNIX_EPOCH));
        let rest = |later: Instant| {
            let round = resends.round(&programme, later);
            round.rest(&page).iter().map(|(key, _)| key.user).collect::<Vec<_>>()
        };
        assert_eq!(rest(began), [1, 2, 3], "the first pass of a process");

        let half_an_hour = began + ATTEMPT_TIMEOUT.unsigned_abs();
        let full = Round { last: Some(page[1].0.clone()), ..resends.round(&programme, began) };
        resends.keep(&programme, &full);
        assert_eq!(rest(began), [3]);
        assert_eq!(rest(half_an_hour), [3], "the other letters come before a new round");

        resends.keep(&programme, &Round { has_ended: true, ..full });
        assert!(rest(half_an_hour - std::time::Duration::from_secs(1)).is_empty());
        assert_eq!(rest(half_an_hour), [1, 2, 3]);
    }

    #[test]
    fn letters_that_were_sent_again_are_published_unless_a_young_attempt_holds_them() {
        let programme: Arc<str> = Arc::from("birthday");
        let day = jiff::civil::date(2027, 5, 4);
        let now = Timestamp::UNIX_EPOCH + ATTEMPT_TIMEOUT;
        let old = Timestamp::UNIX_EPOCH;
        let sent = RowState::Refused(Reason::OtherDay);
        let issued = RowState::Issued { first_called_at: old };
        let failed = RowState::Failed(FailedOutcome::NothingGiven);
        let rows = [
            (1, sent, true, now),
            (2, issued, true, old),
            (3, issued, true, now),
            (4, issued, false, old),
            (5, failed, true, old),
            (17, RowState::Reserved, true, old),
        ];
        let page = rows.map(|(user, state, by_hand, changed_at)| letter(user, state, by_hand, changed_at));
        let messages = messages(&programme, &page, now);
        let users = |message: &Message| message.members.iter().map(|member| member.user).collect::<Vec<_>>();
        assert_eq!(messages.iter().map(users).collect::<Vec<_>>(), [vec![1, 17], vec![2]]);
        assert!(messages.iter().all(|message| message.wave == LAST_WORD && message.run.day == day));
    }
}
