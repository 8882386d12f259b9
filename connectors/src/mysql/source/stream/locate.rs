//! Finds a past point in the binlog, for a lane that is to begin again there.
//!
//! A position and a time lead to the start of a binlog file: the lane reads and skips the events in between. Only a
//! GTID set leads into the middle, to the start of the first group after it.

use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{BinlogPoint, BinlogStart, ChangeSource, Located, SourceConnector};
use anabranch_pipeline::records::BatchBuilder;
use anabranch_schemas::lsn::{Lsn, ResumePoint, binlog_file_number};
use anabranch_schemas::timeline::Timeline;

use super::transport::{Events as _, Start, Transport};
use crate::mysql::connection::async_options;
use crate::mysql::source::MysqlSource;
use crate::mysql::source::decode::events::{self, Class};
use crate::mysql::source::decode::position::FILE_START;
use crate::mysql::source::server::session::Session;

/// Limit of the wait for the first group: a server searches a whole file for a GTID set, and reads a huge one from
/// disk.
const FIRST_GROUP_TIMEOUT: Duration = Duration::from_secs(60);
/// Replica slot of these queries, so that they end no stream of a reader or a lane.
const REPLICA_SLOT: u32 = 1 << 16;

impl MysqlSource {
    pub(in crate::mysql::source) async fn locate_place(
        &self,
        place: BinlogPoint,
        epoch: u16,
    ) -> Result<Located, Fault> {
        let mut session = Session::open(&self.address).await?;
        let server = session.identity().await?;
        let (resume, position) = match place {
            BinlogPoint::Earliest => self.file_start(self.oldest(&mut session).await?, epoch)?,
            BinlogPoint::Latest => self.end_place(&mut session, epoch).await?,
            BinlogPoint::Lsn(lsn) => self.before(&mut session, lsn, epoch).await?,
            BinlogPoint::Gtid(set) => self.point_after(&mut session, set, epoch).await?,
            BinlogPoint::Time { at_us } => {
                let file = self.file_at(&mut session, at_us).await?;
                self.file_start(file, epoch)?
            }
        };
        session.close().await;
        Ok(Located { position, resume, server })
    }

    async fn end_place(&self, session: &mut Session, epoch: u16) -> Result<(ResumePoint, Lsn), Fault> {
        let end = session.end().await?.ok_or_else(|| {
            self.fault(
                Code::SourceUnreachable,
                "the end of its binlog is not known while transactions wait for their commit",
            )
            .needs("a moment at which every transaction with a GTID is in the binlog")
            .remedy("try again; end a session that set gtid_next and committed nothing")
        })?;
        let position = self.lsn(epoch, &end.file, end.position)?;
        Ok((end.into(), position))
    }

    /// Returns the start of a file; its first events list the GTIDs before it.
    fn file_start(&self, file: String, epoch: u16) -> Result<(ResumePoint, Lsn), Fault> {
        let position = self.lsn(epoch, &file, FILE_START)?;
        Ok((ResumePoint { file, position: FILE_START, ..ResumePoint::default() }, position))
    }

    async fn before(&self, session: &mut Session, lsn: Lsn, epoch: u16) -> Result<(ResumePoint, Lsn), Fault> {
        let logs = session.binlogs().await?;
        let is_named = |(name, _): &&(String, u64)| {
            binlog_file_number(name).is_ok_and(|number| number == lsn.file_number())
        };
        if lsn.epoch() != epoch {
            let found = format!("position {lsn} lies in epoch {}", lsn.epoch());
            return Err(self
                .fault(Code::BinlogPurged, found)
                .needs(format!("a position of epoch {epoch}: the server was another one before"))
                .remedy("give the point as a GTID set or as a time"));
        }
        let Some((file, size)) = logs.iter().find(is_named) else {
            let oldest = logs.first().map_or("none", |(name, _)| name.as_str());
            let found = format!("binlog file {} of position {lsn} does not exist", lsn.file_number());
            return Err(self
                .fault(Code::BinlogPurged, found)
                .needs(format!("a position in the kept binlog; its oldest file is {oldest}")));
        };
        if lsn.position() > *size {
            let found = format!("binlog file {file} of position {lsn} ends at {size}");
            return Err(self.fault(Code::BinlogPurged, found).needs("a position within its file"));
        }
        let (resume, start) = self.file_start(file.clone(), epoch)?;
        // The changes at `lsn` itself are wanted too.
        let below = Lsn::from_u64(lsn.as_u64() - 1).unwrap_or(start);
        Ok((resume, below.max(start)))
    }

    /// Returns the start of the first group after the set, or the end of the binlog if there is no such group. A query
    /// decides which: a slow server must not look like one without more groups.
    async fn point_after(
        &self,
        session: &mut Session,
        set: String,
        epoch: u16,
    ) -> Result<(ResumePoint, Lsn), Fault> {
        let gtids = self.gtids(session, &set)?;
        if !session.has_groups(&gtids).await? {
            let found = format!("the server does not hold {gtids}");
            return Err(self
                .fault(Code::BinlogGtidUnknown, found)
                .needs("a GTID set that this server wrote"));
        }
        // The end is asked for first: a group that is written before the next query then comes after it.
        let end = session.end().await?;
        let resume = match end {
            Some(end) if !session.has_more_than(&gtids).await? => end.into(),
            _ => {
                let mut stream =
                    self.open(BinlogStart::Gtid(set), &Timeline::default(), REPLICA_SLOT).await?;
                first_group(&mut stream).await.unwrap_or_else(|| {
                    let found = format!("no transaction within {} s", FIRST_GROUP_TIMEOUT.as_secs());
                    Err(self
                        .fault(Code::SourceStalled, found)
                        .needs("a transaction after the GTID set")
                        .remedy("try again, or give the point as a time"))
                })?
            }
        };
        let position = self.lsn(epoch, &resume.file, resume.position)?;
        Ok((resume, position))
    }

    /// Returns the newest file that was begun at or before the time.
    async fn file_at(&self, session: &mut Session, at_us: u64) -> Result<String, Fault> {
        let logs = session.binlogs().await?;
        let (mut low, mut high) = (0, logs.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.begun_at_us(session, &logs[middle].0).await? {
                begun if begun <= at_us => low = middle + 1,
                _ => high = middle,
            }
        }
        match low.checked_sub(1).and_then(|index| logs.get(index)) {
            Some((file, _)) => Ok(file.clone()),
            None => {
                let oldest = logs.first().map_or("none", |(name, _)| name.as_str());
                let found = format!("the oldest binlog file, {oldest}, was begun later");
                Err(self
                    .fault(Code::BinlogPurged, found)
                    .needs("a time that the kept binlog covers")
                    .remedy("`earliest` begins with the oldest file"))
            }
        }
    }

    /// Returns when a file was begun: the time of its first event, in whole seconds.
    async fn begun_at_us(&self, session: &Session, file: &str) -> Result<u64, Fault> {
        let options = async_options(&self.config.url, self.config.ca_file.as_deref());
        let start = Start::Position { file: file.to_owned(), position: FILE_START };
        let (subject, replica) = (self.address.subject.as_str(), self.replica_server_id(REPLICA_SLOT));
        let mut transport =
            Transport::open(options, subject, session.version.flavor, replica, &start, self.heartbeat)
                .await?;
        loop {
            let event = transport.next().await?;
            let header = event.header();
            if events::classify(header.event_type_raw()) == Class::FormatDescription {
                return Ok(u64::from(header.timestamp()) * 1_000_000);
            }
        }
    }
}

/// Returns the start of the first group of a stream that started by GTID set; `None` when no group came in time.
async fn first_group(stream: &mut impl ChangeSource) -> Option<Result<ResumePoint, Fault>> {
    let mut batch = BatchBuilder::new(1, Lsn::ZERO, ResumePoint::default());
    let read = async {
        while batch.resume().file.is_empty() {
            batch.take();
            stream.fill(&mut batch).await?;
        }
        Ok(batch.resume().clone())
    };
    tokio::time::timeout(FIRST_GROUP_TIMEOUT, read).await.ok()
}

#[cfg(test)]
mod tests {
    use anabranch_pipeline::ports::Filled;
    use anabranch_schemas::envelope::ServerIdentity;

    use super::*;

    /// A server that searches for a GTID set for so long.
    struct SlowSearch(Duration);

    impl ChangeSource for SlowSearch {
        async fn fill(&mut self, batch: &mut BatchBuilder) -> Result<Filled, Fault> {
            tokio::time::sleep(self.0).await;
            let resume = ResumePoint {
                file: "binlog.000007".into(),
                position: 342,
                gtid_set: "0-1-5".into(),
                ..ResumePoint::default()
            };
            batch.group_complete(resume, 0);
            Ok(Filled::Drained)
        }

        fn start_position(&self) -> Lsn {
            unreachable!("it is not asked for")
        }

        fn server(&self) -> &ServerIdentity {
            unreachable!("it is not asked for")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_looks_for_long_is_waited_for_and_no_place_is_guessed() {
        let found = first_group(&mut SlowSearch(Duration::from_secs(50))).await;
        assert_eq!(found.expect("in time").unwrap().position, 342);
        assert!(first_group(&mut SlowSearch(Duration::from_secs(70))).await.is_none());
    }
}
