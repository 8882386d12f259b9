//! Whether a server can be read on where another reading stopped, and from where.
//!
//! The same server must hold our last groups at the place where we left them; a file that was purged is no harm while
//! the groups behind ours are in others. Another server is followed when its binlog has all our groups: by GTID set, in
//! the next epoch. What was sent of an open group is sent again whole, so that group must be there too. It cannot be
//! named, since its end was not read; but it was the next one, so a first group that begins there tells that it is
//! lost.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::envelope::ServerIdentity;
use anabranch_schemas::lsn::{Lsn, ResumePoint, binlog_file_number};

use super::MysqlSource;
use super::gtid::{Flavor, Gtid, Gtids};
use super::position::{self, FILE_START};
use super::session::Session;
use super::stream::{Beginning, MysqlStream};
use super::transport::{Events, Start};

/// A reading that goes on from another server's.
#[derive(Debug)]
pub struct Follows {
    before: ServerIdentity,
    /// Part of a group after the GTID set was sent.
    has_open_group: bool,
}

impl MysqlSource {
    /// `epoch`: the one in which the present server is read.
    pub(super) async fn resume(
        &self,
        session: &mut Session,
        resume: ResumePoint,
        sent: Lsn,
        before: &ServerIdentity,
        epoch: u16,
    ) -> Result<(Start, Beginning), Fault> {
        let present = session.identity().await?;
        if present.flavor != before.flavor {
            return Err(self.changed(format!("the server is {}", name(&present)), before));
        }
        if present == *before && epoch == sent.epoch() {
            return self.go_on(session, resume, sent).await;
        }
        if epoch < sent.epoch() {
            let found = format!("the server is read in epoch {epoch}, and position {sent} is above it");
            return Err(self.changed(found, before));
        }
        self.follow(session, resume, sent, before, epoch).await
    }

    /// On the same server.
    async fn go_on(
        &self,
        session: &mut Session,
        resume: ResumePoint,
        sent: Lsn,
    ) -> Result<(Start, Beginning), Fault> {
        let logs = session.binlogs().await?;
        let gtids = self.gtids(session, &resume.gtid_set)?;
        let is_file_start = is_file_start(&resume);
        // MariaDB takes 4 bytes for a position, in the request for the binlog and when it is asked for the GTIDs there.
        let is_far = session.version.flavor == Flavor::MariaDb && resume.position > u64::from(u32::MAX);
        let Some((_, size)) = logs.iter().find(|(name, _)| *name == resume.file) else {
            return self.go_on_in_another_file(session, resume, gtids, sent, &logs).await;
        };
        let is_ours = match session.version.flavor {
            _ if *size < resume.position => false,
            Flavor::MariaDb if is_far => session.has_groups(&gtids).await?,
            Flavor::MariaDb => match session.gtid_at(&resume.file, resume.position).await? {
                // A domain that we hold must stand where we left it; a start by GTID set may know fewer domains.
                Some(there) => Gtids::parse(Flavor::MariaDb, &there).is_some_and(|there| {
                    gtids.domains().all(|gtid| there.domains().any(|other| other == gtid))
                }),
                None => false,
            },
            Flavor::MySql if is_file_start => session.has_groups(&gtids).await?,
            Flavor::MySql => {
                session.has_groups(&gtids).await?
                    && session.may_be_behind(&gtids, &resume.file, resume.position).await?
            }
        };
        if !is_ours {
            return Err(self.reset(&resume));
        }
        if is_far {
            // The GTID set names the same place.
            let entered_at = Some((resume.file.clone(), resume.position));
            let beginning = self.by_gtids(session, &resume, sent, sent.epoch()).await?;
            return Ok((Start::Gtids(gtids), Beginning { entered_at, ..beginning }));
        }
        let beginning = Beginning {
            position: self.position(sent.epoch(), &resume.file, resume.position)?,
            // At the start of a file its first events say which groups come before.
            gtids: (!is_file_start).then_some(gtids),
            sent,
            is_by_gtid: false,
            entered_at: None,
            follows: None,
        };
        Ok((Start::Position { file: resume.file, position: resume.position }, beginning))
    }

    async fn go_on_in_another_file(
        &self,
        session: &mut Session,
        resume: ResumePoint,
        gtids: Gtids,
        sent: Lsn,
        logs: &[(String, u64)],
    ) -> Result<(Start, Beginning), Fault> {
        let number = |file: &str| binlog_file_number(file).unwrap_or(0);
        let newest = logs.last().map_or(0, |(file, _)| number(file));
        // A file that is not there yet was not purged: the server began to count again.
        if number(&resume.file) > newest || !session.has_groups(&gtids).await? {
            return Err(self.reset(&resume));
        }
        self.check_kept(session, &resume, &gtids, logs).await?;
        tracing::info!(
            source = self.config.name,
            file = resume.file,
            "the binlog file was purged; reading goes on after its groups in another"
        );
        if let Some(at_end) = self.at_quiet_end(session, &gtids, sent, sent.epoch()).await? {
            return Ok(at_end);
        }
        let beginning = self.by_gtids(session, &resume, sent, sent.epoch()).await?;
        Ok((Start::Gtids(gtids), beginning))
    }

    /// On another server, or on this one again after another was read.
    async fn follow(
        &self,
        session: &mut Session,
        resume: ResumePoint,
        sent: Lsn,
        before: &ServerIdentity,
        epoch: u16,
    ) -> Result<(Start, Beginning), Fault> {
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
        if !session.has_groups(&gtids).await? {
            return Err(self.diverged(&present, before, &format!("does not hold {gtids}")));
        }
        let resumed = position::lsn(sent.epoch(), &resume.file, resume.position);
        let has_open_group = resumed.is_ok_and(|resumed| sent > resumed);
        if has_open_group && !session.has_more_than(&gtids).await? {
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
            "another server holds all that was read: reading goes on there"
        );
        let follows = Some(Follows { before: before.clone(), has_open_group });
        if let Some((start, beginning)) = self.at_quiet_end(session, &gtids, sent, epoch).await? {
            return Ok((start, Beginning { follows, ..beginning }));
        }
        let beginning = self.by_gtids(session, &resume, sent, epoch).await?;
        Ok((Start::Gtids(gtids), Beginning { follows, ..beginning }))
    }

    /// The server's end, when it has nothing after the set. A start by GTID set would learn its place from the next
    /// group only; this one tells it at once, so that lanes see where the present server is read, however quiet that
    /// is.
    async fn at_quiet_end(
        &self,
        session: &mut Session,
        gtids: &Gtids,
        sent: Lsn,
        epoch: u16,
    ) -> Result<Option<(Start, Beginning)>, Fault> {
        let Some(end) = session.end().await? else { return Ok(None) };
        let there = self.gtids(session, &end.gtid_set)?;
        // MariaDB takes 4 bytes for a position.
        let is_far = session.version.flavor == Flavor::MariaDb && end.position > u64::from(u32::MAX);
        if is_far || !there.is(gtids) {
            return Ok(None);
        }
        let beginning = Beginning {
            position: self.position(epoch, &end.file, end.position)?,
            gtids: Some(there),
            sent,
            is_by_gtid: false,
            entered_at: None,
            follows: None,
        };
        Ok(Some((Start::Position { file: end.file, position: end.position }, beginning)))
    }

    async fn by_gtids(
        &self,
        session: &mut Session,
        resume: &ResumePoint,
        sent: Lsn,
        epoch: u16,
    ) -> Result<Beginning, Fault> {
        let oldest = self.oldest(session).await?;
        Ok(Beginning {
            position: self.position(epoch, &oldest, FILE_START)?,
            gtids: Some(self.gtids(session, &resume.gtid_set)?),
            sent,
            is_by_gtid: true,
            entered_at: None,
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
        if !is_file_start(resume) && session.keeps_all_behind(gtids, oldest).await? {
            return Ok(());
        }
        Err(self
            .fault(
                Code::BinlogPurged,
                format!(
                    "transactions behind binlog file {} are gone; the oldest file is {oldest}",
                    resume.file
                ),
            )
            .needs("the binlog from the last position on")
            .remedy("keep binlogs longer (binlog_expire_logs_seconds)"))
    }

    fn begin_anew(&self) -> String {
        begin_anew(&self.config.name)
    }

    fn changed(&self, found: String, before: &ServerIdentity) -> Fault {
        self.fault(Code::SourceServerChanged, found)
            .needs(format!("{}, whose binlog the log continues, or a replica of it", name(before)))
            .remedy(format!("its address; else {}", self.begin_anew()))
    }

    fn reset(&self, resume: &ResumePoint) -> Fault {
        let (file, position) = (&resume.file, resume.position);
        let found = format!(
            "its binlog at {file}:{position} does not hold the transactions that the log was read from"
        );
        self.fault(Code::SourceServerChanged, found)
            .needs("the server whose binlog the log continues; this one was reset or restored")
            .remedy(format!("its address; else {}", self.begin_anew()))
    }

    fn diverged(&self, present: &ServerIdentity, before: &ServerIdentity, how: &str) -> Fault {
        let fault = self.fault(Code::SourceDiverged, format!("server {} {how}", name(present)));
        diverged(fault, before, &self.config.name)
    }
}

impl<E: Events> MysqlStream<E> {
    /// The first group after the set: it must not have begun here when an open group is to come again.
    pub(super) fn check_follows(&self, follows: &Follows, first: &Gtid) -> Result<(), Fault> {
        let is_continued = self.gtids.as_ref().is_some_and(|gtids| gtids.are_continued_by(first));
        if !follows.has_open_group || !first.is_by(&self.server) || is_continued {
            return Ok(());
        }
        let found = format!("server {} lacks the transaction that was being read", name(&self.server));
        Err(diverged(self.fault(Code::SourceDiverged, found), &follows.before, &self.source))
    }

    /// A server that refuses the set of another one has not its transactions.
    pub(super) fn refused(&self, fault: Fault) -> Fault {
        match &self.follows {
            Some(follows) if fault.code() == Code::BinlogGtidUnknown => {
                let found = format!("server {} has other transactions", name(&self.server));
                diverged(
                    self.fault(Code::SourceDiverged, found).caused_by(fault),
                    &follows.before,
                    &self.source,
                )
            }
            _ => fault,
        }
    }
}

fn diverged(fault: Fault, before: &ServerIdentity, source: &str) -> Fault {
    let needed = format!("every transaction that was read from {}", name(before));
    fault.needs(needed).remedy(format!("a server that has them; else {}", begin_anew(source)))
}

/// What reads the tables again and goes on at the server's end.
fn begin_anew(source: &str) -> String {
    format!("`anabranch --config FILE begin-anew --source {source}`")
}

fn name(server: &ServerIdentity) -> String {
    format!("{}:{}", server.flavor, server.id)
}

/// The start of a file, whose first events say which groups come before.
fn is_file_start(resume: &ResumePoint) -> bool {
    resume.position == FILE_START && resume.gtid_set.is_empty()
}
