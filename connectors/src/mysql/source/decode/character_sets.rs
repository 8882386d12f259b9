//! Character sets of captured text: which ones are refused, and which one belongs to a collation in a table map.
//!
//! `information_schema` gives a column's character set by name. A table map gives its collation by a number that only
//! the server's own list explains: MariaDB has more than a thousand, and new versions add some. `server/collations.rs`
//! queries that list.

use std::collections::HashMap;
use std::sync::Arc;

use thiserror::Error;

/// Character set of bytes that are no text: BINARY, VARBINARY and BLOB, and in row events UUID, INET4, INET6 and VECTOR
/// too.
const BINARY: &str = "binary";
/// Character sets that are not captured. In all but the first, an ASCII character has more than one byte.
const REFUSED: &[&str] = &[BINARY, "ucs2", "utf16", "utf16le", "utf32"];
/// Text for messages: the need of a captured column instead of a refused character set.
pub const NEEDED: &str = "a character set in which digits are ASCII bytes";

/// Whether text in this character set (in lower case) cannot be captured.
pub fn is_refused(character_set: &str) -> bool {
    REFUSED.contains(&character_set)
}

/// The reason why the text of a column cannot be captured.
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
    /// Returns why text with this collation cannot be captured; `None` if it can.
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
}
