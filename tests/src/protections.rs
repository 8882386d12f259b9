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
    /// Arguments of `cargo test` that choose one test binary, and a part of the names of its tests; the simulation when
    /// there are none.
    #[serde(default)]
    pub test: Vec<String>,
    /// Whether the test is slow although [`TestSelection::needs_servers`] is false.
    #[serde(default)]
    pub slow: bool,
}

/// Test binaries whose tests need no real servers.
const WITHOUT_SERVERS: [&str; 8] =
    ["cli", "coupon_year", "hostile", "pitfalls", "simulation", "start_demo", "suites", "tidy"];
/// The binary that has both: a test needs servers unless it is of one of [`CONFORMANCE_WITHOUT_SERVERS`].
const CONFORMANCE: &str = "conformance";
/// Modules of the conformance suite whose tests run on in-memory twins alone.
const CONFORMANCE_WITHOUT_SERVERS: [&str; 2] = ["lookup::", "lookup_bounds::"];

/// A text of a file, and its replacement.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    pub file: PathBuf,
    pub before: String,
    pub after: String,
}

/// The tests that are to notice that a protection is missing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TestSelection {
    /// Arguments of `cargo test` that choose the binary: `--workspace --test simulation`.
    pub binary: Vec<String>,
    /// Part of the names of its tests; empty for all of them.
    pub filter: String,
}

#[derive(Deserialize)]
struct List {
    protection: Vec<Protection>,
}

/// The part of a `Cargo.toml` that names its package.
#[derive(Deserialize)]
struct Manifest {
    package: Option<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
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

    /// Whether a run without `--all` leaves it out.
    pub fn is_slow(&self) -> bool {
        self.slow || self.selection().needs_servers()
    }

    /// Returns the name of the package whose sources the first edit changes; `None` = a file of no package.
    pub fn package(&self, root: &Path) -> Option<String> {
        let file = &self.edits.first()?.file;
        file.ancestors().skip(1).find_map(|folder| {
            let text = std::fs::read_to_string(root.join(folder).join("Cargo.toml")).ok()?;
            toml::from_str::<Manifest>(&text).ok()?.package.map(|package| package.name)
        })
    }

    /// Returns the tests to run for this protection.
    ///
    /// Tests are always chosen in the whole workspace: cargo gives the dependencies of some packages other features
    /// when they are built alone, and the patched client library then has no version that fits.
    pub fn selection(&self) -> TestSelection {
        if self.test.is_empty() {
            let binary = ["--workspace", "--test", "simulation"].map(str::to_owned).to_vec();
            return TestSelection { binary, filter: "whatever".to_owned() };
        }
        let (mut binary, mut filter) = (Vec::new(), String::new());
        let mut words = self.test.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--lib" => binary.push(word.clone()),
                "--bin" | "--test" => {
                    binary.extend([Some(word), words.next()].into_iter().flatten().cloned());
                }
                _ => filter.clone_from(word),
            }
        }
        binary.insert(0, "--workspace".to_owned());
        TestSelection { binary, filter }
    }
}

impl TestSelection {
    /// Whether the tests need real servers, or daemons of their own.
    pub fn needs_servers(&self) -> bool {
        // The last argument is the name of the binary, or `--lib`.
        let Some(name) = self.binary.last() else { return true };
        let is_of_twins = || {
            let is_module = CONFORMANCE_WITHOUT_SERVERS.iter().any(|module| self.filter.starts_with(module));
            // A module of the name `twin` or `documents_twin_alone`, in the middle of the name or at its end.
            is_module || self.filter.split("::").any(|part| part == "twin" || part.ends_with("_twin_alone"))
        };
        match name.as_str() {
            "--lib" => false,
            CONFORMANCE => !is_of_twins(),
            // The unit test of this file demands that each binary of the list is known.
            name => !WITHOUT_SERVERS.contains(&name),
        }
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

    /// Test binaries that start real servers or daemons.
    const WITH_SERVERS: [&str; 9] =
        ["command", "crash", "demo", "end_to_end", "mysql", "redis", "search", "soak", "versions"];

    #[test]
    fn tests_are_chosen_by_their_binary_and_their_names() {
        let selected = |test: &[&str]| {
            let test = test.iter().map(ToString::to_string).collect();
            let (name, guards) = (String::new(), String::new());
            let protection = Protection { name, guards, edits: Vec::new(), test, slow: false };
            let TestSelection { binary, filter } = protection.selection();
            (binary.join(" "), filter)
        };
        let chosen = |binary: &str, filter: &str| (binary.to_owned(), filter.to_owned());
        assert_eq!(selected(&[]), chosen("--workspace --test simulation", "whatever"));
        assert_eq!(selected(&["--lib", "deliver::lane"]), chosen("--workspace --lib", "deliver::lane"));
        let conformance = chosen("--workspace --test conformance", "grants");
        assert_eq!(selected(&["--test", "conformance", "grants"]), conformance);
        assert_eq!(selected(&["--bin", "suites", "fails"]), chosen("--workspace --bin suites", "fails"));
        assert_eq!(selected(&["--test", "pitfalls"]), chosen("--workspace --test pitfalls", ""));
    }

    #[test]
    fn a_quick_run_has_no_test_that_needs_servers() {
        let needs_servers = |binary: &[&str], filter: &str| {
            let binary = binary.iter().map(ToString::to_string).collect();
            TestSelection { binary, filter: filter.to_owned() }.needs_servers()
        };
        for (filter, needs) in [
            ("ports::audit::twin", false),
            ("ports::store::documents_twin_alone::what_a_withdrawal", false),
            ("lookup_bounds::a_batch_reads_no_more", false),
            ("ports::ledger::server::issuers_that_race", true),
            ("store_lanes::a_flush_that_a_deadlock", true),
            ("hostile_bytes_are_set_aside", true),
        ] {
            assert_eq!(needs_servers(&["--workspace", "--test", "conformance"], filter), needs, "{filter}");
        }
        for (binary, needs) in [("end_to_end", true), ("crash", true), ("simulation", false)] {
            assert_eq!(needs_servers(&["--workspace", "--test", binary], "any"), needs, "{binary}");
        }
        assert!(!needs_servers(&["--workspace", "--lib"], "deliver::lane"));

        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
        let known = [&WITHOUT_SERVERS[..], &WITH_SERVERS[..], &[CONFORMANCE, "--lib"]].concat();
        for protection in Protection::all(root) {
            let selection = protection.selection();
            let name = selection.binary.last().map_or("", String::as_str);
            assert!(known.contains(&name), "{}: add `{name}` to one of the lists above", protection.name);
        }
    }

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
