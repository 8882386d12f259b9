//! Devices to mapping tables: a row claims (value, shard, uuid, kind) for each of its codes.
//!
//! The length of a value determines the database and the value itself the table, so a lookup with nothing but the value
//! finds its one table. The rows of one device lie in up to five tables; one transaction writes those of one lane. A
//! code that looks odd is counted and mapped all the same: the source is the truth.

use std::sync::Arc;

use anabranch_schemas::change::{Entity, TableIdentity, Value};
use anabranch_schemas::serial::{
    self, CodeDefect, CodeKind, LENGTH_CLASSES, LengthClass, OddCode, StoredCode,
};
use anabranch_schemas::sql;

use super::rules::{Claim, Rules};
use super::{Defect, Defects, ProjectedTable, share_out, target_count};
use crate::config::{MappingTables, ProjectionConfig, ProjectionKind};
use crate::records::{Cell, CellRef, DerivedTable, TableShape};

/// One table of the mapping layer.
static SHAPE: TableShape = TableShape {
    definition: sql::MAPPING,
    key_columns: &["value", "uuid", "kind"],
    shard_index: "shard_id",
    // After (shard, uuid) InnoDB has the rest of the primary key: value and kind.
    shard_order: &[1, 0, 2],
    value_columns: &[],
};
/// Index of the uuid in [`anabranch_schemas::change::Entity::fields`] of a device; its codes follow in the order of
/// [`CodeKind::ALL`].
const UUID: usize = 0;
/// The mapping projection and its tables.
#[derive(Debug, Clone)]
pub struct SerialMapping {
    config: MappingTables,
    targets: u32,
    lanes: u32,
    tables: Vec<ProjectedTable>,
    /// The empty list of value columns that all rows share.
    no_values: Arc<[Cell]>,
}

impl SerialMapping {
    /// Builds the projection; its tables are in the order of length class and number.
    pub fn new(config: MappingTables, targets: u32, lanes: u32) -> Self {
        let places = LengthClass::ALL.into_iter().zip(0u32..).flat_map(|(class, database)| {
            let derived = |number| DerivedTable {
                database: config.database_name(class),
                table: config.table_name(number),
                shape: &SHAPE,
            };
            (0..config.tables.get()).map(move |number| (database, derived(number))).collect::<Vec<_>>()
        });
        let tables = share_out(places, targets, lanes);
        Self { config, targets, lanes, tables, no_values: Arc::new([]) }
    }

    /// Returns the projection of this configuration; `None` when it is of another kind.
    pub fn configured(config: &ProjectionConfig) -> Option<Self> {
        let ProjectionKind::SerialMapping(tables) = &config.kind else { return None };
        Some(Self::new(tables.clone(), target_count(config), config.lanes.get()))
    }

    pub fn tables(&self) -> &[ProjectedTable] {
        &self.tables
    }

    /// Returns the index of the one table that holds every claim of a value.
    pub fn table_of(&self, value: &StoredCode) -> u32 {
        let tables = self.config.tables.get();
        value.length_class() as u32 * tables + value.table(tables)
    }
}

impl Rules for SerialMapping {
    fn entity(&self) -> Entity {
        Entity::SerialCode
    }

    fn fields(&self) -> usize {
        1 + CodeKind::ALL.len()
    }

    fn tables(&self) -> &[ProjectedTable] {
        &self.tables
    }

    fn fingerprint(&self, target: u32) -> String {
        format!(
            "serial_mapping, {LENGTH_CLASSES} databases {}, {} tables {}, target {} of {}, {} lanes",
            self.config.database,
            self.config.tables,
            self.config.table,
            target + 1,
            self.targets,
            self.lanes
        )
    }

    /// The key columns are value, uuid and kind.
    fn source_column(&self) -> usize {
        1
    }

    fn key_words(&self) -> usize {
        6
    }

    fn flush_weight(&self) -> usize {
        CodeKind::ALL.len()
    }

    fn is_cached(&self) -> bool {
        true
    }

    fn table_of_source_key(&self, _key: &[u8]) -> Option<u32> {
        None
    }

    fn claims(
        &self,
        _table: &TableIdentity<'_>,
        row: &[Value<'_>],
        defects: Option<&mut Defects>,
        visit: &mut dyn FnMut(Claim<'_>),
    ) {
        if let Some(defects) = defects {
            count_defects(row, defects);
        }
        let Ok(uuid) = serial::uuid(row.get(UUID).unwrap_or(&Value::Null)) else { return };
        for kind in CodeKind::ALL {
            let Some(value) = code(row, kind).and_then(|code| StoredCode::new(kind, &code)) else { continue };
            let key = [
                CellRef::Bytes(value.as_bytes()),
                CellRef::Bytes(&uuid),
                CellRef::UInt(kind.number().into()),
            ];
            visit(Claim { table: self.table_of(&value), key: &key, values: &self.no_values });
        }
    }
}

fn code<'r>(row: &'r [Value<'_>], kind: CodeKind) -> Option<std::borrow::Cow<'r, [u8]>> {
    row.get(UUID + usize::from(kind.number())).and_then(serial::text)
}

fn count_defects(row: &[Value<'_>], defects: &mut Defects) {
    if let Err(defect) = serial::uuid(row.get(UUID).unwrap_or(&Value::Null)) {
        defects.count(Defect::Uuid(defect));
        return;
    }
    for kind in CodeKind::ALL {
        if let Some(code) = code(row, kind)
            && !code.is_empty()
            && let Some(defect) = CodeDefect::of(kind, &code)
        {
            defects.count(Defect::OddCode(OddCode { kind, defect }));
        }
    }
}

#[cfg(test)]
mod tests;
