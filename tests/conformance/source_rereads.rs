//! Changes that row events do not show: the stream announces a reread of the table, leaves out the rows of that
//! transaction, and goes on.

use std::fs;

use anabranch_pipeline::error::Code;
use anabranch_pipeline::ports::BinlogStart;
use mysql_async::prelude::Queryable;

use crate::source::{Database, SourceProbe};

on_each_mariadb!(
    tables_that_rows_came_to_or_left_by_name_are_read_again,
    a_table_that_loses_a_partition_or_gets_another_tablespace_is_read_again,
    values_that_a_statement_changes_are_read_again,
    rows_beside_a_change_by_text_are_left_out,
    a_table_that_does_not_fit_is_read_again_and_others_go_on,
    rows_of_a_versioned_table_are_left_out_and_others_go_on,
    rows_of_a_table_without_transactions_are_left_out_and_others_go_on,
    a_branch_that_was_not_read_has_every_table_read_again,
    rows_that_a_foreign_key_changes_are_read_again,
);

/// The tests of this file on MySQL, where the machine has it.
macro_rules! on_mysql {
    ($($test:ident),* $(,)?) => {
        mod mysql {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    if let Some(database) = crate::source::Database::mysql_alone() {
                        super::$test(database).await;
                    }
                }
            )*
        }
    };
}

on_mysql!(
    tables_that_rows_came_to_or_left_by_name_are_read_again,
    a_table_that_loses_a_partition_or_gets_another_tablespace_is_read_again,
    values_that_a_statement_changes_are_read_again,
    rows_beside_a_change_by_text_are_left_out,
    a_table_that_does_not_fit_is_read_again_and_others_go_on,
    a_branch_that_was_not_read_has_every_table_read_again,
    rows_that_a_foreign_key_changes_come_as_rows,
);

/// Runs the statements and checks the later changes, also of streams that resume anywhere in them.
async fn expect(database: &Database, probe: &mut SourceProbe, statements: &[&str], expected: &[&str]) {
    let before = probe.seen.len();
    database.run(statements).await;
    probe.until_end(database).await;
    assert_eq!(probe.texts()[before..], *expected, "{statements:?}");
    database.assert_resumes_behind_each_batch(probe).await;
}

async fn tables_that_rows_came_to_or_left_by_name_are_read_again(database: Database) {
    let database = database.with_tables().await;
    let mut probe = database.read_latest().await;
    // The last step of an online schema change.
    let swap = [
        "INSERT INTO $0.t0 VALUES (1, '', NULL)",
        "CREATE TABLE $0._t0_new LIKE $0.t0",
        "ALTER TABLE $0._t0_new ADD COLUMN more INT",
        "INSERT INTO $0._t0_new SELECT *, 7 FROM $0.t0",
        "RENAME TABLE $0.t0 TO $0._t0_old, $0._t0_new TO $0.t0",
        "INSERT INTO $0.t0 VALUES (2, '', NULL, 8)",
        "DROP TABLE $0._t0_old",
    ];
    expect(&database, &mut probe, &swap, &["t0 + 1 NULL", "t0 again", "t0 + 2 NULL"]).await;
    let moves = [
        "RENAME TABLE $0.t1 TO $0.t9",
        "INSERT INTO $0.t9 VALUES (3, '', NULL)",
        "ALTER TABLE $0.t9 RENAME TO $0.away",
        "CREATE TABLE $0.t1 LIKE $0.away",
    ];
    let moved = ["t1 withdrawn", "t9 again", "t9 + 3 NULL", "t9 withdrawn"];
    expect(&database, &mut probe, &moves, &moved).await;
    let parts = [
        "CREATE TABLE $0.parts (user_id BIGINT UNSIGNED PRIMARY KEY, name VARCHAR(90), birthday DATE) \
         PARTITION BY RANGE (user_id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))",
        "INSERT INTO $0.parts VALUES (5, '', '2000-01-01')",
        "ALTER TABLE $0.parts EXCHANGE PARTITION p0 WITH TABLE $0.t1",
    ];
    expect(&database, &mut probe, &parts, &["t1 again"]).await;
}

async fn a_table_that_loses_a_partition_or_gets_another_tablespace_is_read_again(database: Database) {
    let database = database.with_tables().await;
    let mut probe = database.read_latest().await;
    let parts = [
        "CREATE TABLE $0.t7 (user_id BIGINT UNSIGNED PRIMARY KEY, birthday DATE) PARTITION BY RANGE (user_id) \
         (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20), \
         PARTITION p2 VALUES LESS THAN (30))",
        "INSERT INTO $0.t7 VALUES (5, NULL), (15, NULL), (25, NULL)",
        "ALTER TABLE $0.t7 DROP PARTITION p0",
        "ALTER TABLE $0.t7 TRUNCATE PARTITION p1",
        "INSERT INTO $0.t7 VALUES (26, NULL)",
    ];
    let inserted = ["t7 + 5 NULL", "t7 + 15 NULL", "t7 + 25 NULL"];
    let seen = [&inserted[..], &["t7 again", "t7 again", "t7 + 26 NULL"]].concat();
    expect(&database, &mut probe, &parts, &seen).await;

    // The table loses its rows, and gets them back from a copy of its files.
    database.run(&["INSERT INTO $0.t0 VALUES (1, '', NULL)"]).await;
    let files = database.server().folder().join("db").join(format!("{}0", database.prefix));
    let mut exporting = database.admin().await;
    let export = format!("FLUSH TABLES {}0.t0 FOR EXPORT", database.prefix);
    exporting.query_drop(export).await.unwrap();
    let copies =
        ["ibd", "cfg"].map(|ending| (files.join(format!("t0.{ending}")), format!("t0_copy.{ending}")));
    for (file, copy) in &copies {
        fs::copy(file, files.join(copy)).unwrap();
    }
    exporting.query_drop("UNLOCK TABLES").await.unwrap();
    database.run(&["ALTER TABLE $0.t0 DISCARD TABLESPACE"]).await;
    for (file, copy) in &copies {
        fs::rename(files.join(copy), file).unwrap();
    }
    let imported = ["ALTER TABLE $0.t0 IMPORT TABLESPACE", "INSERT INTO $0.t0 VALUES (2, '', NULL)"];
    expect(&database, &mut probe, &imported, &["t0 + 1 NULL", "t0 again", "t0 again", "t0 + 2 NULL"]).await;
    let rows = format!("SELECT CAST(COUNT(*) AS CHAR) FROM {}0.t0", database.prefix);
    assert_eq!(database.ask(&rows).await, "2");
}

async fn values_that_a_statement_changes_are_read_again(database: Database) {
    let database = database.with_tables().await;
    let mut probe = database.read_latest().await;
    let narrowed = [
        "INSERT INTO $0.t0 VALUES (1, '', '2000-01-01')",
        "ALTER TABLE $0.t0 ADD x DATE",
        "ALTER TABLE $0.t0 DROP birthday, CHANGE x birthday DATE",
        "INSERT INTO $0.t0 (user_id, birthday) VALUES (2, '2000-01-02')",
    ];
    let seen = ["t0 + 1 2000-01-01", "t0 again", "t0 + 2 2000-01-02"];
    expect(&database, &mut probe, &narrowed, &seen).await;
}

async fn rows_beside_a_change_by_text_are_left_out(database: Database) {
    let database = database.with_tables().await;
    let mut probe = database.read_latest().await;
    let mixed = [
        "SET SESSION binlog_format = MIXED",
        "BEGIN",
        "INSERT INTO $0.t0 VALUES (10, '', NULL)",
        // These are unsafe by text, so they come as rows.
        "INSERT INTO $0.t0 VALUES (11, UUID(), NULL)",
        "INSERT INTO $0.t1 VALUES (12, UUID(), NULL)",
        "COMMIT",
        "INSERT INTO $0.t0 VALUES (13, UUID(), NULL)",
    ];
    expect(&database, &mut probe, &mixed, &["t1 + 12 NULL", "t0 again", "t0 + 13 NULL"]).await;
    let all = ["SET SESSION binlog_format = STATEMENT", "DELETE FROM $0.t0", "DELETE FROM $0.other"];
    expect(&database, &mut probe, &all, &["t0 again"]).await;
}

async fn a_table_that_does_not_fit_is_read_again_and_others_go_on(database: Database) {
    let database = database.with_tables().await;
    let mut probe = database.read_latest().await;
    let unfit = [
        "INSERT INTO $0.t0 VALUES (1, '', NULL)",
        "ALTER TABLE $0.t0 RENAME COLUMN birthday TO born",
        "BEGIN",
        "INSERT INTO $0.t0 VALUES (2, '', NULL)",
        "INSERT INTO $0.t1 VALUES (3, '', NULL)",
        "COMMIT",
        "UPDATE $0.t0 SET born = '2000-01-01' WHERE user_id = 1",
        "ALTER TABLE $0.t0 RENAME COLUMN born TO birthday",
        "INSERT INTO $0.t0 VALUES (4, '', '2000-01-04')",
    ];
    let seen = ["t0 + 1 NULL", "t1 + 3 NULL", "t0 again", "t0 again", "t0 + 4 2000-01-04"];
    expect(&database, &mut probe, &unfit, &seen).await;
}

async fn rows_of_a_versioned_table_are_left_out_and_others_go_on(database: Database) {
    let database = database.with_tables().await;
    let mut probe = database.read_latest().await;
    let versioned = [
        "INSERT INTO $0.t0 VALUES (1, '', NULL)",
        "ALTER TABLE $0.t0 ADD SYSTEM VERSIONING",
        "BEGIN",
        "UPDATE $0.t0 SET birthday = '2000-01-01'",
        "INSERT INTO $0.t1 VALUES (3, '', NULL)",
        "COMMIT",
        "DELETE FROM $0.t0",
        "ALTER TABLE $0.t0 DROP SYSTEM VERSIONING",
        "INSERT INTO $0.t0 VALUES (4, '', '2000-01-04')",
    ];
    let again = "t0 again";
    let seen = ["t0 + 1 NULL", again, "t1 + 3 NULL", again, again, again, "t0 + 4 2000-01-04"];
    expect(&database, &mut probe, &versioned, &seen).await;
    // Where the columns of the history have other names, the statement says so, and later the server.
    database
        .run(&[
            "CREATE TABLE $0.t2 (user_id BIGINT UNSIGNED PRIMARY KEY, birthday DATE, \
             `first` TIMESTAMP(6) GENERATED ALWAYS AS ROW START, `last` TIMESTAMP(6) GENERATED ALWAYS AS ROW END, \
             PERIOD FOR SYSTEM_TIME (`first`, `last`)) WITH SYSTEM VERSIONING",
            "INSERT INTO $0.t2 (user_id, birthday) VALUES (5, NULL)",
        ])
        .await;
    probe.until_end(&database).await;
    assert_eq!(probe.texts()[seen.len()..], ["t2 again", "t2 again"]);
    let mut later = database.read_latest().await;
    database.run(&["UPDATE $0.t2 SET birthday = '2000-01-05'"]).await;
    later.until_end(&database).await;
    assert_eq!(later.texts(), ["t2 again"]);
}

async fn rows_of_a_table_without_transactions_are_left_out_and_others_go_on(database: Database) {
    let database = database.with_tables().await;
    let mut probe = database.read_latest().await;
    database
        .run(&[
            "INSERT INTO $0.t0 VALUES (1, '', NULL)",
            "ALTER TABLE $0.t0 ENGINE = MyISAM",
            "INSERT INTO $0.t0 VALUES (2, '', NULL)",
        ])
        .await;
    probe.until_end(&database).await;
    assert_eq!(probe.texts(), ["t0 + 1 NULL", "t0 again", "t0 again"]);
    // This stream knows the engine from the server alone.
    let mut later = database.read_latest().await;
    database
        .run(&[
            "BEGIN",
            "INSERT INTO $0.t1 VALUES (3, '', NULL)",
            "INSERT INTO $0.t0 VALUES (4, '', NULL)",
            "ROLLBACK",
            "ALTER TABLE $0.t0 ENGINE = InnoDB",
            "INSERT INTO $0.t0 VALUES (5, '', NULL)",
        ])
        .await;
    probe.until_end(&database).await;
    later.until_end(&database).await;
    assert_eq!(probe.texts()[3..], ["t0 again", "t0 + 5 NULL"]);
    assert_eq!(later.texts(), ["t0 again", "t0 + 5 NULL"]);
}

async fn a_branch_that_was_not_read_has_every_table_read_again(database: Database) {
    let database = database.with_tables().await;
    let prepare = ["XA START 'b'", "INSERT INTO $0.t0 VALUES (2, '', NULL)", "XA END 'b'", "XA PREPARE 'b'"];
    database.run(&prepare).await;
    let mut probe = database.read(BinlogStart::Latest).await;
    let decided = ["XA COMMIT 'b'", "INSERT INTO $0.t1 VALUES (2, '', NULL)"];
    // Without a name: for every table of the entity.
    expect(&database, &mut probe, &decided, &[" again", "t1 + 2 NULL"]).await;
}

/// A captured child with some rows, whose foreign key deletes and changes them with their parents.
async fn with_child(database: Database) -> Database {
    let database = database.with_tables().await;
    database
        .run(&[
            "CREATE TABLE $0.parent (id BIGINT UNSIGNED PRIMARY KEY, note INT) ENGINE=InnoDB",
            "ALTER TABLE $0.t1 ADD CONSTRAINT child FOREIGN KEY (user_id) REFERENCES $0.parent (id) \
             ON DELETE CASCADE ON UPDATE CASCADE",
            "INSERT INTO $0.parent VALUES (1, 0), (2, 0), (3, 0), (4, 0), (5, 0)",
            "INSERT INTO $0.t1 VALUES (1, '', NULL), (2, '', NULL), (3, '', NULL), (4, '', NULL)",
        ])
        .await;
    database
}

async fn rows_that_a_foreign_key_changes_are_read_again(database: Database) {
    let database = with_child(database).await;
    let mut probe = database.read_latest().await;
    let deleted = ["DELETE FROM $0.parent WHERE id = 1", "UPDATE $0.parent SET id = 20 WHERE id = 2"];
    expect(&database, &mut probe, &deleted, &["t1 again", "t1 again"]).await;
    // One record a transaction, and without the rows that the transaction wrote itself.
    let together = [
        "BEGIN",
        "UPDATE $0.t1 SET birthday = '2000-01-03' WHERE user_id = 3",
        "INSERT INTO $0.t0 VALUES (9, '', NULL)",
        "DELETE FROM $0.parent WHERE id = 3",
        "DELETE FROM $0.parent WHERE id = 4",
        "COMMIT",
        "INSERT INTO $0.t1 VALUES (5, '', NULL)",
    ];
    expect(&database, &mut probe, &together, &["t0 + 9 NULL", "t1 again", "t1 + 5 NULL"]).await;

    let mut probe = database.read_latest_that_stops().await;
    database.run(&["DELETE FROM $0.parent WHERE id = 5"]).await;
    let fault = probe.until_fault(Code::BinlogStatement).await;
    assert!(fault.to_string().contains("foreign key"), "{fault}");
}

/// MySQL 9.6 and later log the rows of children. The map of a child is there without a row when none changed.
async fn rows_that_a_foreign_key_changes_come_as_rows(database: Database) {
    let database = with_child(database).await;
    let mut probe = database.read_latest().await;
    let shown = [
        "DELETE FROM $0.parent WHERE id = 1",
        "UPDATE $0.parent SET note = 7 WHERE id = 2",
        "UPDATE $0.parent SET id = 30 WHERE id = 3",
    ];
    let seen = ["t1 - 1 NULL", "t1 - 3 NULL", "t1 + 30 NULL"];
    expect(&database, &mut probe, &shown, &seen).await;
    assert_eq!(probe.take_unseen(), 0);
}
