//! The names of a captured column in the tables of an entity.
//!
//! A rename that is rolled out over many tables leaves some with the old name and others with the new one. So a column
//! may have several names, and each table has exactly one of them. Code that knows the columns of a table asks
//! [`ColumnNames::own`] for the name there.

use std::fmt;

use serde::Deserialize;
use thiserror::Error;

use super::Problems;

/// The names of one column, at least one. Names are compared as servers do for ASCII, without case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnNames(Vec<String>);

/// The reason why a table does not show which of its columns is meant.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Misnamed {
    #[error("it has no column {0}")]
    Absent(ColumnNames),
    #[error("it has columns {0} and {1}, two names of one captured column")]
    Twice(String, String),
}

impl ColumnNames {
    /// Returns the only name that a table has. `has` says whether the table has a column of a name.
    pub fn own(&self, has: impl Fn(&str) -> bool) -> Result<&str, Misnamed> {
        let mut present = self.iter().filter(|&name| has(name));
        match (present.next(), present.next()) {
            (Some(one), None) => Ok(one),
            (Some(one), Some(other)) => Err(Misnamed::Twice(one.to_owned(), other.to_owned())),
            (None, _) => Err(Misnamed::Absent(self.clone())),
        }
    }

    /// Returns the name that the configuration gives first.
    pub fn first(&self) -> &str {
        &self.0[0]
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|known| known.eq_ignore_ascii_case(name))
    }

    /// Returns the names with another one after them, unless it is among them.
    #[must_use]
    pub fn or(mut self, name: &str) -> Self {
        if !self.has(name) {
            self.0.push(name.to_owned());
        }
        self
    }

    pub fn are_several(&self) -> bool {
        self.0.len() > 1
    }

    /// Returns whether a name is one of both.
    pub fn shares(&self, other: &Self) -> bool {
        other.iter().any(|name| self.has(name))
    }
}

impl From<String> for ColumnNames {
    fn from(name: String) -> Self {
        Self(vec![name])
    }
}

impl From<&str> for ColumnNames {
    fn from(name: &str) -> Self {
        Self::from(name.to_owned())
    }
}

/// Writes `birthday or birth_date`.
impl fmt::Display for ColumnNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(" or "))
    }
}

/// The names as the file writes them: one, or a list.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected the name of a column, or a list of names")]
pub(super) enum WrittenNames {
    One(String),
    Several(Vec<String>),
}

impl WrittenNames {
    /// Returns the names under this key; adds a problem for a list that names no column, or one twice.
    pub(super) fn resolve(self, key: &str, problems: &mut Problems) -> ColumnNames {
        let names = match self {
            Self::One(name) => vec![name],
            Self::Several(names) => names,
        };
        let needed = "the name of a column, or a list of names, each once";
        for (place, name) in names.iter().enumerate() {
            if names[..place].iter().any(|before| before.eq_ignore_ascii_case(name)) {
                problems.add(key, format!("`{name}` twice"), needed);
            }
        }
        if names.is_empty() || names.iter().any(String::is_empty) {
            problems.add(key, "an empty list or name".to_owned(), needed);
            return ColumnNames::from(key);
        }
        ColumnNames(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_exactly_one_of_the_names() {
        let names = ColumnNames::from("birthday").or("birth_date").or("BIRTHDAY");
        let own = |table: &[&str]| names.own(|name| table.iter().any(|own| own.eq_ignore_ascii_case(name)));
        assert_eq!(own(&["id", "BIRTH_DATE"]), Ok("birth_date"));
        assert_eq!(own(&["id", "birthday", "born"]), Ok("birthday"));
        let absent = own(&["id", "born"]).unwrap_err();
        assert_eq!(absent.to_string(), "it has no column birthday or birth_date");
        let twice = own(&["birth_date", "birthday"]).unwrap_err();
        assert_eq!(
            twice.to_string(),
            "it has columns birthday and birth_date, two names of one captured column"
        );
    }
}
