//! `cargo protections`: takes out each protection in turn and shows that the suite notices.
//!
//! It works on a copy of the files that git lists, under `target/protections/`, and leaves the checkout alone. The copy
//! has a target directory of its own, as cargo would take its packages for the checkout's in a shared one. The first
//! run builds everything. The tests of a binary first run on the whole copy: a test that is red anyway notices nothing.
//! When one is red, or the binary does not build, the run leaves out the protections of this binary and ends with 1.
//!
//! Protections are taken in the order of the test binaries that notice them, and of the packages that they stand in.
//! So a build finds most of the one before it still right. `target/protections/results.tsv` has the last result of
//! each. A run replaces the results of its own protections, so the parts of a list fill one file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::str::FromStr;
use std::time::Instant;

use anabranch_demo::daemon;
use anabranch_tests::protections::{Protection, TestSelection};
use clap::Parser;

/// Worlds in which each protection of the list is noticed; the whole copy must pass them too.
const SEEDS: u64 = 400;
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
    /// Part of the list to run: its number and the number of equal parts, such as 2/5; keeps the results of the others
    #[arg(long, value_name = "I/N", default_value = "1/1")]
    part: Part,
    /// Worlds that each simulation runs
    #[arg(long, default_value_t = SEEDS)]
    seeds: u64,
    /// Go on after the last runs: leave out what they noticed
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
/// is written at once, so that a run that is cut off can go on. Of two lines of one name the last one counts.
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

    /// Keeps the lines of these names alone.
    fn retain(&self, is_kept: impl Fn(&str) -> bool) {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        let has_name = |line: &&str| line.split('\t').next().is_some_and(&is_kept);
        let kept: String = text.lines().filter(has_name).flat_map(|line| [line, "\n"]).collect();
        std::fs::write(&self.0, kept).expect("the target folder can be written");
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
    copy_sources(&root, &copy);
    let results = Results(root.join("target/protections/results.tsv"));
    let chosen = chosen(&arguments, &root);
    if !arguments.goes_on {
        let begun: BTreeSet<&str> = chosen.iter().map(|(_, protection)| protection.name.as_str()).collect();
        results.retain(|name| !begun.contains(name));
    }
    let all = chosen.len();
    let noticed = results.noticed();
    let left: Vec<_> =
        chosen.into_iter().filter(|(_, protection)| !noticed.contains(&protection.name)).collect();
    let (before, mut noticed) = (all - left.len(), all - left.len());
    println!("{:44} {:10} {:>7} what went red", "without", "verdict", "seconds");
    for (binary, group) in by_binary(&left) {
        let began = Instant::now();
        let filters: BTreeSet<&str> = group.iter().map(|(selection, _)| selection.filter.as_str()).collect();
        let outcome = test(&root, &copy, binary, &filters, arguments.seeds);
        let (verdict, what) = match &outcome {
            Outcome::Unnoticed(_) => ("green", String::new()),
            Outcome::Noticed(what) => ("RED", what.clone()),
            Outcome::Broken(what) => ("BROKEN", what.clone()),
        };
        let nothing = format!("nothing, {}", binary.join(" "));
        println!("{nothing:44} {verdict:10} {:7} {what}", began.elapsed().as_secs());
        if !matches!(outcome, Outcome::Unnoticed(_)) {
            println!("{:44} {:10} {:7} {} protections", "", "LEFT OUT", "", group.len());
            continue;
        }
        for (selection, protection) in group {
            let began = Instant::now();
            let outcome = without(protection, selection, &root, &copy, arguments.seeds);
            let ((verdict, what), seconds) = (outcome.verdict(), began.elapsed().as_secs());
            noticed += usize::from(verdict == NOTICED);
            results.add(&protection.name, verdict, seconds, what);
            println!("{:44} {verdict:10} {seconds:7} {what}", protection.name);
        }
    }
    println!("{noticed} of {all} noticed, {before} of them by the runs before");
    if noticed == all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the protections of this run with their tests, in the order of test binaries and packages.
fn chosen(arguments: &Arguments, root: &Path) -> Vec<(TestSelection, Protection)> {
    let wanted = |protection: &Protection| {
        let named = arguments.words.iter().any(|word| protection.name.contains(word.as_str()));
        named || arguments.words.is_empty() && (arguments.all || !protection.is_slow())
    };
    let mut protections: Vec<_> = Protection::all(root).into_iter().filter(wanted).collect();
    protections.sort_by_cached_key(|protection| (protection.selection().binary, protection.package(root)));
    let Part { number, of } = arguments.part;
    let part = protections.into_iter().skip(number - 1).step_by(of);
    part.map(|protection| (protection.selection(), protection)).collect()
}

/// Returns the protections that each test binary notices, in their order.
fn by_binary(
    chosen: &[(TestSelection, Protection)],
) -> BTreeMap<&[String], Vec<&(TestSelection, Protection)>> {
    let mut groups: BTreeMap<&[String], Vec<_>> = BTreeMap::new();
    for one in chosen {
        groups.entry(&one.0.binary).or_default().push(one);
    }
    groups
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

/// Copies the files that git lists, committed or not, and removes from the copy those that it lists no more. Tests
/// include files from everywhere in the tree, so the copy has all of them.
fn copy_sources(root: &Path, copy: &Path) {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .expect("git runs");
    assert!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let listed = String::from_utf8(output.stdout).expect("the names of files are UTF-8");
    // Git lists a file that was deleted and not committed.
    let is_there = |file: &&str| !file.is_empty() && root.join(file).is_file();
    let files: BTreeSet<&Path> = listed.split('\0').filter(is_there).map(Path::new).collect();
    remove_others(copy, copy, &files);
    for file in files {
        copy_changed(&root.join(file), &copy.join(file));
    }
}

/// Removes the files of a folder of the copy that are not listed.
fn remove_others(folder: &Path, copy: &Path, listed: &BTreeSet<&Path>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.expect("the copy can be read").path();
        let Ok(file) = path.strip_prefix(copy) else { continue };
        if path.is_dir() {
            // Tests keep downloaded servers here.
            if file != Path::new("target") {
                remove_others(&path, copy, listed);
                // This fails for a folder that still has files.
                _ = std::fs::remove_dir(&path);
            }
        } else if !listed.contains(file) {
            std::fs::remove_file(&path).expect("the copy can be written");
        }
    }
}

/// Copies a file that differs, so that cargo builds only those.
fn copy_changed(from: &Path, to: &Path) {
    let content = std::fs::read(from).expect("a source file can be read");
    if std::fs::read(to).is_ok_and(|present| present == content) {
        return;
    }
    let folder = to.parent().expect("a file of the copy has a folder");
    std::fs::create_dir_all(folder).expect("the target folder can be written");
    std::fs::write(to, content).expect("the copy can be written");
}
