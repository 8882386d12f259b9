//! Judges whether a statement about a captured table changes captured values, or how they are logged, without row
//! events.
//!
//! A statement names the new type of a column, not the old one. The old type is known of tables whose rows were read
//! since the stream began. Tables that were made or emptied since then have no values to change. In other tables an
//! alteration passes only if it keeps every value whatever the type was. A type is taken by its name, without its
//! length: where the session has no strict mode, the new type may cut values.
//!
//! A column may have several names. A rename from one to another keeps the column and its values. A table that may have
//! two columns with names of one field is read again whenever such a name comes or goes: nothing says which column the
//! values came from.

use std::collections::HashMap;

use anabranch_schemas::change::{Entity, FieldKind};
use anabranch_schemas::shard::ShardId;

use crate::mysql::source::decode::column::Format;
use crate::mysql::source::decode::query::{ColumnType, RAW, TableChange};
use crate::mysql::source::server::tables::CapturedTable;

/// The captured columns of a table, as its last table map showed them.
#[derive(Debug, Clone)]
pub struct Shape {
    pub formats: Vec<Format>,
}

#[derive(Debug, Default)]
struct Known {
    /// The table was made or emptied, and no rows came since.
    is_empty: bool,
    shape: Option<Shape>,
    /// Fields whose column lost its captured name, with the present names of those columns.
    renamed: Vec<(usize, String)>,
    /// A map showed one column for each field, and no other column got a name of a field since.
    is_settled: bool,
}

/// Known shapes of the captured tables.
#[derive(Debug, Default)]
pub struct Shapes(HashMap<ShardId, Known>);

impl Shapes {
    /// Takes in the shape from a table map, which announces rows.
    pub fn saw(&mut self, shard: ShardId, shape: Option<Shape>) {
        let known = self.0.entry(shard).or_default();
        known.is_empty = false;
        known.is_settled = shape.is_some();
        if shape.is_some() {
            known.shape = shape;
            known.renamed.clear();
        }
    }

    /// Takes in a `CREATE TABLE`, after which the table is empty unless it existed.
    pub fn made(&mut self, shard: ShardId) {
        let known = self.0.entry(shard).or_default();
        known.is_empty |= known.shape.is_none();
    }

    /// Takes in that a table has no rows any more.
    pub fn emptied(&mut self, shard: ShardId) {
        self.0.insert(shard, Known { is_empty: true, ..Known::default() });
    }

    pub fn forget(&mut self, shard: ShardId) {
        self.0.remove(&shard);
    }

    /// Describes a change of the table that row events do not show; `None` if they show all.
    pub fn judge(&mut self, table: &CapturedTable, changes: &[TableChange]) -> Option<String> {
        let known = self.0.entry(table.identity.shard).or_default();
        let is_lenient = changes.contains(&TableChange::Lenient);
        let found = swapped(known, table, changes)
            .or_else(|| changes.iter().find_map(|change| judge(known, table, change, is_lenient)));
        known.is_settled &= found.is_none();
        found
    }
}

/// Finds a captured name that one statement takes from a column and gives to another, in whatever order.
fn swapped(known: &Known, table: &CapturedTable, changes: &[TableChange]) -> Option<String> {
    if known.is_empty {
        return None;
    }
    changes.iter().find_map(|change| {
        let TableChange::Rename { from, to } = change else { return None };
        let field = field_of(table, from)?;
        let is_of_field = |name: &str| field_of(table, name) == Some(field);
        if is_of_field(to) {
            return None;
        }
        let given = changes.iter().find_map(|other| match other {
            TableChange::Rename { from: giver, to } if is_of_field(to) && !is_of_field(giver) => {
                Some(giver.as_str())
            }
            TableChange::Add(Some(to)) if is_of_field(to) => Some("a new one"),
            _ => None,
        })?;
        Some(given_away(from, given))
    })
}

/// Returns the field whose column has this name, among others perhaps.
fn field_of(table: &CapturedTable, name: &str) -> Option<usize> {
    table.columns.iter().position(|names| names.has(name))
}

/// Returns the field whose column has this name now, be it a captured one or the one that the column was renamed to.
fn field_now(known: &Known, table: &CapturedTable, name: &str) -> Option<usize> {
    let renamed = known.renamed.iter().find(|(_, now)| now.eq_ignore_ascii_case(name));
    renamed.map(|(field, _)| *field).or_else(|| field_of(table, name))
}

fn given_away(name: &str, to: &str) -> String {
    format!("captured name {name} given to another column ({to})")
}

fn judge(known: &mut Known, table: &CapturedTable, change: &TableChange, is_lenient: bool) -> Option<String> {
    let entity = table.identity.entity;
    match change {
        TableChange::Versioned => Some("SYSTEM VERSIONING".to_owned()),
        TableChange::Unversioned => Some("DROP SYSTEM VERSIONING".to_owned()),
        TableChange::Engine(engine) => Some(format!("ENGINE = {engine}, which may not roll back,")),
        TableChange::Retype { column, to } if RAW.contains(&to.name.as_str()) => {
            field_now(known, table, column).map(|_| another_type(column, to))
        }
        TableChange::Lenient | TableChange::Transactional => None,
        _ if known.is_empty => None,
        TableChange::Ignore => Some("ALTER IGNORE".to_owned()),
        TableChange::Convert { .. } => {
            let shape = known.shape.as_ref();
            let has_text =
                shape.is_none_or(|shape| shape.formats.iter().any(|old| Kind::of(*old) == Kind::Text));
            has_text
                .then(|| "CONVERT TO CHARACTER SET, which may change the bytes of captured text,".to_owned())
        }
        TableChange::Drop(name) => {
            field_now(known, table, name).map(|_| format!("DROP of captured column {name}"))
        }
        TableChange::Rename { from, to } => rename(known, table, from, to),
        TableChange::Add(name) => {
            let is_at_risk = |field: usize| {
                table.columns[field].are_several() || known.renamed.iter().any(|(lost, _)| *lost == field)
            };
            let gets_name = |field: usize| name.as_ref().is_none_or(|name| table.columns[field].has(name));
            let field = (0..table.columns.len()).find(|field| is_at_risk(*field) && gets_name(*field))?;
            Some(format!("a new column under captured name {}", table.columns[field]))
        }
        TableChange::Retype { column, to } => {
            let field = field_now(known, table, column)?;
            let old = known.shape.as_ref().and_then(|shape| shape.formats.get(field).copied());
            // A day fits every other type of a day, and no text of fewer than ten characters.
            let keeps_days = old.map(Kind::of) == Some(Kind::Day) && Kind::named(&to.name) == Kind::Day;
            if is_lenient && !keeps_days {
                return Some(another_type(column, to) + ", in a session without strict mode");
            }
            (to.is_generated || !keeps_values(entity, field, old, to)).then(|| another_type(column, to))
        }
    }
}

fn another_type(column: &str, to: &ColumnType) -> String {
    let character_set = to.character_set.as_ref().map(|name| format!(" CHARACTER SET {name}"));
    format!("column {column} has another type ({}{})", to.name, character_set.unwrap_or_default())
}

/// Follows a rename. A captured name may go and come back, but only to the column that had it. A column may change from
/// one name of its field to another.
fn rename(known: &mut Known, table: &CapturedTable, from: &str, to: &str) -> Option<String> {
    let (left, got) = (field_of(table, from), field_of(table, to));
    if left.is_some() && left == got {
        return None;
    }
    let is_unsure = |field: usize, known: &Known| table.columns[field].are_several() && !known.is_settled;
    if let Some(field) = got {
        let lost = known.renamed.iter().position(|(lost, _)| *lost == field);
        let now = lost.map(|lost| known.renamed.remove(lost).1);
        let is_another = match &now {
            Some(now) => !now.eq_ignore_ascii_case(from),
            // The column of the field may be there under another of its names.
            None => table.columns[field].are_several(),
        };
        if is_another || is_unsure(field, known) {
            return Some(given_away(to, from));
        }
    }
    if let Some(field) = left {
        if is_unsure(field, known) {
            return Some(format!("captured name {from} taken from a column that may not be the only one"));
        }
        known.renamed.push((field, to.to_owned()));
    } else if let Some((_, now)) = known.renamed.iter_mut().find(|(_, now)| now.eq_ignore_ascii_case(from)) {
        to.clone_into(now);
    }
    None
}

/// Types whose values are stored byte for byte. BINARY is not one: it is filled up with zeros.
const TEXT: &[&str] = &[
    "char",
    "character",
    "varchar",
    "tinytext",
    "text",
    "mediumtext",
    "longtext",
    "nchar",
    "nvarchar",
    "national",
    "varbinary",
    "tinyblob",
    "blob",
    "mediumblob",
    "longblob",
    "json",
    "long",
];
const INTEGER: &[&str] = &[
    "tinyint",
    "smallint",
    "mediumint",
    "middleint",
    "int",
    "integer",
    "bigint",
    "int1",
    "int2",
    "int3",
    "int4",
    "int8",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Integer,
    /// A date, with or without a time.
    Day,
    /// A point in time, which the server shows in the time zone of the session.
    Instant,
    Other,
}

impl Kind {
    fn of(format: Format) -> Self {
        match format {
            Format::Text { .. } | Format::Blob { .. } => Self::Text,
            Format::Integer { .. } => Self::Integer,
            Format::Date | Format::DateTime { .. } | Format::OldDateTime => Self::Day,
            Format::Timestamp { .. } | Format::OldTimestamp => Self::Instant,
            _ => Self::Other,
        }
    }

    fn named(name: &str) -> Self {
        match name {
            name if TEXT.contains(&name) => Self::Text,
            name if INTEGER.contains(&name) => Self::Integer,
            "date" | "datetime" => Self::Day,
            "timestamp" => Self::Instant,
            _ => Self::Other,
        }
    }
}

/// Whether every value stays the same, as row events would have shown it. `old` is `None` when it is not known.
fn keeps_values(entity: Entity, field: usize, old: Option<Format>, to: &ColumnType) -> bool {
    let is_date = entity.fields().get(field).is_some_and(|field| field.kind == FieldKind::Date);
    match (old.map(Kind::of), Kind::named(&to.name)) {
        (Some(Kind::Text), Kind::Text) => to.character_set.is_none(),
        (Some(Kind::Integer), Kind::Text | Kind::Integer) => true,
        (Some(Kind::Day), Kind::Day | Kind::Text) | (Some(Kind::Instant), Kind::Instant) => true,
        (Some(_), _) => false,
        // The column was an integer or text before.
        (None, Kind::Text) => !is_date && to.character_set.is_none(),
        (None, Kind::Integer) => !is_date,
        (None, _) => false,
    }
}

#[cfg(test)]
mod tests;
