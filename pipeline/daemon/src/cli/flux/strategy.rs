//! Options of `flux explain` and `flux place` for the strategy by year: which identifiers have a year digit, and the
//! names of the tables by year. Without them every identifier follows the strategy by month.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::flux::id::{FluxId, Level};
use anabranch_schemas::flux::placement::{Kind, StorageAddress};
use anabranch_schemas::flux::table::{InvalidTemplate, Names};
use anabranch_schemas::flux::years::{CutOver, Strategy, YearDigit, Years};
use clap::Args;
use jiff::civil::Date;

#[derive(Debug, Args)]
pub(super) struct StrategyArguments {
    /// Identifiers of this date and later ones have a year digit, as flux.years.cut_over says
    #[arg(long, value_name = "DATE", conflicts_with = "year_version")]
    cut_over: Option<Date>,
    /// Identifiers of this data version have a year digit, as flux.years.data_version says
    #[arg(long, value_name = "N", value_parser = version)]
    year_version: Option<u8>,
    /// Place of the year digit among the reserved digits: 22 or 23
    #[arg(long, value_name = "PLACE", default_value = "22", value_parser = year_digit)]
    year_digit: YearDigit,
    /// Name of a table of atoms by year; {year} is the year digit
    #[arg(long, value_name = "NAME", default_value = Names::ATOM_BY_YEAR)]
    year_atom_table: String,
    /// Name of a table of composites by year
    #[arg(long, value_name = "NAME", default_value = Names::COMPOSITE_BY_YEAR)]
    year_composite_table: String,
}

fn version(text: &str) -> Result<u8, String> {
    let known = text.parse::<u8>().ok().filter(|version| matches!(version, 0 | 1 | 8));
    known.ok_or_else(|| "no such data version; expected: 0, 1 or 8".to_owned())
}

fn year_digit(text: &str) -> Result<YearDigit, String> {
    let known = text.parse::<u8>().ok().and_then(YearDigit::at);
    known.ok_or_else(|| "no reserved digit is there; expected: 22 or 23".to_owned())
}

/// The names of databases and tables of both strategies.
pub(super) struct BothNames {
    pub by_month: Names,
    pub by_year: Names,
}

impl BothNames {
    pub(super) fn of(&self, strategy: Strategy, level: Level, place: StorageAddress) -> (String, String) {
        match strategy {
            Strategy::Month => self.by_month.of(level, place),
            Strategy::Year(year) => self.by_year.of_year(level, place, year),
        }
    }
}

impl StrategyArguments {
    /// Returns the strategy by year; `None` = no identifier has a year digit.
    pub(super) fn years(&self) -> Option<Years> {
        let cut_over = match (self.cut_over, self.year_version) {
            (Some(date), _) => CutOver::Date(date),
            (None, Some(version)) => CutOver::Version(version),
            (None, None) => return None,
        };
        Some(Years { cut_over, digit: self.year_digit })
    }

    pub(super) fn strategy(&self, id: &FluxId) -> Strategy {
        self.years().map_or(Strategy::Month, |years| years.strategy(id))
    }

    pub(super) fn names(&self, database: &str) -> Result<Names, InvalidTemplate> {
        Names::parse_by_year(database, &self.year_atom_table, &self.year_composite_table)
    }

    /// Returns the name of tables by year of a level.
    pub(super) fn table(&self, level: Level) -> &String {
        match level {
            Level::Composite => &self.year_composite_table,
            Level::Atom => &self.year_atom_table,
        }
    }

    /// Returns the meaning of the reserved digits of an identifier that has a year digit.
    pub(super) fn meaning(&self, id: &FluxId) -> Option<String> {
        let years = self.years()?;
        let Strategy::Year(year) = years.strategy(id) else { return None };
        Some(format!("digit {} is the last digit of its table's year: {year}", years.digit.place()))
    }

    /// Returns the strategy of a new document. With a cut-over date it follows from the date of the document; with a
    /// data version the document is taken to have that one.
    pub(super) fn of_new(
        &self,
        kind: Kind,
        date: Option<Date>,
        parent: Option<&FluxId>,
    ) -> Result<Strategy, Fault> {
        let Some(years) = self.years() else { return Ok(Strategy::Month) };
        let Some(date) = date else {
            let subject = format!("flux place {}", kind.name());
            return Err(Fault::new(Code::FluxParentUnfit, subject, "--date is missing")
                .needs("the date of the new document, which decides about its year digit"));
        };
        let version = match years.cut_over {
            CutOver::Version(version) => version,
            CutOver::Date(_) => 1,
        };
        // A kind without a parent has the year of its date, so the year is known wherever a place is.
        let year = years.year_of_kind(kind, date, parent).filter(|_| years.covers(version, date));
        Ok(year.map_or(Strategy::Month, Strategy::Year))
    }

    /// Returns the differences between an identifier's year and the rule of its kind, as reason and text.
    pub(super) fn misplaced(
        &self,
        id: &FluxId,
        kind: Option<Kind>,
        parent: Option<&FluxId>,
    ) -> Vec<(&'static str, String)> {
        let found = self.years().map(|years| years.differences(id, parent, kind, None));
        let found = found.into_iter().flatten().flatten();
        found.map(|difference| (difference.reason(), difference.to_string())).collect()
    }

    /// Returns the identifier with 0 as its year digit, so that the other reserved digits are left.
    pub(super) fn without_year(&self, id: FluxId) -> FluxId {
        self.years().map_or(id, |years| years.without_year(id))
    }
}
