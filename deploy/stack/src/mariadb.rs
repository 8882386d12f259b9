//! MariaDB servers: data folder, flags, administrator. `database.rs` has the part in common with MySQL.

use std::fs;
use std::path::Path;

use crate::database::{self, Grants};
use crate::error::{FileContext, Result};
use crate::managed_server::ManagedServer;
use crate::process::Launch;
use crate::programs::{MariaDbInstaller, MariaDbPrograms};
use crate::spec::{Database, MariaDbVersion};
use crate::template::{DataInstaller, input_file};

pub(crate) const GRANTS: Grants = Grants {
    source: include_str!("../../grants/mariadb-source.sql"),
    target: include_str!("../../grants/mariadb-target.sql"),
};

/// Files of statements that create the system tables, in order. `mariadb-install-db` feeds the same ones to the server.
const SYSTEM_TABLES: [&str; 3] =
    ["mariadb_system_tables.sql", "mariadb_performance_tables.sql", "mariadb_system_tables_data.sql"];

/// Script that runs a command with a file as its input, for which a [`Launch`] has no field.
const WITH_INPUT: &str = r#"input=$1; shift; exec "$@" <"$input""#;

pub(crate) fn prepare(managed: &ManagedServer, version: MariaDbVersion, settings: &Database) -> Result<()> {
    let programs = managed.programs.mariadb(version)?;
    let relief = managed.relief();
    let launch = |folder: &Path| {
        let mut launch = install(folder, version, settings, &programs);
        if let Some(library) = &relief {
            launch.preload(library);
        }
        launch
    };
    let input = match &programs.installer {
        MariaDbInstaller::Script(_) => None,
        MariaDbInstaller::Bootstrap(statements) => Some(bootstrap(statements)?),
    };
    let server = programs.server.server_file();
    let installer = DataInstaller { what: "MariaDB", server, launch: &launch, input };
    database::prepare(managed, settings.account, &installer, &administrator(managed), &GRANTS)
}

/// Returns the command that makes the data of a new server in `db` below a folder.
fn install(
    folder: &Path,
    version: MariaDbVersion,
    settings: &Database,
    programs: &MariaDbPrograms,
) -> Launch {
    let environment = environment(folder, programs);
    let base = base_arguments(folder, version, programs);
    let further = ["--skip-name-resolve".to_owned(), redo_log(settings)];
    match &programs.installer {
        MariaDbInstaller::Script(script) => {
            let accounts = ["--auth-root-authentication-method=normal", "--skip-test-db"];
            let arguments = base.into_iter().chain(accounts.map(str::to_owned)).chain(further).collect();
            Launch { program: script.clone(), arguments, environment }
        }
        MariaDbInstaller::Bootstrap(_) => {
            let shell = ["-c", WITH_INPUT, "stack-bootstrap"].map(str::to_owned);
            let input = input_file(folder).display().to_string();
            let server = [input, programs.server.program.display().to_string()];
            let mut arguments: Vec<String> = shell.into_iter().chain(server).collect();
            arguments.extend(programs.server.loader_arguments.clone());
            arguments.extend(base);
            arguments.extend(["--bootstrap", "--skip-grant-tables"].map(str::to_owned));
            arguments.extend(further);
            arguments.push(format!("--tmpdir={}/tmp", folder.display()));
            Launch { program: "sh".into(), arguments, environment }
        }
    }
}

/// Returns the flag of a redo log as large as the buffer pool; the installer makes it as large, so no start changes it.
/// At the end of a small log a busy target stalled for seconds until its pages, of as many tables as rows, were written
/// out.
fn redo_log(settings: &Database) -> String {
    format!("--innodb-log-file-size={}M", settings.buffer_pool_mib)
}

/// Returns the input of a bootstrapping server: one statement a line.
fn bootstrap(statements: &Path) -> Result<String> {
    let mut text =
        "CREATE DATABASE IF NOT EXISTS mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\n".to_owned();
    for name in SYSTEM_TABLES {
        let file = statements.join(name);
        text.push_str(&fs::read_to_string(&file).file("read", &file)?);
    }
    Ok(text)
}

/// Returns the arguments that installing and starting share. Debian moved the shared files after 10.11.
fn base_arguments(folder: &Path, version: MariaDbVersion, programs: &MariaDbPrograms) -> Vec<String> {
    let shared = match version {
        MariaDbVersion::Common => "mysql",
        MariaDbVersion::Eleven => "mariadb",
    };
    database::base_arguments(folder, programs.server.prefix.as_deref(), shared)
}

fn administrator(managed: &ManagedServer) -> [String; 4] {
    let password = &managed.record.admin_password;
    [
        format!("CREATE OR REPLACE USER 'root'@'127.0.0.1' IDENTIFIED BY '{password}';"),
        "GRANT ALL PRIVILEGES ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;".to_owned(),
        "DELETE FROM mysql.global_priv WHERE User = '' OR (User = 'root' AND Host <> '127.0.0.1');"
            .to_owned(),
        "FLUSH PRIVILEGES;".to_owned(),
    ]
}

pub(crate) fn launch(
    managed: &ManagedServer,
    version: MariaDbVersion,
    settings: &Database,
    flags: Vec<String>,
) -> Result<Launch> {
    let programs = managed.programs.mariadb(version)?;
    let environment = environment(&managed.folder, &programs);
    let mut arguments = programs.server.loader_arguments.clone();
    arguments.extend(base_arguments(&managed.folder, version, &programs));
    arguments.extend(database::settings(managed, settings));
    arguments.extend([
        redo_log(settings),
        format!("--gtid-domain-id={}", managed.record.number),
        "--gtid-strict-mode=ON".to_owned(),
        "--log-slave-updates=ON".to_owned(),
        "--binlog-format=ROW".to_owned(),
    ]);
    arguments.extend(flags);
    Ok(Launch { program: programs.server.program, arguments, environment })
}

/// Gives each server its own temporary folder: a starting mariadbd removes the `#sql` files of others there.
fn environment(folder: &Path, programs: &MariaDbPrograms) -> Vec<(String, String)> {
    let mut variables = vec![("TMPDIR".to_owned(), folder.join("tmp").display().to_string())];
    if let Some(path) = &programs.library_path {
        variables.push(("LD_LIBRARY_PATH".to_owned(), path.clone()));
    }
    variables
}
