//! Packs a built daemon as a Debian package: program, unit, examples, documents, completions, manual pages and the
//! licences of all crates in the program.
//!
//! Completions and manual pages come from the binary itself. The package is reproducible: the same binary, sources and
//! time make the same bytes. It does not build the daemon; the program beside this library does.

mod archive;
mod contents;
mod crates;
mod error;
mod licences;
mod linked;
mod programs;
mod third_party;

use std::path::{Path, PathBuf};

pub use self::error::{PackageError, Result};
use self::linked::Linked;

/// Version of the package: that of the workspace.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The order for one package.
#[derive(Debug, Clone, Copy)]
pub struct Order<'o> {
    /// The daemon, built for this machine. It is run, and a stripped copy of it is packed.
    pub binary: &'o Path,
    /// Folder in which the package is written.
    pub folder: &'o Path,
    /// Compression by `dpkg-deb`: `xz`, `zstd`, `gzip` or `none`.
    pub compression: &'o str,
    /// Time of every file in the package, in seconds since 1970.
    pub epoch_seconds: u64,
}

/// Packs the daemon; returns the path of the package.
pub fn pack(order: &Order<'_>) -> Result<PathBuf> {
    check_version(order.binary)?;
    let scratch = tempfile::tempdir().map_err(|source| PackageError::File {
        action: "create a folder in",
        path: std::env::temp_dir(),
        source,
    })?;
    let stripped = programs::strip(order.binary, scratch.path())?;
    let program = programs::read(&stripped)?;
    let linked = Linked::of(order.binary, &program)?;
    let files = contents::files(order.binary, program, linked.target, scratch.path())?;
    archive::write(order, &linked, &files, scratch.path())
}

/// Root of the checkout, from which documents and examples are taken.
fn checkout() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Refuses a binary of another version, such as an old build.
fn check_version(binary: &Path) -> Result<()> {
    let said = programs::output(programs::command(binary).arg("--version"))?;
    match String::from_utf8_lossy(&said).trim() {
        said if said == format!("anabranch {VERSION}") => Ok(()),
        said => Err(PackageError::BinaryUnfit {
            path: binary.to_path_buf(),
            reason: format!("it says `{said}`, and the package is anabranch {VERSION}; build it again"),
        }),
    }
}
