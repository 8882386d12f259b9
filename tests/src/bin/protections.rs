//! `cargo protections`: takes out each protection in turn and shows that the suite notices.
//!
//! It works on a copy of the sources under `target/protections/` and leaves the checkout alone. The copy has a target
//! directory of its own, as cargo would take its packages for the checkout's in a shared one. The first run builds
//! everything. Each test first runs on the whole copy: a test that is red anyway notices nothing.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Instant;

use anabranch_demo::daemon;
use anabranch_tests::protections::Protection;
use clap::Parser;

/// Worlds in which each protection of the list is noticed; the whole copy must pass them too.
const SEEDS: u64 = 400;
const COPIED: [&str; 6] = [".cargo", "schemas", "pipeline", "connectors", "deploy", "tests"];
const COPIED_FILES: [&str; 4] = ["Cargo.toml", "Cargo.lock", "clippy.toml", "rust-toolchain.toml"];

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
    /// The copy does not compile: the entry of the list is wrong.
    Broken(String),
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
    let wanted = |protection: &Protection| {
        let named = arguments.words.iter().any(|word| protection.name.contains(word.as_str()));
        named || arguments.words.is_empty() && (arguments.all || !protection.slow)
    };
    let Part { number, of } = arguments.part;
    let protections = Protection::all(&root).into_iter().filter(wanted).skip(number - 1).step_by(of);
    let protections: Vec<Protection> = protections.collect();
    println!("{:44} {:10} {:>7} what went red", "without", "verdict", "seconds");
    let tests: BTreeSet<&[String]> = protections.iter().map(|protection| &*protection.test).collect();
    for chosen in tests {
        if let Outcome::Noticed(what) | Outcome::Broken(what) = test(&root, &copy, chosen, arguments.seeds) {
            println!("{:44} {:10} {:7} {what}", "nothing", "RED", "");
            return ExitCode::FAILURE;
        }
    }
    println!("{:44} {:10}", "nothing", "green");
    let mut unnoticed = 0;
    for protection in &protections {
        let began = Instant::now();
        let (verdict, what) = match without(protection, &root, &copy, arguments.seeds) {
            Outcome::Noticed(what) => ("noticed", what),
            Outcome::Unnoticed(what) => ("UNNOTICED", what),
            Outcome::Broken(what) => ("BROKEN", what),
        };
        unnoticed += usize::from(verdict != "noticed");
        println!("{:44} {verdict:10} {:7} {what}", protection.name, began.elapsed().as_secs());
    }
    println!("{} of {} noticed", protections.len() - unnoticed, protections.len());
    if unnoticed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Takes the protection out, runs its test and puts the protection back.
fn without(protection: &Protection, root: &Path, copy: &Path, seeds: u64) -> Outcome {
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
    let outcome = broken.map_or_else(|| test(root, copy, &protection.test, seeds), Outcome::Broken);
    // In reverse order, as a file may be edited twice. The new time of the file makes cargo build it again.
    for (file, text) in saved.into_iter().rev() {
        std::fs::write(file, text).expect("the copy can be written");
    }
    outcome
}

fn test(root: &Path, copy: &Path, arguments: &[String], seeds: u64) -> Outcome {
    let simulation = ["--test", "simulation", "whatever"].map(str::to_owned);
    let arguments = if arguments.is_empty() { &simulation[..] } else { arguments };
    let output = daemon::cargo()
        .args(["test", "--workspace"])
        .args(arguments)
        .args(["--", "--nocapture"])
        .current_dir(copy)
        .env("CARGO_TARGET_DIR", root.join("target/protections/target"))
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
    match (output.status.success(), text.contains("running ")) {
        (true, _) => Outcome::Unnoticed(what),
        (false, true) => Outcome::Noticed(what),
        (false, false) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            let error = errors.lines().find(|line| line.starts_with("error")).unwrap_or("cargo failed");
            Outcome::Broken(error.to_owned())
        }
    }
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
