//! A bounded number of connections to a server, for queries that come at any time.
//!
//! The address of a server may lead to another one, as after a switch-over. A pool follows it in two ways. After an
//! error that says that the server has lost its role, all of its connections end. Each other connection ends after
//! [`LIFE_MAX`]: a query that only reads gets no error from the old server, and would read its old rows for ever.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anabranch_pipeline::config::ServerUrl;
use anabranch_pipeline::error::{Code, Fault};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, PoolConstraints, PoolOpts, Row};

use super::answer;
use super::connection::async_options;
use super::error::{Side, from_async, has_lost_its_role};
use super::pool_use::{PoolName, ShownPool};
use super::remedy::with_remedy;
use crate::refusals::Account;

/// Limit of waiting for a connection, connecting and the answer together.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Limit of the orderly end of a connection.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Life of an idle connection. Without it the pool would keep none, and each query would begin with a TLS handshake,
/// which costs ten times as much as its answer.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// Life of a connection, also of one that is always busy. It is the longest time for which a query reads the rows of a
/// server to which the address leads no more. A handshake a minute costs nothing beside the queries of a minute.
pub(super) const LIFE_MAX: Duration = Duration::from_secs(60);

/// No gap is ever locked: lanes insert into the outbox while it is drained. A single statement is a transaction of its
/// own, whatever the server's default is: otherwise nothing would be committed, and old snapshots would be read.
const SESSION: &str = "SET SESSION autocommit = 1; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";

/// Connections that are made when they are needed and kept for the next query.
#[derive(Debug, Clone)]
pub(super) struct Pool {
    side: Side,
    subject: String,
    account: Account,
    options: Opts,
    /// The library's pool, which [`Self::discard_after`] replaces for all clones.
    current: Arc<Mutex<mysql_async::Pool>>,
    connections_max: usize,
    /// `None` until [`Self::shown`] has registered the pool.
    shown: Option<Arc<ShownPool>>,
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
            .with_abs_conn_ttl(Some(LIFE_MAX))
            .with_reset_connection(false);
        let options = Opts::from(async_options(url, ca_file).init(vec![session]).pool_opts(pool));
        let current = Arc::new(Mutex::new(mysql_async::Pool::new(options.clone())));
        Self {
            side,
            subject,
            account: Account::of(url, ca_file),
            options,
            current,
            connections_max,
            shown: None,
        }
    }

    /// Shows the use of the pool in the metrics of this process: of this server, for this kind of work.
    pub(super) fn shown(mut self, server: &str, work: &'static str) -> Self {
        let dependency = match self.side {
            Side::Source => "source",
            Side::Target => "target",
        };
        let name = PoolName { dependency, name: server.to_owned(), pool: work };
        self.shown = Some(ShownPool::register(name, self.connections_max, self.current().metrics()));
        self
    }

    /// Returns the rows of one statement.
    pub(super) async fn rows(&self, sql: String) -> Result<Vec<Row>, Fault> {
        let work = async {
            let mut connection = self.current().get_conn().await?;
            connection.query::<Row, _>(sql).await
        };
        self.account.connect(self.side.denied(), &self.subject, self.within(TIMEOUT, work)).await
    }

    /// Returns the rows of each of several statements that has any columns.
    pub(super) async fn sets(&self, limit: Duration, sql: String) -> Result<Vec<Vec<Row>>, Fault> {
        let work = async {
            let mut connection = self.current().get_conn().await?;
            answer::sets(&mut connection, &sql).await
        };
        self.account.connect(self.side.denied(), &self.subject, self.within(limit, work)).await
    }

    /// Returns a connection for several statements.
    pub(super) async fn connection(&self) -> Result<Conn, Fault> {
        let connecting = self.within(TIMEOUT, async { self.current().get_conn().await });
        self.account.connect(self.side.denied(), &self.subject, connecting).await
    }

    /// Ends all connections after an error by which the server has lost its role. Idle ones end now, and those in use
    /// with their work. Otherwise each of them would bring the same error, for as long as it is used.
    ///
    /// [`Self::within`] calls it; work that classifies its errors itself calls it for each of them.
    pub(super) fn discard_after(&self, error: &mysql_async::Error) {
        if !has_lost_its_role(error) {
            return;
        }
        let fresh = mysql_async::Pool::new(self.options.clone());
        if let Some(shown) = &self.shown {
            shown.replace(fresh.metrics());
        }
        // The library closes idle connections of a pool once its last handle is dropped.
        *self.lock() = fresh;
    }

    fn current(&self) -> mysql_async::Pool {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, mysql_async::Pool> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
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
                self.discard_after(&error);
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

#[cfg(test)]
mod tests {
    use mysql_async::ServerError;

    use super::*;

    #[test]
    fn connections_end_after_their_life_and_when_the_server_has_lost_its_role() {
        let url = ServerUrl::try_from("mysql://user:password@127.0.0.1:1".to_owned()).unwrap();
        let pool = Pool::new((Side::Target, "target".to_owned()), &url, None, 2);
        assert_eq!(pool.options.pool_opts().abs_conn_ttl(), Some(LIFE_MAX));

        let (clone, before) = (pool.clone(), pool.current().metrics());
        let is_replaced = |code| {
            let (message, state) = (String::new(), String::new());
            pool.discard_after(&mysql_async::Error::Server(ServerError { code, message, state }));
            !Arc::ptr_eq(&before, &clone.current().metrics())
        };
        assert!(!is_replaced(1213), "a deadlock says nothing of the server");
        assert!(is_replaced(1290));
    }
}
