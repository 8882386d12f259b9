//! The rules of a projection: its derived tables, and the derived rows that a source row claims.
//!
//! Lanes and reconciliations both follow from the claims. A change deletes the rows that its old row claims and its new
//! row does not, and writes the rows that its new row claims. So the two cannot differ.

use std::fmt;
use std::sync::Arc;

use anabranch_schemas::change::{Entity, TableIdentity, Value};

use super::{Defects, ProjectedTable};
use crate::records::{Cell, CellRef};

/// A kind of projection: one file of this folder implements it.
pub(super) trait Rules: fmt::Debug + Send + Sync {
    /// Returns the entity whose changes the projection reads.
    fn entity(&self) -> Entity;

    /// Returns how many fields of its entity the projection reads, from the first one on.
    fn fields(&self) -> usize;

    /// Returns all derived tables on all targets.
    fn tables(&self) -> &[ProjectedTable];

    /// Returns the text that ties progress on that target to its tables.
    fn fingerprint(&self, target: u32) -> String;

    /// Returns the index of the derived row's key column that is the key of its source row.
    fn source_column(&self) -> usize;

    /// Returns the number of eight-byte words that hold nearly all keys; a longer key takes several elements of a
    /// sketch.
    fn key_words(&self) -> usize;

    /// Returns the weight of one source row in a flush, in rows of a birthday.
    fn flush_weight(&self) -> usize;

    /// Returns whether caches may keep its rows by their first key column, so that lanes note the values that they
    /// touch.
    fn is_cached(&self) -> bool;

    /// Returns the table with the derived row of a source key; `None` unless the key alone determines it.
    fn table_of_source_key(&self, key: &[u8]) -> Option<u32>;

    /// Visits each claim of a source row, and counts its defects if they are wanted. A row whose key has a defect
    /// claims nothing. No two claims of a row have the same table and key.
    fn claims(
        &self,
        table: &TableIdentity<'_>,
        row: &[Value<'_>],
        defects: Option<&mut Defects>,
        visit: &mut dyn FnMut(Claim<'_>),
    );
}

/// A derived row that a source row claims. Its shard is that of the source row's table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim<'a> {
    /// Index into the projection's derived tables.
    pub(super) table: u32,
    /// Key columns without the shard.
    pub(super) key: &'a [CellRef<'a>],
    /// Value columns, at most [`super::VALUES_MAX`].
    pub(super) values: &'a Arc<[Cell]>,
}
