//! Devices to search documents: a row claims one wide document (shard, uuid) with all its captured columns.
//!
//! Answers merge the documents of a device by its uuid. The lanes of a target share the one index by a hash of the
//! uuid; each sees it as a table of its own.

use std::borrow::Cow;
use std::sync::Arc;

use anabranch_schemas::change::{Entity, TableIdentity, Value};
use anabranch_schemas::serial::CodeKind;
use anabranch_schemas::{search, serial};

use super::rules::{Claim, Rules};
use super::{Defect, Defects, ProjectedTable};
use crate::config::DocumentIndex;
use crate::records::{Cell, CellRef, DerivedTable, TableShape};

/// The document: its fields are the captured columns and the row's table. The store adds shard, version and source.
static SHAPE: TableShape = TableShape {
    definition: search::SERIAL_DOCUMENTS,
    key_columns: &["uuid"],
    shard_index: "",
    shard_order: &[],
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
/// Index of the uuid in [`Entity::fields`] of a device; the other captured fields are the document's first ones.
const UUID: usize = 0;

/// The document projection.
#[derive(Debug, Clone)]
pub struct SerialDocuments {
    config: DocumentIndex,
    lanes: u32,
    /// One table for each lane; all of them are the same index.
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

    /// Returns the part of the index that holds a device's documents.
    fn table_of(&self, uuid: &[u8]) -> u32 {
        crc32fast::hash(uuid) % self.lanes
    }
}

impl Rules for SerialDocuments {
    fn entity(&self) -> Entity {
        Entity::SerialCode
    }

    fn fields(&self) -> usize {
        Entity::SerialCode.fields().len()
    }

    fn tables(&self) -> &[ProjectedTable] {
        &self.tables
    }

    fn fingerprint(&self, _target: u32) -> String {
        format!("serial_documents, index {}, {} lanes", self.config.index, self.lanes)
    }

    fn source_column(&self) -> usize {
        UUID
    }

    fn key_words(&self) -> usize {
        3
    }

    /// A document is as large as all mapping rows of a device.
    fn flush_weight(&self) -> usize {
        CodeKind::ALL.len()
    }

    fn is_cached(&self) -> bool {
        false
    }

    fn table_of_source_key(&self, key: &[u8]) -> Option<u32> {
        Some(self.table_of(key))
    }

    fn claims(
        &self,
        table: &TableIdentity<'_>,
        row: &[Value<'_>],
        defects: Option<&mut Defects>,
        visit: &mut dyn FnMut(Claim<'_>),
    ) {
        match uuid(row) {
            Ok(uuid) => {
                let key = [CellRef::Bytes(&uuid)];
                visit(Claim { table: self.table_of(&uuid), key: &key, values: &fields(table, row) });
            }
            Err(defect) => {
                if let Some(defects) = defects {
                    defects.count(Defect::Uuid(defect));
                }
            }
        }
    }
}

/// Returns the document's fields: the captured columns after the uuid, and the table.
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

/// Replaces bytes that are not UTF-8 by U+FFFD: documents are for people, the mapping tables keep exact bytes.
fn readable(text: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_a_field_for_each_captured_column() {
        let captured = &Entity::SerialCode.field_names()[UUID + 1..];
        assert_eq!(&SHAPE.value_columns[..captured.len()], captured);
        assert_eq!(&SHAPE.value_columns[captured.len()..], ["database", "table"]);
    }
}
