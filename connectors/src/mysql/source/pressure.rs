//! How busy a server is that whole tables are read from.

use std::time::Duration;

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::{Pressure, SourceConnector};
use mysql_async::Row;

use super::MysqlSource;

impl MysqlSource {
    pub(super) async fn present_pressure(&self) -> Result<Pressure, Fault> {
        let threads = "SHOW GLOBAL STATUS LIKE 'Threads\\_running'".to_owned();
        let threads = self.questions.rows(threads).await?.into_iter().next();
        let text = threads.and_then(|row| row.get::<String, _>(1)).unwrap_or_default();
        // A server that is no replica has no rows; who may not look (SLAVE MONITOR) is not told either.
        let replica = self.questions.rows("SHOW ALL SLAVES STATUS".to_owned()).await.unwrap_or_default();
        let lag = |row: &Row| row.get::<Option<u64>, _>("Seconds_Behind_Master").flatten();
        Ok(Pressure {
            head: self.head().await?,
            running_threads: text.parse().unwrap_or(0),
            replica_lag: replica.iter().filter_map(lag).max().map(Duration::from_secs),
        })
    }
}
