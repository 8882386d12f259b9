//! Issues of a ledger whose rows are new: nothing stands that a transaction could lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anabranch_coupons::issuing::{Held, issue};
use anabranch_coupons::ports::{Ledger, SourceRow};
use anabranch_coupons::records::{Candidate, Member, Unique};
use anabranch_coupons::reserving::{Carried, reserve};
use anabranch_schemas::celebration::{Birthday, Calendar};

use super::ledger::{Ground, Server, Twin, frozen, hundred, meet};

on_twin_and_every_server!(Twin, Server:
    of_two_coupons_of_a_user_that_are_issued_at_once_one_sees_the_other,
);

async fn of_two_coupons_of_a_user_that_are_issued_at_once_one_sees_the_other(ground: impl Ground) {
    let ledger = ground.ledger();
    let users = &hundred()[..4];
    let run = frozen(&ledger, users.iter().copied()).await;
    let lunar = |user: &u64| (Member { user: *user, calendar: Calendar::Lunar }, vec![]);
    let members: Vec<_> = users.iter().map(lunar).collect();
    ledger.of_run(&run, &members, |l| l.added.clone_from(&members)).await.unwrap();
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
        assert_eq!(issued, [Ok(()), Err(Carried::Later)], "user {user}");
    }
}

/// Issues a row that the ledger lacks, once another transaction has decided too or cannot.
async fn issue_new(
    ledger: impl Ledger,
    candidate: Candidate,
    decided: Arc<AtomicUsize>,
) -> Result<(), Carried> {
    let (user, calendar) = (candidate.member.user, candidate.member.calendar);
    let attempt = |number| Unique(u128::from(user) * 100 + calendar as u128 * 50 + number);
    let mut read = ledger.read_users(&candidate.run, &[user]).await.unwrap();
    let taken = reserve(read.users.get_mut(&user).unwrap(), &candidate, attempt(0)).unwrap();
    assert!(taken.is_new);
    let source = taken.birthdays.iter().map(|birthday| match birthday {
        Birthday::Solar(day) => SourceRow { solar: Some(*day), ..source_row(calendar) },
        Birthday::Lunar(day) => SourceRow { lunar: Some(*day), ..source_row(calendar) },
    });
    let batch = [Held { candidate: candidate.clone(), source: Some(source.collect()), taken }];
    let users = [user];
    for number in 1.. {
        let register = ledger.tokens().await.unwrap().latest;
        let issued = ledger.of_rows(&candidate.run, &users, |l| {
            let issued = issue(l, &batch, attempt(number), register);
            decided.fetch_add(1, Ordering::SeqCst);
            meet(&decided);
            issued
        });
        if let Ok(mut issued) = issued.await.unwrap() {
            return issued.remove(0);
        }
    }
    unreachable!("somebody issues")
}

fn source_row(calendar: Calendar) -> SourceRow {
    SourceRow { born: None, solar: None, lunar: None, calendar, changed_at: None }
}
