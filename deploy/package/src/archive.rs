//! Writes the tree of the package with its control files, and packs it by `dpkg-deb`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::contents::PackedFile;
use crate::linked::Linked;
use crate::{Order, PackageError, Result, VERSION, programs};

/// Folders that the package has beside those of its files: the configuration's, in which nothing is installed, because
/// no configuration works before it names an operator's own servers.
const FOLDERS: [&str; 1] = ["etc/anabranch"];
/// Scripts that `dpkg` runs. It computes checksums of files by itself, so there is no `md5sums`.
const SCRIPTS: [(&str, &str); 3] = [
    ("postinst", include_str!("../scripts/postinst")),
    ("postrm", include_str!("../scripts/postrm")),
    ("prerm", include_str!("../scripts/prerm")),
];

/// Writes the package into the folder of the order and returns its path.
pub fn write(order: &Order<'_>, linked: &Linked, files: &[PackedFile], scratch: &Path) -> Result<PathBuf> {
    let root = scratch.join("root");
    make_folder(&root)?;
    for folder in FOLDERS {
        make_folders(&root, folder)?;
    }
    for file in files {
        write_file(&root, &file.path, file.mode, &file.content)?;
    }
    for (name, script) in SCRIPTS {
        write_file(&root, &format!("DEBIAN/{name}"), 0o755, script.as_bytes())?;
    }
    write_file(&root, "DEBIAN/control", 0o644, control(linked, files).as_bytes())?;

    fs::create_dir_all(order.folder).map_err(|source| PackageError::File {
        action: "create",
        path: order.folder.to_path_buf(),
        source,
    })?;
    let package =
        order.folder.join(format!("anabranch_{}_{}.deb", debian_version(VERSION), linked.architecture));
    let mut pack = Command::new("dpkg-deb");
    // Owners are root, whichever account packs. Times of files are at most the time of the order, and paths are sorted.
    pack.args(["--root-owner-group", &format!("-Z{}", order.compression), "--build"]);
    pack.arg(&root).arg(&package).env("SOURCE_DATE_EPOCH", order.epoch_seconds.to_string());
    programs::output(&mut pack)?;
    Ok(package)
}

/// Returns the control file.
fn control(linked: &Linked, files: &[PackedFile]) -> String {
    let bytes: usize = files.iter().map(|file| file.content.len()).sum();
    format!(
        "Package: anabranch\n\
         Version: {version}\n\
         Architecture: {architecture}\n\
         Maintainer: the authors of Anabranch\n\
         Installed-Size: {kibibytes}\n\
         Depends: {depends}\n\
         Recommends: ca-certificates\n\
         Section: database\n\
         Priority: optional\n\
         Description: keeps derived stores current from the binlog\n\
         \x20Anabranch reads the binlogs of sharded MySQL and MariaDB servers, keeps derived\n\
         \x20tables, caches and search indexes current, and proves each night that they\n\
         \x20equal their sources.\n",
        version = debian_version(VERSION),
        architecture = linked.architecture,
        kibibytes = bytes.div_ceil(1024),
        depends = linked.depends,
    )
}

/// Returns a version as Debian orders it: `1.0.0~rc.1` comes before `1.0.0`.
fn debian_version(version: &str) -> String {
    version.replacen('-', "~", 1)
}

fn write_file(root: &Path, path: &str, mode: u32, content: &[u8]) -> Result<()> {
    if let Some((folder, _)) = path.rsplit_once('/') {
        make_folders(root, folder)?;
    }
    let path = root.join(path);
    fs::write(&path, content)
        .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(mode)))
        .map_err(|source| PackageError::File { action: "write", path, source })
}

/// Makes a folder below the root, and those above it. The umask of the process changes no rights.
fn make_folders(root: &Path, folder: &str) -> Result<()> {
    let mut path = root.to_path_buf();
    for name in folder.split('/') {
        path.push(name);
        if !path.is_dir() {
            make_folder(&path)?;
        }
    }
    Ok(())
}

fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir(path)
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(0o755)))
        .map_err(|source| PackageError::File { action: "create", path: path.to_path_buf(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_candidate_comes_before_its_release() {
        assert_eq!(debian_version("1.2.3-rc.1"), "1.2.3~rc.1");
        assert_eq!(debian_version("1.2.3"), "1.2.3");
    }

    #[test]
    fn the_control_file_begins_each_line_with_a_field_or_a_space() {
        let depends = "libc6 (>= 2.34)".to_owned();
        let linked = Linked { architecture: "amd64", target: "x86_64-unknown-linux-gnu", depends };
        let file = PackedFile { path: "usr/bin/anabranch".to_owned(), mode: 0o755, content: vec![0; 1025] };
        let text = control(&linked, &[file]);
        assert!(text.contains("\nInstalled-Size: 2\nDepends: libc6 (>= 2.34)\n"), "{text}");
        assert!(text.lines().all(|line| line.starts_with(' ') || line.contains(": ")), "{text}");
        assert!(text.ends_with(".\n"));
    }
}
