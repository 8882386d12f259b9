//! Conditions that select rows of a source table: `user_id >= 1000`.
//!
//! A condition is never SQL. It has a column's name, one of five operators, and a value that the source reads as the
//! type of the column and writes as a literal of its own. No condition finds NULL.

use std::fmt;
use std::str::FromStr;

/// Comparisons of one request, at most: they are stored in the progress row.
pub const COMPARISONS_MAX: usize = 8;
/// Characters of a column's name, at most, as MySQL bounds it.
const COLUMN_CHARS_MAX: usize = 64;
const VALUE_BYTES_MAX: usize = 255;

/// How a column is compared with a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    Equal,
    Below,
    AtMost,
    Above,
    AtLeast,
}

impl Operator {
    /// All operators, the longer ones first: `<` begins `<=` too.
    const ALL: [Self; 5] = [Self::AtMost, Self::AtLeast, Self::Below, Self::Above, Self::Equal];

    /// Returns the operator as people and SQL write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Equal => "=",
            Self::Below => "<",
            Self::AtMost => "<=",
            Self::Above => ">",
            Self::AtLeast => ">=",
        }
    }
}

/// A comparison such as `birthday >= 1990-01-01`. The value may be in single quotes, and none may be in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comparison {
    pub column: String,
    pub operator: Operator,
    pub value: String,
}

/// Comparisons that must all hold: at least one, and at most [`COMPARISONS_MAX`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition(Vec<Comparison>);

impl Condition {
    /// Returns `None` for no comparison and for too many.
    pub fn new(comparisons: Vec<Comparison>) -> Option<Self> {
        (1..=COMPARISONS_MAX).contains(&comparisons.len()).then_some(Self(comparisons))
    }

    pub fn comparisons(&self) -> &[Comparison] {
        &self.0
    }
}

/// Reason for which a text is no comparison.
#[derive(Debug, Clone, Copy, thiserror::Error, PartialEq, Eq)]
pub enum InvalidComparison {
    #[error("it has none of the operators =, <, <=, > and >=")]
    NoOperator,
    #[error("what stands before the operator is no name of a column")]
    Column,
    #[error("what stands after the operator is no value")]
    Value,
}

impl FromStr for Comparison {
    type Err = InvalidComparison;

    fn from_str(text: &str) -> Result<Self, InvalidComparison> {
        let place = text.find(['=', '<', '>']).ok_or(InvalidComparison::NoOperator)?;
        let (column, rest) = (text[..place].trim(), &text[place..]);
        let found =
            Operator::ALL.into_iter().find_map(|known| Some((known, rest.strip_prefix(known.as_str())?)));
        let (operator, value) = found.ok_or(InvalidComparison::NoOperator)?;
        let is_of_name = |char: char| char.is_alphanumeric() || matches!(char, '_' | '$');
        if column.is_empty() || column.chars().count() > COLUMN_CHARS_MAX || !column.chars().all(is_of_name) {
            return Err(InvalidComparison::Column);
        }
        let value = value.trim();
        let quoted = value.strip_prefix('\'').and_then(|value| value.strip_suffix('\''));
        let is_odd = |value: &str| value.contains(['\'', '\0']) || value.len() > VALUE_BYTES_MAX;
        // An empty value must be in quotes; a second operator is a slip.
        let is_bare = quoted.is_none() && (value.is_empty() || value.starts_with(['=', '<', '>']));
        let value = quoted.unwrap_or(value);
        if is_bare || is_odd(value) {
            return Err(InvalidComparison::Value);
        }
        Ok(Self { column: column.to_owned(), operator, value: value.to_owned() })
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} '{}'", self.column, self.operator.as_str(), self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_is_a_column_an_operator_and_a_value() {
        for (text, column, operator, value) in [
            ("user_id >= 1000", "user_id", Operator::AtLeast, "1000"),
            ("user_id<7", "user_id", Operator::Below, "7"),
            (" birthday  <=  2000-02-29 ", "birthday", Operator::AtMost, "2000-02-29"),
            ("at > '2024-01-01 00:00:00'", "at", Operator::Above, "2024-01-01 00:00:00"),
            ("名 = '= x; DROP TABLE y -- '", "名", Operator::Equal, "= x; DROP TABLE y -- "),
            ("name = ''", "name", Operator::Equal, ""),
        ] {
            let comparison: Comparison = text.parse().unwrap();
            let expected = Comparison { column: column.to_owned(), operator, value: value.to_owned() };
            assert_eq!(comparison, expected, "{text}");
            assert_eq!(comparison.to_string().parse(), Ok(comparison));
        }
    }

    #[test]
    fn what_is_none_is_refused_by_the_part_that_is_wrong() {
        let long = format!("a = {}", "x".repeat(VALUE_BYTES_MAX + 1));
        for (text, expected) in [
            ("", InvalidComparison::NoOperator),
            ("user_id", InvalidComparison::NoOperator),
            ("user_id BETWEEN 1 AND 2", InvalidComparison::NoOperator),
            ("= 3", InvalidComparison::Column),
            ("`user_id` = 3", InvalidComparison::Column),
            ("1 OR user_id = 3", InvalidComparison::Column),
            ("user_id != 3", InvalidComparison::Column),
            ("user_id =", InvalidComparison::Value),
            ("user_id == 3", InvalidComparison::Value),
            ("user_id <> 3", InvalidComparison::Value),
            ("user_id = 3' OR '1", InvalidComparison::Value),
            ("user_id = 'it''s'", InvalidComparison::Value),
            ("user_id = '", InvalidComparison::Value),
            (&long, InvalidComparison::Value),
        ] {
            assert_eq!(text.parse::<Comparison>(), Err(expected), "{text}");
        }
    }
}
