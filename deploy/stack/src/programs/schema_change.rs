//! Tools that change a table by a copy beside it, for tests beside their changes: `pt-online-schema-change`, `gh-ost`.
//!
//! Percona's tool is a Perl program of Debian's package `percona-toolkit`, and is unpacked with its Perl. No Debian
//! release has a package of gh-ost, and a build from its sources takes two minutes, so it is taken from PATH alone.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::{Program, Programs, apt, printed_version};
use crate::error::{FileContext, Result, StackError};

/// Names of these programs in errors.
pub(crate) const PERCONA: &str = "pt-online-schema-change";
pub(crate) const GH_OST: &str = "gh-ost";
/// The interpreter, and the modules that the tool loads.
const PACKAGES: [&str; 4] = ["perl", "libdbi-perl", "libdbd-mysql-perl", "libterm-readkey-perl"];
/// The package also depends on a debugger, which this tool has no use for.
const ALONE: [&str; 1] = ["percona-toolkit"];
/// Starts the unpacked tool with the unpacked interpreter, wherever the folder is.
const LAUNCHER: &str = r#"#!/bin/sh
root="${0%/*}/root"
exec "$root/usr/bin/perl" "$root/usr/bin/pt-online-schema-change" "$@"
"#;
/// Plugins of the client's library for the logins of newer servers, below the folder of libraries.
const LOGIN_PLUGINS: &str = "libmariadb3/plugin";

impl Programs {
    /// Returns `pt-online-schema-change`; every version is new enough.
    pub(crate) fn percona(&self) -> Result<Program> {
        if let Some(file) = self.on_path(PERCONA)
            && printed_version(&file, &["--version"]).is_some_and(|text| text.contains(PERCONA))
        {
            return Ok(Program { file, environment: Vec::new() });
        }
        let folder = self.install(PERCONA, "percona-toolkit", |fresh| {
            apt::unpack_with(fresh, PERCONA, &PACKAGES, &ALONE)?;
            let launcher = fresh.join(PERCONA);
            fs::write(&launcher, LAUNCHER).file("write", &launcher)?;
            let executable = fs::Permissions::from_mode(0o755);
            fs::set_permissions(&launcher, executable).file("make executable", &launcher)
        })?;
        let root = folder.join("root");
        let libraries = apt::library_path(&root)?;
        let modules = modules(&root, &libraries)?;
        let mut folders = libraries.split(':').map(|library| Path::new(library).join(LOGIN_PLUGINS));
        let plugins = folders.find(|folder| folder.is_dir()).unwrap_or_default().display().to_string();
        let environment =
            [("MARIADB_PLUGIN_DIR", plugins), ("LD_LIBRARY_PATH", libraries), ("PERL5LIB", modules)];
        let environment = environment.map(|(name, value)| (name.to_owned(), value)).into();
        Ok(Program { file: folder.join(PERCONA), environment })
    }

    /// Returns `gh-ost` of PATH.
    pub(crate) fn gh_ost(&self) -> Result<Program> {
        let missing = || StackError::ProgramMissing {
            what: GH_OST.to_owned(),
            reason: "it is not on PATH, and no Debian package has it".to_owned(),
            help: "put a gh-ost on PATH, such as one that `script/build` made in a checkout of it".to_owned(),
        };
        let file = self.on_path(GH_OST).ok_or_else(missing)?;
        Ok(Program { file, environment: Vec::new() })
    }
}

/// Returns the folders of Perl modules below an unpacked root, as `PERL5LIB` has them.
fn modules(root: &Path, libraries: &str) -> Result<String> {
    let mut folders = vec![root.join("usr/share/perl5")];
    folders.extend(below(&root.join("usr/share/perl"))?);
    for library in libraries.split(':').map(PathBuf::from) {
        folders.extend(below(&library.join("perl5"))?);
        folders.extend(below(&library.join("perl"))?);
        folders.push(library.join("perl-base"));
    }
    let shown = folders.iter().filter(|folder| folder.is_dir()).map(|folder| folder.display().to_string());
    Ok(shown.collect::<Vec<_>>().join(":"))
}

/// Returns the folders of versions in a folder; none where it is missing.
fn below(folder: &Path) -> Result<Vec<PathBuf>> {
    if folder.is_dir() { apt::files(folder) } else { Ok(Vec::new()) }
}
