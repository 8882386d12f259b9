//! The captured tables of payment documents on every source, with what decides when each of them is due to go.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::change::Entity;
use anabranch_schemas::flux::id::{FluxId, Month};
use anabranch_schemas::flux::retention::YearMonth;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::wiring::{CapturedTable, TableExtent, Wiring};

/// A captured table of payment documents, as its source has it.
#[derive(Debug)]
pub(super) struct DocumentTable {
    pub source: String,
    pub extent: TableExtent,
    pub partition: Option<u8>,
    pub state: TableState,
}

/// What the number in a table's name and its newest document say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableState {
    /// The month that the table holds, and its age in months.
    Month(YearMonth, i32),
    /// The name has no month, or 99: no month ends the table.
    NoMonth,
    Empty,
    /// The greatest key is no identifier, so nothing says how old the table is.
    Odd,
}

impl DocumentTable {
    pub fn table(&self) -> &CapturedTable {
        &self.extent.table
    }

    /// Returns `database.table`.
    pub fn name(&self) -> String {
        let identity = &self.table().identity;
        format!("{}.{}", identity.database, identity.table)
    }

    /// Returns the month of the table if it is `months` months old; otherwise why it is not due.
    pub fn due(&self, months: u32) -> Result<YearMonth, String> {
        match self.state {
            TableState::Month(month, age) if age >= i32::try_from(months).unwrap_or(i32::MAX) => Ok(month),
            TableState::Month(month, age) => {
                Err(format!("it is not due: its newest document is of {month}'s table, {age} months old"))
            }
            TableState::NoMonth => {
                Err("it is never due by a month: its name has none, so rows of it go one by one".to_owned())
            }
            TableState::Empty => Err("it is not due: it is empty".to_owned()),
            TableState::Odd => {
                Err("it is not known to be due: its greatest key is no identifier with a date".to_owned())
            }
        }
    }
}

/// Returns the captured tables of payment documents on every source, in the order of sources and names.
pub(super) async fn document_tables(wiring: &Wiring, today: Date) -> Result<Vec<DocumentTable>, Fault> {
    let config = wiring.config();
    let mut all = Vec::new();
    for source in config.sources.iter().filter(|source| source.entities.contains(&Entity::Flux)) {
        let is_meant = |table: &CapturedTable| table.identity.entity == Entity::Flux;
        for extent in wiring.source(&source.name)?.extents(is_meant).await? {
            let place = config.flux_places.of_table(&extent.table.identity);
            let state =
                state(place.month, extent.greatest_key.as_deref(), config.flux_places.system(), today);
            let (source, partition) = (source.name.clone(), place.partition);
            all.push(DocumentTable { source, extent, partition, state });
        }
    }
    all.sort_by(|one, other| (&one.source, one.name()).cmp(&(&other.source, other.name())));
    Ok(all)
}

fn state(month: Option<Month>, greatest: Option<&[u8]>, system: u16, today: Date) -> TableState {
    let Some(Month::Of(number)) = month else { return TableState::NoMonth };
    let Some(greatest) = greatest else { return TableState::Empty };
    let Ok(newest) = FluxId::parse_of(greatest, system) else { return TableState::Odd };
    let month = YearMonth::of(newest.parts().date).of_table(number);
    TableState::Month(month, month.months_until(YearMonth::of(today)))
}

pub(super) fn today(given: Option<Date>) -> Date {
    given.unwrap_or_else(|| Timestamp::now().to_zoned(TimeZone::UTC).date())
}

/// Returns the fault of a table, or of a name, that must not be dropped.
pub(super) fn refused(subject: impl Into<String>, found: impl Into<String>) -> Fault {
    Fault::new(Code::FluxRetentionRefused, subject.into(), found.into())
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    #[test]
    fn a_table_is_due_by_its_month_and_its_newest_identifier() {
        let newest = |text: &str| text.as_bytes().to_vec();
        let of = |month, greatest: Option<Vec<u8>>| state(month, greatest.as_deref(), 31, date(2017, 5, 1));
        let january = |text: &str| of(Some(Month::Of(0)), Some(newest(text)));
        let (old, young) = ("2016013111031001000050000000001", "2017010111031001000050000000001");
        assert!(matches!(january(old), TableState::Month(_, 16)));
        assert!(matches!(january(young), TableState::Month(_, 4)));
        assert_eq!(january("zzz"), TableState::Odd);
        assert_eq!(of(Some(Month::Of(0)), None), TableState::Empty);
        assert_eq!(of(Some(Month::No), Some(newest(old))), TableState::NoMonth);
        assert_eq!(of(None, Some(newest(old))), TableState::NoMonth);
    }
}
