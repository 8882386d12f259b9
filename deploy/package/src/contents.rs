//! The files of the package, in memory: path, rights and content of each.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::{Compression, GzBuilder};

use crate::{PackageError, Result, checkout, crates, licences, programs, third_party};

/// A file of the package.
#[derive(Debug)]
pub struct PackedFile {
    /// Path below the root, without a leading `/`.
    pub path: String,
    pub mode: u32,
    pub content: Vec<u8>,
}

/// Documents and examples: files or folders of the checkout, and their path in the package.
const COPIED: [(&str, &str); 12] = [
    ("SECURITY.md", "usr/share/doc/anabranch/SECURITY.md"),
    ("deploy/RUNBOOK.md", "usr/share/doc/anabranch/RUNBOOK.md"),
    ("deploy/anabranch.example.toml", "usr/share/doc/anabranch/examples/anabranch.example.toml"),
    ("deploy/flux.example.toml", "usr/share/doc/anabranch/examples/flux.example.toml"),
    ("deploy/grafana", "usr/share/doc/anabranch/examples/grafana"),
    ("deploy/grants", "usr/share/doc/anabranch/examples/grants"),
    ("deploy/plans", "usr/share/doc/anabranch/examples/plans"),
    ("deploy/prometheus/rules.yml", "usr/share/doc/anabranch/examples/prometheus/rules.yml"),
    ("deploy/serial-codes.example.toml", "usr/share/doc/anabranch/examples/serial-codes.example.toml"),
    ("docs/connect.md", "usr/share/doc/anabranch/connect.md"),
    ("docs/limits.md", "usr/share/doc/anabranch/limits.md"),
    ("docs/operation.md", "usr/share/doc/anabranch/operation.md"),
];
/// Shells, and the path at which each looks for the script.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/anabranch"),
    ("fish", "usr/share/fish/vendor_completions.d/anabranch.fish"),
    ("zsh", "usr/share/zsh/vendor-completions/_anabranch"),
];
/// Path of the program in the unit of the checkout, which is for an installation by hand.
const PROGRAM_BY_HAND: &str = "ExecStart=/usr/local/bin/anabranch ";
const PROGRAM_PACKED: &str = "ExecStart=/usr/bin/anabranch ";
const UNIT: &str = "deploy/systemd/anabranch.service";
const COPYRIGHT: &str = "\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: anabranch
Comment: The program is linked with crates that have licences of their own.
 /usr/share/doc/anabranch/THIRD-PARTY lists these crates and has the texts.

Files: *
Copyright: the authors of Anabranch
License: Apache-2.0
 On Debian systems the whole text is in /usr/share/common-licenses/Apache-2.0.
";

/// Returns all files in the order of their paths. `binary` is run; `program` is its stripped content for the machine
/// `target`.
pub fn files(binary: &Path, program: Vec<u8>, target: &str, scratch: &Path) -> Result<Vec<PackedFile>> {
    let mut files = vec![PackedFile { path: "usr/bin/anabranch".to_owned(), mode: 0o755, content: program }];
    let mut add = |path: String, content: Vec<u8>| files.push(PackedFile { path, mode: 0o644, content });
    add("usr/lib/systemd/system/anabranch.service".to_owned(), unit()?);
    add("usr/share/doc/anabranch/copyright".to_owned(), COPYRIGHT.as_bytes().to_vec());
    let own_licence = programs::read(&checkout().join("LICENSE"))?;
    let own_licence = String::from_utf8_lossy(&own_licence);
    let third_party = third_party::file(&crates::linked(target)?, &own_licence)?;
    add("usr/share/doc/anabranch/THIRD-PARTY".to_owned(), third_party.into_bytes());
    if let Some(notices) = licences::standard_library() {
        add("usr/share/doc/anabranch/THIRD-PARTY-rust.html.gz".to_owned(), gzip(&notices));
    }
    let changelog = programs::read(&checkout().join("CHANGELOG.md"))?;
    add("usr/share/doc/anabranch/changelog.gz".to_owned(), gzip(&changelog));
    for (from, to) in COPIED {
        let from = checkout().join(from);
        match from.is_dir() {
            true => {
                for (name, path) in sorted(&from)? {
                    add(format!("{to}/{name}"), programs::read(&path)?);
                }
            }
            false => add(to.to_owned(), programs::read(&from)?),
        }
    }
    for (shell, path) in COMPLETIONS {
        let script = programs::output(programs::command(binary).args(["completions", shell]))?;
        add(path.to_owned(), script);
    }
    let pages = scratch.join("pages");
    programs::output(programs::command(binary).arg("manual").arg(&pages))?;
    for (name, path) in sorted(&pages)? {
        // The name ends with the number of its section.
        let section = name.rsplit('.').next().unwrap_or_default();
        add(format!("usr/share/man/man{section}/{name}.gz"), gzip(&programs::read(&path)?));
    }
    files.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(files)
}

/// Returns the unit with the program's path in the package.
fn unit() -> Result<Vec<u8>> {
    let text = programs::read(&checkout().join(UNIT))?;
    let text = String::from_utf8_lossy(&text).into_owned();
    match text.contains(PROGRAM_BY_HAND) {
        true => Ok(text.replace(PROGRAM_BY_HAND, PROGRAM_PACKED).into_bytes()),
        false => Err(PackageError::UnitWithout { line: PROGRAM_BY_HAND.to_owned() }),
    }
}

/// Returns name and path of each file in a folder, in the order of their names.
fn sorted(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let failed = |source| PackageError::File { action: "list", path: folder.to_path_buf(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        files.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
    }
    files.sort();
    Ok(files)
}

/// Compresses without a name and a time, which would differ between builds.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzBuilder::new().write(Vec::new(), Compression::best());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("a Vec takes every write")
}
