//! Rules of the tree that no compiler checks: sizes, heads, prose, ports, channels, words, circles, rooms, named
//! tests.
//!
//! Each rule is a pure function from a file, or from all files, to faults, and has a sample that breaks it.
//! [`the_tree_keeps_every_rule`] reads the tree once and reports all faults together.

mod alerts;
mod bans;
mod circles;
mod comments;
mod dashboards;
mod expressions;
mod glossary;
mod lengths;
mod metrics;
mod modules;
mod names;
mod other_names;
mod rooms;
mod runbook;
mod sizes;
mod tree;
mod words;

use crate::tree::{Source, Text, documents, sources, texts_of};

/// A broken rule, with its file and line.
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    path: String,
    line: usize,
    /// The finding, and the demand of the rule.
    what: String,
    /// The way to mend it.
    remedy: &'static str,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}. {}", self.path, self.line, self.what, self.remedy)
    }
}

#[test]
fn the_tree_keeps_every_rule() {
    let (sources, documents) = (sources(), documents());
    assert!(sources.len() > 100 && documents.len() > 3, "the tree was not found");
    let mut faults = Vec::new();
    for source in &sources {
        faults.extend(sizes::faults(source));
        faults.extend(comments::faults(source));
        faults.extend(bans::faults(source));
        faults.extend(words::faults(source));
        faults.extend(lengths::of_comments(&source.text));
    }
    for document in &documents {
        faults.extend(lengths::of_document(document));
        faults.extend(sizes::faults_of_document(document));
        faults.extend(words::faults_of_document(document));
    }
    let others = texts_of(&other_names::EXTENSIONS);
    assert!(others.len() > 50, "the statements, the page and the settings were not found");
    faults.extend(others.iter().flat_map(other_names::faults));
    faults.extend(circles::faults(&sources, circles::KNOWN));
    faults.extend(rooms::faults(&sources, rooms::ORDER));
    faults.extend(names::faults(&sources, &documents));
    faults.extend(glossary::faults(&sources, &documents));
    faults.extend(runbook::faults(&documents));
    let found_faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
    assert!(found_faults.is_empty(), "{} faults:\n{}", found_faults.len(), found_faults.join("\n"));
}

/// A source file of a sample.
fn sample(path: &str, text: &str) -> Source {
    Source::parse(Text { path: path.to_owned(), text: text.to_owned() })
}
