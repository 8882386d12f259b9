//! A bounded number of connections to a target, for questions that come at any time.

use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use mysql_async::prelude::Queryable;
use mysql_async::{PoolConstraints, PoolOpts, Row};

use super::{MysqlTarget, with_remedy};
use crate::mysql::connection::async_options;
use crate::mysql::error::{Side, from_async};

/// Waiting for a connection, connecting and the answer together.
const TIMEOUT: Duration = Duration::from_secs(10);

/// No gap is ever locked: lanes insert into the outbox while it is drained.
const SESSION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";

/// Connections that are made when they are needed and kept for the next question.
#[derive(Debug, Clone)]
pub(super) struct Pool {
    subject: String,
    pool: mysql_async::Pool,
}

impl Pool {
    pub(super) fn new(target: &MysqlTarget, connections: usize) -> Self {
        let constraints = PoolConstraints::new(0, connections.max(1)).expect("0 is not above the maximum");
        let options = async_options(&target.0.url, target.0.ca_file.as_deref())
            .init(vec![SESSION])
            .pool_opts(PoolOpts::default().with_constraints(constraints).with_reset_connection(false));
        Self { subject: target.subject(), pool: mysql_async::Pool::new(options) }
    }

    /// One statement's rows.
    pub(super) async fn rows(&self, sql: String) -> Result<Vec<Row>, Fault> {
        let work = async {
            let mut connection = self.pool.get_conn().await?;
            connection.query::<Row, _>(sql).await
        };
        match tokio::time::timeout(TIMEOUT, work).await {
            Ok(rows) => rows.map_err(|error| with_remedy(from_async(Side::Target, &self.subject, error))),
            Err(_) => {
                let found = format!("no answer within {} s", TIMEOUT.as_secs());
                Err(Fault::new(Code::TargetUnreachable, &self.subject, found))
            }
        }
    }
}
