//! Derived rows as numbers, which the sketch adds, subtracts and gives back.
//!
//! A row becomes one element, or several when its key is long: shard, table, fingerprint, and a part of the key. The
//! fingerprint is a seeded hash of table, shard, key and values, each with its type and length. So NULL differs from an
//! empty text and `x0 y` from `x 0y`, and a collision in one reconciliation is none in the next. Elements carry no
//! values: code that needs them reads the row.

use std::cmp::Ordering;

use anabranch_schemas::shard::ShardId;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::records::{Cell, CellRef, Claimed};

/// Words before the key's part: shard, table with part number and key length, fingerprint.
const HEAD: usize = 3;
const WORD: usize = 8;
/// Bits of the second word: table (32), number of the part (12), bytes of the whole key (20).
const TABLE_SHIFT: u32 = 32;
const PART_SHIFT: u32 = 20;
const PART_MASK: u64 = (1 << 12) - 1;
const LENGTH_MASK: u64 = (1 << 20) - 1;

const NULL: u8 = 0;
const INT: u8 = 1;
const UINT: u8 = 2;
const BYTES: u8 = 3;
const TAG_BITS: u32 = 2;

/// Length of the elements of a projection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ElementShape {
    /// Words of a key's part; most keys need one part.
    pub key_words: usize,
}

impl ElementShape {
    pub fn words(self) -> usize {
        HEAD + self.key_words
    }
}

/// Turns rows into elements; keeps its buffers between rows.
#[derive(Debug)]
pub struct Elements {
    shape: ElementShape,
    seed: u64,
    bytes: Vec<u8>,
    words: Vec<u64>,
}

impl Elements {
    pub fn new(shape: ElementShape, seed: u64) -> Self {
        Self { shape, seed, bytes: Vec::new(), words: vec![0; shape.words()] }
    }

    /// Returns the number of words of each element.
    pub fn words(&self) -> usize {
        self.shape.words()
    }

    /// Returns the index of an element's fingerprint among the sums by table and bucket, and the fingerprint; `None`
    /// for all parts of a row but the first, so that a row counts once.
    pub fn sum_place(element: &[u64], buckets: u64) -> Option<(usize, u64)> {
        let (place, fingerprint) = (element[1], element[2]);
        let is_first = place >> PART_SHIFT & PART_MASK == 0;
        is_first.then(|| (sum_place((place >> TABLE_SHIFT) as u32, fingerprint, buckets), fingerprint))
    }

    /// Visits the row's elements and returns its fingerprint.
    pub fn of(&mut self, row: &Claimed<'_>, mut visit: impl FnMut(&[u64])) -> u64 {
        self.bytes.clear();
        row.key.iter().for_each(|cell| pack(*cell, &mut self.bytes));
        let key_length = self.bytes.len();
        row.values.iter().for_each(|cell| pack(*cell, &mut self.bytes));
        // The hash includes the end of the key: one more column in the key differs from one more value.
        let place = u64::from(row.table) << TABLE_SHIFT;
        self.bytes.extend_from_slice(&row.shard.as_u64().to_le_bytes());
        self.bytes.extend_from_slice(&(place | key_length as u64).to_le_bytes());
        let fingerprint = xxh3_64_with_seed(&self.bytes, self.seed);
        self.words[0] = row.shard.as_u64();
        self.words[2] = fingerprint;
        let part_bytes = self.shape.key_words * WORD;
        for (number, part) in self.bytes[..key_length].chunks(part_bytes).enumerate() {
            self.words[1] = place | (number as u64) << PART_SHIFT | (key_length as u64 & LENGTH_MASK);
            for (word, bytes) in self.words[HEAD..].iter_mut().zip(0..) {
                let rest = part.get(bytes * WORD..).unwrap_or_default();
                let mut of_word = [0; WORD];
                let length = rest.len().min(WORD);
                of_word[..length].copy_from_slice(&rest[..length]);
                *word = u64::from_le_bytes(of_word);
            }
            visit(&self.words);
        }
        fingerprint
    }
}

/// Returns the index of a row among the sums by table and bucket.
pub fn sum_place(table: u32, fingerprint: u64, buckets: u64) -> usize {
    (u64::from(table) * buckets + (fingerprint >> 32) % buckets) as usize
}

/// The key of a derived row that one side lacks or has with other values.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowKey {
    pub shard: ShardId,
    pub table: u32,
    pub key: Box<[Cell]>,
}

/// Orders elements so that the parts of one key follow one another.
pub fn order(one: &[u64], other: &[u64]) -> Ordering {
    row_of(one).cmp(&row_of(other)).then(one[1].cmp(&other[1]))
}

/// Returns whether both elements are parts of the same row.
pub fn are_of_one_row(one: &[u64], other: &[u64]) -> bool {
    row_of(one) == row_of(other)
}

/// Returns the words that all parts of a row share: shard, table with key length, fingerprint.
fn row_of(words: &[u64]) -> (u64, u64, u64) {
    (words[0], words[1] & !(PART_MASK << PART_SHIFT), words[2])
}

/// Returns the key of these parts, which come in order; `None` when a part is missing, as in a sketch that was misread.
pub fn assemble<'e>(parts: impl Iterator<Item = &'e [u64]>) -> Option<RowKey> {
    let (mut bytes, mut head) = (Vec::new(), None);
    for (number, words) in parts.enumerate() {
        if words[1] >> PART_SHIFT & PART_MASK != number as u64 {
            return None;
        }
        head = Some(words[..2].to_vec());
        bytes.extend(words[HEAD..].iter().flat_map(|word| word.to_le_bytes()));
    }
    let head = head?;
    let length = (head[1] & LENGTH_MASK) as usize;
    let (shard, table) = (ShardId::from_u64(head[0])?, (head[1] >> TABLE_SHIFT) as u32);
    Some(RowKey { shard, table, key: unpack(bytes.get(..length)?)? })
}

/// Appends a tag in the lowest bits with the length beside it, then the bytes; those of a number have no leading zeros.
fn pack(cell: CellRef<'_>, into: &mut Vec<u8>) {
    let mut bytes = |tag: u8, bytes: &[u8]| {
        let mut head = (bytes.len() as u64) << TAG_BITS | u64::from(tag);
        while head >= 0x80 {
            into.push(head as u8 | 0x80);
            head >>= 7;
        }
        into.push(head as u8);
        into.extend_from_slice(bytes);
    };
    let mut number = |tag: u8, number: u64| {
        let length = WORD - number.leading_zeros() as usize / 8;
        bytes(tag, &number.to_le_bytes()[..length]);
    };
    match cell {
        CellRef::Null => into.push(NULL),
        CellRef::Int(value) => number(INT, value as u64),
        CellRef::UInt(value) => number(UINT, value),
        CellRef::Bytes(value) => bytes(BYTES, value),
    }
}

fn unpack(mut bytes: &[u8]) -> Option<Box<[Cell]>> {
    let mut cells = Vec::new();
    while !bytes.is_empty() {
        let (mut head, mut shift) = (0u64, 0);
        loop {
            let (first, rest) = bytes.split_first()?;
            bytes = rest;
            head |= u64::from(first & 0x7f) << shift;
            shift += 7;
            if first & 0x80 == 0 {
                break;
            }
            if shift > 28 {
                return None;
            }
        }
        let (tag, length) = ((head & ((1 << TAG_BITS) - 1)) as u8, (head >> TAG_BITS) as usize);
        let (value, rest) = bytes.split_at_checked(length)?;
        bytes = rest;
        let number = || {
            let mut number = [0; WORD];
            number.get_mut(..length)?.copy_from_slice(value);
            Some(u64::from_le_bytes(number))
        };
        cells.push(match tag {
            NULL if length == 0 => Cell::Null,
            INT => Cell::Int(number()? as i64),
            UINT => Cell::UInt(number()?),
            BYTES => Cell::Bytes(value.into()),
            _ => return None,
        });
    }
    Some(cells.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHAPE: ElementShape = ElementShape { key_words: 2 };

    fn elements(row: &RowKey, values: &[CellRef<'_>]) -> (Vec<Vec<u64>>, u64) {
        let key: Vec<CellRef<'_>> = row.key.iter().map(Cell::borrowed).collect();
        let row = Claimed { table: row.table, shard: row.shard, key: &key, values };
        let mut all = Vec::new();
        let fingerprint = Elements::new(SHAPE, 7).of(&row, |words| all.push(words.to_vec()));
        (all, fingerprint)
    }

    fn cell() -> impl Strategy<Value = Cell> {
        prop_oneof![
            Just(Cell::Null),
            any::<i64>().prop_map(Cell::Int),
            any::<u64>().prop_map(Cell::UInt),
            prop::collection::vec(any::<u8>(), 0..300).prop_map(|bytes| Cell::Bytes(bytes.into())),
        ]
    }

    fn row_key() -> impl Strategy<Value = RowKey> {
        (0..=u64::MAX >> 1, any::<u32>(), prop::collection::vec(cell(), 1..4)).prop_map(
            |(shard, table, key)| {
                let shard = ShardId::from_u64(shard).expect("63 bits");
                RowKey { shard, table, key: key.into() }
            },
        )
    }

    #[test]
    fn a_short_key_is_one_element() {
        let key =
            RowKey { shard: ShardId::from_u64(3).unwrap(), table: 5, key: [Cell::UInt(500_000_000)].into() };
        assert_eq!(elements(&key, &[]).0.len(), 1);
    }

    #[test]
    fn what_elements_differ_by() {
        let row =
            |cells: &[Cell]| RowKey { shard: ShardId::from_u64(3).unwrap(), table: 5, key: cells.into() };
        let bytes = |text: &str| Cell::Bytes(text.as_bytes().into());
        let fingerprints = [
            elements(&row(&[bytes("x0"), bytes("y")]), &[]).1,
            elements(&row(&[bytes("x"), bytes("0y")]), &[]).1,
            elements(&row(&[bytes("x0y")]), &[]).1,
            elements(&row(&[bytes("x0")]), &[CellRef::Bytes(b"y")]).1,
            elements(&row(&[bytes("x0")]), &[CellRef::Null]).1,
            elements(&row(&[bytes("x0")]), &[CellRef::Bytes(b"")]).1,
            elements(&row(&[bytes("x0")]), &[CellRef::UInt(0)]).1,
            elements(&row(&[bytes("x0")]), &[CellRef::Int(0)]).1,
            elements(&row(&[bytes("x0")]), &[]).1,
        ];
        let distinct: std::collections::BTreeSet<u64> = fingerprints.into();
        assert_eq!(distinct.len(), fingerprints.len());
    }

    proptest! {
        #[test]
        fn elements_lead_back_to_their_keys(rows in prop::collection::btree_set(row_key(), 0..20)) {
            let mut all: Vec<Vec<u64>> = rows.iter().flat_map(|row| elements(row, &[]).0).collect();
            all.sort_by(|one, other| order(one, other));
            let groups = all.chunk_by(|one, other| are_of_one_row(one, other));
            let found = groups.map(|parts| assemble(parts.iter().map(Vec::as_slice)));
            let mut found: Vec<RowKey> = found.collect::<Option<_>>().expect("whole");
            found.sort();
            prop_assert_eq!(found, rows.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn a_part_that_is_missing_is_noticed(row in row_key()) {
            let (mut all, _) = elements(&row, &[]);
            prop_assume!(all.len() > 1);
            all.remove(0);
            prop_assert_eq!(assemble(all.iter().map(Vec::as_slice)), None);
        }

        #[test]
        fn no_words_make_it_panic(words in prop::collection::vec(prop::collection::vec(any::<u64>(), 5), 0..5)) {
            assemble(words.iter().map(Vec::as_slice));
        }
    }
}
