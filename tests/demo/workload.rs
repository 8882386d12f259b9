//! The workload makes each kind of change that it counts, and survives killed servers if asked to.

use std::time::{Duration, Instant};

use anabranch_demo::{Endpoint, Pace, Topology, Workload, WorkloadOptions};
use anabranch_schemas::change::Entity;
use anabranch_schemas::shard::{NameHash, Spread};
use anabranch_stack::{Options, ServerSpec, Stack};
use anabranch_tests::{WAIT_MAX, until_each_kind};
use tokio_util::sync::CancellationToken;

pub fn start_sources() -> (Stack, Vec<Endpoint>) {
    let stack = Stack::start(
        Options::empty()
            .with(ServerSpec::mariadb_source("source-a").without_fsync())
            .with(ServerSpec::mariadb_source("source-b").without_fsync())
            .with(ServerSpec::mariadb_target("target").without_fsync()),
    )
    .unwrap();
    let sources = ["source-a", "source-b"].map(|name| Endpoint::admin(&stack, name).unwrap()).to_vec();
    (stack, sources)
}

/// The number of rows, and of different ones.
async fn count_rows(topology: &Topology) -> (u64, u64) {
    let (mut rows_of_all, mut ids) = (0, Vec::new());
    for (index, source) in topology.sources.iter().enumerate() {
        let mut connection = source.connect(&[]).await.unwrap();
        for source_table in topology.tables_of(index) {
            let sql = format!("SELECT {} FROM {}", source_table.number_sql(), source_table.quoted());
            let rows: Vec<u64> = connection.rows("read rows", sql).await.unwrap();
            rows_of_all += rows.len() as u64;
            ids.extend(rows);
        }
    }
    ids.sort_unstable();
    ids.dedup();
    (rows_of_all, ids.len() as u64)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_makes_each_kind_of_change_and_counts_rows_rightly() {
    let (_stack, sources) = start_sources();
    for spread in [Spread::Literal, Spread::Spread] {
        let topology = Topology::standard(sources.clone(), spread, NameHash::JavaString);
        for (index, source) in sources.iter().enumerate() {
            let mut connection = source.connect(&[]).await.unwrap();
            for source_table in topology.tables_of(index).filter(|source_table| source_table.table == 0) {
                let sql = format!("DROP DATABASE IF EXISTS `{}`", source_table.database_name());
                connection.execute("drop an old database", sql).await.unwrap();
            }
        }
        let mut workload = Workload::new(topology.clone(), WorkloadOptions::new(11));
        workload.create_schema().await.unwrap();
        workload.create_schema().await.unwrap();
        let mut report = workload.insert_rows(4_000).await.unwrap();
        report.merge(&workload.giant_transactions().await.unwrap());
        report.merge(&workload.run_for(Pace::Unlimited, Duration::from_secs(4)).await.unwrap());
        until_each_kind(&mut workload, Pace::Unlimited, &mut report).await;
        assert_eq!(report.absent_kinds(Entity::User), Vec::<&str>::new(), "{report:?}");
        assert_eq!(report.largest_transaction_rows, 10_000);
        assert_eq!(report, workload.live().snapshot());
        let (users, different) = count_rows(&topology).await;
        assert_eq!((users, different), (report.inserts - report.deletes, users), "{report:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_of_devices_makes_each_kind_of_change_and_counts_rows_rightly() {
    let (_stack, sources) = start_sources();
    let topology = Topology::serials(sources, 8);
    let mut workload = Workload::new(topology.clone(), WorkloadOptions::new(11));
    workload.create_schema().await.unwrap();
    workload.create_schema().await.unwrap();
    let mut report = workload.insert_rows(3_000).await.unwrap();
    report.merge(&workload.run_for(Pace::of(1_500), Duration::from_secs(4)).await.unwrap());
    until_each_kind(&mut workload, Pace::of(1_500), &mut report).await;
    report.merge(&workload.giant_transactions().await.unwrap());
    assert_eq!(report.absent_kinds(Entity::SerialCode), Vec::<&str>::new(), "{report:?}");
    assert_eq!(report, workload.live().snapshot());
    let (devices, different) = count_rows(&topology).await;
    assert_eq!(devices, different, "a device in two shards");
    // Rows that a TRUNCATE removes are not counted.
    let left = report.inserts - report.deletes;
    assert!(
        devices == left || report.history_tables_truncated > 0 && devices < left,
        "{devices}: {report:?}"
    );
}

/// Most runs of which one is to keep the pace: a busy machine may not make so many changes at once.
const RUNS_MAX: u32 = 10;

#[tokio::test(flavor = "multi_thread")]
async fn a_pace_is_kept() {
    let (_stack, sources) = start_sources();
    let topology = Topology::standard(sources, Spread::Spread, NameHash::Crc32);
    let mut workload = Workload::new(topology, WorkloadOptions::new(5));
    workload.create_schema().await.unwrap();
    workload.insert_rows(1_000).await.unwrap();
    let mut is_kept = false;
    for _ in 0..RUNS_MAX {
        let began = Instant::now();
        let report = workload.run_for(Pace::of(500), Duration::from_secs(4)).await.unwrap();
        // A transaction enters the schedule by its first row, and rolled back ones are not counted.
        let seconds = began.elapsed().as_secs_f64();
        assert!((report.changes as f64) < 875.0 * seconds, "in {seconds} s: {report:?}");
        is_kept = report.changes >= 1_200;
        if is_kept {
            break;
        }
    }
    assert!(is_kept, "each of {RUNS_MAX} runs was too slow");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_sources_lose_nothing_that_the_workload_cannot_read_back() {
    let (stack, sources) = start_sources();
    let topology = Topology::standard(sources, Spread::Spread, NameHash::Crc32);
    let mut workload = Workload::new(topology.clone(), WorkloadOptions::new(12).tolerating_crashes());
    workload.create_schema().await.unwrap();
    workload.insert_rows(2_000).await.unwrap();
    let live = workload.live();
    let cancel = CancellationToken::new();
    let end = cancel.clone();
    let running = tokio::spawn(async move { workload.run(Pace::Unlimited, cancel).await });
    let crashes = tokio::task::spawn_blocking(move || {
        for name in ["source-a", "source-b", "source-a"] {
            let before = live.snapshot().changes;
            wait_for_changes(&live, before + 500);
            let server = stack.server(name).unwrap();
            server.kill().unwrap();
            server.restart().unwrap();
        }
        let before = live.snapshot().changes;
        wait_for_changes(&live, before + 500);
        end.cancel();
        stack
    });
    let _stack = crashes.await.unwrap();
    let report = running.await.unwrap().unwrap();
    assert!(report.lost_connections >= 3 && report.unsettled_rows == 0, "{report:?}");
    let (users, different) = count_rows(&topology).await;
    assert_eq!(users, different, "a user in two shards was not settled");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_that_a_broken_move_left_in_two_shards_is_deleted_from_one() {
    let (_stack, sources) = start_sources();
    let topology = Topology::standard(sources, Spread::Spread, NameHash::Crc32);
    let mut workload = Workload::new(topology.clone(), WorkloadOptions::new(13));
    workload.create_schema().await.unwrap();
    let seeded = workload.insert_rows(1_000).await.unwrap();
    let mut connections = Vec::new();
    for source in &topology.sources {
        connections.push(source.connect(&[]).await.unwrap());
    }
    let source_table = |source| topology.tables_of(source).next().unwrap().quoted();
    let sql = format!("SELECT user_id FROM {} ORDER BY user_id LIMIT 2", source_table(0));
    let ids: Vec<u64> = connections[0].rows("read users", sql).await.unwrap();
    let [doubled, gone] = ids.try_into().unwrap();
    let sql = format!("INSERT INTO {} (user_id, user_name) VALUES ({doubled}, 'other')", source_table(1));
    connections[1].execute("double a user", sql).await.unwrap();
    let sql = format!("DELETE FROM {} WHERE user_id = {gone}", source_table(0));
    connections[0].execute("delete a user", sql).await.unwrap();
    assert_eq!(count_rows(&topology).await, (seeded.inserts, seeded.inserts - 1));

    let report = workload.read_back(&[doubled, gone]).await.unwrap();
    assert_eq!((report.deletes, report.unsettled_rows), (1, 0));
    assert_eq!(count_rows(&topology).await, (seeded.inserts - 1, seeded.inserts - 1));
}

fn wait_for_changes(live: &anabranch_demo::LiveReport, changes: u64) {
    let deadline = Instant::now() + WAIT_MAX;
    while live.snapshot().changes < changes {
        assert!(Instant::now() < deadline, "the workload stands still: {:?}", live.snapshot());
        std::thread::sleep(Duration::from_millis(10));
    }
}
