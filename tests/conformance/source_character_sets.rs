//! Character sets in the binlog while it is read: bytes that are no text and wide character sets stop the source by
//! name. Every other character set is captured as its bytes.

use anabranch_connectors::mysql::source::MysqlSource;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{RowSource, SourceConnector};
use anabranch_schemas::lsn::FIRST_EPOCH;

use crate::ports::rows::{rows, table_of};
use crate::source::{Database, DatabaseKind, SourceProbe};

on_each_server!(
    every_captured_column_is_told_apart_from_text_beside_columns_of_every_type,
    what_becomes_of_text_while_its_table_is_empty_stops_at_the_next_row,
);

/// The fault on bytes that are no text.
const BYTES: &str = "column user_id holds bytes that are not text";

/// Types of a captured column, a value, and a part of the fault; the empty text where the column is captured.
const COMMON: &[(&str, &str, &str)] = &[
    ("VARCHAR(20)", "'7'", ""),
    ("CHAR(20)", "'7'", ""),
    ("TINYTEXT", "'7'", ""),
    ("LONGTEXT", "'7'", ""),
    ("VARCHAR(20) COLLATE utf8mb4_bin", "'7'", ""),
    ("VARCHAR(20) CHARACTER SET utf8mb3", "'7'", ""),
    ("VARCHAR(20) CHARACTER SET ascii", "'7'", ""),
    // The bytes are not converted: `row_text` shows each byte that is no UTF-8 in this way.
    ("VARCHAR(20) CHARACTER SET latin1", "'7ü'", ""),
    ("VARCHAR(20) CHARACTER SET gbk", "'7'", ""),
    ("BINARY(16)", "x'37003700370037003700370037003700'", BYTES),
    ("VARBINARY(36)", "'7'", BYTES),
    ("TINYBLOB", "'7'", BYTES),
    ("LONGBLOB", "'7'", BYTES),
    ("VARCHAR(36) CHARACTER SET binary", "'7'", BYTES),
    ("VARCHAR(20) CHARACTER SET ucs2", "'7'", "column user_id has character set ucs2"),
    ("TEXT CHARACTER SET utf16", "'7'", "column user_id has character set utf16"),
    ("CHAR(20) CHARACTER SET utf16le", "'7'", "column user_id has character set utf16le"),
    ("VARCHAR(20) COLLATE utf32_bin", "'7'", "column user_id has character set utf32"),
];
const MARIADB: &[(&str, &str, &str)] = &[
    ("JSON", "'7'", ""),
    ("VARCHAR(20) COLLATE utf8mb4_uca1400_ai_ci", "'7'", ""),
    ("VARCHAR(20) COLLATE utf8mb4_uca1400_german2_as_cs", "'7'", ""),
    ("VARCHAR(20) COLLATE utf8mb4_nopad_bin", "'7'", ""),
    ("VARCHAR(20) COLLATE utf16_uca1400_ai_ci", "'7'", "column user_id has character set utf16"),
    ("UUID", "UUID()", BYTES),
    ("INET4", "'1.2.3.4'", BYTES),
    ("INET6", "'::1'", BYTES),
    ("POINT", "POINT(1, 2)", "column user_id has a type that cannot be captured"),
    ("VARCHAR(200) COMPRESSED", "REPEAT('7', 150)", "column user_id has a type that cannot be captured"),
];
const MYSQL: &[(&str, &str, &str)] = &[
    ("VARCHAR(20) COLLATE utf8mb4_0900_ai_ci", "'7'", ""),
    ("VARCHAR(20) COLLATE utf8mb4_0900_bin", "'7'", ""),
    ("VARCHAR(20) CHARACTER SET gb18030", "'7'", ""),
    ("VARCHAR(20) COLLATE utf16_unicode_ci", "'7'", "column user_id has character set utf16"),
    ("POINT", "POINT(1, 2)", "column user_id has a type that cannot be captured"),
    ("JSON", "'7'", "column user_id has another type"),
];

/// Columns beside the captured one, so its index among the columns with a collation differs from its own index.
const BESIDE: &str = "a ENUM('x') CHARACTER SET latin1, b JSON, c POINT, d SET('x'), e BINARY(3), \
     f VARCHAR(9) CHARACTER SET latin2, g BIT(3), h TEXT CHARACTER SET utf32";

fn of(database: &Database) -> &'static [(&'static str, &'static str, &'static str)] {
    if database.lent_as() == Some(DatabaseKind::MySql) { MYSQL } else { MARIADB }
}

async fn every_captured_column_is_told_apart_from_text_beside_columns_of_every_type(database: Database) {
    let more = match database.ask("SELECT VERSION()").await {
        version if version.starts_with("10.") => "i VARCHAR(9) COMPRESSED, j INET6",
        version if version.contains("MariaDB") => "i TEXT COMPRESSED, j VECTOR(3)",
        _ => "i VECTOR(3), j VARBINARY(3)",
    };
    let database = database.with_tables().await;
    let cases = || COMMON.iter().chain(of(&database)).enumerate();
    let statements = |number: usize, kind: &str, value: &str| {
        [
            "SET NAMES utf8mb4".to_owned(),
            format!("CREATE TABLE $0.made_{number} ({BESIDE}, {more}, user_id {kind}, birthday DATE)"),
            // The statement of a table that is made like another names no types.
            format!("CREATE TABLE $0.t{number} LIKE $0.made_{number}"),
            format!("INSERT INTO $0.t{number} (user_id, birthday) VALUES ({value}, '2000-01-01')"),
        ]
    };
    let mut probe = database.read_latest_that_stops().await;
    let mut wanted = Vec::new();
    for (number, (kind, value, _)) in cases().filter(|(_, case)| case.2.is_empty()) {
        let statements = statements(10 + number, kind, value);
        database.run(&statements.each_ref().map(String::as_str)).await;
        let shown = if value.contains('ü') { "7\u{fffd}" } else { "7" };
        wanted.push(format!("t{} + {shown} 2000-01-01", 10 + number));
    }
    probe.until_seen(wanted.len()).await;
    assert_eq!(probe.texts(), wanted);
    for (number, (kind, value, expected)) in cases().filter(|(_, case)| !case.2.is_empty()) {
        let mut probe = database.read_latest_that_stops().await;
        let statements = statements(10 + number, kind, value);
        database.run(&statements.each_ref().map(String::as_str)).await;
        let fault = probe.until_fault(Code::SourceSchemaChanged).await.to_string();
        let table = format!("{}0.t{}", database.prefix, 10 + number);
        assert!(fault.contains(expected) && fault.contains(&table), "{kind}: {fault}");
        assert_eq!(probe.texts(), [""; 0], "{kind}");
    }
}

/// Pre-flight and readers of the table refuse alike, and continue once the column is text again.
async fn refused_until_it_is_text(database: &Database, expected: &str) {
    let source: MysqlSource = database.source();
    let faults = source.check().await;
    assert_eq!(faults.iter().map(Fault::code).collect::<Vec<_>>(), [Code::SourceColumnUnsupported]);
    let table = table_of(&source, "t0").await;
    let read = source.chunk(&table, None, rows(10), FIRST_EPOCH).await;
    let fault = read.expect_err("rows of such a column are not read");
    assert_eq!(fault.code(), Code::SourceColumnUnsupported, "{fault}");
    assert!(fault.to_string().contains(expected), "{fault}");
    database.run(&["ALTER TABLE $0.t0 MODIFY birthday VARCHAR(36) CHARACTER SET utf8mb4"]).await;
    let faults = source.check().await;
    assert!(faults.is_empty(), "{:?}", faults.iter().map(Fault::to_string).collect::<Vec<_>>());
    let mut probe = database.read_latest().await;
    database.run(&["INSERT INTO $0.t0 VALUES (8, '', '2001-01-01')"]).await;
    probe.until_seen(1).await;
    assert_eq!(probe.texts(), ["t0 + 8 2001-01-01"]);
}

async fn what_becomes_of_text_while_its_table_is_empty_stops_at_the_next_row(database: Database) {
    let database = database.with_tables().await;
    for (alter, expected, reported) in [
        ("MODIFY birthday VARBINARY(36)", "column birthday holds bytes", "varbinary"),
        ("MODIFY birthday BINARY(16)", "column birthday holds bytes", "binary"),
        ("CONVERT TO CHARACTER SET utf16", "column birthday has character set utf16", "character set utf16"),
        ("CONVERT TO CHARACTER SET utf32", "column birthday has character set utf32", "character set utf32"),
    ] {
        let mut probe: SourceProbe = database.read_latest_that_stops().await;
        let alter = format!("ALTER TABLE $0.t0 {alter}");
        database
            .run(&[
                "TRUNCATE $0.t0",
                "ALTER TABLE $0.t0 MODIFY birthday VARCHAR(36)",
                &alter,
                "INSERT INTO $0.t0 VALUES (7, '', '2000-01-01')",
            ])
            .await;
        let fault = probe.until_fault(Code::SourceSchemaChanged).await;
        assert!(fault.to_string().contains(expected) && fault.code().is_mended_by_refresh(), "{fault}");
        assert!(fault.to_string().contains("a character set in which digits are ASCII bytes"), "{fault}");
        assert_eq!(probe.texts(), ["t0 withdrawn"], "{alter}");
        refused_until_it_is_text(&database, reported).await;
    }
}
