//! Character sets of captured text: which ones are refused, and which one a collation in a table map belongs to.
//!
//! `information_schema` gives a column's character set by its name, a table map gives its collation by a number that
//! only the server's own list explains: MariaDB has more than a thousand, and new versions add some.

use std::collections::HashMap;
use std::sync::Arc;

use anabranch_pipeline::error::Fault;
use thiserror::Error;

use super::gtid::Flavor;
use super::session::{Session, Version, column_text};

/// Bytes that are no text: BINARY, VARBINARY and BLOB, and in row events UUID, INET4, INET6 and VECTOR too.
const BINARY: &str = "binary";
/// Columns that have one of these are not captured. In all but the first, an ASCII character has more than one byte.
const REFUSED: &[&str] = &[BINARY, "ucs2", "utf16", "utf16le", "utf32"];
/// What a captured column needs in place of a refused one.
pub const NEEDED: &str = "a character set in which digits are ASCII bytes";
/// Earlier ones list all collations, with numbers, in `COLLATIONS`; this one has some there without a number.
const MARIADB_WITH_CONTEXTUAL: (u32, u32, u32) = (10, 10, 0);

/// Whether text in this character set (in lower case) cannot be captured.
pub fn is_refused(character_set: &str) -> bool {
    REFUSED.contains(&character_set)
}

/// Why the text of a column cannot be captured.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unfit {
    #[error("holds bytes that are not text (BINARY, VARBINARY, BLOB, UUID, INET4 or INET6)")]
    Binary,
    #[error("has character set {0}")]
    Refused(Arc<str>),
    #[error("has collation {0}, which was not in the server's list when the binlog stream was opened")]
    Unknown(u64),
}

/// The character set of each collation that a server knows, by number.
#[derive(Debug, Clone, Default)]
pub struct Collations(HashMap<u64, Arc<str>>);

impl Collations {
    /// Asks the server for its list.
    pub async fn list(session: &mut Session) -> Result<Self, Fault> {
        let rows = session.rows(query(session.version)).await?;
        Ok(rows
            .iter()
            .filter_map(|row| Some((column_text(row, 0)?.parse().ok()?, column_text(row, 1)?)))
            .collect())
    }

    /// Why text with this collation cannot be captured; `None` when it can.
    pub fn unfit(&self, collation: u64) -> Option<Unfit> {
        match self.0.get(&collation) {
            None => Some(Unfit::Unknown(collation)),
            Some(name) if **name == *BINARY => Some(Unfit::Binary),
            Some(name) => is_refused(name).then(|| Unfit::Refused(Arc::clone(name))),
        }
    }
}

impl FromIterator<(u64, String)> for Collations {
    fn from_iter<I: IntoIterator<Item = (u64, String)>>(list: I) -> Self {
        // Neighbours share a name.
        let mut last: Arc<str> = BINARY.into();
        let mut collations = HashMap::new();
        for (id, name) in list {
            if *last != *name {
                last = name.into();
            }
            collations.insert(id, Arc::clone(&last));
        }
        Self(collations)
    }
}

fn query(version: Version) -> String {
    let table = match version.flavor {
        Flavor::MariaDb if version.number >= MARIADB_WITH_CONTEXTUAL => {
            "COLLATION_CHARACTER_SET_APPLICABILITY"
        }
        Flavor::MariaDb | Flavor::MySql => "COLLATIONS",
    };
    format!("SELECT ID, LOWER(CHARACTER_SET_NAME) FROM information_schema.{table}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_wide_and_unlisted_collations_are_unfit_and_told_apart() {
        let list =
            [(63, "binary"), (54, "utf16"), (101, "utf16"), (45, "utf8mb4"), (2304, "utf8mb4"), (28, "gbk")];
        let collations: Collations = list.into_iter().map(|(id, name)| (id, name.to_owned())).collect();
        for fit in [45, 2304, 28] {
            assert_eq!(collations.unfit(fit), None, "{fit}");
        }
        assert_eq!(collations.unfit(63), Some(Unfit::Binary));
        assert_eq!(collations.unfit(101), Some(Unfit::Refused("utf16".into())));
        assert_eq!(collations.unfit(46), Some(Unfit::Unknown(46)));
    }

    #[test]
    fn each_server_is_asked_for_the_list_that_has_a_number_for_every_collation() {
        for (version, table) in [
            ("10.6.20-MariaDB", "information_schema.COLLATIONS"),
            ("10.9.8-MariaDB", "information_schema.COLLATIONS"),
            ("10.11.19-MariaDB-log", "COLLATION_CHARACTER_SET_APPLICABILITY"),
            ("11.8.9-MariaDB", "COLLATION_CHARACTER_SET_APPLICABILITY"),
            ("8.4.3", "information_schema.COLLATIONS"),
        ] {
            assert!(query(Version::parse(version)).ends_with(table), "{version}");
        }
    }
}
