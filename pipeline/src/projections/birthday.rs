//! Users to birthday tables: a row claims (shard, user id) in the table of its month and day, solar or lunar.
//!
//! The derived rows are the union of a pure function of each source row, so the projection reads nothing but the
//! change. A user id is an integer that is not negative, or text of decimal digits without leading zeros: `7` and `07`
//! would be two source rows with one claim. A row without a claim is in no table and is counted by reason. The day on
//! which a user celebrates is not this module's question.

use std::sync::Arc;

use anabranch_schemas::birthday::{Layout, MonthDay};
use anabranch_schemas::celebration::{self, Calendar};
use anabranch_schemas::change::{Entity, TableIdentity, Value};
use anabranch_schemas::lunar::LunarMonthDay;
use anabranch_schemas::sql;

use super::rules::{Claim, Rules};
use super::{Defect, Defects, ProjectedTable, share_out};
use crate::config::BirthdayTables;
use crate::records::{Cell, CellRef, DerivedTable, TableShape};

/// One table of the birthday layer.
static SHAPE: TableShape = TableShape {
    definition: sql::BIRTHDAY,
    key_columns: &["user_id"],
    shard_index: "PRIMARY",
    shard_order: &[0],
    value_columns: &["birthday"],
};
/// One table of the lunar birthday layer.
static LUNAR_SHAPE: TableShape = TableShape {
    definition: sql::LUNAR_BIRTHDAY,
    key_columns: &["user_id"],
    shard_index: "PRIMARY",
    shard_order: &[0],
    value_columns: &["birthday", "birthday_type"],
};
/// Index of the user id in [`anabranch_schemas::change::Entity::fields`] of a user.
const USER_ID: usize = 0;
const BIRTHDAY: usize = 1;
const LUNAR_BIRTHDAY: usize = 2;
const BIRTHDAY_TYPE: usize = 3;

/// The reason why a user id makes no claim. It does not include the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UserIdDefect {
    Null,
    Negative,
    /// The id is text, but no decimal number of 64 bits without sign, blanks or leading zeros.
    Malformed,
    /// The column type holds neither integers nor text.
    WrongType,
}

impl UserIdDefect {
    /// Returns the `reason` label of the metric.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Null => "user_id_null",
            Self::Negative => "user_id_negative",
            Self::Malformed => "user_id_malformed",
            Self::WrongType => "user_id_wrong_type",
        }
    }
}

/// The claim of one source row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BirthdayClaim {
    user_id: u64,
    birthday: celebration::Birthday,
    /// The calendar that the user celebrates by, as far as the table knows it: a solar table holds every user as solar.
    celebrates_by: Calendar,
}

/// The birthday projection: its layout and tables.
#[derive(Debug, Clone)]
pub struct Birthday {
    config: BirthdayTables,
    targets: u32,
    lanes: u32,
    tables: Vec<ProjectedTable>,
    /// Value columns of every row of a birthday, by the birthday's ordinal and the calendar that the user celebrates
    /// by.
    values: Vec<[Arc<[Cell]>; 2]>,
}

impl Birthday {
    /// Builds the projection; its tables are in the order of database and day (`by_user`), or of the day (`by_day`).
    pub fn new(config: BirthdayTables, targets: u32, lanes: u32) -> Self {
        let (databases, all) = (config.databases.get(), celebration::Birthday::all(config.calendar));
        let places: Vec<(u32, celebration::Birthday)> = match config.layout {
            Layout::ByDay => {
                let database = |day: u32| config.layout.database(databases, 0, day);
                all.iter().map(|birthday| (database(birthday.ordinal()), *birthday)).collect()
            }
            Layout::ByUser => (0..databases)
                .flat_map(|database| all.iter().map(move |birthday| (database, *birthday)))
                .collect(),
        };
        let shape = match config.calendar {
            Calendar::Solar => &SHAPE,
            Calendar::Lunar => &LUNAR_SHAPE,
        };
        let derived = |(database, birthday)| DerivedTable {
            database: config.database_name(database),
            table: config.table_name(birthday),
            shape,
        };
        let tables = share_out(places.into_iter().map(|place| (place.0, derived(place))), targets, lanes);
        let values = all.iter().map(|birthday| values_of(*birthday)).collect();
        Self { config, targets, lanes, tables, values }
    }

    fn table_of(&self, claim: BirthdayClaim) -> u32 {
        let day = claim.birthday.ordinal();
        match self.config.layout {
            Layout::ByDay => day,
            Layout::ByUser => {
                let databases = self.config.databases.get();
                let database = self.config.layout.database(databases, claim.user_id, day);
                database * self.config.calendar.tables() + day
            }
        }
    }

    /// Returns the claim of one source row, with the defect that does not keep it out.
    fn claim(&self, row: &[Value<'_>]) -> Result<(BirthdayClaim, Option<Defect>), Defect> {
        let field = |place| row.get(place).unwrap_or(&Value::Null);
        let user_id = user_id(field(USER_ID)).map_err(Defect::UserId)?;
        let solar = || MonthDay::from_value(field(BIRTHDAY)).map(celebration::Birthday::Solar);
        let lunar = || LunarMonthDay::from_value(field(LUNAR_BIRTHDAY)).map(celebration::Birthday::Lunar);
        let (birthday, named) = match self.config.calendar {
            Calendar::Solar => (solar(), Ok(Calendar::Solar)),
            Calendar::Lunar if !self.config.captures_type => (lunar(), Ok(Calendar::Solar)),
            Calendar::Lunar => (lunar(), Calendar::from_value(field(BIRTHDAY_TYPE))),
        };
        let odd = named.is_err().then_some(Defect::BirthdayType);
        let celebrates_by = named.unwrap_or(Calendar::Solar);
        Ok((BirthdayClaim { user_id, birthday: birthday.map_err(Defect::Birthday)?, celebrates_by }, odd))
    }

    fn values(&self, claim: BirthdayClaim) -> &Arc<[Cell]> {
        &self.values[claim.birthday.ordinal() as usize][claim.celebrates_by as usize]
    }
}

impl Rules for Birthday {
    fn entity(&self) -> Entity {
        Entity::User
    }

    fn fields(&self) -> usize {
        1 + match self.config.calendar {
            Calendar::Solar => BIRTHDAY,
            Calendar::Lunar if self.config.captures_type => BIRTHDAY_TYPE,
            Calendar::Lunar => LUNAR_BIRTHDAY,
        }
    }

    fn tables(&self) -> &[ProjectedTable] {
        &self.tables
    }

    fn fingerprint(&self, target: u32) -> String {
        let layout = match self.config.layout {
            Layout::ByDay => "by_day",
            Layout::ByUser => "by_user",
        };
        let kind = match self.config.calendar {
            Calendar::Solar => "birthday",
            Calendar::Lunar => "lunar birthday",
        };
        format!(
            "{kind} {layout}, {} databases {}, tables {}, target {} of {}, {} lanes",
            self.config.databases,
            self.config.database,
            self.config.table,
            target + 1,
            self.targets,
            self.lanes
        )
    }

    fn source_column(&self) -> usize {
        USER_ID
    }

    fn key_words(&self) -> usize {
        1
    }

    fn flush_weight(&self) -> usize {
        1
    }

    fn is_cached(&self) -> bool {
        false
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
        let (claim, defect) = match self.claim(row) {
            Ok((claim, odd)) => (Some(claim), odd),
            Err(defect) => (None, Some(defect)),
        };
        if let (Some(defect), Some(defects)) = (defect, defects) {
            defects.count(defect);
        }
        if let Some(claim) = claim {
            let key = [CellRef::UInt(claim.user_id)];
            visit(Claim { table: self.table_of(claim), key: &key, values: self.values(claim) });
        }
    }
}

/// Returns the value columns of a birthday's rows: of users who celebrate by the solar and by the lunar calendar.
fn values_of(birthday: celebration::Birthday) -> [Arc<[Cell]>; 2] {
    let cell = |text: &str| Cell::Bytes(text.as_bytes().into());
    let day = cell(&birthday.to_string());
    Calendar::ALL.map(|celebrates_by| match birthday.calendar() {
        Calendar::Solar => Arc::from([day.clone()]),
        Calendar::Lunar => Arc::from([day.clone(), cell(celebrates_by.as_str())]),
    })
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
mod lunar_tests;
#[cfg(test)]
mod tests;
