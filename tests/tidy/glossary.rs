//! The glossary says the same in `ARCHITECTURE.md` and at the head of `schemas/src/lib.rs`.

use std::collections::{BTreeMap, BTreeSet};

use crate::Fault;
use crate::tree::{Source, Text};

const DOCUMENT: &str = "ARCHITECTURE.md";
const SOURCE: &str = "schemas/src/lib.rs";
const HEADING: &str = "## Words";

/// The meaning of each word.
type Words = BTreeMap<String, String>;

/// Reports words that stand in one of both lists, or with two meanings.
pub fn faults(sources: &[Source], documents: &[Text]) -> Vec<Fault> {
    let document = documents.iter().find(|document| document.path == DOCUMENT);
    let source = sources.iter().find(|source| source.path() == SOURCE);
    let document = document.map_or_else(Words::new, |document| of_document(&document.text));
    let source = source.map_or_else(Words::new, |source| of_source(&source.text.text));
    if document.is_empty() {
        return vec![fault(format!("{DOCUMENT} has no table of words below `{HEADING}`"))];
    }
    differences(&document, &source)
}

fn fault(what: String) -> Fault {
    let remedy = "Write the same words with the same texts into both lists.";
    Fault { path: SOURCE.to_owned(), line: 1, what, remedy }
}

fn differences(document: &Words, source: &Words) -> Vec<Fault> {
    let words: BTreeSet<&String> = document.keys().chain(source.keys()).collect();
    let differing = words.into_iter().filter(|word| document.get(*word) != source.get(*word));
    differing.map(|word| fault(format!("the meaning of `{word}` differs from {DOCUMENT}"))).collect()
}

/// The rows `| word | meaning |` of the table below the heading.
fn of_document(text: &str) -> Words {
    let section = text.lines().skip_while(|line| *line != HEADING).skip(1);
    let rows = section.take_while(|line| !line.starts_with("## ")).filter(|line| line.starts_with('|'));
    let words = rows.skip(2).filter_map(|row| row.trim_matches(['|', ' ']).split_once(" | "));
    words.map(|(word, meaning)| (word.to_owned(), meaning.to_owned())).collect()
}

/// The items `- **word**: meaning.` of the head of a file, with the lines that go on.
fn of_source(text: &str) -> Words {
    let mut items: Vec<String> = Vec::new();
    for line in text.lines().map_while(|line| line.strip_prefix("//!")) {
        if let Some(item) = line.strip_prefix(" - **") {
            items.push(item.to_owned());
        } else if let (Some(further), Some(item)) = (line.strip_prefix("   "), items.last_mut()) {
            item.push(' ');
            item.push_str(further);
        }
    }
    let words = items.iter().filter_map(|item| item.split_once("**: "));
    words.map(|(word, meaning)| (word.to_owned(), meaning.trim_end_matches('.').to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn a_word_that_is_missing_or_means_two_things_is_reported() {
        let table = "## Words\n\n| word | meaning |\n|---|---|\n| lane | a share of tables |\n| chunk | a part |\n\n## Map\n";
        let documents = [Text { path: DOCUMENT.to_owned(), text: table.to_owned() }];
        let found = |head: &str| -> Vec<String> {
            faults(&[sample(SOURCE, head)], &documents).into_iter().map(|fault| fault.what).collect()
        };
        let equal = "//! Words.\n//!\n//! - **lane**: a share\n//!   of tables.\n//! - **chunk**: a part.\n";
        assert_eq!(found(equal), Vec::<String>::new());
        assert_eq!(
            found("//! - **lane**: a share.\n//! - **chunk**: a part.\n//! - **flush**: a transaction.\n"),
            ["flush", "lane"].map(|word| format!("the meaning of `{word}` differs from ARCHITECTURE.md"))
        );
    }
}
