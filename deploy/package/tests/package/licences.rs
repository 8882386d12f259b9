//! The notices in the package: every crate of the program stands there with a text, and each text once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::unpacked;

const THIRD_PARTY: &str = "usr/share/doc/anabranch/THIRD-PARTY";
/// A part of the path of a registry's crate; panics of the program name such paths.
const REGISTRY: &[u8] = b"/registry/src/";
/// Files of the live page in the checkout.
const PAGE: &str = "../../pipeline/daemon/src/api/page";

/// The crates of the list by name and version, with the numbers of their texts.
type Crates<'t> = BTreeMap<(&'t str, &'t str), Vec<usize>>;

#[test]
fn each_crate_in_the_program_has_its_licence_in_the_package_and_each_text_stands_once() {
    let Some(unpacked) = unpacked() else { return };
    let content = fs::read_to_string(unpacked.root.join(THIRD_PARTY)).unwrap();
    let (list, texts) = content.split_once("\nTEXTS\n").expect("the texts stand behind the list");
    let (_, list) = list.split_once("\nCRATES\n").expect("a list of crates");
    let crates = listed(list);
    assert!(crates.len() > 100, "only {} crates", crates.len());

    let texts = numbered(texts);
    for ((name, version), numbers) in &crates {
        assert!(!numbers.is_empty(), "{name} {version} has no text");
        assert!(numbers.iter().all(|number| texts.contains_key(number)), "{name} {version}: {numbers:?}");
    }
    let different: BTreeSet<&String> = texts.values().collect();
    assert_eq!(different.len(), texts.len(), "a text stands twice");
    let without = list.matches("(common text: the crate has no licence file)").count();
    println!(
        "{without} of {} crates have no licence file, and {} texts stand once",
        crates.len(),
        texts.len()
    );

    let names: BTreeSet<&str> = crates.keys().map(|(name, _)| *name).collect();
    for linked in ["async-nats", "mysql_async", "mysql_common", "ring", "rustls", "tokio"] {
        assert!(names.contains(linked), "{linked} is missing");
    }
    for left_out in ["anabranch-pipeline", "proptest", "serde_derive", "syn"] {
        assert!(!names.contains(left_out), "{left_out} is not in the program");
    }
    // The program itself says which sources it was made of, apart from the list that cargo gave.
    let program = fs::read(unpacked.root.join("usr/bin/anabranch")).unwrap();
    let built_in = named_by(&program);
    if built_in.is_empty() {
        return println!(
            "skipped: the crates do not come from a registry, so the program does not name them"
        );
    }
    let missing: Vec<_> = built_in
        .iter()
        .filter(|(name, version)| !crates.contains_key(&(name.as_str(), version.as_str())))
        .collect();
    assert!(missing.is_empty(), "the program has crates that the list lacks: {missing:?}");
}

#[test]
fn the_live_page_holds_no_file_of_others() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() > 10, "{files:?}");
    for path in files {
        let text = fs::read_to_string(&path).unwrap().to_lowercase();
        // THIRD-PARTY says that there is none. A copied library begins with its licence.
        for word in ["copyright", "license", "licence"] {
            assert!(!text.contains(word), "{}: `{word}`", path.display());
        }
    }
}

/// Reads the list: a line with name and version, and below it one with the licence and the numbers.
fn listed(list: &str) -> Crates<'_> {
    let lines: Vec<&str> = list.lines().filter(|line| !line.is_empty()).collect();
    let crates = lines.chunks(2).map(|pair| {
        let [title, licence] = pair else { panic!("{pair:?}") };
        let (name, version) = title.split_once(' ').unwrap_or_else(|| panic!("{title}"));
        let (_, numbers) = licence.split_once("; text ").unwrap_or_else(|| panic!("{licence}"));
        let numbers = numbers.split(' ').filter_map(number).collect();
        ((name, version), numbers)
    });
    crates.collect()
}

/// Returns the texts, their words joined by one space, by their numbers.
fn numbered(texts: &str) -> BTreeMap<usize, String> {
    let mut found: BTreeMap<usize, String> = BTreeMap::new();
    // A text stands between rules: number and files, then its words.
    let rule = format!("\n{}\n", "-".repeat(100));
    let parts: Vec<&str> = texts.split(&rule).skip(1).collect();
    for pair in parts.chunks(2) {
        let [title, text] = pair else { panic!("{pair:?}") };
        let number = title.lines().next().and_then(number).unwrap_or_else(|| panic!("{title}"));
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(found.insert(number, words).is_none(), "[{number}] stands twice");
    }
    found
}

/// Reads a number in brackets.
fn number(word: &str) -> Option<usize> {
    word.strip_prefix('[')?.strip_suffix(']')?.parse().ok()
}

/// Returns name and version of each crate whose sources a program names.
fn named_by(program: &[u8]) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for (place, part) in program.windows(REGISTRY.len()).enumerate() {
        if part[0] != REGISTRY[0] || part != REGISTRY {
            continue;
        }
        let rest = &program[place + REGISTRY.len()..];
        let rest = &rest[..rest.len().min(300)];
        // Registry, crate with its version, path of the file.
        let folder = rest.split(|byte| *byte == b'/').nth(1).unwrap_or_default();
        let Ok(folder) = std::str::from_utf8(folder) else { continue };
        let is_version = |(place, _): &(usize, &str)| {
            folder[place + 1..].starts_with(|first: char| first.is_ascii_digit())
        };
        if let Some((place, _)) = folder.match_indices('-').find(is_version) {
            found.insert((folder[..place].to_owned(), folder[place + 1..].to_owned()));
        }
    }
    found
}
