//! Kills exactly before and after each durable step: of a working daemon, of a stopping one, and of set-up.

use std::time::Duration;

use anabranch_demo::{Pace, RedisServer, Workload, WorkloadOptions};
use anabranch_pipeline::failpoints;
use anabranch_schemas::change::Entity;
use anabranch_tests::{Daemon, Installation, Plan, seed, until};
use async_nats::jetstream::stream::Config;
use futures::TryStreamExt;

use crate::GROUND;

pub const VARIABLE: &str = "ANABRANCH_FAILPOINT";

/// Changes that each workload makes at least, however slow the machine is: without any, no step is reached.
const CHANGES_MIN: u64 = 20;
/// A captured table that the workload leaves alone.
const TRUNCATED: &str = "user_00.user_900";

fn run_armed(installation: &Installation<'_>, name: &str) -> Daemon {
    installation.run_with(&[], &[(VARIABLE, name)])
}

async fn change(workloads: &mut [Workload]) {
    let time = Duration::from_millis(250);
    let running = workloads.iter_mut().map(async |workload| {
        let mut changes = 0;
        while changes < CHANGES_MIN {
            changes += workload.run_for(Pace::of(300), time).await.unwrap().changes;
        }
    });
    futures::future::join_all(running).await;
}

/// Workloads of the plan's entities, with some rows of each.
async fn workloads(installation: &Installation<'_>, test: &str) -> Vec<Workload> {
    let mut workloads = installation.workloads(WorkloadOptions::new(seed(test)));
    for workload in &mut workloads {
        workload.insert_rows(300).await.unwrap();
    }
    workloads
}

/// Runs a daemon until the stores equal their sources.
pub async fn goes_on(installation: &Installation<'_>) {
    installation.free_leases().await;
    let mut after = installation.run();
    installation.expect_equal().await;
    after.kill();
    installation.free_leases().await;
}

/// Fills a captured table, lets a daemon derive its rows, and truncates it while no daemon runs.
async fn truncate(installation: &Installation<'_>) {
    let mut sql = format!("CREATE TABLE IF NOT EXISTS {TRUNCATED} LIKE user_00.user_000;");
    for user in 1..=40 {
        sql.push_str(&format!(
            "INSERT INTO {TRUNCATED} (user_id, user_name, birthday) VALUES ({user}, 'n', '1990-01-{:02}');",
            1 + user % 28
        ));
    }
    installation.execute("source-a", sql).await;
    let mut daemon = installation.run();
    installation.drained().await;
    daemon.kill();
    let comparison = installation.compare().await;
    assert_eq!(comparison.differences.total(), 40, "the rows that will be withdrawn: {comparison:?}");
    installation.execute("source-a", format!("TRUNCATE {TRUNCATED}")).await;
    installation.free_leases().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_killed_before_or_after_any_durable_step_loses_nothing() {
    let installation = Installation::set_up(GROUND.turn().await, &Plan::both()).await;
    let mut workloads = workloads(&installation, "failpoints").await;
    for name in failpoints::WORKING {
        if *name == "lane-withdrawal-sent" {
            truncate(&installation).await;
        }
        if name.starts_with("lane-direct-") {
            tear_a_hole(&installation, &mut workloads).await;
        }
        let mut daemon = run_armed(&installation, name);
        change(&mut workloads).await;
        daemon.until_failpoint(name).await;
        daemon.kill();
        goes_on(&installation).await;
    }
}

/// A plan of the devices' whole system, without users.
fn serial_system() -> Plan {
    Plan { entities: vec![Entity::SerialCode], ..Plan::everything() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_killed_before_or_after_any_step_of_its_cache_loses_nothing() {
    let installation = Installation::set_up(GROUND.turn().await, &serial_system()).await;
    let mut workloads = workloads(&installation, "failpoints of the cache").await;
    for name in failpoints::CACHING {
        if ["cache-after-repeat", "cache-before-record", "cache-after-record"].contains(name) {
            promote(&installation).await;
        }
        let mut daemon = run_armed(&installation, name);
        change(&mut workloads).await;
        daemon.until_failpoint(name).await;
        daemon.kill();
        goes_on(&installation).await;
    }
}

/// Gives the cache a new replication id with all of its contents, as a replica gets when it takes over.
async fn promote(installation: &Installation<'_>) {
    let redis = RedisServer::admin(installation.stack(), "redis").unwrap();
    let mut connection = redis.connect().await.unwrap();
    for primary in [["127.0.0.1", "1"], ["NO", "ONE"]] {
        let mut command = redis::cmd("REPLICAOF");
        connection.one::<String>("begin another life", command.arg(&primary)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_killed_before_or_after_any_step_of_documents_loses_nothing() {
    let installation = Installation::set_up(GROUND.turn().await, &serial_system()).await;
    let mut workloads = workloads(&installation, "failpoints of documents").await;
    goes_on(&installation).await;
    for name in failpoints::DOCUMENTING {
        if *name == "documents-withdrawal-sent" {
            // The workload knows the rows of its own tables, so another one is truncated.
            let (like, table) = ("inventory_4.serial_code_01", "inventory_4.serial_code_90");
            let sql = format!(
                "CREATE TABLE {table} LIKE {like}; INSERT INTO {table} (uuid, imei1) VALUES ('9', '1'); \
                 TRUNCATE {table}"
            );
            installation.execute("source-b", sql).await;
        }
        let mut daemon = run_armed(&installation, name);
        change(&mut workloads).await;
        daemon.until_failpoint(name).await;
        daemon.kill();
        goes_on(&installation).await;
    }
}

/// Discards the messages that the reader appends while no lane runs, but for the newest of each stream.
async fn tear_a_hole(installation: &Installation<'_>, workloads: &mut [Workload]) {
    let mut reader = installation.run_with(&["--role", "reader"], &[]);
    reader.until_ready().await;
    let jetstream = installation.jetstream().await;
    let stream = async |source: &str| {
        jetstream.get_stream(format!("{}_{source}", installation.configuration.name)).await.unwrap()
    };
    for source in ["source-a", "source-b"] {
        let before = stream(source).await.cached_info().state.last_sequence;
        // The newest message stays, so another one before it must be missing.
        while stream(source).await.cached_info().state.last_sequence < before + 3 {
            change(workloads).await;
        }
    }
    reader.kill();
    for source in ["source-a", "source-b"] {
        let config = stream(source).await.cached_info().config.clone();
        for max_messages in [1, config.max_messages] {
            jetstream.update_stream(Config { max_messages, ..config.clone() }).await.unwrap();
        }
    }
    installation.free_leases().await;
}

/// Deletes rows of each store, adds rows that no source row claims, and asks each lane to read its rows again.
async fn damage_and_refresh(installation: &Installation<'_>) {
    let sql = "DELETE FROM birthday_00.birthday_0103; DELETE FROM serial_code_15.mapping_003; \
        INSERT INTO birthday_00.birthday_0105 (shard_id, user_id, birthday, lsn) \
        SELECT DISTINCT shard_id, 4000000000, '01-05', 1 FROM birthday_00.birthday_0101 \
        ON DUPLICATE KEY UPDATE birthday_0105.lsn = 1";
    installation.execute("target", sql).await;
    for projection in ["birthday", "mapping", "documents"] {
        installation.command(&["refresh", "--projection", projection]).await.expect_success();
    }
}

/// The next daemon continues after the last stored step, and ends with the rows of an undisturbed refresh.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_killed_before_or_after_any_step_of_a_refresh_loses_nothing() {
    let installation = Installation::set_up(GROUND.turn().await, &Plan::everything()).await;
    let mut workloads = workloads(&installation, "failpoints of a refresh").await;
    goes_on(&installation).await;
    for name in failpoints::REFRESHING {
        damage_and_refresh(&installation).await;
        let mut daemon = run_armed(&installation, name);
        change(&mut workloads).await;
        daemon.until_failpoint(name).await;
        daemon.kill();
        installation.free_leases().await;
        let mut after = installation.run();
        until("equal", async || installation.compare().await.differences.total() == 0).await;
        after.kill();
        installation.free_leases().await;
    }
}

/// The next process continues the reconciliation and ends with equal stores.
#[tokio::test(flavor = "multi_thread")]
async fn a_reconciliation_that_is_killed_in_any_phase_is_gone_on_with() {
    let installation = Installation::set_up(GROUND.turn().await, &Plan::both()).await;
    let mut workloads = workloads(&installation, "failpoints of a reconciliation").await;
    let _daemon = installation.run();
    let target = installation.configuration.targets[0].clone();
    for name in failpoints::RECONCILING {
        change(&mut workloads).await;
        installation.drained().await;
        installation
            .execute(
                &target,
                // Fewer rows than stop repairs at the drift gate.
                "DELETE FROM birthday_00.birthday_0103; DELETE FROM serial_code_15.mapping_000 LIMIT 30",
            )
            .await;
        let mut reconciliation = installation.start(&["reconcile", "--now"], &[(VARIABLE, name)]);
        reconciliation.until_failpoint(name).await;
        reconciliation.kill();
        let underway = installation.command(&["reconcile", "status", "--json"]).await.json();
        let is_stored = *name == "reconciliation-after-checkpoint";
        assert_eq!(!underway["underway"].is_null(), is_stored, "{name}: {underway}");
        let report = installation.command(&["reconcile", "--now", "--json"]).await.expect_success().json();
        if is_stored {
            assert_eq!(report["id"], underway["underway"]["id"], "the same reconciliation goes on");
            let said = "the reconciliation was cut off: only rows after that position were compared";
            assert!(report.to_string().contains(said), "it begins behind what was through: {report}");
        }
        installation.expect_equal().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_killed_while_it_stops_loses_nothing() {
    let installation = Installation::set_up(GROUND.turn().await, &Plan::small()).await;
    let mut workloads = workloads(&installation, "stopping").await;
    for name in failpoints::STOPPING {
        let mut daemon = run_armed(&installation, name);
        daemon.until_ready().await;
        daemon.ask_to_end();
        change(&mut workloads).await;
        daemon.until_failpoint(name).await;
        daemon.kill();
        goes_on(&installation).await;
    }
}

/// Removes everything that set-up makes.
async fn forget(installation: &Installation<'_>) {
    let jetstream = installation.jetstream().await;
    let streams: Vec<String> = jetstream.stream_names().try_collect().await.unwrap();
    for stream in streams {
        jetstream.delete_stream(&stream).await.unwrap();
    }
    let databases = ["anabranch", "birthday_00", "birthday_01"];
    let drop = databases.map(|database| format!("DROP DATABASE IF EXISTS {database};")).concat();
    installation.execute("target", drop).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn set_up_killed_before_or_after_any_step_is_finished_by_the_next() {
    let installation = Installation::prepare(GROUND.turn().await, &Plan::small()).await;
    workloads(&installation, "set-up").await;
    for name in failpoints::SETTING_UP {
        forget(&installation).await;
        let mut set_up = installation.start(&["setup"], &[(VARIABLE, name)]);
        set_up.until_failpoint(name).await;
        set_up.kill();
        installation.command(&["setup"]).await.expect_success();
        installation.command(&["check"]).await.expect_success();
    }
    let _daemon = installation.run();
    installation.expect_equal().await;
}
