//! Debian packages unpacked into a folder, without root and without touching the system's package state.
//!
//! apt is given an empty status file and private state and cache folders: it then resolves and downloads the whole
//! closure of dependencies from the system's configured sources, with their signatures checked, and `dpkg-deb -x`
//! unpacks it. No package script runs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::run;
use crate::error::{FileContext, Result, StackError};
use crate::layout::{make_folder, remove_folder};

/// Unpacks packages and their dependencies below `<folder>/root`.
pub(super) fn unpack(folder: &Path, what: &str, packages: &[&str]) -> Result<()> {
    let help = format!(
        "install {what} yourself so that it is on PATH, on Debian and Ubuntu: apt-get install --no-install-recommends {}",
        packages.join(" ")
    );
    let state = folder.join("apt-state");
    let cache = folder.join("apt-cache");
    let root = folder.join("root");
    for needed in [state.join("lists/partial"), cache.join("archives/partial"), root.clone()] {
        make_folder(&needed)?;
    }
    let status = folder.join("apt-status");
    fs::write(&status, "").file("write", &status)?;
    let apt_get = || {
        let mut command = Command::new("apt-get");
        for option in [
            format!("Dir::State={}", state.display()),
            format!("Dir::State::status={}", status.display()),
            format!("Dir::Cache={}", cache.display()),
            "Debug::NoLocking=1".to_owned(),
            "APT::Sandbox::User=".to_owned(),
        ] {
            command.arg("-o").arg(option);
        }
        command.arg("-qq").env("TMPDIR", folder.join("tmp")).env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    run(apt_get().arg("update"), &help)?;
    run(
        apt_get().args(["--download-only", "--no-install-recommends", "-y", "install"]).args(packages),
        &help,
    )?;

    for package in files(&cache.join("archives"))? {
        let name = package.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // The system's C library must stay the only one: a second one of another patch level crashes programs.
        if name.ends_with(".deb") && !name.starts_with("libc6_") {
            run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&root), &help)?;
        }
    }
    point_links_into(&root, &root)?;
    remove_folder(&cache)?;
    remove_folder(&state)
}

/// Makes links to places of the system (`/etc/maven`) relative links to the same places below the unpacked root, where
/// they are; the root is moved later.
fn point_links_into(root: &Path, folder: &Path) -> Result<()> {
    for file in files(folder)? {
        if file.is_symlink() {
            let target = fs::read_link(&file).file("read the link", &file)?;
            let Ok(inside) = target.strip_prefix("/") else { continue };
            if root.join(inside).symlink_metadata().is_err() {
                continue;
            }
            let depth = folder.strip_prefix(root).map_or(0, |below| below.components().count());
            let up: PathBuf = std::iter::repeat_n("..", depth).collect();
            fs::remove_file(&file).file("remove", &file)?;
            symlink(up.join(inside), &file).file("make the link", &file)?;
        } else if file.is_dir() {
            point_links_into(root, &file)?;
        }
    }
    Ok(())
}

/// The certificates to trust, in one file: the user's choice, else the system's, else those of the unpacked package
/// `ca-certificates`, whose script would have joined them.
pub(super) fn certificate_bundle(root: &Path) -> Result<String> {
    const SYSTEM: &str = "/etc/ssl/certs/ca-certificates.crt";
    for variable in ["REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"] {
        if let Ok(file) = std::env::var(variable) {
            return Ok(file);
        }
    }
    if Path::new(SYSTEM).is_file() {
        return Ok(SYSTEM.to_owned());
    }
    let bundle = root.join("ca-certificates.crt");
    let mut joined = String::new();
    for file in files(&root.join("usr/share/ca-certificates/mozilla"))? {
        joined.push_str(&fs::read_to_string(&file).file("read", &file)?);
    }
    fs::write(&bundle, joined).file("write", &bundle)?;
    Ok(bundle.display().to_string())
}

/// `LD_LIBRARY_PATH` of programs below an unpacked root.
pub(super) fn library_path(root: &Path) -> Result<String> {
    let mut folders = Vec::new();
    for parent in [root.join("usr/lib"), root.join("lib")] {
        if !parent.is_dir() {
            continue;
        }
        for folder in files(&parent)? {
            // Multiarch folders such as x86_64-linux-gnu.
            if folder.is_dir() && folder.to_string_lossy().ends_with("-linux-gnu") {
                folders.push(folder.display().to_string());
            }
        }
    }
    if folders.is_empty() {
        return Err(StackError::ProgramMissing {
            what: "the unpacked programs".to_owned(),
            reason: format!("{} holds no libraries", root.display()),
            help: "remove the folder stack-programs below the target folder and try again".to_owned(),
        });
    }
    Ok(folders.join(":"))
}

/// The entries of a folder, sorted.
pub(super) fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).file("read the folder", folder)? {
        found.push(entry.file("read the folder", folder)?.path());
    }
    found.sort();
    Ok(found)
}
