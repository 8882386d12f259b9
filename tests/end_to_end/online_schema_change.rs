//! A schema change by a foreign tool, beside changes: the source continues, and the stores equal it.

use std::process::Command;

use anabranch_tests::{Installation, Plan, blocking, until};
use mysql_async::Opts;

use crate::STANDARD;
use crate::faults::{insert, until_derived};

const TOOL: &str = "pt-online-schema-change";
const TABLE: &str = "user_00.user_000";
const OTHER: &str = "user_01.user_000";

/// `pt-online-schema-change` copies the table beside triggers, swaps the names and drops the old table.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_percona_toolkit_alters_beside_changes_is_read_again() {
    if let Err(error) = Command::new(TOOL).arg("--version").output() {
        println!("skipped: {TOOL} cannot be run ({error})");
        return;
    }
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let daemon = installation.run();
    let rows: Vec<String> =
        (1_000..6_000).map(|user| format!("({user}, 'name', '1990-01-{:02}')", user % 28 + 1)).collect();
    let filled = format!("INSERT INTO {TABLE} (user_id, user_name, birthday) VALUES {}", rows.join(","));
    installation.execute("source-a", filled).await;
    until_derived(&installation, 5_992).await;
    daemon.until_loaded(&["source-a"]).await;
    let server = Opts::from_url(&installation.server("source-a").admin_url()).unwrap();
    let (database, table) = TABLE.split_once('.').unwrap();
    let dsn = format!(
        "h={},P={},u={},p={},D={database},t={table}",
        server.ip_or_hostname(),
        server.tcp_port(),
        server.user().unwrap(),
        server.pass().unwrap()
    );
    let altering = async {
        let alter =
            ["--alter", "ADD COLUMN note INT", "--execute", "--chunk-size", "200", "--no-version-check"];
        let command = || Command::new(TOOL).args(alter).args(["--recursion-method", "none", &dsn]).output();
        let output = blocking(command).unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
    };
    let changing = async {
        for user in 1..200 {
            insert(&installation, "source-a", TABLE, user).await;
            insert(&installation, "source-a", OTHER, 10_000 + user).await;
            let update =
                format!("UPDATE {TABLE} SET birthday = '1991-02-03' WHERE user_id = {}", 1_000 + user);
            installation.execute("source-a", update).await;
        }
    };
    tokio::join!(altering, changing);
    until("the table is read again", async || {
        daemon.metric("anabranch_source_rereads_total", &[]).await > 0.0
            && daemon.metric("anabranch_refresh_rereads", &[]).await == 0.0
    })
    .await;
    installation.expect_equal().await;
    let is_gone = installation.derived(1_001).await;
    assert_eq!(is_gone.len(), 1, "{is_gone:?}");
    daemon.until_ready().await;
}
