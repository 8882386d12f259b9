//! The licence files in the sources of a crate, and those of the Rust standard library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{PackageError, Result, checkout, programs};

/// Beginnings of the names of such files, in lower case.
const BEGINNINGS: [&str; 6] = ["licence", "license", "copying", "copyright", "notice", "unlicense"];
/// Endings of source files, which may have such a name too.
const SOURCES: [&str; 8] = ["c", "h", "json", "py", "rs", "sh", "toml", "yml"];
/// Folders whose files are in no program.
const FOLDERS_PASSED: [&str; 8] =
    [".git", ".github", "benches", "docs", "examples", "fuzz", "target", "tests"];
/// Folders below the crate's: C libraries and copied modules have their licence there.
const DEPTH_MAX: usize = 4;
/// Notices of the standard library below the folder of a tool chain of rustup.
const STANDARD_LIBRARY: &str = "share/doc/rust/COPYRIGHT-library.html";

/// A licence or notice: its path below the crate's folder, and its text.
#[derive(Debug, PartialEq, Eq)]
pub struct Notice {
    pub path: String,
    pub text: String,
}

/// Returns all licence files below a crate's folder, in the order of their paths. `named` is the one in its manifest.
pub fn notices(folder: &Path, named: Option<&Path>) -> Result<Vec<Notice>> {
    let mut paths = Vec::new();
    walk(folder, 0, &mut paths)?;
    paths.extend(named.map(|named| folder.join(named)).filter(|path| path.is_file()));
    paths.sort();
    paths.dedup();
    let notice = |path: PathBuf| -> Result<Notice> {
        let bytes = programs::read(&path)?;
        let lines = String::from_utf8_lossy(&bytes).replace('\r', "");
        let text = lines.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
        let path = path.strip_prefix(folder).unwrap_or(&path).display().to_string();
        Ok(Notice { path, text: text.trim_matches('\n').to_owned() })
    };
    let found: Result<Vec<Notice>> = paths.into_iter().map(notice).collect();
    Ok(found?.into_iter().filter(|notice| !notice.text.is_empty()).collect())
}

/// Collects paths of licence files in a folder and those below it.
fn walk(folder: &Path, depth: usize, paths: &mut Vec<PathBuf>) -> Result<()> {
    let failed = |source| PackageError::File { action: "list", path: folder.to_path_buf(), source };
    let is_of_licences = depth > 0 && is_licence(folder);
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (path, kind) = (entry.path(), entry.file_type().map_err(failed)?);
        let name = entry.file_name().to_string_lossy().into_owned();
        if kind.is_dir() {
            if depth < DEPTH_MAX && !FOLDERS_PASSED.contains(&name.as_str()) {
                walk(&path, depth + 1, paths)?;
            }
        } else if is_licence(&path) || (is_of_licences && !is_source(&path)) {
            paths.push(path);
        }
    }
    Ok(())
}

/// Returns whether a path has the name of a licence file, such as `LICENSE-MIT`, or of a folder of them.
fn is_licence(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    BEGINNINGS.iter().any(|beginning| name.starts_with(beginning)) && !is_source(path)
}

fn is_source(path: &Path) -> bool {
    let ending = path.extension().unwrap_or_default().to_string_lossy();
    SOURCES.contains(&&*ending)
}

/// Returns the notices of the standard library, a page of HTML, or `None` for a tool chain that came without them.
pub fn standard_library() -> Option<Vec<u8>> {
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    let folder = programs::output(rustc.args(["--print", "sysroot"]).current_dir(checkout())).ok()?;
    let file = Path::new(String::from_utf8(folder).ok()?.trim()).join(STANDARD_LIBRARY);
    let notices = fs::read(&file).ok();
    if notices.is_none() {
        eprintln!(
            "note: {} is missing, so the package has no notices of the standard library",
            file.display()
        );
    }
    notices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_of_copied_modules_are_found_and_sources_and_tests_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let files = [
            ("Cargo.toml", "license = \"MIT\""),
            ("LICENSE-MIT", "\r\nCopyright one  \r\nPermission\r\n"),
            ("LICENSES/Zlib.txt", "zlib"),
            ("src/license.rs", "fn license() {}"),
            ("src/license/mod.rs", "fn license() {}"),
            ("src/spin/LICENSE", "spin"),
            ("tests/LICENSE", "of a test"),
            ("COPYING", ""),
            ("legal.txt", "named by the manifest"),
        ];
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let found = notices(folder.path(), Some(Path::new("legal.txt"))).unwrap();
        let paths: Vec<&str> = found.iter().map(|notice| notice.path.as_str()).collect();
        assert_eq!(paths, ["LICENSE-MIT", "LICENSES/Zlib.txt", "legal.txt", "src/spin/LICENSE"]);
        assert_eq!(found[0].text, "Copyright one\nPermission");
    }
}
