//! A MariaDB or MySQL server for workload, probe and verification: they use its administrator's account, over verified
//! TLS.
//!
//! They act as the application and as an auditor, so they share no connection code with the product.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anabranch_stack::{Server, Stack};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder, SslOpts};

use crate::error::{DemoError, Result};

/// Shows the end of the binlog. MariaDB runs the text after `M!`, MySQL the text after the version.
pub const SHOW_BINLOG_END: &str = "/*M! SHOW MASTER STATUS */ /*!80400 SHOW BINARY LOG STATUS */";
/// Deletes the binlog, which then counts from the beginning.
pub const FORGET_BINLOG: &str = "/*M! RESET MASTER */ /*!80400 RESET BINARY LOGS AND GTIDS */";

/// Limit of a statement: on a working server none takes as long, and a paused server does not answer at all.
pub const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Address and account of one server.
#[derive(Clone)]
pub struct Endpoint {
    /// Name of the server in the stack, and of the source or target in the daemon's configuration.
    pub name: String,
    pub port: u16,
    pub user: String,
    pub password: String,
    pub ca_file: PathBuf,
}

impl Endpoint {
    /// Returns a server of the stack, with the account that may do everything.
    pub fn admin(stack: &Stack, name: &str) -> Result<Self> {
        Ok(Self::of(&*stack.server(name)?, stack.ca_file()))
    }

    fn of(server: &Server, ca_file: PathBuf) -> Self {
        Self {
            name: server.name().to_owned(),
            port: server.port(),
            user: "root".to_owned(),
            password: server.admin_password().to_owned(),
            ca_file,
        }
    }

    /// Opens a connection and runs the statements of `setup` on it.
    pub async fn connect(&self, setup: &[&str]) -> Result<Connection> {
        let tls = SslOpts::default()
            .with_root_certs(vec![self.ca_file.clone().into()])
            .with_disable_built_in_roots(true);
        let options = OptsBuilder::default()
            .ip_or_hostname("127.0.0.1")
            .tcp_port(self.port)
            .user(Some(&self.user))
            .pass(Some(&self.password))
            .prefer_socket(false)
            .stmt_cache_size(0)
            .setup(setup.iter().map(|&statement| statement.to_owned()).collect())
            .ssl_opts(tls);
        let action = "connect";
        let conn = self.answer(action, Conn::new(options)).await?;
        Ok(Connection { endpoint: self.clone(), conn })
    }

    async fn answer<T>(
        &self,
        action: &'static str,
        call: impl Future<Output = Result<T, mysql_async::Error>>,
    ) -> Result<T> {
        match tokio::time::timeout(SILENCE_MAX, call).await {
            Ok(answer) => {
                answer.map_err(|source| DemoError::Server { server: self.name.clone(), action, source })
            }
            Err(_) => Err(DemoError::ServerSilent {
                server: self.name.clone(),
                action,
                seconds: SILENCE_MAX.as_secs(),
            }),
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@127.0.0.1:{}", self.name, self.port)
    }
}

/// An open connection. After an error that [`DemoError::is_lost_connection`] names, open another.
#[derive(Debug)]
pub struct Connection {
    endpoint: Endpoint,
    conn: Conn,
}

impl Connection {
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Runs one or more statements in one round trip; the first error ends them.
    pub async fn execute(&mut self, action: &'static str, sql: impl AsRef<str>) -> Result<()> {
        self.endpoint.answer(action, self.conn.query_drop(sql.as_ref())).await
    }

    pub async fn rows<T>(&mut self, action: &'static str, sql: impl AsRef<str>) -> Result<Vec<T>>
    where
        T: mysql_async::prelude::FromRow + Send + 'static,
    {
        self.endpoint.answer(action, self.conn.query(sql.as_ref())).await
    }

    pub async fn first<T>(&mut self, action: &'static str, sql: impl AsRef<str>) -> Result<Option<T>>
    where
        T: mysql_async::prelude::FromRow + Send + 'static,
    {
        self.endpoint.answer(action, self.conn.query_first(sql.as_ref())).await
    }
}
