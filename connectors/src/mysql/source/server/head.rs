//! Where the binlog of a server begins and ends now. The end is asked for again and again, on one connection that is
//! kept.

use anabranch_pipeline::error::Fault;
use anabranch_schemas::lsn::{FIRST_EPOCH, Lsn};

use super::session::{Session, binlog_off};
use crate::mysql::source::MysqlSource;

impl MysqlSource {
    /// The kept connection, or a new one. It is put back after an answer only, so that a cancelled or failed question
    /// never leaves a half-used one behind.
    pub(super) async fn taken_out(&self, kept: &mut Option<Session>) -> Result<Session, Fault> {
        match kept.take() {
            Some(session) => Ok(session),
            None => Session::open(&self.address).await,
        }
    }

    /// The GTIDs of the binlog up to its present end, in the server's own notation.
    pub async fn written_gtids(&self) -> Result<String, Fault> {
        let mut kept = self.head.lock().await;
        let mut session = self.taken_out(&mut kept).await?;
        let gtid_set = session.written_gtids().await?;
        *kept = Some(session);
        Ok(gtid_set)
    }

    /// The end of the binlog, and the server's clock beside it: microseconds since the Unix epoch. Commit times are
    /// of this clock.
    pub async fn head_and_clock(&self) -> Result<(Lsn, u64), Fault> {
        let mut kept = self.head.lock().await;
        let mut session = self.taken_out(&mut kept).await?;
        let (file, position) = session.end_position().await?;
        let clock_us = session.text("SELECT CAST(FLOOR(UNIX_TIMESTAMP(NOW(6)) * 1000000) AS CHAR)").await?;
        *kept = Some(session);
        let clock_us = clock_us.parse().unwrap_or_default();
        Ok((self.lsn(FIRST_EPOCH, &file, position)?, clock_us))
    }

    /// The oldest file of the binlog.
    pub(in crate::mysql::source) async fn oldest(&self, session: &mut Session) -> Result<String, Fault> {
        let logs = session.binlogs().await?;
        logs.into_iter().next().map(|(name, _)| name).ok_or_else(|| binlog_off(&self.address.subject))
    }
}
