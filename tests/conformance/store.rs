//! The store of a lane on MariaDB: crashes at each step, locks, time-outs. Promises of every store: `ports/store.rs`.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use anabranch_pipeline::error::{Class, Code};
use anabranch_pipeline::ports::{LEASE_TIME_TO_LIVE, LaneStore};
use anabranch_pipeline::records::{Cell, Progress, Replacement};
use anabranch_schemas::change::{Action, Value};
use mysql_async::Conn;
use mysql_async::prelude::Queryable;

use crate::derived::{StoreSite, insert, lsn, table, update, user};
use crate::nats::stall_beside;

const WAIT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A place after set-up, with one lane for each source.
async fn ready() -> StoreSite {
    ready_at(StoreSite::new().await).await
}

/// A place after set-up on a server of its own, for tests that examine all sessions of a server.
async fn ready_alone() -> StoreSite {
    ready_at(StoreSite::alone().await).await
}

async fn ready_at(site: StoreSite) -> StoreSite {
    let site = StoreSite { lanes: 1, ..site };
    site.target("target-a").setup().await.unwrap();
    site
}

/// Query for the session of a lane that is executing its fence.
const FENCING: &str = "SELECT id FROM information_schema.processlist \
     WHERE user = 'anabranch_apply' AND command = 'Query' AND info LIKE 'UPDATE %'";

/// Polls until the query answers a number above zero, and returns it.
async fn until(admin: &mut Conn, sql: &str) -> u64 {
    let deadline = Instant::now() + WAIT;
    loop {
        match admin.query_first::<u64, _>(sql).await.unwrap() {
            Some(number) if number > 0 => return number,
            _ => assert!(Instant::now() < deadline, "not in time: {sql}"),
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Advances a commit until its rows are written and COMMIT is not sent, and leaves it there.
async fn pause_after_rows(site: &StoreSite, commit: &mut (impl Future + Unpin)) {
    // The first packet waits for this lock, so one poll sends the packet and cannot read the answer too.
    let (mut holder, mut admin) = (site.admin().await, site.admin().await);
    let lock = format!("START TRANSACTION; SELECT * FROM `{}`.progress FOR UPDATE", site.control());
    holder.query_drop(lock).await.unwrap();
    assert!(futures::poll!(commit).is_pending());
    let id = until(&mut admin, FENCING).await;
    holder.query_drop("ROLLBACK").await.unwrap();
    let idle = format!("SELECT 1 FROM information_schema.processlist WHERE id = {id} AND command = 'Sleep'");
    until(&mut admin, &idle).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_the_rows_and_commit_leaves_nothing() {
    let site = ready_alone().await;
    let (mut lane, progress) = site.lane("source-a", 0).await;
    let flush = site.flush(&lane, &progress, vec![(1, 0, insert(user(1, 1, 1)))]);
    {
        let mut commit = Box::pin(lane.commit(&flush));
        pause_after_rows(&site, &mut commit).await;
    }
    assert_eq!(lane.load().await.unwrap(), progress, "waits until the server has settled it");
    assert!(site.rows().await.is_empty());
    lane.commit(&flush).await.unwrap();
    assert_eq!(site.rows().await.len(), 1);
}

/// `DROP DATABASE` withdraws every table of a rule: a table that never had a row costs no writing statement.
#[tokio::test(flavor = "multi_thread")]
async fn a_withdrawal_deletes_only_where_rows_stand_however_many_shards_it_names() {
    let site = ready_alone().await;
    let (mut lane, progress) = site.lane("source-a", 0).await;
    let mut rows = vec![(1, 7, insert(user(1, 5, 6))), (2, 900, insert(user(2, 5, 6)))];
    // One table has rows of so many shards that it is asked with the whole list.
    rows.extend((100..200).map(|shard| (3, shard, insert(user(u64::from(shard), 1, 1)))));
    let flush = site.flush(&lane, &progress, rows);
    lane.commit(&flush).await.unwrap();
    // DELETEs of one table, and in the form that takes a hint.
    let deletes = async || {
        let counters = "SHOW GLOBAL STATUS WHERE variable_name IN ('Com_delete', 'Com_delete_multi')";
        let counters: Vec<(String, u64)> = site.admin().await.query(counters).await.unwrap();
        counters.into_iter().map(|(_, count)| count).sum::<u64>()
    };
    let before = deletes().await;
    let withdrawals = (0..800).map(|shard| (9, shard, Action::Withdraw)).collect();
    let flush = site.flush(&lane, &flush.progress, withdrawals);
    lane.commit(&flush).await.unwrap();
    assert_eq!(deletes().await - before, 2, "one for each table that has rows of withdrawn shards");
    assert_eq!(site.rows().await.len(), 1, "the shard that was not withdrawn keeps its row");
}

/// The lane knows the shards that have rows from its first question on, and asks anew after each load of its progress.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_large_withdrawal_asks_for_what_may_stand_only_and_finds_what_came_since() {
    let site = ready_alone().await;
    let (mut lane, progress) = site.lane("source-a", 0).await;
    let withdrawn = |at| (0..800).map(|shard| (at, shard, Action::Withdraw)).collect::<Vec<_>>();
    // Opening a connection runs queries of its own, so the counter has one connection.
    let mut admin = site.admin().await;
    let mut selects = async || {
        let sql = "SHOW GLOBAL STATUS WHERE variable_name = 'Com_select'";
        let counters: Vec<(String, u64)> = admin.query(sql).await.unwrap();
        counters[0].1
    };
    let shards: BTreeSet<_> = (0..800).map(|number| table(number).shard).collect();
    assert!(lane.shards_with_rows(shards.clone()).await.unwrap().is_empty());
    let first = site.flush(&lane, &progress, withdrawn(1));
    lane.commit(&first).await.unwrap();
    let second = site.flush(&lane, &first.progress, withdrawn(2));
    let before = selects().await;
    assert!(lane.shards_with_rows(shards.clone()).await.unwrap().is_empty());
    lane.commit(&second).await.unwrap();
    assert_eq!(selects().await, before, "no shard stands, and the lane knows it");

    // A row of the lane itself, written after it has asked.
    let written = site.flush(&lane, &second.progress, vec![(3, 7, insert(user(1, 5, 6)))]);
    lane.commit(&written).await.unwrap();
    let third = site.flush(&lane, &written.progress, withdrawn(4));
    lane.commit(&third).await.unwrap();
    assert!(site.rows().await.is_empty());

    // Another process has the lane for some time.
    let (mut other, _) = site.lane("source-a", 0).await;
    let written = site.flush(&other, &third.progress, vec![(5, 8, insert(user(2, 5, 6)))]);
    other.commit(&written).await.unwrap();
    let stale = site.flush(&lane, &third.progress, withdrawn(6));
    assert_eq!(lane.commit(&stale).await.unwrap_err().code(), Code::TargetFenced);
    let progress = lane.load().await.unwrap();
    assert_eq!(lane.shards_with_rows(shards).await.unwrap(), [table(8).shard].into());
    let fourth = site.flush(&lane, &progress, withdrawn(6));
    lane.commit(&fourth).await.unwrap();
    assert!(site.rows().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_writer_loses_its_locks_before_its_lease_ends_and_can_do_no_harm_later() {
    let site = ready_alone().await;
    let (mut paused, progress) = site.lane("source-a", 0).await;
    let (mut next, _) = site.lane("source-a", 0).await;
    let late = site.flush(&paused, &progress, vec![(1, 0, insert(user(1, 1, 1)))]);
    let mut commit = Box::pin(paused.commit(&late));
    pause_after_rows(&site, &mut commit).await;
    let paused_at = Instant::now();

    // The successor waits for the lock, repeats the flush, and succeeds.
    let flush = site.flush(&next, &progress, vec![(2, 0, insert(user(2, 1, 1)))]);
    let (committed, stall) = stall_beside(next.commit(&flush)).await;
    committed.unwrap();
    let (elapsed, most) = (paused_at.elapsed(), LEASE_TIME_TO_LIVE + Duration::from_secs(2));
    assert!(elapsed < most + stall, "{elapsed:?}, and a stall of {stall:?}");

    // The paused process wakes up: its connection is gone, and the stored progress fences it for good.
    let fault = commit.await.unwrap_err();
    assert_eq!(fault.class(), Class::Transient, "{fault}");
    assert_eq!(paused.commit(&late).await.unwrap_err().code(), Code::TargetFenced);
    assert_eq!(site.rows_of(1).await, []);
    assert_eq!(site.rows_of(2).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_lost_at_commit_is_settled_by_loading_progress() {
    let site = ready_alone().await;
    let (mut lane, progress) = site.lane("source-a", 0).await;
    let flush = site.flush(&lane, &progress, vec![(1, 0, insert(user(1, 1, 1)))]);
    let mut admin = site.admin().await;
    admin.query_drop("BACKUP STAGE START; BACKUP STAGE BLOCK_COMMIT").await.unwrap();
    let writer = tokio::spawn(async move {
        let outcome = lane.commit(&flush).await;
        (lane, flush, outcome)
    });
    let committing =
        "SELECT id FROM information_schema.processlist WHERE info LIKE 'COMMIT%' AND command = 'Query'";
    let mut watcher = site.admin().await;
    let id = until(&mut watcher, committing).await;
    watcher.query_drop(format!("KILL CONNECTION {id}")).await.unwrap();
    let (mut lane, flush, outcome) = writer.await.unwrap();
    let fault = outcome.unwrap_err();
    assert_eq!(fault.class(), Class::Transient, "{fault}");
    admin.query_drop("BACKUP STAGE END").await.unwrap();

    let settled = lane.load().await.unwrap();
    let rows = site.rows_of(1).await.len();
    assert!(
        (settled == progress && rows == 0) || (settled == flush.progress && rows == 1),
        "{settled:?}, {rows} rows"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_lost_before_commit_is_made_anew_and_the_flush_repeated() {
    let site = ready_alone().await;
    let (mut lane, progress) = site.lane("source-a", 0).await;
    let mut admin = site.admin().await;
    let lanes = "SELECT id FROM information_schema.processlist WHERE user = 'anabranch_apply'";
    for id in admin.query::<u64, _>(lanes).await.unwrap() {
        admin.query_drop(format!("KILL CONNECTION {id}")).await.unwrap();
    }
    let flush = site.flush(&lane, &progress, vec![(1, 0, insert(user(1, 1, 1)))]);
    lane.commit(&flush).await.unwrap();
    assert_eq!(site.rows_of(1).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_time_out_repeats_the_whole_flush() {
    let site = ready().await;
    let (mut lane, progress) = site.lane("source-a", 0).await;
    let flush = site.flush(&lane, &progress, vec![(1, 0, insert(user(1, 1, 1)))]);
    lane.commit(&flush).await.unwrap();
    let progress = flush.progress;

    let mut holder = site.admin().await;
    holder
        .query_drop(format!("START TRANSACTION; SELECT * FROM {} FOR UPDATE", site.table(0, "0101")))
        .await
        .unwrap();
    let flush = site.flush(&lane, &progress, vec![(2, 0, update(user(1, 1, 1), user(1, 1, 2)))]);
    let writer = tokio::spawn(async move { lane.commit(&flush).await });
    // Longer than one lock wait of the lane, so that its first attempt fails.
    let mut admin = site.admin().await;
    let waited = LEASE_TIME_TO_LIVE / 2 + Duration::from_secs(1);
    admin.query_drop(format!("DO SLEEP({})", waited.as_secs())).await.unwrap();
    assert!(!writer.is_finished());
    holder.query_drop("ROLLBACK").await.unwrap();
    writer.await.unwrap().unwrap();
    assert_eq!(site.rows_of(1).await, [("birthday_0102".into(), "01-02".into(), 2)]);
}

/// The columns survive a replacement too, even if the row's version was changed by hand.
#[tokio::test(flavor = "multi_thread")]
async fn what_belongs_to_the_dispatcher_survives_every_upsert() {
    let site = ready().await;
    let (mut lane, progress) = site.lane("source-a", 0).await;
    let first = site.flush(&lane, &progress, vec![(1, 0, insert(user(1, 1, 1)))]);
    lane.commit(&first).await.unwrap();
    let sent = "is_sent = 1, send_time = '2026-01-01 00:00:00.5', sent_occurrence = 2026";
    site.sql(format!("UPDATE {} SET {sent}", site.table(0, "0101"))).await;
    let second = site.flush(&lane, &first.progress, vec![(2, 0, insert(user(1, 1, 1)))]);
    lane.commit(&second).await.unwrap();
    let kept = format!(
        "SELECT COUNT(*) FROM {} WHERE lsn = 2 AND is_sent = 1 AND send_time = '2026-01-01 00:00:00.5' \
         AND sent_occurrence = 2026",
        site.table(0, "0101")
    );
    assert_eq!(site.number(&kept).await, 1);
    site.sql(format!("UPDATE {} SET lsn = {}", site.table(0, "0101"), u64::MAX)).await;
    let mut third = site.flush(&lane, &second.progress, vec![(2, 0, insert(user(1, 1, 1)))]);
    let rows = [(table(0).shard, Cell::UInt(1))].into();
    third.replacement = Some(Replacement { low: lsn(2), column: 0, rows });
    lane.commit(&third).await.unwrap();
    assert_eq!(site.number(&kept).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_larger_than_a_packet_is_still_one_transaction() {
    let site = StoreSite { limits: "statement_rows = 100", ..ready_alone().await };
    site.sql("SET GLOBAL max_allowed_packet = 262144").await;
    let (mut lane, progress) = site.lane("source-a", 0).await;
    let rows = 12_000u64;
    let changes =
        (0..rows).map(|id| (1 + id, 0, insert(user(id, 1 + (id % 12) as u8, 1 + (id % 28) as u8)))).collect();
    let flush = site.flush(&lane, &progress, changes);
    lane.commit(&flush).await.unwrap();
    assert_eq!(site.rows().await.len() as u64, rows);

    // The second packet fails (a table is gone): the first one leaves no row either.
    site.sql(format!("DROP TABLE {}", site.table(342, "1208"))).await;
    let changes = (0..rows)
        .map(|id| {
            (rows + id, 0, Action::Delete { before: user(id, 1 + (id % 12) as u8, 1 + (id % 28) as u8) })
        })
        .collect();
    let flush = site.flush(&lane, &flush.progress, changes);
    let fault = lane.commit(&flush).await.unwrap_err();
    assert_eq!(fault.code(), Code::TargetTableMissing, "{fault}");
    assert_eq!(site.number(&format!("SELECT COUNT(*) FROM {}", site.table(0, "0101"))).await, 143);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_lanes_that_lock_each_other_out_both_get_through() {
    let site = ready().await;
    let (mut a, progress_a) = site.lane("source-a", 0).await;
    let (mut b, progress_b) = site.lane("source-b", 0).await;
    // Lanes of two sources share tables, never claims.
    let many = |shard: u32| {
        (0..3000u64).map(move |id| (1 + id, shard, insert(user(id, 1 + (id % 12) as u8, 1)))).collect()
    };
    for _ in 0..3 {
        let flush_a = site.flush(&a, &progress_a, many(0));
        let flush_b = site.flush(&b, &progress_b, many(1));
        let (done_a, done_b) = tokio::join!(a.commit(&flush_a), b.commit(&flush_b));
        if let (Err(one), _) | (_, Err(one)) = (done_a, done_b) {
            // From the second round on both are stale, which must be their only fault.
            assert_eq!(one.code(), Code::TargetFenced, "{one}");
        }
    }
    assert_eq!(site.rows().await.len(), 6000);
}

#[tokio::test(flavor = "multi_thread")]
async fn layouts_on_two_targets_hold_the_pure_function_of_the_rows() {
    // The servers would otherwise end with each layout.
    let _kept = StoreSite::new().await;
    for (layout, databases) in [("by_day", 5), ("by_user", 3)] {
        let site = StoreSite {
            layout,
            databases,
            lanes: 3,
            targets: vec!["target-a", "target-b"],
            ..StoreSite::new().await
        };
        let users = 2_000u64;
        let month_day = |id: u64, step: u64| (1 + ((id + step) % 12) as u8, 1 + ((id * 7 + step) % 28) as u8);
        let changes = || {
            (0..users).flat_map(|id| {
                let at = |step| {
                    let (month, day) = month_day(id, step);
                    user(id, month, day)
                };
                let last = if id % 10 == 0 { vec![Value::UInt(id), Value::Null] } else { at(2) };
                [insert(at(0)), update(at(0), at(1)), update(at(1), last)]
            })
        };
        for target in site.targets.clone() {
            let target = site.target(target);
            target.setup().await.unwrap();
            for id in target.lane_ids().into_iter().filter(|id| id.source == "source-a") {
                let mut lane = target.lane(&id).unwrap();
                let mut progress = lane.load().await.unwrap();
                let numbered: Vec<_> =
                    (1..).zip(changes()).map(|(number, action)| (number, 0, action)).collect();
                for window in numbered.chunks(1_700) {
                    let flush = site.flush(&lane, &progress, window.to_vec());
                    lane.commit(&flush).await.unwrap();
                    progress = flush.progress;
                }
            }
        }
        let rows = site.rows().await;
        assert_eq!(rows.len() as u64, users - users / 10, "{layout}");
        for ((table, _, id), (birthday, _, _)) in rows {
            let (month, day) = month_day(id, 2);
            assert_eq!(birthday, format!("{month:02}-{day:02}"));
            assert!(table.ends_with(&format!(".birthday_{month:02}{day:02}")), "{table}");
            if layout == "by_user" {
                assert!(table.contains(&format!("_{:02}.", id % 3)), "{table} {id}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_progress_row_deleted_by_hand_is_lost_and_nothing_starts_anew() {
    let site = ready().await;
    let (mut lane, progress) = site.lane("source-a", 0).await;
    let first = site.flush(&lane, &progress, vec![(1, 0, insert(user(1, 1, 1)))]);
    lane.commit(&first).await.unwrap();
    site.sql(format!("DELETE FROM `{}`.progress WHERE source = 'source-a'", site.control())).await;
    let second = site.flush(&lane, &first.progress, vec![(2, 0, insert(user(2, 1, 1)))]);
    for fault in [
        lane.commit(&second).await.unwrap_err(),
        lane.load().await.unwrap_err(),
        site.target("target-a").setup().await.unwrap_err(),
        site.target("target-a").check().await.remove(0),
    ] {
        assert_eq!(fault.code(), Code::TargetProgressLost, "{fault}");
        assert!(fault.remedy_text().is_some());
    }
    assert_eq!(site.rows_of(2).await, []);
    assert_eq!(site.number(&format!("SELECT COUNT(*) FROM `{}`.progress", site.control())).await, 1);
    // One remedy: other progress, which fences off a task that still runs the lane.
    let target = site.target("target-a");
    let lost = target.lost_lanes("source-a").await.unwrap();
    assert_eq!(lost, [site.lane_id("source-a", 0)]);
    let own = Progress { revision: 1_000, position: lsn(9), ..Progress::default() };
    target.begin_lost_lanes(&[(lost[0].clone(), own.clone())]).await.unwrap();
    assert_eq!(target.lost_lanes("source-a").await.unwrap(), []);
    assert_eq!(lane.commit(&second).await.unwrap_err().code(), Code::TargetFenced);
    assert_eq!(lane.load().await.unwrap(), own);
    site.sql(format!("UPDATE `{}`.progress SET position = 4711 WHERE source = 'source-a'", site.control()))
        .await;
    assert_eq!(target.lost_lanes("source-a").await.unwrap(), lost, "damaged progress");
    // The other: empty tables and another set-up.
    site.sql(format!("TRUNCATE {}", site.table(0, "0101"))).await;
    for table in ["progress", "enrolled"] {
        site.sql(format!("DELETE FROM `{}`.{table}", site.control())).await;
    }
    site.target("target-a").setup().await.unwrap();
    assert_eq!(lane.load().await.unwrap().position, lsn(0));
}

/// Measures the rate; run it with `cargo test --release --workspace --test conformance -- --ignored --nocapture rate`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures; prints rows a second of wide upserts and deletes"]
async fn rate_of_wide_flushes() {
    let site = StoreSite { lanes: 1, ..StoreSite::alone().await };
    let began = Instant::now();
    let report = site.target("target-a").setup().await.unwrap();
    println!("set-up: {report:?} in {:?}", began.elapsed());
    let began = Instant::now();
    assert!(site.target("target-a").check().await.is_empty());
    println!("check: {:?}", began.elapsed());
    let (mut lane, mut progress) = site.lane("source-a", 0).await;
    for flush_rows in [1_000u64, 5_000, 20_000] {
        let mut rates = Vec::new();
        for round in 0..6u64 {
            let day = |id: u64| {
                let ordinal = (id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) % 336;
                (1 + (ordinal / 28) as u8, 1 + (ordinal % 28) as u8)
            };
            let changes: Vec<_> = (0..flush_rows)
                .map(|n| {
                    let id = (round * flush_rows + n).wrapping_mul(48271) % 200_000;
                    let (month, day) = day(id);
                    (progress.revision + 1, (id % 10) as u32, insert(user(id, month, day)))
                })
                .collect();
            let flush = site.flush(&lane, &progress, changes);
            let began = Instant::now();
            lane.commit(&flush).await.unwrap();
            rates.push(flush.rows() as f64 / began.elapsed().as_secs_f64());
            progress = flush.progress;
        }
        rates.sort_by(f64::total_cmp);
        println!("upserts, {flush_rows} rows a flush over 336 tables: {:.0} rows/s (median of 6)", rates[3]);
    }
    let all: Vec<_> = site.rows().await.into_iter().collect();
    let shards: HashMap<u64, u32> = (0..10).map(|number| (table(number).shard.as_u64(), number)).collect();
    for some in all.chunks(20_000).take(3) {
        let changes = some
            .iter()
            .map(|((_, shard, id), (birthday, _, _))| {
                let (month, day) = birthday.split_once('-').unwrap();
                let before = user(*id, month.parse().unwrap(), day.parse().unwrap());
                (progress.revision + 1, shards[shard], Action::Delete { before })
            })
            .collect();
        let flush = site.flush(&lane, &progress, changes);
        let began = Instant::now();
        lane.commit(&flush).await.unwrap();
        println!(
            "deletes, {} rows: {:.0} rows/s",
            some.len(),
            some.len() as f64 / began.elapsed().as_secs_f64()
        );
        progress = flush.progress;
    }
}
