//! Issues of a ledger whose rows are new: the ledger has no row that a transaction could lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anabranch_coupons::issuing::{HeldRow, issue};
use anabranch_coupons::ports::{Ledger, SourceRow};
use anabranch_coupons::records::{
    Candidate, LedgerRow, Member, PARTS, RowChange, RowState, Unique, UsersLedger,
};
use anabranch_coupons::reserving::{MessageEnd, reserve};
use anabranch_schemas::celebration::{Birthday, Calendar, Occurrence};
use jiff::Timestamp;

use super::ledger::{Ground, Server, Twin, frozen, hundred, meet, row};

on_twin_and_both_kinds_of_server!(Twin, Server:
    of_two_coupons_of_a_user_that_are_issued_at_once_one_sees_the_other,
    rows_change_together_while_each_stands_as_expected_or_not_at_all,
);

async fn of_two_coupons_of_a_user_that_are_issued_at_once_one_sees_the_other(ground: impl Ground) {
    let ledger = ground.ledger();
    let users = &hundred()[..4];
    let run = frozen(&ledger, users.iter().copied()).await;
    let lunar = |user: &u64| (Member { user: *user, calendar: Calendar::Lunar }, vec![]);
    let members: Vec<_> = users.iter().map(lunar).collect();
    ledger.with_run(&run, &members, |l| l.added.clone_from(&members)).await.unwrap();
    for user in users {
        let decided = Arc::new(AtomicUsize::new(0));
        let issues = Calendar::ALL.map(|calendar| {
            let member = Member { user: *user, calendar };
            let candidate = Candidate { run: run.clone(), member, wave: 1 };
            tokio::spawn(issue_new(ledger.clone(), candidate, decided.clone()))
        });
        let mut issued = Vec::new();
        for issue in issues {
            issued.push(issue.await.unwrap());
        }
        issued.sort_by_key(Result::is_err);
        assert!(matches!(issued[..], [Ok(_), Err(MessageEnd::Later)]), "user {user}: {issued:?}");
    }
}

/// Issues a row that the ledger lacks, once another transaction has decided too or is blocked.
async fn issue_new(
    ledger: impl Ledger,
    candidate: Candidate,
    decided: Arc<AtomicUsize>,
) -> Result<LedgerRow, MessageEnd> {
    let (user, calendar) = (candidate.member.user, candidate.member.calendar);
    let attempt = |number| Unique(u128::from(user) * 100 + calendar as u128 * 50 + number);
    let mut read = ledger.read_users(&candidate.run, &[user]).await.unwrap();
    let taken = reserve(read.users.get_mut(&user).unwrap(), &candidate, attempt(0)).unwrap();
    assert!(taken.is_new);
    let source = taken.birthdays.iter().map(|birthday| match birthday {
        Birthday::Solar(day) => SourceRow { solar: Some(*day), ..source_row(calendar) },
        Birthday::Lunar(day) => SourceRow { lunar: Some(*day), ..source_row(calendar) },
    });
    let batch = [HeldRow { candidate: candidate.clone(), source: Some(source.collect()), taken }];
    let users = [user];
    for number in 1.. {
        let register = ledger.tokens().await.unwrap().latest;
        let issued = ledger.with_rows(&candidate.run, &users, |l| {
            let issued = issue(l, &batch, attempt(number), register);
            decided.fetch_add(1, Ordering::SeqCst);
            meet(&decided);
            issued
        });
        if let Ok(mut issued) = issued.await.unwrap() {
            return issued.remove(0);
        }
    }
    unreachable!("one task issues")
}

fn source_row(calendar: Calendar) -> SourceRow {
    SourceRow { born: None, solar: None, lunar: None, calendar, changed_at: None }
}

async fn rows_change_together_while_each_stands_as_expected_or_not_at_all(ground: impl Ground) {
    let ledger = ground.ledger();
    // Users of two parts.
    let users: Vec<u64> = hundred().into_iter().chain([5]).collect();
    let run = frozen(&ledger, users.iter().copied()).await;
    let occurrence = Occurrence::of(Calendar::Solar, run.day).unwrap();
    let at: Timestamp = "2026-12-31T23:59:59.999999Z".parse().unwrap();
    let issued = LedgerRow { state: RowState::Issued { first_called_at: at }, ..row(run.day) };
    let put = |l: &mut UsersLedger, row: &LedgerRow| {
        l.users.values_mut().for_each(|user| drop(user.rows.insert(occurrence, row.clone())));
    };
    ledger.with_rows(&run, &users, |l| put(l, &issued)).await.unwrap();
    let settled = LedgerRow { state: RowState::Settled, ..issued.clone() };
    let change =
        |user: &u64| RowChange { user: *user, occurrence, before: issued.clone(), after: settled.clone() };
    let changes: Vec<RowChange> = users.iter().map(change).collect();
    let others = [
        LedgerRow { state: RowState::Reserved, ..issued.clone() },
        LedgerRow { attempt: Unique(3), ..issued.clone() },
        LedgerRow { changed_at: at, ..issued.clone() },
        LedgerRow { tries: 1, ..issued.clone() },
        LedgerRow { day: run.day.yesterday().unwrap(), ..issued.clone() },
    ];
    for other in others {
        ledger.with_rows(&run, &users[50..51], |l| put(l, &other)).await.unwrap();
        assert!(!ledger.replace_rows(&run, &changes).await.unwrap(), "{other:?}");
        let read = ledger.read_users(&run, &users).await.unwrap().users;
        assert_eq!(read.values().filter(|user| user.rows[&occurrence] == issued).count(), users.len() - 1);
    }
    ledger.with_rows(&run, &users[50..51], |l| put(l, &issued)).await.unwrap();
    assert!(ledger.replace_rows(&run, &changes).await.unwrap());
    let read = ledger.read_users(&run, &users).await.unwrap().users;
    assert!(read.values().all(|user| user.rows[&occurrence] == settled));
    // A user without a row.
    let stranger = change(&(5 + PARTS));
    assert!(!ledger.replace_rows(&run, &[stranger]).await.unwrap());
}
