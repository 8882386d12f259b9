//! Bodies of the indexes of search targets, as JSON that creates them: settings and a strict mapping.
//!
//! Checks compare what stands with these texts, so an index and its check mean the same. Values of settings are
//! strings, as servers give them back.

/// The documents of devices. After the name of its alias the index has the version as suffix.
pub const SERIAL_DOCUMENTS: &str = include_str!("search/serial_documents.json");
/// Progress of lanes, and which were enrolled.
pub const PROGRESS: &str = include_str!("search/progress.json");
/// Documents that the server rejected.
pub const DEAD_LETTERS: &str = include_str!("search/dead_letters.json");

/// Version of [`SERIAL_DOCUMENTS`]: another one is built beside the old one, and then the alias is switched.
pub const SERIAL_DOCUMENTS_VERSION: u32 = 1;

/// The index in which the documents of an alias lie until it is rebuilt.
pub fn index_of(alias: &str) -> String {
    format!("{alias}-v{SERIAL_DOCUMENTS_VERSION}")
}

/// The index that is built to follow `serving`: of the present version, with the next number after it.
pub fn index_behind(alias: &str, serving: &str) -> String {
    let first = index_of(alias);
    match serving.strip_prefix(&first) {
        None => first,
        Some(number) => {
            let number = number.strip_prefix('-').and_then(|number| number.parse().ok()).unwrap_or(1_u32);
            format!("{first}-{}", number.saturating_add(1))
        }
    }
}

/// The alias through which an index is written: servers make a missing index that is written to, but no missing alias.
pub fn writing_alias(index: &str) -> String {
    format!("{index}-lanes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_index_that_follows_has_another_name() {
        assert_eq!(index_behind("serials", "serials-v1"), "serials-v1-2");
        assert_eq!(index_behind("serials", "serials-v1-2"), "serials-v1-3");
        assert_eq!(index_behind("serials", "serials-v0-7"), "serials-v1");
    }
}
