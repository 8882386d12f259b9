//! Tables that are altered or dropped while a reconciliation reads them: it names the unread ones and leaves them
//! alone, and the next reconciliation that can read them repairs them.

use anabranch_demo::{Connection, WorkloadOptions};
use anabranch_tests::{Daemon, Installation, Plan, seed, until};
use serde_json::Value as Json;

use crate::STANDARD;
use crate::reconciliations::{drift, reconcile, store};

/// A table with a birthday of type DATE; both tables are in the first unit of a reconciliation.
const ALTERED: &str = "user_03.user_000";
const OTHER: &str = "user_00.user_000";
/// A user of each table, both born on the third of January.
const USERS: [(&str, u64); 2] = [(ALTERED, 77_000_001), (OTHER, 77_000_002)];
/// The derived table of both users.
const DERIVED: &str = "birthday_00.birthday_0103";
const RENAME: &str = "ALTER TABLE user_03.user_000 CHANGE COLUMN birthday born DATE";
const RENAME_BACK: &str = "ALTER TABLE user_03.user_000 CHANGE COLUMN born birthday DATE";

async fn filled() -> (Installation<'static>, Daemon) {
    let mut installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let text = format!("{}\n[reconcile]\nlane_wait_seconds = 20\n", installation.configuration_text());
    installation.write_configuration_text(&text);
    let daemon = installation.run();
    daemon.until_loaded(&["source-a", "source-b"]).await;
    let mut workload = installation.workload(WorkloadOptions::new(seed("tables that change at night")));
    workload.insert_rows(600).await.unwrap();
    delete_odd_dates(&installation).await;
    insert_users(&installation).await;
    (installation, daemon)
}

/// Deletes rows of days that some months lack. MariaDB makes no DATE of the text `2021-11-31`, whatever its mode.
async fn delete_odd_dates(installation: &Installation<'_>) {
    let delete = format!("DELETE FROM {ALTERED} WHERE RIGHT(birthday, 2) > '28'");
    installation.execute("source-a", delete).await;
}

async fn insert_users(installation: &Installation<'_>) {
    for (table, user) in USERS {
        let insert = format!("REPLACE INTO {table} (user_id, user_name, birthday)");
        installation.execute("source-a", format!("{insert} VALUES ({user}, 'x', '1990-01-03')")).await;
    }
    installation.expect_equal().await;
}

/// Deletes both users from the derived table by hand.
async fn lose(installation: &Installation<'_>) {
    let users = USERS.map(|(_, user)| user.to_string()).join(", ");
    installation.execute("target", format!("DELETE FROM {DERIVED} WHERE user_id IN ({users})")).await;
}

/// A connection that accepts any date: some birthdays are in no calendar.
async fn alterer(installation: &Installation<'_>) -> Connection {
    let mut connection = installation.admin("source-a").await;
    connection
        .execute("allow", "SET SESSION sql_mode = 'STRICT_TRANS_TABLES,ALLOW_INVALID_DATES'")
        .await
        .unwrap();
    connection
}

async fn alter(installation: &Installation<'_>, statement: &str) {
    alterer(installation).await.execute("alter", statement).await.unwrap();
}

/// Runs a statement while a reconciliation waits after its first scan; returns the report.
async fn altered_past_a_scan(installation: &Installation<'_>, statement: &str) -> Json {
    let armed = [("ANABRANCH_FAILPOINT", "reconciliation-scanned")];
    let mut reconciliation = installation.start(&["reconcile", "--now"], &armed);
    reconciliation.until_failpoint("reconciliation-scanned").await;
    alter(installation, statement).await;
    reconciliation.resume();
    reconciliation.wait().expect("the reconciliation ends");
    installation.command(&["reconcile", "show", "--json"]).await.expect_success().json()
}

/// Alters the table while a reconciliation's chunk waits for it, with an older snapshot; returns the report.
async fn altered_in_a_scan(installation: &Installation<'_>, alter: &str) -> Json {
    let (mut locker, mut observer) = (alterer(installation).await, installation.admin("source-a").await);
    locker.execute("lock", format!("LOCK TABLES {ALTERED} WRITE")).await.unwrap();
    let altering = async {
        until("the reconciliation waits for the table", async || is_waited_for(&mut observer).await).await;
        locker.execute("alter", alter).await.unwrap();
        locker.execute("unlock", "UNLOCK TABLES").await.unwrap();
    };
    tokio::join!(reconcile(installation, &[]), altering).0.1
}

async fn is_waited_for(observer: &mut Connection) -> bool {
    let waiting = "SELECT COUNT(*) FROM information_schema.PROCESSLIST \
        WHERE STATE LIKE 'Waiting for table metadata lock%' AND INFO LIKE '%FORCE INDEX%'";
    observer.first::<u64>("look for who waits", waiting).await.unwrap() > Some(0)
}

/// Number of drifted rows, and of repairs that were confirmed.
fn mended(report: &Json) -> (u64, u64) {
    let birthdays = store(report, "birthday");
    (drift(birthdays), birthdays["confirmed"].as_u64().unwrap())
}

/// Expects the verdict and the repairs; each reason for unread rows must contain `named`.
fn expect(report: &Json, verdict: &str, of: (u64, u64), named: &str) {
    assert_eq!((&report["verdict"], mended(report)), (&verdict.into(), of), "{report}");
    let reasons = store(report, "birthday")["incomplete"].as_array().unwrap();
    assert_eq!(reasons.is_empty(), named.is_empty(), "{report}");
    assert!(reasons.iter().all(|why| why.as_str().unwrap().contains(named)), "{named}: {report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reconciliation_of_a_table_that_is_altered_reads_it_or_names_it_and_judges_nothing_that_it_did_not_read()
 {
    let (installation, daemon) = filled().await;
    // Columns beside the captured ones, and another type that can be captured too: no row is missed.
    for change in [
        "ALTER TABLE user_03.user_000 ADD COLUMN note VARCHAR(9) NOT NULL DEFAULT 'x' FIRST",
        "ALTER TABLE user_03.user_000 MODIFY COLUMN birthday VARCHAR(20)",
    ] {
        lose(&installation).await;
        expect(&altered_past_a_scan(&installation, change).await, "repaired", (2, 2), "");
        installation.expect_equal().await;
    }
    lose(&installation).await;
    let back = "ALTER TABLE user_03.user_000 DROP COLUMN note, MODIFY COLUMN birthday DATE";
    expect(&altered_in_a_scan(&installation, back).await, "repaired", (2, 2), "");
    installation.expect_equal().await;

    // To a type that no birthday can have, and to another name: the other table is repaired, this one is left as it is.
    // (An integer would change year 0 to another year, which no event shows.)
    let retype = "ALTER TABLE user_03.user_000 MODIFY COLUMN birthday VARBINARY(20)";
    let retype_back = "ALTER TABLE user_03.user_000 MODIFY COLUMN birthday DATE";
    for (change, remedy, named) in [
        (retype, retype_back, "[source-column-unsupported] table user_03.user_000"),
        (RENAME, RENAME_BACK, "[source-column-missing] table user_03.user_000"),
    ] {
        lose(&installation).await;
        expect(&altered_past_a_scan(&installation, change).await, "incomplete", (1, 1), named);
        // Now the whole table is unread.
        expect(&reconcile(&installation, &[]).await.1, "incomplete", (0, 0), named);
        alter(&installation, remedy).await;
        expect(&reconcile(&installation, &[]).await.1, "repaired", (1, 1), "");
        installation.expect_equal().await;
    }
    lose(&installation).await;
    let named = "[source-column-missing] table user_03.user_000";
    expect(&altered_in_a_scan(&installation, RENAME).await, "incomplete", (1, 1), named);
    alter(&installation, RENAME_BACK).await;
    expect(&reconcile(&installation, &[]).await.1, "repaired", (1, 1), "");
    installation.expect_equal().await;
    assert!(daemon.is_running());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reconciliation_names_a_table_that_is_dropped_while_it_reads_and_the_next_one_is_clean() {
    let (installation, _daemon) = filled().await;
    let make = format!("CREATE TABLE {ALTERED} LIKE {OTHER}");
    let named = "table user_03.user_000: it does not exist";
    let drop = format!("DROP TABLE {ALTERED}");
    lose(&installation).await;
    expect(&altered_past_a_scan(&installation, &drop).await, "incomplete", (1, 1), named);
    expect(&reconcile(&installation, &[]).await.1, "clean", (0, 0), "");
    installation.execute("source-a", &make).await;
    insert_users(&installation).await;
    expect(&reconcile(&installation, &[]).await.1, "clean", (0, 0), "");

    lose(&installation).await;
    let report = altered_in_a_scan(&installation, &drop).await;
    expect(&report, "incomplete", (1, 1), named);
    expect(&reconcile(&installation, &[]).await.1, "clean", (0, 0), "");
}

/// Rows are written under the new name: they are left out, and the table is read again once it has its column. Until
/// then reconciliations are incomplete and name the table.
#[tokio::test(flavor = "multi_thread")]
async fn a_column_that_is_renamed_under_the_reader_makes_reconciliations_incomplete_until_it_is_back() {
    let (installation, daemon) = filled().await;
    lose(&installation).await;
    installation.execute("source-a", RENAME).await;
    let insert =
        "INSERT INTO user_03.user_000 (user_id, user_name, born) VALUES (77000003, 'x', '1990-01-03')";
    installation.execute("source-a", insert).await;
    let source = ["source=\"source-a\""];
    until("a lane owes the table", async || daemon.metric("anabranch_refresh_rereads", &source).await > 0.0)
        .await;
    let (_, report) = reconcile(&installation, &[]).await;
    assert_eq!(&report["verdict"], "incomplete", "{report}");
    let named = "[source-column-missing] table user_03.user_000";
    assert!(report.to_string().contains(named), "{report}");

    alter(&installation, RENAME_BACK).await;
    until("the table is read again", async || installation.derived(77_000_003).await.len() == 1).await;
    expect(&reconcile(&installation, &[]).await.1, "clean", (0, 0), "");
    assert_eq!(installation.compare().await.differences.total(), 0);
}
