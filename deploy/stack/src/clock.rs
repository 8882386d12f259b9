//! A wall clock that a test or a drill can set, for the programs that it starts with the variables of this clock.
//!
//! The variables have the loader put `libfaketime` before the C library. `libfaketime` reads a file whenever the
//! program asks for the time of day. The monotonic clock stays as it is, as when an operator sets the clock of a
//! machine. NATS asks the kernel and not the C library, so this clock does not reach it.

use std::path::{Path, PathBuf};

use crate::error::{FileContext, Result};
use crate::layout::write_private;
use crate::programs::Programs;

/// The offset of a program's wall clock from the machine's.
#[derive(Debug, Clone)]
pub struct Clock {
    file: PathBuf,
}

impl Clock {
    pub(crate) fn at(file: PathBuf) -> Self {
        Self { file }
    }

    /// Sets the clock to the machine's time plus `seconds`, which may be negative. The clock runs on from there.
    pub fn step_to(&self, seconds: i64) -> Result<()> {
        // The library may read the file at any moment, so a rename replaces the file as a whole.
        let draft = self.file.with_extension("draft");
        write_private(&draft, &format!("{seconds:+}\n"))?;
        std::fs::rename(&draft, &self.file).file("replace", &self.file)
    }

    /// Returns the environment variables that make a program use this clock.
    pub(crate) fn variables(&self, programs: &Programs) -> Result<Vec<(String, String)>> {
        if !self.file.is_file() {
            self.step_to(0)?;
        }
        remove_leftovers();
        let variables = [
            ("LD_PRELOAD", programs.faketime()?.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("NO_FAKE_STAT", "1".to_owned()),
        ];
        Ok(variables.map(|(name, value)| (name.to_owned(), value)).into())
    }
}

/// Removes the few bytes that the library leaves in shared memory after each killed program.
fn remove_leftovers() {
    let Ok(entries) = std::fs::read_dir("/dev/shm") else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = ["faketime_shm_", "sem.faketime_sem_"].iter().find_map(|prefix| name.strip_prefix(prefix));
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _removed_already = std::fs::remove_file(entry.path());
        }
    }
}
