//! The bytes of a payload: a version, then [`Record`]s in postcard's encoding (varints, length-prefixed bytes), then
//! the CRC-32. Version 2 has one more record than version 1: `Reread`.
//!
//! The encoder writes a table once a batch, before its first change, and then refers to it by its number (0, 1, …). It
//! writes a position once for all changes that share it. Decoding borrows from the payload and never allocates more
//! than the payload's own length allows.

use std::collections::HashMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::CodecError;
use crate::change::{Action, Change, Row, TableIdentity, Value};
use crate::lsn::Lsn;
use crate::shard::ShardId;

/// The version without `Reread`.
const VERSION_1: u8 = 1;
const VERSION_2: u8 = 2;
const CHECKSUM_BYTES: usize = 4;

/// The wire form; the order of variants and fields is the format.
#[derive(Debug, Deserialize)]
enum Record<'a> {
    #[serde(borrow)]
    Table(TableIdentity<'a>),
    At(Lsn),
    Insert(u32, #[serde(borrow)] Row<'a>),
    Update(u32, #[serde(borrow)] Row<'a>, #[serde(borrow)] Row<'a>),
    Delete(u32, #[serde(borrow)] Row<'a>),
    Withdraw(u32),
    /// A record of version 2.
    Reread(u32),
}

/// The same wire form as [`Record`], borrowing for encoding.
#[derive(Debug, Serialize)]
enum RecordRef<'r, 'a> {
    Table(&'r TableIdentity<'r>),
    At(Lsn),
    Insert(u32, &'r [Value<'a>]),
    Update(u32, &'r [Value<'a>], &'r [Value<'a>]),
    Delete(u32, &'r [Value<'a>]),
    Withdraw(u32),
    Reread(u32),
}

/// Builds one payload, change by change.
#[derive(Debug)]
pub struct Encoder {
    buffer: Vec<u8>,
    /// Numbers of the tables that the payload has already.
    numbers: HashMap<ShardId, u32>,
    /// Table of the newest change: most changes are of the same one.
    newest: Option<(ShardId, u32)>,
    at: Option<Lsn>,
    changes: u32,
}

impl Default for Encoder {
    fn default() -> Self {
        Self { buffer: vec![VERSION_1], numbers: HashMap::new(), newest: None, at: None, changes: 0 }
    }
}

impl Encoder {
    /// Returns the payload bytes so far, without the checksum.
    pub fn bytes(&self) -> usize {
        self.buffer.len()
    }

    pub fn changes(&self) -> u32 {
        self.changes
    }

    pub fn is_empty(&self) -> bool {
        self.changes == 0
    }

    pub fn insert(&mut self, lsn: Lsn, table: &TableIdentity<'static>, after: &[Value<'_>]) {
        let number = self.at(lsn, table);
        self.write(&RecordRef::Insert(number, after));
        self.changes += 1;
    }

    pub fn update(
        &mut self,
        lsn: Lsn,
        table: &TableIdentity<'static>,
        before: &[Value<'_>],
        after: &[Value<'_>],
    ) {
        let number = self.at(lsn, table);
        self.write(&RecordRef::Update(number, before, after));
        self.changes += 1;
    }

    pub fn delete(&mut self, lsn: Lsn, table: &TableIdentity<'static>, before: &[Value<'_>]) {
        let number = self.at(lsn, table);
        self.write(&RecordRef::Delete(number, before));
        self.changes += 1;
    }

    pub fn withdraw(&mut self, lsn: Lsn, table: &TableIdentity<'static>) {
        let number = self.at(lsn, table);
        self.write(&RecordRef::Withdraw(number));
        self.changes += 1;
    }

    pub fn reread(&mut self, lsn: Lsn, table: &TableIdentity<'static>) {
        let number = self.at(lsn, table);
        self.write(&RecordRef::Reread(number));
        self.buffer[0] = VERSION_2;
        self.changes += 1;
    }

    /// Returns the finished payload and empties the encoder.
    pub fn finish(&mut self) -> Bytes {
        let mut payload = std::mem::replace(&mut self.buffer, vec![VERSION_1]);
        self.numbers.clear();
        self.newest = None;
        self.at = None;
        self.changes = 0;
        let checksum = crc32fast::hash(&payload);
        payload.extend_from_slice(&checksum.to_le_bytes());
        Bytes::from(payload)
    }

    fn at(&mut self, lsn: Lsn, table: &TableIdentity<'static>) -> u32 {
        let number = match self.newest {
            Some((shard, number)) if shard == table.shard => number,
            _ => self.number(table),
        };
        self.newest = Some((table.shard, number));
        if self.at != Some(lsn) {
            self.at = Some(lsn);
            self.write(&RecordRef::At(lsn));
        }
        number
    }

    /// Returns the number of a table; writes the table first when it has none.
    fn number(&mut self, table: &TableIdentity<'static>) -> u32 {
        if let Some(number) = self.numbers.get(&table.shard) {
            return *number;
        }
        self.write(&RecordRef::Table(table));
        let number = self.numbers.len() as u32;
        self.numbers.insert(table.shard, number);
        number
    }

    fn write(&mut self, record: &RecordRef<'_, '_>) {
        let buffer = std::mem::take(&mut self.buffer);
        self.buffer = postcard::to_extend(record, buffer).expect("a growing buffer takes any record");
    }
}

/// Checks version and checksum, and returns the reader of the payload.
pub fn decode(payload: &[u8]) -> Result<Decoder<'_>, CodecError> {
    if payload.len() < 1 + CHECKSUM_BYTES {
        return Err(CodecError::Truncated { length: payload.len() });
    }
    let (body, checksum) = payload.split_at(payload.len() - CHECKSUM_BYTES);
    let found = u32::from_le_bytes(checksum.try_into().expect("split at four bytes"));
    let computed = crc32fast::hash(body);
    if found != computed {
        return Err(CodecError::ChecksumMismatch { found, computed });
    }
    let version = body[0];
    if !(VERSION_1..=VERSION_2).contains(&version) {
        return Err(CodecError::UnknownVersion { found: version, newest: VERSION_2 });
    }
    Ok(Decoder { version, rest: &body[1..], length: body.len(), tables: Vec::new(), at: None })
}

/// Yields the changes of one payload in commit order.
#[derive(Debug)]
pub struct Decoder<'a> {
    version: u8,
    rest: &'a [u8],
    length: usize,
    tables: Vec<TableIdentity<'a>>,
    at: Option<Lsn>,
}

impl<'a> Decoder<'a> {
    /// Returns the next change, or `None` at the end. (Not an `Iterator`: a change borrows the decoder's table list.)
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Change<'_, 'a>>, CodecError> {
        while !self.rest.is_empty() {
            let offset = self.length - self.rest.len();
            let malformed = |reason: &str| CodecError::Malformed { offset, reason: reason.to_owned() };
            let (record, rest) = postcard::take_from_bytes::<Record<'a>>(self.rest)
                .map_err(|error| CodecError::Malformed { offset, reason: error.to_string() })?;
            self.rest = rest;
            let (number, action) = match record {
                Record::Table(table) => {
                    self.tables.push(table);
                    continue;
                }
                Record::At(lsn) => {
                    self.at = Some(lsn);
                    continue;
                }
                Record::Insert(number, after) => (number, Action::Insert { after }),
                Record::Update(number, before, after) => (number, Action::Update { before, after }),
                Record::Delete(number, before) => (number, Action::Delete { before }),
                Record::Withdraw(number) => (number, Action::Withdraw),
                Record::Reread(_) if self.version == VERSION_1 => {
                    return Err(malformed("a record that version 1 does not have"));
                }
                Record::Reread(number) => (number, Action::Reread),
            };
            let lsn = self.at.ok_or_else(|| malformed("a change before any position"))?;
            let table =
                self.tables.get(number as usize).ok_or_else(|| malformed("a change of an unknown table"))?;
            return Ok(Some(Change { lsn, table, action }));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use proptest::prelude::*;

    use super::*;
    use crate::change::Entity;
    use crate::shard::ShardId;

    /// Bytes of version 1, never edited: streams in use have them. A change of the format is a new version beside this
    /// one.
    const GOLDEN: &[u8] = include_bytes!("golden/v1.bin");

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
    const GOLDEN_2: &[u8] = include_bytes!("golden/v2.bin");

    fn sample_2() -> Bytes {
        let mut encoder = Encoder::default();
        let at = |position| Lsn::new(1, 42, position).unwrap();
        encoder.insert(at(160), &table("user_000"), &[Value::UInt(7)]);
        encoder.reread(at(320), &table("user_000"));
        encoder.reread(at(480), &TableIdentity::every(Entity::User));
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
    fn a_newer_version_is_named() {
        let newer = as_version(GOLDEN, 3);
        assert_eq!(read(&newer), Err(CodecError::UnknownVersion { found: 3, newest: 2 }));
    }

    #[test]
    fn a_reread_is_written_as_version_2_and_no_part_of_version_1() {
        let payload = sample_2();
        assert_eq!(&payload[..], GOLDEN_2, "the encoding changed: make a new version instead");
        let changes = read(GOLDEN_2).unwrap();
        assert_eq!(changes.len(), 3);
        assert!(changes[1].contains("Reread") && changes[1].contains("user_000"), "{}", changes[1]);
        assert!(matches!(read(&as_version(GOLDEN_2, 1)), Err(CodecError::Malformed { .. })));
        assert_eq!(read(&as_version(GOLDEN, 2)), read(GOLDEN), "version 2 has all of version 1");
    }

    /// A user as captured without the lunar columns, which older readers wrote; never edited.
    const USER_OF_2_FIELDS: &str = "010000c7b2c8c4bcb588ee3207757365725f303008757365725f303030018a808080a08580080300\
         0202070002020705c60f050493447daf";
    const USER_OF_4_FIELDS: &str = "010000c7b2c8c4bcb588ee3207757365725f303008757365725f303030018a808080a08580080300\
         0202070004020705c60f0504040530332d333004056c756e61723e334b32";

    #[test]
    fn a_user_is_written_with_the_fields_that_are_captured_and_read_with_those_that_are_there() {
        let text = |text: &'static str| Value::Bytes(Cow::Borrowed(text.as_bytes()));
        let row =
            [Value::UInt(7), Value::Date { year: 1990, month: 5, day: 4 }, text("03-30"), text("lunar")];
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
}
