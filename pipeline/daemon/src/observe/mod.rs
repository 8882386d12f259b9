//! Knowledge about every source and lane: heads, ends of streams, progress, and the time of each observation.
//!
//! `poll.rs` fills it by polling the servers themselves, not the tasks. So `status` needs no running daemon, and a
//! daemon sees a task of another process, or a dead one, as it sees its own. `view.rs` shows it; this file and
//! `view.rs` read no clock and do no I/O.

mod busiest;
mod certificates;
mod dependencies;
mod drift;
pub mod exposition;
mod headroom;
mod lasting;
mod leases;
mod owed;
pub mod poll;
pub mod polling;
mod programmes;
mod rate;
pub mod recent;
mod refusals;
mod ring;
mod served;
mod short;
mod state_changes;
mod view;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anabranch_pipeline::config::{Config, ProjectionConfig};
use anabranch_pipeline::deliver::UnreadTable;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::lag::HeadSamples;
use anabranch_pipeline::ports::LogEntry;
use anabranch_pipeline::projections::Projection;
use anabranch_pipeline::records::{LaneId, Progress, Scope};
use anabranch_schemas::change::{Entity, TableIdentity};
use anabranch_schemas::envelope::ServerIdentity;
use anabranch_schemas::lsn::{FIRST_EPOCH, Lsn};
use anabranch_schemas::shard::ShardId;
use anabranch_schemas::timeline::Timeline;
use tokio::sync::watch;

pub use self::busiest::BusiestView;
pub use self::dependencies::{CertificateView, Dependency, UnansweredView};
use self::dependencies::{DependencyObservation, KNOWN_FOR};
use self::drift::DriftObservation;
pub use self::drift::DriftView;
use self::lasting::Lasting;
pub use self::lasting::LastingView;
pub use self::leases::LeaseView;
pub use self::owed::OwedTableView;
use self::programmes::ProgrammeObservation;
pub use self::programmes::ProgrammeView;
use self::rate::Rate;
use self::recent::Recent;
use self::served::{CacheObservation, SearchObservation};
pub use self::state_changes::StateChange;
pub use self::view::{CacheView, LaneView, Reason, SearchView, SourceView, StatusView, TaskView};
use crate::coupons;
use crate::pauses::{KnownPauses, Pauses};
use crate::wiring::{BinlogKept, StreamState, lanes};

/// An answer older than this is no longer the present state: lag is counted up to now instead of up to the answer.
const ANSWER_AGE_MAX: Duration = Duration::from_secs(3);
/// Age of the sizes of tables, at most: they change slowly, and the server examines each table to report them.
const SIZES_AGE_MAX: Duration = Duration::from_secs(600);

/// The last answer of a server about one thing.
#[derive(Debug, Clone, Default)]
struct LastAnswer {
    at: Option<Instant>,
    /// Code and text of the last failure to ask; `None` while answers come.
    fault: Option<(Code, String)>,
}

impl LastAnswer {
    fn good(&mut self, now: Instant) {
        *self = Self { at: Some(now), fault: None };
    }

    fn bad(&mut self, fault: &Fault) {
        self.fault = Some((fault.code(), fault.to_string()));
    }

    /// Whether the last answer is good and is the present state: it is not while a poll has ended or stands still.
    fn is_known(&self, now: Instant) -> bool {
        self.fault.is_none() && self.at.is_some_and(|at| now.saturating_duration_since(at) < KNOWN_FOR)
    }

    /// Returns the moment for which a position is true: that of the answer while answers come, else `now`: lag grows.
    fn true_at(&self, now: Instant) -> Instant {
        match (self.at, &self.fault) {
            (Some(at), None) if now.saturating_duration_since(at) < ANSWER_AGE_MAX => at,
            _ => now,
        }
    }
}

#[derive(Debug, Clone, Default)]
struct SourceObservation {
    head: HeadSamples,
    head_answer: LastAnswer,
    head_bytes: Rate,
    /// The first head that was seen, the source's clock with it, and the time. It dates changes that a position had
    /// missed before.
    first_head: Option<(Lsn, u64, Instant)>,
    /// The head is lower than the stream's end before the query: the server was reset, and positions say nothing.
    is_reset: bool,
    /// The stream's end at the previous poll.
    position_before: Option<Lsn>,
    /// `None` until the stream's end was read; [`Lsn::ZERO`] when the stream is empty.
    position: Option<Lsn>,
    /// The server of the stream's end.
    server: ServerIdentity,
    sequence: u64,
    committed_at_us: u64,
    log_answer: LastAnswer,
    messages: Rate,
    moved_at: Option<Instant>,
    /// The binlog file at which reading resumes after the stream's end.
    needed_file: String,
    /// The source's clock at the last answer.
    clock_us: u64,
    /// The binlog that the source keeps, and the state of its stream in the log; asked rarely.
    kept: Option<BinlogKept>,
    stream: Option<StreamState>,
    /// Time and answer of the query for the approximate rows of its tables, made only while a lane reads whole tables.
    sizes: Option<(Instant, Vec<TableSize>)>,
}

/// A source's table.
#[derive(Debug, Clone, Copy)]
struct TableSize {
    entity: Entity,
    shard: ShardId,
    rows: u64,
}

#[derive(Debug, Clone, Default)]
struct LaneObservation {
    /// `None` until the target has answered.
    progress: Option<Progress>,
    answer: LastAnswer,
    rows: Rate,
    refreshed: Rate,
    moved_at: Option<Instant>,
    /// Tables that the lane could not read, if it runs in this process.
    unread: Vec<UnreadTable>,
    lasting: Lasting,
}

#[derive(Debug, Default)]
struct Observations {
    sources: BTreeMap<String, SourceObservation>,
    lanes: BTreeMap<LaneId, LaneObservation>,
    caches: BTreeMap<String, CacheObservation>,
    /// Servers by kind and name.
    dependencies: BTreeMap<(Dependency, String), DependencyObservation>,
    /// Drift by store and source.
    drifts: BTreeMap<(String, String), DriftObservation>,
    /// The last refusals of numbers of payment documents, by code.
    refusals: BTreeMap<&'static str, Instant>,
    /// Entity that each projection is derived of.
    entities: BTreeMap<String, Entity>,
    /// Search indexes by projection.
    searches: BTreeMap<String, SearchObservation>,
    /// Coupon programmes by name.
    programmes: BTreeMap<String, ProgrammeObservation>,
    /// Held leases; none while they are not known.
    leases: Vec<LeaseView>,
    /// Busiest tables of this process's readers.
    busiest: Vec<BusiestView>,
    /// Paused lanes; `None` until the register was read once.
    pauses: watch::Sender<Option<Pauses>>,
    /// The process was asked to stop.
    stops: bool,
}

/// All observations. Clones share them and are cheap.
#[derive(Debug, Clone)]
pub struct Observatory {
    all: Arc<Mutex<Observations>>,
    /// It has a lock of its own, because a text of it may take a while.
    recent: Arc<Mutex<Recent>>,
}

impl Observatory {
    /// Returns an observatory of every source, lane, cache and index of the configuration, which knows nothing yet.
    pub fn new(config: &Config) -> Self {
        let sources = config.sources.iter().map(|source| (source.name.clone(), SourceObservation::default()));
        let lanes = lanes(config).into_iter().map(|lane| (lane, LaneObservation::default()));
        let caches = config.caches.iter().map(|cache| (cache.name.clone(), CacheObservation::default()));
        let is_search = |projection: &&ProjectionConfig| projection.kind.documents().is_some();
        let searches = config.projections.iter().filter(is_search);
        let searches = searches.map(|projection| (projection.name.clone(), SearchObservation::default()));
        let (sources, lanes, caches) = (sources.collect(), lanes.collect(), caches.collect());
        let searches = searches.collect();
        let entity =
            |projection: &ProjectionConfig| (projection.name.clone(), Projection::new(projection).entity());
        let entities = config.projections.iter().map(entity).collect();
        let programmes = coupons::programmes(config).unwrap_or_default();
        let programmes =
            programmes.iter().map(|programme| (programme.name.to_string(), ProgrammeObservation::default()));
        let all = Observations {
            sources,
            lanes,
            caches,
            entities,
            searches,
            programmes: programmes.collect(),
            ..Observations::default()
        };
        Self { all: Arc::new(Mutex::new(all)), recent: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Observations> {
        // No code under this lock leaves it half changed.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the process was asked to stop: it is not ready any more, so that clients send it no more requests.
    pub fn stops(&self) {
        self.lock().stops = true;
    }

    /// Records which lanes are paused. If the log could not be read, the known pauses stay.
    pub fn pauses_seen(&self, pauses: &Result<Pauses, Fault>) {
        if let Ok(pauses) = pauses {
            self.lock().pauses.send_if_modified(|known| {
                let is_new = known.as_ref() != Some(pauses);
                *known = Some(pauses.clone());
                is_new
            });
        }
    }

    /// Returns the pauses, for lanes that obey them.
    pub fn pauses(&self) -> KnownPauses {
        KnownPauses(self.lock().pauses.subscribe())
    }

    /// Records the end of a source's binlog, or the failed query. The head gets the epoch that the stream has reached.
    pub fn head_seen(&self, source: &str, head: &Result<(Lsn, u64), Fault>, now: Instant) {
        let mut all = self.lock();
        let Some(seen) = all.sources.get_mut(source) else { return };
        let epoch = seen.timeline().epoch;
        match head {
            Ok((head, clock_us)) => {
                // An epoch of a known position fits.
                let head = head.in_epoch(epoch).unwrap_or(*head);
                seen.first_head.get_or_insert((head, *clock_us, now));
                // The stream's end was read before the head was asked, so a lower head is not an older answer.
                seen.is_reset = seen
                    .position_before
                    .is_some_and(|before| before.epoch() == head.epoch() && head < before);
                seen.clock_us = *clock_us;
                seen.head.observe(head, now);
                seen.head_answer.good(now);
                // Bytes are only comparable within one file; another file begins a new measurement.
                seen.head_bytes.observe(u64::from(head.file_number()), head.position(), now);
            }
            Err(fault) => seen.head_answer.bad(fault),
        }
    }

    /// Records the end of a source's stream, or the failed query.
    pub fn log_end_seen(&self, source: &str, end: &Result<Option<LogEntry>, Fault>, now: Instant) {
        let mut all = self.lock();
        let Some(seen) = all.sources.get_mut(source) else { return };
        match end {
            Ok(end) => {
                let position = end.as_ref().map_or(Lsn::ZERO, |end| end.envelope.position);
                if seen.position.is_none_or(|before| before != position) {
                    seen.moved_at = Some(now);
                }
                seen.position_before = seen.position.replace(position);
                seen.server = end.as_ref().map(|end| end.envelope.server.clone()).unwrap_or_default();
                seen.sequence = end.as_ref().map_or(0, |end| end.sequence);
                seen.needed_file =
                    end.as_ref().map(|end| end.envelope.resume.file.clone()).unwrap_or_default();
                seen.committed_at_us = end.as_ref().map_or(0, |end| end.envelope.committed_at_us);
                seen.messages.observe(0, seen.sequence, now);
                seen.log_answer.good(now);
            }
            Err(fault) => seen.log_answer.bad(fault),
        }
    }

    /// Records the progress of a target's lanes, or the failed query. Lanes without a row have not begun.
    pub fn progress_seen(
        &self,
        target: &str,
        progress: &Result<BTreeMap<LaneId, Progress>, Fault>,
        now: Instant,
    ) {
        let mut all = self.lock();
        for (id, seen) in all.lanes.iter_mut().filter(|(id, _)| id.target == target) {
            match progress {
                Ok(progress) => {
                    let progress = progress.get(id).cloned().unwrap_or_default();
                    if seen.progress.as_ref().is_none_or(|before| before.position != progress.position) {
                        seen.moved_at = Some(now);
                    }
                    seen.rows.observe(0, progress.rows, now);
                    match &progress.refresh {
                        Some(refresh) => seen.refreshed.observe(0, refresh.rows, now),
                        None => seen.refreshed = Rate::default(),
                    }
                    seen.progress = Some(progress);
                    seen.note_lasting(now);
                    seen.answer.good(now);
                }
                Err(fault) => seen.answer.bad(fault),
            }
        }
    }

    /// Returns whether a lane reads whole tables of a source whose sizes are not known.
    pub fn lacks_sizes(&self, source: &str, now: Instant) -> bool {
        let all = self.lock();
        let is_read = |lane: &LaneObservation| {
            let refresh = lane.progress.as_ref().and_then(|progress| progress.refresh.as_ref());
            refresh.is_some_and(|refresh| {
                matches!(refresh.scope, Scope::Source | Scope::Rereads | Scope::Table(_))
            })
        };
        let asked_at = all.sources.get(source).and_then(|seen| seen.sizes.as_ref()).map(|(at, _)| *at);
        let is_known = asked_at.is_some_and(|at| now.saturating_duration_since(at) < SIZES_AGE_MAX);
        !is_known && all.lanes.iter().any(|(id, lane)| id.source == source && is_read(lane))
    }

    /// Records the sizes of a source's tables, or the failed query; either way it is not asked again soon.
    pub fn sizes_seen(
        &self,
        source: &str,
        sizes: &Result<Vec<(TableIdentity<'_>, u64)>, Fault>,
        now: Instant,
    ) {
        let mut all = self.lock();
        let Some(seen) = all.sources.get_mut(source) else { return };
        let size = |(table, rows): &(TableIdentity<'_>, u64)| TableSize {
            entity: table.entity,
            shard: table.shard,
            rows: *rows,
        };
        let sizes = sizes.iter().flatten().map(size).collect();
        seen.sizes = Some((now, sizes));
    }

    /// Records the binlog that a source keeps, and the state of its stream; after a failed query it is not known any
    /// more.
    pub fn kept_seen(&self, source: &str, kept: Option<BinlogKept>, stream: Option<StreamState>) {
        if let Some(seen) = self.lock().sources.get_mut(source) {
            (seen.kept, seen.stream) = (kept, stream);
        }
    }

    /// Drops head observations of a source that its stream and every lane of it have passed.
    pub fn forget_passed(&self, source: &str) {
        let mut all = self.lock();
        let Observations { sources, lanes, .. } = &mut *all;
        let Some(seen) = sources.get_mut(source) else { return };
        let lanes = lanes.iter().filter(|(id, _)| id.source == source);
        let positions = lanes.map(|(_, lane)| lane.progress.as_ref().map(|progress| progress.position));
        // `None` (not known yet) is below everything.
        if let Some(slowest) = positions.chain([seen.position]).min().flatten() {
            seen.head.forget(slowest);
        }
    }
}

impl SourceObservation {
    /// Returns the lag; `None` while head or end of stream are not known or cannot be compared.
    fn lag(&self, now: Instant) -> Option<Duration> {
        Some(self.owed(now)?.max(self.unasked(now)))
    }

    /// Returns the age of the oldest known change that the stream does not hold.
    fn owed(&self, now: Instant) -> Option<Duration> {
        self.since(self.position?, self.committed_at_us, self.log_answer.true_at(now))
    }

    /// Returns the age of the oldest known head above a position that was committed at `committed_at_us`.
    fn since(&self, position: Lsn, committed_at_us: u64, now: Instant) -> Option<Duration> {
        self.head.newest()?;
        if self.is_reset {
            return None;
        }
        let missed = match self.first_head {
            // Both times are the source's own.
            Some((head, clock_us, seen)) if position < head && committed_at_us > 0 => {
                let before = Duration::from_micros(clock_us.saturating_sub(committed_at_us));
                before + now.saturating_duration_since(seen)
            }
            _ => Duration::ZERO,
        };
        Some(self.head.lag(position, now).max(missed))
    }

    /// Returns the time for which the source has not answered; zero while it answers.
    fn unasked(&self, now: Instant) -> Duration {
        let age = self.head_answer.at.map(|at| now.saturating_duration_since(at));
        age.filter(|age| *age > ANSWER_AGE_MAX).unwrap_or_default()
    }

    /// Returns the epoch that the stream has reached, and its server.
    fn timeline(&self) -> Timeline {
        let epoch = self.position.map_or(FIRST_EPOCH, Lsn::epoch).max(FIRST_EPOCH);
        Timeline { epoch, server: self.server.clone() }
    }
}

impl LaneObservation {
    fn lag(&self, source: &SourceObservation, now: Instant) -> Option<Duration> {
        Some(self.owed(source, now)?.max(source.unasked(now)))
    }

    /// Returns the age of the oldest known change that the target does not hold.
    fn owed(&self, source: &SourceObservation, now: Instant) -> Option<Duration> {
        if self.is_incomparable(source) {
            return None;
        }
        let progress = self.progress.as_ref()?;
        source.since(progress.position, progress.committed_at_us, self.answer.true_at(now))
    }

    /// Returns whether the lane's position cannot be compared with those of the stream: it is of a later epoch or of
    /// another server, or the server was reset.
    fn is_incomparable(&self, source: &SourceObservation) -> bool {
        source.is_reset
            || self.progress.as_ref().is_some_and(|progress| {
                let own = Timeline::of(progress.position, &progress.server);
                let stream = source.timeline();
                source.position.is_some() && (own.epoch > stream.epoch || own.contradicts(&stream))
            })
    }
}

#[cfg(test)]
mod tests;
