//! MariaDB servers: data folder, flags, administrator. `database.rs` has the part in common with MySQL.

use std::fs;
use std::path::Path;

use crate::database::{self, Grants};
use crate::error::{FileContext, Result};
use crate::layout::write_private;
use crate::managed_server::ManagedServer;
use crate::process::Launch;
use crate::programs::{MariaDbInstaller, MariaDbPrograms};
use crate::spec::{Database, MariaDbVersion};

pub(crate) const GRANTS: Grants = Grants {
    source: include_str!("../../grants/mariadb-source.sql"),
    target: include_str!("../../grants/mariadb-target.sql"),
};

/// Redo log of a server that is being installed; a running server has one as large as its buffer pool. At the end of a
/// small log a busy target stalled for seconds until its pages, of as many tables as rows, were written out.
const FIRST_REDO_LOG: &str = "--innodb-log-file-size=48M";

/// Files of statements that create the system tables, in order. `mariadb-install-db` feeds the same ones to the server.
const SYSTEM_TABLES: [&str; 3] =
    ["mariadb_system_tables.sql", "mariadb_performance_tables.sql", "mariadb_system_tables_data.sql"];

/// Script that runs a command with a file as its input, for which a [`Launch`] has no field.
const WITH_INPUT: &str = r#"input=$1; shift; exec "$@" <"$input""#;

pub(crate) fn prepare(managed: &ManagedServer, version: MariaDbVersion, settings: &Database) -> Result<()> {
    let programs = managed.programs.mariadb(version)?;
    let environment = environment(managed, &programs);
    let base = base_arguments(managed, version, &programs);
    let mut install = match &programs.installer {
        MariaDbInstaller::Script(script) => {
            let further = [
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--skip-name-resolve",
                FIRST_REDO_LOG,
            ];
            let arguments = base.into_iter().chain(further.map(str::to_owned)).collect();
            Launch { program: script.clone(), arguments, environment }
        }
        MariaDbInstaller::Bootstrap(statements) => {
            let input = managed.folder.join("bootstrap.sql");
            write_private(&input, &bootstrap(statements)?)?;
            let shell = ["-c", WITH_INPUT, "stack-bootstrap"].map(str::to_owned);
            let server = [input.display().to_string(), programs.server.program.display().to_string()];
            let further = ["--bootstrap", "--skip-grant-tables", "--skip-name-resolve", FIRST_REDO_LOG];
            let mut arguments: Vec<String> = shell.into_iter().chain(server).collect();
            arguments.extend(programs.server.loader_arguments.clone());
            arguments.extend(base.into_iter().chain(further.map(str::to_owned)));
            arguments.push(format!("--tmpdir={}/tmp", managed.folder.display()));
            Launch { program: "sh".into(), arguments, environment }
        }
    };
    managed.relieve(&mut install);
    database::prepare(managed, settings.account, &install, &administrator(managed), &GRANTS)
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
fn base_arguments(
    managed: &ManagedServer,
    version: MariaDbVersion,
    programs: &MariaDbPrograms,
) -> Vec<String> {
    let shared = match version {
        MariaDbVersion::Common => "mysql",
        MariaDbVersion::Eleven => "mariadb",
    };
    database::base_arguments(managed, programs.server.prefix.as_deref(), shared)
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
    let environment = environment(managed, &programs);
    let mut arguments = programs.server.loader_arguments.clone();
    arguments.extend(base_arguments(managed, version, &programs));
    arguments.extend(database::settings(managed, settings));
    arguments.extend([
        format!("--innodb-log-file-size={}M", settings.buffer_pool_mib),
        format!("--gtid-domain-id={}", managed.record.number),
        "--gtid-strict-mode=ON".to_owned(),
        "--log-slave-updates=ON".to_owned(),
        "--binlog-format=ROW".to_owned(),
    ]);
    arguments.extend(flags);
    Ok(Launch { program: programs.server.program, arguments, environment })
}

/// Gives each server its own temporary folder: a starting mariadbd removes the `#sql` files of others there.
fn environment(managed: &ManagedServer, programs: &MariaDbPrograms) -> Vec<(String, String)> {
    let mut variables = vec![("TMPDIR".to_owned(), managed.folder.join("tmp").display().to_string())];
    if let Some(path) = &programs.library_path {
        variables.push(("LD_LIBRARY_PATH".to_owned(), path.clone()));
    }
    variables
}
