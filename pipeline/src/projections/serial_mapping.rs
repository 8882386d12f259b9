//! Devices to mapping tables: a row claims (value, shard, uuid, kind) for each of its codes.
//!
//! The length of a value names the database and the value itself the table, so a lookup that knows nothing but the
//! value finds its one table. The rows of one device lie in up to five tables; those that belong to one lane are
//! written in one transaction. A code that looks odd is counted and mapped all the same: the source is the truth.

use std::sync::Arc;

use anabranch_schemas::change::{Change, TableIdentity, Value};
use anabranch_schemas::serial::{
    self, CodeDefect, CodeKind, LENGTH_CLASSES, LengthClass, OddCode, StoredCode,
};
use anabranch_schemas::sql;

use super::{Defect, Defects, LaneScope, ProjectedTable, push_if_owned, share_out};
use crate::config::MappingTables;
use crate::records::{Cell, CellRef, Claimed, DerivedTable, Flush, Mutation, MutationAction, TableShape};

/// One table of the mapping layer.
static SHAPE: TableShape = TableShape {
    definition: sql::MAPPING,
    key_columns: &["value", "uuid", "kind"],
    shard_index: "shard_id",
    value_columns: &[],
};
/// Place in [`anabranch_schemas::change::Entity::fields`] of a device; its codes follow in the order of
/// [`CodeKind::ALL`].
const UUID: usize = 0;
/// Fields of a device that it reads.
pub(super) const FIELDS: usize = 1 + CodeKind::ALL.len();

/// What one source row says about one of its codes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CodeClaim {
    value: StoredCode,
    kind: CodeKind,
}

/// The mapping projection: its tables.
#[derive(Debug, Clone)]
pub struct SerialMapping {
    config: MappingTables,
    targets: u32,
    lanes: u32,
    tables: Vec<ProjectedTable>,
    /// The value columns of every row: there are none.
    no_values: Arc<[Cell]>,
}

impl SerialMapping {
    /// Tables in the order of length class and number.
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

    pub fn tables(&self) -> &[ProjectedTable] {
        &self.tables
    }

    pub fn fingerprint(&self, target: u32) -> String {
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

    /// The one table that holds every claim of a value.
    pub fn table_of(&self, value: &StoredCode) -> u32 {
        let tables = self.config.tables.get();
        value.length_class() as u32 * tables + value.table(tables)
    }

    pub(super) fn claims(
        &self,
        table: &TableIdentity<'_>,
        row: &[Value<'_>],
        mut visit: impl FnMut(Claimed<'_>),
    ) {
        let Ok(uuid) = serial::uuid(row.get(UUID).unwrap_or(&Value::Null)) else { return };
        for kind in CodeKind::ALL {
            let Some(value) = code(row, kind).and_then(|code| StoredCode::new(kind, &code)) else { continue };
            let key = [
                CellRef::Bytes(value.as_bytes()),
                CellRef::Bytes(&uuid),
                CellRef::UInt(kind.number().into()),
            ];
            visit(Claimed { table: self.table_of(&value), shard: table.shard, key: &key, values: &[] });
        }
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
        if let Some(row) = after
            && scope == LaneScope::COUNTS_DEFECTS
        {
            count_defects(row, defects);
        }
        let old = before.map(claims).unwrap_or_default();
        let new = after.map(claims).unwrap_or_default();
        let mut push = |uuid: &[u8], claim: &CodeClaim, action| {
            let key = [
                Cell::Bytes(claim.value.as_bytes().into()),
                Cell::Bytes(uuid.into()),
                Cell::UInt(claim.kind.number().into()),
            ];
            let mutation = Mutation {
                table: self.table_of(&claim.value),
                shard: change.table.shard,
                key: Box::new(key),
                lsn: change.lsn,
                action,
            };
            push_if_owned(&self.tables, scope, flush, mutation);
        };
        // A claim that an update leaves as it was is neither written nor noted: it stands, or a chunk that is on its
        // way writes it, which a noted claim would keep from doing.
        for (uuid, claim) in only_in(&old, &new) {
            push(uuid, claim, MutationAction::Delete);
        }
        for (uuid, claim) in only_in(&new, &old) {
            push(uuid, claim, MutationAction::Upsert(Arc::clone(&self.no_values)));
        }
    }
}

/// A device and what it claims.
type Device = (Vec<u8>, Vec<CodeClaim>);

/// The claims of one image of a row that the other has not.
fn only_in<'d>(
    one: &'d Option<Device>,
    other: &'d Option<Device>,
) -> impl Iterator<Item = (&'d [u8], &'d CodeClaim)> {
    let stands = move |uuid: &[u8], claim: &CodeClaim| {
        other.as_ref().is_some_and(|(of, claims)| *of == uuid && claims.contains(claim))
    };
    let all = one.iter().flat_map(|(uuid, claims)| claims.iter().map(move |claim| (&**uuid, claim)));
    all.filter(move |(uuid, claim)| !stands(uuid, claim))
}

/// `None` when the row has no uuid.
fn claims(row: &[Value<'_>]) -> Option<Device> {
    let uuid = serial::uuid(row.get(UUID).unwrap_or(&Value::Null)).ok()?.into_owned();
    let claim = |kind| Some(CodeClaim { value: StoredCode::new(kind, &code(row, kind)?)?, kind });
    Some((uuid, CodeKind::ALL.into_iter().filter_map(claim).collect()))
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
