//! The command itself: it verifies, it ends in order on a signal, and nothing outlives it when it is killed.

#![allow(clippy::unwrap_used, reason = "helpers of tests, too, fail by panicking")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anabranch_stack::{Layout, instance_names};

/// Everything, also the build of the daemon on a machine that never built it.
const DEMO_MAX: Duration = Duration::from_secs(900);

/// Few tables, which are quick to make.
const SMALL: [&str; 6] = ["--devices", "2000", "--serial-tables", "8", "--mapping-tables", "8"];

fn demo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anabranch-demo"));
    command.args(SMALL).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Processes whose command line names the folder, zombies excepted.
fn processes_of(folder: &str) -> Vec<String> {
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(folder))
        .collect()
}

fn wait_until(what: &str, mut reached: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !reached() {
        assert!(Instant::now() < deadline, "not reached: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A demo without an end that shows its first line of figures, with the folder of its stack.
fn running_demo() -> (Child, PathBuf) {
    let mut child = demo(&["--users", "500", "--rate", "300", "--without-search"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let start = Instant::now();
    let mut seen = String::new();
    let log = loop {
        assert!(start.elapsed() < DEMO_MAX, "the demo does not start:\n{seen}");
        let line = lines.next().unwrap_or_else(|| panic!("the demo ended:\n{seen}")).unwrap();
        if let Some(log) = line.strip_prefix("daemon log") {
            break PathBuf::from(log.trim());
        }
        seen.push_str(&line);
        seen.push('\n');
    };
    // Read on, so that it never waits for us.
    std::thread::spawn(move || lines.for_each(drop));
    let folder = log.parent().unwrap().to_path_buf();
    assert!(processes_of(&folder.display().to_string()).iter().any(|line| line.contains("anabranch")));
    (child, folder)
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Everything that a demo can have, in one run, because its stack is dear. Twenty seconds have each kind of change.
#[test]
fn a_short_run_of_everything_verifies_and_prints_one_json_line() {
    let arguments = "--seconds 20 --verify --users 4000 --layout by_user --databases 2 --seed 3 --flux 500 \
                     --coupons --lunar";
    let output = demo(&arguments.split(' ').collect::<Vec<_>>()).output().unwrap();
    let (text, errors) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{errors}\n{text}");
    assert_eq!(text.trim_end().lines().count(), 1, "{text}");
    let line: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (line["ok"].as_bool(), line["differences"].as_u64(), line["seed"].as_u64()),
        (Some(true), Some(0), Some(3))
    );
    for layer in ["birthday", "lunar_birthday", "mapping", "cache", "documents"] {
        let found = &line["layers"][layer];
        assert!(
            found["rows"].as_u64().is_some_and(|rows| rows > 1_000) && found["differences"] == 0,
            "{text}"
        );
    }
    for field in ["rows", "changes", "lag_ms_p50", "lag_ms_p99", "daemon_resident_bytes", "first_row_seconds"]
    {
        assert!(line[field].as_f64().is_some_and(|value| value > 0.0), "{field}: {text}");
    }
    payment_documents_are_indexed(&line);
    users_of_both_calendars_have_one_coupon(&line["coupons"]);
}

fn users_of_both_calendars_have_one_coupon(coupons: &serde_json::Value) {
    let count = |field: &str| coupons[field].as_u64().unwrap();
    assert!(count("eligible") > count("eligible_lunar"), "{coupons}");
    // A leap month celebrates no lunar birthday.
    let has_lunar_day = !coupons["lunar_birthdays"].as_array().unwrap().is_empty();
    assert_eq!(count("eligible_lunar") > 0, has_lunar_day, "{coupons}");
    assert_eq!((count("given"), count("marked")), (count("eligible"), count("eligible")), "{coupons}");
}

fn payment_documents_are_indexed(line: &serde_json::Value) {
    let relations = &line["layers"]["relations"];
    assert!(relations["rows"].as_u64().is_some_and(|rows| rows > 10_000), "{line}");
    // Some documents are in two tables: their own and that of their parent's user partition.
    assert!(relations["claims"].as_u64() > relations["source_rows"].as_u64(), "{line}");
    assert_eq!(
        (relations["differences"].as_u64(), relations["misplaced"].as_u64()),
        (Some(0), Some(0)),
        "{line}"
    );
    assert!(line["lags"]["relations"]["from_commit"]["probes"].as_u64().is_some_and(|probes| probes > 0));
    assert!(line["flux_kinds"]["children_before_parents"].as_u64().is_some_and(|found| found > 0), "{line}");
}

#[test]
fn a_killed_daemon_is_started_again_and_a_stopped_one_ends_the_demo() {
    let (mut child, folder) = running_demo();
    let daemon = || {
        let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let path = entry.ok()?.path();
            let line = fs::read(path.join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            // Not its guard, which names the same file.
            let is_daemon =
                line.ends_with("demo.toml run ") && !line.contains("flock") && !line.starts_with("sh ");
            (is_daemon && line.contains(&folder.display().to_string()))
                .then(|| path.file_name().unwrap().to_string_lossy().into_owned())
        });
        processes.last()
    };
    let first = daemon().unwrap();
    assert!(Command::new("kill").args(["-KILL", &first]).status().unwrap().success());
    wait_until("it was started again", || daemon().is_some_and(|pid| pid != first));
    let second = daemon().unwrap();
    wait_until("it takes signals", || {
        let status = fs::read_to_string(format!("/proc/{second}/status")).unwrap_or_default();
        // SIGTERM is bit 14 of the caught signals.
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        caught
            .and_then(|caught| u64::from_str_radix(caught.trim(), 16).ok())
            .is_some_and(|set| set & (1 << 14) != 0)
    });
    assert!(Command::new("kill").args(["-TERM", &second]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

#[test]
fn an_interrupted_demo_ends_in_order_and_removes_its_stack() {
    let (mut child, folder) = running_demo();
    signal(&child, "-INT");
    assert!(child.wait().unwrap().success());
    let name = folder.file_name().unwrap().to_string_lossy().into_owned();
    assert!(!folder.exists() && !instance_names(&Layout::find().unwrap()).unwrap().contains(&name));
    assert_eq!(processes_of(&folder.display().to_string()), Vec::<String>::new());
}

#[test]
fn a_killed_demo_leaves_nothing_running() {
    let (mut child, folder) = running_demo();
    signal(&child, "-KILL");
    child.wait().unwrap();
    let folder = folder.display().to_string();
    wait_until("servers and daemon are gone", || processes_of(&folder).is_empty());
}
