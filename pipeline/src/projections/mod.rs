//! Pure functions from changes to mutations: one file for each kind of projection.
//!
//! A [`Projection`] knows its derived tables, the target of each table, and the lane that owns it. It projects each
//! change alone, without a view to earlier ones. Only then does [`Flush::push`] drop earlier mutations of the same
//! claim. So a row that moves twice within one flush is deleted from both tables that it left.

mod assignment;
pub mod birthday;
mod captured;
pub mod flux_relations;
mod rules;
pub mod serial_documents;
pub mod serial_mapping;

use std::collections::BTreeMap;
use std::sync::Arc;

use anabranch_schemas::birthday::BirthdayDefect;
use anabranch_schemas::change::{Change, Entity, TableIdentity, Value};
use anabranch_schemas::serial::{self, OddCode, UuidDefect};

pub use self::assignment::{Assignment, Assignments};
use self::birthday::{Birthday, UserIdDefect};
pub use self::captured::{captured_targets, shared_tables};
use self::flux_relations::{FluxRelations, IdDefect};
use self::rules::{Claim, Rules};
use self::serial_documents::SerialDocuments;
use self::serial_mapping::SerialMapping;
use crate::config::{ProjectionConfig, ProjectionKind};
use crate::records::{Cell, CellRef, Claimed, DerivedTable, Flush, Mutation, MutationAction};

/// Value columns of a derived row, at most.
const VALUES_MAX: usize = 16;

/// A derived table, its target, and the lane that owns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectedTable {
    pub derived: DerivedTable,
    /// Index into the projection's targets.
    pub target: u32,
    /// The lane of that target that owns the table; there is one for each source.
    pub lane: u32,
}

/// The lane whose mutations are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneScope {
    /// Index into the projection's targets.
    pub target: u32,
    pub lane: u32,
}

impl LaneScope {
    /// The scope that counts defects: every lane sees every change, so only one counts them.
    pub const COUNTS_DEFECTS: LaneScope = LaneScope { target: 0, lane: 0 };
}

/// Returns the key of a source row in the form that its derived rows have; `None` when the key has a defect, so that
/// the row makes no derived row.
pub fn key_of(entity: Entity, row: &[Value<'_>]) -> Option<Cell> {
    let first = row.first()?;
    match entity {
        Entity::User => birthday::user_id(first).ok().map(Cell::UInt),
        Entity::SerialCode => serial::uuid(first).ok().map(|uuid| Cell::Bytes(uuid.into_owned().into())),
        Entity::Flux => flux_relations::key(first).map(|id| Cell::Bytes(id.into())),
    }
}

/// Returns the key that a person writes as this text, in the form that derived rows have; `None` when no row of the
/// entity can have it. Any text may be the uuid of a device. It may also be the key of a document, because people name
/// rows that break the rule of identifiers.
pub fn key_of_text(entity: Entity, text: &str) -> Option<Cell> {
    match entity {
        Entity::User => birthday::user_id(&Value::Bytes(text.as_bytes().into())).ok().map(Cell::UInt),
        Entity::SerialCode | Entity::Flux => Some(Cell::Bytes(text.as_bytes().into())),
    }
}

/// Returns the number of a projection's targets, at least one.
fn target_count(config: &ProjectionConfig) -> u32 {
    u32::try_from(config.targets.len()).unwrap_or(u32::MAX).max(1)
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

/// A defect of a row. A row whose key or birthday has a defect is in no derived table; an odd code, birthday type,
/// document or amount keeps no row out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Defect {
    Birthday(BirthdayDefect),
    /// The birthday type names no calendar: the user counts as one who celebrates by the solar one.
    BirthdayType,
    UserId(UserIdDefect),
    Uuid(UuidDefect),
    OddCode(OddCode),
    FluxId(IdDefect),
    /// The text of the parent is no identifier.
    FluxParent,
    /// The amount is too long for the index, which has none in its place.
    FluxAmount,
    /// A payment document is not where its identifier, its parent or its table says, for this reason.
    OddDocument(&'static str),
}

impl Defect {
    /// Returns the `reason` label of the metric.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Birthday(defect) => defect.reason(),
            Self::BirthdayType => "birthday_type_unknown",
            Self::UserId(defect) => defect.reason(),
            Self::Uuid(defect) => defect.reason(),
            Self::OddCode(odd) => odd.reason(),
            Self::FluxId(defect) => defect.reason(),
            Self::FluxParent => "flux_parent_malformed",
            Self::FluxAmount => "amount_too_long",
            Self::OddDocument(reason) => reason,
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

    /// Returns the counts so far and starts again at zero.
    pub fn take(&mut self) -> Self {
        std::mem::take(self)
    }
}

/// A configured projection. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Projection(Arc<dyn Rules>);

impl Projection {
    pub fn new(config: &ProjectionConfig) -> Self {
        let (targets, lanes) = (target_count(config), config.lanes.get());
        Self(match &config.kind {
            ProjectionKind::Birthday(tables) => Arc::new(Birthday::new(tables.clone(), targets, lanes)),
            ProjectionKind::SerialMapping(tables) => {
                Arc::new(SerialMapping::new(tables.clone(), targets, lanes))
            }
            ProjectionKind::SerialDocuments(index) => Arc::new(SerialDocuments::new(index.clone(), lanes)),
            ProjectionKind::FluxRelations(tables) => {
                Arc::new(FluxRelations::new(tables.clone(), targets, lanes))
            }
        })
    }

    /// Returns the entity whose changes the projection reads; it ignores changes of other entities.
    pub fn entity(&self) -> Entity {
        self.0.entity()
    }

    /// Returns how many fields of its entity it reads, from the first one on. If a message has fewer, a lane reads the
    /// others from the tables.
    pub fn fields(&self) -> usize {
        self.0.fields()
    }

    /// Returns all derived tables on all targets; [`Mutation::table`] is an index into them.
    pub fn tables(&self) -> &[ProjectedTable] {
        self.0.tables()
    }

    /// Returns the lane that owns a table. Panics when there is no such table.
    pub fn lane_of(&self, table: u32) -> u32 {
        self.tables()[table as usize].lane
    }

    /// Returns the tables on one target, with their indexes.
    pub fn target_tables(&self, target: u32) -> impl Iterator<Item = (u32, &ProjectedTable)> {
        (0u32..).zip(self.tables()).filter(move |(_, table)| table.target == target)
    }

    /// Returns the text that ties progress on that target to its tables. When the text changes, the progress is void.
    pub fn fingerprint(&self, target: u32) -> String {
        self.0.fingerprint(target)
    }

    /// Returns the number of eight-byte words that hold nearly all keys of derived rows.
    pub fn key_words(&self) -> usize {
        self.0.key_words()
    }

    /// Returns the weight of one source row in a flush, in rows of a birthday.
    pub fn flush_weight(&self) -> usize {
        self.0.flush_weight()
    }

    /// Returns whether caches may keep its rows by their first key column, so that lanes note the values that they
    /// touch.
    pub fn is_cached(&self) -> bool {
        self.0.is_cached()
    }

    /// Returns the table with the derived row of a source key; `None` unless the key alone determines it, as for
    /// documents.
    pub fn table_of_source_key(&self, key: &[u8]) -> Option<u32> {
        self.0.table_of_source_key(key)
    }

    /// Visits all claims of a source row, on every target. A row whose key or birthday has a defect claims nothing.
    pub fn claims(&self, table: &TableIdentity<'_>, row: &[Value<'_>], mut visit: impl FnMut(Claimed<'_>)) {
        self.0.claims(table, row, None, &mut |claim| {
            let mut values = [CellRef::Null; VALUES_MAX];
            let values = &mut values[..claim.values.len()];
            for (borrowed, value) in values.iter_mut().zip(&**claim.values) {
                *borrowed = value.borrowed();
            }
            visit(Claimed { table: claim.table, shard: table.shard, key: claim.key, values });
        });
    }

    /// Returns the part of a derived row's key that is the key of its source row: the entity's first field.
    pub fn source_key<'a>(&self, key: &[CellRef<'a>]) -> Option<CellRef<'a>> {
        key.get(self.source_column()).copied()
    }

    /// Returns the index of the key column that is the key of the source row.
    pub fn source_column(&self) -> usize {
        self.0.source_column()
    }

    /// Adds to `flush` the mutations of a change for the tables in `scope`.
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
        let Some((before, after)) = change.action.images() else {
            return flush.take_table(change);
        };
        let mut written: Vec<WrittenClaim> = Vec::new();
        if let Some(row) = after {
            let counted = (scope == LaneScope::COUNTS_DEFECTS).then_some(&mut *defects);
            self.0.claims(change.table, row, counted, &mut |claim| {
                if self.is_owned(claim.table, scope) {
                    written.push(WrittenClaim::new(claim));
                }
            });
        }
        let mut push = |table, key, action| {
            flush.push(Mutation { table, shard: change.table.shard, key, lsn: change.lsn, action });
        };
        if let Some(row) = before {
            // The defects of the old row were counted when it came.
            self.0.claims(change.table, row, None, &mut |claim| {
                if !self.is_owned(claim.table, scope) {
                    return;
                }
                match written.iter_mut().find(|written| written.is_row_of(&claim)) {
                    Some(written) => written.is_unchanged = written.values == *claim.values,
                    None => push(claim.table, owned(claim.key), MutationAction::Delete),
                }
            });
        }
        // A claim that an update leaves unchanged is neither written nor noted. Its row exists, or a chunk on its way
        // writes it, which a noted claim would prevent.
        for claim in written.into_iter().filter(|claim| !claim.is_unchanged) {
            push(claim.table, claim.key, MutationAction::Upsert(claim.values));
        }
    }

    fn is_owned(&self, table: u32, scope: LaneScope) -> bool {
        let owner = &self.tables()[table as usize];
        owner.target == scope.target && owner.lane == scope.lane
    }
}

/// A derived row that the new row of a change claims.
struct WrittenClaim {
    table: u32,
    key: Box<[Cell]>,
    values: Arc<[Cell]>,
    /// Whether the old row claims the same row with the same values.
    is_unchanged: bool,
}

impl WrittenClaim {
    fn new(claim: Claim<'_>) -> Self {
        let Claim { table, key, values } = claim;
        Self { table, key: owned(key), values: Arc::clone(values), is_unchanged: false }
    }

    /// Returns whether both are the same row of the same table, whatever their values are.
    fn is_row_of(&self, claim: &Claim<'_>) -> bool {
        self.table == claim.table && self.key.iter().map(Cell::borrowed).eq(claim.key.iter().copied())
    }
}

fn owned(key: &[CellRef<'_>]) -> Box<[Cell]> {
    key.iter().copied().map(CellRef::to_owned).collect()
}
