//! Letters of a ledger that a person sent again: they are listed until a granter has decided about them.

use std::slice;

use anabranch_coupons::dead_letters::requeue;
use anabranch_coupons::ports::Ledger;
use anabranch_coupons::records::{CouponKey, FailedOutcome, LedgerRow, Reason, RowChange, RowState};
use anabranch_schemas::celebration::{Calendar, Occurrence};
use jiff::SignedDuration;

use super::ledger::{Ground, Server, Twin, row, run_of, today};

on_twin_and_both_kinds_of_server!(Twin, Server:
    a_letter_that_is_sent_again_is_listed_until_its_row_is_settled_or_refused,
);

async fn a_letter_that_is_sent_again_is_listed_until_its_row_is_settled_or_refused(ground: impl Ground) {
    let ledger = ground.ledger();
    let run = run_of(today());
    let occurrence = Occurrence::of(Calendar::Solar, run.day).unwrap();
    let users = [1, 2];
    let failed = LedgerRow { state: RowState::Failed(FailedOutcome::NothingGiven), ..row(run.day) };
    let put = async |user: u64, row: &LedgerRow| {
        let users = [user];
        let put = ledger.with_users(&run, &users, |l| {
            l.users.get_mut(&user).unwrap().rows.insert(occurrence, row.clone());
        });
        put.await.unwrap();
    };
    let memory = SignedDuration::from_hours(24);
    for user in users {
        put(user, &failed).await;
        let key = CouponKey { user, programme: run.programme.clone(), occurrence };
        for _ in 0..2 {
            let sent = ledger
                .with_users(&run, &[user], |l| requeue(l.users.get_mut(&user).unwrap(), &key, memory))
                .await
                .unwrap();
            assert_eq!(sent.unwrap().member.user, user, "also once more");
        }
    }
    let listed = ledger.dead_letters(&run.programme, None, 9).await.unwrap();
    assert_eq!(listed.iter().map(|(key, _)| key.user).collect::<Vec<_>>(), users);
    assert!(listed.iter().all(|(_, row)| row.is_sent_again()), "{listed:?}");

    let sent = &listed[0].1;
    let issued = LedgerRow { state: RowState::Issued { first_called_at: sent.changed_at }, ..sent.clone() };
    put(users[0], &issued).await;
    let after = LedgerRow { state: RowState::Settled, ..issued.clone() };
    let settled = RowChange { user: users[0], occurrence, before: issued, after };
    for stands in [true, false] {
        let replaced = ledger.replace_rows(&run, slice::from_ref(&settled)).await.unwrap();
        assert_eq!(replaced, stands, "a row is settled once");
    }
    assert_eq!(ledger.dead_letters(&run.programme, None, 9).await.unwrap(), listed[1..]);

    let refused = RowState::Refused(Reason::WithinGap);
    put(users[1], &LedgerRow { state: refused, by_hand: false, ..listed[1].1.clone() }).await;
    assert!(ledger.dead_letters(&run.programme, None, 9).await.unwrap().is_empty());
}
