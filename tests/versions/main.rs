//! Every suite once more on each other server: `cargo test -- --ignored versions`, or by hand
//! `ANABRANCH_TEST_DATABASE=mysql cargo test --test crash`.
//!
//! Each run is a `cargo test` of its own, as a process chooses its database once. The run names the file with its
//! output. Tests about one server by their nature are left out, with the reason.

mod left_out;

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anabranch_demo::daemon;
use anabranch_stack::{Options, ServerSpec, Stack};
use anabranch_tests::{DATABASE_VARIABLE, TestDatabase};

use crate::left_out::left_out;

/// Makes a test of each suite in a module, on one database.
macro_rules! on_database {
    ($module:ident, $database:ident: $($suite:ident),+) => {
        mod $module {
            $(#[test]
            #[ignore = "half an hour each: the same tests on another server"]
            fn $suite() {
                super::passes(anabranch_tests::TestDatabase::$database, stringify!($suite));
            })+
        }
    };
}

on_database!(versions_mariadb_11, MariaDb11: conformance, crash, end_to_end);
on_database!(versions_mysql, MySql: conformance, crash, end_to_end);

/// Runs a suite with its servers of this database, where the machine can have it.
fn passes(database: TestDatabase, suite: &str) {
    // The machine has room for the servers of one suite.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let server = database.server(ServerSpec::mariadb_source("source"));
    if Stack::start_if_there(Options::empty().with(server)).expect("the server starts").is_none() {
        return;
    }
    let left_out: Vec<&str> = left_out(database, suite).map(|(test, _)| test).collect();
    expect_known(suite, &left_out);
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{suite}.log", database.name()));
    let mut command = cargo_test(suite);
    command.env(DATABASE_VARIABLE, database.name());
    left_out.iter().for_each(|test| {
        command.args(["--skip", test]);
    });
    let file = File::create(&log).expect("the target folder can be written");
    let errors = file.try_clone().expect("a file can be opened twice");
    let status = command.stdout(file).stderr(errors).status().expect("cargo runs");
    let text = std::fs::read_to_string(&log).expect("it was just written");
    let failed: Vec<&str> = text.lines().filter_map(failed_test).collect();
    assert!(status.success() && failed.is_empty(), "{}", describe(database, suite, &failed, &log));
    eprintln!("{suite} on {}, {} left out: {}", database.name(), left_out.len(), log.display());
}

/// `cargo test` of one suite, ready for arguments of the suite itself.
fn cargo_test(suite: &str) -> Command {
    // In the workspace's root, features are those of the whole workspace, so nothing is built twice.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is a member of the workspace");
    let mut command = daemon::cargo();
    command.args(["test", "--locked", "--test", suite, "--"]).current_dir(root).stdin(Stdio::null());
    command
}

/// A test that was renamed must not stay in the list of those that are left out.
fn expect_known(suite: &str, left_out: &[&str]) {
    let listed = cargo_test(suite).arg("--list").output().expect("cargo runs");
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let listed = String::from_utf8_lossy(&listed.stdout);
    for test in left_out {
        assert!(listed.lines().any(|line| line.contains(test)), "{suite} has no test {test}");
    }
}

/// The name in `test NAME ... FAILED`.
fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

fn describe(database: TestDatabase, suite: &str, failed: &[&str], log: &Path) -> String {
    format!("{suite} on {}, see {}: {failed:#?}", database.name(), log.display())
}
