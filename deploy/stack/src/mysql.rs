//! MySQL servers: data folder, flags, administrator. `database.rs` has the part in common with MariaDB.

use std::path::Path;

use crate::database::{self, Grants};
use crate::error::Result;
use crate::managed_server::ManagedServer;
use crate::process::Launch;
use crate::programs::LoadedProgram;
use crate::spec::Database;
use crate::template::DataInstaller;

pub(crate) const GRANTS: Grants = Grants {
    source: include_str!("../../grants/mysql-source.sql"),
    target: include_str!("../../grants/mysql-target.sql"),
};

pub(crate) fn prepare(managed: &ManagedServer, settings: &Database) -> Result<()> {
    let programs = managed.programs.mysql()?;
    let relief = managed.relief();
    let launch = |folder: &Path| {
        let mut arguments = base_arguments(folder, settings, &programs);
        arguments.extend([
            // The account has no password while no client can connect: the first start removes it.
            "--initialize-insecure".to_owned(),
            format!("--tmpdir={}/tmp", folder.display()),
        ]);
        let mut launch = Launch { program: programs.program.clone(), arguments, environment: Vec::new() };
        if let Some(library) = &relief {
            launch.preload(library);
        }
        launch
    };
    let installer =
        DataInstaller { what: "MySQL", server: programs.server_file(), launch: &launch, input: None };
    database::prepare(managed, settings.account, &installer, &administrator(managed), &GRANTS)
}

fn administrator(managed: &ManagedServer) -> [String; 3] {
    let password = &managed.record.admin_password;
    [
        format!("CREATE USER 'root'@'127.0.0.1' IDENTIFIED BY '{password}';"),
        "GRANT ALL PRIVILEGES ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;".to_owned(),
        "DROP USER 'root'@'localhost';".to_owned(),
    ]
}

pub(crate) fn launch(managed: &ManagedServer, settings: &Database, flags: Vec<String>) -> Result<Launch> {
    let programs = managed.programs.mysql()?;
    let mut arguments = base_arguments(&managed.folder, settings, &programs);
    arguments.extend(database::settings(managed, settings));
    arguments.extend([
        "--gtid-mode=ON".to_owned(),
        "--enforce-gtid-consistency=ON".to_owned(),
        // Nothing here uses the X protocol, and all servers would share its port 33060.
        "--mysqlx=OFF".to_owned(),
        // Each instance of the cache has a part of the room, and a lane uses one instance. With 16 instances, one would
        // have room for a third of the derived tables.
        "--table-open-cache-instances=1".to_owned(),
    ]);
    arguments.extend(flags);
    Ok(Launch { program: programs.program, arguments, environment: Vec::new() })
}

/// Returns the arguments that installing and starting share, the loader's first.
fn base_arguments(folder: &Path, settings: &Database, programs: &LoadedProgram) -> Vec<String> {
    let mut arguments = programs.loader_arguments.clone();
    arguments.extend(database::base_arguments(folder, programs.prefix.as_deref(), "mysql"));
    arguments.extend([
        // Debian's packages compile in a folder that does not exist, which ends the start.
        "--secure-file-priv=NULL".to_owned(),
        // It is as large as the buffer pool, as MariaDB's is. Servers before 8.0.30 do not know it and keep 96 MB.
        format!("--loose-innodb-redo-log-capacity={}M", settings.buffer_pool_mib),
    ]);
    arguments
}
