//! A bounded number of connections to a server, for queries that come at any time.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anabranch_pipeline::config::ServerUrl;
use anabranch_pipeline::error::{Code, Fault};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, PoolConstraints, PoolOpts, Row};

use super::answer;
use super::connection::async_options;
use super::error::{Side, from_async};
use super::pool_use::{PoolName, ShownPool};
use super::refusals::Account;
use super::remedy::with_remedy;

/// Limit of waiting for a connection, connecting and the answer together.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Limit of the orderly end of a connection.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Life of an idle connection. Without it the pool would keep none, and each query would begin with a TLS handshake,
/// which costs ten times as much as its answer.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// No gap is ever locked: lanes insert into the outbox while it is drained. A single statement is a transaction of its
/// own, whatever the server's default is: otherwise nothing would be committed, and old snapshots would be read.
const SESSION: &str = "SET SESSION autocommit = 1; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";

/// Connections that are made when they are needed and kept for the next query.
#[derive(Debug, Clone)]
pub(super) struct Pool {
    side: Side,
    subject: String,
    account: Account,
    pool: mysql_async::Pool,
    connections_max: usize,
    /// `None` until [`Self::shown`] has registered the pool.
    _shown: Option<Arc<ShownPool>>,
}

impl Pool {
    /// Makes a pool; `subject` is the server's name in faults.
    pub(super) fn new(
        (side, subject): (Side, String),
        url: &ServerUrl,
        ca_file: Option<&Path>,
        connections: usize,
    ) -> Self {
        Self::with_session((side, subject), url, ca_file, connections, SESSION)
    }

    /// Makes a pool whose connections begin with these statements, in one text: a list would be run from its end.
    pub(super) fn with_session(
        (side, subject): (Side, String),
        url: &ServerUrl,
        ca_file: Option<&Path>,
        connections: usize,
        session: &str,
    ) -> Self {
        let connections_max = connections.max(1);
        let constraints = PoolConstraints::new(0, connections_max).expect("0 is not above the maximum");
        let pool = PoolOpts::default()
            .with_constraints(constraints)
            .with_inactive_connection_ttl(IDLE_MAX)
            .with_reset_connection(false);
        let options = async_options(url, ca_file).init(vec![session]).pool_opts(pool);
        let (account, pool) = (Account::of(url, ca_file), mysql_async::Pool::new(options));
        Self { side, subject, account, pool, connections_max, _shown: None }
    }

    /// Shows the use of the pool in the metrics of this process: of this server, for this kind of work.
    pub(super) fn shown(mut self, server: &str, work: &'static str) -> Self {
        let dependency = match self.side {
            Side::Source => "source",
            Side::Target => "target",
        };
        let name = PoolName { dependency, name: server.to_owned(), pool: work };
        self._shown = Some(ShownPool::register(name, self.connections_max, self.pool.metrics()));
        self
    }

    /// Returns the rows of one statement.
    pub(super) async fn rows(&self, sql: String) -> Result<Vec<Row>, Fault> {
        let work = async {
            let mut connection = self.pool.get_conn().await?;
            connection.query::<Row, _>(sql).await
        };
        self.account.connect(self.side, &self.subject, self.within(TIMEOUT, work)).await
    }

    /// Returns the rows of each of several statements that has any columns.
    pub(super) async fn sets(&self, limit: Duration, sql: String) -> Result<Vec<Vec<Row>>, Fault> {
        let work = async {
            let mut connection = self.pool.get_conn().await?;
            answer::sets(&mut connection, &sql).await
        };
        self.account.connect(self.side, &self.subject, self.within(limit, work)).await
    }

    /// Returns a connection for several statements.
    pub(super) async fn connection(&self) -> Result<Conn, Fault> {
        let connecting = self.within(TIMEOUT, self.pool.get_conn());
        self.account.connect(self.side, &self.subject, connecting).await
    }

    /// Ends a connection instead of keeping it for the next query, and with it what its session holds.
    pub(super) async fn discard(connection: Conn) {
        // The server ends the session when it sees the end of the connection, so no answer is needed.
        _ = tokio::time::timeout(END_TIMEOUT, connection.disconnect()).await;
    }

    /// Runs work on one of the connections; returns its outcome, or a fault when it exceeds the limit.
    pub(super) async fn within<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = Result<T, mysql_async::Error>>,
    ) -> Result<T, Fault> {
        match tokio::time::timeout(limit, work).await {
            Ok(outcome) => outcome.map_err(|error| {
                let fault = from_async(self.side, &self.subject, error);
                match self.side {
                    Side::Source => fault,
                    Side::Target => with_remedy(fault),
                }
            }),
            Err(_) => {
                let code = match self.side {
                    Side::Source => Code::SourceUnreachable,
                    Side::Target => Code::TargetUnreachable,
                };
                Err(Fault::new(code, &self.subject, format!("no answer within {} s", limit.as_secs())))
            }
        }
    }
}
