//! Letters that a person sent again are published again, until a granter has decided about them.
//!
//! A message may be lost, and a closed run has no sweep. So a pass reads these rows from the ledger. While granters do
//! not work, each publication adds a copy to the queue, so a process publishes a letter once in half an hour.

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

/// The letters that this process published in the last half hour: less than a hundred bytes each. Another process does
/// not know them, and publishes once more.
#[derive(Debug, Default)]
pub struct Resends(Mutex<BTreeMap<CouponKey, Instant>>);

impl Resends {
    /// Forgets letters that were published half an hour ago.
    fn forget(&self, now: Instant) {
        self.published().retain(|_, at| now.duration_since(*at) < ATTEMPT_TIMEOUT.unsigned_abs());
    }

    /// Removes the letters from a page that were published lately.
    fn leave_out_copies(&self, page: &mut Vec<(CouponKey, LedgerRow)>) {
        let published = self.published();
        page.retain(|(key, _)| !published.contains_key(key));
    }

    fn add(&self, messages: &[Message], now: Instant) {
        let keys = messages.iter().flat_map(Message::candidates).filter_map(|candidate| candidate.key());
        self.published().extend(keys.map(|key| (key, now)));
    }

    fn published(&self) -> MutexGuard<'_, BTreeMap<CouponKey, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Publishes the letters of a programme that were sent again and that no young attempt holds, each once in half an
/// hour. Returns how many letters wait for a person.
///
/// A clock that is wrong publishes a letter early or late, which does no harm.
pub async fn resend<L: Ledger, Q: WorkQueue>(
    ledger: &L,
    queue: &Q,
    programme: &Arc<str>,
    now: Timestamp,
    resends: &Resends,
) -> Result<u64, Fault> {
    resends.forget(Instant::now());
    let (mut waiting, mut has_room, mut after) = (0u64, true, None);
    loop {
        let mut page = ledger.dead_letters(programme, after.as_ref(), PAGE).await?;
        let Some((last, _)) = page.last() else { return Ok(waiting) };
        after = Some(last.clone());
        waiting += page.iter().filter(|(_, row)| matches!(row.state, RowState::Failed(_))).count() as u64;
        if !has_room {
            continue;
        }
        resends.leave_out_copies(&mut page);
        let messages = messages(programme, &page, now);
        has_room = publish(queue, &messages).await?;
        if has_room {
            resends.add(&messages, Instant::now());
        }
    }
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
    fn a_process_publishes_each_letter_once_in_half_an_hour() {
        let programme: Arc<str> = Arc::from("birthday");
        let (resends, began) = (Resends::default(), Instant::now());
        let half_an_hour = began + ATTEMPT_TIMEOUT.unsigned_abs();
        let now = Timestamp::UNIX_EPOCH + ATTEMPT_TIMEOUT;
        // An attempt holds the second letter in the first pass, and has died by the others.
        let pass = |at: Instant, held_at: Timestamp| {
            let sent = letter(1, RowState::Refused(Reason::OtherDay), true, now);
            let mut page = vec![sent, letter(2, RowState::Reserved, true, held_at)];
            resends.forget(at);
            resends.leave_out_copies(&mut page);
            let messages = messages(&programme, &page, now);
            resends.add(&messages, at);
            let members = messages.iter().flat_map(|message| &message.members);
            members.map(|member| member.user).collect::<Vec<_>>()
        };
        assert_eq!(pass(began, now), [1]);
        assert_eq!(pass(began, Timestamp::UNIX_EPOCH), [2], "it was not published yet");
        assert!(pass(half_an_hour - std::time::Duration::from_secs(1), Timestamp::UNIX_EPOCH).is_empty());
        assert_eq!(pass(half_an_hour, Timestamp::UNIX_EPOCH), [1, 2]);
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
