//! Users to birthday tables: a row claims (shard, user id) in the table of its month and day.
//!
//! The union over all physical tables of a pure function of each row, so it reads nothing but the change. A user id
//! is an integer that is not negative, or text of decimal digits without leading zeros: `7` and `07` would be two
//! source rows with one claim. What has no claim is in no table and is counted by reason; how a day is celebrated is
//! not this module's question.

use std::sync::Arc;

use anabranch_schemas::birthday::{Layout, MonthDay, TABLES};
use anabranch_schemas::change::{Change, TableIdentity, Value};
use anabranch_schemas::sql;

use super::{Defect, Defects, LaneScope, ProjectedTable, push_if_owned, share_out};
use crate::config::BirthdayTables;
use crate::records::{Cell, CellRef, Claimed, DerivedTable, Flush, Mutation, MutationAction, TableShape};

/// One table of the birthday layer.
static SHAPE: TableShape = TableShape {
    definition: sql::BIRTHDAY,
    key_columns: &["user_id"],
    shard_index: "PRIMARY",
    value_columns: &["birthday"],
};
/// Place in [`anabranch_schemas::change::Entity::fields`] of a user.
const USER_ID: usize = 0;
const BIRTHDAY: usize = 1;

/// Why a user id names no claim. The value itself is not part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UserIdDefect {
    Null,
    Negative,
    /// Text that is not a decimal number of 64 bits without sign, blanks or leading zeros.
    Malformed,
    /// A column type that holds neither integers nor text.
    WrongType,
}

impl UserIdDefect {
    /// The `reason` label of the metric.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Null => "user_id_null",
            Self::Negative => "user_id_negative",
            Self::Malformed => "user_id_malformed",
            Self::WrongType => "user_id_wrong_type",
        }
    }
}

/// What one source row says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BirthdayClaim {
    user_id: u64,
    day: MonthDay,
}

/// The birthday projection: its layout and tables.
#[derive(Debug, Clone)]
pub struct Birthday {
    config: BirthdayTables,
    targets: u32,
    lanes: u32,
    tables: Vec<ProjectedTable>,
    /// The value columns of every row of a day, by its ordinal.
    days: Vec<Arc<[Cell]>>,
}

impl Birthday {
    /// Tables in the order of database and day (`by_user`), or of the day (`by_day`).
    pub fn new(config: BirthdayTables, targets: u32, lanes: u32) -> Self {
        let databases = config.databases.get();
        let places: Vec<(u32, MonthDay)> = match config.layout {
            Layout::ByDay => {
                MonthDay::all().map(|day| (config.layout.database(databases, 0, day), day)).collect()
            }
            Layout::ByUser => {
                (0..databases).flat_map(|database| MonthDay::all().map(move |day| (database, day))).collect()
            }
        };
        let derived = |(database, day)| DerivedTable {
            database: config.database_name(database),
            table: config.table_name(day),
            shape: &SHAPE,
        };
        let tables = share_out(places.into_iter().map(|place| (place.0, derived(place))), targets, lanes);
        let day = |day: MonthDay| Arc::from([Cell::Bytes(day.to_string().into_bytes().into_boxed_slice())]);
        Self { config, targets, lanes, tables, days: MonthDay::all().map(day).collect() }
    }

    pub fn tables(&self) -> &[ProjectedTable] {
        &self.tables
    }

    pub fn fingerprint(&self, target: u32) -> String {
        let layout = match self.config.layout {
            Layout::ByDay => "by_day",
            Layout::ByUser => "by_user",
        };
        format!(
            "birthday {layout}, {} databases {}, tables {}, target {} of {}, {} lanes",
            self.config.databases,
            self.config.database,
            self.config.table,
            target + 1,
            self.targets,
            self.lanes
        )
    }

    fn table_of(&self, claim: BirthdayClaim) -> u32 {
        let day = claim.day.ordinal();
        match self.config.layout {
            Layout::ByDay => day,
            Layout::ByUser => {
                let databases = self.config.databases.get();
                self.config.layout.database(databases, claim.user_id, claim.day) * TABLES + day
            }
        }
    }

    pub(super) fn claims(
        &self,
        table: &TableIdentity<'_>,
        row: &[Value<'_>],
        mut visit: impl FnMut(Claimed<'_>),
    ) {
        let Ok(claim) = claim(row) else { return };
        visit(Claimed {
            table: self.table_of(claim),
            shard: table.shard,
            key: &[CellRef::UInt(claim.user_id)],
            values: &[self.days[claim.day.ordinal() as usize][0].borrowed()],
        });
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
        // What the old image claimed, if anything, was counted when it came.
        let old = before.and_then(|row| claim(row).ok());
        let new = match after.map(|row| claim(row)) {
            Some(Ok(claim)) => Some(claim),
            Some(Err(defect)) => {
                if scope == LaneScope::COUNTS_DEFECTS {
                    defects.count(defect);
                }
                None
            }
            None => None,
        };
        let mut push = |claim: BirthdayClaim, action: MutationAction| {
            let (table, key) = (self.table_of(claim), Box::new([Cell::UInt(claim.user_id)]));
            let mutation = Mutation { table, shard: change.table.shard, key, lsn: change.lsn, action };
            push_if_owned(&self.tables, scope, flush, mutation);
        };
        if let Some(old) = old
            && new != Some(old)
        {
            push(old, MutationAction::Delete);
        }
        // A claim that an update leaves as it was is neither written nor noted: it stands, or a chunk that is on its
        // way writes it, which a noted claim would keep from doing.
        if let Some(new) = new
            && old != Some(new)
        {
            push(new, MutationAction::Upsert(Arc::clone(&self.days[new.day.ordinal() as usize])));
        }
    }
}

fn claim(row: &[Value<'_>]) -> Result<BirthdayClaim, Defect> {
    let user_id = user_id(row.get(USER_ID).unwrap_or(&Value::Null)).map_err(Defect::UserId)?;
    let day = MonthDay::from_value(row.get(BIRTHDAY).unwrap_or(&Value::Null)).map_err(Defect::Birthday)?;
    Ok(BirthdayClaim { user_id, day })
}

pub(super) fn user_id(value: &Value<'_>) -> Result<u64, UserIdDefect> {
    match value {
        Value::UInt(id) => Ok(*id),
        Value::Int(id) => u64::try_from(*id).map_err(|_| UserIdDefect::Negative),
        Value::Bytes(text) => decimal(text).ok_or(UserIdDefect::Malformed),
        Value::Null => Err(UserIdDefect::Null),
        _ => Err(UserIdDefect::WrongType),
    }
}

fn decimal(text: &[u8]) -> Option<u64> {
    match text {
        [] => None,
        [b'0'] => Some(0),
        [b'0', ..] => None,
        digits => digits.iter().try_fold(0u64, |number, digit| {
            let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
            number.checked_mul(10)?.checked_add(digit)
        }),
    }
}

#[cfg(test)]
mod tests;
