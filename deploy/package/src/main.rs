//! `cargo package-deb`: builds the daemon for release, and packs it for Debian.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anabranch_package::{Order, PackageError, Result, pack};
use clap::Parser;

/// Folder of packages, below the root of the checkout.
const FOLDER: &str = "target/package";

/// Pack the daemon as a Debian package
///
/// Without --binary it is built for release, in a folder of its own, with neutral paths in place of those of this
/// machine. SOURCE_DATE_EPOCH, or else the time of the last commit, is the time of all files.
#[derive(Debug, Parser)]
#[command(name = "anabranch-package", bin_name = "cargo package-deb", version)]
struct Arguments {
    /// Built daemon; it must run on this machine
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Folder for the package; target/package of the checkout by default
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Compression of the package: xz, zstd, gzip or none
    #[arg(long, value_name = "TYPE", default_value = "xz")]
    compress: String,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(package) => {
            println!("{}", package.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root =
        root.canonicalize().map_err(|source| PackageError::File { action: "find", path: root, source })?;
    let folder = arguments.output.clone().unwrap_or_else(|| root.join(FOLDER));
    let binary = match &arguments.binary {
        Some(binary) => binary.clone(),
        None => build(&root)?,
    };
    pack(&Order {
        binary: &binary,
        folder: &folder,
        compression: &arguments.compress,
        epoch_seconds: epoch_seconds(&root),
    })
}

/// Builds the daemon for release and returns its path. Names of source files in messages of panics begin with neutral
/// folders. These flags would make cargo build everything again for other commands, so the build has its own folder.
fn build(root: &Path) -> Result<PathBuf> {
    let target = root.join(FOLDER).join("build");
    let mut flags = vec![format!("--remap-path-prefix={}=/anabranch", root.display())];
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")));
    flags.extend(home.map(|home| format!("--remap-path-prefix={}=/cargo", home.display())));

    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = Command::new(&program);
    // Features are those of the whole workspace, as in the aliases: the tests run that binary.
    cargo.args(["build", "--release", "--locked", "--workspace", "--bin", "anabranch"]);
    cargo.arg("--target-dir").arg(&target).current_dir(root).stdin(Stdio::null());
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    let program = program.to_string_lossy().into_owned();
    match cargo.status() {
        Ok(status) if status.success() => Ok(target.join("release/anabranch")),
        Ok(status) => Err(PackageError::ProgramFailed {
            program,
            status: status.to_string(),
            output: "its messages are above".to_owned(),
        }),
        Err(source) => Err(PackageError::ProgramNotRun { program, source }),
    }
}

/// Returns the time of all files: that of the environment, or else of the last commit, or else 0.
fn epoch_seconds(root: &Path) -> u64 {
    let named = std::env::var("SOURCE_DATE_EPOCH").ok();
    let committed = || {
        let log = Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root).output().ok()?;
        String::from_utf8(log.stdout).ok()
    };
    named.or_else(committed).and_then(|seconds| seconds.trim().parse().ok()).unwrap_or_default()
}
