//! Makes a source begin anew: its reader continues at the server's present end, and every lane reads its tables again.
//!
//! This mends what nothing else does: the server was reset or restored, it lacks changes that were read, or its binlog
//! holds something unreadable. The only write here sets the register of the source. It holds an epoch above every known
//! one, the next number, the id of the request, and the server with its end. Beside these it holds a record of who
//! asked, when and why. The reader and the lanes do the rest by themselves, so a request that is cut off is done or
//! not, and repeating it does no harm: a beginning that no reader has begun yet is not written again.
//!
//! The point is always the server's end. An older one would gain nothing, as all tables are read, and rows from before
//! a restore that wrote no binlog would have versions that no sweep reaches.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::time::Duration;

use anabranch_schemas::beginning::{Beginning, GapRecord};
use anabranch_schemas::envelope::{Envelope, ServerIdentity};
use anabranch_schemas::lsn::{Lsn, ResumePoint};
use anabranch_schemas::timeline::Timeline;
use tokio::time::{Instant, timeout};

use super::open::{present, reached, resume_at};
use crate::epochs::Epochs;
use crate::error::{Code, Fault};
use crate::failpoints;
use crate::ports::{
    BinlogPoint, BinlogStart, ChangeSource, Located, Log, PROBE_REPLICA_SLOT, Registers, RowSource,
    SourceConnector,
};
use crate::records::{BatchBuilder, Progress};

/// Time of a probe, at least: a source may say a little later that it cannot be read on.
pub(super) const PROBE: Duration = Duration::from_secs(5);
/// Time of a probe, at most. An XA branch that waits for its decision, or a slow search for a GTID, can put what stops
/// the reader far behind the point from which it reads.
const PROBE_MAX: Duration = Duration::from_secs(1_800);
/// Characters of the reason in a record, at most: the registers and the reports of reconciliations keep several.
const WHY_MAX: usize = 300;
/// Size of a batch that the probe reads and throws away.
const PROBE_BYTES: usize = 64 * 1024;

/// A request to begin anew.
#[derive(Debug)]
pub struct BeginAnew<'a, S, L, M> {
    pub source: &'a str,
    /// The source's owner generation, by which the shards of its tables are known.
    pub generation: u32,
    pub connector: &'a S,
    pub log: &'a L,
    /// The registers, which hold the epochs.
    pub registers: &'a M,
    /// Id of the request; a beginning with the same id is written once.
    pub request: &'a str,
    /// The person who asks, as `user@host`, and when, in milliseconds since the Unix epoch: for the record alone.
    pub who: String,
    pub at_ms: u64,
}

/// The end of a probe.
#[derive(Debug)]
pub(super) enum Probed {
    /// The source cannot be read on, as its reader would find.
    Stopped(Fault),
    /// The source was read on to the end that the server had when the probe began.
    Passed,
    /// Time ran out: how far the source was read, and that end, if the server named one.
    CutOff(Lsn, Option<Lsn>),
}

/// The part of a binlog that no reader reads, between two points.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// Point up to which everything was read, if one is known.
    pub read: Option<(Lsn, ResumePoint)>,
    /// Reason for which the source cannot be read on from there; `None` for a request that was written before.
    pub why: Option<String>,
    /// Point from which the source is read on.
    pub beginning: Beginning,
    /// The same request was written before, so nothing was written now.
    pub is_repeated: bool,
}

impl<S: SourceConnector + RowSource, L: Log, M: Registers> BeginAnew<'_, S, L, M> {
    /// Writes the beginning; with `is_rehearsal` only returns it.
    ///
    /// `lanes` is the progress of the source's lanes on every target that answers; `are_all` says whether all did.
    pub async fn run(&self, lanes: &[Progress], are_all: bool, is_rehearsal: bool) -> Result<Gap, Fault> {
        let mut epochs = Epochs::read(self.registers, self.source).await?;
        let end = self.log.end(self.source).await?.map(|end| end.envelope);
        end.iter().for_each(|end| epochs.learn_of_stream(end));
        if !epochs.is_registered() && !are_all {
            let found = "the register of its epochs does not exist, and some targets do not answer";
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
        let waiting = waiting(&epochs, end.as_ref());
        let why = match (self.obstacle(&epochs, entry, lanes).await, waiting) {
            (Ok(fault), _) => fault.to_string(),
            // An earlier request was cut off after its write: the reader that stopped has not learned of it.
            (Err(fault), Some(beginning)) if fault.code() == Code::BeginAnewRefused => {
                let read = read_before(end.as_ref(), read);
                return Ok(Gap { read, why: None, beginning, is_repeated: true });
            }
            (Err(fault), _) => return Err(fault),
        };
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
            let reached = read.as_ref().map(|(position, _)| *position);
            let record = self.record(&why, reached, (beginning.position, &beginning.server));
            let latest = Timeline { server: located.server, ..latest };
            failpoints::reach("begin-anew-before-register").await;
            epochs.begin(latest, beginning.clone(), record).await?;
            failpoints::reach("begin-anew-after-register").await;
        }
        Ok(Gap { read, why: Some(why), beginning, is_repeated: false })
    }

    /// Returns the record of the request: the source cannot be read on after `read`, and is read from a position of a
    /// server.
    pub(super) fn record(
        &self,
        why: &str,
        read: Option<Lsn>,
        (position, server): (Lsn, &ServerIdentity),
    ) -> GapRecord {
        GapRecord {
            request: self.request.to_owned(),
            who: self.who.clone(),
            at_ms: self.at_ms,
            why: why.chars().take(WHY_MAX).collect(),
            read,
            position,
            server: server.clone(),
            tables: None,
        }
    }

    /// Returns the fault that keeps the source from being read on, as its reader or a lane would find it. Refuses the
    /// request if there is none.
    async fn obstacle(
        &self,
        epochs: &Epochs<'_, M>,
        entry: Option<(Lsn, BinlogStart)>,
        lanes: &[Progress],
    ) -> Result<Fault, Fault> {
        let Some((position, entry)) = entry else {
            return Err(self
                .refused("no reader has read it yet")
                .needs("nothing: its reader begins by itself"));
        };
        let runs = match self.probe(epochs.latest(), entry).await {
            Probed::Stopped(fault) if is_mended(fault.code()) => return Ok(fault),
            Probed::Stopped(fault) => return Err(fault),
            runs => runs,
        };
        match self.lost_to_lanes(epochs, lanes).await {
            Some(fault) => Ok(fault),
            None => Err(self.runs(position, &runs)),
        }
    }

    /// Returns the refusal for a source that a probe read on from `position` without a fault.
    pub(super) fn runs(&self, position: Lsn, probed: &Probed) -> Fault {
        let minutes = PROBE_MAX.as_secs() / 60;
        let found = match probed {
            Probed::CutOff(at, Some(end)) => format!(
                "its binlog was read on without a fault from {position} to {} within {minutes} minutes, and the \
                 server's end was at {end}",
                position.max(*at)
            ),
            Probed::CutOff(_, None) => {
                format!(
                    "the server did not begin to send its binlog from {position} within {minutes} minutes"
                )
            }
            Probed::Stopped(_) | Probed::Passed => {
                let found = format!("its binlog can be read on from {position}: nothing stops its reader");
                return self
                    .refused(found)
                    .needs("nothing; `anabranch --config FILE refresh` reads tables again");
            }
        };
        self.refused(found).needs("a reader that stops within that time").remedy(
            "let the reader of a running daemon read on until it stops or is at the server's end; then repeat the \
             command",
        )
    }

    /// Returns the fault if the server lacks changes that a lane has. The lane was further than a stream that lost its
    /// newest messages, and the reader does not know of it.
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

    /// Reads the source on from `entry`, until that fails or the server's present end is passed.
    pub(super) async fn probe(&self, latest: &Timeline, entry: BinlogStart) -> Probed {
        let mut batch = BatchBuilder::new(PROBE_BYTES, Lsn::ZERO, resume_of(&entry));
        let mut end = None;
        match timeout(PROBE_MAX, self.read_on(latest, entry, &mut batch, &mut end)).await {
            Ok(Ok(())) => Probed::Passed,
            Ok(Err(fault)) => Probed::Stopped(fault),
            Err(_) => Probed::CutOff(batch.position(), end),
        }
    }

    /// Reads the source on up to the server's present end, which it sets, and then for the rest of [`PROBE`].
    async fn read_on(
        &self,
        latest: &Timeline,
        entry: BinlogStart,
        batch: &mut BatchBuilder,
        end: &mut Option<Lsn>,
    ) -> Result<(), Fault> {
        let earliest = Instant::now() + PROBE;
        let mut source = self.connector.open(entry, latest, PROBE_REPLICA_SLOT).await?;
        let epoch = latest.followed_by(source.server()).epoch;
        let Located { position, resume, .. } = self.connector.locate(BinlogPoint::Latest, epoch).await?;
        *end = Some(position);
        // A stream that is entered by its transactions has no position before the next one.
        let read = &batch.resume().gtid_set;
        let is_at_end = !read.is_empty() && gtids_in(read) == gtids_in(&resume.gtid_set);
        while !is_at_end && batch.position() < position {
            source.fill(batch).await?;
            batch.take();
        }
        loop {
            let left = earliest.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let Ok(filled) = timeout(left, source.fill(batch)).await else { return Ok(()) };
            filled?;
            batch.take();
        }
    }

    /// Refuses a server without any row when derived rows exist: each of them would be removed.
    pub(super) async fn require_rows(&self) -> Result<(), Fault> {
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
            self.refused("its tables have no row, and derived rows of it exist")
                .needs("tables that have their rows before the source begins anew")
                .remedy("load the tables, or correct the address of the source")
        }))
    }

    pub(super) fn refused(&self, found: impl Into<String>) -> Fault {
        Fault::new(Code::BeginAnewRefused, format!("source {}", self.source), found)
    }
}

/// Whether a new beginning mends the code: it needs neither the source's past nor the server that was read before.
pub(super) fn is_mended(code: Code) -> bool {
    matches!(code, Code::SourceServerChanged | Code::SourceDiverged | Code::BinlogGtidUnknown)
        || code.is_mended_by_refresh()
}

/// Returns the registered beginning that the stream does not have yet.
fn waiting<M: Registers>(epochs: &Epochs<'_, M>, end: Option<&Envelope>) -> Option<Beginning> {
    let end = end?;
    epochs.beginning().filter(|known| end.beginning < known.number).cloned()
}

fn resume_of(entry: &BinlogStart) -> ResumePoint {
    entry.resume_point().map(|(resume, _)| resume).unwrap_or_default()
}

/// Returns the parts of a GTID set's text, whatever their order and the white space between them.
fn gtids_in(set: &str) -> BTreeSet<&str> {
    set.split(',').map(str::trim).collect()
}

/// Returns the point of the stream's end, for a request that was written before.
fn read_before(end: Option<&Envelope>, read: Option<(Lsn, ResumePoint)>) -> Option<(Lsn, ResumePoint)> {
    end.map(|end| (end.position, end.resume.clone())).or(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gtid_sets_are_compared_whatever_the_order_of_their_parts() {
        assert_eq!(gtids_in("0-1-7,1-2-9"), gtids_in("1-2-9, 0-1-7"));
        assert_eq!(gtids_in("a:1-5,\nb:1"), gtids_in("a:1-5,b:1"));
        assert_ne!(gtids_in("0-1-7,1-2-9"), gtids_in("0-1-8,1-2-9"));
    }
}
