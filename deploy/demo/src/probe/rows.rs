//! Rows of the probe, which no workload touches: their tables and their values.
//!
//! A change is identified by its *revision*, which rises with each change of a row. A user's becomes a later day; a
//! device's becomes a new first IMEI, which identifies that change alone; a payment document's becomes its amount.

use anabranch_schemas::change::Entity;
use anabranch_schemas::flux::id::{Level, Month, Side};
use anabranch_schemas::flux::placement::StorageAddress;
use anabranch_schemas::serial::luhn_check_digit;

use crate::topology::{Document, SourceTable, Topology, WITHOUT_KIND, uuid};

/// The first id: far above those of the workload.
const FIRST_ID: u64 = 1 << 40;
/// Rows of each source: at 25 probes a second and source a row is changed every 40 s.
const ROWS_PER_SOURCE: u64 = 1_000;
/// Days through which users move: one a month, so that all lanes take part.
const DAYS: u64 = 12;
/// One more than the largest part of a device's code: six digits for a row's number, and six for a revision.
const CODE_PART: u64 = 1_000_000;

/// The first sequence of payment documents: above those that a workload reaches, and below those near the last one.
const FIRST_SEQUENCE: u32 = 60_000_000;

/// A row: its id (for a device or payment document its number), and its table.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProbeRow {
    pub id: u64,
    pub source_table: SourceTable,
}

impl ProbeRow {
    /// Returns the rows of one source, with the statements that insert them.
    pub fn all(topology: &Topology, source: usize) -> Vec<(Self, String)> {
        let first = FIRST_ID + source as u64 * ROWS_PER_SOURCE;
        let is_own = |source_table: &SourceTable| topology.source_of(*source_table) == source;
        match topology.entity {
            Entity::User => {
                let names = (0u64..).map(|number| format!("probe-{number}"));
                let own = names
                    .map(|name| (topology.source_table(&name), name))
                    .filter(|(source_table, _)| is_own(source_table));
                own.zip(first..first + ROWS_PER_SOURCE)
                    .map(|((source_table, name), id)| {
                        let row = Self { id, source_table };
                        let birthday = row.birthday(row.first_revision());
                        let columns =
                            format!("INSERT INTO {} (user_id, user_name, birthday)", source_table.quoted());
                        (row, format!("{columns} VALUES ({id}, '{name}', '{birthday}');"))
                    })
                    .collect()
            }
            Entity::SerialCode => (FIRST_ID..)
                .map(|id| Self { id, source_table: topology.source_table(&uuid(id)) })
                .filter(|row| is_own(&row.source_table))
                .take(ROWS_PER_SOURCE as usize)
                .map(|row| {
                    let (source_table, key) = (row.source_table.quoted(), row.source_table.key(row.id));
                    let code = row.code(row.first_revision());
                    (row, format!("INSERT INTO {source_table} (uuid, imei1) VALUES ({key}, '{code}');"))
                })
                .collect(),
            Entity::Flux => documents(topology)
                .filter(|row| is_own(&row.source_table))
                .take(ROWS_PER_SOURCE as usize)
                .map(|row| {
                    let (source_table, key) = (row.source_table.quoted(), row.source_table.key(row.id));
                    let amount = row.first_revision();
                    (row, format!("INSERT INTO {source_table} (id, amount) VALUES ({key}, {amount});"))
                })
                .collect(),
        }
    }

    /// Returns the revision that the insert writes.
    pub fn first_revision(self) -> u64 {
        self.id % DAYS
    }

    /// Returns the statement that makes the change of that revision.
    pub fn change(self, revision: u64) -> String {
        let set = match self.source_table.entity {
            Entity::User => format!("birthday = '{}'", self.birthday(revision)),
            Entity::SerialCode => format!("imei1 = '{}'", self.code(revision)),
            Entity::Flux => format!("amount = {revision}"),
        };
        let (table, column, key) =
            (self.source_table.quoted(), self.source_table.key_column(), self.source_table.key(self.id));
        format!("UPDATE {table} SET {set} WHERE {column} = {key}")
    }

    /// Returns a payment document's identifier of 31 digits.
    pub fn document(self) -> String {
        Document::of(self.id).id().to_string()
    }

    fn birthday(self, revision: u64) -> String {
        format!("1984-{:02}-15", revision % DAYS + 1)
    }

    /// Returns the table of a user's birthday.
    pub fn day_table(self, revision: u64) -> String {
        format!("birthday_{:02}15", revision % DAYS + 1)
    }

    /// Returns a device's first IMEI: 15 digits.
    pub fn code(self, revision: u64) -> String {
        let digits = format!("99{:06}{:06}", self.id % CODE_PART, revision % CODE_PART);
        let check = luhn_check_digit(digits.as_bytes());
        format!("{digits}{}", char::from(check))
    }
}

/// Returns payment documents without kind and parent, in every user partition of both sides in turn.
fn documents(topology: &Topology) -> impl Iterator<Item = ProbeRow> {
    let seconds = topology.rule.tables.max(1);
    (0u32..).map(move |number| {
        let (side, place) =
            if number % 2 == 0 { (Side::Main, number / 2) } else { (Side::FailOver, number / 2) };
        let partition = (place % 10 * 10 + place / 10 % seconds) as u8;
        let address = StorageAddress { side, partition, month: Month::No };
        let (level, business) = (Level::Composite, WITHOUT_KIND);
        let document = Document { day: 0, level, business, address, sequence: FIRST_SEQUENCE + number };
        ProbeRow { id: document.number(), source_table: document.source_table() }
    })
}
