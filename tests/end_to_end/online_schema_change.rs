//! A schema change by a foreign tool, beside changes: the source continues, and the stores equal it.

use std::process::Command;

use anabranch_demo::Endpoint;
use anabranch_stack::{Layout, Program, gh_ost, pt_online_schema_change};
use anabranch_tests::{Installation, Plan, blocking, until};

use crate::STANDARD;
use crate::faults::{insert, until_derived};

const SOURCE: &str = "source-a";
const TABLE: &str = "user_00.user_000";
const OTHER: &str = "user_01.user_000";
const ALTER: &str = "ADD COLUMN note INT";
/// A flag that newer versions of gh-ost need on a server without instruments of metadata locks.
const NO_LOCK_CHECK: &str = "skip-metadata-lock-check";

/// `pt-online-schema-change` copies the table beside triggers, swaps the names and drops the old table.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_percona_toolkit_alters_beside_changes_is_read_again() {
    let tool = blocking(|| pt_online_schema_change(&layout())).expect("it installs, where it can be had");
    let Some(tool) = tool else { return };
    a_table_that_a_tool_alters_is_read_again(|endpoint, database, table| {
        let Endpoint { port, user, password, .. } = endpoint;
        let mut command = command(&tool);
        command.args(["--alter", ALTER, "--execute", "--chunk-size", "200", "--no-version-check"]);
        command.args(["--recursion-method", "none"]);
        command.arg(format!("h=127.0.0.1,P={port},u={user},p={password},D={database},t={table}"));
        command
    })
    .await;
}

/// `gh-ost` copies the table, follows the binlog, and swaps the names under a lock. It comes from PATH alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_gh_ost_alters_beside_changes_is_read_again() {
    let Some(tool) = gh_ost(&layout()).expect("a search of PATH does not fail") else { return };
    let help = blocking(|| command(&tool).arg("--help").output()).expect("it runs");
    let is_newer = [help.stdout, help.stderr].iter().any(|text| {
        let text = String::from_utf8_lossy(text);
        text.contains(NO_LOCK_CHECK)
    });
    let folder = tempfile::tempdir().expect("a folder can be made");
    a_table_that_a_tool_alters_is_read_again(|endpoint, database, table| {
        let Endpoint { port, user, password, .. } = endpoint;
        let mut command = command(&tool);
        command.args(["--host=127.0.0.1", &format!("--port={port}"), &format!("--user={user}")]);
        command.args([format!("--password={password}"), format!("--alter={ALTER}")]);
        command.args([format!("--database={database}"), format!("--table={table}")]);
        command.arg(format!("--assume-master-host=127.0.0.1:{port}"));
        command.arg(format!("--serve-socket-file={}", folder.path().join("gh-ost.sock").display()));
        command.args(["--allow-on-master", "--ok-to-drop-table", "--chunk-size=200", "--execute"]);
        if is_newer {
            command.arg(format!("--{NO_LOCK_CHECK}"));
        }
        command
    })
    .await;
}

/// Runs the command that `tool` makes for a server, database and table, beside changes of that table and of another.
async fn a_table_that_a_tool_alters_is_read_again(tool: impl Fn(&Endpoint, &str, &str) -> Command) {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let daemon = installation.run();
    let rows: Vec<String> =
        (1_000..6_000).map(|user| format!("({user}, 'name', '1990-01-{:02}')", user % 28 + 1)).collect();
    let filled = format!("INSERT INTO {TABLE} (user_id, user_name, birthday) VALUES {}", rows.join(","));
    installation.execute(SOURCE, filled).await;
    until_derived(&installation, 5_992).await;
    daemon.until_loaded(&[SOURCE]).await;
    let before = versions(&installation).await;
    let endpoint = Endpoint::admin(installation.stack(), SOURCE).expect("a server of the stack");
    let (database, table) = TABLE.split_once('.').expect("a database and a table");
    let altering = async {
        let mut command = tool(&endpoint, database, table);
        // The changes go on meanwhile, so the wait has a thread of its own.
        let output = tokio::task::spawn_blocking(move || command.output()).await;
        let output = output.expect("it does not panic").expect("the tool runs");
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
    };
    let changing = async {
        for user in 1..200 {
            insert(&installation, SOURCE, TABLE, user).await;
            insert(&installation, SOURCE, OTHER, 10_000 + user).await;
            let update =
                format!("UPDATE {TABLE} SET birthday = '1991-02-03' WHERE user_id = {}", 1_000 + user);
            installation.execute(SOURCE, update).await;
        }
    };
    tokio::join!(altering, changing);
    until("the table is read again", async || {
        daemon.metric("anabranch_source_rereads_total", &[]).await > 0.0
            && daemon.metric("anabranch_refresh_rereads", &[]).await == 0.0
    })
    .await;
    installation.expect_equal().await;
    let moved = installation.derived(1_001).await;
    assert_eq!(moved.len(), 1, "{moved:?}");
    let after = versions(&installation).await;
    let rewritten = after.iter().filter(|row| before.binary_search(row).is_err()).count();
    assert_eq!(
        (after.len(), rewritten),
        (before.len(), 0),
        "the copy has the same rows, and no lane writes them"
    );
    daemon.until_ready().await;
}

/// Returns user, version and table of each derived row whose source row no change touches, sorted.
async fn versions(installation: &Installation<'_>) -> Vec<(String, String)> {
    let row = "CONCAT(user_id, ' ', lsn)";
    let mut rows = installation.derived_where("birthday\\_%", row, "user_id BETWEEN 1200 AND 5999").await;
    rows.sort();
    rows
}

fn command(tool: &Program) -> Command {
    let mut command = Command::new(&tool.file);
    command.envs(tool.environment.iter().map(|(name, value)| (name, value)));
    command
}

fn layout() -> Layout {
    Layout::find().expect("the tests run in a checkout")
}
