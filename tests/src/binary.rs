//! The binary under test, built once a process with the profile of the tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::patience::blocking;

/// Where the binary `anabranch` lies. Nothing is built when it is fresh.
pub(crate) fn anabranch() -> PathBuf {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| blocking(build)).clone()
}

/// The whole workspace is named, so that dependencies have the features that `cargo test` has built them with: with
/// the daemon's package alone they would be built a second time.
fn build() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--workspace", "--bin", "anabranch"]);
    command.args(["--message-format", "json-render-diagnostics"]);
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    // What cargo tells the program that it runs is for that program: build scripts that look at it (ring's) would take
    // it for a change, and everything behind them would be built again, here and at the next start of the tests.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"]
            .iter()
            .any(|own| text.starts_with(own))
        {
            command.env_remove(&name);
        }
    }
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    let output = command.stderr(Stdio::inherit()).output().expect("cargo runs, as it has started the tests");
    assert!(output.status.success(), "the daemon does not build");
    let messages = String::from_utf8_lossy(&output.stdout);
    let executables = messages.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(PathBuf::from(message["executable"].as_str()?))
    });
    executables.last().expect("cargo names what it has built")
}
