//! Payment documents to the relation index: a row claims its document, with the document that it follows.
//!
//! The user partition of an identifier decides the table. A document whose parent has another partition stands in the
//! parent's table, too, so everything below a document is found in the table of its own partition. A document that
//! stands elsewhere than its digits, its parent or its table say is counted by reason, and claims its rows all the
//! same. A text that is no identifier makes no claim, and an empty text is no parent. An amount that is too long for
//! its column is left out and counted: with fewer digits it would be another number.

use std::borrow::Cow;
use std::sync::Arc;

use anabranch_schemas::change::{Entity, TableIdentity, Value};
use anabranch_schemas::flux::id::{DIGITS, FluxId};
use anabranch_schemas::flux::table::PARTITIONS;
use anabranch_schemas::{serial, sql};
use jiff::Timestamp;

use super::rules::{Claim, Rules};
use super::{Defect, Defects, ProjectedTable, share_out, target_count};
use crate::config::{ProjectionConfig, ProjectionKind, RelationTables};
use crate::records::{Cell, CellRef, DerivedTable, TableShape};

/// One table of the relation index.
static SHAPE: TableShape = TableShape {
    definition: sql::FLUX_RELATION,
    key_columns: &["id"],
    shard_index: "shard_id",
    shard_order: &[0],
    value_columns: &["parent_id", "amount", "created"],
};
/// Index of the identifier in [`Entity::fields`] of a document.
const ID: usize = 0;
const PARENT: usize = 1;
const AMOUNT: usize = 2;
const CREATED: usize = 3;
/// Bytes of the columns, as `flux_relation.sql` makes them. Longer texts are cut, and longer amounts are left out.
const PARENT_BYTES_MAX: usize = 64;
const AMOUNT_BYTES_MAX: usize = 40;
const CREATED_BYTES_MAX: usize = 32;

/// The reason why an identifier makes no claim. It does not include the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IdDefect {
    Null,
    /// The text is not 31 digits, or they break a rule of identifiers.
    Malformed,
}

impl IdDefect {
    /// Returns the `reason` label of the metric.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Null => "flux_id_null",
            Self::Malformed => "flux_id_malformed",
        }
    }
}

/// Returns the 31 digits of a document's key as the index has them; `None` unless they are digits.
///
/// The key is that of the source row, whatever rule its digits break.
pub(super) fn key(value: &Value<'_>) -> Option<Vec<u8>> {
    let text = serial::text(value)?;
    (text.len() == DIGITS && text.iter().all(u8::is_ascii_digit)).then(|| text.into_owned())
}

/// The projection to the relation index.
#[derive(Debug, Clone)]
pub struct FluxRelations {
    config: RelationTables,
    targets: u32,
    lanes: u32,
    tables: Vec<ProjectedTable>,
}

impl FluxRelations {
    /// Builds the projection; its tables are in the order of user partitions. Ten of them are on one target.
    pub fn new(config: RelationTables, targets: u32, lanes: u32) -> Self {
        let derived = |partition| DerivedTable {
            database: config.database.clone(),
            table: config.table_name(partition),
            shape: &SHAPE,
        };
        let places = (0..PARTITIONS).map(|partition| (partition / 10, derived(partition)));
        let tables = share_out(places, targets, lanes);
        Self { config, targets, lanes, tables }
    }

    /// Returns the projection of this configuration; `None` when it is of another kind.
    pub fn configured(config: &ProjectionConfig) -> Option<Self> {
        let ProjectionKind::FluxRelations(tables) = &config.kind else { return None };
        Some(Self::new(tables.clone(), target_count(config), config.lanes.get()))
    }

    pub fn tables(&self) -> &[ProjectedTable] {
        &self.tables
    }

    /// Returns the index of the table with the documents of a user partition, and with everything that follows them.
    pub fn table_of(&self, partition: u8) -> u32 {
        partition.into()
    }

    fn id(&self, row: &[Value<'_>]) -> Result<FluxId, IdDefect> {
        match row.get(ID).unwrap_or(&Value::Null) {
            Value::Null => Err(IdDefect::Null),
            value => self.parsed(value).ok_or(IdDefect::Malformed),
        }
    }

    fn parsed(&self, value: &Value<'_>) -> Option<FluxId> {
        FluxId::parse_of(&serial::text(value)?, self.config.places.system()).ok()
    }
}

impl Rules for FluxRelations {
    fn entity(&self) -> Entity {
        Entity::Flux
    }

    fn fields(&self) -> usize {
        Entity::Flux.fields().len()
    }

    fn tables(&self) -> &[ProjectedTable] {
        &self.tables
    }

    fn fingerprint(&self, target: u32) -> String {
        format!(
            "flux_relations, system {:03}, database {}, {PARTITIONS} tables {}, target {} of {}, {} lanes",
            self.config.places.system(),
            self.config.database,
            self.config.table,
            target + 1,
            self.targets,
            self.lanes
        )
    }

    fn source_column(&self) -> usize {
        ID
    }

    fn key_words(&self) -> usize {
        5
    }

    /// A row has some 150 bytes and two more indexes.
    fn flush_weight(&self) -> usize {
        3
    }

    fn is_cached(&self) -> bool {
        false
    }

    /// The parent decides about a second table.
    fn table_of_source_key(&self, _key: &[u8]) -> Option<u32> {
        None
    }

    fn claims(
        &self,
        table: &TableIdentity<'_>,
        row: &[Value<'_>],
        defects: Option<&mut Defects>,
        visit: &mut dyn FnMut(Claim<'_>),
    ) {
        let parent_field = row.get(PARENT).filter(|parent| !is_empty(parent)).unwrap_or(&Value::Null);
        let parent = self.parsed(parent_field);
        let id = self.id(row);
        let amount = amount(row.get(AMOUNT).unwrap_or(&Value::Null));
        // Documents that pass to an heir of their table were counted when they came.
        let places = &self.config.places;
        if let Some((defects, place)) =
            defects.and_then(|defects| Some((defects, places.of_own_table(table)?)))
        {
            if parent.is_none() && *parent_field != Value::Null {
                defects.count(Defect::FluxParent);
            }
            if amount.is_none() {
                defects.count(Defect::FluxAmount);
            }
            match &id {
                Ok(id) => {
                    for odd in places.oddities_at(&place, id, parent.as_ref()) {
                        defects.count(Defect::OddDocument(odd.reason()));
                    }
                }
                Err(defect) => defects.count(Defect::FluxId(*defect)),
            }
        }
        let Ok(id) = id else { return };
        let values: Arc<[Cell]> = [
            cell(parent_field, PARENT_BYTES_MAX),
            amount.unwrap_or(Cell::Null),
            cell(row.get(CREATED).unwrap_or(&Value::Null), CREATED_BYTES_MAX),
        ]
        .into();
        let digits = id.digits();
        let own = self.table_of(id.parts().partition);
        visit(Claim { table: own, key: &[CellRef::Bytes(&digits)], values: &values });
        let parents = parent.map(|parent| self.table_of(parent.parts().partition));
        if let Some(parents) = parents.filter(|table| *table != own) {
            visit(Claim { table: parents, key: &[CellRef::Bytes(&digits)], values: &values });
        }
    }
}

/// Returns whether a field is the empty text, which some applications write instead of NULL.
fn is_empty(value: &Value<'_>) -> bool {
    matches!(value, Value::Bytes(text) if text.is_empty())
}

/// Returns an amount as the index holds it; `None` when it is too long.
fn amount(value: &Value<'_>) -> Option<Cell> {
    let amount = cell(value, AMOUNT_BYTES_MAX + 1);
    let is_too_long = matches!(&amount, Cell::Bytes(text) if text.len() > AMOUNT_BYTES_MAX);
    (!is_too_long).then_some(amount)
}

/// Returns a field as the index holds it.
fn cell(value: &Value<'_>, bytes_max: usize) -> Cell {
    let text = match value {
        Value::DateTime { year, month, day, hour, minute, second, microsecond } => {
            let mut text = format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}");
            if *microsecond > 0 {
                text.push_str(&format!(".{microsecond:06}"));
            }
            Some(Cow::Owned(text.into_bytes()))
        }
        Value::Timestamp { microseconds } => Timestamp::from_microsecond(*microseconds)
            .ok()
            .map(|at| Cow::Owned(at.to_string().replace('T', " ").into_bytes())),
        value => serial::text(value),
    };
    text.map_or(Cell::Null, |text| Cell::Bytes(text[..text.len().min(bytes_max)].into()))
}

#[cfg(test)]
mod tests;
