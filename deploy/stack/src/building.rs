//! Cargo as a user would run it, from a program that cargo itself runs.

use std::path::Path;
use std::process::Command;

/// Folder of programs that cargo builds with the profile of the demo; see `Cargo.toml` of the workspace.
const DEMO: &str = "demo";
const RELEASE: &str = "release";

/// Returns a cargo command as a user would run it. Cargo sets the variable `CARGO` for programs that it runs; without
/// it, `cargo` is taken from PATH.
///
/// The variables that cargo sets for this program are removed. Build scripts that read them (ring's) would see a
/// change, and cargo would build everything after them again, now and at the next start.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"]
            .iter()
            .any(|own| text.starts_with(own))
        {
            command.env_remove(&name);
        }
    }
    command
}

/// Returns the command that builds binaries of the workspace with the profile of the running program.
///
/// Features are those of the whole workspace, as in the aliases and the tests: no dependency is built twice.
pub fn cargo_build(binaries: &[&str]) -> Command {
    let mut command = cargo();
    command.args(["build", "--workspace"]).args(binaries.iter().flat_map(|name| ["--bin", *name]));
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    let program = std::env::current_exe().unwrap_or_default();
    command.args(profile_of(&program, cfg!(debug_assertions)));
    command
}

/// Returns the arguments for the profile with which a program was built. Cargo puts programs into a folder of the
/// profile's name, and tests into `deps` below it; a program that was moved says no more than whether it is optimised.
fn profile_of(program: &Path, has_debug_assertions: bool) -> &'static [&'static str] {
    let mut folders = program.ancestors().skip(1).filter_map(|folder| folder.file_name()?.to_str());
    match folders.find(|name| *name != "deps") {
        Some(DEMO) => &["--profile", DEMO],
        Some(RELEASE) => &["--release"],
        _ if has_debug_assertions => &[],
        _ => &["--release"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_of_a_program_is_used_for_further_binaries() {
        let profile = |path: &str, is_debug| profile_of(Path::new(path), is_debug);
        assert_eq!(profile("/checkout/target/demo/anabranch-demo", true), ["--profile", "demo"]);
        assert_eq!(profile("/checkout/target/release/deps/bench-0123", false), ["--release"]);
        assert!(profile("/demo/target/debug/deps/command-0123", true).is_empty());
        assert_eq!(profile("/usr/local/bin/anabranch-demo", false), ["--release"]);
    }

    #[test]
    fn one_build_makes_all_binaries_of_the_workspace() {
        let command = cargo_build(&["anabranch", "anabranch-demo"]);
        let arguments: Vec<&str> = command.get_args().filter_map(|argument| argument.to_str()).collect();
        let expected = ["build", "--workspace", "--bin", "anabranch", "--bin", "anabranch-demo"];
        assert_eq!(arguments[..expected.len()], expected);
    }
}
