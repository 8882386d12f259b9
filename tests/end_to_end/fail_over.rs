//! A source is replaced by its promoted replica: the daemon goes on there, and the stores equal it.

use std::time::Duration;

use anabranch_demo::{Endpoint, Pace, WorkloadOptions};
use anabranch_stack::ServerSpec;
use anabranch_tests::{Ground, Installation, PATIENCE, Plan, blocking, seed};

use crate::faults::{insert, until_derived};

static REPLICATED: Ground = Ground::of(|| {
    vec![
        ServerSpec::mariadb_source("source-a"),
        ServerSpec::mariadb_target("target"),
        ServerSpec::nats("nats"),
    ]
});

#[tokio::test(flavor = "multi_thread")]
async fn a_promoted_replica_is_read_on_by_the_daemon_and_the_stores_equal_it() {
    let mut installation = Installation::set_up(REPLICATED.turn().await, &Plan::small()).await;
    let stack = installation.stack();
    let source = installation.server("source-a");
    // Of one domain with the source, which is the first server of the stack.
    let standby = blocking(|| {
        stack.add(ServerSpec::mariadb_source("standby").flag("--gtid-domain-id=1")).expect("it starts")
    });
    let (user, password) = (source.user(), source.password());
    let change = format!(
        "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {}, MASTER_USER = '{user}', \
         MASTER_PASSWORD = '{password}', MASTER_SSL = 1, MASTER_SSL_CA = '{}', MASTER_USE_GTID = slave_pos; START SLAVE",
        source.port(),
        stack.ca_file().display(),
    );
    installation.execute("standby", change).await;
    let mut daemon = installation.run();
    let mut workload = installation.workload(WorkloadOptions::new(seed("fail over")));
    workload.seed_users(3_000).await.unwrap();
    workload.run_for(Pace::of(300), Duration::from_secs(1)).await.unwrap();
    // The daemon ends in the middle, and the source with it.
    daemon.kill();
    let end: Option<String> =
        installation.admin("source-a").await.first("read the end", "SELECT @@gtid_binlog_pos").await.unwrap();
    let end = end.expect("it has a binlog");
    let wait = format!("SELECT MASTER_GTID_WAIT('{end}', {})", PATIENCE.as_secs());
    let waited: Option<i64> = installation.admin("standby").await.first("wait", wait).await.unwrap();
    assert_eq!(waited, Some(0), "the standby never had {end}");
    blocking(|| source.kill()).unwrap();
    installation.execute("standby", "STOP SLAVE; RESET SLAVE ALL").await;

    let text = installation.configuration_text();
    let text = text.replace("${ANABRANCH_SOURCE_A_URL}", "${ANABRANCH_STANDBY_URL}");
    assert!(text.contains("STANDBY"), "{text}");
    installation.environment_mut().extend(stack.env());
    installation.write_configuration_text(&text);
    installation.topology.sources =
        vec![Endpoint { name: "source-a".to_owned(), ..Endpoint::admin(stack, "standby").unwrap() }];
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
