//! Letters that a person sent again are published again by each pass, until a granter has decided about them.
//!
//! A message may be lost, and a closed run has no sweep. So a pass reads these rows from the ledger.

use std::collections::BTreeMap;
use std::sync::Arc;

use anabranch_pipeline::error::{Code, Fault};
use jiff::Timestamp;
use jiff::civil::Date;

use crate::ports::{Ledger, WorkQueue};
use crate::records::{CouponKey, LAST_WORD, LedgerRow, MEMBERS_MAX, Member, Message, RowState, RunKey, part};

/// Letters that are read at once.
const PAGE: usize = 1_000;

/// Publishes every letter of a programme that was sent again and that no young attempt holds. Returns how many letters
/// wait for a person.
///
/// A clock that is wrong publishes a letter early or late, which does no harm.
pub async fn resend<L: Ledger, Q: WorkQueue>(
    ledger: &L,
    queue: &Q,
    programme: &Arc<str>,
    now: Timestamp,
) -> Result<u64, Fault> {
    let (mut waiting, mut has_room, mut after) = (0u64, true, None);
    loop {
        let page = ledger.dead_letters(programme, after.as_ref(), PAGE).await?;
        let Some((last, _)) = page.last() else { return Ok(waiting) };
        after = Some(last.clone());
        waiting += page.iter().filter(|(_, row)| matches!(row.state, RowState::Failed(_))).count() as u64;
        let messages = messages(programme, &page, now);
        if messages.is_empty() || !has_room {
            continue;
        }
        match queue.publish(&messages).await {
            Ok(()) => {}
            Err(fault) if fault.code() == Code::LogFull => {
                tracing::warn!(%fault, "the letters that were sent again are published by a later pass");
                has_room = false;
            }
            Err(fault) => return Err(fault),
        }
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
    use crate::records::{ATTEMPT_TIMEOUT, FailedOutcome, Reason, Unique};

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
        let page = rows.map(|(user, state, by_hand, changed_at)| {
            let occurrence = Occurrence { calendar: Calendar::Solar, year: 2027 };
            let row = LedgerRow {
                state,
                day,
                calendar: Calendar::Solar,
                attempt: Unique(1),
                changed_at,
                tries: 0,
                coupon: "cake".into(),
                version: None,
                by_hand,
                absent_since: None,
            };
            (CouponKey { user, programme: programme.clone(), occurrence }, row)
        });
        let messages = messages(&programme, &page, now);
        let users = |message: &Message| message.members.iter().map(|member| member.user).collect::<Vec<_>>();
        assert_eq!(messages.iter().map(users).collect::<Vec<_>>(), [vec![1, 17], vec![2]]);
        assert!(messages.iter().all(|message| message.wave == LAST_WORD && message.run.day == day));
    }
}
