//! Payment documents on each kind of server: tables by month and by year in one capture, by chunks and by row events.

use std::collections::BTreeMap;
use std::time::Duration;

use anabranch_connectors::mysql::source::MysqlSource;
use anabranch_pipeline::config::{ColumnNames, EntityConfig, SourceConfig};
use anabranch_pipeline::ports::{BinlogStart, ChangeSource, RowSource, SourceConnector};
use anabranch_pipeline::records::BatchBuilder;
use anabranch_schemas::change::{Entity, Value};
use anabranch_schemas::codec;
use anabranch_schemas::flux::id::Level;
use anabranch_schemas::lsn::{Lsn, ResumePoint};
use anabranch_schemas::shard::TablePattern;
use anabranch_schemas::sql::flux_table;
use anabranch_schemas::timeline::Timeline;

use crate::ports::rows::whole;
use crate::source::{Database, DatabaseKind, WAIT_MAX};

/// The rows of each table by their first value.
type Documents = BTreeMap<(String, String), Vec<Value<'static>>>;

const TABLES: [&str; 3] = ["atom_05_01", "atom_05_99", "atom_05_7_01"];

/// A source of atoms by month and by year, with every field.
fn source(database: &Database) -> MysqlSource {
    let entity = |table: &str| EntityConfig {
        entity: Entity::Flux,
        tables: TablePattern::parse(&format!("{}{{db}}.{table}", database.prefix)).unwrap(),
        columns: Entity::Flux.field_names().iter().map(|field| ColumnNames::from(*field)).collect(),
        level: Some(Level::Atom),
        ..database.entity()
    };
    let entities =
        [entity("atom_{partition:02}_{month:02}"), entity("atom_{partition:02}_{year}_{month:02}")];
    let config = SourceConfig { entities: vec![Entity::Flux], ..database.config() };
    MysqlSource::new(&config, &entities, Duration::from_secs(2))
}

/// Documents that are inserted, changed in amount, parent and time, and deleted.
async fn fill(database: &Database) {
    let id = |number: u32| format!("2027020511031103001057000000{number:03}");
    let mut statements = vec!["CREATE DATABASE $0".to_owned()];
    statements.extend(TABLES.map(|table| flux_table(&format!("{}0", database.prefix), table)));
    for table in TABLES {
        let documents = [
            (1, "NULL".to_owned(), "'0.0001'", "'2027-02-05 01:02:03.004'"),
            (2, format!("'{}'", id(1)), "'-12345.6700'", "'2027-02-05 00:00:00'"),
            (3, format!("'{}'", id(1)), "'9999999999999999.9999'", "NULL"),
            (4, "NULL".to_owned(), "NULL", "'9999-12-31 23:59:59.999'"),
            (5, "NULL".to_owned(), "'-0.5'", "'2027-02-05 01:02:03'"),
        ];
        let row = |(number, parent, amount, created): &(u32, String, &str, &str)| {
            format!("('{}', {parent}, {amount}, {created})", id(*number))
        };
        let rows: Vec<String> = documents.iter().map(row).collect();
        let rows = rows.join(", ");
        statements.push(format!("INSERT INTO $0.{table} (id, parent_id, amount, created) VALUES {rows}"));
        let change = |number, what: &str| format!("UPDATE $0.{table} SET {what} WHERE id = '{}'", id(number));
        statements.push(change(1, "amount = 100, created = NULL"));
        statements.push(change(2, "parent_id = NULL, amount = amount * -1"));
        statements.push(change(3, "state = 7"));
        statements.push(format!("DELETE FROM $0.{table} WHERE id = '{}'", id(5)));
    }
    let statements: Vec<&str> = statements.iter().map(String::as_str).collect();
    database.run(&statements).await;
}

/// Adds a row under its table and first value.
fn put(documents: &mut Documents, table: &str, row: &[Value<'_>]) -> Option<Vec<Value<'static>>> {
    let row: Vec<_> = row.iter().cloned().map(Value::into_owned).collect();
    documents.insert((table.to_owned(), format!("{:?}", row[0])), row)
}

/// The documents that the row events of the whole binlog leave.
async fn by_row_events(source: &MysqlSource) -> Documents {
    let head = source.head().await.unwrap();
    let mut stream = source.open(BinlogStart::Earliest, &Timeline::default(), 0).await.unwrap();
    let mut batch = BatchBuilder::new(1 << 20, Lsn::ZERO, ResumePoint::default());
    let mut documents = Documents::new();
    while batch.position() < head {
        tokio::time::timeout(WAIT_MAX, stream.fill(&mut batch)).await.unwrap().unwrap();
        let taken = batch.take();
        let mut changes = codec::decode(&taken.payload).unwrap();
        while let Some(change) = changes.next().unwrap() {
            let table = &*change.table.table;
            let (before, after) = change.action.images().expect("rows only");
            if let Some(before) = before {
                documents.remove(&(table.to_owned(), format!("{:?}", before[0])));
            }
            if let Some(after) = after {
                put(&mut documents, table, after);
            }
        }
    }
    documents
}

async fn by_chunks(source: &MysqlSource, size: usize) -> Documents {
    let mut documents = Documents::new();
    for table in source.tables().await.unwrap() {
        for chunk in whole(source, &table, size).await.unwrap() {
            let mut changes = codec::decode(&chunk.payload).unwrap();
            while let Some(change) = changes.next().unwrap() {
                let (_, after) = change.action.images().expect("rows only");
                let before = put(&mut documents, &table.table, after.expect("an insert"));
                assert_eq!(before, None, "each row once");
            }
        }
    }
    documents
}

#[tokio::test(flavor = "multi_thread")]
async fn payment_documents_of_both_strategies_are_read_alike_on_every_server_and_in_every_way() {
    let mut on_first: Option<Documents> = None;
    for kind in [DatabaseKind::MariaDb, DatabaseKind::MariaDb11, DatabaseKind::MySql] {
        let Some(database) = Database::lent(kind).await else { continue };
        fill(&database).await;
        let source = source(&database);
        let faults = source.check().await;
        assert!(faults.is_empty(), "{kind:?}: {faults:?}");
        let documents = by_row_events(&source).await;
        assert_eq!(documents.len(), TABLES.len() * 4, "{kind:?}: {documents:?}");
        for size in [1, 3, 100] {
            assert_eq!(by_chunks(&source, size).await, documents, "{kind:?}, {size} rows a chunk");
        }
        let amounts: Vec<String> = documents.values().take(4).map(|row| format!("{:?}", row[2])).collect();
        let text = |digits: &str| format!("{:?}", Value::Bytes(digits.as_bytes().into()));
        let expected =
            [text("100.0000"), text("12345.6700"), text("9999999999999999.9999"), "Null".to_owned()];
        assert_eq!(amounts, expected, "{kind:?}");
        match &on_first {
            Some(first) => assert_eq!(documents, *first, "{kind:?}"),
            None => on_first = Some(documents),
        }
    }
    assert!(on_first.is_some(), "MariaDB is always there");
}
