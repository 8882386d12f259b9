//! Each test that a document names exists.
//!
//! Documents name tests as `suite: name` or `module::name`; a name that ends in `…` is a beginning. Names in the last
//! column of the table of promises, and of tables of lines, are tests by their position. Each line names one.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

use crate::Fault;
use crate::tree::{Source, Text, exists};

/// Headings of tables whose last column names tests.
const PROMISES: &str = "## Promises and the tests that show them";
const LINES: &str = "## Lines and the tests that show them";
/// Suites of the tests' package and groups of unit tests that documents name.
const SUITES: [&str; 7] = ["conformance", "crash", "demo", "end_to_end", "package", "simulation", "versions"];
/// Folders and modules that a name may leave out.
const LEFT_OUT: [&str; 2] = ["src", "tests"];

pub fn faults(sources: &[Source], documents: &[Text]) -> Vec<Fault> {
    let known = Known::of(sources);
    let mut faults = Vec::new();
    for document in documents {
        for (line, suite, name) in named(document) {
            // A table may name a folder that its tests run with.
            if !exists(&name) && !known.has(&Wanted::of(suite.as_deref(), &name)) {
                let suite = suite.map(|suite| format!(" of `{suite}`")).unwrap_or_default();
                faults.push(Fault {
                    path: document.path.clone(),
                    line,
                    what: format!("there is no test `{name}`{suite}"),
                    remedy: "Name the test as it is called now, or take the promise back.",
                });
            }
        }
        faults.extend(lines_without_tests(document));
    }
    faults
}

/// Returns a fault for each row of a table of lines that names no test. Its heading and the rule below it are no rows.
fn lines_without_tests(document: &Text) -> Vec<Fault> {
    let lines = (1..).zip(document.text.lines()).skip_while(|(_, line)| *line != LINES).skip(1);
    let rows = lines
        .take_while(|(_, line)| !line.starts_with("## "))
        .filter(|(_, line)| line.starts_with('|'))
        .skip(2);
    let names_none = |line: &str| !line.trim_end_matches(['|', ' ']).ends_with('`');
    rows.filter(|(_, line)| names_none(line))
        .map(|(line, _)| Fault {
            path: document.path.clone(),
            line,
            what: "the row names no test".to_owned(),
            remedy: "Name the test that shows the line in the last column.",
        })
        .collect()
}

/// Line, suite and name of each test in a document.
fn named(document: &Text) -> Vec<(usize, Option<String>, String)> {
    let (mut named, mut is_promise) = (Vec::new(), false);
    for (number, line) in (1..).zip(document.text.lines()) {
        if line.starts_with("## ") {
            is_promise = [PROMISES, LINES].contains(&line);
        }
        let is_row = is_promise && line.starts_with('|');
        let cell = if is_row { line.trim_end_matches(['|', ' ']).rsplit(" | ").next() } else { None };
        // Every second part is text between back-ticks.
        for quoted in cell.unwrap_or(line).split('`').skip(1).step_by(2) {
            let (of, name) = match quoted.split_once(": ") {
                Some((of, name)) => (Some(of.to_owned()), name),
                None => (None, quoted),
            };
            if !name.chars().all(|letter| letter.is_ascii_alphanumeric() || "_:/…".contains(letter)) {
                continue;
            }
            let is_suite = of.as_deref().is_some_and(|of| SUITES.contains(&of));
            let is_beginning = name.ends_with('…') && name.contains('_');
            if is_row || is_suite || is_beginning {
                named.push((number, of.filter(|_| is_row || is_suite), name.to_owned()));
            }
        }
    }
    named
}

/// Functions with the attribute `test` of any crate, and all names in the item macros of a file, which make tests too.
#[derive(Default)]
struct Tests(BTreeSet<String>);

impl Tests {
    fn add_names(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.add_names(group.stream()),
                TokenTree::Ident(name) => _ = self.0.insert(name.to_string()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Tests {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        let is_test = |attribute: &syn::Attribute| {
            attribute.path().segments.last().is_some_and(|last| last.ident == "test")
        };
        if function.attrs.iter().any(is_test) {
            self.0.insert(function.sig.ident.to_string());
        }
        visit::visit_item_fn(self, function);
    }

    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        // A definition of a macro has a name.
        if item.ident.is_none() {
            self.add_names(item.mac.tokens.clone());
        }
    }
}

/// The path of each test, of each module, and of the file, from the package's folder on.
fn paths(source: &Source) -> Vec<Vec<String>> {
    let path = source.path().trim_end_matches(".rs").trim_end_matches("/mod");
    let module: Vec<String> =
        path.split('/').filter(|part| !LEFT_OUT.contains(part)).map(str::to_owned).collect();
    let with = |name: &str| [&module[..], &[name.to_owned()]].concat();
    let words = source.text.text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let mut tests = Tests::default();
    tests.visit_file(&source.syntax);
    // Words decide, and not syntax, as macros make tests too.
    let is_named = |pair: &&[&str]| pair[0] == "mod" || pair[0] == "fn" && tests.0.contains(pair[1]);
    let mut paths: Vec<_> = words.windows(2).filter(is_named).map(|pair| with(pair[1])).collect();
    paths.push(module);
    paths
}

/// All paths, and those that have a part: there are tens of thousands, and documents name a thousand.
struct Known {
    paths: Vec<Vec<String>>,
    by_part: BTreeMap<String, Vec<usize>>,
}

impl Known {
    fn of(sources: &[Source]) -> Self {
        let paths: Vec<Vec<String>> = sources.iter().flat_map(paths).collect();
        let mut by_part = BTreeMap::<String, Vec<usize>>::new();
        for (index, path) in paths.iter().enumerate() {
            for part in path {
                by_part.entry(part.clone()).or_default().push(index);
            }
        }
        Self { paths, by_part }
    }

    fn has(&self, wanted: &Wanted) -> bool {
        let Some(last) = wanted.parts.last() else { return false };
        let parts = self.by_part.range(last.clone()..).take_while(|(part, _)| wanted.is_last(part, last));
        parts.flat_map(|(_, paths)| paths).any(|index| wanted.fits(&self.paths[*index]))
    }
}

/// A name in a document, and the suite that it gives.
struct Wanted {
    parts: Vec<String>,
    suite: Vec<String>,
    /// The last part is the beginning of a name.
    is_beginning: bool,
}

impl Wanted {
    fn of(suite: Option<&str>, name: &str) -> Self {
        let beginning = name.strip_suffix('…');
        let parts = |name: &str| {
            let parts = name.split('/').filter(|part| !part.is_empty() && !LEFT_OUT.contains(part));
            parts.map(str::to_owned).collect()
        };
        Self {
            parts: parts(&beginning.unwrap_or(name).replace("::", "/")),
            suite: suite.map(|suite| parts(&suite.replace("::", "/"))).unwrap_or_default(),
            is_beginning: beginning.is_some(),
        }
    }

    fn is_last(&self, found: &str, last: &str) -> bool {
        if self.is_beginning { found.starts_with(last) } else { found == last }
    }

    /// Whether a path has these parts one after the other, in the suite if one is given.
    fn fits(&self, path: &[String]) -> bool {
        let Some((last, before)) = self.parts.split_last() else { return false };
        let is_here = |window: &[String]| {
            let (end, start) = window.split_last().expect("as many as parts, at least one");
            self.is_last(end, last) && start == before
        };
        let is_of_suite = |window: &[String]| window == self.suite;
        (self.suite.is_empty() || path.windows(self.suite.len()).any(is_of_suite))
            && path.windows(self.parts.len()).any(is_here)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    const TEST: &str = "#[test]\nfn a_lane_goes_on_behind_a_hole() {}\nmake! { fn made_by_a_macro() {} }\n\
                        list!(Twin: listed,);\nfn listed() {}\nfn helper() { call!(helper) }\n";

    fn found_faults(document: &str) -> Vec<String> {
        let sources = [sample("tests/crash/zombies.rs", TEST), sample("connectors/src/nats/lease.rs", TEST)];
        let document = Text { path: "A.md".to_owned(), text: document.to_owned() };
        let found_faults = faults(&sources, &[document]).into_iter();
        found_faults.map(|fault| format!("{}: {}", fault.line, fault.what)).collect()
    }

    #[test]
    fn a_test_that_is_not_there_is_told() {
        let document = "Shown (`crash: a_lane_goes_back`), `crash: zombies`, and `a_lane_goes_b…`.";
        assert_eq!(
            found_faults(document),
            ["1: there is no test `a_lane_goes_back` of `crash`", "1: there is no test `a_lane_goes_b…`"]
        );
    }

    #[test]
    fn a_function_is_a_test_by_its_attribute_or_in_a_macro() {
        assert_eq!(
            found_faults("`crash: made_by_a_macro`, `crash: listed`, `crash: helper`"),
            ["1: there is no test `helper` of `crash`"]
        );
    }

    #[test]
    fn every_name_of_the_table_of_promises_is_a_test_by_its_place() {
        let row = "| a | b | `crash: zombies`, `made_by_a_macro`; unit test of `nats::lease`; `crash: other`, `none` |";
        let document = format!("{row}\n{PROMISES}\n\n{row}\n");
        assert_eq!(
            found_faults(&document),
            [
                "1: there is no test `other` of `crash`",
                "4: there is no test `other` of `crash`",
                "4: there is no test `none`"
            ]
        );
    }

    #[test]
    fn each_line_of_a_table_of_lines_names_a_test_that_exists() {
        let rows = "| line | test |\n|---|---|\n| a | `made_by_a_macro` |\n| b | by hand |\n| c | `none` |";
        assert_eq!(
            found_faults(&format!("{rows}\n{LINES}\n{rows}\n## Other\n{rows}\n")),
            ["11: there is no test `none`", "10: the row names no test"]
        );
    }
}
