//! `cargo protections`: takes out each protection in turn and shows that the suite notices.
//!
//! It works on a copy of the sources under `target/protections/` and leaves the checkout alone. The copy has a target
//! directory of its own, as cargo would take its packages for the checkout's in a shared one. The first run builds
//! everything. Each test first runs on the whole copy: a test that is red anyway notices nothing.
//!
//! Protections are taken in the order of the test binaries that notice them, and of the packages that they stand in.
//! So a build finds most of the one before it still right. `target/protections/results.tsv` has the result of each.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Instant;

use anabranch_demo::daemon;
use anabranch_tests::protections::{Protection, TestSelection};
use clap::Parser;

/// Worlds in which each protection of the list is noticed; the whole copy must pass them too.
const SEEDS: u64 = 400;
const COPIED: [&str; 6] = [".cargo", "schemas", "pipeline", "connectors", "deploy", "tests"];
const COPIED_FILES: [&str; 4] = ["Cargo.toml", "Cargo.lock", "clippy.toml", "rust-toolchain.toml"];
const NOTICED: &str = "noticed";

/// Takes out each protection in turn and shows that a test notices.
#[derive(Parser)]
#[command(name = "cargo protections")]
struct Arguments {
    /// Words of names; without any word, all protections that need no real servers
    words: Vec<String>,
    /// Run the protections that need real servers too
    #[arg(long)]
    all: bool,
    /// Part of the list to run: its number and the number of equal parts, such as 2/5
    #[arg(long, value_name = "I/N", default_value = "1/1")]
    part: Part,
    /// Worlds that each simulation runs
    #[arg(long, default_value_t = SEEDS)]
    seeds: u64,
    /// Go on after the last run: leave out what it noticed
    #[arg(long = "continue")]
    goes_on: bool,
}

/// The share of one run: every `of`-th protection, from the `number`-th on.
#[derive(Debug, Clone, Copy)]
struct Part {
    number: usize,
    of: usize,
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts =
            text.split_once('/').and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        let part = parts.map(|(number, of)| Self { number, of });
        let is_right = |part: &Self| (1..=part.of).contains(&part.number);
        part.filter(is_right).ok_or_else(|| "it is I/N, with I from 1 to N, such as 2/5".to_owned())
    }
}

/// The result of a test command.
enum Outcome {
    Noticed(String),
    Unnoticed(String),
    /// The copy does not compile, or no test has the name: the entry of the list is wrong.
    Broken(String),
}

impl Outcome {
    /// Returns the verdict and what went red.
    fn verdict(&self) -> (&'static str, &str) {
        match self {
            Self::Noticed(what) => (NOTICED, what),
            Self::Unnoticed(what) => ("UNNOTICED", what),
            Self::Broken(what) => ("BROKEN", what),
        }
    }
}

/// The file of results: name, verdict, seconds and what went red, a line for each protection that was tried. Each line
/// is written at once, so that a run that is cut off can go on.
struct Results(PathBuf);

impl Results {
    /// Returns the names that the file has as noticed.
    fn noticed(&self) -> BTreeSet<String> {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        let lines = text.lines().filter_map(|line| {
            let mut fields = line.split('\t');
            Some((fields.next()?.to_owned(), fields.next()? == NOTICED))
        });
        let last: BTreeMap<String, bool> = lines.collect();
        last.into_iter().filter_map(|(name, is_noticed)| is_noticed.then_some(name)).collect()
    }

    fn add(&self, name: &str, verdict: &str, seconds: u64, what: &str) {
        let mut file =
            OpenOptions::new().create(true).append(true).open(&self.0).expect("the file of results");
        writeln!(file, "{name}\t{verdict}\t{seconds}\t{what}").expect("the file of results can be written");
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned();
    let copy = root.join("target/protections/sources");
    for folder in COPIED {
        copy_changed(&root.join(folder), &copy.join(folder));
    }
    for file in COPIED_FILES {
        copy_changed(&root.join(file), &copy.join(file));
    }
    let results = Results(root.join("target/protections/results.tsv"));
    if !arguments.goes_on {
        std::fs::write(&results.0, "").expect("the target folder can be written");
    }
    let chosen = chosen(&arguments, &root);
    let noticed = results.noticed();
    let (before, left): (Vec<_>, Vec<_>) =
        chosen.into_iter().partition(|(_, protection)| noticed.contains(&protection.name));
    println!("{:44} {:10} {:>7} what went red", "without", "verdict", "seconds");
    for (binary, filters) in by_binary(&left) {
        let outcome = test(&root, &copy, binary, &filters, arguments.seeds);
        if let Outcome::Noticed(what) | Outcome::Broken(what) = outcome {
            println!("{:44} {:10} {:7} {what}", "nothing", "RED", "");
            return ExitCode::FAILURE;
        }
    }
    println!("{:44} {:10}", "nothing", "green");
    let mut unnoticed = 0;
    for (selection, protection) in &left {
        let began = Instant::now();
        let outcome = without(protection, selection, &root, &copy, arguments.seeds);
        let ((verdict, what), seconds) = (outcome.verdict(), began.elapsed().as_secs());
        unnoticed += usize::from(verdict != NOTICED);
        results.add(&protection.name, verdict, seconds, what);
        println!("{:44} {verdict:10} {seconds:7} {what}", protection.name);
    }
    let all = before.len() + left.len();
    println!("{} of {all} noticed, {} of them by the runs before", all - unnoticed, before.len());
    if unnoticed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the protections of this run with their tests, in the order of test binaries and packages.
fn chosen(arguments: &Arguments, root: &Path) -> Vec<(TestSelection, Protection)> {
    let wanted = |protection: &Protection| {
        let named = arguments.words.iter().any(|word| protection.name.contains(word.as_str()));
        named || arguments.words.is_empty() && (arguments.all || !protection.slow)
    };
    let mut protections: Vec<_> = Protection::all(root).into_iter().filter(wanted).collect();
    protections.sort_by_cached_key(|protection| (protection.selection().binary, protection.package(root)));
    let Part { number, of } = arguments.part;
    let part = protections.into_iter().skip(number - 1).step_by(of);
    part.map(|protection| (protection.selection(), protection)).collect()
}

/// Returns the parts of names of tests for each test binary; an empty part stands for all of its tests.
fn by_binary(chosen: &[(TestSelection, Protection)]) -> BTreeMap<&[String], BTreeSet<&str>> {
    let mut filters: BTreeMap<&[String], BTreeSet<&str>> = BTreeMap::new();
    for (selection, _) in chosen {
        filters.entry(&selection.binary).or_default().insert(&selection.filter);
    }
    filters
}

/// Takes the protection out, runs its test and puts the protection back.
fn without(
    protection: &Protection,
    selection: &TestSelection,
    root: &Path,
    copy: &Path,
    seeds: u64,
) -> Outcome {
    // The texts of the copy, as the checkout may have been edited meanwhile.
    let mut saved: Vec<(PathBuf, String)> = Vec::new();
    let mut broken = None;
    for edit in &protection.edits {
        let file = copy.join(&edit.file);
        let text = std::fs::read_to_string(&file).expect("it was copied");
        match edit.apply(&text) {
            Some(changed) => std::fs::write(&file, changed).expect("the copy can be written"),
            None => broken = Some(format!("`{}` is not there exactly once", edit.before)),
        }
        saved.push((file, text));
    }
    let filters = BTreeSet::from([selection.filter.as_str()]);
    let run = || test(root, copy, &selection.binary, &filters, seeds);
    let outcome = broken.map_or_else(run, Outcome::Broken);
    // In reverse order, as a file may be edited twice. The new time of the file makes cargo build it again.
    for (file, text) in saved.into_iter().rev() {
        std::fs::write(file, text).expect("the copy can be written");
    }
    outcome
}

/// Runs the tests of one binary whose names have one of these parts.
fn test(root: &Path, copy: &Path, binary: &[String], filters: &BTreeSet<&str>, seeds: u64) -> Outcome {
    let output = daemon::cargo()
        .arg("test")
        .args(binary)
        .args(["--", "--nocapture"])
        .args(filters)
        .current_dir(copy)
        .env("CARGO_TARGET_DIR", root.join("target/protections/target"))
        // Each cycle builds again what a few changed lines touch, and nothing reads the debug information of it.
        .env("CARGO_INCREMENTAL", "1")
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env("ANABRANCH_SIMULATION_SEEDS", seeds.to_string())
        .env("RUST_BACKTRACE", "0")
        .output()
        .expect("cargo runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let red = || {
        let listed = text.rsplit_once("\nfailures:\n").map_or("", |(_, listed)| listed);
        let names: Vec<_> = listed.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
        names.join(", ")
    };
    let is_bad = |line: &&str| line.starts_with("simulation:") && !line.contains(" 0 wrong, 0 stuck");
    let what = text.lines().find(is_bad).map_or_else(red, str::to_owned);
    match (output.status.success(), tests_begun(&text)) {
        (true, Some(0)) => Outcome::Broken("no test has this name".to_owned()),
        (true, _) => Outcome::Unnoticed(what),
        (false, Some(_)) => Outcome::Noticed(what),
        (false, None) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            let error = errors.lines().find(|line| line.starts_with("error")).unwrap_or("cargo failed");
            Outcome::Broken(error.to_owned())
        }
    }
}

/// Returns how many tests a test binary began; `None` if none was run.
fn tests_begun(text: &str) -> Option<u64> {
    let count = |line: &str| line.strip_prefix("running ")?.split_once(" test")?.0.parse::<u64>().ok();
    text.lines().filter_map(count).reduce(|all, more| all + more)
}

/// Copies the files that differ, so that cargo builds only those, and removes the files that are gone.
fn copy_changed(from: &Path, to: &Path) {
    if from.is_dir() {
        std::fs::create_dir_all(to).expect("the target folder can be written");
        let names = |folder: &Path| -> Vec<_> {
            let entries = std::fs::read_dir(folder).expect("a folder can be read");
            entries.map(|entry| entry.expect("a folder can be read").file_name()).collect()
        };
        let kept = names(from);
        for name in names(to).into_iter().filter(|name| !kept.contains(name)) {
            let gone = to.join(name);
            let removed =
                if gone.is_dir() { std::fs::remove_dir_all(gone) } else { std::fs::remove_file(gone) };
            removed.expect("the copy can be written");
        }
        kept.iter().for_each(|name| copy_changed(&from.join(name), &to.join(name)));
        return;
    }
    let content = std::fs::read(from).expect("a source file can be read");
    if std::fs::read(to).is_ok_and(|present| present == content) {
        return;
    }
    std::fs::write(to, content).expect("the copy can be written");
}
