//! Devices to search documents: a row claims one wide document (shard, uuid) with all its captured columns.
//!
//! Answers merge the documents of a device by its uuid. The lanes of a target share the one index by a hash of the
//! uuid; each sees it as a table of its own.

use std::borrow::Cow;
use std::sync::Arc;

use anabranch_schemas::change::{Change, Entity, TableIdentity, Value};
use anabranch_schemas::{search, serial};

use super::{Defect, Defects, LaneScope, ProjectedTable, push_if_owned};
use crate::config::DocumentIndex;
use crate::records::{Cell, CellRef, Claimed, DerivedTable, Flush, Mutation, MutationAction, TableShape};

/// The document: its fields are the captured columns and where the row lies. The store adds shard, version and source.
static SHAPE: TableShape = TableShape {
    definition: search::SERIAL_DOCUMENTS,
    key_columns: &["uuid"],
    shard_index: "",
    value_columns: &[
        "imei1",
        "imei2",
        "meid",
        "box_no",
        "item_code",
        "first_agent_code",
        "warehouse_code",
        "account_id",
        "sku_code",
        "database",
        "table",
    ],
};
/// Place in [`Entity::fields`] of a device; the other captured fields are the document's first.
const UUID: usize = 0;

/// The document projection.
#[derive(Debug, Clone)]
pub struct SerialDocuments {
    config: DocumentIndex,
    lanes: u32,
    /// One for each lane, all of them the same index.
    tables: Vec<ProjectedTable>,
}

impl SerialDocuments {
    pub fn new(config: DocumentIndex, lanes: u32) -> Self {
        let table = |lane| {
            let derived =
                DerivedTable { database: String::new(), table: config.index.clone(), shape: &SHAPE };
            ProjectedTable { derived, target: 0, lane }
        };
        Self { tables: (0..lanes).map(table).collect(), config, lanes }
    }

    pub fn tables(&self) -> &[ProjectedTable] {
        &self.tables
    }

    pub fn fingerprint(&self) -> String {
        format!("serial_documents, index {}, {} lanes", self.config.index, self.lanes)
    }

    pub(super) fn claims(
        &self,
        table: &TableIdentity<'_>,
        row: &[Value<'_>],
        mut visit: impl FnMut(Claimed<'_>),
    ) {
        let Ok(uuid) = uuid(row) else { return };
        let fields = fields(table, row);
        let values: Vec<CellRef<'_>> = fields.iter().map(Cell::borrowed).collect();
        let key = [CellRef::Bytes(&uuid)];
        visit(Claimed { table: self.table_of(&uuid), shard: table.shard, key: &key, values: &values });
    }

    /// The part of the index that a device's documents are in.
    pub fn table_of(&self, uuid: &[u8]) -> u32 {
        crc32fast::hash(uuid) % self.lanes
    }

    pub(super) fn project(
        &self,
        change: &Change<'_, '_>,
        scope: LaneScope,
        flush: &mut Flush,
        defects: &mut Defects,
    ) {
        let Some((before, after)) = change.action.images() else {
            return flush.take_table(change);
        };
        let old = before.and_then(|row| uuid(row).ok());
        let new = match after.map(uuid) {
            Some(Ok(uuid)) => Some(uuid),
            Some(Err(defect)) => {
                if scope == LaneScope::COUNTS_DEFECTS {
                    defects.count(Defect::Uuid(defect));
                }
                None
            }
            None => None,
        };
        let mut push = |uuid: &[u8], action| {
            let key = Box::new([Cell::Bytes(uuid.into())]);
            let table = self.table_of(uuid);
            let mutation = Mutation { table, shard: change.table.shard, key, lsn: change.lsn, action };
            push_if_owned(&self.tables, scope, flush, mutation);
        };
        if let Some(old) = &old
            && new.as_ref() != Some(old)
        {
            push(old, MutationAction::Delete);
        }
        if let (Some(new), Some(row)) = (&new, after) {
            push(new, MutationAction::Upsert(fields(change.table, row)));
        }
    }
}

/// The captured columns after the uuid, and the place.
fn fields(table: &TableIdentity<'_>, row: &[Value<'_>]) -> Arc<[Cell]> {
    let captured = (UUID + 1)..Entity::SerialCode.fields().len();
    let cell = |field| match row.get(field).and_then(serial::text) {
        Some(text) if !text.is_empty() => Cell::Bytes(readable(&text).as_bytes().into()),
        _ => Cell::Null,
    };
    let place = [&table.database, &table.table];
    captured.map(cell).chain(place.map(|name| Cell::Bytes(name.as_bytes().into()))).collect()
}

fn uuid(row: &[Value<'_>]) -> Result<Vec<u8>, serial::UuidDefect> {
    let uuid = serial::uuid(row.get(UUID).unwrap_or(&Value::Null))?;
    Ok(readable(&uuid).into_owned().into_bytes())
}

/// What is not UTF-8 gets U+FFFD: documents are for people, exact bytes are the mapping tables' matter.
fn readable(text: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_a_field_for_each_captured_column() {
        let captured = &Entity::SerialCode.fields()[UUID + 1..];
        assert_eq!(&SHAPE.value_columns[..captured.len()], captured);
        assert_eq!(&SHAPE.value_columns[captured.len()..], ["database", "table"]);
    }
}
