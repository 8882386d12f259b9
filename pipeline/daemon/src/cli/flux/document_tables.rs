//! The captured tables of payment documents on every source, with what decides when each of them is due to go.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::change::Entity;
use anabranch_schemas::flux::audit::TablePlace;
use anabranch_schemas::flux::id::{FluxId, Level, Month};
use anabranch_schemas::flux::retention::YearMonth;
use anabranch_schemas::flux::years::Strategy;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::retention::age::{TableState, state};
use crate::wiring::{CapturedTable, TableExtent, Wiring};

/// A captured table of payment documents, as its source has it.
#[derive(Debug)]
pub(super) struct DocumentTable {
    pub source: String,
    pub extent: TableExtent,
    pub partition: Option<u8>,
    pub level: Option<Level>,
    pub state: TableState,
    /// The name has a year digit.
    pub is_by_year: bool,
    /// The return of the year digit; `None` = the table is empty, or its name has no year digit.
    pub round: Option<Round>,
}

/// The time at which an identifier names a table by year again, by its oldest document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Round {
    /// The last month of the oldest documents; `None` = the least key is no identifier, or one of a year or more after
    /// the month that the name means, so the rows may be of any year.
    pub holds: Option<YearMonth>,
    pub comes: YearMonth,
    /// Months until then; zero or less = it has come round.
    pub months: i32,
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
        self.state.due(months)
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
            let system = config.flux_places.system();
            let state = state(&place, extent.greatest_key.as_deref(), system, today);
            let round = round(&place, extent.least_key.as_deref(), system, today);
            let is_by_year = matches!(place.strategy, Some(Strategy::Year(_)));
            let (source, partition, level) = (source.name.clone(), place.partition, place.level);
            all.push(DocumentTable { source, extent, partition, level, state, is_by_year, round });
        }
    }
    all.sort_by(|one, other| (&one.source, one.name()).cmp(&(&other.source, other.name())));
    Ok(all)
}

/// Returns when the year digit of a table with rows comes round. If the least key does not say the year of the name,
/// the rows may be of any year, so the digit comes round with the next year that has it.
fn round(place: &TablePlace, least: Option<&[u8]>, system: u16, today: Date) -> Option<Round> {
    let (Some(Strategy::Year(year)), month) = (place.strategy, place.month.unwrap_or(Month::No)) else {
        return None;
    };
    let oldest = FluxId::parse_of(least?, system).ok().map(|oldest| YearMonth::of(oldest.parts().date));
    let holds = oldest.and_then(|oldest| {
        let last = oldest.of_year_table(year, month);
        oldest.is_near(last).then_some(last)
    });
    let last = holds.unwrap_or_else(|| YearMonth::of(today).of_year_table(year, month));
    let comes = last.comes_round(month);
    Some(Round { holds, comes, months: YearMonth::of(today).months_until(comes) })
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
        let of = |month, greatest: Option<Vec<u8>>| {
            let place = TablePlace { month, ..TablePlace::default() };
            state(&place, greatest.as_deref(), 31, date(2017, 5, 1))
        };
        let january = |text: &str| of(Some(Month::Of(0)), Some(newest(text)));
        let (old, young) = ("2016013111031001000050000000001", "2017010111031001000050000000001");
        assert!(matches!(january(old), TableState::Month(_, 16)));
        assert!(matches!(january(young), TableState::Month(_, 4)));
        assert_eq!(january("zzz"), TableState::Odd);
        assert_eq!(of(Some(Month::Of(0)), None), TableState::Empty);
        assert_eq!(of(Some(Month::No), Some(newest(old))), TableState::NoMonth);
        assert_eq!(of(None, Some(newest(old))), TableState::NoMonth);
    }

    fn by_year(year: u8, month: Month) -> TablePlace {
        TablePlace { month: Some(month), strategy: Some(Strategy::Year(year)), ..TablePlace::default() }
    }

    #[test]
    fn kinds_without_a_month_are_due_by_their_year_table() {
        let newest = b"2027123111031001099050700000001";
        let of = |today| state(&by_year(7, Month::No), Some(newest), 31, today);
        let december = YearMonth::of(date(2027, 12, 1));
        assert_eq!(of(date(2027, 3, 1)), TableState::Month(december, -9));
        assert_eq!(of(date(2029, 4, 1)), TableState::Month(december, 16));
        let place = by_year(7, Month::Of(0));
        let of_january = state(&place, Some(b"2027011511031001000050700000001"), 31, date(2028, 5, 1));
        assert_eq!(of_january, TableState::Month(YearMonth::of(date(2027, 1, 1)), 16));
        assert_eq!(state(&place, None, 31, date(2028, 5, 1)), TableState::Empty);
        assert_eq!(state(&place, Some(b"zzz"), 31, date(2028, 5, 1)), TableState::Odd);
    }

    #[test]
    fn a_table_by_year_with_a_document_of_another_year_is_never_due() {
        let payment = b"2028010311031001011050800000001";
        let place = by_year(8, Month::Of(11));
        let state = state(&place, Some(payment), 31, date(2028, 1, 15));
        let month = |year, month| YearMonth::of(date(year, month, 1));
        assert_eq!(state, TableState::TooNew(month(2028, 1), month(2018, 12)));
        let round = round(&place, Some(payment), 31, date(2028, 1, 15)).unwrap();
        assert_eq!(round, Round { holds: None, comes: month(2028, 12), months: 11 });
        let why = state.due(1).unwrap_err();
        assert!(why.ends_with("its newest document is of 2028-01, and its name means 2018-12"), "{why}");
    }

    #[test]
    fn a_years_table_is_empty_before_it_comes_round() {
        let of = |place, least: Option<&[u8]>, today| {
            let round = round(&place, least, 31, today)?;
            Some((round.holds.map(|month| month.to_string()), round.comes.to_string(), round.months))
        };
        let january = || by_year(7, Month::Of(0));
        let oldest = Some(&b"2027011511031001000050700000001"[..]);
        let expected = |months| Some((Some("2027-01".to_owned()), "2037-01".to_owned(), months));
        assert_eq!(of(january(), oldest, date(2028, 5, 1)), expected(104));
        assert_eq!(of(january(), oldest, date(2036, 12, 31)), expected(1));
        assert_eq!(of(january(), oldest, date(2037, 2, 1)), expected(-1), "rows of two years");
        assert_eq!(of(january(), None, date(2037, 2, 1)), None, "it is empty");
        assert_eq!(
            of(TablePlace { strategy: Some(Strategy::Month), ..january() }, oldest, date(2037, 2, 1)),
            None
        );
        let refunds = of(by_year(7, Month::No), Some(b"2027061511031001099050700000001"), date(2036, 12, 1));
        assert_eq!(refunds, Some((Some("2027-12".to_owned()), "2037-01".to_owned(), 1)));
        assert_eq!(of(january(), Some(b"zzz"), date(2036, 12, 1)), Some((None, "2037-01".to_owned(), 1)));
    }
}
