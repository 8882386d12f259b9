//! No name has a word that the glossary replaced. A name is an identifier, also one in the text of a statement, or a
//! text such as the name of a metric, setting, subject, table or command. Sentences may use every word of English.
//! [`crate::other_names`] finds the names of files that are not Rust.

use std::collections::HashSet;

use proc_macro2::{Span, TokenStream, TokenTree};

use crate::Fault;
use crate::tree::{Source, Text};

/// Each retired word with its replacement from the glossary in `ARCHITECTURE.md`.
const RETIRED: &[(&str, &str)] = &[
    ("night", "reconciliation"),
    ("nights", "reconciliations"),
    ("mark", "watermark, register, position message or freshness key"),
    ("marks", "watermarks, registers, position messages or freshness keys"),
    ("footing", "resume context"),
    ("desk", "the thing that it holds"),
    ("shelf", "the thing that it holds"),
    ("seat", "replica slot"),
    ("seats", "replica slots"),
    ("brake", "backpressure"),
    ("patience", "wait"),
    ("hindrance", "obstacle"),
    ("eye", "probe"),
    ("eyes", "probes"),
    ("told", "announced, reported, or the noun of what was said"),
    ("tell", "report, log, print or notify"),
    ("standing", "stored, existing, status or member state"),
    ("standings", "member states"),
    ("apart", "incomparable"),
    ("sight", "snapshot view"),
    ("sky", "weather"),
    ("keeping", "store kind"),
    ("vacant", "free; `or_insert_with` is the free entry of a map"),
    ("look", "observation, sample, check, query or lookup"),
    ("looks", "observations, samples, checks or queries"),
    ("behind", "after, past or lagging"),
    ("reading", "stream, query, scan or refresh"),
    ("readings", "streams, queries or scans"),
];
/// Names of other programs.
const FOREIGN: &[&str] = &["Seconds_Behind_Master", "Seconds_Behind_Source"];
const REMEDY: &str = "Name it by the word of the glossary.";
/// Words of an identifier of a test from which on it is a sentence, as the names of tests are.
const SENTENCE_WORDS: usize = 5;
/// Words that begin a statement or a part of one.
const STATEMENTS: [&str; 12] = [
    "ALTER", "CREATE", "DELETE", "DROP", "FROM", "INSERT", "REPLACE", "SELECT", "SET", "UPDATE", "VALUES",
    "WHERE",
];
/// The file that lists the words, which is not checked.
const SELF: &str = "tests/tidy/words.rs";

pub fn faults(source: &Source) -> Vec<Fault> {
    if source.path() == SELF {
        return Vec::new();
    }
    let tokens: TokenStream = source.text.text.parse().expect("a parsed file has tokens");
    let mut faults = Vec::new();
    // A file has most of its names many times.
    let mut right = HashSet::<String>::new();
    let tests = first_line_of_tests(source);
    let mut check = |line: usize, name: &str| {
        if FOREIGN.contains(&name) || right.contains(name) {
            return;
        }
        match retired(name) {
            Some(word) => faults.push(fault(source.path(), line, name, word)),
            None => _ = right.insert(name.to_owned()),
        }
    };
    visit(tokens, &mut |token, text, is_identifier| {
        let line = token.start().line;
        let is_checked = if is_identifier { line < tests || !is_sentence(text) } else { is_name(text) };
        if is_checked {
            check(line, text);
        } else if !is_identifier && is_statement(text) {
            // Every second part is a value between quotation marks.
            for name in text.split('\'').step_by(2).flat_map(names) {
                check(line, name);
            }
        }
    });
    faults
}

/// The line from which on a file holds tests.
fn first_line_of_tests(source: &Source) -> usize {
    if source.path().starts_with("tests/") || source.path().contains("/tests") {
        return 0;
    }
    let text = &source.text.text;
    text.find("#[cfg(test)]\nmod tests {").map_or(usize::MAX, |at| text[..at].lines().count() + 1)
}

/// The words of code.
pub fn names(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|name| !name.is_empty())
}

/// Checks metrics in documents; other text is a sentence, or a name that is checked at its definition.
pub fn faults_of_document(document: &Text) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (number, line) in document.text.lines().enumerate() {
        for name in names(line).filter(|name| name.starts_with("anabranch_")) {
            faults.extend(retired(name).map(|word| fault(&document.path, number + 1, name, word)));
        }
    }
    faults
}

pub fn fault(path: &str, line: usize, name: &str, (word, instead): (&str, &str)) -> Fault {
    Fault {
        path: path.to_owned(),
        line,
        what: format!("`{name}` has the word {word}: {instead}"),
        remedy: REMEDY,
    }
}

fn visit(tokens: TokenStream, found: &mut impl FnMut(Span, &str, bool)) {
    let mut after_hash = false;
    for token in tokens {
        let span = token.span();
        let is_hash =
            matches!(&token, TokenTree::Punct(punct) if punct.as_char() == '#' || punct.as_char() == '!');
        match token {
            // A doc comment is an attribute here; its text is a sentence.
            TokenTree::Group(group) if after_hash && is_documentation(&group) => {}
            TokenTree::Group(group) => visit(group.stream(), found),
            TokenTree::Ident(name) => found(span, &name.to_string(), true),
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                // Sentences are most texts, and take the longest to parse.
                let is_sentence = text.contains(' ') && !text.contains('\\') && !is_statement(&text);
                if text.starts_with(['"', 'r'])
                    && !is_sentence
                    && let Ok(text) = syn::parse_str::<syn::LitStr>(&text)
                {
                    found(span, &text.value(), false);
                }
            }
            TokenTree::Punct(_) => {}
        }
        after_hash = is_hash;
    }
}

fn is_documentation(group: &proc_macro2::Group) -> bool {
    matches!(group.stream().into_iter().next(), Some(TokenTree::Ident(name)) if name == "doc")
}

fn is_sentence(name: &str) -> bool {
    let words = name.split('_').filter(|word| !word.is_empty()).count();
    words >= SENTENCE_WORDS && !name.contains(|c: char| c.is_ascii_uppercase())
}

/// Whether a text, with quotation marks or without them, is a statement of a database.
fn is_statement(text: &str) -> bool {
    let text = text.trim_start_matches(|c: char| "r#\"\\".contains(c) || c.is_whitespace());
    let first = text.split_whitespace().next();
    text.contains(' ') && first.is_some_and(|first| STATEMENTS.contains(&first))
}

/// Whether a text is a name: it has no spaces and more than one word. A single word may belong to a sentence.
pub fn is_name(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_-./{}:".contains(c);
    text.contains(['_', '-', '.', '/']) && text.chars().all(is_part)
}

/// The first retired word of a name in snake case, kebab case, camel case or with dots.
pub fn retired(name: &str) -> Option<(&'static str, &'static str)> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in name.chars() {
        if !c.is_ascii_alphanumeric() || (c.is_ascii_uppercase() && was_lower) {
            words.push(String::new());
        }
        was_lower = c.is_ascii_lowercase();
        if c.is_ascii_alphanumeric() {
            words.last_mut().expect("there is always one").push(c.to_ascii_lowercase());
        }
    }
    RETIRED.iter().find(|(word, _)| words.iter().any(|found| found == word)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn found_faults(text: &str) -> Vec<usize> {
        faults(&sample("pipeline/src/a.rs", text)).into_iter().map(|fault| fault.line).collect()
    }

    #[test]
    fn a_retired_word_in_a_name_is_a_fault_and_in_a_sentence_it_is_none() {
        assert_eq!(
            found_faults("struct PastNight;\nfn of_the_night() {}\nconst LOW_MARKS: u8 = 0;"),
            [1, 2, 3]
        );
        assert_eq!(
            found_faults("const A: &str = \"anabranch_night_rows\";\nconst B: &str = \"log.marks\";"),
            [1, 2]
        );
        let unnamed =
            "/// Each night.\nfn nightly() {\n    // A mark.\n    say(\"every night\", \"night\");\n}";
        assert!(found_faults(unnamed).is_empty());
        assert!(found_faults("use tokio::time;\nfn benchmark(watermark: u8, midnight: u8) {}").is_empty());
        assert_eq!(found_faults("fn what_is_told_is_a_fault() {}"), [1]);
        assert!(found_faults("#[cfg(test)]\nmod tests {\n  fn what_is_told_is_no_fault() {}\n}").is_empty());
        let statement = "const A: &str = \"SELECT night FROM t\";\nconst B: &str = r\" WHERE n = 'night'\";";
        assert_eq!(found_faults(statement), [1]);
        let document = Text { path: "a.md".into(), text: "At night\n`anabranch_night_rows` rises".into() };
        assert_eq!(faults_of_document(&document).len(), 1);
    }
}
