//! Pure functions from changes to mutations: one file for each kind of projection.
//!
//! A [`Projection`] knows its derived tables, the target of each table, and the lane that owns it. It projects each
//! change alone, without a view to earlier ones. Only then does [`Flush::push`] drop earlier mutations of the same
//! claim. So a row that moves twice within one flush is deleted from both tables that it left.

mod assignment;
pub mod birthday;
mod captured;
pub mod serial_documents;
pub mod serial_mapping;

use std::collections::BTreeMap;

use anabranch_schemas::birthday::BirthdayDefect;
use anabranch_schemas::change::{Change, Entity, TableIdentity, Value};
use anabranch_schemas::serial::{self, OddCode, UuidDefect};

pub use self::assignment::{Assignment, Assignments};
use self::birthday::{Birthday, UserIdDefect};
pub use self::captured::{captured_targets, shared_tables};
use self::serial_documents::SerialDocuments;
use self::serial_mapping::SerialMapping;
use crate::config::{ProjectionConfig, ProjectionKind};
use crate::records::{Cell, CellRef, Claimed, DerivedTable, Flush, Mutation};

/// A derived table, its target, and the lane that owns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectedTable {
    pub derived: DerivedTable,
    /// Index into the projection's targets.
    pub target: u32,
    /// The lane of that target which owns it; one for each source.
    pub lane: u32,
}

/// The lane for whose tables mutations are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneScope {
    /// Index into the projection's targets.
    pub target: u32,
    pub lane: u32,
}

impl LaneScope {
    /// Every lane sees every change; only this one counts defects, so that sums over lanes are right.
    pub const COUNTS_DEFECTS: LaneScope = LaneScope { target: 0, lane: 0 };
}

/// The key of a source row, in the form in which its derived rows hold it; `None` = the row's key has a defect, so it
/// makes no derived row.
pub fn key_of(entity: Entity, row: &[Value<'_>]) -> Option<Cell> {
    let first = row.first()?;
    match entity {
        Entity::User => birthday::user_id(first).ok().map(Cell::UInt),
        Entity::SerialCode => serial::uuid(first).ok().map(|uuid| Cell::Bytes(uuid.into_owned().into())),
    }
}

/// Shares tables out to targets and lanes. The tables of database `i` go to target `i` modulo the number of targets.
/// The tables of a target go to its lanes in turn, so two lanes differ by one table at most.
fn share_out(
    tables: impl Iterator<Item = (u32, DerivedTable)>,
    targets: u32,
    lanes: u32,
) -> Vec<ProjectedTable> {
    let mut next = vec![0; targets as usize];
    let share = |(database, derived): (u32, DerivedTable)| {
        let target = database % targets;
        let lane = next[target as usize];
        next[target as usize] = (lane + 1) % lanes;
        ProjectedTable { derived, target, lane }
    };
    tables.map(share).collect()
}

/// Adds the mutation if its table is in `scope`.
fn push_if_owned(tables: &[ProjectedTable], scope: LaneScope, flush: &mut Flush, mutation: Mutation) {
    let owner = &tables[mutation.table as usize];
    if owner.target == scope.target && owner.lane == scope.lane {
        flush.push(mutation);
    }
}

/// A defect of a row. A row whose key or birthday has a defect is in no derived table. An odd code or birthday
/// type keeps no row out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Defect {
    Birthday(BirthdayDefect),
    /// It names no calendar: the user counts as one who celebrates by the solar one.
    BirthdayType,
    UserId(UserIdDefect),
    Uuid(UuidDefect),
    OddCode(OddCode),
}

impl Defect {
    /// The `reason` label of the metric.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Birthday(defect) => defect.reason(),
            Self::BirthdayType => "birthday_type_unknown",
            Self::UserId(defect) => defect.reason(),
            Self::Uuid(defect) => defect.reason(),
            Self::OddCode(odd) => odd.reason(),
        }
    }
}

/// Numbers of inserts and updates whose new row has a defect, by reason: they count changes, not rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Defects(BTreeMap<Defect, u64>);

impl Defects {
    pub fn count(&mut self, defect: Defect) {
        *self.0.entry(defect).or_default() += 1;
    }

    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (Defect, u64)> + '_ {
        self.0.iter().map(|(defect, count)| (*defect, *count))
    }

    /// Takes what was counted so far; counting starts again at zero.
    pub fn take(&mut self) -> Self {
        std::mem::take(self)
    }
}

/// A configured projection.
#[derive(Debug, Clone)]
pub enum Projection {
    Birthday(Birthday),
    SerialMapping(SerialMapping),
    SerialDocuments(SerialDocuments),
}

impl Projection {
    pub fn new(config: &ProjectionConfig) -> Self {
        let targets = u32::try_from(config.targets.len()).unwrap_or(u32::MAX).max(1);
        match &config.kind {
            ProjectionKind::Birthday(tables) => {
                Self::Birthday(Birthday::new(tables.clone(), targets, config.lanes.get()))
            }
            ProjectionKind::SerialMapping(tables) => {
                Self::SerialMapping(SerialMapping::new(tables.clone(), targets, config.lanes.get()))
            }
            ProjectionKind::SerialDocuments(index) => {
                Self::SerialDocuments(SerialDocuments::new(index.clone(), config.lanes.get()))
            }
        }
    }

    /// The entity whose changes the projection reads; it ignores changes of other entities.
    pub fn entity(&self) -> Entity {
        match self {
            Self::Birthday(_) => Entity::User,
            Self::SerialMapping(_) | Self::SerialDocuments(_) => Entity::SerialCode,
        }
    }

    /// How many fields of its entity it reads, from the first one on. What a message with fewer leaves out, a lane
    /// reads from the tables.
    pub fn fields(&self) -> usize {
        match self {
            Self::Birthday(birthday) => birthday.fields(),
            Self::SerialMapping(_) => serial_mapping::FIELDS,
            Self::SerialDocuments(_) => Entity::SerialCode.fields().len(),
        }
    }

    /// All derived tables on all targets; [`crate::records::Mutation::table`] is an index into them.
    pub fn tables(&self) -> &[ProjectedTable] {
        match self {
            Self::Birthday(birthday) => birthday.tables(),
            Self::SerialMapping(mapping) => mapping.tables(),
            Self::SerialDocuments(documents) => documents.tables(),
        }
    }

    /// The lane that owns a table. Panics when there is no such table.
    pub fn lane_of(&self, table: u32) -> u32 {
        self.tables()[table as usize].lane
    }

    /// The tables on one target, with their indexes.
    pub fn target_tables(&self, target: u32) -> impl Iterator<Item = (u32, &ProjectedTable)> {
        (0u32..).zip(self.tables()).filter(move |(_, table)| table.target == target)
    }

    /// A text that says what a progress row on that target was made for. When the text changes, the row is void.
    pub fn fingerprint(&self, target: u32) -> String {
        match self {
            Self::Birthday(birthday) => birthday.fingerprint(target),
            Self::SerialMapping(mapping) => mapping.fingerprint(target),
            Self::SerialDocuments(documents) => documents.fingerprint(),
        }
    }

    /// Visits all claims of a source row, on every target. A row whose key or birthday has a defect claims nothing.
    pub fn claims(&self, table: &TableIdentity<'_>, row: &[Value<'_>], visit: impl FnMut(Claimed<'_>)) {
        match self {
            Self::Birthday(birthday) => birthday.claims(table, row, visit),
            Self::SerialMapping(mapping) => mapping.claims(table, row, visit),
            Self::SerialDocuments(documents) => documents.claims(table, row, visit),
        }
    }

    /// The part of a derived row's key that is the key of its source row: the entity's first field.
    pub fn source_key<'a>(&self, key: &[CellRef<'a>]) -> Option<CellRef<'a>> {
        key.get(self.source_column()).copied()
    }

    /// The key column that is the key of the source row.
    pub fn source_column(&self) -> usize {
        match self {
            Self::Birthday(_) | Self::SerialDocuments(_) => 0,
            Self::SerialMapping(_) => 1,
        }
    }

    /// Adds to `flush` what the change asks of the tables in `scope`.
    ///
    /// Changes must come in the order of their stream. The progress in `flush` is not touched.
    pub fn project(
        &self,
        change: &Change<'_, '_>,
        scope: LaneScope,
        flush: &mut Flush,
        defects: &mut Defects,
    ) {
        if change.table.entity != self.entity() {
            return;
        }
        match self {
            Self::Birthday(birthday) => birthday.project(change, scope, flush, defects),
            Self::SerialMapping(mapping) => mapping.project(change, scope, flush, defects),
            Self::SerialDocuments(documents) => documents.project(change, scope, flush, defects),
        }
    }
}
