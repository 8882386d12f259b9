//! MariaDB servers: data folder, flags, administrator. `database.rs` has what they share with MySQL.

use crate::database::{self, Grants};
use crate::error::Result;
use crate::place::Place;
use crate::process::Launch;
use crate::programs::MariaDbPrograms;
use crate::spec::Database;

pub(crate) const GRANTS: Grants = Grants {
    source: include_str!("../../grants/mariadb-source.sql"),
    target: include_str!("../../grants/mariadb-target.sql"),
};

/// Of a server that is being installed. One that runs has a redo log as large as its buffer pool: at the end of a small one
/// a busy target stood still for seconds until its pages, of as many tables as rows, were written out.
const FIRST_REDO_LOG: &str = "--innodb-log-file-size=48M";

pub(crate) fn prepare(place: &Place, settings: &Database) -> Result<()> {
    let programs = place.programs.mariadb()?;
    let mut arguments = database::base_arguments(place, programs.prefix.as_deref());
    arguments.extend([
        "--auth-root-authentication-method=normal".to_owned(),
        "--skip-test-db".to_owned(),
        "--skip-name-resolve".to_owned(),
        FIRST_REDO_LOG.to_owned(),
    ]);
    let environment = environment(place, &programs);
    let install = Launch { program: programs.install_db, arguments, environment };
    database::prepare(place, settings.account, &install, &administrator(place), &GRANTS)
}

fn administrator(place: &Place) -> [String; 4] {
    let password = &place.record.admin_password;
    [
        format!("CREATE OR REPLACE USER 'root'@'127.0.0.1' IDENTIFIED BY '{password}';"),
        "GRANT ALL PRIVILEGES ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;".to_owned(),
        "DELETE FROM mysql.global_priv WHERE User = '' OR (User = 'root' AND Host <> '127.0.0.1');"
            .to_owned(),
        "FLUSH PRIVILEGES;".to_owned(),
    ]
}

pub(crate) fn launch(place: &Place, settings: &Database, flags: Vec<String>) -> Result<Launch> {
    let programs = place.programs.mariadb()?;
    let mut arguments = database::base_arguments(place, programs.prefix.as_deref());
    arguments.extend(database::settings(place, settings));
    arguments.extend([
        format!("--innodb-log-file-size={}M", settings.buffer_pool_mib),
        format!("--gtid-domain-id={}", place.record.number),
        "--gtid-strict-mode=ON".to_owned(),
        "--log-slave-updates=ON".to_owned(),
        "--binlog-format=ROW".to_owned(),
    ]);
    arguments.extend(flags);
    let environment = environment(place, &programs);
    Ok(Launch { program: programs.server, arguments, environment })
}

/// Servers must not share a temporary folder: a starting mariadbd removes the `#sql` files of the others there.
fn environment(place: &Place, programs: &MariaDbPrograms) -> Vec<(String, String)> {
    let mut variables = vec![("TMPDIR".to_owned(), place.folder.join("tmp").display().to_string())];
    if let Some(path) = &programs.library_path {
        variables.push(("LD_LIBRARY_PATH".to_owned(), path.clone()));
    }
    variables
}
