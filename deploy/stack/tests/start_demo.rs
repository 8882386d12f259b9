//! `cargo demo` from its first line to the demo itself, with a cargo, an apt and a demo that only say how they were
//! run.

#![allow(clippy::unwrap_used, reason = "helpers of tests, too, fail by panicking")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use anabranch_stack::{PAGE_PORT_VARIABLE, PROGRAMS_VARIABLE};

/// A cargo that says how it was run, and whether it is itself run by cargo.
const CARGO: &str = "echo \"cargo $* ${CARGO_PKG_NAME:-none}\"";
/// A cargo that ends when a fetch has begun beside it, or after ten seconds.
const PATIENT_CARGO: &str = "i=0\n\
    while [ ! -e \"$FETCHING\" ] && [ $i -lt 1000 ]; do sleep 0.01; i=$((i + 1)); done\n\
    [ ! -e \"$FETCHING\" ] || echo the fetch runs beside the build";
/// An apt that leaves a trace, and has no package.
const APT: &str = "touch \"$FETCHING\"; exit 100";

fn script(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}

/// Runs a copy of the program that stands beside a demo, in a folder of the profile's name.
fn started(cargo: &str, arguments: &[&str]) -> (Output, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (profile, programs) = (folder.join("demo"), folder.join("programs"));
    for made in [&profile, &programs] {
        fs::create_dir_all(made).unwrap();
    }
    let program = profile.join("start-demo");
    fs::copy(env!("CARGO_BIN_EXE_start-demo"), &program).unwrap();
    script(&profile.join("anabranch-demo"), &format!("echo \"demo $* port=${PAGE_PORT_VARIABLE}\""));
    script(&programs.join("cargo"), cargo);
    script(&programs.join("apt-get"), APT);
    let mut command = Command::new(program);
    command.args(arguments).env("CARGO", programs.join("cargo")).env("CARGO_PKG_NAME", "start-demo");
    command.env("CARGO_TARGET_DIR", folder.join("target")).env("FETCHING", folder.join("fetching"));
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    // A bare machine fetches all of its servers.
    let output = command.env("PATH", path).env(PROGRAMS_VARIABLE, "private").output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    (output, said, errors)
}

/// One test has all cases: a program that was just written cannot be run while another thread makes processes.
#[test]
fn the_address_comes_first_servers_are_fetched_while_one_build_runs_and_the_arguments_reach_the_demo() {
    let (output, said, errors) = started(CARGO, &["--flux", "5", "--help"]);
    assert!(output.status.success(), "{errors}");
    let build = "cargo build --workspace --bin anabranch --bin anabranch-demo --profile demo none";
    assert_eq!(said.lines().collect::<Vec<_>>(), [build, "demo --flux 5 --help port="], "{errors}");

    let (output, said, errors) = started(PATIENT_CARGO, &["--without-search"]);
    assert!(output.status.success(), "{errors}");
    let address =
        errors.lines().next().and_then(|line| line.strip_prefix("the live page is at http://127.0.0.1:"));
    let port = address.and_then(|address| address.split('/').next()).unwrap_or_else(|| panic!("{errors}"));
    let demo = format!("demo --without-search port={port}");
    assert_eq!(said.lines().collect::<Vec<_>>(), ["the fetch runs beside the build", &demo], "{errors}");
    assert!(errors.contains("note: ") && errors.contains("MariaDB"), "{errors}");

    let failing = format!("{PATIENT_CARGO}\nexit 101");
    let (output, said, errors) = started(&failing, &["--without-search"]);
    assert_eq!((output.status.code(), said.as_str()), (Some(1), "the fetch runs beside the build\n"));
    let (note, failure) = (errors.find("note: "), errors.find("cargo ended with exit status: 101"));
    assert!(note.is_some() && note < failure, "the fetch has ended before this program: {errors}");

    let (output, said, errors) = started("exit 101", &["--help"]);
    assert_eq!((output.status.code(), said.as_str()), (Some(1), ""), "no demo is started");
    assert!(errors.contains("cargo ended with exit status: 101"), "{errors}");
}
