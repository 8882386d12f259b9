//! MariaDB servers: data folder, flags, accounts, readiness.
//!
//! The accounts come from the documented files in `deploy/grants`, so the grants that users read are the grants that
//! every test runs with. They are made by `--init-file` at the first start, before the server accepts connections and
//! outside of the binlog: there is no moment with an account that has no password, and a captured binlog starts empty.

use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use crate::error::{FileContext, Result};
use crate::layout::{make_folder, remove_folder, write_private};
use crate::place::Place;
use crate::process::{Launch, run_to_end};
use crate::programs::MariaDbPrograms;
use crate::spec::{MariaDb, MariaDbAccount};

pub(crate) const ADMIN_USER: &str = "root";

const SOURCE_GRANTS: &str = include_str!("../../grants/mariadb-source.sql");
const TARGET_GRANTS: &str = include_str!("../../grants/mariadb-target.sql");

/// Of a server that is being installed. One that runs has a redo log as large as its buffer pool: at the end of a small one
/// a busy target stood still for seconds until its pages, of as many tables as rows, were written out.
const FIRST_REDO_LOG: &str = "--innodb-log-file-size=48M";
/// The derived tables of the demo are two thousand. With the defaults (400 definitions, 2,000 open tables) its target opened
/// 1,200 tables a second, and most statements waited for that.
const TABLE_CACHES: [&str; 2] = ["--table-definition-cache=4000", "--table-open-cache=8000"];
/// 0.6 s on an idle machine; a busy one with two cores needed 10 s.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(120);
/// A server that accepted the connection sends its greeting as soon as it is ready.
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);
/// First byte of the greeting's payload: protocol version 10.
const GREETING_PROTOCOL: u8 = 10;

pub(crate) fn user(account: MariaDbAccount) -> &'static str {
    match account {
        MariaDbAccount::Capture => "anabranch_capture",
        MariaDbAccount::Apply => "anabranch_apply",
    }
}

pub(crate) fn prepare(place: &Place, settings: &MariaDb) -> Result<()> {
    let data = place.folder.join("db");
    remove_folder(&data)?;
    make_folder(&place.folder.join("tmp"))?;
    let programs = place.programs.mariadb()?;
    let mut arguments = base_arguments(place, &programs);
    arguments.extend([
        format!("--datadir={}", data.display()),
        "--auth-root-authentication-method=normal".to_owned(),
        "--skip-test-db".to_owned(),
        "--skip-name-resolve".to_owned(),
        FIRST_REDO_LOG.to_owned(),
    ]);
    let install = Launch {
        program: programs.install_db.clone(),
        arguments,
        environment: environment(place, &programs),
    };
    run_to_end(&install, &place.guard, &place.output(), INSTALL_TIMEOUT)?;
    write_private(&place.folder.join("accounts.sql"), &accounts(place, settings.account))
}

/// Statements of the first start, one a line as `--init-file` wants them.
fn accounts(place: &Place, account: MariaDbAccount) -> String {
    let record = &place.record;
    let grants = match account {
        MariaDbAccount::Capture => SOURCE_GRANTS.replace("{capture_password}", &record.password),
        MariaDbAccount::Apply => TARGET_GRANTS.replace("{apply_password}", &record.password),
    };
    let mut lines = vec![
        "SET SESSION sql_log_bin = 0;".to_owned(),
        format!("CREATE OR REPLACE USER 'root'@'127.0.0.1' IDENTIFIED BY '{}';", record.admin_password),
        "GRANT ALL PRIVILEGES ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;".to_owned(),
        "DELETE FROM mysql.global_priv WHERE User = '' OR (User = 'root' AND Host <> '127.0.0.1');"
            .to_owned(),
        "FLUSH PRIVILEGES;".to_owned(),
    ];
    lines.extend(statements(&grants.replace("{client_host}", "127.0.0.1")));
    lines.join("\n") + "\n"
}

/// Joins each statement of a documented SQL file to one line and leaves the comments out.
fn statements(sql: &str) -> Vec<String> {
    let text: Vec<&str> = sql.lines().map(str::trim).filter(|line| !line.starts_with("--")).collect();
    text.join(" ")
        .split(';')
        .map(str::trim)
        .filter(|statement| !statement.is_empty())
        .map(|statement| format!("{statement};"))
        .collect()
}

pub(crate) fn launch(place: &Place, settings: &MariaDb, flags: Vec<String>) -> Result<Launch> {
    let programs = place.programs.mariadb()?;
    let folder = place.folder.display();
    let certificates = &place.certificates;
    let number = place.record.number;
    let mut arguments = base_arguments(place, &programs);
    arguments.extend([
        format!("--datadir={folder}/db"),
        format!("--tmpdir={folder}/tmp"),
        // No unix socket: its path may have at most 107 bytes, which a deep checkout exceeds.
        "--socket=".to_owned(),
        format!("--pid-file={folder}/mariadb.pid"),
        format!("--log-error={}", place.log_file().display()),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--port={}", place.record.port),
        "--skip-name-resolve".to_owned(),
        "--performance-schema=OFF".to_owned(),
        format!("--innodb-buffer-pool-size={}M", settings.buffer_pool_mib),
        format!("--innodb-log-file-size={}M", settings.buffer_pool_mib),
        "--max-allowed-packet=64M".to_owned(),
        format!("--server-id={number}"),
        format!("--gtid-domain-id={number}"),
        "--gtid-strict-mode=ON".to_owned(),
        format!("--log-bin={folder}/db/binlog"),
        format!("--log-bin-index={folder}/db/binlog.index"),
        "--log-slave-updates=ON".to_owned(),
        "--binlog-format=ROW".to_owned(),
        "--binlog-row-image=FULL".to_owned(),
        "--binlog-row-metadata=FULL".to_owned(),
        "--binlog-checksum=CRC32".to_owned(),
        "--sync-binlog=1".to_owned(),
        "--innodb-flush-log-at-trx-commit=1".to_owned(),
        "--character-set-server=utf8mb4".to_owned(),
        "--collation-server=utf8mb4_unicode_ci".to_owned(),
        "--default-time-zone=+00:00".to_owned(),
        format!("--ssl-ca={}", certificates.ca().display()),
        format!("--ssl-cert={}", certificates.server().display()),
        format!("--ssl-key={}", certificates.server_key().display()),
        "--tls-version=TLSv1.2,TLSv1.3".to_owned(),
    ]);
    arguments.extend(TABLE_CACHES.map(str::to_owned));
    if !place.is_prepared() {
        arguments.push(format!("--init-file={folder}/accounts.sql"));
    }
    arguments.extend(flags);
    Ok(Launch { program: programs.server.clone(), arguments, environment: environment(place, &programs) })
}

/// Arguments that `mariadb-install-db` and `mariadbd` share; `--no-defaults` must be the first.
fn base_arguments(place: &Place, programs: &MariaDbPrograms) -> Vec<String> {
    let mut arguments = vec!["--no-defaults".to_owned()];
    // mariadbd refuses to run as root unless told so. Our folders belong to who runs us.
    if fs::metadata(&place.folder).is_ok_and(|folder| folder.uid() == 0) {
        arguments.push("--user=root".to_owned());
    }
    if let Some(prefix) = &programs.prefix {
        let prefix = prefix.display();
        arguments.extend([
            format!("--basedir={prefix}/usr"),
            format!("--lc-messages-dir={prefix}/usr/share/mysql"),
            format!("--plugin-dir={prefix}/usr/lib/mysql/plugin"),
        ]);
    }
    arguments
}

/// Servers must not share a temporary folder: a starting mariadbd removes the `#sql` files of the others there.
fn environment(place: &Place, programs: &MariaDbPrograms) -> Vec<(String, String)> {
    let mut variables = vec![("TMPDIR".to_owned(), place.folder.join("tmp").display().to_string())];
    if let Some(path) = &programs.library_path {
        variables.push(("LD_LIBRARY_PATH".to_owned(), path.clone()));
    }
    variables
}

/// Ready when it greets a TCP client: it does so only after `--init-file` and crash recovery.
pub(crate) fn is_ready(place: &Place) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, place.record.port));
    let greeting = || -> std::io::Result<u8> {
        let mut stream = TcpStream::connect_timeout(&address, GREETING_TIMEOUT)?;
        stream.set_read_timeout(Some(GREETING_TIMEOUT))?;
        // Three bytes of length, one of sequence, then the payload.
        let mut start = [0; 5];
        stream.read_exact(&mut start)?;
        Ok(start[4])
    };
    greeting().is_ok_and(|protocol| protocol == GREETING_PROTOCOL)
}

/// Removes the file with the passwords once it has done its work.
pub(crate) fn forget_accounts(place: &Place) -> Result<()> {
    let file = place.folder.join("accounts.sql");
    match fs::remove_file(&file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).file("remove", file),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documented_grants_become_one_statement_a_line() {
        for grants in [SOURCE_GRANTS, TARGET_GRANTS] {
            let lines = statements(grants);
            assert!(lines.len() >= 2, "{lines:?}");
            assert!(lines.iter().all(|line| line.ends_with(';') && !line.contains("--")), "{lines:?}");
            assert!(lines[0].starts_with("CREATE USER"), "{lines:?}");
            assert!(lines[0].contains("REQUIRE SSL"), "{lines:?}");
        }
    }
}
