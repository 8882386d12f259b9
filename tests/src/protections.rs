//! Protections and the texts that take them out, as `protections.toml` lists them.
//!
//! The product has no switches: a protection is taken out of a copy of the sources by replacing text.

use std::path::{Path, PathBuf};

use serde::Deserialize;

/// A mechanism that prevents a fault, and the edits that take it out.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Protection {
    pub name: String,
    pub guards: String,
    pub edits: Vec<Edit>,
    /// Arguments of `cargo test --workspace`; the simulation when there are none.
    #[serde(default)]
    pub test: Vec<String>,
    /// Whether the test needs real servers.
    #[serde(default)]
    pub slow: bool,
}

/// A text of a file, and its replacement.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    pub file: PathBuf,
    pub before: String,
    pub after: String,
}

#[derive(Deserialize)]
struct List {
    protection: Vec<Protection>,
}

impl Protection {
    /// Reads the list of a checkout.
    ///
    /// # Panics
    /// Panics when the list cannot be read.
    pub fn all(root: &Path) -> Vec<Self> {
        let file = root.join("tests/protections.toml");
        let text =
            std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        toml::from_str::<List>(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display())).protection
    }
}

impl Edit {
    /// The file's text without the protection; `None` when the text to replace does not occur in it exactly once.
    pub fn apply(&self, text: &str) -> Option<String> {
        (text.matches(&self.before).count() == 1).then(|| text.replace(&self.before, &self.after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise the command would one day take out nothing and report it as unnoticed.
    #[test]
    fn each_text_of_the_list_stands_exactly_once_in_its_file() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
        for protection in Protection::all(root) {
            for edit in &protection.edits {
                let text = std::fs::read_to_string(root.join(&edit.file))
                    .unwrap_or_else(|error| panic!("{}: {error}", edit.file.display()));
                let changed = edit.apply(&text);
                assert!(
                    changed.is_some_and(|changed| changed != text),
                    "{}: `{}` does not stand exactly once in {}",
                    protection.name,
                    edit.before,
                    edit.file.display()
                );
            }
        }
    }
}
