//! A source is replaced: by its promoted replica, by one that lacks read transactions, by itself without its past.
//!
//! The daemon continues where it can, and the stores equal the new server. Where it cannot, it stops this source by
//! name, changes nothing, and continues with the others; the remedy in the fault then helps.

use std::sync::Arc;
use std::time::Duration;

use anabranch_demo::{Endpoint, Pace, WorkloadOptions};
use anabranch_stack::{Server, ServerSpec};
use anabranch_tests::{Ground, Installation, Plan, TestDatabase, WAIT_MAX, blocking, seed, until};

use crate::faults::{expect_stopped, insert, until_derived};

pub static REPLICATED: Ground = Ground::of(|| {
    vec![
        ServerSpec::mariadb_source("source-a"),
        ServerSpec::mariadb_source("source-b"),
        ServerSpec::mariadb_target("target"),
        ServerSpec::nats("nats"),
    ]
});

/// Starts a replica of `source-a`.
pub async fn standby(installation: &Installation<'_>, name: &str) -> Arc<Server> {
    let stack = installation.stack();
    // The replica has the domain of the source, which is the first server of the stack.
    let spec = ServerSpec::mariadb_source(name).without_fsync().flag("--gtid-domain-id=1");
    let standby = blocking(|| stack.add(TestDatabase::chosen().server(spec))).expect("it starts");
    follow(installation, name, "source-a").await;
    standby
}

/// Makes one server a replica of another.
pub async fn follow(installation: &Installation<'_>, replica: &str, source: &str) {
    let source = installation.server(source);
    let (user, password, port) = (source.user(), source.password(), source.port());
    let ca_file = installation.stack().ca_file().display().to_string();
    let of = |name: &str| {
        format!(
            "{name}_HOST = '127.0.0.1', {name}_PORT = {port}, {name}_USER = '{user}', \
             {name}_PASSWORD = '{password}', {name}_SSL = 1, {name}_SSL_CA = '{ca_file}'"
        )
    };
    // MariaDB runs the text after `M!`, MySQL the text after the version.
    let change = format!(
        "/*M! CHANGE MASTER TO {}, MASTER_USE_GTID = slave_pos */ \
         /*!80400 CHANGE REPLICATION SOURCE TO {}, SOURCE_AUTO_POSITION = 1 */; START REPLICA",
        of("MASTER"),
        of("SOURCE")
    );
    installation.execute(replica, change).await;
}

/// Waits until a replica has all transactions of a server, and promotes it.
pub async fn promote(installation: &Installation<'_>, standby: &str, source: &str) {
    catch_up(installation, standby, source).await;
    installation.execute(standby, "STOP REPLICA; RESET REPLICA ALL").await;
}

/// Waits until a replica has all transactions of a server.
pub async fn catch_up(installation: &Installation<'_>, standby: &str, source: &str) {
    let end = "SELECT /*M! @@gtid_binlog_pos */ /*!80400 REPLACE(@@GLOBAL.gtid_executed, '\n', '') */";
    let end: Option<String> = installation.admin(source).await.first("read the end", end).await.unwrap();
    let end = end.expect("it has a binlog");
    let arguments = format!("('{end}', {})", WAIT_MAX.as_secs());
    let wait = format!(
        "SELECT /*M! MASTER_GTID_WAIT{arguments} */ /*!80400 WAIT_FOR_EXECUTED_GTID_SET{arguments} */"
    );
    let waited: Option<i64> = installation.admin(standby).await.first("wait", wait).await.unwrap();
    assert_eq!(waited, Some(0), "{standby} never had {end}");
}

/// Replaces the server of source `source-a` by another one, in the configuration and for the comparison.
pub fn replace(installation: &mut Installation<'_>, before: &str, standby: &str) {
    let variable =
        |server: &str| format!("${{ANABRANCH_{}_URL}}", server.to_ascii_uppercase().replace('-', "_"));
    let text = installation.configuration_text().replace(&variable(before), &variable(standby));
    assert!(text.contains(&variable(standby)), "{text}");
    let stack = installation.stack();
    installation.environment_mut().extend(stack.env());
    installation.write_configuration_text(&text);
    let endpoint = Endpoint::admin(stack, standby).unwrap();
    installation.audits[0].topology.sources[0] = Endpoint { name: "source-a".to_owned(), ..endpoint };
}

/// Revision and position of the lanes of `source-a`, which any changed row would move.
pub async fn progress(installation: &Installation<'_>) -> Vec<String> {
    let sql = "SELECT CONCAT(lane, ' ', revision, ' ', position) FROM anabranch.progress \
               WHERE source = 'source-a' ORDER BY lane";
    installation.admin("target").await.rows("look at progress", sql).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promoted_replica_is_read_on_by_the_daemon_and_the_stores_equal_it() {
    let mut installation = Installation::set_up(REPLICATED.turn().await, &Plan::small()).await;
    let source = installation.server("source-a");
    let standby = standby(&installation, "standby").await;
    let mut daemon = installation.run();
    let mut workload = installation.workload(WorkloadOptions::new(seed("fail over")));
    workload.insert_rows(3_000).await.unwrap();
    let source_a = ["source=\"source-a\""];
    until("the reader has read", async || {
        daemon.metric("anabranch_log_changes_total", &source_a).await > 0.0
    })
    .await;
    workload.run_for(Pace::of(300), Duration::from_secs(1)).await.unwrap();
    // The daemon is killed during the work, and the source with it.
    daemon.kill();
    promote(&installation, "standby", "source-a").await;
    blocking(|| source.kill()).unwrap();
    replace(&mut installation, "source-a", "standby");
    insert(&installation, "standby", "user_00.user_000", 9_000_001).await;
    installation.free_leases().await;
    let daemon = installation.run();
    until_derived(&installation, 9_000_001).await;
    installation.expect_equal().await;
    let log = daemon.log();
    assert!(log.contains("another server has every transaction that was read"), "{log}");
    let status = installation.command(&["status", "--json"]).await.expect_success().json();
    let position = status["sources"][0]["position"].as_str().unwrap();
    let head = status["sources"][0]["head"].as_str().unwrap();
    assert!(position.starts_with("2:") && head.starts_with("2:"), "{status}");
    blocking(|| standby.stop()).unwrap();
}

/// The log loses the messages of the other server, which no lane has read: only the register knows it.
#[tokio::test(flavor = "multi_thread")]
async fn a_fail_over_there_and_back_with_the_stream_lost_between_begins_a_third_epoch() {
    let mut installation = Installation::set_up(REPLICATED.turn().await, &Plan::small()).await;
    let partner = standby(&installation, "partner").await;
    let mut workload = installation.workload(WorkloadOptions::new(seed("there and back")));
    workload.insert_rows(300).await.unwrap();
    let mut daemon = installation.run();
    installation.drained().await;
    daemon.kill();
    promote(&installation, "partner", "source-a").await;
    replace(&mut installation, "source-a", "partner");
    insert(&installation, "partner", "user_00.user_000", 9_000_001).await;
    installation.free_leases().await;
    let mut reader = installation.run_with(&["--role", "reader"], &[]);
    position_in(&installation, 2).await;
    reader.kill();

    let jetstream = installation.jetstream().await;
    jetstream.delete_stream(format!("{}_source-a", installation.configuration.name)).await.unwrap();
    installation.command(&["setup"]).await.expect_success();
    // MySQL counts its own transactions as executed anyway.
    let own = "/*M! SET GLOBAL gtid_slave_pos = @@gtid_current_pos */ /*!80400 DO 0 */";
    installation.execute("source-a", own).await;
    follow(&installation, "source-a", "partner").await;
    promote(&installation, "source-a", "partner").await;
    replace(&mut installation, "partner", "source-a");
    insert(&installation, "source-a", "user_00.user_000", 9_000_002).await;
    installation.free_leases().await;
    let _daemon = installation.run();
    position_in(&installation, 3).await;
    until_derived(&installation, 9_000_001).await;
    until_derived(&installation, 9_000_002).await;
    installation.expect_equal().await;
    blocking(|| partner.stop()).unwrap();
}

/// Waits until the stream of `source-a` has reached an epoch.
async fn position_in(installation: &Installation<'_>, epoch: u16) {
    until(&format!("epoch {epoch}"), async || {
        let status = installation.command(&["status", "--json"]).await;
        let position = status.json()["sources"][0]["position"].as_str().unwrap_or_default().to_owned();
        position.starts_with(&format!("{epoch}:"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_lacks_what_was_read_stops_its_source_until_it_has_it() {
    let mut installation = Installation::set_up(REPLICATED.turn().await, &Plan::small()).await;
    let source = installation.server("source-a");
    let lagging = standby(&installation, "lagging").await;
    insert(&installation, "source-a", "user_00.user_000", 9_000_001).await;
    catch_up(&installation, "lagging", "source-a").await;
    installation.execute("lagging", "STOP REPLICA").await;
    let mut daemon = installation.run();
    insert(&installation, "source-a", "user_00.user_000", 9_000_002).await;
    until_derived(&installation, 9_000_002).await;
    installation.drained().await;
    daemon.kill();
    let before = progress(&installation).await;
    blocking(|| source.kill()).unwrap();
    replace(&mut installation, "source-a", "lagging");
    installation.free_leases().await;
    let daemon = installation.run();
    let fault = expect_stopped(&installation, &daemon, "source-diverged", "source source-a").await;
    assert!(fault.contains("every transaction that was read from m"), "{fault}");
    assert_eq!(progress(&installation).await, before);
    until_derived(&installation, 9_000_002).await;
    drop(daemon);

    // The remedy: the old server gives the missing transactions.
    blocking(|| source.restart()).unwrap();
    installation.execute("lagging", "START REPLICA").await;
    catch_up(&installation, "lagging", "source-a").await;
    installation.execute("lagging", "STOP REPLICA; RESET REPLICA ALL").await;
    insert(&installation, "lagging", "user_00.user_000", 9_000_003).await;
    installation.free_leases().await;
    let _daemon = installation.run();
    until_derived(&installation, 9_000_003).await;
    installation.expect_equal().await;
    blocking(|| lagging.stop()).unwrap();
}
