//! A short run of the command itself, with a fixed seed.

use std::process::{Command, Stdio};

const SEED: &str = "24";
/// Limit of the whole run: all limits of its parts together, and a build of the daemon.
const SECONDS_MAX: &str = "2460";
/// Exit code of `timeout` (coreutils) when the time is over.
const LATE: i32 = 124;
/// Every kind of step, as the summary names it.
const KINDS: [&str; 22] = [
    "daemon-killed",
    "daemon-frozen",
    "server-killed",
    "server-paused",
    "column-altered",
    "swapped-by-triggers",
    "swapped-under-lock",
    "table-truncated",
    "partition-exchanged",
    "column-renamed",
    "column-dropped",
    "column-widened",
    "characters-converted",
    "table-made",
    "grant-lost",
    "rows-cascaded",
    "changed-by-text",
    "lanes-paused",
    "all-restarted",
    "reconciled",
    "failed-over",
    "begun-anew",
];

#[test]
fn two_minutes_of_random_faults_of_every_kind_leave_every_store_equal_to_its_sources() {
    let output = Command::new("timeout")
        .args(["--kill-after=30", SECONDS_MAX, env!("CARGO_BIN_EXE_soak"), "--minutes", "2", "--seed", SEED])
        .stdin(Stdio::null())
        .output()
        .expect("the command runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_ne!(output.status.code(), Some(LATE), "not over after {SECONDS_MAX} s: {errors}\n{text}");
    assert!(output.status.success(), "{errors}\n{text}");
    let is_summary = |line: &&str| line.starts_with("soak, seed 24: ");
    let summary = text.lines().find(is_summary).unwrap_or_else(|| panic!("no summary: {text}"));
    assert!(summary.ends_with(" 0 problems"), "{summary}");
    for kind in KINDS {
        assert!(summary.contains(&format!(" {kind}")), "no step {kind}: {summary}");
    }
    println!("{summary}");
}
