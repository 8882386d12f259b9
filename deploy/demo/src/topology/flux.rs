//! Tables of payment documents: `flux_00_3.composite_31_11`, on the main servers and once more on a fail-over server.
//!
//! A document has a number, from which its identifier of 31 digits is computed and back: the day, then digits 14 to 21
//! (atom or composite, business code, side, month, user partition), then the sequence. Recharges are of
//! December and January, whose tables are `11` and `00`; documents without a month are in `99`. Only these tables are
//! made, for the first user partitions of each database.

use anabranch_schemas::change::Entity;
use anabranch_schemas::flux::id::{FluxId, Level, Month, NO_MONTH, Parts, Region, SYSTEM, Side};
use anabranch_schemas::flux::placement::{Kind, StorageAddress};
use anabranch_schemas::sql::flux_table;
use jiff::Span;
use jiff::civil::{Date, date};

use super::SourceTable;

/// Patterns of the physical names with their level, as in the daemon's configuration.
pub const FLUX_TABLES: [(&str, &str); 2] = [
    ("flux_00_{db}.composite_{partition:02}_{month:02}", "composite"),
    ("flux_00_{db}.atom_{partition:02}_{month:02}", "atom"),
];
/// Databases of one side; [`SourceTable::database`] counts those of the fail-over side on from here.
pub const FLUX_DATABASES: u32 = 10;
/// The region of all documents.
pub const FLUX_REGION: Region = Region::Singapore;
/// Month digits of the tables that exist.
const MONTHS: [u8; 3] = [0, 11, NO_MONTH];
/// Business codes with the kinds of their documents. A code that is absent here has no kind, so its documents may
/// have any parent.
pub const FLUX_KINDS: [(u8, &[Kind]); 10] = [
    (1, &[Kind::Recharge, Kind::Atom]),
    (2, &[Kind::Capture, Kind::Atom]),
    (3, &[Kind::Refund, Kind::Atom]),
    (4, &[Kind::Cancel, Kind::Atom]),
    (5, &[Kind::RechargeClearing]),
    (6, &[Kind::RefundClearing]),
    (7, &[Kind::ReturnedRefundClearing]),
    (8, &[Kind::Chargeback]),
    (9, &[Kind::ChargebackReversal]),
    (10, &[Kind::Withdrawal, Kind::WithdrawalAtom]),
];
/// The business code of documents without a kind, whose parent is in any user partition.
pub const WITHOUT_KIND: u8 = 77;
/// Day 0 of documents.
const FIRST_DAY: Date = date(2025, 12, 1);
/// Days of recharges: all of December and January. Documents that follow a recharge may be of a later day.
pub const RECHARGE_DAYS: u64 = 62;
/// Days that a number can hold.
pub const FLUX_DAYS: u64 = 100;
/// Data version in digit 9.
const VERSION: u8 = 1;
/// Weight of the digits 14 to 21 in a document's number; the sequence has eight digits.
const MIDDLE: u64 = 100_000_000;
/// Weight of the day in a document's number.
const DAY: u64 = MIDDLE * MIDDLE;

/// The parts of an identifier that documents of the demo choose.
#[derive(Debug, Clone, Copy)]
pub struct Document {
    /// Days since the first of December.
    pub day: u64,
    pub level: Level,
    pub business: u8,
    pub address: StorageAddress,
    pub sequence: u32,
}

impl Document {
    /// Returns the document of that number.
    ///
    /// # Panics
    ///
    /// Panics when the number is none of a document.
    pub fn of(number: u64) -> Self {
        let middle = number / MIDDLE % MIDDLE;
        let two = |weight: u64| (middle / weight % 100) as u8;
        let month = match two(100) {
            NO_MONTH => Month::No,
            month => Month::Of(month),
        };
        Self {
            day: number / DAY,
            level: if middle / 10_000_000 == 1 { Level::Atom } else { Level::Composite },
            business: two(100_000),
            address: StorageAddress {
                side: if middle / 10_000 % 10 == 1 { Side::FailOver } else { Side::Main },
                partition: two(1),
                month,
            },
            sequence: (number % MIDDLE) as u32,
        }
    }

    pub fn number(&self) -> u64 {
        let StorageAddress { side, partition, month } = self.address;
        let level = u64::from(self.level.digit()) * 10_000_000 + u64::from(self.business) * 100_000;
        let place = u64::from(side.digit()) * 10_000 + u64::from(month.digits()) * 100 + u64::from(partition);
        self.day * DAY + (level + place) * MIDDLE + u64::from(self.sequence)
    }

    /// Returns the date of a day.
    pub fn date(day: u64) -> Date {
        let days = Span::new().days(i64::try_from(day).expect("a document's day has two digits"));
        FIRST_DAY.checked_add(days).expect("the calendar goes on after 2026")
    }

    pub fn id(&self) -> FluxId {
        let StorageAddress { side, partition, month } = self.address;
        let parts = Parts {
            date: Self::date(self.day),
            version: VERSION,
            region: FLUX_REGION,
            system: SYSTEM,
            level: self.level,
            business: self.business,
            side,
            month,
            partition,
            // Any digits are valid.
            reserved: (self.sequence % 97) as u8,
            sequence: self.sequence,
        };
        FluxId::of(parts, SYSTEM).expect("each part of the document follows its rule")
    }

    /// Returns the table that the digits name.
    pub fn source_table(&self) -> SourceTable {
        table_of(self.level, self.address)
    }
}

/// Returns the table of a level and a place.
pub(super) fn table_of(level: Level, address: StorageAddress) -> SourceTable {
    let StorageAddress { side, partition, month } = address;
    let partition = u32::from(partition);
    SourceTable {
        entity: Entity::Flux,
        database: u32::from(side.digit()) * FLUX_DATABASES + partition / 10,
        table: u32::from(level.digit()) * 1_000 + partition % 10 * 100 + u32::from(month.digits()),
    }
}

/// Returns the level and place of the documents that belong in a table.
pub fn place_of(source_table: SourceTable) -> (Level, StorageAddress) {
    let SourceTable { database, table, .. } = source_table;
    let level = if table < 1_000 { Level::Composite } else { Level::Atom };
    let side = if database < FLUX_DATABASES { Side::Main } else { Side::FailOver };
    let partition = (database % FLUX_DATABASES * 10 + table / 100 % 10) as u8;
    let month = match (table % 100) as u8 {
        NO_MONTH => Month::No,
        month => Month::Of(month),
    };
    (level, StorageAddress { side, partition, month })
}

/// Returns the numbers of the tables of each database with that many user partitions, in rising order.
pub(super) fn tables(partitions: u32) -> Vec<u32> {
    let of = |level: u32| (0..partitions).map(move |partition| level * 1_000 + partition * 100);
    [0, 1].into_iter().flat_map(of).flat_map(|first| MONTHS.map(|month| first + u32::from(month))).collect()
}

pub(super) fn database_name(source_table: SourceTable) -> String {
    format!("flux_00_{}", source_table.database % FLUX_DATABASES)
}

pub(super) fn table_name(source_table: SourceTable) -> String {
    let (level, StorageAddress { partition, month, .. }) = place_of(source_table);
    format!("{}_{partition:02}_{:02}", level.name(), month.digits())
}

pub(super) fn create_table(source_table: SourceTable) -> String {
    flux_table(&database_name(source_table), &table_name(source_table))
}

/// Returns the SQL for the number of the document `id`.
pub(super) fn number_sql() -> String {
    let day = format!("DATEDIFF(LEFT(id, 8), '{FIRST_DAY}')");
    format!("CAST(CONCAT({day}, SUBSTRING(id, 14, 8), SUBSTRING(id, 24)) AS UNSIGNED)")
}

/// Returns the table that the digits of an identifier name.
pub(super) fn source_table(id: &str) -> SourceTable {
    let id = FluxId::parse(id.as_bytes()).expect("the workload's identifiers follow every rule");
    table_of(id.parts().level, StorageAddress::of(&id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_an_identifier_and_a_table_and_back() {
        for (business, month, side) in
            [(1, Month::Of(0), Side::Main), (77, Month::No, Side::FailOver), (9, Month::Of(11), Side::Main)]
        {
            for level in [Level::Composite, Level::Atom] {
                let address = StorageAddress { side, partition: 52, month };
                let document = Document { day: 41, level, business, address, sequence: 99_000_123 };
                let again = Document::of(document.number());
                assert_eq!(again.id(), document.id());
                assert_eq!(place_of(again.source_table()), (level, address));
                assert_eq!(source_table(&document.id().to_string()), again.source_table());
            }
        }
    }

    #[test]
    fn names_are_those_of_the_digits() {
        let address = StorageAddress { side: Side::FailOver, partition: 31, month: Month::Of(11) };
        let table = table_of(Level::Composite, address);
        assert_eq!(table.name(), "flux_00_3.composite_31_11");
        assert_eq!(Document::date(0).to_string(), "2025-12-01");
        assert_eq!(Document::date(RECHARGE_DAYS - 1).to_string(), "2026-01-31");
    }
}
