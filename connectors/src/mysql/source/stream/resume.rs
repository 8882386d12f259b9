//! Decides whether a server's binlog can be read on from where an earlier stream stopped, and from which point.
//!
//! The same server must hold the groups that were read, at the position where the earlier stream stopped; if that file
//! was purged, the later groups must be in other files. A domain of MariaDB that the server does not know any more was
//! deleted (`DELETE_DOMAIN_ID`) and does not count, if the server still knows another one that was read. Another server
//! is followed when its binlog has all groups that were read: by GTID set, in the next epoch.
//!
//! The groups that were read are those that the log has at least in part. An undecided XA branch keeps the resume point
//! before it; the log also has the groups after that point, up to the read end, where the point has one. A group that
//! was sent in part is sent again whole, so the server must have it too. Messages of earlier builds do not name such a
//! group. It was the next one, so it is lost if another server began a group of its own in its place.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::envelope::ServerIdentity;
use anabranch_schemas::lsn::{Lsn, ReadEnd, ResumePoint, binlog_file_number};

use super::beginning::StreamStart;
use super::follows::{FailOverStart, begin_anew, diverged, name};
use super::transport::Start;
use crate::mysql::source::MysqlSource;
use crate::mysql::source::decode::gtid::{Flavor, Gtids};
use crate::mysql::source::decode::position::{self, FILE_START, PositionError};
use crate::mysql::source::server::session::Session;

impl MysqlSource {
    /// Returns where to resume. The present server is read in `epoch`.
    pub(super) async fn resume(
        &self,
        session: &mut Session,
        resume: ResumePoint,
        sent: Lsn,
        before: &ServerIdentity,
        epoch: u16,
    ) -> Result<(Start, StreamStart), Fault> {
        let present = session.identity().await?;
        if present.flavor != before.flavor {
            return Err(self.changed(format!("the server is {}", name(&present)), before));
        }
        if epoch < sent.epoch() {
            let found = format!(
                "the server is read in epoch {epoch}, and the stream's position {sent} is of a later one"
            );
            return Err(self.changed(found, before));
        }
        let partial = resume.partial.clone();
        let (start, beginning) = match present == *before && epoch == sent.epoch() {
            true => self.go_on(session, resume, sent).await?,
            false => self.follow(session, resume, sent, before, epoch).await?,
        };
        Ok((start, StreamStart { partial, ..beginning }))
    }

    /// Resumes on the same server.
    async fn go_on(
        &self,
        session: &mut Session,
        resume: ResumePoint,
        sent: Lsn,
    ) -> Result<(Start, StreamStart), Fault> {
        let logs = session.binlogs().await?;
        let gtids = self.gtids_without_deleted(session, &resume.gtid_set).await?;
        let is_file_start = is_file_start(&resume);
        if let Some(read_end) = &resume.read_end
            && !self.holds_read(session, read_end, &logs).await?
        {
            return Err(self.reset(&format!("file {}", read_end.file_number), read_end.position));
        }
        if !self.holds_partial(session, &resume).await? {
            return Err(self.reset(&resume.file, resume.position));
        }
        // MariaDB takes 4 bytes for a position in the request for the binlog, too.
        let is_far = session.version.flavor == Flavor::MariaDb && resume.position > u64::from(u32::MAX);
        let Some((_, size)) = logs.iter().find(|(name, _)| *name == resume.file) else {
            return self.go_on_in_another_file(session, resume, gtids, sent, &logs).await;
        };
        let is_ours = match session.version.flavor {
            _ if *size < resume.position => false,
            Flavor::MySql if is_file_start => session.has_groups(&gtids).await?,
            _ => holds_at(session, &gtids, &resume.file, resume.position).await?,
        };
        if !is_ours {
            return Err(self.reset(&resume.file, resume.position));
        }
        if is_far {
            // The GTID set names the same position.
            let start = Start::Gtids(self.gtids(session, &resume.gtid_set)?);
            let start_position = Some((resume.file.clone(), resume.position));
            let beginning = self.by_gtids(session, gtids, sent, sent.epoch()).await?;
            return Ok((start, StreamStart { start_position, ..beginning }));
        }
        let beginning = StreamStart {
            position: self.position(sent.epoch(), &resume.file, resume.position)?,
            // At the start of a file its first events say which groups come before.
            gtids: (!is_file_start).then_some(gtids),
            sent,
            partial: None,
            is_by_gtid: false,
            start_position: None,
            follows: None,
        };
        Ok((Start::Position { file: resume.file, position: resume.position }, beginning))
    }

    /// Whether the same server still has the groups that were read after the resume point, at the same positions.
    async fn holds_read(
        &self,
        session: &mut Session,
        read_end: &ReadEnd,
        logs: &[(String, u64)],
    ) -> Result<bool, Fault> {
        let gtids = self.gtids_without_deleted(session, &read_end.gtid_set).await?;
        let number = |file: &str| binlog_file_number(file).unwrap_or(0);
        match logs.iter().find(|(file, _)| number(file) == read_end.file_number) {
            Some((_, size)) if *size < read_end.position => Ok(false),
            Some((file, _)) => holds_at(session, &gtids, file, read_end.position).await,
            // A file that does not exist yet was not purged.
            None => {
                let newest = logs.last().map_or(0, |(file, _)| number(file));
                Ok(read_end.file_number <= newest && session.has_groups(&gtids).await?)
            }
        }
    }

    /// Parses a GTID set of the same server, and removes the domains that were deleted there since.
    async fn gtids_without_deleted(&self, session: &mut Session, text: &str) -> Result<Gtids, Fault> {
        let gtids = self.gtids(session, text)?;
        session.without_deleted_domains(gtids).await
    }

    /// Whether the server has the group that was sent in part; `true` if there is none.
    async fn holds_partial(&self, session: &mut Session, resume: &ResumePoint) -> Result<bool, Fault> {
        match &resume.partial {
            Some(gtid) => session.has_groups(&self.gtids(session, gtid)?).await,
            None => Ok(true),
        }
    }

    async fn go_on_in_another_file(
        &self,
        session: &mut Session,
        resume: ResumePoint,
        gtids: Gtids,
        sent: Lsn,
        logs: &[(String, u64)],
    ) -> Result<(Start, StreamStart), Fault> {
        let number = |file: &str| binlog_file_number(file).unwrap_or(0);
        let newest = logs.last().map_or(0, |(file, _)| number(file));
        // A file that does not exist yet was not purged: the server began to count again.
        if number(&resume.file) > newest || !session.has_groups(&gtids).await? {
            return Err(self.reset(&resume.file, resume.position));
        }
        // Kept files may list a deleted domain, and the server then wants it in the request.
        let with_deleted = self.gtids(session, &resume.gtid_set)?;
        self.check_kept(session, &resume, &with_deleted, logs).await?;
        tracing::info!(
            source = self.config.name,
            file = resume.file,
            "the binlog file was purged; the binlog is read on after its groups, in another file"
        );
        if let Some(at_end) = self.at_quiet_end(session, &gtids, sent, sent.epoch()).await? {
            return Ok(at_end);
        }
        let beginning = self.by_gtids(session, gtids, sent, sent.epoch()).await?;
        Ok((Start::Gtids(with_deleted), beginning))
    }

    /// Resumes on another server, or on this one again after another was read.
    async fn follow(
        &self,
        session: &mut Session,
        resume: ResumePoint,
        sent: Lsn,
        before: &ServerIdentity,
        epoch: u16,
    ) -> Result<(Start, StreamStart), Fault> {
        let present = session.identity().await?;
        let gtids = self.gtids(session, &resume.gtid_set)?;
        if is_file_start(&resume) {
            return Err(self.changed(
                format!(
                    "the server is {}, and the GTIDs before {} are not known",
                    name(&present),
                    resume.file
                ),
                before,
            ));
        }
        let read = match &resume.read_end {
            Some(read_end) => Some(self.gtids(session, &read_end.gtid_set)?),
            None => None,
        };
        for read in std::iter::once(&gtids).chain(&read) {
            if !session.has_groups(read).await? {
                return Err(self.diverged(&present, before, &format!("does not hold {read}")));
            }
        }
        let read_to = read_to(&resume, sent.epoch());
        let has_open_group = resume.partial.is_none() && read_to.is_ok_and(|read_to| sent > read_to);
        if !self.holds_partial(session, &resume).await?
            || has_open_group && !session.has_more_than(read.as_ref().unwrap_or(&gtids)).await?
        {
            return Err(self.diverged(&present, before, "lacks the transaction that was being read"));
        }
        let logs = session.binlogs().await?;
        self.check_kept(session, &resume, &gtids, &logs).await?;
        tracing::warn!(
            source = self.config.name,
            before = name(before),
            now = name(&present),
            epoch,
            gtid_set = %gtids,
            "another server has every transaction that was read: its binlog is read from here on"
        );
        let follows = Some(FailOverStart { before: before.clone(), present, has_open_group, read });
        if let Some((start, beginning)) = self.at_quiet_end(session, &gtids, sent, epoch).await? {
            return Ok((start, StreamStart { follows, ..beginning }));
        }
        let start = Start::Gtids(self.gtids(session, &resume.gtid_set)?);
        let beginning = self.by_gtids(session, gtids, sent, epoch).await?;
        Ok((start, StreamStart { follows, ..beginning }))
    }

    /// Returns the server's end, if it has no group after the set. A start by GTID set would learn its position from
    /// the next group only. With this one lanes see at once where the present server is read, however quiet it is.
    async fn at_quiet_end(
        &self,
        session: &mut Session,
        gtids: &Gtids,
        sent: Lsn,
        epoch: u16,
    ) -> Result<Option<(Start, StreamStart)>, Fault> {
        let Some(end) = session.end().await? else { return Ok(None) };
        let there = self.gtids(session, &end.gtid_set)?;
        // MariaDB takes 4 bytes for a position.
        let is_far = session.version.flavor == Flavor::MariaDb && end.position > u64::from(u32::MAX);
        if is_far || !there.is(gtids) {
            return Ok(None);
        }
        let beginning = StreamStart {
            position: self.position(epoch, &end.file, end.position)?,
            gtids: Some(there),
            sent,
            partial: None,
            is_by_gtid: false,
            start_position: None,
            follows: None,
        };
        Ok(Some((Start::Position { file: end.file, position: end.position }, beginning)))
    }

    async fn by_gtids(
        &self,
        session: &mut Session,
        gtids: Gtids,
        sent: Lsn,
        epoch: u16,
    ) -> Result<StreamStart, Fault> {
        let oldest = self.oldest(session).await?;
        Ok(StreamStart {
            position: self.position(epoch, &oldest, FILE_START)?,
            gtids: Some(gtids),
            sent,
            partial: None,
            is_by_gtid: true,
            start_position: None,
            follows: None,
        })
    }

    async fn check_kept(
        &self,
        session: &mut Session,
        resume: &ResumePoint,
        gtids: &Gtids,
        logs: &[(String, u64)],
    ) -> Result<(), Fault> {
        let oldest = logs.first().map_or("", |(file, _)| file.as_str());
        if !is_file_start(resume) && session.keeps_all_after(gtids, oldest).await? {
            return Ok(());
        }
        Err(self
            .fault(
                Code::BinlogPurged,
                format!(
                    "transactions after the last read position, in binlog file {}, were purged; the oldest file is \
                     {oldest}",
                    resume.file
                ),
            )
            .needs("the binlog from the last read position on")
            .remedy("keep binlogs longer (binlog_expire_logs_seconds)"))
    }

    fn begin_anew(&self) -> String {
        begin_anew(&self.config.name)
    }

    fn changed(&self, found: String, before: &ServerIdentity) -> Fault {
        self.fault(Code::SourceServerChanged, found)
            .needs(format!("{}, whose binlog the log continues, or a replica of it", name(before)))
            .remedy(format!("set the source's `url` to that server; else {}", self.begin_anew()))
    }

    fn reset(&self, file: &str, position: u64) -> Fault {
        let found = format!(
            "its binlog at {file}:{position} does not hold the transactions that the log was read from"
        );
        self.fault(Code::SourceServerChanged, found)
            .needs("the server whose binlog the log continues; this one was reset or restored")
            .remedy(format!("set the source's `url` to that server; else {}", self.begin_anew()))
    }

    fn diverged(&self, present: &ServerIdentity, before: &ServerIdentity, how: &str) -> Fault {
        let fault = self.fault(Code::SourceDiverged, format!("server {} {how}", name(present)));
        diverged(fault, before, &self.config.name)
    }
}

/// Whether a position of a kept file, which is that long, is after these groups.
async fn holds_at(session: &mut Session, gtids: &Gtids, file: &str, position: u64) -> Result<bool, Fault> {
    match session.version.flavor {
        // MariaDB takes 4 bytes for a position.
        Flavor::MariaDb if position > u64::from(u32::MAX) => session.has_groups(gtids).await,
        Flavor::MariaDb => match session.gtid_at(file, position).await? {
            // The server must have each domain of the set at the same group; a start by GTID set may know fewer
            // domains.
            Some(there) => Ok(Gtids::parse(Flavor::MariaDb, &there)
                .is_some_and(|there| gtids.domains().all(|gtid| there.domains().any(|other| other == gtid)))),
            None => Ok(false),
        },
        Flavor::MySql => {
            Ok(session.has_groups(gtids).await? && session.may_be_after(gtids, file, position).await?)
        }
    }
}

/// Returns the end of the groups that were read whole.
fn read_to(resume: &ResumePoint, epoch: u16) -> Result<Lsn, PositionError> {
    match &resume.read_end {
        Some(end) => Ok(Lsn::new(epoch, end.file_number, end.position)?),
        None => position::lsn(epoch, &resume.file, resume.position),
    }
}

/// Whether the point is the start of a file, whose first events list the groups before it.
fn is_file_start(resume: &ResumePoint) -> bool {
    resume.position == FILE_START && resume.gtid_set.is_empty()
}
