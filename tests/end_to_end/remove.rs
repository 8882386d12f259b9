//! A source or a table that left for good goes by one command, in steps that can be cut off anywhere: derived rows,
//! documents and everything else under its name. Rows of other sources stay, and a source that comes back is read anew.

use anabranch_pipeline::failpoints;
use anabranch_tests::{Daemon, Finished, Installation, Plan, Search, Turn, until};
use serde_json::{Value as Json, json};

use crate::STANDARD;
use crate::documents::{INDEX, add, equal, with_documents};
use crate::faults::{insert, is_derived, until_derived};
use crate::reconciliations::reconcile;
use crate::unread::grants_that_hide_and_show;

const LEFT: &str = "source-b";
const TABLE: &str = "user_05.user_000";
const REMOVE: [&str; 5] = ["remove", "--source", LEFT, "--confirm", LEFT];

async fn remove(installation: &Installation<'_>, arguments: &[&str]) -> Finished {
    installation.command(&[&["remove"], arguments].concat()).await
}

async fn expect_refused(installation: &Installation<'_>, arguments: &[&str], why: &str) {
    let refused = remove(installation, arguments).await;
    assert_eq!(refused.exit_code, 1, "{refused:?}");
    assert!(refused.stderr.contains("[remove-refused]") && refused.stderr.contains(why), "{refused:?}");
}

async fn expect_clean(installation: &Installation<'_>) {
    let (ended, report) = reconcile(installation, &[]).await;
    assert_eq!((ended.exit_code, &report["verdict"]), (0, &json!("clean")), "{report}");
}

/// Ends a daemon in order, so that its leases are free.
fn end(daemon: &mut Daemon) {
    assert!(daemon.terminate().is_some_and(|status| status.success()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_left_goes_with_everything_of_its_name_however_often_the_command_is_killed() {
    let mut installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let mut daemon = installation.run();
    insert(&installation, "source-a", "user_00.user_000", 1).await;
    insert(&installation, LEFT, TABLE, 2).await;
    insert(&installation, LEFT, "user_06.user_000", 3).await;
    for user in 1..=3 {
        until_derived(&installation, user).await;
    }
    installation.command(&["pause", "--projection", "birthday", "--source", LEFT]).await.expect_success();
    expect_refused(&installation, &REMOVE[1..], "it is in the configuration").await;
    // A daemon still runs with a file that has the source.
    installation.configuration.sources.retain(|name| name != LEFT);
    installation.write_configuration();
    expect_refused(&installation, &REMOVE[1..], "holds the lease ").await;
    assert!(is_derived(&installation, 2).await);

    end(&mut daemon);
    let mut daemon = installation.run();
    daemon.until_ready().await;
    let planted =
        "INSERT INTO birthday_00.birthday_0101 (shard_id, user_id, birthday, lsn) VALUES (77, 9, '01-01', 5)";
    installation.execute("target", planted).await;
    expect_refused(&installation, &["--source", "source-x"], "no target, stream or register knows it").await;
    let wrong = ["--source", LEFT, "--confirm", "source-a"];
    expect_refused(&installation, &wrong, "its name was not confirmed").await;
    let rehearsed = remove(&installation, &["--source", LEFT, "--dry-run"]).await.expect_success().stdout;
    let stream = format!("stream {}_{LEFT} of ", installation.configuration.name);
    for part in [
        "store birthday: 2 derived rows would be removed",
        "2 lanes would be set back",
        "1 rows of other tables that no source has stay",
        "pauses: 1 would be removed",
        stream.as_str(),
        "stays: register epochs/source-b",
    ] {
        assert!(rehearsed.contains(part), "no {part}: {rehearsed}");
    }

    let with_log = [&REMOVE[..], &["--with-log"]].concat();
    for (number, name) in failpoints::REMOVING.iter().enumerate() {
        let mut killed = installation.start(&with_log, &[("ANABRANCH_FAILPOINT", name)]);
        killed.until_failpoint(name).await;
        killed.kill();
        assert_eq!(is_derived(&installation, 2).await, number == 0, "{name}");
    }
    for _ in 0..2 {
        installation.command(&with_log).await.expect_success();
        assert!(is_derived(&installation, 1).await && !is_derived(&installation, 3).await);
    }
    let name = format!("{}_{LEFT}", installation.configuration.name);
    assert!(installation.jetstream().await.get_stream(name).await.is_err(), "the stream is gone");
    let operations = installation.command(&["operations"]).await.expect_success().stdout;
    assert!(operations.contains("anabranch remove --source source-b --with-log"), "{operations}");
    assert!(is_derived(&installation, 9).await, "the row of another table stays");
    installation.execute("target", "DELETE FROM birthday_00.birthday_0101 WHERE shard_id = 77").await;
    expect_clean(&installation).await;

    end(&mut daemon);
    installation.configuration.sources.push(LEFT.to_owned());
    installation.write_configuration();
    installation.command(&["setup"]).await.expect_success();
    let _daemon = installation.run();
    until_derived(&installation, 2).await;
    installation.expect_equal().await;
    expect_table_to_go(&installation).await;
}

/// Drops a table of the source without a trace in its binlog, and removes its rows while the daemon runs.
async fn expect_table_to_go(installation: &Installation<'_>) {
    let confirmed = ["--table", TABLE, "--confirm", TABLE];
    expect_refused(installation, &confirmed, "source source-b has it, and it is captured").await;
    expect_refused(installation, &["--table", "user_05"], "it has no dot").await;
    let of_another_file = ["--table", TABLE, "--source", "source-x"];
    expect_refused(installation, &of_another_file, "source source-x is not in this configuration").await;
    expect_refused(installation, &["--table", "user_05.usr_000"], "no pattern of a source captures").await;
    installation.execute(LEFT, format!("SET SESSION sql_log_bin = 0; DROP TABLE {TABLE}")).await;
    assert!(is_derived(installation, 2).await, "no event says that the table is gone");
    let removed = remove(installation, &confirmed).await.expect_success().stdout;
    assert!(removed.contains("store birthday: 1 of 1 derived rows were removed"), "{removed}");
    let again = remove(installation, &confirmed).await.expect_success().stdout;
    assert!(again.contains("store birthday: 0 of 0 derived rows"), "{again}");
    assert!(again.contains("no derived rows are known under user_05.user_000 of source source-"), "{again}");
    assert!(!is_derived(installation, 2).await && is_derived(installation, 3).await);
    expect_clean(installation).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_gone_is_owed_no_longer_once_it_is_removed() {
    owed_until_removed(STANDARD.turn().await).await;
}

/// A lost grant hides the table, so lanes owe it. Then it is dropped without a trace in the binlog, and the grant is
/// back: no reading can end the wait. A person ends it while no daemon runs, and otherwise the lane's own proof does.
pub async fn owed_until_removed(turn: Turn<'static>) {
    const GONE: &str = "user_00.user_000";
    const PROVED: &str = "user_03.user_000";
    let installation = Installation::set_up(turn, &Plan::small()).await;
    let mut daemon = installation.run();
    insert(&installation, "source-a", GONE, 1).await;
    insert(&installation, "source-a", "user_01.user_000", 2).await;
    insert(&installation, "source-a", PROVED, 3).await;
    for user in [1, 2, 3] {
        until_derived(&installation, user).await;
    }
    daemon.until_loaded(&["source-a"]).await;

    let (hide, show) = grants_that_hide_and_show();
    installation.execute("source-a", hide.as_str()).await;
    hidden_is_owed(&installation, &daemon, GONE, "1").await;
    let remedy = format!("remove --table {GONE}");
    until("the log says what ends the wait", async || daemon.log().contains(&remedy)).await;
    let confirmed = ["--table", GONE, "--source", "source-a", "--confirm", GONE];
    expect_refused(&installation, &confirmed, "does not say whether it has the table").await;

    end(&mut daemon);
    installation.execute("source-a", format!("SET SESSION sql_log_bin = 0; DROP TABLE {GONE}")).await;
    installation.execute("source-a", show.as_str()).await;
    let rehearsal = ["--table", GONE, "--source", "source-a", "--dry-run"];
    let rehearsed = remove(&installation, &rehearsal).await.expect_success().stdout;
    assert!(rehearsed.contains("would no longer wait for a reading of the table"), "{rehearsed}");
    assert!(is_derived(&installation, 1).await, "nothing was done yet");
    let removed = remove(&installation, &confirmed).await.expect_success().stdout;
    assert!(removed.contains("no longer waits for a reading of the table"), "{removed}");
    assert!(!is_derived(&installation, 1).await && is_derived(&installation, 2).await);

    let daemon = installation.run();
    daemon.until_loaded(&["source-a"]).await;
    let owed = async || daemon.metric("anabranch_refresh_rereads", &[]).await;
    until("no lane owes a table", async || owed().await == 0.0).await;
    installation.execute("source-a", hide).await;
    hidden_is_owed(&installation, &daemon, PROVED, "3").await;
    installation.execute("source-a", format!("SET SESSION sql_log_bin = 0; DROP TABLE {PROVED}")).await;
    assert!(is_derived(&installation, 3).await, "a hidden table keeps its rows");
    installation.execute("source-a", show).await;
    until("the lane has a proof", async || !is_derived(&installation, 3).await).await;
    until("no lane owes a table", async || owed().await == 0.0).await;
    assert!(is_derived(&installation, 2).await);
}

/// Has a key of a hidden table repaired: the table becomes one that a lane owes.
async fn hidden_is_owed(installation: &Installation<'_>, daemon: &Daemon, table: &str, key: &str) {
    let repair =
        ["refresh", "--projection", "birthday", "--source", "source-a", "--table", table, "--key", key];
    installation.command(&repair).await.expect_success();
    let owed = async || daemon.metric("anabranch_refresh_rereads", &[]).await > 0.0;
    until("a lane owes the table", owed).await;
}

/// The source has another name from some moment on, so its rows and documents exist twice until the old name goes.
#[tokio::test(flavor = "multi_thread")]
async fn documents_and_tombstones_of_a_source_that_left_go_and_those_of_others_stay() {
    let mut installation = with_documents().await;
    let mut daemon = installation.run();
    add(&installation, 0, 10).await;
    equal(&installation, "first devices").await;
    installation.execute("source-a", "DELETE FROM inventory_0.serial_code_01 WHERE uuid = 3").await;
    insert(&installation, "source-a", "user_00.user_000", 1).await;
    equal(&installation, "a deleted device").await;
    until_derived(&installation, 1).await;
    end(&mut daemon);

    let text = std::fs::read_to_string(installation.configuration_file()).unwrap();
    let text = text.replace("name = \"source-a\"", "name = \"source-c\"");
    installation.write_configuration_text(&text);
    installation.command(&["setup"]).await.expect_success();
    let _daemon = installation.run();
    let search = Search::of(installation.stack());
    until("the new name has all devices too", async || search.count(INDEX).await == 18).await;
    until("the new name has all users too", async || users(&installation).await == Some(2)).await;

    let arguments = ["--source", "source-a", "--dry-run", "--json"];
    let rehearsed = remove(&installation, &arguments).await.expect_success().json();
    let rows = |store: &str| {
        let stores = rehearsed["stores"].as_array().unwrap();
        stores.iter().find(|known| known["store"] == store).map(|known| known["rows"].clone())
    };
    assert_eq!((rows("documents"), rows("birthday")), (Some(json!(9)), Some(json!(1))), "{rehearsed}");
    assert_eq!((&rehearsed["tombstones"], &rehearsed["dry_run"]), (&json!(1), &json!(true)), "{rehearsed}");
    let confirmed = ["--source", "source-a", "--confirm", "source-a"];
    remove(&installation, &confirmed).await.expect_success();
    assert_eq!((search.count(INDEX).await, users(&installation).await), (9, Some(1)));
    let of_old_name: Json = json!({ "term": { "source": "source-a" } });
    assert_eq!(search.find(INDEX, of_old_name).await.len(), 0, "no tombstone is left");
    equal(&installation, "the other name has every device").await;
    expect_clean(&installation).await;

    let table = "inventory_0.serial_code_00";
    installation.execute("source-a", format!("SET SESSION sql_log_bin = 0; DROP TABLE {table}")).await;
    let confirmed = ["--table", table, "--source", "source-c", "--confirm", table];
    let removed = remove(&installation, &confirmed).await.expect_success().stdout;
    assert!(removed.contains("store documents: 5 of 5 derived rows were removed"), "{removed}");
    assert_eq!(search.count(INDEX).await, 4);
}

async fn users(installation: &Installation<'_>) -> Option<u64> {
    let sql = "SELECT COUNT(*) FROM birthday_00.birthday_0101";
    installation.admin("target").await.first::<u64>("count rows", sql).await.unwrap()
}
