//! The section `[flux.years]`: which identifiers have a year digit, and whether the tables by year are enough.
//!
//! The tables themselves are `[[entities]]` entries with `{year}`, beside those without one.

use anabranch_schemas::change::Entity;
use anabranch_schemas::flux::id::Level;
use anabranch_schemas::flux::years::{CutOver, YearDigit, Years};
use jiff::civil::Date;
use serde::Deserialize;

use crate::config::{EntityConfig, Problems};

/// Data versions that an identifier can have.
const VERSIONS: [u8; 3] = [0, 1, 8];
/// The source document keeps one year online at least.
const RETENTION_MONTHS_MIN: u32 = 12;
/// A table without a month ends with December and is used again from January of the tenth year after, 109 months later.
const RETENTION_MONTHS_MAX: u32 = 108;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct YearsSection {
    cut_over: Option<String>,
    data_version: Option<u8>,
    digit: Option<u8>,
}

impl YearsSection {
    /// Adds a problem and returns `None` for a value that cannot be resolved.
    pub(super) fn resolve(&self, retention_months: u32, problems: &mut Problems) -> Option<Years> {
        let digit = self.digit.map_or(Some(YearDigit::default()), YearDigit::at);
        if let (None, Some(place)) = (digit, self.digit) {
            let needed = "22 or 23, the place of a reserved digit, counted from 1";
            problems.add("flux.years.digit", place.to_string(), needed);
        }
        if !(RETENTION_MONTHS_MIN..=RETENTION_MONTHS_MAX).contains(&retention_months) {
            let needed = format!(
                "{RETENTION_MONTHS_MIN} to {RETENTION_MONTHS_MAX} months beside [flux.years]: a year stays online, and \
                 its tables are empty before the year digit comes round"
            );
            problems.add("flux.retention_months", retention_months.to_string(), &needed);
        }
        Some(Years { cut_over: self.cut_over(problems)?, digit: digit? })
    }

    fn cut_over(&self, problems: &mut Problems) -> Option<CutOver> {
        let one =
            "one of flux.years.cut_over and flux.years.data_version: which identifiers have a year digit";
        match (&self.cut_over, self.data_version) {
            (Some(date), None) => {
                let parsed = date.parse::<Date>();
                if parsed.is_err() {
                    let needed =
                        "a date of the calendar, such as \"2027-01-01\": the first with a year digit";
                    problems.add("flux.years.cut_over", format!("`{date}`"), needed);
                }
                parsed.ok().map(CutOver::Date)
            }
            (None, Some(version)) if VERSIONS.contains(&version) => Some(CutOver::Version(version)),
            (None, Some(version)) => {
                let needed = "0, 1 or 8: identifiers have no other data version";
                problems.add("flux.years.data_version", version.to_string(), needed);
                None
            }
            (Some(_), Some(_)) => {
                problems.add("flux.years.data_version", "beside flux.years.cut_over".to_owned(), one);
                None
            }
            (None, None) => {
                problems.add("flux.years.cut_over", "missing".to_owned(), one);
                None
            }
        }
    }
}

/// Checks that tables by year and the section come together, and that atoms and composites each have no fewer tables by
/// year than without. A configuration without documents only makes identifiers, and needs no tables.
pub(in crate::config) fn check_tables(has_years: bool, entities: &[EntityConfig], problems: &mut Problems) {
    let documents = || entities.iter().filter(|config| config.entity == Entity::Flux);
    if !has_years {
        for config in documents().filter(|config| config.tables.has_year()) {
            let needed = "no {year}, or a section [flux.years] that says which identifiers have a year digit";
            problems.add("entities.tables", format!("`{}`", config.tables), needed);
        }
        return;
    }
    for level in [Level::Composite, Level::Atom] {
        let is_of = |config: &&EntityConfig| config.level.is_none_or(|known| known == level);
        let tables = |by_year: bool| -> u32 {
            let counted = documents().filter(is_of).filter(|config| config.tables.has_year() == by_year);
            counted.map(|config| config.tables.tables_of_documents()).sum()
        };
        let (before, after) = (tables(false), tables(true));
        if after < before {
            let found = format!(
                "{after} tables by year of {} level, fewer than the {before} without a year",
                level.name()
            );
            let needed = "at least as many beside [flux.years]: an [[entities]] entry such as \
                          flux_00_{db}.atom_{partition:02}_{year}_{month:02}";
            problems.add("entities.tables", found, needed);
        }
    }
}
