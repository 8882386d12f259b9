//! `cargo suites`: all that `cargo test` runs, with two suites at a time.
//!
//! `cargo test` runs one suite after another, although most of a suite is waiting for servers. Here cargo lists the
//! suites, so none can be forgotten, and the long ones begin first. The output of a suite is shown as a whole when the
//! suite has ended. A suite that fails stops no other. The tests of documentation follow at the end.
//!
//! Two suites at a time slow each other down, so limits of time come nearer. `--at-once 1` runs one after another.

use std::fmt::{self, Display};
use std::fs::{self, File};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use anabranch_stack::{Layout, cargo};
use clap::Parser;
use serde_json::Value;

/// Suites at a time that keep two processors busy.
const AT_ONCE: NonZeroUsize = NonZeroUsize::new(2).expect("two is not zero");
/// Long suites in the order in which they begin; all others follow. The simulation computes beside the longest suite,
/// which waits most of its time.
const LONG: [&str; 7] = ["end_to_end", "simulation", "crash", "conformance", "command", "soak", "demo"];
/// Suites that only compute. They yield to the servers and daemons of other suites, whose tests have limits of time.
const COMPUTING: [&str; 3] = ["simulation", "coupon_year", "tidy"];
/// Niceness of a suite that computes. A simulation must go on beside others, since it has a limit of silence itself.
const NICENESS: &str = "5";
/// Kind of cargo's targets that are files below `tests`; other suites are unit tests of a library or a program.
const TEST: &str = "test";

/// Runs all that `cargo test` runs, with several suites at a time
#[derive(Debug, Parser)]
#[command(name = "suites", bin_name = "cargo suites", max_term_width = 110)]
struct Arguments {
    /// Suites that run at the same time
    #[arg(long, default_value_t = AT_ONCE)]
    at_once: NonZeroUsize,
    /// Fail if Cargo.lock would have to change
    #[arg(long)]
    locked: bool,
}

/// A program with tests.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Suite {
    /// Kind and name of cargo's target.
    kind: String,
    target: String,
    executable: PathBuf,
    /// Folder of the package, in which cargo runs the suite.
    package: PathBuf,
}

/// The end of a suite.
#[derive(Debug)]
struct Outcome {
    name: String,
    time: Duration,
    /// The reason why the suite failed; `None` = all of its tests passed.
    failure: Option<String>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs everything; returns whether all passed.
fn run(arguments: &Arguments) -> Result<bool, String> {
    let suites = suites(arguments)?;
    let logs = logs().map_err(|error| format!("the folder for output cannot be made: {error}"))?;
    let (waiting, outcomes) = (Mutex::new(suites.iter()), Mutex::new(Vec::new()));
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..arguments.at_once.get() {
            scope.spawn(|| {
                while let Some(suite) = next() {
                    println!("--- {} begins", suite.name());
                    let outcome = suite.run(&logs);
                    outcomes.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
    outcomes.push(documentation(arguments));
    // Failures stand last, where a reader looks first.
    outcomes.sort_by_key(|outcome| outcome.failure.is_some());
    outcomes.iter().for_each(|outcome| println!("{outcome}"));
    let failed = outcomes.iter().filter(|outcome| outcome.failure.is_some()).count();
    println!("{failed} of {} suites failed; all output is in {}", outcomes.len(), logs.display());
    Ok(failed == 0)
}

/// Builds every suite, and returns them in the order in which they are to begin.
fn suites(arguments: &Arguments) -> Result<Vec<Suite>, String> {
    let mut command = cargo_test(arguments);
    command.args(["--no-run", "--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    let output = command.output().map_err(|error| format!("cargo cannot be run: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo ended with {}; its messages are above", output.status));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let mut suites: Vec<Suite> = messages.lines().filter_map(Suite::of).collect();
    if suites.is_empty() {
        return Err("cargo lists no suite".to_owned());
    }
    suites.sort_by_key(Suite::place);
    Ok(suites)
}

/// Runs the examples of documentation, whose output cargo shows.
fn documentation(arguments: &Arguments) -> Outcome {
    let began = Instant::now();
    let ended = cargo_test(arguments).arg("--doc").status();
    Outcome { name: "documentation".to_owned(), time: began.elapsed(), failure: failure(ended) }
}

/// Returns `cargo test` of the whole workspace.
fn cargo_test(arguments: &Arguments) -> Command {
    let mut command = cargo();
    command.current_dir(root()).args(["test", "--workspace"]).stdin(Stdio::null());
    if arguments.locked {
        command.arg("--locked");
    }
    command
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the empty folder for the output of suites.
fn logs() -> io::Result<PathBuf> {
    let folder = Layout::find().map_err(io::Error::other)?.programs().with_file_name("suites");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

fn failure(ended: io::Result<ExitStatus>) -> Option<String> {
    match ended {
        Ok(status) if status.success() => None,
        Ok(status) => Some(status.to_string()),
        Err(error) => Some(format!("it did not run: {error}")),
    }
}

impl Suite {
    /// Returns the suite that one of cargo's messages announces.
    fn of(message: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(message).ok()?;
        if message["profile"]["test"] != Value::Bool(true) {
            return None;
        }
        let target = &message["target"];
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let package = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
        Some(Self {
            kind: text(&target["kind"][0])?,
            target: text(&target["name"])?,
            executable: PathBuf::from(message["executable"].as_str()?),
            package,
        })
    }

    /// Returns a name for people: the last folder of the package, and the target.
    fn name(&self) -> String {
        let package = self.package.file_name().unwrap_or_default().to_string_lossy();
        match self.kind.as_str() {
            TEST => format!("{package}: {}", self.target),
            kind => format!("{package}: unit tests of {kind} {}", self.target),
        }
    }

    fn is_one_of(&self, names: &[&str]) -> bool {
        self.kind == TEST && names.contains(&self.target.as_str())
    }

    /// Returns the place in the order of beginnings.
    fn place(&self) -> usize {
        LONG.iter().position(|name| self.is_one_of(&[*name])).unwrap_or(LONG.len())
    }

    /// Runs the suite to its end and shows its output.
    fn run(&self, logs: &Path) -> Outcome {
        let began = Instant::now();
        let log = logs.join(self.executable.file_name().unwrap_or_default()).with_extension("log");
        let ended = File::create(&log).and_then(|output| {
            let errors = output.try_clone()?;
            self.command().stdout(output).stderr(errors).status()
        });
        let outcome = Outcome { name: self.name(), time: began.elapsed(), failure: failure(ended) };
        let output = fs::read(&log).unwrap_or_default();
        // One call prints all of it, so that no other suite comes in between.
        println!("--- {outcome}\n{}", String::from_utf8_lossy(&output));
        outcome
    }

    /// Returns the command as cargo would run it.
    fn command(&self) -> Command {
        let mut command = if self.is_one_of(&COMPUTING) {
            let mut nice = Command::new("nice");
            nice.args(["-n", NICENESS]).arg(&self.executable);
            nice
        } else {
            Command::new(&self.executable)
        };
        command.current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package).stdin(Stdio::null());
        command
    }
}

impl Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.time.as_secs();
        match &self.failure {
            None => write!(f, "{}: passed after {seconds} s", self.name),
            Some(reason) => write!(f, "{}: FAILED after {seconds} s, {reason}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use serde_json::json;

    use super::*;

    fn suite(kind: &str, target: &str) -> Suite {
        let (executable, package) = (format!("/target/{target}-0123").into(), "/checkout/tests".into());
        Suite { kind: kind.to_owned(), target: target.to_owned(), executable, package }
    }

    #[test]
    fn the_command_line_is_sound_and_the_alias_has_its_dashes() {
        Arguments::command().debug_assert();
        let arguments = Arguments::parse_from(["suites", "--locked"]);
        assert_eq!((arguments.at_once, arguments.locked), (AT_ONCE, true));
        let aliases = fs::read_to_string(root().join(".cargo/config.toml")).unwrap();
        assert!(aliases.contains("\nsuites = \"run --quiet --bin suites --\"\n"), "`cargo suites --locked`");
    }

    #[test]
    fn a_suite_is_what_cargo_has_built_for_its_tests() {
        let message = |is_test: bool, executable: Option<&str>| {
            json!({
                "reason": "compiler-artifact",
                "manifest_path": "/checkout/tests/Cargo.toml",
                "target": { "kind": ["test"], "name": "crash" },
                "profile": { "test": is_test },
                "executable": executable,
            })
            .to_string()
        };
        let built = Some("/target/crash-0123");
        assert_eq!(Suite::of(&message(true, built)), Some(suite("test", "crash")));
        assert_eq!(Suite::of(&message(false, built)), None, "a program");
        assert_eq!(Suite::of(&message(true, None)), None);
        assert_eq!(Suite::of("{\"reason\":\"build-finished\",\"success\":true}"), None);
        assert_eq!(Suite::of("no message"), None);
    }

    #[test]
    fn long_suites_begin_first_and_unit_tests_are_no_suite_of_the_same_name() {
        let mut suites = [suite("test", "tidy"), suite("bin", "soak"), suite("test", "crash")];
        suites.sort_by_key(Suite::place);
        assert_eq!(suites[0], suite("test", "crash"));
        assert!(suite("test", "tidy").is_one_of(&COMPUTING) && !suite("lib", "tidy").is_one_of(&COMPUTING));
    }

    #[test]
    fn each_named_suite_is_there() {
        for name in LONG.into_iter().chain(COMPUTING) {
            let files = ["tests/{}/main.rs", "deploy/demo/tests/{}.rs", "deploy/soak/tests/{}.rs"];
            let is_there = files.iter().any(|file| root().join(file.replace("{}", name)).is_file());
            assert!(is_there, "no suite is called {name}");
        }
    }

    #[test]
    fn a_suite_that_fails_or_cannot_be_run_is_a_failure() {
        let logs = tempfile::tempdir().unwrap();
        let run = |program: &str| {
            let package = logs.path().to_path_buf();
            Suite { executable: program.into(), package, ..suite("test", "any") }.run(logs.path())
        };
        assert_eq!(run("/bin/true").failure, None);
        let failed = run("/bin/false");
        assert_eq!(failed.failure.as_deref(), Some("exit status: 1"));
        assert!(failed.to_string().contains("FAILED"), "{failed}");
        assert!(run("/no/such/program").failure.is_some_and(|reason| reason.contains("it did not run")));
    }
}
