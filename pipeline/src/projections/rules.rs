//! What a projection says of itself: its derived tables, and the derived rows that a source row claims.
//!
//! Lanes and reconciliations both follow from the claims: a change deletes what its old row claims and its new row does
//! not, and writes what its new row claims. So the two cannot differ.

use std::fmt;
use std::sync::Arc;

use anabranch_schemas::change::{Entity, TableIdentity, Value};

use super::{Defects, ProjectedTable};
use crate::records::{Cell, CellRef};

/// A kind of projection: one file of this folder implements it.
pub(super) trait Rules: fmt::Debug + Send + Sync {
    /// The entity whose changes the projection reads.
    fn entity(&self) -> Entity;

    /// How many fields of its entity the projection reads, from the first one on.
    fn fields(&self) -> usize;

    /// All derived tables on all targets.
    fn tables(&self) -> &[ProjectedTable];

    /// A text that says what a progress row on that target was made for.
    fn fingerprint(&self, target: u32) -> String;

    /// The key column of a derived row that is the key of its source row.
    fn source_column(&self) -> usize;

    /// Words of eight bytes that hold nearly all keys of derived rows; a longer key takes several elements of a sketch.
    fn key_words(&self) -> usize;

    /// The part of a flush that one source row takes, where a birthday takes one row.
    fn flush_weight(&self) -> usize;

    /// Whether caches may keep its rows by their first key column, so that lanes note which values they touch.
    fn is_cached(&self) -> bool;

    /// The table with the derived row of a source key, for a projection whose key alone says it.
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
    /// Key columns beside the shard.
    pub(super) key: &'a [CellRef<'a>],
    /// At most [`super::VALUES_MAX`].
    pub(super) values: &'a Arc<[Cell]>,
}
