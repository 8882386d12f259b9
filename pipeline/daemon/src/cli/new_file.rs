//! Files that commands write, never over an existing one.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anabranch_pipeline::error::{Code, Fault};

/// Creates a file with these rights, less the umask of the process; an existing file is a fault.
pub(super) fn create(path: &Path, mode: u32) -> Result<File, Fault> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    opened.map_err(|error| unwritable(path, error))
}

pub(super) fn unwritable(path: &Path, error: io::Error) -> Fault {
    Fault::new(Code::FileUnwritable, format!("file {}", path.display()), "it cannot be written")
        .needs("a place for a new file; one that is there is never written over")
        .caused_by(error)
}
