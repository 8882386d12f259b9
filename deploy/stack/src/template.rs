//! Templates of data folders: a database's installer runs once, and each new server gets a copy of what it made.
//!
//! An installer works for one to ten seconds, and a copy takes a tenth of one. Accounts and passwords come with a
//! server's first start (`database.rs`), so a template holds nothing of any server. Its name is a hash of all that its
//! content depends on, so another version of a program or another size of the redo log makes another template.
//!
//! Templates stand beside the installed programs and are made as these are: under the lock of the checkout, in a fresh
//! folder that is renamed when it is complete. So no server ever gets a template that was cut off half-way.

use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};

use crate::error::{FileContext, Result};
use crate::layout::{make_folder, write_private};
use crate::process::{Guard, Launch, run_to_end};
use crate::programs::Programs;

/// MariaDB needs 0.6 s on an idle machine and MySQL 3 s; on a busy one with two cores they needed 10 s and 24 s.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(120);

/// A copy leaves out blocks of zeros: nine tenths of a new server's files are empty space.
const BLOCK_BYTES: usize = 64 * 1024;
static EMPTY_BLOCK: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// The identity of a MySQL server, which makes a new one when the file is missing.
const IDENTITY_FILE: &str = "auto.cnf";

/// The way to make the data of a new server.
pub(crate) struct DataInstaller<'a> {
    /// The kind of server, for a line of progress.
    pub(crate) what: &'static str,
    /// The server's program file.
    pub(crate) server: &'a Path,
    /// Returns the command that makes the data in `db` below a folder. It may use `tmp` there.
    pub(crate) launch: &'a dyn Fn(&Path) -> Launch,
    /// Content of the command's [`input_file`].
    pub(crate) input: Option<String>,
}

/// Returns the file that a command of an installer may read, below the folder of its run.
pub(crate) fn input_file(folder: &Path) -> PathBuf {
    folder.join("input.sql")
}

impl DataInstaller<'_> {
    /// Makes the data folder of a server as a copy of the template, which this makes first if it does not exist yet.
    pub(crate) fn install(
        &self,
        programs: &Programs,
        data: &Path,
        guard: &Guard,
        output: &Path,
    ) -> Result<()> {
        copy_folder(&self.template(programs, guard, output)?, data)
    }

    fn template(&self, programs: &Programs, guard: &Guard, output: &Path) -> Result<PathBuf> {
        make_folder(programs.folder())?;
        let name = self.template_name(programs.folder())?;
        let what = format!("the data of a new {} server", self.what);
        let folder = programs.install(&what, &name, |fresh| {
            // No other process uses this path. So an installer that outlives its killed owner writes into no template.
            let run = fresh.join("tmp").join(std::process::id().to_string());
            let made = run.join("db");
            make_folder(&made)?;
            make_folder(&run.join("tmp"))?;
            if let Some(input) = &self.input {
                write_private(&input_file(&run), input)?;
            }
            run_to_end(&(self.launch)(&run), guard, output, INSTALL_TIMEOUT)?;
            let template = fresh.join("db");
            copy_folder(&made, &template)?;
            sync_folder(&template)
        })?;
        Ok(folder.join("db"))
    }

    /// Returns a name that no installer of another result has.
    fn template_name(&self, folder: &Path) -> Result<String> {
        let server = fs::metadata(self.server).file("examine", self.server)?;
        let launch = (self.launch)(folder);
        let mut hasher = DefaultHasher::new();
        (self.server, server.len(), server.mtime(), server.mtime_nsec()).hash(&mut hasher);
        (launch.program, launch.arguments, &self.input).hash(&mut hasher);
        Ok(format!("data-{:016x}", hasher.finish()))
    }
}

/// Copies a folder with its permissions and without what belongs to one process or server alone.
fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    let permissions = fs::metadata(from).file("examine", from)?.permissions();
    make_folder(to)?;
    for entry in fs::read_dir(from).file("read the folder", from)? {
        let entry = entry.file("read the folder", from)?;
        let (original, copy) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().file("examine", &original)?;
        // Sockets and links are neither.
        if kind.is_dir() {
            copy_folder(&original, &copy)?;
        } else if kind.is_file() && !is_of_one_server(&original) {
            copy_file(&original, &copy)?;
        }
    }
    fs::set_permissions(to, permissions).file("set the permissions of", to)
}

fn is_of_one_server(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name == IDENTITY_FILE)
        || file.extension().is_some_and(|extension| extension == "pid")
}

/// Copies a file with its permissions; what is empty becomes a hole, which takes neither time nor room.
fn copy_file(from: &Path, to: &Path) -> Result<()> {
    let original = File::open(from).file("read", from)?;
    let metadata = original.metadata().file("examine", from)?;
    let copy = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to).file("write", to)?;
    let mut block = vec![0; BLOCK_BYTES];
    let mut offset = 0;
    while let Some(data) = next_data(&original, offset).file("read", from)? {
        let read = original.read_at(&mut block, data).file("read", from)?;
        if read == 0 {
            break;
        }
        if block[..read] != EMPTY_BLOCK[..read] {
            copy.write_all_at(&block[..read], data).file("write", to)?;
        }
        offset = data + read as u64;
    }
    copy.set_len(metadata.len()).file("write", to)?;
    copy.set_permissions(metadata.permissions()).file("set the permissions of", to)
}

/// Returns the first offset from this one on that lies in no hole; `None` = the rest of the file is a hole.
fn next_data(file: &File, offset: u64) -> io::Result<Option<u64>> {
    let offset = i64::try_from(offset).map_err(io::Error::other)?;
    match lseek(file, offset, Whence::SeekData) {
        Ok(data) => Ok(Some(data.unsigned_abs())),
        Err(Errno::ENXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Waits until a folder is on the disk, so that a power cut leaves no template that only seems complete.
fn sync_folder(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).file("read the folder", folder)? {
        let path = entry.file("read the folder", folder)?.path();
        if path.is_dir() {
            sync_folder(&path)?;
        } else {
            File::open(&path).and_then(|file| file.sync_all()).file("sync", &path)?;
        }
    }
    File::open(folder).and_then(|folder| folder.sync_all()).file("sync", folder)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::error::StackError;
    use crate::layout::Layout;

    /// Installs with a shell script whose text is no part of the template's name.
    fn install(folder: &Path, script: &str, server: &str) -> Result<PathBuf> {
        let text = folder.join("script");
        fs::write(&text, script).expect("the folder is writable");
        let launch = |run: &Path| Launch {
            program: "sh".into(),
            arguments: ["-c", r#"cd "$1/db" && . "$0""#]
                .map(str::to_owned)
                .into_iter()
                .chain([text.display().to_string(), run.display().to_string()])
                .collect(),
            environment: Vec::new(),
        };
        let installer =
            DataInstaller { what: "test", server: Path::new("/bin/sh"), launch: &launch, input: None };
        let data = folder.join(server);
        let programs = Programs::of(&Layout::below(folder));
        installer.install(&programs, &data, &Guard::Detached, &folder.join("output.log"))?;
        Ok(data)
    }

    #[test]
    fn an_installation_that_was_killed_is_never_used_and_a_whole_one_by_all() {
        let folder = tempfile::tempdir().unwrap();
        let killed = install(folder.path(), "echo half > half; echo half > ibdata1; kill -KILL $$", "one");
        assert!(matches!(killed, Err(StackError::ProgramFailed { .. })), "{killed:?}");
        assert!(!folder.path().join("one").exists());

        let script = "echo whole > ibdata1; echo id > auto.cnf; echo 7 > server.pid";
        for (server, script) in [("two", script), ("three", "echo later > ibdata1")] {
            let data = install(folder.path(), script, server).unwrap();
            assert_eq!(fs::read_to_string(data.join("ibdata1")).unwrap(), "whole\n", "{server}");
            let names: Vec<_> = fs::read_dir(&data).unwrap().map(|file| file.unwrap().file_name()).collect();
            assert_eq!(names, ["ibdata1"], "{server}");
        }
    }

    #[test]
    fn a_copy_keeps_permissions_and_holes_and_leaves_sockets() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        make_folder(&from.join("mysql")).unwrap();
        let _socket = UnixListener::bind(from.join("server.sock")).unwrap();
        let file = from.join("mysql/redo");
        let mut content = vec![0_u8; 5 << 20];
        content[3 << 20] = 7;
        fs::write(&file, &content).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        fs::set_permissions(from.join("mysql"), fs::Permissions::from_mode(0o750)).unwrap();

        copy_folder(&from, &to).unwrap();
        let copied = to.join("mysql/redo");
        assert!(fs::read(&copied).unwrap() == content, "the copy has another content");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&copied), mode(&to.join("mysql"))), (0o640, 0o750));
        assert!(!to.join("server.sock").exists());
        // One block has data. The original says nothing: a file system that compresses keeps it as small.
        let bytes = 512 * fs::metadata(&copied).unwrap().blocks();
        assert!(bytes < 1 << 20, "the empty parts are holes, and {bytes} bytes are taken");
    }
}
