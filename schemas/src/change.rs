//! A change of one row of one source table, reduced to the captured columns.
//!
//! Values keep the exact bytes of the source: text is not decoded, so any character set passes. Columns that no
//! entity captures never become a [`Value`].

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::lsn::Lsn;
use crate::shard::ShardId;

/// One captured column. Text and binary columns are [`Value::Bytes`] in the column's own character set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Value<'a> {
    Null,
    Int(i64),
    UInt(u64),
    Double(f64),
    #[serde(borrow)]
    Bytes(#[serde(with = "serde_bytes")] Cow<'a, [u8]>),
    /// A DATE as stored: month and day may be zero (`0000-00-00`), and the day may not exist (`02-30`).
    Date {
        year: u16,
        month: u8,
        day: u8,
    },
    /// A DATETIME: a wall clock without a zone; date parts as in [`Value::Date`].
    DateTime {
        year: u16,
        month: u8,
        day: u8,
        hour: u8,
        minute: u8,
        second: u8,
        microsecond: u32,
    },
    /// A TIMESTAMP: microseconds since 1970-01-01T00:00:00Z; 0 is MySQL's zero timestamp.
    Timestamp {
        microseconds: i64,
    },
    /// A TIME: signed microseconds, −838:59:59 to 838:59:59.
    Time {
        microseconds: i64,
    },
}

impl Value<'_> {
    /// Returns the same value without a borrow of the packet that it came from.
    pub fn into_owned(self) -> Value<'static> {
        match self {
            Value::Bytes(bytes) => Value::Bytes(Cow::Owned(bytes.into_owned())),
            Value::Null => Value::Null,
            Value::Int(value) => Value::Int(value),
            Value::UInt(value) => Value::UInt(value),
            Value::Double(value) => Value::Double(value),
            Value::Date { year, month, day } => Value::Date { year, month, day },
            Value::DateTime { year, month, day, hour, minute, second, microsecond } => {
                Value::DateTime { year, month, day, hour, minute, second, microsecond }
            }
            Value::Timestamp { microseconds } => Value::Timestamp { microseconds },
            Value::Time { microseconds } => Value::Time { microseconds },
        }
    }
}

/// The captured columns of one row image, in the order of [`Entity::fields`]. The configuration may leave out the last
/// columns; they are missing here, too.
pub type Row<'a> = Vec<Value<'a>>;

/// A row before or after a change; `None` where the change has none.
pub type Image<'r, 'a> = Option<&'r [Value<'a>]>;

/// The content of a captured table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entity {
    /// A user with a birthday (the birthday system's main layer).
    User,
    /// A device with its codes (the inventory's serial table and its history).
    SerialCode,
    /// A payment document, whose identifier says where it is stored.
    Flux,
}

impl Entity {
    pub const ALL: [Entity; 3] = [Entity::User, Entity::SerialCode, Entity::Flux];

    /// Returns the captured fields, in the order in which a [`Row`] holds them. The first one is the row's key. New
    /// fields are only ever added at the end.
    pub fn fields(self) -> &'static [Field] {
        match self {
            Entity::User => &USER,
            Entity::SerialCode => &SERIAL_CODE,
            Entity::Flux => &FLUX,
        }
    }

    /// Returns the names of the [`Entity::fields`].
    pub fn field_names(self) -> &'static [&'static str] {
        const USER_NAMES: [&str; USER.len()] = names(&USER);
        const SERIAL_CODE_NAMES: [&str; SERIAL_CODE.len()] = names(&SERIAL_CODE);
        const FLUX_NAMES: [&str; FLUX.len()] = names(&FLUX);
        match self {
            Entity::User => &USER_NAMES,
            Entity::SerialCode => &SERIAL_CODE_NAMES,
            Entity::Flux => &FLUX_NAMES,
        }
    }

    /// Returns how many of the fields each captured table has. The configuration may leave out the later ones.
    pub fn required_fields(self) -> usize {
        self.fields().iter().take_while(|field| field.is_required).count()
    }

    /// Returns whether a row has codes, by which lookups find it and caches keep it.
    pub fn has_codes(self) -> bool {
        self == Entity::SerialCode
    }

    /// Returns whether the identifier of a row names its table. Rows of other entities follow a sharding rule, if any.
    pub fn is_placed_by_identifier(self) -> bool {
        self == Entity::Flux
    }

    /// Returns whether a retention rule may drop source tables while their derived rows stand.
    pub fn may_retire(self) -> bool {
        self == Entity::Flux
    }

    /// Returns whether the key of a row has a number of a counter, so that rows tell which numbers are taken.
    pub fn has_numbered_keys(self) -> bool {
        self == Entity::Flux
    }

    /// Returns whether a row has a birthday, for whose last change the application may keep a time.
    pub fn has_birthday(self) -> bool {
        self == Entity::User
    }

    /// Returns whether a sharding rule reads the key of a row, which is always captured.
    pub fn is_sharded_by_key(self) -> bool {
        self == Entity::SerialCode
    }

    /// Returns whether a build that knows payloads of version 1 alone knows the entity.
    pub fn is_known_to_version_1(self) -> bool {
        self != Entity::Flux
    }

    pub fn name(self) -> &'static str {
        match self {
            Entity::User => "user",
            Entity::SerialCode => "serial_code",
            Entity::Flux => "flux",
        }
    }
}

/// A captured field of an entity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    pub name: &'static str,
    pub kind: FieldKind,
    /// The type of a usual column of the field, in SQL.
    pub column_type: &'static str,
    /// Whether each captured table has the field. The configuration may leave out the others.
    pub is_required: bool,
}

/// The values of a field. Every kind of field may also be text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldKind {
    /// An integer, or text without a further form.
    Code,
    Text,
    /// A day, with or without a time.
    Date,
    /// A number with decimal places, or an integer.
    Decimal,
    /// A day with a time.
    DateTime,
}

impl Field {
    const fn required(name: &'static str, kind: FieldKind, column_type: &'static str) -> Self {
        Self { name, kind, column_type, is_required: true }
    }

    const fn optional(name: &'static str, kind: FieldKind, column_type: &'static str) -> Self {
        Self { name, kind, column_type, is_required: false }
    }
}

const USER: [Field; 4] = [
    Field::required("user_id", FieldKind::Code, "BIGINT UNSIGNED"),
    Field::required("birthday", FieldKind::Date, "DATE"),
    Field::optional("lunar_birthday", FieldKind::Text, "VARCHAR(8)"),
    Field::optional("birthday_type", FieldKind::Text, "VARCHAR(8)"),
];
const SERIAL_CODE: [Field; 10] = [
    Field::required("uuid", FieldKind::Code, "BIGINT UNSIGNED"),
    Field::required("imei1", FieldKind::Code, "VARCHAR(255)"),
    Field::required("imei2", FieldKind::Code, "VARCHAR(255)"),
    Field::required("meid", FieldKind::Code, "VARCHAR(255)"),
    Field::required("box_no", FieldKind::Code, "VARCHAR(255)"),
    Field::required("item_code", FieldKind::Code, "VARCHAR(255)"),
    Field::required("first_agent_code", FieldKind::Code, "VARCHAR(255)"),
    Field::required("warehouse_code", FieldKind::Code, "VARCHAR(255)"),
    Field::required("account_id", FieldKind::Code, "VARCHAR(255)"),
    Field::required("sku_code", FieldKind::Code, "VARCHAR(255)"),
];
const FLUX: [Field; 4] = [
    Field::required("id", FieldKind::Text, "CHAR(31) CHARACTER SET ascii"),
    Field::required("parent_id", FieldKind::Text, "CHAR(31) CHARACTER SET ascii"),
    Field::optional("amount", FieldKind::Decimal, "DECIMAL(20, 4)"),
    Field::optional("created", FieldKind::DateTime, "DATETIME(3)"),
];

const fn names<const N: usize>(fields: &[Field; N]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut index = 0;
    while index < N {
        names[index] = fields[index].name;
        index += 1;
    }
    names
}

/// One physical source table and the shard id under which its rows claim derived rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TableIdentity<'a> {
    pub entity: Entity,
    pub shard: ShardId,
    #[serde(borrow)]
    pub database: Cow<'a, str>,
    #[serde(borrow)]
    pub table: Cow<'a, str>,
}

impl TableIdentity<'_> {
    /// Returns the identity that stands for every captured table of an entity, in actions on all of them. Its names are
    /// empty, as no table's are.
    pub fn every(entity: Entity) -> TableIdentity<'static> {
        let shard = ShardId::from_u64(0).expect("it has less than 63 bits");
        TableIdentity { entity, shard, database: Cow::Borrowed(""), table: Cow::Borrowed("") }
    }

    pub fn is_every(&self) -> bool {
        self.database.is_empty() && self.table.is_empty()
    }

    /// Returns the shard of the table that a source of this owner generation has under these names.
    pub fn table_shard(&self, source: &str, generation: u32) -> ShardId {
        ShardId::of(source, &self.database, &self.table, generation)
    }

    /// Whether it is a table of a source of this owner generation. An *heir* of the table is none, and no server lists
    /// it. The identity that stands for every table is none either.
    pub fn is_table_of(&self, source: &str, generation: u32) -> bool {
        self.shard == self.table_shard(source, generation)
    }

    /// Returns the heir of the table for a period: the shard to which rows pass that a retention job deletes. It has
    /// the names of the table, and its id is that of a name with a NUL, which no table has.
    pub fn heir(&self, source: &str, generation: u32, period: u32) -> TableIdentity<'static> {
        let name = format!("{}\0{period}", self.table);
        let shard = ShardId::of(source, &self.database, &name, generation);
        TableIdentity { shard, ..self.clone().into_owned() }
    }

    pub fn into_owned(self) -> TableIdentity<'static> {
        TableIdentity {
            entity: self.entity,
            shard: self.shard,
            database: Cow::Owned(self.database.into_owned()),
            table: Cow::Owned(self.table.into_owned()),
        }
    }
}

/// The kind of a change; row images are full (`binlog_row_image=FULL`).
#[derive(Debug, Clone, PartialEq)]
pub enum Action<'a> {
    Insert {
        after: Row<'a>,
    },
    Update {
        before: Row<'a>,
        after: Row<'a>,
    },
    Delete {
        before: Row<'a>,
    },
    /// TRUNCATE or DROP of the whole table: all of its claims are withdrawn.
    Withdraw,
    /// Rows of the table changed without row events: lanes are to read its content at or after this position.
    Reread,
    /// TRUNCATE or DROP of the whole table by a retention rule: its claims up to this position keep standing, although
    /// no source row makes them any more.
    Retire,
}

impl<'a> Action<'a> {
    /// Returns the row before and after; `None` when the action concerns the whole table.
    pub fn images(&self) -> Option<(Image<'_, 'a>, Image<'_, 'a>)> {
        match self {
            Self::Insert { after } => Some((None, Some(after))),
            Self::Update { before, after } => Some((Some(before), Some(after))),
            Self::Delete { before } => Some((Some(before), None)),
            Self::Withdraw | Self::Reread | Self::Retire => None,
        }
    }
}

/// One change of one captured table.
#[derive(Debug, Clone, PartialEq)]
pub struct Change<'t, 'a> {
    pub lsn: Lsn,
    pub table: &'t TableIdentity<'a>,
    pub action: Action<'a>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows and headers of stored messages count the fields from the first one on, so their order never changes.
    #[test]
    fn the_fields_of_stored_messages_keep_their_places() {
        assert_eq!(Entity::User.field_names(), ["user_id", "birthday", "lunar_birthday", "birthday_type"]);
        assert_eq!(Entity::User.required_fields(), 2);
        assert_eq!(Entity::Flux.field_names(), ["id", "parent_id", "amount", "created"]);
        assert_eq!(Entity::Flux.required_fields(), 2);
        for entity in Entity::ALL {
            assert!((1..=entity.fields().len()).contains(&entity.required_fields()), "{entity:?}");
        }
    }

    #[test]
    fn an_heir_has_the_names_of_its_table_and_is_no_table_of_the_source() {
        let shard = ShardId::of("a", "flux_00_0", "refund_05", 2);
        let (database, name) = ("flux_00_0".into(), "refund_05".into());
        let table = TableIdentity { entity: Entity::Flux, shard, database, table: name };
        let heir = table.heir("a", 2, 7);
        assert_eq!((&heir.database, &heir.table), (&table.database, &table.table));
        assert_eq!((table.is_table_of("a", 2), heir.is_table_of("a", 2)), (true, false));
        assert_eq!((heir.table_shard("a", 2), table.heir("a", 2, 7)), (shard, heir.clone()));
        assert_ne!(table.heir("a", 2, 8).shard, heir.shard);
        assert!(!table.is_table_of("a", 1) && !table.is_table_of("b", 2));
        assert!(!TableIdentity::every(Entity::Flux).is_table_of("a", 2));
    }
}
