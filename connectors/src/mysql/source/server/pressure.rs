//! Asks how busy a server is from which whole tables are read, and how far it has replicated.

use std::time::Duration;

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::{SourceConnector, SourcePressure};
use mysql_async::Row;

use super::session::{Version, literal, written_gtids};
use crate::mysql::source::MysqlSource;
use crate::mysql::source::decode::gtid::Flavor;

impl MysqlSource {
    /// Returns the GTIDs of its binlog.
    pub(in crate::mysql::source) async fn present_end(&self) -> Result<String, Fault> {
        let ask = written_gtids(self.present_flavor().await?);
        let rows = self.questions.rows(ask.to_owned()).await?;
        Ok(rows.into_iter().next().and_then(|row| row.get(0)).unwrap_or_default())
    }

    /// Whether the replica has applied everything up to `end`; `false` for a server that replicates no more.
    pub(in crate::mysql::source) async fn reaches(&self, end: &str) -> Result<bool, Fault> {
        let wait = match self.present_flavor().await? {
            Flavor::MariaDb => "MASTER_GTID_WAIT",
            Flavor::MySql => "WAIT_FOR_EXECUTED_GTID_SET",
        };
        let rows = self.questions.rows(format!("SELECT {wait}({}, 1)", literal(end))).await?;
        Ok(rows.first().and_then(|row| row.get::<Option<i64>, _>(0).flatten()) == Some(0))
    }

    pub(in crate::mysql::source) async fn present_pressure(&self) -> Result<SourcePressure, Fault> {
        let (replicas, lag) = match self.present_flavor().await? {
            Flavor::MariaDb => ("SHOW ALL SLAVES STATUS", "Seconds_Behind_Master"),
            Flavor::MySql => ("SHOW REPLICA STATUS", "Seconds_Behind_Source"),
        };
        let threads = "SHOW GLOBAL STATUS LIKE 'Threads\\_running'".to_owned();
        let threads = self.questions.rows(threads).await?.into_iter().next();
        let text = threads.and_then(|row| row.get::<String, _>(1)).unwrap_or_default();
        // A server that is no replica has no rows.
        let (replica, lag_unknown) = match self.questions.rows(replicas.to_owned()).await {
            Ok(rows) => (rows, None),
            Err(fault) => (Vec::new(), Some(fault.to_string())),
        };
        let lag = |row: &Row| row.get::<Option<u64>, _>(lag).flatten();
        Ok(SourcePressure {
            head: self.head().await?,
            running_threads: text.parse().unwrap_or(0),
            replica_lag: replica.iter().filter_map(lag).max().map(Duration::from_secs),
            lag_unknown,
        })
    }

    /// Asks for the flavor each time, as the address may lead to another server than before.
    async fn present_flavor(&self) -> Result<Flavor, Fault> {
        let rows = self.questions.rows("SELECT @@version".to_owned()).await?;
        let version: String = rows.first().and_then(|row| row.get(0)).unwrap_or_default();
        Ok(Version::parse(&version).flavor)
    }
}
