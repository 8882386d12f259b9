//! The database that the suites run on: the common MariaDB, or another one that `ANABRANCH_TEST_DATABASE` names.
//!
//! A test asks for a server of the common MariaDB. With the variable, every ground and place starts a server of the
//! other kind under the same name, so the same tests run on it. A server of another kind stays as it is.

use anabranch_stack::{Kind, MariaDbVersion, ServerSpec};

/// The variable that names the database, see [`TestDatabase::name`].
pub const DATABASE_VARIABLE: &str = "ANABRANCH_TEST_DATABASE";

/// The database that takes the place of the common MariaDB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TestDatabase {
    MariaDb,
    MariaDb11,
    MySql,
}

impl TestDatabase {
    /// The database's name in [`DATABASE_VARIABLE`].
    pub const fn name(self) -> &'static str {
        match self {
            Self::MariaDb => "mariadb",
            Self::MariaDb11 => "mariadb-11",
            Self::MySql => "mysql",
        }
    }

    /// The database of this process.
    ///
    /// # Panics
    /// Panics when the variable names no known database.
    pub fn chosen() -> Self {
        let Ok(name) = std::env::var(DATABASE_VARIABLE) else { return Self::MariaDb };
        let all = [Self::MariaDb, Self::MariaDb11, Self::MySql];
        let known = all.into_iter().find(|database| database.name() == name);
        known
            .unwrap_or_else(|| panic!("{DATABASE_VARIABLE}={name}, and not one of {:?}", all.map(Self::name)))
    }

    /// The server of this database that replaces one of the common MariaDB; any other server stays as it is.
    #[must_use]
    pub fn server(self, spec: ServerSpec) -> ServerSpec {
        let Kind::MariaDb(MariaDbVersion::Common, settings) = spec.kind.clone() else { return spec };
        match self {
            Self::MariaDb => spec,
            Self::MariaDb11 => ServerSpec { kind: Kind::MariaDb(MariaDbVersion::Eleven, settings), ..spec },
            Self::MySql => {
                let flags = spec.flags.into_iter().filter_map(flag_of_mysql).collect();
                ServerSpec { kind: Kind::MySql(settings), flags, ..spec }
            }
        }
    }
}

/// MySQL's flag in place of MariaDB's; `None` when MySQL has no such flag.
fn flag_of_mysql(flag: String) -> Option<String> {
    match flag.as_str() {
        "--log-bin-compress=ON" => Some("--binlog-transaction-compression=ON".to_owned()),
        domain if domain.starts_with("--gtid-domain-id=") => None,
        _ => Some(flag),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_servers_of_the_common_mariadb_become_others_and_keep_their_names() {
        let source =
            || ServerSpec::mariadb_source("a").flag("--log-bin-compress=ON").flag("--gtid-domain-id=1");
        assert_eq!(TestDatabase::MariaDb.server(source()), source());
        assert_eq!(
            TestDatabase::MariaDb11.server(ServerSpec::mariadb_target("t")),
            ServerSpec::mariadb_11_target("t")
        );
        let compressed = ServerSpec::mysql_source("a").flag("--binlog-transaction-compression=ON");
        assert_eq!(TestDatabase::MySql.server(source()), compressed);
        for other in
            [ServerSpec::mariadb_11_source("a"), ServerSpec::mysql_source("a"), ServerSpec::nats("n")]
        {
            assert_eq!(TestDatabase::MySql.server(other.clone()), other);
        }
    }
}
