//! From the digits of an identifier to the names of its database and table.
//!
//! The first digit of the user partition is the database, both together are the table. Names are [`Template`]s, since
//! the source document does not explain the `00` in `flux_00_0`. Tables by year have the year digit in their name, too.
//! [`settlement`] is the table of settlements, whose name the document writes as a separate expression.

use std::fmt::Write;

use thiserror::Error;

use crate::flux::id::{FluxId, Level, Month};
use crate::flux::placement::StorageAddress;

/// Values of the user partition, and thus pairs of database and table, at most.
pub const PARTITIONS: u32 = 100;
/// Months that have their own table.
pub const MONTHS: u32 = 12;

/// The number that a placeholder stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Placeholder {
    /// The first digit of the user partition.
    Database,
    Partition,
    /// The month in two digits: 00 to 11, or 99.
    Month,
    /// The last digit of a year.
    Year,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Number(Placeholder, usize),
}

/// A name such as `atom_{partition:02}_{month:02}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

/// The text is not a template of a name.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("`{template}` is not a name of a table or database: {reason}; expected for example {EXAMPLE}")]
pub struct InvalidTemplate {
    pub template: String,
    pub reason: &'static str,
}

const EXAMPLE: &str = "atom_{partition:02}_{month:02}";

impl Template {
    /// Parses a template. Placeholders are `{db}`, `{partition}`, `{month}` and `{year}`; `:02` pads with zeros.
    pub fn parse(template: &str) -> Result<Self, InvalidTemplate> {
        let invalid = |reason| refused(template, reason);
        if template.is_empty() {
            return Err(invalid("it is empty"));
        }
        let (mut pieces, mut rest) = (Vec::new(), template);
        while let Some((text, tail)) = rest.split_once('{') {
            let (inner, tail) = tail.split_once('}').ok_or_else(|| invalid("a `{` without a `}`"))?;
            let (name, width) = inner.split_once(':').unwrap_or((inner, "1"));
            let placeholder = match name {
                "db" => Placeholder::Database,
                "partition" => Placeholder::Partition,
                "month" => Placeholder::Month,
                "year" => Placeholder::Year,
                _ => return Err(invalid("a placeholder other than {db}, {partition}, {month} and {year}")),
            };
            let width = width.parse().ok().filter(|width| (1..=10).contains(width));
            let width = width.ok_or_else(|| invalid("a width that is not 1 to 10"))?;
            pieces.extend([Piece::Text(text.to_owned()), Piece::Number(placeholder, width)]);
            rest = tail;
        }
        pieces.push(Piece::Text(rest.to_owned()));
        let is_unpaired = |piece: &Piece| matches!(piece, Piece::Text(text) if text.contains('}'));
        if pieces.iter().any(is_unpaired) {
            return Err(invalid("a `}` without a `{`"));
        }
        Ok(Self(pieces))
    }

    fn has_year(&self) -> bool {
        self.0.iter().any(|piece| matches!(piece, Piece::Number(Placeholder::Year, _)))
    }

    fn name(&self, place: StorageAddress, year: u8) -> String {
        let mut name = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => name.push_str(text),
                Piece::Number(placeholder, width) => {
                    let number = match placeholder {
                        Placeholder::Database => place.partition / 10,
                        Placeholder::Partition => place.partition,
                        Placeholder::Month => place.month.digits(),
                        Placeholder::Year => year,
                    };
                    write!(name, "{number:0width$}").expect("writing into a text cannot fail");
                }
            }
        }
        name
    }
}

fn refused(template: &str, reason: &'static str) -> InvalidTemplate {
    InvalidTemplate { template: template.to_owned(), reason }
}

/// Templates for the names of databases and tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    pub database: Template,
    pub atom: Template,
    pub composite: Template,
}

impl Names {
    pub const DATABASE: &str = "flux_00_{db}";
    pub const ATOM: &str = EXAMPLE;
    pub const COMPOSITE: &str = "composite_{partition:02}_{month:02}";

    pub const ATOM_BY_YEAR: &str = "atom_{partition:02}_{year}_{month:02}";
    pub const COMPOSITE_BY_YEAR: &str = "composite_{partition:02}_{year}_{month:02}";

    /// Parses the names of the strategy by month, which have no year.
    pub fn parse(database: &str, atom: &str, composite: &str) -> Result<Self, InvalidTemplate> {
        let names = Self::parse_any(database, atom, composite)?;
        for (template, text) in
            [(&names.database, database), (&names.atom, atom), (&names.composite, composite)]
        {
            if template.has_year() {
                return Err(refused(text, "it has {year}, and identifiers by month have no year digit"));
            }
        }
        Ok(names)
    }

    /// Parses the names of the strategy by year. The table has the year, or the database.
    pub fn parse_by_year(database: &str, atom: &str, composite: &str) -> Result<Self, InvalidTemplate> {
        let names = Self::parse_any(database, atom, composite)?;
        for (template, text) in [(&names.atom, atom), (&names.composite, composite)] {
            if !template.has_year() && !names.database.has_year() {
                return Err(refused(
                    text,
                    "it has no {year}, and a table by year has the documents of one year",
                ));
            }
        }
        Ok(names)
    }

    fn parse_any(database: &str, atom: &str, composite: &str) -> Result<Self, InvalidTemplate> {
        Ok(Self {
            database: Template::parse(database)?,
            atom: Template::parse(atom)?,
            composite: Template::parse(composite)?,
        })
    }

    /// Returns the names of a place's database and table by month.
    pub fn of(&self, level: Level, place: StorageAddress) -> (String, String) {
        self.of_year(level, place, 0)
    }

    /// Returns the names of a place's database and table in a year with this last digit.
    pub fn of_year(&self, level: Level, place: StorageAddress, year: u8) -> (String, String) {
        let table = match level {
            Level::Atom => &self.atom,
            Level::Composite => &self.composite,
        };
        (self.database.name(place, year), table.name(place, year))
    }
}

/// The names of the source document.
impl Default for Names {
    fn default() -> Self {
        Self::parse(Self::DATABASE, Self::ATOM, Self::COMPOSITE).expect("the default names are templates")
    }
}

/// The month digits in the name of an atom's settlement table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AtomSettlement {
    /// The digits `99`, as in all documents without a month.
    #[default]
    NoMonth,
    /// The digits `00`, as the source document writes them. That is the table of January, too.
    AsWritten,
}

/// Returns the name of the table of settlements. The document's digits begin at 0 and end before the second number:
/// `'iff_composite_settlement_' + id[19..21] + '_' + (id[13..14] == '0' ? id[17..19] : '00')`.
pub fn settlement(id: &FluxId, atoms: AtomSettlement) -> String {
    let parts = id.parts();
    let month = match (parts.level, atoms) {
        (Level::Composite, _) => parts.month,
        (Level::Atom, AtomSettlement::NoMonth) => Month::No,
        (Level::Atom, AtomSettlement::AsWritten) => Month::Of(0),
    };
    format!("iff_composite_settlement_{:02}_{:02}", parts.partition, month.digits())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ops::Range;

    use super::*;
    use crate::flux::id::Side;

    fn id(text: &str) -> FluxId {
        text.parse().unwrap()
    }

    const EXAMPLE_ID: &str = "2016060611031103099052400029904";
    const ATOM_FEBRUARY: &str = "2016020611031103001052400029904";
    const COMPOSITE_FEBRUARY: &str = "2016020611031003001052400029904";
    const COMPOSITE_NO_MONTH: &str = "2016020611031003099052400029904";

    #[test]
    fn partition_05_and_month_01_is_atom_05_01_of_flux_00_0() {
        let names = |text| Names::default().of(id(text).parts().level, StorageAddress::of(&id(text)));
        let expected = |table: &str| ("flux_00_0".to_owned(), table.to_owned());
        assert_eq!(names(ATOM_FEBRUARY), expected("atom_05_01"));
        assert_eq!(names(EXAMPLE_ID), expected("atom_05_99"));
        assert_eq!(names(COMPOSITE_FEBRUARY), expected("composite_05_01"));
    }

    #[test]
    fn the_first_digit_of_the_partition_is_the_database_and_both_are_the_table() {
        for partition in 0..100 {
            let place = StorageAddress { side: Side::Main, partition, month: Month::No };
            let expected = (format!("flux_00_{}", partition / 10), format!("composite_{partition:02}_99"));
            assert_eq!(Names::default().of(Level::Composite, place), expected);
        }
    }

    #[test]
    fn a_settlement_of_an_atom_has_no_month_or_januarys_table_as_the_document_writes_it() {
        for (text, ours, as_written) in [
            (COMPOSITE_FEBRUARY, "iff_composite_settlement_05_01", "iff_composite_settlement_05_01"),
            (COMPOSITE_NO_MONTH, "iff_composite_settlement_05_99", "iff_composite_settlement_05_99"),
            (ATOM_FEBRUARY, "iff_composite_settlement_05_99", "iff_composite_settlement_05_00"),
            (EXAMPLE_ID, "iff_composite_settlement_05_99", "iff_composite_settlement_05_00"),
        ] {
            assert_eq!(settlement(&id(text), AtomSettlement::default()), ours, "{text}");
            assert_eq!(settlement(&id(text), AtomSettlement::AsWritten), as_written, "{text}");
        }
    }

    #[test]
    fn ten_databases_have_1200_tables_by_month_and_100_without() {
        let names = Names::default();
        let all = |months: Vec<Month>| -> BTreeSet<(String, String)> {
            let places = (0..100).flat_map(|partition| {
                months.iter().map(move |month| StorageAddress { side: Side::Main, partition, month: *month })
            });
            places.map(|place| names.of(Level::Atom, place)).collect()
        };
        assert_eq!(all((0..12).map(Month::Of).collect()).len(), (PARTITIONS * MONTHS) as usize);
        assert_eq!(all(vec![Month::No]).len(), 100);
    }

    #[test]
    fn a_year_is_in_the_names_of_tables_by_year_and_in_no_others() {
        let (database, atom, composite) = (Names::DATABASE, Names::ATOM_BY_YEAR, Names::COMPOSITE_BY_YEAR);
        let names = Names::parse_by_year(database, atom, composite).unwrap();
        let place = StorageAddress { side: Side::Main, partition: 5, month: Month::Of(1) };
        assert_eq!(names.of_year(Level::Atom, place, 7).1, "atom_05_7_01");
        let refund = StorageAddress { month: Month::No, ..place };
        assert_eq!(names.of_year(Level::Composite, refund, 7).1, "composite_05_7_99");
        let error = Names::parse(database, atom, Names::COMPOSITE).unwrap_err().to_string();
        assert!(
            error.contains("`atom_{partition:02}_{year}_{month:02}` is not")
                && error.contains("no year digit")
        );
        let error = Names::parse_by_year(database, Names::ATOM, composite).unwrap_err().to_string();
        assert!(error.contains("`atom_{partition:02}_{month:02}` is not") && error.contains("no {year}"));
        assert!(Names::parse_by_year("flux_{year}_{db}", Names::ATOM, Names::COMPOSITE).is_ok());
    }

    #[test]
    fn the_new_strategy_has_no_fewer_tables_than_today() {
        let names =
            Names::parse_by_year(Names::DATABASE, Names::ATOM_BY_YEAR, Names::COMPOSITE_BY_YEAR).unwrap();
        let mut tables = BTreeSet::new();
        for partition in 0..100 {
            for month in (0..12).map(Month::Of).chain([Month::No]) {
                let place = StorageAddress { side: Side::Main, partition, month };
                tables.extend((0..10).map(|year| names.of_year(Level::Atom, place, year)));
            }
        }
        assert_eq!(tables.len(), ((PARTITIONS * MONTHS + 100) * 10) as usize);
    }

    #[test]
    fn five_more_databases_take_the_higher_partitions_and_move_no_identifier_of_before() {
        let by_month = Names::default();
        let by_year =
            Names::parse_by_year(Names::DATABASE, Names::ATOM_BY_YEAR, Names::COMPOSITE_BY_YEAR).unwrap();
        let databases = |partitions: Range<u8>| {
            let mut databases = BTreeSet::new();
            for partition in partitions {
                for month in [Month::Of(0), Month::Of(11), Month::No] {
                    let place = StorageAddress { side: Side::Main, partition, month };
                    databases.insert(by_month.of(Level::Atom, place).0);
                    databases.insert(by_year.of_year(Level::Composite, place, 7).0);
                }
            }
            databases
        };
        let numbered = |numbers: Range<u8>| {
            numbers.map(|number| format!("flux_00_{number}")).collect::<BTreeSet<String>>()
        };
        assert_eq!(databases(0..50), numbered(0..5));
        assert_eq!(databases(50..100), numbered(5..10));
    }

    #[test]
    fn a_template_that_cannot_be_a_name_is_refused_with_its_reason() {
        for (template, reason) in [
            ("", "empty"),
            ("atom_{partition", "`{` without"),
            ("atom_}", "`}` without"),
            ("atom_{day}", "other than"),
            ("atom_{month:0}", "width"),
            ("atom_{month:x}", "width"),
        ] {
            let error = Template::parse(template).unwrap_err().to_string();
            assert!(error.contains(reason), "{template}: {error}");
        }
    }
}
