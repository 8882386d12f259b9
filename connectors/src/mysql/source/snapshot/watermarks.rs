//! Finds the two positions of the binlog between which a snapshot is.
//!
//! MariaDB reports the exact position of a snapshot (`Binlog_snapshot_position`). A transaction that is in the binlog
//! but not visible yet, because it waits for a replica's acknowledgement, is after that position. The GTID variables
//! run ahead of the visible state (measured).
//!
//! MySQL reports no such position, but a low and a high watermark follow from its answers:
//!
//! - *Low*: the end of the binlog, read before the transactions that are being committed (`gtid_owned`). A transaction
//!   has its GTID before it is in the binlog, and loses its owner when the engine commits it. So once none of them has
//!   an owner any more, a snapshot that begins now sees all changes up to that end.
//! - *High*: the end of the binlog once the snapshot exists. A change that the engine has committed was in the binlog
//!   before.
//!
//! A commit takes as long as the wait for a replica's acknowledgement, and the low watermark waits for it. No lock is
//! taken.

use std::collections::BTreeSet;
use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::envelope::ServerIdentity;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, QueryResult, Row, TextProtocol};
use tokio::time::Instant;

use super::TIMEOUT;
use crate::mysql::source::MysqlSource;
use crate::mysql::source::decode::gtid::{Flavor, OWNED, owned};
use crate::mysql::source::server::session::{Version, binlog_off};

/// Pause before transactions that are being committed are queried again; it doubles each time up to the longest.
const ASK: Duration = Duration::from_millis(1);
const ASK_MAX: Duration = Duration::from_millis(100);
/// Limit of the wait for a commit: longer than a server by default waits for a replica's acknowledgement
/// (`rpl_semi_sync_source_timeout`, 10 s).
const COMMIT_MAX: Duration = Duration::from_secs(30);

/// A point in the binlog: file and position.
pub(super) type BinlogCoordinates = (String, u64);

/// The statements for the kind and version of a server from which rows are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dialect {
    flavor: Flavor,
    show_end: &'static str,
}

impl Dialect {
    /// Returns the dialect of a server with this `@@version`.
    pub(super) fn of(version: &str) -> Self {
        let version = Version::parse(version);
        Self { flavor: version.flavor, show_end: version.show_end() }
    }

    /// Returns the query for the server's version and id.
    pub(super) fn identity(self) -> &'static str {
        match self.flavor {
            Flavor::MariaDb => "SELECT @@version, CAST(@@server_id AS CHAR)",
            Flavor::MySql => "SELECT @@version, @@server_uuid",
        }
    }

    pub(super) fn server(self, id: String) -> ServerIdentity {
        ServerIdentity { flavor: self.flavor.as_str().to_owned(), id }
    }

    /// Returns the statements that begin a snapshot and ask for its position (MariaDB) or its high watermark (MySQL).
    pub(super) fn begin(self) -> String {
        let show_place = match self.flavor {
            Flavor::MariaDb => "SHOW STATUS LIKE 'Binlog\\_snapshot\\_%'",
            Flavor::MySql => self.show_end,
        };
        format!("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY; {show_place}; ")
    }

    /// Reads the answers to [`Self::begin`].
    pub(super) async fn begun(
        self,
        results: &mut QueryResult<'_, '_, TextProtocol>,
    ) -> Result<Option<BinlogCoordinates>, mysql_async::Error> {
        results.collect::<Row>().await?;
        Ok(match self.flavor {
            Flavor::MariaDb => {
                let variables = results.collect::<(String, String)>().await?;
                let of = |name: &str| {
                    let found = variables.iter().find(|(variable, _)| variable.eq_ignore_ascii_case(name));
                    found.map(|(_, value)| value.clone()).filter(|value| !value.is_empty())
                };
                let position = of("Binlog_snapshot_position").and_then(|text| text.parse().ok());
                of("Binlog_snapshot_file").map(|file| (file, position.unwrap_or(0)))
            }
            Flavor::MySql => results.collect::<Row>().await?.first().and_then(end),
        })
    }
}

/// Reads a row of the statement that shows the end of the binlog.
fn end(row: &Row) -> Option<BinlogCoordinates> {
    Some((row.get(0)?, row.get(1)?))
}

impl MysqlSource {
    /// Returns the dialect of the connected server; it is kept until a query fails.
    pub(super) async fn dialect(&self, connection: &mut Conn) -> Result<Dialect, Fault> {
        if let Some(kept) = self.plans.dialect() {
            return Ok(kept);
        }
        let ask = connection.query_first::<String, _>("SELECT @@version");
        let version = self.snapshots.within(TIMEOUT, ask).await?;
        let dialect = Dialect::of(&version.unwrap_or_default());
        self.plans.set_dialect(Some(dialect));
        Ok(dialect)
    }

    /// Returns a position up to which every snapshot that begins from now on sees all changes; `None` if a snapshot
    /// reports its own position.
    pub(super) async fn low_watermark(
        &self,
        connection: &mut Conn,
        dialect: Dialect,
    ) -> Result<Option<BinlogCoordinates>, Fault> {
        if dialect.flavor == Flavor::MariaDb {
            return Ok(None);
        }
        let ask = async {
            let mut results = connection.query_iter(format!("{}; {OWNED}", dialect.show_end)).await?;
            let low = results.collect::<Row>().await?;
            let owned = results.collect::<String>().await?;
            results.drop_result().await?;
            Ok((low, owned))
        };
        let (low, found) = self.snapshots.within(TIMEOUT, ask).await?;
        let low = low.first().and_then(end).ok_or_else(|| binlog_off(&self.address.subject))?;
        let (began, mut pause) = (Instant::now(), ASK);
        let mut committing: BTreeSet<String> = found.iter().flat_map(|list| owned(list)).collect();
        while let Some(gtid) = committing.first() {
            if began.elapsed() > COMMIT_MAX {
                let found = format!("transaction {gtid} has been under way for {} s", COMMIT_MAX.as_secs());
                return Err(self.fault(Code::SourceUnreachable, found).needs(
                    "its end: it waits for a replica's acknowledgement, this replica still applies it, or a session \
                     set gtid_next to it and committed nothing",
                ));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(ASK_MAX);
            let ask = connection.query_first::<String, _>(OWNED);
            let still = self.snapshots.within(TIMEOUT, ask).await?;
            let still: BTreeSet<String> = still.iter().flat_map(|list| owned(list)).collect();
            committing.retain(|gtid| still.contains(gtid));
        }
        Ok(Some(low))
    }
}
