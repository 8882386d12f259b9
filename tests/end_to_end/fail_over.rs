//! A source is replaced: by its promoted replica, by one that lacks what was read, by itself without its past.
//!
//! The daemon goes on where it can, and the stores equal the new server. Where it cannot, it stops this source by name,
//! changes nothing, and goes on with the others; what the error names as its remedy is done, and helps.

use std::sync::Arc;
use std::time::Duration;

use anabranch_demo::{Endpoint, Pace, WorkloadOptions};
use anabranch_stack::{Server, ServerSpec};
use anabranch_tests::{Ground, Installation, PATIENCE, Plan, blocking, seed};

use crate::STANDARD;
use crate::faults::{expect_stopped, insert, until_derived};

static REPLICATED: Ground = Ground::of(|| {
    vec![
        ServerSpec::mariadb_source("source-a"),
        ServerSpec::mariadb_source("source-b"),
        ServerSpec::mariadb_target("target"),
        ServerSpec::nats("nats"),
    ]
});

/// A replica of `source-a`.
async fn standby(installation: &Installation<'_>, name: &str) -> Arc<Server> {
    let stack = installation.stack();
    // Of one domain with the source, which is the first server of the stack.
    let spec = ServerSpec::mariadb_source(name).flag("--gtid-domain-id=1");
    let standby = blocking(|| stack.add(spec)).expect("it starts");
    let source = installation.server("source-a");
    let (user, password) = (source.user(), source.password());
    let change = format!(
        "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {}, MASTER_USER = '{user}', \
         MASTER_PASSWORD = '{password}', MASTER_SSL = 1, MASTER_SSL_CA = '{}', MASTER_USE_GTID = slave_pos; START SLAVE",
        source.port(),
        stack.ca_file().display(),
    );
    installation.execute(name, change).await;
    standby
}

/// Waits until a replica has all of `source-a`.
async fn catch_up(installation: &Installation<'_>, standby: &str) {
    let end: Option<String> =
        installation.admin("source-a").await.first("read the end", "SELECT @@gtid_binlog_pos").await.unwrap();
    let end = end.expect("it has a binlog");
    let wait = format!("SELECT MASTER_GTID_WAIT('{end}', {})", PATIENCE.as_secs());
    let waited: Option<i64> = installation.admin(standby).await.first("wait", wait).await.unwrap();
    assert_eq!(waited, Some(0), "{standby} never had {end}");
}

/// Replaces `source-a` by another server, in the configuration and for the comparison.
fn replace(installation: &mut Installation<'_>, standby: &str) {
    let variable = format!("${{ANABRANCH_{}_URL}}", standby.to_ascii_uppercase());
    let text = installation.configuration_text().replace("${ANABRANCH_SOURCE_A_URL}", &variable);
    assert!(text.contains(&variable), "{text}");
    let stack = installation.stack();
    installation.environment_mut().extend(stack.env());
    installation.write_configuration_text(&text);
    let endpoint = Endpoint::admin(stack, standby).unwrap();
    installation.audits[0].topology.sources[0] = Endpoint { name: "source-a".to_owned(), ..endpoint };
}

/// Revision and position of the lanes of `source-a`: what a changed row would move.
async fn progress(installation: &Installation<'_>) -> Vec<String> {
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
    workload.run_for(Pace::of(300), Duration::from_secs(1)).await.unwrap();
    // The daemon ends in the middle, and the source with it.
    daemon.kill();
    catch_up(&installation, "standby").await;
    blocking(|| source.kill()).unwrap();
    installation.execute("standby", "STOP SLAVE; RESET SLAVE ALL").await;
    replace(&mut installation, "standby");
    insert(&installation, "standby", "user_00.user_000", 9_000_001).await;
    installation.free_leases().await;
    let daemon = installation.run();
    until_derived(&installation, 9_000_001).await;
    installation.expect_equal().await;
    let log = daemon.log();
    assert!(log.contains("another server holds all that was read"), "{log}");
    let status = installation.command(&["status", "--json"]).await.expect_success().json();
    let position = status["sources"][0]["position"].as_str().unwrap();
    let head = status["sources"][0]["head"].as_str().unwrap();
    assert!(position.starts_with("2:") && head.starts_with("2:"), "{status}");
    blocking(|| standby.stop()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_lacks_what_was_read_stops_its_source_until_it_has_it() {
    let mut installation = Installation::set_up(REPLICATED.turn().await, &Plan::small()).await;
    let source = installation.server("source-a");
    let lagging = standby(&installation, "lagging").await;
    insert(&installation, "source-a", "user_00.user_000", 9_000_001).await;
    catch_up(&installation, "lagging").await;
    installation.execute("lagging", "STOP SLAVE").await;
    let mut daemon = installation.run();
    insert(&installation, "source-a", "user_00.user_000", 9_000_002).await;
    until_derived(&installation, 9_000_002).await;
    installation.drained().await;
    daemon.kill();
    let before = progress(&installation).await;
    blocking(|| source.kill()).unwrap();
    replace(&mut installation, "lagging");
    installation.free_leases().await;
    let daemon = installation.run();
    let fault = expect_stopped(&installation, &daemon, "source-diverged", "source source-a").await;
    assert!(fault.contains("every transaction that was read from mariadb:1"), "{fault}");
    assert_eq!(progress(&installation).await, before);
    until_derived(&installation, 9_000_002).await;
    drop(daemon);

    // "A server that has them": the old one gives them.
    blocking(|| source.restart()).unwrap();
    installation.execute("lagging", "START SLAVE").await;
    catch_up(&installation, "lagging").await;
    installation.execute("lagging", "STOP SLAVE; RESET SLAVE ALL").await;
    insert(&installation, "lagging", "user_00.user_000", 9_000_003).await;
    installation.free_leases().await;
    let _daemon = installation.run();
    until_derived(&installation, 9_000_003).await;
    installation.expect_equal().await;
    blocking(|| lagging.stop()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_restored_without_its_past_stops_its_source_until_all_is_loaded_again() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let mut daemon = installation.run();
    insert(&installation, "source-a", "user_00.user_000", 9_000_001).await;
    insert(&installation, "source-b", "user_05.user_000", 9_000_002).await;
    until_derived(&installation, 9_000_001).await;
    until_derived(&installation, 9_000_002).await;
    installation.drained().await;
    daemon.kill();
    let before = progress(&installation).await;
    installation
        .execute("source-a", "SET SESSION sql_log_bin = 0; DELETE FROM user_00.user_000; RESET MASTER")
        .await;
    insert(&installation, "source-a", "user_00.user_000", 9_000_003).await;
    installation.free_leases().await;
    let daemon = installation.run();
    let fault = expect_stopped(&installation, &daemon, "source-server-changed", "source source-a").await;
    assert!(fault.contains("reset or restored"), "{fault}");
    assert_eq!(progress(&installation).await, before);
    until_derived(&installation, 9_000_001).await;
    drop(daemon);

    // As the runbook says.
    let jetstream = installation.jetstream().await;
    for source in &installation.configuration.sources {
        let stream = format!("{}_{source}", installation.configuration.name);
        jetstream.delete_stream(stream).await.unwrap();
    }
    installation
        .execute("target", "DROP DATABASE birthday_00; DROP DATABASE birthday_01; DROP DATABASE anabranch")
        .await;
    installation.command(&["setup"]).await.expect_success();
    installation.free_leases().await;
    let _daemon = installation.run();
    until_derived(&installation, 9_000_003).await;
    installation.expect_equal().await;
}
