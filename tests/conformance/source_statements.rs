//! Effects of statements in the binlog: they withdraw tables, pass, or stop the source by name.

use anabranch_pipeline::error::Code;
use mysql_async::prelude::Queryable;

use crate::source::{Database, DatabaseKind};

on_each_mariadb!(
    removed_tables_are_withdrawn_at_their_statement,
    an_alter_that_changes_captured_values_without_row_events_stops,
    a_partition_that_becomes_a_captured_table_stops,
    a_retyped_column_and_moved_tables_stop,
    children_of_foreign_keys_are_read_again_after_updates_and_deletes_alone,
);

/// Makes tests of functions on MySQL, where the machine can have it.
macro_rules! on_mysql {
    ($($test:ident),+ $(,)?) => {
        mod mysql {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                let kind = crate::source::DatabaseKind::MySql;
                let Some(database) = crate::source::Database::lent(kind).await else { return };
                super::$test(database).await;
            })+
        }
    };
}

on_mysql!(
    removed_tables_are_withdrawn_at_their_statement,
    an_alter_that_changes_captured_values_without_row_events_stops,
    a_retyped_column_and_moved_tables_stop,
);

fn is_mysql(database: &Database) -> bool {
    database.lent_as() == Some(DatabaseKind::MySql)
}

async fn removed_tables_are_withdrawn_at_their_statement(database: Database) {
    let database = database.with_tables().await;
    let replaced = match is_mysql(&database) {
        true => "DROP TABLE t1; CREATE TABLE t1 LIKE t0",
        false => "CREATE OR REPLACE TABLE t1 LIKE t0",
    };
    let mut stream = database.read_latest().await;
    database
        .run(&[
            "CREATE DATABASE $1",
            "CREATE TABLE $1.t5 LIKE $0.t0",
            "INSERT INTO $0.t0 VALUES (1, '', NULL)",
            "TRUNCATE $0.t0",
            "INSERT INTO $0.t0 VALUES (2, '', NULL)",
            "USE $0",
            // Temporary tables are in the binlog only in this mode.
            "SET SESSION binlog_format = MIXED",
            "CREATE TEMPORARY TABLE t1 (a INT)",
            "DROP TABLE t1",
            "SET SESSION binlog_format = ROW",
            replaced,
            "DROP TABLE IF EXISTS t0, `t1`, other",
            "DROP DATABASE $1",
            "DROP DATABASE $0",
        ])
        .await;
    stream.until_end(&database).await;
    assert_eq!(
        stream.texts(),
        [
            "t0 + 1 NULL",
            "t0 withdrawn",
            "t0 + 2 NULL",
            "t1 withdrawn",
            "t0 withdrawn",
            "t1 withdrawn",
            // A dropped database withdraws every table that it ever held.
            "t5 withdrawn",
            "t0 withdrawn",
            "t1 withdrawn",
        ]
    );
    assert!(stream.seen.is_sorted_by_key(|seen| seen.lsn));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_by_text_stops_when_its_table_is_captured() {
    let database = Database::with_flags(&[]).with_tables().await;
    let mut stream = database.read_latest_that_stops().await;
    database
        .run(&[
            "SET SESSION binlog_format = STATEMENT",
            "INSERT INTO $0.other VALUES (1, 'passes')",
            "DELETE FROM $0.other",
            "INSERT INTO $0.t0 VALUES (1, '', NULL)",
        ])
        .await;
    let fault = stream.until_fault(Code::BinlogStatement).await;
    assert!(fault.to_string().contains("0.t0"), "{fault}");
    assert_eq!(stream.texts(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn altered_tables_pass_while_the_captured_columns_remain() {
    let database = Database::shared().with_tables().await;
    let mut stream = database.read_latest_that_stops().await;
    database
        .run(&[
            "INSERT INTO $0.t0 VALUES (1, '', NULL)",
            "ALTER TABLE $0.t0 ADD COLUMN first BLOB FIRST, DROP COLUMN name, MODIFY birthday VARCHAR(20)",
            "INSERT INTO $0.t0 VALUES ('x', 2, '02-30')",
            "ALTER TABLE $0.t0 MODIFY user_id INT NOT NULL, ADD KEY (birthday), ENGINE = InnoDB",
            "ALTER TABLE $0.t0 RENAME COLUMN birthday TO born",
            "ALTER TABLE $0.t0 RENAME COLUMN born TO birthday",
            "ALTER IGNORE TABLE $0.other ADD UNIQUE (pad(9)), ADD SYSTEM VERSIONING",
            // A new or emptied table has no values to change.
            "CREATE TABLE $0.t2 (user_id INT, birthday TIMESTAMP NULL, note TEXT)",
            "ALTER TABLE $0.t2 MODIFY birthday DATETIME, CONVERT TO CHARACTER SET latin1",
        ])
        .await;
    stream.until_end(&database).await;
    assert_eq!(stream.texts(), ["t0 + 1 NULL", "t0 + 2 02-30"]);
    database
        .run(&[
            "ALTER TABLE $0.t0 CHANGE birthday born VARCHAR(20)",
            "INSERT INTO $0.t1 VALUES (3, '', NULL)",
        ])
        .await;
    stream.until_seen(3).await;
    database.run(&["INSERT INTO $0.t0 VALUES ('x', 4, NULL)"]).await;
    let fault = stream.until_fault(Code::SourceSchemaChanged).await;
    assert!(fault.to_string().contains("no column birthday"), "{fault}");
}

/// Statements, and a part of the fault with which the last one stops the reader.
const ALTERS: &[(&[&str], &str)] = &[
    (
        &["ALTER TABLE $0.t0 ADD x DATE", "ALTER TABLE $0.t0 DROP birthday, CHANGE x birthday DATE"],
        "birthday",
    ),
    (
        &[
            "ALTER TABLE $0.t0 ADD x DATE",
            "ALTER TABLE $0.t0 RENAME COLUMN x TO birthday, RENAME COLUMN birthday TO x",
        ],
        "captured name birthday given to another column (x)",
    ),
    (
        &[
            "ALTER TABLE $0.t0 CHANGE birthday old DATE, ADD x DATE",
            "ALTER TABLE $0.t0 CHANGE x birthday DATE",
        ],
        "captured name birthday given to another column (x)",
    ),
    (&["ALTER IGNORE TABLE $0.t0 ADD UNIQUE (birthday)"], "ALTER IGNORE"),
    (
        &["ALTER TABLE $0.t0 MODIFY birthday TIMESTAMP NULL", "INSERT INTO $0.t0 VALUES (7, '', NULL)"],
        "column birthday has another type (timestamp)",
    ),
    (
        &[
            "ALTER TABLE $0.t0 MODIFY user_id VARCHAR(20)",
            "INSERT INTO $0.t0 VALUES ('8', '', NULL)",
            "ALTER TABLE $0.t0 CONVERT TO CHARACTER SET latin1",
        ],
        "CONVERT TO CHARACTER SET",
    ),
    (
        &[
            "ALTER TABLE $0.t0 MODIFY user_id VARCHAR(20) CHARACTER SET latin1",
            "INSERT INTO $0.t0 VALUES ('8', '', NULL)",
            "ALTER TABLE $0.t0 MODIFY user_id VARCHAR(20) CHARACTER SET utf8mb4",
        ],
        "column user_id has another type (varchar CHARACTER SET utf8mb4)",
    ),
    (
        &[
            "DELETE FROM $0.t0",
            "ALTER TABLE $0.t0 MODIFY user_id VARCHAR(36)",
            "ALTER TABLE $0.t0 MODIFY user_id UUID",
        ],
        "column user_id has another type (uuid)",
    ),
    (
        &[
            "ALTER TABLE $0.t0 MODIFY user_id VARCHAR(36)",
            "INSERT INTO $0.t0 VALUES ('8', '', NULL)",
            "ALTER TABLE $0.t0 MODIFY user_id BINARY(36)",
        ],
        "column user_id has another type (binary)",
    ),
    (&["ALTER TABLE $0.t0 ENGINE = MyISAM"], "ENGINE = MyISAM"),
    (&["ALTER TABLE $0.t0 ADD SYSTEM VERSIONING"], "SYSTEM VERSIONING"),
    (
        &["CREATE TABLE $0.t7 (user_id INT PRIMARY KEY, birthday DATE) WITH SYSTEM VERSIONING"],
        "CREATE TABLE of captured table",
    ),
    (&["CREATE TABLE $0.t7 (user_id INET6 PRIMARY KEY, birthday DATE)"], "another type (inet6)"),
    (&["CREATE TABLE $0.t7 (user_id INT PRIMARY KEY, birthday DATE) ENGINE = Aria"], "ENGINE = Aria"),
];

/// Words of statements that MySQL does not have.
const OF_MARIADB: [&str; 5] = ["ALTER IGNORE", " UUID", "INET6", "SYSTEM VERSIONING", "ENGINE = Aria"];

async fn an_alter_that_changes_captured_values_without_row_events_stops(mut database: Database) {
    let is_mysql = is_mysql(&database);
    let is_of_mariadb = |sql: &&str| OF_MARIADB.iter().any(|words| sql.contains(words));
    for (statements, expected) in ALTERS {
        if is_mysql && statements.iter().any(is_of_mariadb) {
            continue;
        }
        database = database.with_tables().await;
        let mut stream = database.read_latest_that_stops().await;
        database.run(&["INSERT INTO $0.t0 VALUES (1, '', '2000-01-01')"]).await;
        stream.until_seen(1).await;
        database.run(statements).await;
        let fault = stream.until_fault(Code::SourceSchemaChanged).await;
        assert!(fault.to_string().contains(expected), "{expected}: {fault}");
        assert!(fault.code().is_mended_by_refresh(), "{fault}");
        database.run(&["DROP DATABASE $0"]).await;
    }
}

async fn a_partition_that_becomes_a_captured_table_stops(database: Database) {
    let database = database.with_tables().await;
    let mut stream = database.read_latest_that_stops().await;
    database
        .run(&[
            "CREATE TABLE $0.archive (user_id BIGINT UNSIGNED PRIMARY KEY, birthday DATE) \
             PARTITION BY RANGE (user_id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))",
            "INSERT INTO $0.archive VALUES (1, '2000-01-01')",
            "ALTER TABLE $0.archive CONVERT PARTITION p0 TO TABLE $0.t8",
        ])
        .await;
    let fault = stream.until_fault(Code::SourceSchemaChanged).await;
    assert!(fault.to_string().contains("0.t8"), "{fault}");
}

async fn a_retyped_column_and_moved_tables_stop(mut database: Database) {
    let moves = [
        ("ALTER TABLE $0.t0 MODIFY birthday INT, ADD COLUMN x INT", "column birthday has another type"),
        ("RENAME TABLE $0.t0 TO $0.u", "RENAME TABLE"),
        ("ALTER TABLE $0.other RENAME $0.t9", "RENAME"),
    ];
    for (statement, expected) in moves {
        database = database.with_tables().await;
        let mut stream = database.read_latest_that_stops().await;
        database.run(&[statement]).await;
        if statement.contains("MODIFY") {
            database.run(&["INSERT INTO $0.t0 (user_id, birthday) VALUES (1, 1)"]).await;
        }
        let fault = stream.until_fault(Code::SourceSchemaChanged).await;
        assert!(fault.to_string().contains(expected), "{fault}");
        database.run(&["DROP DATABASE $0"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_log_less_than_needed_stop() {
    let database = Database::with_flags(&[]).with_tables().await;
    let mut stream = database.read_latest().await;
    database
        .run(&[
            "INSERT INTO $0.t0 VALUES (1, '', '2000-01-01')",
            "SET SESSION binlog_row_image = MINIMAL",
            "UPDATE $0.t0 SET name = 'x'",
        ])
        .await;
    stream.until_fault(Code::SourceImageNotFull).await;

    let mut stream = database.read_latest().await;
    database
        .run(&["SET GLOBAL binlog_row_metadata = NO_LOG", "INSERT INTO $0.t1 VALUES (1, '', '2000-01-01')"])
        .await;
    stream.until_fault(Code::SourceMetadataNotFull).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_captured_may_be_anything() {
    let database = Database::with_flags(&[]).with_tables().await;
    let mut stream = database.read_latest().await;
    database
        .run(&[
            "CREATE TABLE $0.`täb le` (a VARBINARY(9), b VARCHAR(9) CHARACTER SET gbk, c UUID, `d``e` GEOMETRY)",
            "INSERT INTO $0.`täb le` VALUES (x'ff', '生', UUID(), POINT(1, 2))",
            "ALTER TABLE $0.t0 ADD COLUMN (secret VARBINARY(9), tongue VARCHAR(9) CHARACTER SET gbk, place POINT)",
            "INSERT INTO $0.t0 VALUES (1, 'x', '2000-01-01', x'fffe', '生', POINT(1, 2))",
            "SET NAMES latin1",
            "CREATE USER 'ÄÖ'@'localhost' IDENTIFIED BY 'x'",
            "GRANT SELECT ON *.* TO 'ÄÖ'@'localhost'",
            "SET NAMES utf8mb4",
            "CREATE SEQUENCE $0.s",
            "SELECT NEXTVAL($0.s)",
            "CREATE TABLE $0.copy SELECT * FROM $0.t0",
            "CREATE PROCEDURE $0.p() DELETE FROM $0.t0",
            "CALL $0.p()",
            "CREATE TRIGGER $0.g AFTER INSERT ON $0.other FOR EACH ROW INSERT INTO $0.t1 VALUES (NEW.id, '', NULL)",
            "INSERT INTO $0.other VALUES (7, '')",
            "ANALYZE TABLE $0.t0",
            "OPTIMIZE TABLE $0.t1",
            "FLUSH TABLES",
            "CREATE VIEW $0.t8 AS SELECT 1",
            "DROP VIEW $0.t8",
            "SET STATEMENT max_statement_time = 9 FOR INSERT INTO $0.t1 VALUES (8, '', NULL)",
        ])
        .await;
    stream.until_end(&database).await;
    assert_eq!(stream.texts(), ["t0 + 1 2000-01-01", "t0 - 1 2000-01-01", "t1 + 7 NULL", "t1 + 8 NULL"]);
    assert_eq!(stream.resume().gtid_set, database.ask("SELECT @@gtid_binlog_pos").await);
}

/// Each statement, with the number of captured tables of which it may have changed rows that the binlog does not show.
async fn children_of_foreign_keys_are_read_again_after_updates_and_deletes_alone(database: Database) {
    let database = database.with_tables().await;
    database
        .run(&[
            "CREATE TABLE $0.parent (id BIGINT UNSIGNED PRIMARY KEY, note INT) ENGINE=InnoDB",
            "CREATE TABLE $0.t2 LIKE $0.t0",
            "ALTER TABLE $0.t1 ADD CONSTRAINT one FOREIGN KEY (user_id) REFERENCES $0.parent (id) ON DELETE CASCADE",
            "ALTER TABLE $0.t2 ADD CONSTRAINT two FOREIGN KEY (user_id) REFERENCES $0.parent (id) ON UPDATE CASCADE",
            "CREATE TRIGGER $0.writes_t0 AFTER INSERT ON $0.other FOR EACH ROW \
             IF NEW.id > 100 THEN INSERT INTO $0.t0 VALUES (NEW.id, '', NULL); END IF",
            "INSERT INTO $0.t0 VALUES (1, '', NULL)",
        ])
        .await;
    let mut stream = database.read_latest().await;
    let statements = [
        ("INSERT INTO $0.parent VALUES (1, 1), (2, 1), (3, 1), (4, 1), (5, 1)", 0),
        ("INSERT INTO $0.t1 VALUES (1, '', NULL), (2, '', NULL)", 0),
        ("INSERT INTO $0.t2 VALUES (3, '', NULL)", 0),
        ("UPDATE $0.t1 SET birthday = '1990-01-01'", 0),
        // The binlog does not show these rows.
        ("DELETE FROM $0.parent WHERE id = 1", 1),
        ("UPDATE $0.parent SET id = 30 WHERE id = 3", 1),
        ("DELETE FROM $0.t1 WHERE user_id = 2", 0),
        // No row was changed, and the binlog does not show that either.
        ("DELETE FROM $0.parent WHERE id = 4", 1),
        ("UPDATE $0.parent SET note = 2 WHERE id = 5", 1),
        ("DELETE FROM $0.parent WHERE id = 1000", 0),
        // The server deletes a referenced row and inserts the next one; a row without an older one changes no child.
        ("REPLACE INTO $0.parent VALUES (5, 3)", 1),
        ("REPLACE INTO $0.parent VALUES (6, 3)", 0),
        ("INSERT INTO $0.parent VALUES (6, 4) ON DUPLICATE KEY UPDATE note = 5", 1),
        ("INSERT INTO $0.parent VALUES (7, 4) ON DUPLICATE KEY UPDATE note = 5", 0),
        // A trigger that may write a table, and does not.
        ("INSERT INTO $0.other VALUES (7, '')", 0),
        ("INSERT INTO $0.other VALUES (107, '')", 0),
        (
            "UPDATE $0.other JOIN $0.t0 ON t0.user_id = 1 SET other.pad = 'x', t0.name = '' WHERE other.id = 7",
            1,
        ),
        (
            "UPDATE $0.other LEFT JOIN $0.t0 ON t0.user_id = 999 SET other.pad = 'y', t0.name = 'y' WHERE other.id = 7",
            1,
        ),
        ("UPDATE $0.other SET pad = 'z'", 0),
        (
            "LOCK TABLES $0.t0 WRITE, $0.other WRITE, $0.t1 WRITE; UPDATE $0.other SET pad = 'l'; UNLOCK TABLES",
            2,
        ),
        ("LOCK TABLES $0.t0 WRITE, $0.t1 WRITE; INSERT INTO $0.t0 VALUES (9, '', NULL); UNLOCK TABLES", 0),
    ];
    let mut wrong = Vec::new();
    for (statement, expected) in statements {
        let before = stream.seen.len();
        database.run(&[statement]).await;
        stream.until_end(&database).await;
        let again = stream.texts()[before..].iter().filter(|text| text.ends_with(" again")).count() as u64;
        let found = (stream.take_unseen(), again);
        println!("{found:?}  {statement}");
        if found != (expected, expected) {
            wrong.push((statement, expected, found));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_character_of_two_bytes_hides_no_statement_in_any_client_character_set() {
    // The server would otherwise end with each case.
    let _kept = Database::shared();
    // The second byte of each character is that of a backslash.
    for (set, character) in
        [("gbk", b"\xbf\\"), ("big5", b"\xa5\\"), ("sjis", b"\x95\\"), ("cp932", b"\x95\\")]
    {
        let database = Database::shared().with_tables().await;
        let mut stream = database.read_latest_that_stops().await;
        let mut session = database.admin().await;
        let mut run = async |parts: &[&[u8]]| {
            let sql = parts.concat();
            let reported = String::from_utf8_lossy(&sql).into_owned();
            session.query_drop(sql).await.unwrap_or_else(|error| panic!("{reported}: {error}"));
        };
        let (name, prefix) = (&character[..], database.prefix.as_bytes());
        run(&[b"SET NAMES ", set.as_bytes()]).await;
        run(&[b"ALTER TABLE ", prefix, b"0.t1 COMMENT '", name, b"', ADD COLUMN a INT"]).await;
        // The server itself writes the statement that drops them, in UTF-8.
        run(&[b"CREATE TABLE ", prefix, b"0.`", name, b"` (a INT)"]).await;
        run(&[b"DROP TABLE ", prefix, b"0.`", name, b"`, ", prefix, b"0.t1"]).await;
        stream.until_end(&database).await;
        assert_eq!(stream.texts(), ["t1 withdrawn"], "{set}");
        run(&[b"ALTER TABLE ", prefix, b"0.t0 COMMENT '", name, b"', RENAME TO ", prefix, b"0.u"]).await;
        let fault = stream.until_fault(Code::SourceSchemaChanged).await;
        assert!(fault.to_string().contains("ALTER TABLE … RENAME"), "{set}: {fault}");
    }
}
