//! Members that transactions add in turn: each works beside the others and is committed after the one before it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use anabranch_coupons::ports::Ledger;
use anabranch_coupons::records::{Cursor, Member, RunKey, RunLedger};
use anabranch_coupons::turns::{PageTurn, PageTurns};
use anabranch_schemas::celebration::Calendar;
use anabranch_schemas::shard::ShardId;

use super::ledger::{Ground, Server, Twin, frozen, shard};

/// Time for a transaction to insert what it may before its turn.
const HEAD_START: Duration = Duration::from_millis(300);

on_twin_and_both_kinds_of_server!(Twin, Server:
    members_are_added_in_turn_or_not_at_all,
    members_that_are_added_by_two_at_once_count_once,
);

type Offered = Vec<(Member, Vec<ShardId>)>;

fn users(users: Range<u64>, of: u64) -> Offered {
    users.map(|user| (Member { user, calendar: Calendar::Solar }, vec![shard(of)])).collect()
}

/// Adds members as a freeze does; returns how many the cohort lacked.
fn add(ledger: &mut RunLedger, offered: &Offered) -> u64 {
    let new = offered.iter().filter(|(member, _)| !ledger.present.contains(member)).count() as u64;
    let run = ledger.run.as_mut().unwrap();
    run.count += new;
    run.cursor = Cursor { table: 0, after: offered.last().map(|(member, _)| member.user) };
    ledger.added.extend(offered.iter().cloned());
    new
}

/// A turn that has come, or that never comes.
fn turn(comes: bool) -> PageTurn {
    let turns = PageTurns::new(Cursor::default());
    if !comes {
        turns.end();
    }
    turns.at(Cursor::default())
}

async fn added(ledger: &impl Ledger, run: &RunKey, offered: &Offered, comes: bool) -> Option<u64> {
    ledger.add_in_turn(run, offered, &turn(comes), |l| add(l, offered)).await.unwrap()
}

/// Returns the number of the run's members, and of those among the offered ones that are in the cohort.
async fn counts(ledger: &impl Ledger, run: &RunKey, offered: &Offered) -> (u64, usize) {
    ledger.with_run(run, offered, |l| (l.run.as_ref().unwrap().count, l.present.len())).await.unwrap()
}

async fn members_are_added_in_turn_or_not_at_all(ground: impl Ground) {
    let ledger = ground.ledger();
    let run = frozen(&ledger, [1]).await;
    let (first, second) = (users(10..20, 7), users(20..40, 7));
    let turns = PageTurns::new(Cursor::default());
    let after_first = Cursor { table: 0, after: Some(19) };
    let turn_of_second = turns.at(after_first);
    let later = ledger.add_in_turn(&run, &second, &turn_of_second, |l| add(l, &second));
    let earlier = async {
        tokio::time::sleep(HEAD_START).await;
        assert_eq!(counts(&ledger, &run, &second).await, (1, 0), "nothing is seen before its turn");
        assert_eq!(added(&ledger, &run, &first, true).await, Some(10));
        turns.written(after_first);
    };
    let (later, ()) = tokio::join!(later, earlier);
    assert_eq!(later.unwrap(), Some(20));
    assert_eq!(counts(&ledger, &run, &second).await, (31, 20));

    // The turn never comes, or the run is another freezer's by then.
    let third = users(50..60, 7);
    assert_eq!(added(&ledger, &run, &third, false).await, None);
    let overtaken = ledger.add_in_turn(&run, &third, &turn(true), |_| "overtaken").await.unwrap();
    assert_eq!((overtaken, counts(&ledger, &run, &third).await), (Some("overtaken"), (31, 0)));

    // Some are there already: their shard tables are united.
    let again = users(35..45, 8);
    assert_eq!(added(&ledger, &run, &again, false).await, None);
    assert_eq!(added(&ledger, &run, &again, true).await, Some(5));
    assert_eq!(counts(&ledger, &run, &again).await, (36, 10));
    let claims =
        ledger.with_users(&run, &[35], |l| l.users[&35].claims[&Calendar::Solar].clone()).await.unwrap();
    assert_eq!(BTreeSet::from_iter(claims), BTreeSet::from([shard(7), shard(8)]));
    assert_eq!(added(&ledger, &run, &Offered::new(), true).await, Some(0));
}

async fn members_that_are_added_by_two_at_once_count_once(ground: impl Ground) {
    let ledger = ground.ledger();
    let run = frozen(&ledger, [1]).await;
    for round in 1..=20 {
        let offered = users(round * 100..round * 100 + 50, round);
        let (one, other) =
            tokio::join!(added(&ledger, &run, &offered, true), added(&ledger, &run, &offered, true));
        assert_eq!(one.unwrap() + other.unwrap(), 50, "round {round}");
        assert_eq!(counts(&ledger, &run, &offered).await, (1 + round * 50, 50));
    }
}
