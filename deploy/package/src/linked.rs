//! The needs of a binary: its machine, and the packages of the shared libraries that it is linked with.

use std::collections::BTreeSet;
use std::path::Path;

use object::elf::{EM_AARCH64, EM_X86_64};
use object::read::elf::{ElfFile64, FileHeader};
use object::{Endianness, Object};

use crate::{PackageError, Result};

/// Fields of the package that follow from the binary.
#[derive(Debug, PartialEq, Eq)]
pub struct Linked {
    /// Debian's name of the machine.
    pub architecture: &'static str,
    /// Rust's name of the machine.
    pub target: &'static str,
    /// The field `Depends`.
    pub depends: String,
}

/// Version of glibc, such as (2, 34).
type Glibc = (u32, u32);

impl Linked {
    /// Reads the headers of a binary; `path` is for errors. A library that no known package has is an error.
    pub fn of(path: &Path, bytes: &[u8]) -> Result<Self> {
        let unfit = |reason: String| PackageError::BinaryUnfit { path: path.to_path_buf(), reason };
        let broken = |error: object::Error| unfit(error.to_string());
        let file = ElfFile64::<Endianness>::parse(bytes).map_err(broken)?;
        let (architecture, target) = match file.elf_header().e_machine(file.endian()) {
            EM_X86_64 => ("amd64", "x86_64-unknown-linux-gnu"),
            EM_AARCH64 => ("arm64", "aarch64-unknown-linux-gnu"),
            _ => return Err(unfit("it is neither for x86-64 nor for ARM64".to_owned())),
        };
        let mut packages = BTreeSet::new();
        for library in file.import_libraries().map_err(broken)? {
            let name = String::from_utf8_lossy(library.map_err(broken)?.name()).into_owned();
            let package = package_of(&name);
            packages.insert(package.ok_or_else(|| unfit(format!("no package is known for {name}")))?);
        }
        let newest = newest_glibc(&file, bytes).map_err(broken)?;
        let depends: Vec<String> = packages
            .into_iter()
            .map(|package| match (package, newest) {
                ("libc6", Some((major, minor))) => format!("libc6 (>= {major}.{minor})"),
                (package, _) => package.to_owned(),
            })
            .collect();
        Ok(Self { architecture, target, depends: depends.join(", ") })
    }
}

/// Returns the package of a library of Debian 12 or later; a Rust program needs few.
fn package_of(library: &str) -> Option<&'static str> {
    match library {
        "libc.so.6" | "libm.so.6" | "libdl.so.2" | "libpthread.so.0" | "librt.so.1" => Some("libc6"),
        loader if loader.starts_with("ld-linux-") => Some("libc6"),
        "libgcc_s.so.1" => Some("libgcc-s1"),
        _ => None,
    }
}

/// Returns the newest version of glibc that a symbol of the binary asks for.
fn newest_glibc<'data>(
    file: &ElfFile64<'data, Endianness>,
    bytes: &'data [u8],
) -> object::Result<Option<Glibc>> {
    let (sections, endian) = (file.elf_section_table(), file.endian());
    let Some((mut libraries, strings)) = sections.gnu_verneed(endian, bytes)? else { return Ok(None) };
    let strings = sections.strings(endian, bytes, strings)?;
    let mut newest: Option<Glibc> = None;
    while let Some((_, mut versions)) = libraries.next()? {
        while let Some(version) = versions.next()? {
            newest = newest.max(glibc(version.name(endian, strings)?));
        }
    }
    Ok(newest)
}

/// Reads a version such as `GLIBC_2.34` or `GLIBC_2.2.5`; `None` for those of other libraries.
fn glibc(version: &[u8]) -> Option<Glibc> {
    match std::str::from_utf8(version).ok()?.strip_prefix("GLIBC_")? {
        // Relocations in short form came with this version.
        "ABI_DT_RELR" => Some((2, 36)),
        number => {
            let mut parts = number.split('.');
            Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_glibc_are_ordered_as_numbers() {
        assert_eq!(glibc(b"GLIBC_2.2.5"), Some((2, 2)));
        assert!(glibc(b"GLIBC_2.34") > glibc(b"GLIBC_2.4"));
        assert_eq!(glibc(b"GLIBC_ABI_DT_RELR"), Some((2, 36)));
        for other in ["GLIBC_PRIVATE", "GCC_3.0", "2.34"] {
            assert_eq!(glibc(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn this_very_program_needs_libc() {
        let path = std::env::current_exe().unwrap();
        let linked = Linked::of(&path, &std::fs::read(&path).unwrap()).unwrap();
        let expected = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
        assert_eq!(linked.architecture, expected);
        assert!(linked.depends.starts_with("libc6 (>= 2."), "{linked:?}");
    }

    #[test]
    fn a_file_that_is_no_program_is_refused() {
        let refused = Linked::of(Path::new("notes.txt"), b"no program").unwrap_err().to_string();
        assert!(refused.starts_with("notes.txt cannot be packed: "), "{refused}");
        assert_eq!(package_of("libssl.so.3"), None);
    }
}
