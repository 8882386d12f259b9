//! A schema change by a foreign tool, beside changes: the source continues, and the stores equal it.

use std::process::Command;

use anabranch_demo::Endpoint;
use anabranch_demo::ghost::{GhostCopy, columns_of};
use anabranch_stack::{Layout, Program, gh_ost, pt_online_schema_change};
use anabranch_tests::{Installation, Plan, Turn, blocking, until};

use crate::STANDARD;
use crate::faults::{insert, until_derived};

const SOURCE: &str = "source-a";
const DATABASE: &str = "user_00";
const NAME: &str = "user_000";
const TABLE: &str = "user_00.user_000";
const OTHER: &str = "user_01.user_000";
const ALTER: &str = "ADD COLUMN note INT";
/// A flag that newer versions of gh-ost need on a server without instruments of metadata locks.
const NO_LOCK_CHECK: &str = "skip-metadata-lock-check";

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_percona_toolkit_alters_beside_changes_is_read_again() {
    altered_by_percona_toolkit(STANDARD.turn().await).await;
}

/// `pt-online-schema-change` copies the table beside triggers, swaps the names and drops the old table.
pub async fn altered_by_percona_toolkit(turn: Turn<'static>) {
    let tool = blocking(|| pt_online_schema_change(&layout())).expect("it installs, where it can be had");
    let Some(tool) = tool else { return };
    a_table_that_is_altered_is_read_again(turn, async |endpoint| {
        let Endpoint { port, user, password, .. } = endpoint;
        let mut command = command(&tool);
        command.args(["--alter", ALTER, "--execute", "--chunk-size", "200", "--no-version-check"]);
        command.args(["--recursion-method", "none"]);
        command.arg(format!("h=127.0.0.1,P={port},u={user},p={password},D={DATABASE},t={NAME}"));
        finish(command).await;
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
    a_table_that_is_altered_is_read_again(STANDARD.turn().await, async |endpoint| {
        let Endpoint { port, user, password, .. } = endpoint;
        let mut command = command(&tool);
        command.args(["--host=127.0.0.1", &format!("--port={port}"), &format!("--user={user}")]);
        command.args([format!("--password={password}"), format!("--alter={ALTER}")]);
        command.args([format!("--database={DATABASE}"), format!("--table={NAME}")]);
        command.arg(format!("--assume-master-host=127.0.0.1:{port}"));
        command.arg(format!("--serve-socket-file={}", folder.path().join("gh-ost.sock").display()));
        command.args(["--allow-on-master", "--ok-to-drop-table", "--chunk-size=200", "--execute"]);
        if is_newer {
            command.arg(format!("--{NO_LOCK_CHECK}"));
        }
        finish(command).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_swapped_in_the_order_of_gh_ost_beside_changes_is_read_again() {
    swapped_in_the_order_of_gh_ost(STANDARD.turn().await).await;
}

/// The statements of gh-ost need no program, so each machine and each server runs them.
pub async fn swapped_in_the_order_of_gh_ost(turn: Turn<'static>) {
    a_table_that_is_altered_is_read_again(turn, async |endpoint| {
        let mut connection = endpoint.connect(&[]).await.expect("it answers");
        let columns = columns_of(&mut connection, DATABASE, NAME).await.expect("it answers");
        let copy = GhostCopy {
            database: DATABASE.to_owned(),
            table: NAME.to_owned(),
            key: "user_id".to_owned(),
            columns,
            alter: ALTER.to_owned(),
        };
        copy.run(endpoint).await.expect("the statements are right");
    })
    .await;
}

/// Has a table altered on a server, beside changes of that table and of another.
async fn a_table_that_is_altered_is_read_again(turn: Turn<'static>, alter: impl AsyncFnOnce(&Endpoint)) {
    let installation = Installation::set_up(turn, &Plan::small()).await;
    let daemon = installation.run();
    let rows: Vec<String> =
        (1_000..6_000).map(|user| format!("({user}, 'name', '1990-01-{:02}')", user % 28 + 1)).collect();
    let filled = format!("INSERT INTO {TABLE} (user_id, user_name, birthday) VALUES {}", rows.join(","));
    installation.execute(SOURCE, filled).await;
    until_derived(&installation, 5_992).await;
    daemon.until_loaded(&[SOURCE]).await;
    let before = versions(&installation).await;
    let endpoint = Endpoint::admin(installation.stack(), SOURCE).expect("a server of the stack");
    let changing = async {
        for user in 1..200 {
            insert(&installation, SOURCE, TABLE, user).await;
            insert(&installation, SOURCE, OTHER, 10_000 + user).await;
            let update =
                format!("UPDATE {TABLE} SET birthday = '1991-02-03' WHERE user_id = {}", 1_000 + user);
            installation.execute(SOURCE, update).await;
            if user % 5 == 0 {
                let delete = format!("DELETE FROM {TABLE} WHERE user_id = {}", user - 1);
                installation.execute(SOURCE, delete).await;
            }
        }
    };
    tokio::join!(alter(&endpoint), changing);
    let column = format!("SHOW COLUMNS FROM {TABLE} LIKE 'note'");
    let altered = installation.admin(SOURCE).await.rows::<mysql_async::Row>("look for it", column).await;
    assert_eq!(altered.expect("it answers").len(), 1, "the altered table has taken the name");
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

/// Runs a command to its end beside the changes.
async fn finish(mut command: Command) {
    // The changes go on meanwhile, so the wait has a thread of its own.
    let output = tokio::task::spawn_blocking(move || command.output()).await;
    let output = output.expect("it does not panic").expect("the tool runs");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

fn command(tool: &Program) -> Command {
    let mut command = Command::new(&tool.file);
    command.envs(tool.environment.iter().map(|(name, value)| (name, value)));
    command
}

fn layout() -> Layout {
    Layout::find().expect("the tests run in a checkout")
}
