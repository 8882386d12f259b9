//! Alterations of a captured table, on each server: most pass, and those that change values unseen have the table read
//! again.

use anabranch_pipeline::error::Code;
use anabranch_pipeline::ports::{RowSource, SourceConnector};

use crate::ports::rows::{table_of, texts, whole};
use crate::source::{Database, SourceProbe};

on_each_server!(
    columns_that_are_added_moved_widened_or_narrowed_pass,
    a_type_that_cuts_values_without_strict_mode_is_read_again,
    generated_and_invisible_columns_are_captured_and_another_expression_is_read_again,
    new_tables_and_databases_of_a_pattern_are_captured_from_their_first_row,
);

/// Runs the statements and compares the changes that come of them.
async fn expect(database: &Database, probe: &mut SourceProbe, statements: &[&str], expected: &[&str]) {
    let before = probe.seen.len();
    database.run(statements).await;
    probe.until_end(database).await;
    assert_eq!(probe.texts()[before..], *expected, "{statements:?}");
}

/// Compares the rows of a table that a chunk holds.
async fn expect_rows(database: &Database, table: &str, expected: &[&str]) {
    let source = database.source();
    let table = table_of(&source, table).await;
    let chunks = whole(&source, &table, 100).await.unwrap();
    let found: Vec<String> = chunks.iter().flat_map(|chunk| texts(&table, chunk)).collect();
    assert_eq!(found, expected);
}

async fn columns_that_are_added_moved_widened_or_narrowed_pass(database: Database) {
    let database = database.with_tables().await;
    // Any change that is not shown would end this reader.
    let mut probe = database.read_latest_that_stops().await;
    let insert = |user: u32| format!("INSERT INTO $0.t0 (user_id, birthday) VALUES ({user}, '2000-01-01')");
    for (user, alter) in (1..).zip([
        "ALTER TABLE $0.t0 ADD COLUMN note VARCHAR(9) NOT NULL DEFAULT 'x' FIRST",
        "ALTER TABLE $0.t0 MODIFY birthday DATE AFTER note",
        "ALTER TABLE $0.t0 MODIFY user_id INT UNSIGNED NOT NULL",
        "ALTER TABLE $0.t0 MODIFY user_id BIGINT UNSIGNED NOT NULL FIRST",
        "ALTER TABLE $0.t0 MODIFY birthday VARCHAR(90)",
        "ALTER TABLE $0.t0 MODIFY birthday VARCHAR(10)",
        "ALTER TABLE $0.t0 MODIFY note VARCHAR(1), DROP COLUMN name",
        "ALTER TABLE $0.t0 DROP COLUMN note, ADD KEY (birthday)",
    ]) {
        let expected = format!("t0 + {user} 2000-01-01");
        expect(&database, &mut probe, &[alter, &insert(user)], &[&expected]).await;
    }
    assert!(database.source().check().await.is_empty());
    let all: Vec<String> = (1..9).map(|user| format!("{user} 2000-01-01")).collect();
    expect_rows(&database, "t0", &all.iter().map(String::as_str).collect::<Vec<_>>()).await;
}

async fn a_type_that_cuts_values_without_strict_mode_is_read_again(database: Database) {
    let database = database.with_tables().await;
    let mut probe = database.read_latest().await;
    let cut = [
        "INSERT INTO $0.t0 VALUES (1000000, '', '2000-01-01')",
        "SET SESSION sql_mode = ''",
        "ALTER TABLE $0.t0 MODIFY user_id SMALLINT UNSIGNED NOT NULL",
        "ALTER TABLE $0.t0 MODIFY name VARCHAR(2)",
        "INSERT INTO $0.t0 VALUES (2, '', '2000-01-02')",
    ];
    let seen = ["t0 + 1000000 2000-01-01", "t0 again", "t0 + 2 2000-01-02"];
    expect(&database, &mut probe, &cut, &seen).await;
    expect_rows(&database, "t0", &["2 2000-01-02", "65535 2000-01-01"]).await;
}

async fn generated_and_invisible_columns_are_captured_and_another_expression_is_read_again(
    database: Database,
) {
    let database = database.with_tables().await;
    let mut probe = database.read_latest().await;
    for (table, kind) in [("t2", "STORED"), ("t3", "VIRTUAL")] {
        let create = format!(
            "CREATE TABLE $0.{table} (user_id BIGINT UNSIGNED PRIMARY KEY, born DATETIME, \
             birthday DATE AS (DATE(born)) {kind})"
        );
        let insert = format!("INSERT INTO $0.{table} (user_id, born) VALUES (1, '2000-01-01 10:00:00')");
        let update = format!("UPDATE $0.{table} SET born = '2000-01-05 10:00:00'");
        expect(&database, &mut probe, &[&create, &insert], &[&format!("{table} + 1 2000-01-01")]).await;
        let warnings = database.source().warnings().await;
        let is_warned_of = |warning: &String| {
            let names = [format!("0.{table} is generated"), format!("({kind} GENERATED)")];
            names.iter().all(|name| warning.contains(name.as_str()))
        };
        assert_eq!(warnings.iter().any(is_warned_of), database.is_mariadb_11(), "{warnings:?}");
        if database.is_mariadb_11() {
            // Its images of updates and deletes have no generated column, whatever binlog_row_image says.
            for statement in [update, format!("DELETE FROM $0.{table}")] {
                database.run(&[&statement]).await;
                probe.until_fault(Code::SourceImageNotFull).await;
                probe = database.read_latest().await;
            }
            database.run(&[&format!("DROP TABLE $0.{table}")]).await;
            probe.until_end(&database).await;
            continue;
        }
        let updated = format!("{table} 1 2000-01-01 ~ 1 2000-01-05");
        expect(&database, &mut probe, &[&update], &[&updated]).await;
        // Every row has another birthday then, and no row event shows it.
        let alter =
            format!("ALTER TABLE $0.{table} MODIFY birthday DATE AS (DATE(born) + INTERVAL 1 DAY) {kind}");
        expect(&database, &mut probe, &[&alter], &[&format!("{table} again")]).await;
        expect_rows(&database, table, &["1 2000-01-06"]).await;
    }
    let invisible = [
        "INSERT INTO $0.t0 (user_id, birthday) VALUES (3, '2000-01-03')",
        "ALTER TABLE $0.t0 MODIFY birthday DATE INVISIBLE",
        "INSERT INTO $0.t0 (user_id, birthday) VALUES (1, '2000-01-01')",
        "ALTER TABLE $0.t0 MODIFY birthday DATE",
        "INSERT INTO $0.t0 (user_id, birthday) VALUES (2, '2000-01-02')",
    ];
    expect(
        &database,
        &mut probe,
        &invisible,
        &["t0 + 3 2000-01-03", "t0 + 1 2000-01-01", "t0 + 2 2000-01-02"],
    )
    .await;
    expect_rows(&database, "t0", &["1 2000-01-01", "2 2000-01-02", "3 2000-01-03"]).await;
    let faults = database.source().check().await;
    assert!(faults.is_empty(), "{:?}", faults.iter().map(|fault| fault.code()).collect::<Vec<Code>>());
}

async fn new_tables_and_databases_of_a_pattern_are_captured_from_their_first_row(database: Database) {
    let database = database.with_tables().await;
    let mut probe = database.read_latest().await;
    let made = [
        "CREATE TABLE $0.t7 LIKE $0.t0",
        "INSERT INTO $0.t7 VALUES (1, '', NULL)",
        "CREATE DATABASE $4",
        "CREATE TABLE $4.t0 (birthday DATE, more INT, user_id INT PRIMARY KEY)",
        "INSERT INTO $4.t0 VALUES ('2000-01-01', 7, 2)",
        "CREATE TABLE $4.none LIKE $4.t0",
        "INSERT INTO $4.none VALUES ('2000-01-01', 7, 3)",
    ];
    expect(&database, &mut probe, &made, &["t7 + 1 NULL", "t0 + 2 2000-01-01"]).await;
    let tables = database.source().tables().await.unwrap();
    let mut names: Vec<String> =
        tables.iter().map(|table| format!("{}.{}", table.database, table.table)).collect();
    names.sort();
    let expected = ["0.t0", "0.t1", "0.t7", "4.t0"].map(|name| format!("{}{name}", database.prefix));
    assert_eq!(names, expected);
}
