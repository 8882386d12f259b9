//! Temporary files for data of a binlog read that does not fit into memory, and the folder that holds them.
//!
//! A file never has a name and belongs to its owner alone. So a listing of the folder shows nothing, and a killed
//! process leaves nothing there. Bytes are written once and read once, so nothing is synced to the disk.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::metrics as names;
use metrics::{Gauge, gauge};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::sys::statvfs::statvfs;

/// Least free room without a warning. Rows of two small columns take some 24 bytes: it holds about 40 million.
const FREE_BYTES_MIN: u64 = 1 << 30;

/// Properties of a folder for temporary files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpillRoom {
    pub free_bytes: u64,
    /// The folder is a tmpfs, whose files take memory.
    pub is_memory: bool,
}

impl SpillRoom {
    /// Inspects the folder and makes a file in it, which vanishes at once. The fault names the configuration key.
    pub fn of(folder: &Path) -> Result<Self, Fault> {
        let refused = |found: &str, error: io::Error| {
            let found = format!("{} {found}", folder.display());
            Fault::new(Code::ConfigInvalid, "configuration key limits.spill_dir", found)
                .needs("a folder on a disk, in which the user of this process may create files")
                .caused_by(error)
        };
        let room = (|| Ok((statvfs(folder)?, statfs(folder)?)))();
        let (room, system) = room.map_err(|error: nix::Error| refused("cannot be read", error.into()))?;
        tempfile::tempfile_in(folder).map_err(|error| refused("takes no file", error))?;
        Ok(Self {
            free_bytes: room.blocks_available().saturating_mul(room.fragment_size()),
            is_memory: system.filesystem_type() == TMPFS_MAGIC,
        })
    }

    /// Returns what an operator should know of the folder although it is no fault, each in a sentence.
    pub fn warnings(self, folder: &Path) -> Vec<String> {
        let folder = folder.display();
        let memory = self.is_memory.then(|| {
            format!(
                "{folder} for temporary files is a tmpfs: large transactions and undecided XA branches take memory \
                 there, up to the limit of the service; needed: limits.spill_dir on a disk"
            )
        });
        let small = (self.free_bytes < FREE_BYTES_MIN).then(|| {
            format!(
                "{folder} for temporary files has {} free; needed: {}, so that a large transaction fits \
                 (limits.spill_dir names another folder)",
                megabytes(self.free_bytes),
                megabytes(FREE_BYTES_MIN)
            )
        });
        memory.into_iter().chain(small).collect()
    }

    /// Returns the free room as text.
    pub fn free(self) -> String {
        megabytes(self.free_bytes)
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// The folder to which the binlog reads of one source spill. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Spill(Arc<SpillTo>);

#[derive(Debug)]
struct SpillTo {
    folder: PathBuf,
    /// Bytes of all open files of the source in this process.
    bytes: Gauge,
}

impl Spill {
    pub fn new(folder: &Path, source: &str) -> Self {
        let bytes = gauge!(names::SOURCE_SPILLED, "source" => source.to_owned());
        // The series exists before anything is spilled.
        bytes.increment(0.0);
        Self::counted(folder, bytes)
    }

    pub fn counted(folder: &Path, bytes: Gauge) -> Self {
        Self(Arc::new(SpillTo { folder: folder.to_owned(), bytes }))
    }

    pub fn make_file(&self) -> io::Result<SpillFile> {
        let file = tempfile::tempfile_in(&self.0.folder)?;
        // A file that never had a name gets its mode from the process's umask.
        file.set_permissions(Permissions::from_mode(0o600))?;
        Ok(SpillFile { file, bytes: 0, spill: self.clone() })
    }

    /// Returns the folder and its free room, as faults name them.
    pub fn location(&self) -> String {
        let folder = self.0.folder.display();
        match statvfs(&self.0.folder) {
            Ok(room) => {
                let free = room.blocks_available().saturating_mul(room.fragment_size());
                format!("{folder}, which has {} free", megabytes(free))
            }
            Err(error) => format!("{folder}, which cannot be read ({})", error.desc()),
        }
    }
}

/// A temporary file without a name.
#[derive(Debug)]
pub(crate) struct SpillFile {
    file: File,
    /// Length of the file in bytes.
    bytes: u64,
    spill: Spill,
}

impl SpillFile {
    pub fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)?;
        let end = offset + bytes.len() as u64;
        if end > self.bytes {
            self.spill.0.bytes.increment((end - self.bytes) as f64);
            self.bytes = end;
        }
        Ok(())
    }

    /// Returns the folder and its free room, see [`Spill::place`].
    pub fn location(&self) -> String {
        self.spill.location()
    }

    pub fn read_at(&self, length: usize, offset: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }
}

impl Drop for SpillFile {
    fn drop(&mut self) {
        self.spill.0.bytes.decrement(self.bytes as f64);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::MetadataExt as _;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn a_file_lies_in_the_named_folder_without_a_name_and_is_its_owners() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = Arc::new(AtomicU64::new(0));
        let counted = || f64::from_bits(bytes.load(Ordering::SeqCst));
        let spill = Spill::counted(folder.path(), Gauge::from_arc(bytes.clone()));
        let (mut file, mut other) = (spill.make_file().unwrap(), spill.make_file().unwrap());
        let link = std::fs::read_link(format!("/proc/self/fd/{}", file.file.as_raw_fd())).unwrap();
        assert!(link.starts_with(folder.path().canonicalize().unwrap()), "{}", link.display());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nobody sees it");
        let metadata = file.file.metadata().unwrap();
        assert_eq!((metadata.nlink(), metadata.mode() & 0o777), (0, 0o600));

        file.write_at(b"abcdef", 0).unwrap();
        other.write_at(b"gh", 0).unwrap();
        // Bytes that a savepoint has undone are overwritten.
        file.write_at(b"xyz", 2).unwrap();
        assert_eq!(file.read_at(6, 0).unwrap(), b"abxyzf");
        assert_eq!(counted(), 8.0);
        drop(file);
        assert_eq!(counted(), 2.0);
        drop(other);
        assert_eq!(counted(), 0.0);
    }

    #[test]
    fn a_folder_that_takes_no_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        assert!(SpillRoom::of(folder.path()).unwrap().free_bytes > 0);
        // Not even root can make a file there.
        for path in [folder.path().join("none").as_path(), Path::new("/proc/self")] {
            let fault = SpillRoom::of(path).expect_err("no file can be made there").to_string();
            assert!(
                fault.contains("limits.spill_dir") && fault.contains(&path.display().to_string()),
                "{fault}"
            );
            let spill = Spill::counted(path, Gauge::noop());
            assert!(spill.make_file().is_err());
            assert!(spill.location().contains(&path.display().to_string()));
        }
    }

    #[test]
    fn memory_and_too_little_room_are_warned_of() {
        let folder = Path::new("/var/spill");
        let warnings = |free_bytes, is_memory| SpillRoom { free_bytes, is_memory }.warnings(folder);
        assert_eq!(warnings(FREE_BYTES_MIN, false), [""; 0]);
        let small = warnings(5 << 20, false);
        assert!(small[0].starts_with("/var/spill for temporary files has 5 MiB free"), "{small:?}");
        let memory = warnings(FREE_BYTES_MIN, true);
        assert!(memory[0].contains("is a tmpfs"), "{memory:?}");
    }
}
