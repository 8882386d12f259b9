//! Derived rows and documents that belong to no table of a source: a reconciliation continues beside them and reports
//! them, and `reconcile remove-foreign` removes only them.

use std::fs;

use anabranch_schemas::shard::ShardId;
use anabranch_tests::{Installation, Search, blocking};
use reqwest::Method;
use serde_json::{Value as Json, json};

use crate::documents::{INDEX, add, equal, with_documents};
use crate::faults::{insert, until_derived};
use crate::reconciliations::{drift, reconcile, store};

const STORES: [&str; 4] = ["--store", "birthday", "--store", "documents"];
/// A number above every possible shard number.
const BEYOND: u64 = 1 << 63;

async fn rows(installation: &Installation<'_>) -> Option<u64> {
    let sql = "SELECT COUNT(*) FROM birthday_00.birthday_0101";
    installation.admin("target").await.first::<u64>("count rows", sql).await.unwrap()
}

fn foreign(report: &Json, name: &str) -> Vec<(String, String)> {
    let text = |row: &Json, field: &str| row[field].as_str().unwrap().to_owned();
    let listed = store(report, name)["foreign"].as_array().unwrap();
    assert_eq!(store(report, name)["foreign_rows"], listed.len(), "{report}");
    listed.iter().for_each(|row| assert_eq!(text(row, "key_hash").len(), 16, "{row}"));
    listed.iter().map(|row| (text(row, "table"), text(row, "shard"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_belongs_to_nobody_ends_no_reconciliation_and_goes_by_the_command_alone() {
    let installation = with_documents().await;
    let _daemon = installation.run();
    add(&installation, 0, 40).await;
    for user in 1..=20 {
        insert(&installation, "source-a", "user_00.user_000", user).await;
    }
    until_derived(&installation, 20).await;
    equal(&installation, "devices").await;
    let (ended, report) = reconcile(&installation, &STORES).await;
    assert_eq!((ended.exit_code, &report["verdict"]), (0, &json!("clean")), "{report}");

    // Beside the foreign rows some own rows are missing or wrong.
    let planted = format!(
        "INSERT INTO birthday_00.birthday_0101 (shard_id, user_id, birthday, lsn) VALUES \
         (77, 1, '01-01', 5), (77, 2, '01-01', 5), ({BEYOND}, 1, '01-01', 5); \
         DELETE FROM birthday_00.birthday_0101 WHERE user_id = 7 AND shard_id NOT IN (77, {BEYOND})"
    );
    installation.execute("target", planted).await;
    let search = Search::of(installation.stack());
    let whole =
        json!({ "source": "x", "shard_id": "77", "uuid": "9", "lane": 0, "lsn": 5, "withdrawn": false });
    for (id, document) in [("by-hand", json!({ "sku_code": "a secret" })), ("77-9", whole)] {
        search.ask(Method::PUT, &format!("{INDEX}-v1/_doc/{id}?refresh=true"), document).await;
    }
    let stored = search.documents(INDEX).await;
    let ours = stored.keys().find(|id| id.ends_with("-11")).unwrap().clone();
    search.ask(Method::DELETE, &format!("{INDEX}-v1/_doc/{ours}?refresh=true"), Json::Null).await;

    for round in 0..2 {
        let (ended, report) = reconcile(&installation, &STORES).await;
        assert_eq!((ended.exit_code, &report["verdict"]), (3, &json!("incomplete")), "{report}");
        let table = |shard: &str| ("birthday_00.birthday_0101".to_owned(), shard.to_owned());
        assert_eq!(foreign(&report, "birthday"), [table("77"), table("77"), table(&BEYOND.to_string())]);
        let index = |shard: &str| (INDEX.to_owned(), shard.to_owned());
        assert_eq!(foreign(&report, "documents"), [index("77"), index("none")]);
        for name in ["birthday", "documents"] {
            let store = store(&report, name);
            let repaired = u64::from(round == 0);
            assert_eq!((drift(store), &store["repaired"]), (repaired, &json!(repaired)), "{store}");
            let command = format!("reconcile remove-foreign --store {name} --dry-run");
            assert!(store["incomplete"].to_string().contains(&command), "{store}");
        }
        assert!(!report.to_string().contains("a secret"));
    }
    assert!(search.documents(INDEX).await.contains_key(&ours), "what was wrong of ours");
    let text = installation.command(&["reconcile", "show"]).await.expect_success().stdout;
    assert!(text.contains("foreign    3 derived rows") && text.contains("shard_id none"), "{text}");

    let command = async |arguments: &[&str]| {
        let whole = [&["reconcile", "remove-foreign"], arguments].concat();
        installation.command(&whole).await.expect_success().stdout
    };
    let before = rows(&installation).await;
    let listed = command(&["--store", "birthday", "--dry-run"]).await;
    assert!(listed.ends_with("3 rows would be removed\n") && listed.lines().count() == 4, "{listed}");
    assert_eq!(rows(&installation).await, before);
    assert!(
        command(&["--store", "birthday", "--shard", "none"]).await.ends_with("0 of 0 rows were removed\n")
    );
    let removed = command(&["--store", "birthday", "--shard", &BEYOND.to_string()]).await;
    assert!(removed.ends_with("1 of 1 rows were removed\n"), "{removed}");
    assert!(command(&["--store", "birthday"]).await.ends_with("2 of 2 rows were removed\n"));
    assert!(command(&["--store", "documents"]).await.ends_with("2 of 2 rows were removed\n"));
    assert_eq!(rows(&installation).await, before.map(|rows| rows - 3));
    let (ended, report) = reconcile(&installation, &STORES).await;
    assert_eq!((ended.exit_code, &report["verdict"]), (0, &json!("clean")), "{report}");
    equal(&installation, "nothing else went").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_table_that_a_source_hides_or_of_a_source_that_does_not_answer_are_never_removed() {
    let installation = with_documents().await;
    let _daemon = installation.run();
    insert(&installation, "source-a", "user_00.user_000", 1).await;
    insert(&installation, "source-a", "user_01.user_000", 2).await;
    until_derived(&installation, 2).await;
    let (_, report) = reconcile(&installation, &STORES).await;
    assert_eq!(report["verdict"], "clean", "{report}");
    let before = rows(&installation).await;
    let refused = async |code: i32, why: &str| {
        let ended = installation.command(&["reconcile", "remove-foreign", "--store", "birthday"]).await;
        assert!(ended.exit_code == code && ended.stderr.contains(why), "{ended:?}");
    };

    // First one table that the reconciliation knew is hidden, then all tables.
    let account = "'anabranch_capture'@'127.0.0.1'";
    let grant = |pattern: &str| format!("GRANT SELECT ON `{pattern}`.* TO {account}");
    let revoke = |pattern: &str| format!("REVOKE SELECT ON `{pattern}`.* FROM {account}");
    installation.execute("source-a", format!("{}; {}", grant("user\\_00"), revoke("user\\_%"))).await;
    let (_, report) = reconcile(&installation, &STORES).await;
    assert_eq!(store(&report, "birthday")["foreign_rows"], 1, "{report}");
    let ended = installation.command(&["reconcile", "remove-foreign", "--store", "birthday"]).await;
    assert!(ended.expect_success().stdout.ends_with("0 of 0 rows were removed\n"));
    installation.execute("source-a", revoke("user\\_00")).await;
    refused(1, "shows no table of user").await;
    installation.execute("source-a", grant("user\\_%")).await;

    blocking(|| installation.server("source-a").kill().unwrap());
    refused(3, "source-unreachable").await;
    blocking(|| installation.server("source-a").restart().unwrap());
    assert_eq!(rows(&installation).await, before);
    let (_, report) = reconcile(&installation, &STORES).await;
    assert_eq!(report["verdict"], "clean", "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_table_that_no_pattern_captures_any_more_stay_and_are_not_foreign() {
    let mut installation = with_documents().await;
    let narrow = fs::read_to_string(installation.configuration_file()).unwrap();
    let old = "\n[[entities]]\nentity = \"user\"\ntables = \"user_old.user_{table:03}\"\n";
    installation.write_configuration_text(&format!("{narrow}{old}"));
    let copy = "CREATE DATABASE user_old; CREATE TABLE user_old.user_000 LIKE user_00.user_000";
    installation.execute("source-a", copy).await;
    let mut daemon = installation.run();
    for (user, table) in [(1, "user_00.user_000"), (2, "user_old.user_000")] {
        insert(&installation, "source-a", table, user).await;
        until_derived(&installation, user).await;
    }
    let (_, report) = reconcile(&installation, &STORES).await;
    assert_eq!(report["verdict"], "clean", "{report}");
    assert_eq!(rows(&installation).await, Some(2));

    daemon.kill();
    installation.free_leases().await;
    installation.write_configuration_text(&narrow);
    let _daemon = installation.run();
    let removed = async |arguments: &[&str]| {
        let whole = [&["reconcile", "remove-foreign", "--store", "birthday"], arguments].concat();
        installation.command(&whole).await.expect_success().stdout
    };
    let why = "table user_old.user_000 of source source-a was known in the reconciliation before, and is not \
               captured any more";
    assert!(removed(&[]).await.ends_with("0 of 0 rows were removed\n"), "no reconciliation came between");
    for (verdict, reasons) in [("incomplete", json!([why])), ("clean", json!([]))] {
        let (_, report) = reconcile(&installation, &STORES).await;
        let birthday = store(&report, "birthday");
        assert_eq!((&report["verdict"], &birthday["incomplete"]), (&json!(verdict), &reasons), "{report}");
        assert_eq!(birthday["foreign_rows"], 0, "{report}");
        assert!(removed(&[]).await.ends_with("0 of 0 rows were removed\n"), "{verdict}");
    }
    assert_eq!(rows(&installation).await, Some(2));

    // They go on the word of a person alone who names their shard.
    let shard = ShardId::of("source-a", "user_old", "user_000", 0).as_u64().to_string();
    assert!(removed(&["--shard", &shard]).await.ends_with("1 of 1 rows were removed\n"));
    assert_eq!(rows(&installation).await, Some(1));
}
