//! Tests of the bytes: the golden bytes of each version, newer and malformed payloads, and random bytes.

use std::borrow::Cow;

use proptest::prelude::*;

use super::*;
use crate::change::Entity;
use crate::shard::ShardId;

/// Bytes of version 1, never edited: streams in use have them. A change of the format is a new version beside this
/// one.
const GOLDEN: &[u8] = include_bytes!("../golden/v1.bin");

fn table(name: &str) -> TableIdentity<'static> {
    TableIdentity {
        entity: Entity::User,
        shard: ShardId::of("source-a", "user_00", name, 0),
        database: Cow::Borrowed("user_00"),
        table: Cow::Owned(name.to_owned()),
    }
}

fn every_value() -> Row<'static> {
    vec![
        Value::Null,
        Value::Int(-1),
        Value::UInt(u64::MAX),
        Value::Double(0.5),
        Value::Bytes(Cow::Borrowed(b"\xff\0text")),
        Value::Date { year: 2000, month: 2, day: 29 },
        Value::DateTime {
            year: 1999,
            month: 12,
            day: 31,
            hour: 23,
            minute: 59,
            second: 59,
            microsecond: 999_999,
        },
        Value::Timestamp { microseconds: 1_700_000_000_000_000 },
        Value::Time { microseconds: -1 },
    ]
}

fn sample() -> Bytes {
    let mut encoder = Encoder::default();
    let (first, second) = (table("user_000"), table("user_001"));
    let at = |position| Lsn::new(1, 42, position).unwrap();
    encoder.insert(at(160), &first, &every_value());
    encoder.update(at(320), &first, &[Value::UInt(7)], &[Value::UInt(8)]);
    encoder.delete(at(320), &second, &[Value::UInt(9)]);
    encoder.withdraw(at(480), &first);
    encoder.finish()
}

/// Bytes of version 2, never edited.
const GOLDEN_2: &[u8] = include_bytes!("../golden/v2.bin");

fn sample_2() -> Bytes {
    let mut encoder = Encoder::default();
    let at = |position| Lsn::new(1, 42, position).unwrap();
    encoder.insert(at(160), &table("user_000"), &[Value::UInt(7)]);
    encoder.reread(at(320), &table("user_000"));
    encoder.reread(at(480), &TableIdentity::every(Entity::User));
    encoder.finish()
}

/// Bytes of version 2 with a retired table; these bytes are never edited.
const GOLDEN_2_RETIRE: &[u8] = include_bytes!("../golden/v2_retire.bin");

fn sample_2_retire() -> Bytes {
    let mut encoder = Encoder::default();
    let at = |position| Lsn::new(1, 42, position).unwrap();
    let table = TableIdentity { entity: Entity::Flux, ..table("user_000") };
    encoder.insert(at(160), &table, &[Value::UInt(7)]);
    encoder.retire(at(320), &table);
    encoder.finish()
}

fn read(payload: &[u8]) -> Result<Vec<String>, CodecError> {
    let mut changes = Vec::new();
    let mut decoder = decode(payload)?;
    while let Some(change) = decoder.next()? {
        changes.push(format!("{change:?}"));
    }
    Ok(changes)
}

#[test]
fn the_golden_bytes_are_still_written() {
    let payload = sample();
    assert_eq!(&payload[..], GOLDEN, "the encoding changed: make a new version instead");
}

#[test]
fn the_golden_bytes_are_still_read() {
    let changes = read(GOLDEN).unwrap();
    assert_eq!(changes.len(), 4);
    assert!(
        changes[0].contains("UInt(18446744073709551615)") && changes[0].contains("user_000"),
        "{}",
        changes[0]
    );
    assert!(changes[2].contains("Delete") && changes[2].contains("user_001"), "{}", changes[2]);
    assert!(changes[3].contains("Withdraw"), "{}", changes[3]);
}

/// Returns the same payload with another version and a right checksum.
fn as_version(payload: &[u8], version: u8) -> Vec<u8> {
    let mut payload = payload[..payload.len() - CHECKSUM_BYTES].to_vec();
    payload[0] = version;
    payload.extend_from_slice(&crc32fast::hash(&payload).to_le_bytes());
    payload
}

#[test]
fn a_newer_version_is_refused_and_the_error_says_its_number() {
    let newer = as_version(GOLDEN, 3);
    assert_eq!(read(&newer), Err(CodecError::UnknownVersion { found: 3, newest: 2 }));
}

#[test]
fn a_reread_is_written_as_version_2_and_refused_under_version_1() {
    let payload = sample_2();
    assert_eq!(&payload[..], GOLDEN_2, "the encoding changed: make a new version instead");
    let changes = read(GOLDEN_2).unwrap();
    assert_eq!(changes.len(), 3);
    assert!(changes[1].contains("Reread") && changes[1].contains("user_000"), "{}", changes[1]);
    assert!(matches!(read(&as_version(GOLDEN_2, 1)), Err(CodecError::Malformed { .. })));
    assert_eq!(read(&as_version(GOLDEN, 2)), read(GOLDEN), "version 2 has all of version 1");
}

#[test]
fn a_retired_table_is_written_as_version_2_and_refused_under_version_1() {
    let payload = sample_2_retire();
    assert_eq!(&payload[..], GOLDEN_2_RETIRE, "the encoding changed: make a new version instead");
    let changes = read(GOLDEN_2_RETIRE).unwrap();
    assert_eq!(changes.len(), 2);
    assert!(changes[1].contains("Retire") && changes[1].contains("user_000"), "{}", changes[1]);
    assert!(matches!(read(&as_version(GOLDEN_2_RETIRE, 1)), Err(CodecError::Malformed { .. })));
}

/// A build that reads up to version 1 knows neither rereads nor retired tables nor payment documents.
#[test]
fn an_older_lane_stops_by_the_version_at_records_and_entities_that_it_does_not_know() {
    let of = |entity| {
        let mut encoder = Encoder::default();
        let table = TableIdentity { entity, ..table("user_000") };
        encoder.insert(Lsn::new(1, 42, 160).unwrap(), &table, &[Value::UInt(7)]);
        encoder.finish()
    };
    let read_by_older = |payload: &[u8]| decode_up_to(payload, VERSION_1).map(drop);
    for payload in [sample_2(), sample_2_retire(), of(Entity::Flux)] {
        let stop = read_by_older(&payload).unwrap_err();
        assert_eq!(stop, CodecError::UnknownVersion { found: 2, newest: 1 });
        assert!(stop.to_string().ends_with("upgrade the reader of the log first"), "{stop}");
        assert!(read(&payload).is_ok());
    }
    for payload in [sample(), of(Entity::User), of(Entity::SerialCode)] {
        assert_eq!(read_by_older(&payload), Ok(()));
    }
    let before = as_version(&of(Entity::Flux), VERSION_1);
    assert_eq!(read(&before), read(&of(Entity::Flux)), "streams from before this rule are read");
}

/// A payment document without any record of version 2 alone; never edited.
const FLUX_OF_VERSION_2: &str = "020002c7b2c8c4bcb588ee3207757365725f303008757365725f303030018a808080a085800802000102\
     07a6ae2040";

#[test]
fn the_golden_bytes_of_a_payment_document_are_of_version_2_and_an_older_lane_refuses_them() {
    let mut encoder = Encoder::default();
    let document = TableIdentity { entity: Entity::Flux, ..table("user_000") };
    encoder.insert(Lsn::new(1, 42, 160).unwrap(), &document, &[Value::UInt(7)]);
    let payload = encoder.finish();
    let hex: String = payload.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, FLUX_OF_VERSION_2, "the encoding changed: make a new version instead");
    let mut decoder = decode(&payload).unwrap();
    let change = decoder.next().unwrap().expect("there is one");
    assert_eq!(change.table, &document);
    assert!(matches!(&change.action, Action::Insert { after } if *after == [Value::UInt(7)]));
    assert!(decoder.next().unwrap().is_none());
    let stop = decode_up_to(&payload, VERSION_1).map(drop).unwrap_err();
    assert_eq!(stop, CodecError::UnknownVersion { found: 2, newest: 1 });
}

#[test]
fn a_payload_after_one_with_payment_documents_has_version_1_again() {
    let mut encoder = Encoder::default();
    let at = |position| Lsn::new(1, 42, position).unwrap();
    let flux = TableIdentity { entity: Entity::Flux, ..table("user_000") };
    for (payment, version) in [(true, 2), (false, 1), (true, 2)] {
        let table = if payment { flux.clone() } else { table("user_001") };
        encoder.insert(at(160), &table, &[Value::UInt(7)]);
        assert_eq!(encoder.finish()[0], version);
    }
}

/// A user as captured without the lunar columns, which older readers wrote; never edited.
const USER_OF_2_FIELDS: &str = "010000c7b2c8c4bcb588ee3207757365725f303008757365725f303030018a808080a08580080300\
     0202070002020705c60f050493447daf";
const USER_OF_4_FIELDS: &str = "010000c7b2c8c4bcb588ee3207757365725f303008757365725f303030018a808080a08580080300\
     0202070004020705c60f0504040530332d333004056c756e61723e334b32";

#[test]
fn a_user_is_written_with_the_fields_that_are_captured_and_read_with_those_that_are_there() {
    let text = |text: &'static str| Value::Bytes(Cow::Borrowed(text.as_bytes()));
    let row = [Value::UInt(7), Value::Date { year: 1990, month: 5, day: 4 }, text("03-30"), text("lunar")];
    for (fields, golden) in [(2, USER_OF_2_FIELDS), (4, USER_OF_4_FIELDS)] {
        let mut encoder = Encoder::default();
        encoder.update(
            Lsn::new(1, 42, 160).unwrap(),
            &table("user_000"),
            &[Value::UInt(7), Value::Null],
            &row[..fields],
        );
        let payload = encoder.finish();
        let hex: String = payload.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden, "the encoding changed: make a new version instead");
        let mut decoder = decode(&payload).unwrap();
        let change = decoder.next().unwrap().expect("there is one");
        let (_, after) = change.action.images().expect("it is about a row");
        assert_eq!(after, Some(&row[..fields]));
    }
}

#[test]
fn a_payload_after_one_with_a_reread_has_version_1_again() {
    let mut encoder = Encoder::default();
    encoder.reread(Lsn::ZERO, &table("t"));
    assert_eq!(encoder.finish()[0], VERSION_2);
    encoder.withdraw(Lsn::ZERO, &table("t"));
    assert_eq!(encoder.finish()[0], VERSION_1);
}

#[test]
fn a_table_is_written_once_a_batch_and_again_in_the_next() {
    let mut encoder = Encoder::default();
    let one = |encoder: &mut Encoder| {
        encoder.insert(Lsn::ZERO, &table("t"), &[Value::Null]);
        encoder.bytes()
    };
    let first = one(&mut encoder);
    let second = one(&mut encoder) - first;
    assert!(second < 8, "{second} bytes for a second change");
    encoder.finish();
    assert_eq!(one(&mut encoder), first);
}

#[test]
fn a_change_without_table_or_position_is_malformed() {
    for records in [vec![4u8, 0], vec![1, 5, 5, 0]] {
        let mut payload = vec![VERSION_1];
        payload.extend_from_slice(&records);
        payload.extend_from_slice(&crc32fast::hash(&payload).to_le_bytes());
        assert!(matches!(read(&payload), Err(CodecError::Malformed { .. })), "{records:?}");
    }
}

/// The encoder finds a number by the newest table or by its shard, without a search through the tables.
#[test]
fn each_of_a_thousand_tables_written_in_turn_keeps_its_number() {
    let tables: Vec<_> = (0..1_000).map(|number| table(&format!("t{number}"))).collect();
    let mut encoder = Encoder::default();
    for round in 0..3u64 {
        for table in &tables {
            encoder.delete(Lsn::new(1, 1, (round + 1) * 16).unwrap(), table, &[Value::UInt(round)]);
        }
    }
    assert_eq!(encoder.numbers.len(), 1_000);
    let payload = encoder.finish();
    let mut decoder = decode(&payload).unwrap();
    for expected in tables.iter().cycle().take(3_000) {
        assert_eq!(decoder.next().unwrap().unwrap().table, expected);
    }
    assert!(decoder.next().unwrap().is_none());
    assert!(
        encoder.numbers.is_empty() && encoder.newest.is_none(),
        "the next payload names its tables again"
    );
}

proptest! {
    #[test]
    fn any_change_round_trips(rows in prop::collection::vec((any::<bool>(), row(), row()), 0..20)) {
        let mut encoder = Encoder::default();
        let table = table("t");
        let mut expected = Vec::new();
        for (number, (insert, before, after)) in rows.into_iter().enumerate() {
            let lsn = Lsn::new(1, 1, number as u64 * 16).unwrap();
            let action = if insert {
                encoder.insert(lsn, &table, &after);
                Action::Insert { after }
            } else {
                encoder.update(lsn, &table, &before, &after);
                Action::Update { before, after }
            };
            expected.push(format!("{:?}", Change { lsn, table: &table, action }));
        }
        prop_assert_eq!(read(&encoder.finish()), Ok(expected));
    }

    #[test]
    fn damaged_payloads_are_refused(at in 0..GOLDEN.len(), bit in 0..8u8) {
        let mut payload = GOLDEN.to_vec();
        payload[at] ^= 1 << bit;
        prop_assert!(read(&payload).is_err());
    }

    #[test]
    fn any_bytes_are_refused_or_read_without_panic(bytes: Vec<u8>) {
        let _ = read(&bytes);
        let mut payload = vec![VERSION_1];
        payload.extend_from_slice(&bytes);
        payload.extend_from_slice(&crc32fast::hash(&payload).to_le_bytes());
        let _ = read(&payload);
    }
}

fn row() -> impl Strategy<Value = Row<'static>> {
    let value = prop_oneof![
        Just(Value::Null),
        any::<i64>().prop_map(Value::Int),
        any::<u64>().prop_map(Value::UInt),
        any::<Vec<u8>>().prop_map(|bytes| Value::Bytes(Cow::Owned(bytes))),
        any::<i64>().prop_map(|microseconds| Value::Time { microseconds }),
    ];
    prop::collection::vec(value, 0..6)
}
