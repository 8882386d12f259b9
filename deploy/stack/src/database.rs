//! The common part of MariaDB and MySQL servers: settings, accounts, readiness.
//!
//! The accounts come from the documented files in `deploy/grants`, so every test runs with the grants that users read.
//! `--init-file` creates them at the first start, before the server accepts connections and outside of the binlog: no
//! account is ever without a password, and a captured binlog starts empty.

use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{FileContext, Result};
use crate::layout::{make_folder, remove_folder, write_private};
use crate::managed_server::ManagedServer;
use crate::spec::{Database, DatabaseAccount};
use crate::template::DataInstaller;

pub(crate) const ADMIN_USER: &str = "root";

/// The demo has two thousand derived tables. With MariaDB's defaults (400 definitions, 2,000 open tables) its target
/// opened 1,200 tables a second, and most statements waited for that.
const TABLE_CACHES: [&str; 2] = ["--table-definition-cache=4000", "--table-open-cache=8000"];
/// A server that accepted the connection sends its greeting as soon as it is ready.
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);
/// First byte of the greeting's payload: protocol version 10.
const GREETING_PROTOCOL: u8 = 10;

/// Documented files with the accounts of one kind of server.
pub(crate) struct Grants {
    pub(crate) source: &'static str,
    pub(crate) target: &'static str,
}

pub(crate) fn user(account: DatabaseAccount) -> &'static str {
    match account {
        DatabaseAccount::Capture => "anabranch_capture",
        DatabaseAccount::Apply => "anabranch_apply",
    }
}

/// Returns the account that sets up a server for derived tables; it has the password of the other account.
pub(crate) fn setup_user(account: DatabaseAccount) -> Option<&'static str> {
    match account {
        DatabaseAccount::Capture => None,
        DatabaseAccount::Apply => Some("anabranch_setup"),
    }
}

/// Makes the data folder, which all servers of a kind get from one run of its installer, and the file of statements for
/// the first start: first those that create the administrator, then the documented grants.
pub(crate) fn prepare(
    managed: &ManagedServer,
    account: DatabaseAccount,
    installer: &DataInstaller<'_>,
    administrator: &[String],
    grants: &Grants,
) -> Result<()> {
    let data = managed.folder.join("db");
    remove_folder(&data)?;
    make_folder(&managed.folder.join("tmp"))?;
    installer.install(&managed.programs, &data, &managed.guard, &managed.output())?;
    let mut lines = vec!["SET SESSION sql_log_bin = 0;".to_owned()];
    lines.extend_from_slice(administrator);
    lines.extend(product_account(managed, account, grants));
    write_private(&accounts_file(managed), &(lines.join("\n") + "\n"))
}

fn product_account(managed: &ManagedServer, account: DatabaseAccount, grants: &Grants) -> Vec<String> {
    let password = &managed.record.password;
    let grants = match account {
        DatabaseAccount::Capture => grants.source.replace("{capture_password}", password),
        DatabaseAccount::Apply => {
            grants.target.replace("{apply_password}", password).replace("{setup_password}", password)
        }
    };
    statements(&grants.replace("{client_host}", "127.0.0.1"))
}

/// Joins each statement of a documented SQL file to one line, as `--init-file` needs it, and drops the comments.
fn statements(sql: &str) -> Vec<String> {
    let text: Vec<&str> = sql.lines().map(str::trim).filter(|line| !line.starts_with("--")).collect();
    text.join(" ")
        .split(';')
        .map(str::trim)
        .filter(|statement| !statement.is_empty())
        .map(|statement| format!("{statement};"))
        .collect()
}

/// Returns the arguments that installing and starting share, for data in `db` below `folder`. `prefix` is the root of
/// unpacked packages, `shared` the folder below its `usr/share` with messages and character sets. `--no-defaults` must
/// be the first argument.
pub(crate) fn base_arguments(folder: &Path, prefix: Option<&Path>, shared: &str) -> Vec<String> {
    let mut arguments = vec!["--no-defaults".to_owned(), format!("--datadir={}/db", folder.display())];
    // The servers refuse to run as root without this. The stack's folders belong to the user who runs it.
    if fs::metadata(folder).is_ok_and(|folder| folder.uid() == 0) {
        arguments.push("--user=root".to_owned());
    }
    if let Some(prefix) = prefix {
        let prefix = prefix.display();
        arguments.extend([
            format!("--basedir={prefix}/usr"),
            format!("--lc-messages-dir={prefix}/usr/share/{shared}"),
            format!("--character-sets-dir={prefix}/usr/share/{shared}/charsets"),
            format!("--plugin-dir={prefix}/usr/lib/mysql/plugin"),
        ]);
    }
    arguments
}

/// Returns the settings of a start that both kinds of server know.
pub(crate) fn settings(managed: &ManagedServer, settings: &Database) -> Vec<String> {
    let folder = managed.folder.display();
    let certificates = &managed.certificates;
    let mut arguments = vec![
        format!("--tmpdir={folder}/tmp"),
        // No unix socket: its path may have at most 107 bytes, which a deep checkout exceeds.
        "--socket=".to_owned(),
        format!("--pid-file={folder}/server.pid"),
        format!("--log-error={}", managed.log_file().display()),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--port={}", managed.record.port),
        "--skip-name-resolve".to_owned(),
        // It takes 240 of MySQL's 530 MB.
        "--performance-schema=OFF".to_owned(),
        format!("--innodb-buffer-pool-size={}M", settings.buffer_pool_mib),
        "--max-allowed-packet=64M".to_owned(),
        format!("--server-id={}", managed.record.number),
        format!("--log-bin={folder}/db/binlog"),
        format!("--log-bin-index={folder}/db/binlog.index"),
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
    ];
    arguments.extend(TABLE_CACHES.map(str::to_owned));
    if !managed.is_prepared() {
        arguments.push(format!("--init-file={}", accounts_file(managed).display()));
    }
    arguments
}

/// Whether the server greets a TCP client: it does so only after `--init-file` and crash recovery.
pub(crate) fn is_ready(managed: &ManagedServer) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, managed.record.port));
    let greeting = || -> std::io::Result<u8> {
        let mut stream = TcpStream::connect_timeout(&address, GREETING_TIMEOUT)?;
        stream.set_read_timeout(Some(GREETING_TIMEOUT))?;
        // The greeting has three bytes of length and one of sequence, then the payload.
        let mut start = [0; 5];
        stream.read_exact(&mut start)?;
        Ok(start[4])
    };
    greeting().is_ok_and(|protocol| protocol == GREETING_PROTOCOL)
}

/// Removes the file with the passwords once the accounts exist.
pub(crate) fn forget_accounts(managed: &ManagedServer) -> Result<()> {
    let file = accounts_file(managed);
    match fs::remove_file(&file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).file("remove", file),
        _ => Ok(()),
    }
}

fn accounts_file(managed: &ManagedServer) -> PathBuf {
    managed.folder.join("accounts.sql")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{mariadb, mysql};

    #[test]
    fn documented_grants_become_one_statement_a_line() {
        let files = [mariadb::GRANTS, mysql::GRANTS].map(|grants| [grants.source, grants.target]);
        for grants in files.into_iter().flatten() {
            let lines = statements(grants);
            assert!(lines.len() >= 2, "{lines:?}");
            assert!(lines.iter().all(|line| line.ends_with(';') && !line.contains("--")), "{lines:?}");
            assert!(lines[0].starts_with("CREATE USER"), "{lines:?}");
            assert!(lines[0].contains("REQUIRE SSL"), "{lines:?}");
        }
    }
}
