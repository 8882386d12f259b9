//! Where a reader enters the binlog: after the stream's end, at the point of a beginning, or at a lane's position.
//!
//! If the stream ends in an earlier beginning than the source's latest, the reader appends after the stream's end from
//! the point of the latest beginning. No reader reads the gap between; each lane reads its tables again instead.

use anabranch_schemas::beginning::Beginning;
use anabranch_schemas::envelope::{Envelope, ServerIdentity};
use anabranch_schemas::lsn::{Lsn, ResumePoint};

use super::busiest::BusiestTables;
use super::crossing::{Crossing, KnownCrossing};
use crate::config::Limits;
use crate::epochs::Epochs;
use crate::error::{Class, Code, Fault};
use crate::identifiers::flux::CapturedNumbers;
use crate::ports::{BinlogStart, ChangeSource, LogEntry, READER_REPLICA_SLOT, Registers, SourceConnector};
use crate::records::{Progress, refresh_command};

/// The inputs of one reader.
#[derive(Debug)]
pub struct Capture<'a, S, L, M> {
    pub source: &'a str,
    pub connector: &'a S,
    pub log: &'a L,
    /// The registers, which hold the epochs.
    pub registers: &'a M,
    /// Entry at which the reader begins when neither the stream nor a lane has a position.
    pub start: &'a BinlogStart,
    /// Counters of the tables with the most changes.
    pub busiest: BusiestTables,
    /// Receives the numbers of payment documents; `None` = no counter of this installation needs them.
    pub numbers: Option<CapturedNumbers>,
    pub limits: &'a Limits,
}

/// Adds to a fault the command that makes every lane read its tables again.
pub(super) fn refresh_all(source: &str, fault: Fault) -> Fault {
    fault.then(refresh_command("NAME", source) + "; for each projection")
}

/// An open source and its entry, and what the stream must tell lanes of it.
pub(super) struct OpenedSource<S> {
    pub(super) source: S,
    pub(super) entry: BinlogStart,
    /// The source's history begins at the entry.
    pub(super) origin: bool,
    /// The stream's end tells lanes where the stream continues; otherwise the reader appends a message at once.
    pub(super) is_announced: bool,
    /// The stream goes on at a server that lacks transactions which were read.
    pub(super) crossing: Option<Crossing>,
}

impl<S: ChangeSource> OpenedSource<S> {
    /// Returns the position after which the reader appends.
    pub(super) fn position(&self) -> Lsn {
        self.crossing.as_ref().map_or_else(|| self.source.start_position(), |crossing| crossing.end)
    }
}

/// Opens the source after the stream's end; if that is in an earlier beginning, at the point of the latest one.
///
/// A stream that lost its newest messages may end where the binlog is purged already:
/// - If a lane was further, the stream continues from the furthest one as if it were lost. The binlog feeds the others.
/// - If no lane was, and all of them read their tables again, the stream continues from the oldest binlog that exists.
pub(super) async fn open_source<
    S: SourceConnector,
    L,
    M: Registers,
    P: Future<Output = Result<Vec<Progress>, Fault>>,
>(
    capture: &Capture<'_, S, L, M>,
    epochs: &mut Epochs<'_, M>,
    end: Option<&LogEntry>,
    lanes: &impl Fn() -> P,
) -> Result<OpenedSource<S::Source>, Fault> {
    let end = end.map(|end| &end.envelope);
    end.iter().for_each(|end| epochs.learn_of_stream(end));
    // Without the stream or the register, only the lanes know where the source was read, and which epochs were used.
    let asked = match end.is_some() && epochs.is_registered() {
        true => None,
        false => Some(lane_progress(lanes, epochs).await?),
    };
    let Some(planned) = BeginningStart::of(epochs, end, asked.as_deref()) else {
        let lanes = asked.unwrap_or_default();
        let (entry, origin) = entry_without_log(&present(&lanes, epochs.number()), capture.start);
        return match open(capture, epochs, &entry).await {
            Ok(source) => Ok(OpenedSource { source, entry, origin, is_announced: false, crossing: None }),
            Err(fault) if !origin => at_earliest(capture, epochs, &lanes, fault).await,
            Err(fault) => Err(fault),
        };
    };
    let BeginningStart { position, entry, is_announced } = planned;
    if let Some(end) = end.filter(|_| is_announced)
        && let Some((source, crossing)) = cross(capture, epochs, end).await?
    {
        return Ok(OpenedSource { source, entry, origin: false, is_announced, crossing: Some(crossing) });
    }
    let fault = match open(capture, epochs, &entry).await {
        Ok(source) => return Ok(OpenedSource { source, entry, origin: false, is_announced, crossing: None }),
        Err(fault) if fault.code() == Code::BinlogPurged => fault,
        Err(fault) => return Err(fault),
    };
    let known = match asked {
        Some(known) => known,
        None => lane_progress(lanes, epochs).await?,
    };
    let present = present(&known, epochs.number());
    let Some(lane) = furthest(&present).filter(|lane| lane.position > position) else {
        return at_earliest(capture, epochs, &known, fault).await;
    };
    tracing::warn!(
        %fault, position = %lane.position,
        "the stream continues from the position of the lane that is furthest"
    );
    let entry = resume_at(&lane.resume, lane.position, &lane.server);
    match open(capture, epochs, &entry).await {
        Ok(source) => Ok(OpenedSource { source, entry, origin: false, is_announced, crossing: None }),
        Err(fault) => at_earliest(capture, epochs, &known, fault).await,
    }
}

/// A point of the latest beginning from which the stream continues.
struct BeginningStart {
    position: Lsn,
    entry: BinlogStart,
    /// The stream's end reports the point; otherwise lanes learn of it by the next message.
    is_announced: bool,
}

impl BeginningStart {
    /// Returns the stream's end, if it is of the latest beginning; otherwise that beginning's own point, if no lane
    /// that was asked is further.
    fn of<M: Registers>(
        epochs: &Epochs<'_, M>,
        end: Option<&Envelope>,
        asked: Option<&[Progress]>,
    ) -> Option<Self> {
        if let Some(end) = end.filter(|end| end.beginning == epochs.number()) {
            let entry = resume_at(&end.resume, end.position, &end.server);
            return Some(Self { position: end.position, entry, is_announced: true });
        }
        if asked.is_some_and(|lanes| furthest(&present(lanes, epochs.number())).is_some()) {
            return None;
        }
        let Beginning { position, resume, server, .. } = epochs.beginning()?;
        let entry = resume_at(resume, *position, server);
        Some(Self { position: *position, entry, is_announced: false })
    }
}

/// Returns the position and the entry at which the reader would continue, from `lanes` if the stream does not say it;
/// `None` when no position is known.
pub(super) fn reached<M: Registers>(
    epochs: &Epochs<'_, M>,
    end: Option<&Envelope>,
    lanes: &[Progress],
) -> Option<(Lsn, BinlogStart)> {
    if let Some(BeginningStart { position, entry, .. }) =
        BeginningStart::of(epochs, end, end.is_none().then_some(lanes))
    {
        return Some((position, entry));
    }
    let present = present(lanes, epochs.number());
    let lane = furthest(&present)?;
    Some((lane.position, resume_at(&lane.resume, lane.position, &lane.server)))
}

/// Returns the lanes that have begun anew as often as the source. The others read their tables; no reader resumes from
/// them.
pub(super) fn present(lanes: &[Progress], number: u64) -> Vec<Progress> {
    lanes.iter().filter(|lane| lane.beginning == number).cloned().collect()
}

/// Enters the oldest binlog that exists, once no lane needs an older one.
async fn at_earliest<S: SourceConnector, L, M: Registers>(
    capture: &Capture<'_, S, L, M>,
    epochs: &Epochs<'_, M>,
    lanes: &[Progress],
    fault: Fault,
) -> Result<OpenedSource<S::Source>, Fault> {
    if fault.code() != Code::BinlogPurged {
        return Err(fault);
    }
    anew(capture, epochs, lanes, BinlogStart::Earliest, fault).await
}

/// Enters at `entry` and skips the unreadable part before it, once every lane reads its tables again.
pub(super) async fn anew<S: SourceConnector, L, M: Registers>(
    capture: &Capture<'_, S, L, M>,
    epochs: &Epochs<'_, M>,
    lanes: &[Progress],
    entry: BinlogStart,
    fault: Fault,
) -> Result<OpenedSource<S::Source>, Fault> {
    if !present(lanes, epochs.number()).iter().all(Progress::may_begin_anew) {
        return Err(refresh_all(capture.source, fault));
    }
    let entry_name = entry_name(&entry);
    tracing::warn!(
        %fault, entry = entry_name,
        "the stream continues from this entry: every lane reads its tables again"
    );
    let source = open(capture, epochs, &entry).await?;
    Ok(OpenedSource { source, entry, origin: false, is_announced: false, crossing: None })
}

/// Opens the source where its crossing says; `None` if it has none for this end of the stream and the present server.
async fn cross<S: SourceConnector, L, M: Registers>(
    capture: &Capture<'_, S, L, M>,
    epochs: &Epochs<'_, M>,
    end: &Envelope,
) -> Result<Option<(S::Source, Crossing)>, Fault> {
    let known = KnownCrossing::read(capture.registers, capture.source).await?;
    let Some(crossing) = known.crossing.filter(|crossing| crossing.continues(end)) else { return Ok(None) };
    match open(capture, epochs, &crossing.entry(end)).await {
        Ok(source) => Ok((*source.server() == crossing.server).then_some((source, crossing))),
        // The entry at the stream's end says by its own fault what is wrong with another server.
        Err(fault) if !matches!(fault.class(), Class::Transient) => {
            tracing::warn!(%fault, "the source is not read on by its crossing");
            Ok(None)
        }
        Err(fault) => Err(fault),
    }
}

async fn open<S: SourceConnector, L, M: Registers>(
    capture: &Capture<'_, S, L, M>,
    epochs: &Epochs<'_, M>,
    entry: &BinlogStart,
) -> Result<S::Source, Fault> {
    capture.connector.open(entry.clone(), epochs.latest(), READER_REPLICA_SLOT).await
}

/// Returns the progress of all lanes, and learns the epochs that it names.
pub(super) async fn lane_progress<M: Registers, P: Future<Output = Result<Vec<Progress>, Fault>>>(
    lanes: &impl Fn() -> P,
    epochs: &mut Epochs<'_, M>,
) -> Result<Vec<Progress>, Fault> {
    let lanes = lanes().await?;
    lanes.iter().for_each(|lane| epochs.learn_of_lane(lane));
    Ok(lanes)
}

/// Returns the lane that has the highest position, if any lane has begun.
fn furthest(lanes: &[Progress]) -> Option<&Progress> {
    lanes.iter().max_by_key(|progress| progress.position).filter(|progress| progress.position > Lsn::ZERO)
}

pub(super) fn resume_at(resume: &ResumePoint, position: Lsn, server: &ServerIdentity) -> BinlogStart {
    BinlogStart::Resume { resume: resume.clone(), position, server: server.clone() }
}

/// Returns the entry for an empty stream, and whether the source's history begins there.
///
/// If no lane has progress, this is a first start. Otherwise the log was lost, and the stream continues from the
/// furthest lane; the others are fed from the binlog until they are there.
fn entry_without_log(lanes: &[Progress], start: &BinlogStart) -> (BinlogStart, bool) {
    match furthest(lanes) {
        Some(progress) => {
            tracing::warn!(
                position = %progress.position,
                "the stream is empty although a lane has progress: the log was lost, and continues from the lane's \
                 position"
            );
            (resume_at(&progress.resume, progress.position, &progress.server), false)
        }
        None => (start.clone(), true),
    }
}

pub(super) fn entry_name(entry: &BinlogStart) -> &'static str {
    match entry {
        BinlogStart::Earliest => "earliest",
        BinlogStart::Latest => "latest",
        BinlogStart::Gtid(_) => "gtid",
        BinlogStart::Resume { .. } => "resume",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(position: u64) -> Progress {
        Progress { position: Lsn::new(1, 1, position).unwrap(), ..Progress::default() }
    }

    #[test]
    fn an_empty_stream_without_progress_is_a_first_start() {
        assert_eq!(
            entry_without_log(&[Progress::default()], &BinlogStart::Latest),
            (BinlogStart::Latest, true)
        );
        assert_eq!(entry_without_log(&[], &BinlogStart::Earliest), (BinlogStart::Earliest, true));
    }

    #[test]
    fn an_empty_stream_with_progress_is_a_lost_log_and_goes_on_from_the_lane_that_is_furthest() {
        let lanes = [progress(320), progress(160), Progress::default()];
        let (entry, origin) = entry_without_log(&lanes, &BinlogStart::Earliest);
        let BinlogStart::Resume { position, .. } = entry else { panic!("must resume") };
        assert_eq!((position, origin), (Lsn::new(1, 1, 320).unwrap(), false));
    }
}
