//! Derived tables and their rows, as they are stored or as a source row claims them.

use anabranch_schemas::shard::ShardId;

/// The shape of the tables of one kind.
#[derive(Debug, PartialEq, Eq)]
pub struct TableShape {
    /// Text from which set-up makes a table: in a SQL store its CREATE TABLE statement, with `{table}` for the name.
    pub definition: &'static str,
    /// The primary key without `shard_id`, in the order of [`super::Mutation::key`].
    pub key_columns: &'static [&'static str],
    /// In a SQL store the name of an index that begins with `shard_id`: it finds the rows of a shard and no others.
    pub shard_index: &'static str,
    /// The key columns that follow `shard_id` in that index, as indexes into `key_columns`.
    pub shard_order: &'static [usize],
    /// Columns that an upsert sets beside `lsn`, in the order of [`super::MutationAction::Upsert`].
    pub value_columns: &'static [&'static str],
}

/// A derived table: its location and its shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DerivedTable {
    pub database: String,
    pub table: String,
    pub shape: &'static TableShape,
}

/// A column value of a derived row.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cell {
    Null,
    Int(i64),
    UInt(u64),
    Bytes(Box<[u8]>),
}

impl Cell {
    pub fn borrowed(&self) -> CellRef<'_> {
        match self {
            Self::Null => CellRef::Null,
            Self::Int(number) => CellRef::Int(*number),
            Self::UInt(number) => CellRef::UInt(*number),
            Self::Bytes(bytes) => CellRef::Bytes(bytes),
        }
    }
}

/// A [`Cell`] without a copy of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellRef<'a> {
    Null,
    Int(i64),
    UInt(u64),
    Bytes(&'a [u8]),
}

impl CellRef<'_> {
    pub fn to_owned(self) -> Cell {
        match self {
            Self::Null => Cell::Null,
            Self::Int(number) => Cell::Int(number),
            Self::UInt(number) => Cell::UInt(number),
            Self::Bytes(bytes) => Cell::Bytes(bytes.into()),
        }
    }
}

/// A derived row, either as it is stored or as a source row claims it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claimed<'a> {
    /// Index into the projection's list of derived tables.
    pub table: u32,
    pub shard: ShardId,
    /// Key columns beside the shard.
    pub key: &'a [CellRef<'a>],
    pub values: &'a [CellRef<'a>],
}

/// A row that no lane can have written: its shard is no number of 63 bits, or its id is not one that a lane writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stray<'a> {
    /// Index into the projection's list of derived tables.
    pub table: u32,
    /// Number of its shard, as the row says it; `None` = the row says none.
    pub shard: Option<u64>,
    /// Key that tells the row from other rows with the same number of a shard.
    pub key: &'a [CellRef<'a>],
}

/// A row that a derived table holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DerivedRow<'a> {
    Claimed(Claimed<'a>),
    Stray(Stray<'a>),
    /// A row of a retired source table: its version is not above the position at which the table left. A table of that
    /// name may exist again; its rows have higher versions.
    Retired(Claimed<'a>),
}

impl<'a> DerivedRow<'a> {
    /// Returns the row, if a source row should make it.
    pub fn claimed(self) -> Option<Claimed<'a>> {
        match self {
            Self::Claimed(claimed) => Some(claimed),
            Self::Stray(_) | Self::Retired(_) => None,
        }
    }
}
