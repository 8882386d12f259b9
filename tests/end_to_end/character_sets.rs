//! A captured column stops being text under a running daemon: its source stops by name, no row is derived from its
//! bytes, and once it is text again a refresh ends the stop.

use anabranch_tests::{Daemon, Installation, Plan, TestDatabase};

use crate::STANDARD;

/// The table of `source-a` with uuids that are text.
const TABLE: &str = "inventory_1.serial_code_01";
/// A table that is not captured.
const MADE: &str = "inventory_1.made";

/// The derived uuids of devices in boxes.
async fn uuids(installation: &Installation<'_>) -> Vec<String> {
    let select = |table: u32| {
        format!("SELECT CONVERT(uuid USING utf8mb4) AS uuid FROM serial_code_other.mapping_{table:03}")
    };
    let all: Vec<String> = (0..Plan::serials().mapping_tables).map(select).collect();
    let sql = format!("SELECT uuid FROM ({}) AS devices ORDER BY uuid", all.join(" UNION ALL "));
    installation.admin("target").await.rows("look for devices", sql).await.unwrap()
}

async fn stops(daemon: &Daemon, expected: &str) {
    let is_stopped = |task: &serde_json::Value| task["state"] == "stopped";
    let reader = daemon.until_view("tasks", ("task", "reader/source-a"), is_stopped).await;
    assert_eq!(reader["code"], "source-schema-changed", "{reader}");
    let reported = reader["fault"].to_string();
    for text in [TABLE, expected, "refresh --projection", "restart --all"] {
        assert!(reported.contains(text), "{text}: {reported}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_column_that_is_no_text_any_more_stops_its_source_until_it_is_text_again() {
    let mut installation = Installation::set_up(STANDARD.turn().await, &Plan::serials()).await;
    installation.stop_at_unseen_changes();
    let daemon = installation.run();
    daemon.until_loaded(&["source-a", "source-b"]).await;
    let insert = |uuid: &str| format!("INSERT INTO {TABLE} SET uuid = {uuid}, box_no = 'BOX';");
    installation.execute("source-a", insert("'11'")).await;
    assert_eq!(installation.mapped(b"BOX").await.len(), 1);

    let (raw, value) = match TestDatabase::chosen() {
        TestDatabase::MySql => ("BINARY(16)", "x'310032'"),
        TestDatabase::MariaDb | TestDatabase::MariaDb11 => ("UUID", "UUID()"),
    };
    let anew = format!(
        "CREATE TABLE {MADE} LIKE {TABLE}; ALTER TABLE {MADE} MODIFY uuid {raw} NOT NULL; DROP TABLE {TABLE}; \
         CREATE TABLE {TABLE} LIKE {MADE};"
    );
    let bytes = "column uuid holds bytes that are not text";
    let rounds = [
        (format!("ALTER TABLE {TABLE} MODIFY uuid VARBINARY(64) NOT NULL;"), "'21'", bytes, &["11"][..]),
        (anew, value, bytes, &["11", "21"]),
        (
            format!("TRUNCATE TABLE {TABLE}; ALTER TABLE {TABLE} CONVERT TO CHARACTER SET utf32;"),
            "'21'",
            "column uuid has character set utf32",
            &["21"],
        ),
    ];
    for (alter, uuid, expected, before) in rounds {
        installation.execute("source-a", format!("{alter} {}", insert(uuid))).await;
        stops(&daemon, expected).await;
        let kept = uuids(&installation).await;
        assert!(kept.iter().all(|uuid| before.contains(&uuid.as_str())), "{alter}: {kept:?}");
        let text = format!(
            "ALTER TABLE {TABLE} CONVERT TO CHARACTER SET utf8mb4, MODIFY uuid VARCHAR(64) NOT NULL; \
             UPDATE {TABLE} SET uuid = '21' WHERE uuid <> '11'"
        );
        installation.execute("source-a", text).await;
        installation
            .command(&["refresh", "--projection", "mapping", "--source", "source-a"])
            .await
            .expect_success();
        installation.command(&["restart", "--all"]).await.expect_success();
        let devices = installation.mapped(b"BOX").await;
        assert!(devices.iter().any(|(_, device)| device == "21 4"), "{alter}: {devices:?}");
        installation.expect_equal().await;
    }
}
