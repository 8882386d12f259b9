//! Bodies of the indexes of search targets, as JSON that creates them: settings and a strict mapping.
//!
//! Checks compare what stands with these texts, so an index and its check mean the same. Values of settings are
//! strings, as servers give them back.

/// The documents of devices. Behind the name of its alias the index has the version as suffix.
pub const SERIAL_DOCUMENTS: &str = include_str!("search/serial_documents.json");
/// Progress of lanes, and which were enrolled.
pub const PROGRESS: &str = include_str!("search/progress.json");
/// Documents that the server rejected.
pub const DEAD_LETTERS: &str = include_str!("search/dead_letters.json");

/// Version of [`SERIAL_DOCUMENTS`]: another one is built beside the old one, and then the alias is switched.
pub const SERIAL_DOCUMENTS_VERSION: u32 = 1;

/// The index in which the documents of an alias lie.
pub fn index_of(alias: &str) -> String {
    format!("{alias}-v{SERIAL_DOCUMENTS_VERSION}")
}
