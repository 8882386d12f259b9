//! Debian packages, unpacked into a folder without root and without a change of the system's package state.
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

/// Debian's own keys. If the file is missing, apt uses the keys that it trusts for all sources.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Unpacks packages and their dependencies below `<folder>/root`.
pub(super) fn unpack(folder: &Path, what: &str, packages: &[&str]) -> Result<()> {
    unpack_with(folder, what, packages, &[])
}

/// Unpacks as [`unpack`] does, and the packages of `alone` without their dependencies.
pub(super) fn unpack_with(folder: &Path, what: &str, packages: &[&str], alone: &[&str]) -> Result<()> {
    let help = format!(
        "install {what} yourself so that it is on PATH, on Debian and Ubuntu: apt-get install --no-install-recommends {}",
        [packages, alone].concat().join(" ")
    );
    let apt = PrivateApt::new(folder, &help)?;
    // The system's C library must stay the only one: a second one of another patch level crashes programs.
    apt.unpack((packages, alone), |file| !file.starts_with("libc6_"))
}

/// Unpacks packages of another Debian release with its C library, whose loader must then run these programs.
pub(super) fn unpack_release(
    folder: &Path,
    release: &str,
    what: &str,
    packages: &[&str],
    help: &str,
) -> Result<()> {
    let mut apt = PrivateApt::new(folder, help)?;
    let mirror = apt.debian_mirror(what)?;
    apt.use_release_of(&mirror, release)?;
    apt.unpack((packages, &[]), |_| true)
}

/// An apt that keeps its state and downloads below a folder.
struct PrivateApt<'a> {
    folder: &'a Path,
    help: &'a str,
    options: Vec<String>,
}

impl<'a> PrivateApt<'a> {
    fn new(folder: &'a Path, help: &'a str) -> Result<Self> {
        let apt = Self { folder, help, options: Vec::new() };
        for needed in [apt.state().join("lists/partial"), apt.archives().join("partial")] {
            make_folder(&needed)?;
        }
        let status = folder.join("apt-status");
        fs::write(&status, "").file("write", &status)?;
        let options = vec![
            format!("Dir::State={}", apt.state().display()),
            format!("Dir::State::status={}", status.display()),
            format!("Dir::Cache={}", apt.cache().display()),
            "Debug::NoLocking=1".to_owned(),
            "APT::Sandbox::User=".to_owned(),
        ];
        Ok(Self { options, ..apt })
    }

    fn state(&self) -> PathBuf {
        self.folder.join("apt-state")
    }

    fn cache(&self) -> PathBuf {
        self.folder.join("apt-cache")
    }

    fn archives(&self) -> PathBuf {
        self.cache().join("archives")
    }

    fn get(&self) -> Command {
        let mut command = Command::new("apt-get");
        for option in &self.options {
            command.arg("-o").arg(option);
        }
        command.arg("-qq").env("TMPDIR", self.folder.join("tmp")).env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    /// Returns the mirror of Debian that the system's own sources name.
    fn debian_mirror(&self, what: &str) -> Result<String> {
        let mut found = self.debian_mirrors(Command::new("apt-get"))?;
        if found.is_empty() {
            // A fresh container knows only the addresses of its sources.
            run(self.get().arg("update"), self.help)?;
            found = self.debian_mirrors(self.get())?;
        }
        found.lines().next().map(str::to_owned).ok_or_else(|| StackError::ProgramMissing {
            what: what.to_owned(),
            reason: "none of apt's sources is a mirror of Debian".to_owned(),
            help: self.help.to_owned(),
        })
    }

    /// Returns the addresses of Debian's own sources, one a line; its security updates have another label.
    fn debian_mirrors(&self, mut apt_get: Command) -> Result<String> {
        apt_get.args(["indextargets", "--format", "$(REPO_URI)"]);
        apt_get.args(["Created-By: Packages", "Origin: Debian", "Label: Debian", "Component: main"]);
        run(&mut apt_get, self.help)
    }

    /// Makes apt know only this release from here on.
    fn use_release_of(&mut self, mirror: &str, release: &str) -> Result<()> {
        let keys =
            if Path::new(KEYRING).is_file() { format!("[signed-by={KEYRING}] ") } else { String::new() };
        let list = self.folder.join("tmp/release.list");
        fs::write(&list, format!("deb {keys}{mirror} {release} main\n")).file("write", &list)?;
        self.options.extend([
            format!("Dir::Etc::sourcelist={}", list.display()),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            // The system's preferences concern its own sources.
            "Dir::Etc::preferences=/dev/null".to_owned(),
            "Dir::Etc::preferencesparts=/dev/null".to_owned(),
            "APT::Default-Release=".to_owned(),
            // A mirror may stop being updated, and unstable is signed for a week. The signature is checked.
            "Acquire::Check-Valid-Until=false".to_owned(),
        ]);
        Ok(())
    }

    /// Unpacks those packages of the closure, and of `alone`, whose file names `is_wanted` accepts.
    fn unpack(&self, (packages, alone): (&[&str], &[&str]), is_wanted: impl Fn(&str) -> bool) -> Result<()> {
        let root = self.folder.join("root");
        make_folder(&root)?;
        run(self.get().arg("update"), self.help)?;
        let mut install = self.get();
        install.args(["--download-only", "--no-install-recommends", "-y", "install"]).args(packages);
        run(&mut install, self.help)?;
        if !alone.is_empty() {
            let mut download = self.get();
            download.current_dir(self.archives()).arg("download").args(alone);
            run(&mut download, self.help)?;
        }
        for package in files(&self.archives())? {
            let name = package.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.ends_with(".deb") && is_wanted(&name) {
                run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&root), self.help)?;
            }
        }
        point_links_into(&root, &root)?;
        remove_folder(&self.cache())?;
        remove_folder(&self.state())
    }
}

/// Makes links to paths of the system (`/etc/maven`) relative links to the same paths below the unpacked root, if they
/// exist there; the root is moved later.
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

/// Returns one file with the certificates to trust: the user's choice, or the system's, or those of the unpacked
/// package `ca-certificates`, joined as its script would have done.
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

/// Returns `LD_LIBRARY_PATH` for programs below an unpacked root.
pub(super) fn library_path(root: &Path) -> Result<String> {
    let mut folders = Vec::new();
    for parent in [root.join("usr/lib"), root.join("lib")] {
        if !parent.is_dir() {
            continue;
        }
        for folder in files(&parent)? {
            // These are multiarch folders such as x86_64-linux-gnu.
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

/// Returns the entries of a folder, sorted.
pub(super) fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).file("read the folder", folder)? {
        found.push(entry.file("read the folder", folder)?.path());
    }
    found.sort();
    Ok(found)
}
