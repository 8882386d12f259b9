//! Bodies of the indexes of search targets, as JSON that creates them: settings and a strict mapping.
//!
//! Checks compare existing indexes with these texts, so an index and its check mean the same. Values of settings are
//! strings, as servers return them.

/// The documents of devices. The index is named after its alias, with the version as suffix.
pub const SERIAL_DOCUMENTS: &str = include_str!("search/serial_documents.json");
/// Progress of lanes, and which of them were enrolled.
pub const PROGRESS: &str = include_str!("search/progress.json");
/// Documents that the server rejected.
pub const DEAD_LETTERS: &str = include_str!("search/dead_letters.json");

/// Version of [`SERIAL_DOCUMENTS`]: the index of another one is built beside the old one, and then the alias is
/// switched.
pub const SERIAL_DOCUMENTS_VERSION: u32 = 1;

/// Returns the index that holds the documents of an alias until it is rebuilt.
pub fn index_of(alias: &str) -> String {
    format!("{alias}-v{SERIAL_DOCUMENTS_VERSION}")
}

/// Returns the index to build after `serving`: of the present version, with the next number as suffix.
pub fn index_after(alias: &str, serving: &str) -> String {
    let first = index_of(alias);
    match serving.strip_prefix(&first) {
        None => first,
        Some(number) => {
            let number = number.strip_prefix('-').and_then(|number| number.parse().ok()).unwrap_or(1_u32);
            format!("{first}-{}", number.saturating_add(1))
        }
    }
}

/// Returns the alias for writing to an index: servers create a missing index on a write, but no missing alias.
pub fn writing_alias(index: &str) -> String {
    format!("{index}-lanes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_index_that_follows_has_another_name() {
        assert_eq!(index_after("serials", "serials-v1"), "serials-v1-2");
        assert_eq!(index_after("serials", "serials-v1-2"), "serials-v1-3");
        assert_eq!(index_after("serials", "serials-v0-7"), "serials-v1");
    }
}
