//! The parts of a server that its kind decides: preparation, start, readiness, accounts and addresses.

use std::path::PathBuf;

use crate::error::Result;
use crate::managed_server::ManagedServer;
use crate::process::Launch;
use crate::spec::Kind;
use crate::{database, mariadb, mysql, nats, prometheus, redis, search};

impl ManagedServer {
    /// Makes the data of a server that was never ready; removes the remains of a failed attempt first.
    pub(crate) fn prepare(&self) -> Result<()> {
        match &self.record.spec.kind {
            Kind::MariaDb(version, settings) => mariadb::prepare(self, *version, settings),
            Kind::MySql(settings) => mysql::prepare(self, settings),
            Kind::Nats(_) => nats::prepare(self),
            Kind::Redis(_) => redis::prepare(self),
            Kind::Search(_) => search::prepare(self),
            Kind::Prometheus(_) => prometheus::prepare(self),
        }
    }

    /// Returns the command of a start, with flags for this start only.
    pub(crate) fn launch(&self, extra_flags: &[String]) -> Result<Launch> {
        let flags: Vec<String> = self.record.spec.flags.iter().chain(extra_flags).cloned().collect();
        let mut launch = match &self.record.spec.kind {
            Kind::MariaDb(version, settings) => mariadb::launch(self, *version, settings, flags),
            Kind::MySql(settings) => mysql::launch(self, settings, flags),
            Kind::Nats(settings) => nats::launch(self, settings, flags),
            Kind::Redis(settings) => redis::launch(self, settings, flags),
            Kind::Search(settings) => search::launch(self, settings, flags),
            Kind::Prometheus(settings) => prometheus::launch(self, settings, flags),
        }?;
        if self.record.spec.has_own_clock {
            launch.environment.extend(self.clock().variables(&self.programs)?);
        }
        self.relieve(&mut launch);
        Ok(launch)
    }

    /// Preloads `libeatmydata` into the program if its server skips fsync and the machine has the library.
    fn relieve(&self, launch: &mut Launch) {
        if let Some(library) = self.relief() {
            launch.preload(&library);
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        match &self.record.spec.kind {
            Kind::MariaDb(..) | Kind::MySql(_) => database::is_ready(self),
            Kind::Nats(_) => nats::is_ready(self),
            Kind::Redis(_) => redis::is_ready(self),
            Kind::Search(_) => search::is_ready(self),
            Kind::Prometheus(_) => prometheus::is_ready(self),
        }
    }

    /// Removes files with passwords that only the first start needs.
    pub(crate) fn forget_secrets(&self) -> Result<()> {
        match &self.record.spec.kind {
            Kind::MariaDb(..) | Kind::MySql(_) => database::forget_accounts(self),
            Kind::Nats(_) | Kind::Redis(_) | Kind::Search(_) | Kind::Prometheus(_) => Ok(()),
        }
    }

    pub(crate) fn log_file(&self) -> PathBuf {
        match &self.record.spec.kind {
            Kind::MariaDb(..) | Kind::MySql(_) => self.folder.join("error.log"),
            Kind::Nats(_) => self.folder.join("nats.log"),
            Kind::Redis(_) => self.folder.join("redis.log"),
            Kind::Search(_) | Kind::Prometheus(_) => self.output(),
        }
    }

    /// Returns the product's account.
    pub(crate) fn user(&self) -> &'static str {
        match &self.record.spec.kind {
            Kind::MariaDb(_, settings) | Kind::MySql(settings) => database::user(settings.account),
            Kind::Nats(_) => nats::USER,
            Kind::Redis(_) => redis::USER,
            Kind::Search(_) => search::USER,
            // Prometheus has no accounts.
            Kind::Prometheus(_) => "",
        }
    }

    pub(crate) fn url(&self) -> String {
        if matches!(self.record.spec.kind, Kind::Prometheus(_)) {
            return format!("http://127.0.0.1:{}", self.record.port);
        }
        self.url_as(self.user(), &self.record.password)
    }

    /// Returns the URL of the product's set-up account, if the kind has one.
    pub(crate) fn setup_url(&self) -> Option<String> {
        let user = match &self.record.spec.kind {
            Kind::MariaDb(_, settings) | Kind::MySql(settings) => database::setup_user(settings.account)?,
            Kind::Search(_) => search::SETUP_USER,
            Kind::Nats(nats) if nats.accounts_of.is_some() => nats::SETUP_USER,
            Kind::Nats(_) | Kind::Redis(_) | Kind::Prometheus(_) => return None,
        };
        Some(self.url_as(user, &self.record.password))
    }

    /// Returns the URL of the account that may do everything; for NATS it is the product's.
    pub(crate) fn admin_url(&self) -> String {
        match &self.record.spec.kind {
            Kind::MariaDb(..) | Kind::MySql(_) => {
                self.url_as(database::ADMIN_USER, &self.record.admin_password)
            }
            Kind::Redis(_) => self.url_as(redis::ADMIN_USER, &self.record.admin_password),
            Kind::Search(_) => self.url_as(search::ADMIN_USER, &self.record.admin_password),
            Kind::Nats(_) | Kind::Prometheus(_) => self.url(),
        }
    }

    fn url_as(&self, user: &str, password: &str) -> String {
        let scheme = match (&self.record.spec.kind, self.record.spec.is_plain) {
            (Kind::MariaDb(..) | Kind::MySql(_), _) => "mysql",
            (Kind::Nats(_), false) => "tls",
            (Kind::Nats(_), true) => "nats",
            (Kind::Redis(_), false) => "rediss",
            (Kind::Redis(_), true) => "redis",
            (Kind::Search(_), false) => "https",
            (Kind::Search(_), true) | (Kind::Prometheus(_), _) => "http",
        };
        format!("{scheme}://{user}:{password}@127.0.0.1:{}", self.record.port)
    }

    /// Returns the variables of this server without the `ANABRANCH_<SERVER>_` prefix.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        let mut variables = vec![
            ("URL", self.url()),
            ("HOST", "127.0.0.1".to_owned()),
            ("PORT", self.record.port.to_string()),
            ("USER", self.user().to_owned()),
            ("PASSWORD", self.record.password.clone()),
        ];
        variables.extend(self.setup_url().map(|url| ("SETUP_URL", url)));
        match &self.record.spec.kind {
            Kind::MariaDb(..) | Kind::MySql(_) | Kind::Redis(_) | Kind::Search(_) => {
                variables.push(("ADMIN_URL", self.admin_url()));
                variables.push(("ADMIN_PASSWORD", self.record.admin_password.clone()));
            }
            Kind::Prometheus(_) => {}
            Kind::Nats(_) => {
                variables.push(("MONITOR_URL", format!("http://127.0.0.1:{}", self.record.second_port)));
            }
        }
        variables
    }
}
