//! The bytes of a payload: a version, then [`Record`]s in postcard's encoding (varints, length-prefixed bytes), then
//! the CRC-32. Version 2 has two more records than version 1: `Reread` and `Retire`. A payload with a table of payment
//! documents has version 2, too: a program that does not know their entity could not read the table.
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

/// The version without `Reread` and `Retire`.
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
    /// A record of version 2.
    Retire(u32),
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
    Retire(u32),
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

    pub fn retire(&mut self, lsn: Lsn, table: &TableIdentity<'static>) {
        let number = self.at(lsn, table);
        self.write(&RecordRef::Retire(number));
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
        if !table.entity.is_known_to_version_1() {
            self.buffer[0] = VERSION_2;
        }
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
    decode_up_to(payload, VERSION_2)
}

/// Decodes as a build does whose newest version is this one.
fn decode_up_to(payload: &[u8], newest: u8) -> Result<Decoder<'_>, CodecError> {
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
    if !(VERSION_1..=newest).contains(&version) {
        return Err(CodecError::UnknownVersion { found: version, newest });
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
                Record::Reread(_) | Record::Retire(_) if self.version == VERSION_1 => {
                    return Err(malformed("a record that version 1 does not have"));
                }
                Record::Reread(number) => (number, Action::Reread),
                Record::Retire(number) => (number, Action::Retire),
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
mod tests;
