//! The names of the physical tables of an entity, as a pattern with numbers in it.

use std::fmt;
use std::ops::Range;

use thiserror::Error;

use crate::flux::id::NO_MONTH;
use crate::flux::table::{MONTHS, PARTITIONS};
use crate::flux::years::YEARS;

/// The text is not a table pattern.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "`{pattern}` is not a table pattern: {reason}; expected for example user_{{db:02}}.user_{{table:03}}"
)]
pub struct InvalidPattern {
    pub pattern: String,
    pub reason: &'static str,
}

/// A pattern such as `user_{db:02}.user_{table:03}` or `flux_00_{db}.atom_{partition:02}_{month:02}`.
///
/// The placeholders stand for numbers, and `:02` pads with zeros. A month is 0 to 11, or 99 for no month, and a year is
/// its last digit. `{table}` stands in the table's name only; the others may stand in both names, and then have one
/// number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TablePattern {
    text: String,
    database: NamePattern,
    table: NamePattern,
}

/// The numbers in the names of a table and its database.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TableNumbers {
    /// 0 if the pattern has no such number.
    pub database: u32,
    /// 0 if the pattern has no such number.
    pub table: u32,
    /// The user partition of payment documents.
    pub partition: Option<u32>,
    /// The month of payment documents: 0 to 11, or 99.
    pub month: Option<u32>,
    /// The last digit of the year of payment documents.
    pub year: Option<u32>,
}

impl TablePattern {
    pub fn parse(pattern: &str) -> Result<Self, InvalidPattern> {
        let invalid = |reason| InvalidPattern { pattern: pattern.to_owned(), reason };
        let (database, table) =
            pattern.split_once('.').ok_or_else(|| invalid("no dot between database and table"))?;
        let database = NamePattern::parse(database).map_err(invalid)?;
        if database.has(Placeholder::Table) {
            return Err(invalid("{table} before the dot; it belongs after it"));
        }
        let table = NamePattern::parse(table).map_err(invalid)?;
        Ok(Self { text: pattern.to_owned(), database, table })
    }

    /// Returns the numbers of a physical table, or `None` when the pattern does not match it.
    ///
    /// The user partition of a document says the number of its database, too. The pattern matches a table whose numbers
    /// disagree all the same, so that its rows are captured and audited.
    pub fn matches(&self, database: &str, table: &str) -> Option<TableNumbers> {
        let numbers = self.table.read(table, self.database.read(database, Numbers::default())?)?;
        let of = |placeholder| numbers.0[placeholder as usize];
        Some(TableNumbers {
            database: of(Placeholder::Database).unwrap_or(0),
            table: of(Placeholder::Table).unwrap_or(0),
            partition: of(Placeholder::Partition),
            month: of(Placeholder::Month),
            year: of(Placeholder::Year),
        })
    }

    /// Returns whether the names have the last digit of a year.
    pub fn has_year(&self) -> bool {
        self.has(Placeholder::Year)
    }

    /// Returns how many tables the digits of identifiers reach: pairs of database and table, twelve months and one
    /// table without a month, and ten years, each as far as the names have them.
    pub fn tables_of_documents(&self) -> u32 {
        let pairs = match (self.has(Placeholder::Partition), self.has(Placeholder::Database)) {
            (true, _) => PARTITIONS,
            // The database is the first of the two digits.
            (false, true) => PARTITIONS / 10,
            (false, false) => 1,
        };
        let months = if self.has(Placeholder::Month) { MONTHS + 1 } else { 1 };
        let years = if self.has_year() { u32::from(YEARS) } else { 1 };
        pairs * months * years
    }

    fn has(&self, placeholder: Placeholder) -> bool {
        self.database.has(placeholder) || self.table.has(placeholder)
    }

    /// Returns whether some table of this database can match.
    pub fn matches_database(&self, database: &str) -> bool {
        self.database.read(database, Numbers::default()).is_some()
    }

    /// Returns the physical names for the numbers of a database and a table. The number of the table stands for a user
    /// partition, too; month and year are 0.
    pub fn names(&self, database: u32, table: u32) -> (String, String) {
        (self.database.name(database, table), self.table.name(database, table))
    }

    /// Visits the names of the tables whose numbers have as many digits as the pattern's widths say, and two digits at
    /// least. Returns false, and visits none, if they are more than `limit`.
    pub fn visit_likely_names(&self, limit: u64, visit: &mut dyn FnMut(&str, &str)) -> bool {
        self.visit_within(Numbers::default(), limit, visit)
    }

    /// Visits the tables of one database in the same way; none if no table of it can match.
    pub fn visit_likely_tables(&self, database: &str, limit: u64, visit: &mut dyn FnMut(&str)) -> bool {
        match self.database.read(database, Numbers::default()) {
            Some(known) => self.visit_within(known, limit, &mut |_, table| visit(table)),
            None => true,
        }
    }

    /// Visits likely names with these numbers.
    fn visit_within(&self, known: Numbers, limit: u64, visit: &mut dyn FnMut(&str, &str)) -> bool {
        let (mut widths, mut ends) = ([0; PLACEHOLDERS], [1_u32; PLACEHOLDERS]);
        for piece in self.database.0.iter().chain(&self.table.0) {
            if let Piece::Number(placeholder, width) = piece {
                let place = *placeholder as usize;
                widths[place] = (*width).max(widths[place]);
                ends[place] = match placeholder {
                    Placeholder::Month => u32::from(NO_MONTH) + 1,
                    Placeholder::Year => u32::from(YEARS),
                    _ => 10_u32.saturating_pow(u32::try_from(widths[place].max(2)).unwrap_or(u32::MAX)),
                };
            }
        }
        let range =
            |place: usize| known.0[place].map_or(0..ends[place], |number| number..number.saturating_add(1));
        let ranges: [Range<u32>; PLACEHOLDERS] = std::array::from_fn(range);
        let is_month = |month: &u32| *month < MONTHS || *month == u32::from(NO_MONTH);
        let [databases, tables, partitions, months, years] = ranges;
        let months: Vec<u32> = months.filter(is_month).collect();
        let lengths = [databases.len(), tables.len(), partitions.len(), months.len(), years.len()];
        let count = lengths.iter().try_fold(1_u64, |count, length| count.checked_mul(*length as u64));
        if count.is_none_or(|count| count > limit) {
            return false;
        }
        for database in databases {
            for table in tables.clone() {
                for partition in partitions.clone() {
                    for month in &months {
                        for year in years.clone() {
                            let numbers = [database, table, partition, *month, year];
                            visit(&self.database.written(&numbers), &self.table.written(&numbers));
                        }
                    }
                }
            }
        }
        true
    }

    /// Returns the database part as a SQL `LIKE` pattern, metacharacters escaped with `\`.
    pub fn database_like(&self) -> String {
        self.database.like()
    }

    /// Returns the table part as a SQL `LIKE` pattern, metacharacters escaped with `\`.
    pub fn table_like(&self) -> String {
        self.table.like()
    }

    /// Returns whether both patterns match some physical table.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.database.overlaps(&other.database) && self.table.overlaps(&other.table)
    }
}

impl fmt::Display for TablePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Placeholder {
    Database,
    Table,
    Partition,
    Month,
    Year,
}

impl Placeholder {
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "db" => Self::Database,
            "table" => Self::Table,
            "partition" => Self::Partition,
            "month" => Self::Month,
            "year" => Self::Year,
            _ => return None,
        })
    }
}

/// Number of placeholders that there are.
const PLACEHOLDERS: usize = 5;

/// The number of each placeholder that was read so far.
#[derive(Debug, Clone, Copy, Default)]
struct Numbers([Option<u32>; PLACEHOLDERS]);

impl Numbers {
    /// Adds a number; `None` if the placeholder has another one, or cannot have this one.
    fn with(mut self, placeholder: Placeholder, number: u32) -> Option<Self> {
        let fits = match placeholder {
            Placeholder::Month => number < MONTHS || number == u32::from(NO_MONTH),
            Placeholder::Year => number < u32::from(YEARS),
            Placeholder::Database | Placeholder::Table | Placeholder::Partition => true,
        };
        let known = &mut self.0[placeholder as usize];
        (fits && *known.get_or_insert(number) == number).then_some(self)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    /// A number with its zero-padded width.
    Number(Placeholder, usize),
}

/// The pieces of one name; two numbers have text between them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NamePattern(Vec<Piece>);

impl NamePattern {
    fn parse(text: &str) -> Result<Self, &'static str> {
        if text.is_empty() {
            return Err("an empty name");
        }
        let (mut pieces, mut rest) = (Vec::new(), text);
        while let Some((before, tail)) = rest.split_once('{') {
            let (inner, tail) = tail.split_once('}').ok_or("a `{` without a `}`")?;
            let (name, width) = inner.split_once(':').unwrap_or((inner, "1"));
            let placeholder = Placeholder::from_name(name)
                .ok_or("a placeholder other than {db}, {table}, {partition}, {month} and {year}")?;
            let width =
                width.parse().ok().filter(|w| (1..=10).contains(w)).ok_or("a width that is not 1 to 10")?;
            match (before.is_empty(), pieces.is_empty()) {
                (true, false) => return Err("two placeholders without text between them"),
                (true, true) => {}
                (false, _) => pieces.push(Piece::Text(before.to_owned())),
            }
            pieces.push(Piece::Number(placeholder, width));
            rest = tail;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.to_owned()));
        }
        let is_unpaired = |piece: &Piece| matches!(piece, Piece::Text(text) if text.contains('}'));
        if pieces.iter().any(is_unpaired) {
            return Err("a `}` without a `{`");
        }
        Ok(Self(pieces))
    }

    fn has(&self, placeholder: Placeholder) -> bool {
        self.0.iter().any(|piece| matches!(piece, Piece::Number(known, _) if *known == placeholder))
    }

    /// Returns the numbers of a name, beside those that are known; `None` if the name does not match.
    fn read(&self, name: &str, known: Numbers) -> Option<Numbers> {
        read(&self.0, name, known)
    }

    /// Returns the name, if it has no number.
    fn fixed(&self) -> Option<&str> {
        match &*self.0 {
            [Piece::Text(name)] => Some(name),
            _ => None,
        }
    }

    fn name(&self, database: u32, table: u32) -> String {
        let piece = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Number(placeholder, width) => {
                let number = match placeholder {
                    Placeholder::Database => database,
                    Placeholder::Table | Placeholder::Partition => table,
                    Placeholder::Month | Placeholder::Year => 0,
                };
                format!("{number:0width$}")
            }
        };
        self.0.iter().map(piece).collect()
    }

    /// Returns the name with these numbers, in the order of the placeholders.
    fn written(&self, numbers: &[u32; PLACEHOLDERS]) -> String {
        let piece = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Number(placeholder, width) => format!("{:0width$}", numbers[*placeholder as usize]),
        };
        self.0.iter().map(piece).collect()
    }

    fn like(&self) -> String {
        let piece = |piece: &Piece| match piece {
            Piece::Text(text) => text.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_"),
            Piece::Number(..) => "%".to_owned(),
        };
        self.0.iter().map(piece).collect()
    }

    /// Exact for fixed names. Otherwise it ignores widths and takes any digits for a number: it may see an overlap
    /// where the widths prevent one.
    fn overlaps(&self, other: &Self) -> bool {
        let is_read = |pattern: &Self, name: &str| pattern.read(name, Numbers::default()).is_some();
        match (self.fixed(), other.fixed()) {
            (Some(name), _) => is_read(other, name),
            (_, Some(name)) => is_read(self, name),
            (None, None) => have_common_name(&self.symbols(), &other.symbols()),
        }
    }

    fn symbols(&self) -> Vec<Symbol> {
        let mut symbols = Vec::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => symbols.extend(text.chars().map(Symbol::Is)),
                // One digit, then any number of digits.
                Piece::Number(..) => symbols.extend([Symbol::Digit, Symbol::Digits]),
            }
        }
        symbols
    }
}

/// Reads a name against pieces; a number takes as many digits as the rest of the name allows.
fn read(pieces: &[Piece], name: &str, known: Numbers) -> Option<Numbers> {
    let Some((piece, rest)) = pieces.split_first() else {
        return name.is_empty().then_some(known);
    };
    match piece {
        Piece::Text(text) => read(rest, name.strip_prefix(text.as_str())?, known),
        Piece::Number(placeholder, width) => {
            let digits = name.bytes().take_while(u8::is_ascii_digit).count();
            let with_length = |length: usize| {
                let (number, tail) = name.split_at(length);
                let is_canonical = length == *width || !number.starts_with('0');
                let number = number.parse().ok().filter(|_| is_canonical)?;
                read(rest, tail, known.with(*placeholder, number)?)
            };
            (*width..=digits).rev().find_map(with_length)
        }
    }
}

/// A place of a name: a character, one digit, or any number of digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Symbol {
    Is(char),
    Digit,
    Digits,
}

/// Returns whether some name fits both lists of symbols.
fn have_common_name(a: &[Symbol], b: &[Symbol]) -> bool {
    match (a.split_first(), b.split_first()) {
        (None, None) => true,
        (Some((Symbol::Digits, rest)), _) if have_common_name(rest, b) => true,
        (_, Some((Symbol::Digits, rest))) if have_common_name(a, rest) => true,
        (Some((first, a_rest)), Some((second, b_rest))) => {
            let is_digit = |symbol: &Symbol| match symbol {
                Symbol::Is(character) => character.is_ascii_digit(),
                Symbol::Digit | Symbol::Digits => true,
            };
            let fits = match (first, second) {
                (Symbol::Is(one), Symbol::Is(other)) => one == other,
                _ => is_digit(first) && is_digit(second),
            };
            // A symbol of any number of digits stays for further ones. Where both do, one of them may as well end.
            let after = |symbol, list, rest| if symbol == Symbol::Digits { list } else { rest };
            let (a_next, b_next) = (after(*first, a, a_rest), after(*second, b, b_rest));
            let is_further = a_next.len() < a.len() || b_next.len() < b.len();
            fits && is_further && have_common_name(a_next, b_next)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
