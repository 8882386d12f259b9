//! Asks where the binlog of a server begins and ends now. One connection is kept for the end, which is polled.

use anabranch_pipeline::error::Fault;
use anabranch_schemas::lsn::{FIRST_EPOCH, Lsn};

use super::session::{Session, binlog_off};
use crate::mysql::source::MysqlSource;

impl MysqlSource {
    /// Returns the kept connection, or a new one. The caller puts it back only after an answer, so that a cancelled or
    /// failed query never leaves one half-used.
    pub(super) async fn taken_out(&self, kept: &mut Option<Session>) -> Result<Session, Fault> {
        match kept.take() {
            Some(session) => Ok(session),
            None => Session::open(&self.address).await,
        }
    }

    /// Returns the GTIDs of the binlog up to its present end, in the server's own notation.
    pub async fn written_gtids(&self) -> Result<String, Fault> {
        let mut kept = self.head.lock().await;
        let mut session = self.taken_out(&mut kept).await?;
        let gtid_set = session.written_gtids().await?;
        *kept = Some(session);
        Ok(gtid_set)
    }

    /// Returns the end of the binlog, and the server's clock in microseconds since the Unix epoch. Commit times are of
    /// this clock.
    pub async fn head_and_clock(&self) -> Result<(Lsn, u64), Fault> {
        let mut kept = self.head.lock().await;
        let mut session = self.taken_out(&mut kept).await?;
        let (file, position) = session.end_position().await?;
        let clock_us = session.text("SELECT CAST(FLOOR(UNIX_TIMESTAMP(NOW(6)) * 1000000) AS CHAR)").await?;
        *kept = Some(session);
        let clock_us = clock_us.parse().unwrap_or_default();
        Ok((self.lsn(FIRST_EPOCH, &file, position)?, clock_us))
    }

    /// Returns the oldest file of the binlog.
    pub(in crate::mysql::source) async fn oldest(&self, session: &mut Session) -> Result<String, Fault> {
        let logs = session.binlogs().await?;
        logs.into_iter().next().map(|(name, _)| name).ok_or_else(|| binlog_off(&self.address.subject))
    }
}
