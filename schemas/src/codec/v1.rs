//! Version 1: `01`, then [`Record`]s in postcard's encoding (varints, length-prefixed bytes), then the CRC-32.
//!
//! A table is written once a batch, before its first change, and referred to by its number (0, 1, …); a position is
//! written once for all changes that share it. Decoding borrows from the payload and never allocates more than
//! the payload's own length allows.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::CodecError;
use crate::change::{Action, Change, Row, TableIdentity, Value};
use crate::lsn::Lsn;

pub const VERSION: u8 = 1;
const CHECKSUM_BYTES: usize = 4;

/// The wire form. Variant and field order are the format.
#[derive(Debug, Deserialize)]
enum Record<'a> {
    #[serde(borrow)]
    Table(TableIdentity<'a>),
    At(Lsn),
    Insert(u32, #[serde(borrow)] Row<'a>),
    Update(u32, #[serde(borrow)] Row<'a>, #[serde(borrow)] Row<'a>),
    Delete(u32, #[serde(borrow)] Row<'a>),
    Withdraw(u32),
}

/// The same wire form, borrowing for encoding.
#[derive(Debug, Serialize)]
enum RecordRef<'r, 'a> {
    Table(&'r TableIdentity<'r>),
    At(Lsn),
    Insert(u32, &'r [Value<'a>]),
    Update(u32, &'r [Value<'a>], &'r [Value<'a>]),
    Delete(u32, &'r [Value<'a>]),
    Withdraw(u32),
}

/// Builds one payload, change by change.
#[derive(Debug)]
pub struct Encoder {
    buffer: Vec<u8>,
    tables: Vec<TableIdentity<'static>>,
    at: Option<Lsn>,
    changes: u32,
}

impl Default for Encoder {
    fn default() -> Self {
        Self { buffer: vec![VERSION], tables: Vec::new(), at: None, changes: 0 }
    }
}

impl Encoder {
    /// Payload bytes so far, without the checksum.
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

    /// The finished payload; the encoder is empty again.
    pub fn finish(&mut self) -> Bytes {
        let mut payload = std::mem::replace(&mut self.buffer, vec![VERSION]);
        self.tables.clear();
        self.at = None;
        self.changes = 0;
        let checksum = crc32fast::hash(&payload);
        payload.extend_from_slice(&checksum.to_le_bytes());
        Bytes::from(payload)
    }

    fn at(&mut self, lsn: Lsn, table: &TableIdentity<'static>) -> u32 {
        let number = match self.tables.iter().rposition(|known| known.shard == table.shard) {
            Some(number) => number as u32,
            None => {
                self.write(&RecordRef::Table(table));
                self.tables.push(table.clone());
                (self.tables.len() - 1) as u32
            }
        };
        if self.at != Some(lsn) {
            self.at = Some(lsn);
            self.write(&RecordRef::At(lsn));
        }
        number
    }

    fn write(&mut self, record: &RecordRef<'_, '_>) {
        let buffer = std::mem::take(&mut self.buffer);
        self.buffer = postcard::to_extend(record, buffer).expect("a growing buffer takes any record");
    }
}

/// Checks version and checksum, and opens the payload for reading.
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
    if body[0] != VERSION {
        return Err(CodecError::UnknownVersion { found: body[0], newest: VERSION });
    }
    Ok(Decoder { rest: &body[1..], length: body.len(), tables: Vec::new(), at: None })
}

/// Yields the changes of one payload in commit order.
#[derive(Debug)]
pub struct Decoder<'a> {
    rest: &'a [u8],
    length: usize,
    tables: Vec<TableIdentity<'a>>,
    at: Option<Lsn>,
}

impl<'a> Decoder<'a> {
    /// The next change, or `None` at the end. (Not an `Iterator`: a change borrows the decoder's table list.)
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Change<'_, 'a>>, CodecError> {
        while !self.rest.is_empty() {
            let offset = self.length - self.rest.len();
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
            };
            let malformed = |reason: &str| CodecError::Malformed { offset, reason: reason.to_owned() };
            let lsn = self.at.ok_or_else(|| malformed("a change before any position"))?;
            let table =
                self.tables.get(number as usize).ok_or_else(|| malformed("a change of an unknown table"))?;
            return Ok(Some(Change { lsn, table, action }));
        }
        Ok(None)
    }
}
