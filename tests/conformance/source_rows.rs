//! Chunks of rows of a real server: types, keys, and a snapshot that lags the binlog.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use anabranch_connectors::mysql::source::MysqlSource;
use anabranch_pipeline::config::{ColumnNames, EntityConfig, Removal, UnseenChanges};
use anabranch_pipeline::error::{Class, Code};
use anabranch_pipeline::ports::{BinlogStart, ChangeSource, RowSource, SourceConnector};
use anabranch_pipeline::records::Cell;
use anabranch_schemas::change::{Action, Entity, Value};
use anabranch_schemas::codec;
use anabranch_schemas::lsn::{FIRST_EPOCH, Lsn, ResumePoint};
use anabranch_schemas::serial;
use anabranch_schemas::shard::TablePattern;
use anabranch_schemas::timeline::Timeline;
use mysql_async::prelude::Queryable;

use crate::ports::rows::{rows, table_of, texts, whole};
use crate::source::{Database, WAIT_MAX};

on_each_mariadb!(
    every_type_that_can_be_captured_is_read_as_from_the_binlog,
    columns_that_not_each_table_has_are_captured_where_they_are_named,
    devices_with_keys_of_several_columns_are_read_as_from_the_binlog,
    a_table_that_is_altered_between_two_chunks_is_read_as_it_is_then,
    first_rows_hold_no_table_while_another_is_read,
    a_transaction_whose_acknowledgement_is_held_is_behind_the_watermark,
);

/// A source of devices, whose columns take integers and text, or of users, whose birthdays take dates too.
fn source_of(database: &Database, entity: Entity) -> MysqlSource {
    source_with(database, entity, entity.required_fields())
}

/// A source that captures this number of fields.
fn source_with(database: &Database, entity: Entity, fields: usize) -> MysqlSource {
    let mut config = database.config();
    config.entities = vec![entity];
    config.replica_server_id = NonZeroU32::new(config.replica_server_id.get() + 1_000_000).unwrap();
    let entity = EntityConfig {
        entity,
        tables: TablePattern::parse(&format!("{}{{db}}.t{{table}}", database.prefix)).unwrap(),
        columns: entity.field_names()[..fields].iter().map(|field| ColumnNames::from(*field)).collect(),
        level: None,
        rule: None,
        sharding_column: None,
        changed_at_column: None,
        unseen_changes: UnseenChanges::default(),
        removal: Removal::default(),
        retention_marker: None,
    };
    MysqlSource::new(&config, &[entity], Duration::from_secs(2))
}

/// Each row of each table by its first value, from the binlog.
async fn by_binlog(source: &MysqlSource) -> BTreeMap<(String, String), Vec<Value<'static>>> {
    let head = source.head().await.unwrap();
    let mut stream = source.open(BinlogStart::Earliest, &Timeline::default(), 0).await.unwrap();
    let mut batch =
        anabranch_pipeline::records::BatchBuilder::new(1 << 20, Lsn::ZERO, ResumePoint::default());
    let mut found = BTreeMap::new();
    while batch.position() < head {
        tokio::time::timeout(WAIT_MAX, stream.fill(&mut batch)).await.unwrap().unwrap();
        let taken = batch.take();
        let mut changes = codec::decode(&taken.payload).unwrap();
        while let Some(change) = changes.next().unwrap() {
            if let Action::Insert { after } = change.action {
                let row: Vec<_> = after.into_iter().map(Value::into_owned).collect();
                found.insert((change.table.table.clone().into_owned(), format!("{:?}", row[0])), row);
            }
        }
    }
    found
}

/// Each row of each table by its first value, from chunks.
async fn by_chunks(source: &MysqlSource, size: usize) -> BTreeMap<(String, String), Vec<Value<'static>>> {
    let mut found = BTreeMap::new();
    for table in source.tables().await.unwrap() {
        let chunks =
            whole(source, &table, size).await.unwrap_or_else(|fault| panic!("{}: {fault}", table.table));
        for chunk in chunks {
            let mut changes = codec::decode(&chunk.payload).unwrap();
            while let Some(change) = changes.next().unwrap() {
                let Action::Insert { after } = change.action else { panic!("{:?}", change.action) };
                let row: Vec<_> = after.into_iter().map(Value::into_owned).collect();
                let key = (table.table.clone().into_owned(), format!("{:?}", row[0]));
                assert_eq!(found.insert(key, row), None, "each row once");
            }
        }
    }
    found
}

async fn every_type_that_can_be_captured_is_read_as_from_the_binlog(database: Database) {
    let users = [
        ("BIGINT UNSIGNED", "DATE", "18446744073709551615, '0000-00-00'), (0, '2024-02-29'), (7, NULL"),
        ("BIGINT", "DATETIME", "-9223372036854775808, '9999-12-31 23:59:59'), (-1, '0000-00-00 00:00:00'"),
        ("INT", "DATETIME(1)", "-5, '2024-02-29 01:02:03.4'), (5, '2024-00-00 00:00:00'"),
        ("INT UNSIGNED", "DATETIME(6)", "5, '1000-01-01 00:00:00.000001'), (6, NULL"),
        ("MEDIUMINT", "TIMESTAMP NULL", "-8388608, '2038-01-19 03:14:07'), (3, '1970-01-01 00:00:01'"),
        ("MEDIUMINT UNSIGNED ZEROFILL", "TIMESTAMP(3) NULL", "7, '2001-02-03 04:05:06.789'), (8, 0"),
        ("SMALLINT", "TIMESTAMP(6) NULL", "-3, '2001-02-03 04:05:06.000001'), (4, NULL"),
        ("SMALLINT UNSIGNED", "CHAR(20)", "65535, '1990-01-02'), (1, 'trailing  '), (2, ''"),
        ("TINYINT", "VARCHAR(20) CHARACTER SET gbk", "-128, '生日'), (1, 'trailing  '"),
        ("TINYINT UNSIGNED", "VARCHAR(20) CHARACTER SET latin1", "255, 'ÄÖ'), (1, '\\0\\'\\\\'"),
        ("CHAR(20)", "TEXT", "'a  ', REPEAT('x', 3000)), ('B', ''), ('b2', '\\n'"),
        ("VARCHAR(20)", "TINYTEXT", "'ä', '€😀'), ('', 'empty key'), ('z''\\\\', 'quotes'"),
        ("VARCHAR(20) CHARACTER SET gbk", "MEDIUMTEXT", "'生', 'x'), ('日', 'y'), ('a', 'z'"),
        ("VARCHAR(20) COLLATE utf8mb4_bin", "LONGTEXT", "'a', 'x'), ('A', 'y'), ('á', 'z'"),
    ];
    let mut statements =
        vec!["CREATE DATABASE $0".to_owned(), "SET sql_mode = '', time_zone = '+00:00'".to_owned()];
    for (number, (key, value, rows)) in users.iter().enumerate() {
        statements.push(format!(
            "CREATE TABLE $0.t{number} (pad POINT, birthday {value}, user_id {key} PRIMARY KEY)"
        ));
        statements.push(format!("INSERT INTO $0.t{number} (user_id, birthday) VALUES ({rows})"));
    }
    let statements: Vec<&str> = statements.iter().map(String::as_str).collect();
    database.run(&statements).await;
    let source = source_of(&database, Entity::User);
    let expected = by_binlog(&source).await;
    assert!(expected.len() > 30, "{} rows", expected.len());
    for size in [1, 2, 100] {
        assert_eq!(by_chunks(&source, size).await, expected, "{size} rows a chunk");
    }
    each_row_is_found_by_its_key(&source, &expected).await;
}

/// Each change as text, and the number of updates that were left out as unchanged.
async fn changes_of(source: &MysqlSource) -> (Vec<String>, u64) {
    let head = source.head().await.unwrap();
    let mut stream = source.open(BinlogStart::Earliest, &Timeline::default(), 0).await.unwrap();
    let mut batch =
        anabranch_pipeline::records::BatchBuilder::new(1 << 20, Lsn::ZERO, ResumePoint::default());
    while batch.position() < head {
        tokio::time::timeout(WAIT_MAX, stream.fill(&mut batch)).await.unwrap().unwrap();
    }
    let (unchanged, taken) = (batch.take_unchanged(), batch.take());
    let (mut changes, mut found) = (codec::decode(&taken.payload).unwrap(), Vec::new());
    while let Some(change) = changes.next().unwrap() {
        let (_, after) = change.action.images().unwrap_or_default();
        found.extend(after.map(|after| format!("{:?}", after[1..].to_vec())));
    }
    (found, unchanged)
}

async fn columns_that_not_each_table_has_are_captured_where_they_are_named(database: Database) {
    database
        .run(&[
            "CREATE DATABASE $0",
            "CREATE TABLE $0.t0 (user_id INT PRIMARY KEY, birthday DATE, birthday_type VARCHAR(8), lunar_birthday CHAR(5))",
            "INSERT INTO $0.t0 VALUES (1, NULL, NULL, '02-30')",
            "UPDATE $0.t0 SET birthday_type = 'lunar'",
            "UPDATE $0.t0 SET lunar_birthday = NULL",
        ])
        .await;
    let (without, with) = (source_with(&database, Entity::User, 2), source_with(&database, Entity::User, 4));
    assert_eq!([without.captured().of(Entity::User), with.captured().of(Entity::User)], [2, 4]);
    assert_eq!(changes_of(&without).await, (vec!["[Null]".to_owned()], 2));
    let (found, unchanged) = changes_of(&with).await;
    let bytes = |text: &str| format!("Bytes({:?})", text.as_bytes());
    let [day, lunar] = [bytes("02-30"), bytes("lunar")];
    let expected =
        [format!("[Null, {day}, Null]"), format!("[Null, {day}, {lunar}]"), format!("[Null, Null, {lunar}]")];
    assert_eq!((found, unchanged), (expected.to_vec(), 0));
    for (source, fields) in [(&without, 2), (&with, 4)] {
        let rows: Vec<_> = by_chunks(source, 10).await.into_values().collect();
        assert!(matches!(&rows[..], [row] if row.len() == fields), "{rows:?}");
    }
    // A table without a captured column is named, whichever column it lacks.
    database.run(&["CREATE TABLE $0.t1 (user_id INT PRIMARY KEY, birthday DATE)"]).await;
    let table = table_of(&with, "t1").await;
    let fault = whole(&with, &table, 10).await.expect_err("it lacks two columns");
    assert_eq!(fault.code(), Code::SourceColumnMissing, "{fault}");
    assert!(whole(&without, &table_of(&without, "t1").await, 10).await.is_ok());
}

/// Each row is found by the text of its first value, as uuids are; an impossible key finds no row.
async fn each_row_is_found_by_its_key(
    source: &MysqlSource,
    expected: &BTreeMap<(String, String), Vec<Value<'static>>>,
) {
    for ((name, _), row) in expected {
        let table = table_of(source, name).await;
        let key = |bytes: &[u8]| [Cell::Bytes(bytes.into())];
        let exact = key(&serial::text(&row[0]).unwrap());
        let chunk = source
            .rows(&[(table.clone(), exact.to_vec())], FIRST_EPOCH)
            .await
            .unwrap_or_else(|fault| panic!("{name}: {fault}"));
        let mut changes = codec::decode(&chunk.payload).unwrap();
        let mut found = Vec::new();
        while let Some(change) = changes.next().unwrap() {
            let Action::Insert { after } = change.action else { panic!("{:?}", change.action) };
            found.push(after.into_iter().map(Value::into_owned).collect::<Vec<_>>());
        }
        assert!(found.contains(row), "{name}: {exact:?}");
        let foreign = source.rows(&[(table, key(b"\xff\xfe\x81").to_vec())], FIRST_EPOCH).await;
        assert_eq!(foreign.unwrap_or_else(|fault| panic!("{name}: {fault}")).rows, 0, "{name}");
    }
}

async fn devices_with_keys_of_several_columns_are_read_as_from_the_binlog(database: Database) {
    let columns = "imei1 BIGINT, imei2 VARCHAR(20), meid CHAR(14), box_no TEXT, item_code VARCHAR(9), \
        first_agent_code INT, warehouse_code INT, account_id INT UNSIGNED, sku_code VARCHAR(9)";
    let keys = ["PRIMARY KEY (a, uuid)", "PRIMARY KEY (b, a, uuid)", "PRIMARY KEY (c, uuid)"];
    let mut statements = vec!["CREATE DATABASE $0".to_owned()];
    for (number, key) in keys.iter().enumerate() {
        statements.push(format!(
            "CREATE TABLE $0.t{number} (a INT, b VARCHAR(9), c VARBINARY(9), uuid VARCHAR(64), {columns}, {key})"
        ));
        let device = |uuid: usize| {
            let (a, b, c) = (uuid % 3, uuid % 4, uuid % 5);
            format!("({a}, 'b{b}', x'ff0{c}', '{uuid}', {uuid}, NULL, 'A{uuid}', 'box', '', 1, NULL, 2, 's')")
        };
        let devices: Vec<String> = (0..40).map(device).collect();
        statements.push(format!("INSERT INTO $0.t{number} VALUES {}", devices.join(", ")));
    }
    let statements: Vec<&str> = statements.iter().map(String::as_str).collect();
    database.run(&statements).await;
    let source = source_of(&database, Entity::SerialCode);
    let expected = by_binlog(&source).await;
    assert_eq!(expected.len(), 120);
    for size in [1, 7, 40, 100] {
        assert_eq!(by_chunks(&source, size).await, expected, "{size} rows a chunk");
    }
    let table = table_of(&source, "t0").await;
    let fault = source.rows(&[(table, vec![Cell::UInt(1)])], FIRST_EPOCH).await.unwrap_err();
    assert_eq!(fault.code(), Code::SourceTableUnkeyed, "{fault}");
    assert!(fault.to_string().contains("column uuid"), "{fault}");
    let index = |number: usize| format!("ALTER TABLE $0.t{number} ADD KEY (uuid, a)");
    let statements: Vec<String> = (0..keys.len()).map(index).collect();
    let statements: Vec<&str> = statements.iter().map(String::as_str).collect();
    database.run(&statements).await;
    each_row_is_found_by_its_key(&source, &expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_cannot_be_read_in_parts_is_named() {
    let database = Database::shared();
    let keyed = "user_id BIGINT, birthday DATE";
    let tables = [
        (format!("({keyed})"), Code::SourceTableUnkeyed),
        (format!("({keyed}, k FLOAT PRIMARY KEY)"), Code::SourceTableUnkeyed),
        (format!("({keyed}, k ENUM('b', 'a') PRIMARY KEY)"), Code::SourceTableUnkeyed),
        ("(user_id BIGINT PRIMARY KEY)".to_owned(), Code::SourceColumnMissing),
        ("(user_id DOUBLE PRIMARY KEY, birthday DATE)".to_owned(), Code::SourceColumnUnsupported),
    ];
    database.run(&["CREATE DATABASE $0"]).await;
    let source = source_of(&database, Entity::User);
    for (number, (columns, code)) in tables.iter().enumerate() {
        database.run(&[&format!("CREATE TABLE $0.t{number} {columns}")]).await;
        let table = table_of(&source, &format!("t{number}")).await;
        let fault = source.chunk(&table, None, rows(10), FIRST_EPOCH).await.unwrap_err();
        assert_eq!(fault.code(), *code, "{fault}");
    }
    let table = table_of(&source, "t0").await;
    database.run(&["DROP TABLE $0.t0"]).await;
    let fault = source.chunk(&table, None, rows(10), FIRST_EPOCH).await.unwrap_err();
    assert_eq!(fault.code(), Code::SourceTableMissing, "{fault}");
}

/// The definition that is kept of a table between chunks must be its present one: here the same text gets another type,
/// and then the key gets one column more.
async fn a_table_that_is_altered_between_two_chunks_is_read_as_it_is_then(database: Database) {
    database
        .run(&[
            "CREATE DATABASE $0",
            "CREATE TABLE $0.t0 (user_id BIGINT PRIMARY KEY AUTO_INCREMENT, birthday DATETIME, region INT DEFAULT 0)",
            "INSERT INTO $0.t0 (birthday) VALUES ('2001-01-01'), ('2002-01-01'), ('2003-01-01'), ('2004-01-01')",
        ])
        .await;
    let source = source_of(&database, Entity::User);
    let table = table_of(&source, "t0").await;
    let first = source.chunk(&table, None, rows(1), FIRST_EPOCH).await.unwrap();
    database.run(&["INSERT INTO $0.t0 (birthday) VALUES ('2005-01-01')"]).await;
    for alter in [
        "ALTER TABLE $0.t0 MODIFY birthday TIMESTAMP NULL",
        "ALTER TABLE $0.t0 MODIFY birthday VARCHAR(30)",
        "ALTER TABLE $0.t0 CHANGE birthday born DATE, ADD birthday DATE DEFAULT '1999-09-09'",
    ] {
        database.run(&[alter]).await;
        let chunk = source.chunk(&table, first.next.as_ref(), rows(2), FIRST_EPOCH).await.unwrap();
        let anew = source_of(&database, Entity::User);
        let expected = anew.chunk(&table, first.next.as_ref(), rows(2), FIRST_EPOCH).await.unwrap();
        assert_eq!(texts(&table, &chunk), texts(&table, &expected), "{alter}");
        assert_eq!(chunk.next, expected.next, "{alter}");
    }
    // A page that was begun with an outdated definition fails; the next attempt reads the table as it is.
    let page = async || {
        let mut visited = 0;
        let read = source.page(&table, None, rows(9), &mut |_| visited += 1).await;
        read.map(|next| (visited, next)).map_err(|fault| fault.class())
    };
    assert_eq!(page().await, Ok((5, None)));
    database.run(&["ALTER TABLE $0.t0 ADD note INT"]).await;
    assert_eq!(page().await, Err(Class::Transient));
    assert_eq!(page().await, Ok((5, None)));
    database.run(&["ALTER TABLE $0.t0 DROP PRIMARY KEY, ADD PRIMARY KEY (user_id, region)"]).await;
    let chunks = whole(&source, &table, 2).await.unwrap();
    assert_eq!(chunks.iter().map(|chunk| chunk.rows).collect::<Vec<_>>(), [2, 2, 1]);
    assert_ne!(chunks[0].next, first.next, "the place has the second column too");
}

/// The read waits for a table that someone has locked; an ALTER of the table before does not wait for the read.
async fn first_rows_hold_no_table_while_another_is_read(database: Database) {
    let database = database.with_tables().await;
    database.run(&["INSERT INTO $0.t0 VALUES (1, '', '2000-01-01')"]).await;
    let source = database.source();
    let tables = [table_of(&source, "t0").await, table_of(&source, "t1").await];
    // The definitions are known from now on.
    assert_eq!(source.first_rows(&tables, FIRST_EPOCH).await.unwrap().rows, 1);
    let mut locker = database.admin().await;
    locker.query_drop(format!("LOCK TABLES {}0.t1 WRITE", database.prefix)).await.unwrap();
    let waiting = format!(
        "SELECT CAST(COUNT(*) AS CHAR) FROM information_schema.processlist \
         WHERE state LIKE 'Waiting for table metadata lock%' AND info LIKE '%{}0%'",
        database.prefix
    );
    let alter = async {
        anabranch_tests::until("the read waits", async || database.ask(&waiting).await != "0").await;
        database.run(&["SET lock_wait_timeout = 5", "ALTER TABLE $0.t0 ADD note INT"]).await;
        locker.query_drop("UNLOCK TABLES").await.unwrap();
    };
    let (chunk, ()) = tokio::join!(source.first_rows(&tables, FIRST_EPOCH), alter);
    assert_eq!(texts(&tables[0], &chunk.unwrap()), ["1 2000-01-01"]);
}

/// A transaction that is in the binlog, and has reached readers, while its commit waits for a replica: the GTID
/// variables hold it, and no snapshot sees it.
async fn a_transaction_whose_acknowledgement_is_held_is_behind_the_watermark(database: Database) {
    let database = database.with_tables().await;
    database
        .run(&[
            "INSERT INTO $0.t0 VALUES (1, '', '2000-01-01')",
            "SET GLOBAL rpl_semi_sync_master_timeout = 3600000",
            "SET GLOBAL rpl_semi_sync_master_wait_point = AFTER_SYNC",
            "SET GLOBAL rpl_semi_sync_master_enabled = ON",
        ])
        .await;
    let source = database.source();
    let (end, gtid) = (source.head().await.unwrap(), database.ask("SELECT @@gtid_binlog_pos").await);
    let mut writer = database.admin().await;
    let insert = format!("INSERT INTO {}0.t0 VALUES (2, '', '2000-01-02')", database.prefix);
    let held = tokio::spawn(async move { writer.query_drop(insert).await.unwrap() });
    let mut stream = database.read(BinlogStart::Earliest).await;
    stream.until("the transaction that waits", |stream| stream.seen.len() == 2).await;
    let change = stream.seen[1].lsn;
    assert_ne!(database.ask("SELECT @@gtid_binlog_pos").await, gtid, "it runs ahead");

    let table = table_of(&source, "t0").await;
    let chunk = source.chunk(&table, None, rows(10), FIRST_EPOCH).await.unwrap();
    assert_eq!(texts(&table, &chunk), ["1 2000-01-01"]);
    assert!(!held.is_finished());
    assert_eq!((chunk.low, chunk.high), (end, end));
    assert!(chunk.low < change);

    database.run(&["SET GLOBAL rpl_semi_sync_master_enabled = OFF"]).await;
    tokio::time::timeout(WAIT_MAX, held).await.unwrap().unwrap();
    let chunk = source.chunk(&table, None, rows(10), FIRST_EPOCH).await.unwrap();
    assert_eq!(texts(&table, &chunk), ["1 2000-01-01", "2 2000-01-02"]);
    assert!(chunk.low >= change);
}
