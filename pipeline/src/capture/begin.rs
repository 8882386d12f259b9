//! Has a source begin anew: its reading goes on at the server's present end, and every lane reads its tables again.
//!
//! It mends what nothing else does: the server was reset or restored, it lacks what was read, or its binlog holds what
//! nobody can read. One write to the register of the source is all that happens here: an epoch above every known one,
//! the next number, the id of the request, and the server with its end. The reader and the lanes do the rest by
//! themselves, so a request that is cut off is done or not, and repeating it does no harm.
//!
//! The place is always the server's end. An older one would gain nothing, as all tables are read, and rows from before
//! a restore that wrote no binlog would have versions that no sweep reaches.

use std::num::NonZeroUsize;
use std::time::Duration;

use anabranch_schemas::beginning::Beginning;
use anabranch_schemas::envelope::Envelope;
use anabranch_schemas::lsn::{Lsn, ResumePoint};
use anabranch_schemas::timeline::Timeline;
use tokio::time::timeout;

use super::enter::{present, reached, resume_at};
use super::epochs::Epochs;
use crate::error::{Code, Fault};
use crate::ports::{
    BinlogPoint, ChangeSource, Entry, Log, PROBE_REPLICA_SLOT, Registers, RowSource, SourceConnector,
};
use crate::records::{BatchBuilder, Progress};

/// A reader that has nothing to say of what comes next after this time runs well.
const PROBE: Duration = Duration::from_secs(5);
/// Size of what is read meanwhile and thrown away.
const PROBE_BYTES: usize = 64 * 1024;

/// A request to begin anew.
#[derive(Debug)]
pub struct BeginAnew<'a, S, L, M> {
    pub source: &'a str,
    pub connector: &'a S,
    pub log: &'a L,
    /// The registers, which hold the epochs.
    pub registers: &'a M,
    /// The same id is written once.
    pub request: &'a str,
}

/// What nobody reads: what lies between two places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// Everything up to here was read, if anybody knows a place.
    pub read: Option<(Lsn, ResumePoint)>,
    /// Why reading does not go on from there; `None` of a request that was written before.
    pub why: Option<String>,
    /// Where reading goes on.
    pub beginning: Beginning,
    /// The same request was written before, and nothing is now.
    pub is_repeated: bool,
}

impl<S: SourceConnector + RowSource, L: Log, M: Registers> BeginAnew<'_, S, L, M> {
    /// Writes the beginning, or with `is_rehearsal` only says what it would be.
    ///
    /// `lanes` is the progress of the source's lanes on every target that answers; `are_all` says whether all did.
    pub async fn run(&self, lanes: &[Progress], are_all: bool, is_rehearsal: bool) -> Result<Gap, Fault> {
        let mut epochs = Epochs::read(self.registers, self.source).await?;
        let end = self.log.end(self.source).await?.map(|end| end.envelope);
        end.iter().for_each(|end| epochs.learn_of_stream(end));
        if !epochs.is_registered() && !are_all {
            let found = "the register of its epochs is gone, and not every target answers";
            return Err(self
                .refused(found)
                .needs("every target: one that does not answer may know a later epoch"));
        }
        lanes.iter().for_each(|lane| epochs.learn_of_lane(lane));
        let entry = reached(&epochs, end.as_ref(), lanes);
        let read = entry.as_ref().map(|(position, entry)| (*position, resume_of(entry)));
        if let Some(beginning) = epochs.beginning().filter(|known| known.request == self.request) {
            let (beginning, read) = (beginning.clone(), read_before(end.as_ref(), read));
            return Ok(Gap { read, why: None, beginning, is_repeated: true });
        }
        let why = self.obstacle(&epochs, entry, lanes).await?;
        if lanes.iter().any(|lane| lane.rows > 0) {
            self.require_rows().await?;
        }
        let latest = Timeline { epoch: epochs.latest().epoch.saturating_add(1), ..Timeline::default() };
        let located = self.connector.locate(BinlogPoint::Latest, latest.epoch).await?;
        let beginning = Beginning {
            number: epochs.number() + 1,
            request: self.request.to_owned(),
            position: located.position,
            resume: located.resume,
            server: located.server.clone(),
        };
        if !is_rehearsal {
            epochs.begin(Timeline { server: located.server, ..latest }, beginning.clone()).await?;
        }
        Ok(Gap { read, why: Some(why.to_string()), beginning, is_repeated: false })
    }

    /// Why the source cannot be read on, as its reader or a lane would find it; refuses where it can.
    async fn obstacle(
        &self,
        epochs: &Epochs<'_, M>,
        entry: Option<(Lsn, Entry)>,
        lanes: &[Progress],
    ) -> Result<Fault, Fault> {
        let Some((position, entry)) = entry else {
            return Err(self.refused("nobody has read it yet").needs("nothing: its reader begins by itself"));
        };
        let ended = match timeout(PROBE, self.probe(epochs.latest(), entry)).await {
            Ok(fault) => fault,
            Err(_) => {
                if let Some(fault) = self.lost_to_lanes(epochs, lanes).await {
                    return Ok(fault);
                }
                return Err(self
                    .refused(format!("it can be read on from {position}: nothing stops its reader"))
                    .needs("nothing; `anabranch --config FILE refresh` reads tables again"));
            }
        };
        match is_mended(ended.code()) {
            true => Ok(ended),
            false => Err(ended),
        }
    }

    /// Why the server has not what a lane has: the lane was further than a stream that lost its newest messages, and
    /// the reader does not know of it.
    async fn lost_to_lanes(&self, epochs: &Epochs<'_, M>, lanes: &[Progress]) -> Option<Fault> {
        for lane in present(lanes, epochs.number()).iter().filter(|lane| lane.position > Lsn::ZERO) {
            let entry = resume_at(&lane.resume, lane.position, &lane.server);
            let opened = self.connector.open(entry, epochs.latest(), PROBE_REPLICA_SLOT).await;
            if let Err(fault) = opened
                && matches!(fault.code(), Code::SourceServerChanged | Code::SourceDiverged)
            {
                return Some(fault);
            }
        }
        None
    }

    /// Reads on until that fails.
    async fn probe(&self, latest: &Timeline, entry: Entry) -> Fault {
        let mut batch = BatchBuilder::new(PROBE_BYTES, Lsn::ZERO, resume_of(&entry));
        let mut source = match self.connector.open(entry, latest, PROBE_REPLICA_SLOT).await {
            Ok(source) => source,
            Err(fault) => return fault,
        };
        loop {
            if let Err(fault) = source.fill(&mut batch).await {
                return fault;
            }
            batch.take();
        }
    }

    /// Refuses a server without a row where derived rows stand: each of them would be removed.
    async fn require_rows(&self) -> Result<(), Fault> {
        let mut unread = None;
        for table in self.connector.tables().await? {
            let mut rows = 0;
            let page = self.connector.page(&table, None, NonZeroUsize::MIN, &mut |_| rows += 1).await;
            match page {
                _ if rows > 0 => return Ok(()),
                Ok(_) => {}
                Err(fault) => unread = Some(fault),
            }
        }
        Err(unread.unwrap_or_else(|| {
            self.refused("its tables have no row, and derived rows of it stand")
                .needs("the rows, loaded before reading begins anew")
                .remedy("load the tables, or correct the address of the source")
        }))
    }

    fn refused(&self, found: impl Into<String>) -> Fault {
        Fault::new(Code::BeginAnewRefused, format!("source {}", self.source), found)
    }
}

/// A source that begins anew needs neither its past nor the server that it was read from.
fn is_mended(code: Code) -> bool {
    matches!(code, Code::SourceServerChanged | Code::SourceDiverged | Code::BinlogGtidUnknown)
        || code.is_mended_by_reading()
}

fn resume_of(entry: &Entry) -> ResumePoint {
    entry.told().map(|(resume, _)| resume).unwrap_or_default()
}

/// Place of the stream's end, for a request that was written before.
fn read_before(end: Option<&Envelope>, read: Option<(Lsn, ResumePoint)>) -> Option<(Lsn, ResumePoint)> {
    end.map(|end| (end.position, end.resume.clone())).or(read)
}
