//! The row decoder against `mysql_cdc`'s, on rows of every column type from a real server.
//!
//! Both get the same bytes. Where `mysql_cdc` is known to be wrong or to refuse (signs, text that is not UTF-8,
//! negative TIME), the expectation names it and expects the difference, so the test fails when `mysql_cdc` changes.

use std::collections::HashMap;

use anabranch_connectors::mysql::source::inspect::{RowImages, column_names, decode_rows};
use anabranch_schemas::change::Value;
use futures::StreamExt;
use mysql_async::BinlogStreamRequest;
use mysql_async::binlog::events::Event;
use mysql_async::prelude::Queryable;
use mysql_cdc::events::binlog_event::BinlogEvent;
use mysql_cdc::events::event_header::EventHeader;
use mysql_cdc::events::event_parser::EventParser;
use mysql_cdc::events::row_events::mysql_value::MySqlValue;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::source::{Database, WAIT_MAX};

const TABLE_MAP: u8 = 19;

/// A column type with a generator of random values.
struct Kind {
    sql: &'static str,
    value: fn(&mut StdRng) -> String,
    /// Whether `mysql_cdc` refuses some or all values, and with them the event.
    is_refused: bool,
}

const fn kind(sql: &'static str, value: fn(&mut StdRng) -> String) -> Kind {
    Kind { sql, value, is_refused: false }
}

const fn refused(sql: &'static str, value: fn(&mut StdRng) -> String) -> Kind {
    Kind { sql, value, is_refused: true }
}

fn bytes(random: &mut StdRng, limit: usize) -> String {
    let length = random.random_range(0..=limit);
    let hex: String = (0..length).map(|_| format!("{:02x}", random.random::<u8>())).collect();
    format!("x'{hex}'")
}

fn text(random: &mut StdRng, limit: usize) -> String {
    let length = random.random_range(0..=limit);
    let letters = ['a', 'Z', '9', 'ü', '€', '😀', ' ', '_'];
    let text: String = (0..length).map(|_| letters[random.random_range(0..letters.len())]).collect();
    format!("'{text}'")
}

fn clock(random: &mut StdRng) -> String {
    format!(
        "{:02}:{:02}:{:02}.{:06}",
        random.random_range(0..24),
        random.random_range(0..60),
        random.random_range(0..60),
        random.random_range(0..1_000_000)
    )
}

fn day(random: &mut StdRng) -> String {
    if random.random_bool(0.2) {
        return "0000-00-00".to_owned();
    }
    let (year, month) = (random.random_range(1000..10_000), random.random_range(1..13));
    format!("{year}-{month:02}-{:02}", random.random_range(1..29))
}

fn date_time(random: &mut StdRng) -> String {
    format!("'{} {}'", day(random), clock(random))
}

fn timestamp(random: &mut StdRng) -> String {
    format!(
        "FROM_UNIXTIME({}.{:06})",
        random.random_range(1..2_147_483_647),
        random.random_range(0..1_000_000)
    )
}

fn kinds() -> Vec<Kind> {
    vec![
        // YEAR has a sign bit in the metadata, so it comes before integers: a shift would then show.
        kind("YEAR", |r| r.random_range(1901..2156).to_string()),
        kind("TINYINT", |r| r.random::<i8>().to_string()),
        kind("TINYINT UNSIGNED", |r| r.random::<u8>().to_string()),
        kind("SMALLINT", |r| r.random::<i16>().to_string()),
        kind("SMALLINT UNSIGNED", |r| r.random::<u16>().to_string()),
        kind("MEDIUMINT", |r| r.random_range(-8_388_608..8_388_608).to_string()),
        kind("MEDIUMINT UNSIGNED", |r| r.random_range(0..16_777_216).to_string()),
        kind("INT", |r| r.random::<i32>().to_string()),
        kind("INT UNSIGNED", |r| r.random::<u32>().to_string()),
        kind("BIGINT", |r| r.random::<i64>().to_string()),
        kind("BIGINT UNSIGNED", |r| r.random::<u64>().to_string()),
        kind("FLOAT", |r| format!("{}e{}", r.random_range(-9.0..9.0), r.random_range(-20..20))),
        kind("DOUBLE", |r| format!("{}e{}", r.random_range(-9.0..9.0), r.random_range(-200..200))),
        kind("DECIMAL(10,2)", |r| {
            format!("{}.{:02}", r.random_range(-9_999_999..10_000_000), r.random_range(0..100))
        }),
        // With the others, a group of each number of digits.
        kind("DECIMAL(5,4)", |r| format!("{}.{:04}", r.random_range(-9..10), r.random_range(0..10_000))),
        kind("DECIMAL(11,6)", |r| {
            format!("{}.{:06}", r.random_range(-99_999..100_000), r.random_range(0..1_000_000))
        }),
        kind("DECIMAL(14,7)", |r| {
            format!("{}.{:07}", r.random_range(-9_999_999..10_000_000), r.random_range(0..10_000_000))
        }),
        kind("DECIMAL(65,30)", |r| format!("{}.{}", r.random::<i64>(), r.random::<u64>())),
        kind("DECIMAL(9,9)", |r| format!("0.{:09}", r.random_range(0..1_000_000_000))),
        kind("BIT(1)", |r| r.random_range(0..2).to_string()),
        kind("BIT(13)", |r| r.random_range(0..8192).to_string()),
        kind("BIT(64)", |r| r.random::<u64>().to_string()),
        kind("DATE", |r| format!("'{}'", day(r))),
        kind("DATETIME", date_time),
        kind("DATETIME(1)", date_time),
        kind("DATETIME(3)", date_time),
        kind("DATETIME(6)", date_time),
        kind("TIMESTAMP NULL", timestamp),
        kind("TIMESTAMP(2) NULL", timestamp),
        kind("TIMESTAMP(6) NULL", timestamp),
        kind("TIME", |r| format!("'{}'", clock(r))),
        kind("TIME(4)", |r| format!("'{}'", clock(r))),
        kind("TIME(6)", |r| format!("'{}'", clock(r))),
        kind("CHAR(20)", |r| text(r, 20)),
        kind("CHAR(250)", |r| text(r, 250)),
        kind("VARCHAR(10)", |r| text(r, 10)),
        kind("VARCHAR(2000)", |r| text(r, 2000)),
        kind("ENUM('a','b','c')", |r| r.random_range(1..4).to_string()),
        kind("SET('a','b','c','d','e','f','g','h','i')", |r| r.random_range(0..512).to_string()),
        kind("TINYTEXT", |r| text(r, 60)),
        kind("TEXT", |r| text(r, 500)),
        kind("MEDIUMTEXT", |r| text(r, 500)),
        kind("LONGTEXT", |r| text(r, 500)),
        kind("TINYBLOB", |r| bytes(r, 255)),
        kind("BLOB", |r| bytes(r, 900)),
        kind("MEDIUMBLOB", |r| bytes(r, 900)),
        kind("LONGBLOB", |r| bytes(r, 900)),
        kind("JSON", |r| format!("'{{\"a\": [{}, null]}}'", r.random::<i32>())),
        kind("POINT", |r| format!("POINT({}, {})", r.random::<i16>(), r.random::<i16>())),
        refused("TIME(0)", |r| format!("'-{}'", clock(r))),
        refused("TIME(5)", |r| format!("'-{}'", clock(r))),
        refused("BINARY(16)", |r| bytes(r, 16)),
        refused("VARBINARY(300)", |r| bytes(r, 300)),
        refused("UUID", |_| "UUID()".to_owned()),
        refused("INET6", |r| format!("'fe80::{:x}'", r.random::<u16>())),
        refused("VARCHAR(40) CHARACTER SET gbk", |_| "'生日'".to_owned()),
        refused("CHAR(40) CHARACTER SET latin1", |_| "'ÄÖÜ'".to_owned()),
    ]
}

struct RawRows {
    table: String,
    table_map: Vec<u8>,
    event_type: u8,
    body: Vec<u8>,
}

/// All rows events between two positions, with their table maps.
async fn raw_rows(database: &Database, file: &str, position: u64, end: u64) -> Vec<RawRows> {
    let mut admin = database.admin().await;
    admin.query_drop("SET @mariadb_slave_capability = 4").await.unwrap();
    let id = database.config().replica_server_id.get();
    let request = BinlogStreamRequest::new(id).with_filename(file.as_bytes()).with_pos(position);
    let mut stream = admin.get_binlog_stream(request).await.unwrap();
    let mut maps: HashMap<[u8; 6], (String, Vec<u8>)> = HashMap::new();
    let mut rows = Vec::new();
    loop {
        let event: Event = tokio::time::timeout(WAIT_MAX, stream.next()).await.unwrap().unwrap().unwrap();
        let (event_type, body) = (event.header().event_type_raw(), event.data().to_vec());
        let id = || -> [u8; 6] { body[..6].try_into().unwrap() };
        match event_type {
            TABLE_MAP => {
                let table = event.read_event::<mysql_async::binlog::events::TableMapEvent>().unwrap();
                let name = format!("{}.{}", table.database_name(), table.table_name());
                maps.insert(id(), (name, body.clone()));
            }
            23..=25 | 30..=32 | 166..=168 => {
                let (table, table_map) = maps[&id()].clone();
                rows.push(RawRows { table, table_map, event_type, body: body.clone() });
            }
            _ => {}
        }
        if u64::from(event.header().log_pos()) >= end {
            stream.close().await.unwrap();
            return rows;
        }
    }
}

/// The same event through `mysql_cdc`: rows of (before, after) images.
type Oracle = Vec<(Option<Vec<Option<MySqlValue>>>, Option<Vec<Option<MySqlValue>>>)>;

fn oracle(raw: &RawRows) -> Result<Oracle, String> {
    let header = |event_type| EventHeader {
        timestamp: 0,
        event_type,
        server_id: 1,
        event_length: 0,
        next_event_position: 0,
        event_flags: 0,
    };
    let mut parser = EventParser::new();
    parser.parse_event(&header(TABLE_MAP), &raw.table_map).map_err(|error| format!("{error:?}"))?;
    match parser.parse_event(&header(raw.event_type), &raw.body).map_err(|error| format!("{error:?}"))? {
        BinlogEvent::WriteRowsEvent(event) => {
            Ok(event.rows.into_iter().map(|row| (None, Some(row.cells))).collect())
        }
        BinlogEvent::UpdateRowsEvent(event) => Ok(event
            .rows
            .into_iter()
            .map(|row| (Some(row.before_update.cells), Some(row.after_update.cells)))
            .collect()),
        BinlogEvent::DeleteRowsEvent(event) => {
            Ok(event.rows.into_iter().map(|row| (Some(row.cells), None)).collect())
        }
        other => Err(format!("{other:?}")),
    }
}

fn bits(bits: &[bool]) -> u64 {
    bits.iter().fold(0, |number, bit| number << 1 | u64::from(*bit))
}

/// Whether both values agree, except in the gaps of `mysql_cdc`: signs, microseconds, `0` as a year.
fn agree(ours: &Value<'_>, theirs: &Option<MySqlValue>) -> bool {
    let Some(theirs) = theirs else { return *ours == Value::Null };
    let number = |bits: u32, raw: u64| match ours {
        Value::UInt(ours) => *ours == raw,
        Value::Int(ours) => *ours as u64 & (u64::MAX >> (64 - bits)) == raw,
        _ => false,
    };
    match (ours, theirs) {
        (_, MySqlValue::TinyInt(raw)) => number(8, u64::from(*raw)),
        (_, MySqlValue::SmallInt(raw)) => number(16, u64::from(*raw)),
        (_, MySqlValue::MediumInt(raw)) => number(24, u64::from(*raw)),
        (_, MySqlValue::Int(raw)) => number(32, u64::from(*raw)),
        (_, MySqlValue::BigInt(raw)) => number(64, *raw),
        (Value::Double(ours), MySqlValue::Float(theirs)) => ours.to_bits() == f64::from(*theirs).to_bits(),
        (Value::Double(ours), MySqlValue::Double(theirs)) => ours.to_bits() == theirs.to_bits(),
        (Value::Bytes(ours), MySqlValue::Decimal(theirs)) => **ours == *theirs.as_bytes(),
        (Value::Bytes(ours), MySqlValue::String(theirs)) => **ours == *theirs.as_bytes(),
        (Value::Bytes(ours), MySqlValue::Blob(theirs)) => **ours == **theirs,
        (Value::UInt(ours), MySqlValue::Bit(theirs)) => *ours == bits(theirs),
        (Value::UInt(ours), MySqlValue::Enum(theirs)) => *ours == u64::from(*theirs),
        (Value::UInt(ours), MySqlValue::Set(theirs)) => *ours == *theirs,
        (Value::UInt(ours), MySqlValue::Year(theirs)) => *ours == u64::from(*theirs),
        (Value::Date { year, month, day }, MySqlValue::Date(theirs)) => {
            (*year, *month, *day) == (theirs.year, theirs.month, theirs.day)
        }
        (
            Value::DateTime { year, month, day, hour, minute, second, microsecond },
            MySqlValue::DateTime(theirs),
        ) => {
            (*year, *month, *day, *hour, *minute, *second, *microsecond / 1000)
                == (
                    theirs.year,
                    theirs.month,
                    theirs.day,
                    theirs.hour,
                    theirs.minute,
                    theirs.second,
                    theirs.millis,
                )
        }
        (Value::Timestamp { microseconds }, MySqlValue::Timestamp(theirs)) => {
            *microseconds as u64 / 1000 == *theirs
        }
        (Value::Time { microseconds }, MySqlValue::Time(theirs)) => {
            let seconds =
                i64::from(theirs.hour) * 3600 + i64::from(theirs.minute) * 60 + i64::from(theirs.second);
            microseconds / 1000 == seconds * 1000 + i64::from(theirs.millis)
        }
        _ => false,
    }
}

fn decode(raw: &RawRows) -> (Vec<String>, Vec<RowImages>) {
    let names = column_names(&raw.table_map).unwrap();
    // Geometry is only skipped.
    let names: Vec<String> = names.into_iter().filter(|name| name != "opaque").collect();
    let rows = decode_rows(&raw.table_map, raw.event_type, &raw.body, &names)
        .unwrap_or_else(|error| panic!("{}: {error}", raw.table));
    (names, rows)
}

/// Compares one event; returns the number of compared values, or the reason why `mysql_cdc` refused the event.
fn compare(raw: &RawRows, ours: &[RowImages], columns: usize) -> Result<usize, String> {
    let theirs = oracle(raw)?;
    assert_eq!(ours.len(), theirs.len(), "{}", raw.table);
    let mut compared = 0;
    for (ours, theirs) in ours.iter().zip(&theirs) {
        for (ours, theirs) in [(&ours.before, &theirs.0), (&ours.after, &theirs.1)] {
            assert_eq!(ours.is_some(), theirs.is_some(), "{}", raw.table);
            let (Some(ours), Some(theirs)) = (ours, theirs) else { continue };
            for (index, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
                assert!(
                    agree(ours, theirs),
                    "{} column {index} of {columns}: {ours:?} against {theirs:?}",
                    raw.table
                );
                compared += 1;
            }
        }
    }
    Ok(compared)
}

/// Writes a table for each type, and one with all that `mysql_cdc` reads: inserts, updates, deletes, a third of it
/// NULL.
async fn write_rows(database: &Database, random: &mut StdRng, kinds: &[Kind]) -> (String, u64, u64) {
    database.run(&["CREATE DATABASE $0"]).await;
    let mut admin = database.admin().await;
    let mut run = Vec::new();
    let column = |index: usize, kind: &Kind| {
        let name = if kind.sql == "POINT" { "opaque".to_owned() } else { format!("c{index}") };
        format!("{name} {}", kind.sql)
    };
    let readable: Vec<&Kind> = kinds.iter().filter(|kind| !kind.is_refused && kind.sql != "POINT").collect();
    let columns: Vec<_> = readable.iter().enumerate().map(|(index, kind)| column(index, kind)).collect();
    run.push(format!(
        "CREATE TABLE all_types (id INT PRIMARY KEY, {}) ROW_FORMAT=DYNAMIC",
        columns.join(", ")
    ));
    for (index, kind) in kinds.iter().enumerate() {
        let column = column(index, kind);
        run.push(format!("CREATE TABLE type_{index} (id INT PRIMARY KEY, {column}, last SMALLINT)"));
    }
    let mut value = |kind: &Kind| {
        if random.random_bool(0.33) { "NULL".to_owned() } else { (kind.value)(random) }
    };
    for row in 0..40 {
        let values: Vec<_> = readable.iter().map(|kind| value(kind)).collect();
        run.push(format!("INSERT INTO all_types VALUES ({row}, {})", values.join(", ")));
    }
    for (index, kind) in kinds.iter().enumerate() {
        let rows: Vec<_> = (0..20).map(|row| format!("({row}, {}, -{row})", value(kind))).collect();
        run.push(format!("INSERT INTO type_{index} VALUES {}", rows.join(", ")));
        run.push(format!("UPDATE type_{index} SET last = last - 1, id = id + 100 WHERE id < 10"));
        run.push(format!("DELETE FROM type_{index} WHERE id >= 15"));
    }
    run.push("UPDATE all_types SET id = id + 1000".to_owned());
    run.push("DELETE FROM all_types".to_owned());
    admin.query_drop(format!("USE {}0", database.prefix)).await.unwrap();
    admin.query_drop("SET sql_mode = '', foreign_key_checks = 0").await.unwrap();
    let start: (String, u64) = end_of_binlog(&mut admin).await;
    for statement in run {
        admin.query_drop(&statement).await.unwrap_or_else(|error| panic!("{statement:.300}: {error}"));
    }
    let end: (String, u64) = end_of_binlog(&mut admin).await;
    assert_eq!(start.0, end.0);
    (start.0, start.1, end.1)
}

async fn end_of_binlog(admin: &mut mysql_async::Conn) -> (String, u64) {
    let row: Option<mysql_async::Row> = match admin.query_first("SHOW BINARY LOG STATUS").await {
        Ok(row) => row,
        Err(_) => admin.query_first("SHOW MASTER STATUS").await.unwrap(),
    };
    let row = row.unwrap();
    (row.get(0).unwrap(), row.get(1).unwrap())
}

async fn agree_on_every_type(database: Database, kinds: Vec<Kind>, is_compressed: bool) {
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let (file, start, end) = write_rows(&database, &mut random, &kinds).await;
    let events = raw_rows(&database, &file, start, end).await;
    let (mut compared, mut refused): (usize, usize) = (0, 0);
    let mut types_seen = std::collections::HashSet::new();
    for raw in &events {
        let table = raw.table.rsplit_once('.').unwrap().1;
        let number = table.strip_prefix("type_").map(|number| number.parse::<usize>().unwrap());
        let (names, rows) = decode(raw);
        types_seen.insert(number);
        // The column after the tested one shows that exactly the tested one was skipped.
        if number.is_some() {
            let last = names.len() - 1;
            for image in rows.iter().flat_map(|row| [&row.before, &row.after]).flatten() {
                let Value::Int(number) = image[last] else { panic!("{}: {image:?}", raw.table) };
                assert!((-20..=0).contains(&number), "{}: {number}", raw.table);
            }
        }
        if number.is_some_and(|number| kinds[number].sql == "POINT") || raw.event_type >= 160 {
            continue;
        }
        match compare(raw, &rows, names.len()) {
            Ok(values) => compared += values,
            Err(error) => {
                let number = number.unwrap_or_else(|| panic!("mysql_cdc refuses {}: {error}", raw.table));
                assert!(kinds[number].is_refused, "mysql_cdc refuses {}: {error}", kinds[number].sql);
                refused += 1;
            }
        }
    }
    assert_eq!(types_seen.len(), kinds.len() + 1);
    if !is_compressed {
        assert!(compared > 10_000 && refused >= 5, "{compared} values compared, {refused} events refused");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_column_type_is_decoded_as_mysql_cdc_does() {
    agree_on_every_type(Database::with_flags(&[]), kinds(), false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_column_type_of_mysql_is_decoded_as_mysql_cdc_does() {
    let Some(database) = Database::mysql() else { return };
    let kinds = kinds().into_iter().filter(|kind| !["UUID", "INET6"].contains(&kind.sql)).collect();
    agree_on_every_type(database, kinds, false).await;
}

/// `mysql_cdc` cannot read these events at all; every row must still be decoded and every column skipped.
#[tokio::test(flavor = "multi_thread")]
async fn every_column_type_is_decoded_from_compressed_events() {
    let database = Database::with_flags(&["--log-bin-compress=ON", "--log-bin-compress-min-len=10"]);
    agree_on_every_type(database, kinds(), true).await;
}

/// Values that `mysql_cdc` refuses or gets wrong are compared with the server's own text.
#[tokio::test(flavor = "multi_thread")]
async fn values_beyond_mysql_cdc_equal_what_was_written() {
    let database = Database::shared();
    database.run(&["CREATE DATABASE $0"]).await;
    let mut admin = database.admin().await;
    let start = end_of_binlog(&mut admin).await;
    database
        .run(&[
            "CREATE TABLE $0.t (year YEAR, bits BIT(3), a MEDIUMINT, b MEDIUMINT UNSIGNED, c TIME(3), d TIME, e BINARY(4), f VARBINARY(9), \
             g VARCHAR(9) CHARACTER SET gbk, h UUID, i VARCHAR(200) COMPRESSED, j TEXT COMPRESSED, k BIGINT, \
             l DECIMAL(20,10), m DATETIME(6))",
            "INSERT INTO $0.t VALUES (0, 5, -3, 16777215, '-838:59:58.999', '-00:00:01', x'ff00', x'00ff00', '生', \
             '00112233-4455-6677-8899-aabbccddeeff', REPEAT('x', 150), REPEAT('y', 5000), -5, -0.0000000001, \
             '9999-12-31 23:59:59.999999')",
        ])
        .await;
    let end = end_of_binlog(&mut admin).await;
    let events = raw_rows(&database, &start.0, start.1, end.1).await;
    let raw = events.iter().find(|raw| raw.table == format!("{}0.t", database.prefix)).unwrap();
    let wanted: Vec<String> =
        ["year", "bits", "a", "b", "c", "d", "e", "f", "g", "h", "k", "l", "m"].map(str::to_owned).to_vec();
    let rows = decode_rows(&raw.table_map, raw.event_type, &raw.body, &wanted).unwrap();
    let bytes = |bytes: &[u8]| Value::Bytes(bytes.to_vec().into());
    let uuid = b"\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff";
    assert_eq!(
        rows[0].after.as_deref().unwrap(),
        [
            Value::UInt(0),
            Value::UInt(5),
            Value::Int(-3),
            Value::UInt(16_777_215),
            Value::Time { microseconds: -(838 * 3600 + 59 * 60 + 58) * 1_000_000 - 999_000 },
            Value::Time { microseconds: -1_000_000 },
            // BINARY is stored without its trailing zeros.
            bytes(b"\xff"),
            bytes(b"\x00\xff\x00"),
            bytes(b"\xc9\xfa"),
            bytes(uuid),
            Value::Int(-5),
            bytes(b"-0.0000000001"),
            Value::DateTime {
                year: 9999,
                month: 12,
                day: 31,
                hour: 23,
                minute: 59,
                second: 59,
                microsecond: 999_999
            },
        ]
    );
}
