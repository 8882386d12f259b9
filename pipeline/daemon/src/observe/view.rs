//! The observations and task states as shown: `/v1/status`, `status`, readiness.
//!
//! Positions are text (`epoch:file:position`), because as a number they do not fit a JSON number of most readers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anabranch_pipeline::records::{Progress, Refresh, Scope};
use anabranch_pipeline::supervise::{TaskState, TaskStatus};
use anabranch_schemas::change::Entity;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use serde::{Deserialize, Serialize};

use super::{
    BusiestView, CacheObservation, CertificateView, DriftView, LaneObservation, LastAnswer, LastingView,
    LeaseView, Observatory, OwedTableView, ProgrammeView, SearchObservation, SourceObservation, TableSize,
    UnansweredView,
};
use crate::pauses::Pause;
use crate::task_names::{cache_task, lane_task, reader_task};

/// Lag up to which a thing is ready even without visible progress: a position that moves only by position messages
/// stays the same for a while.
const LAG_READY: Duration = Duration::from_secs(30);
/// Time within which a position must have moved if the lag is above [`LAG_READY`].
const PROGRESS_WITHIN: Duration = Duration::from_secs(15);

/// Everything that `status` shows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StatusView {
    pub sources: Vec<SourceView>,
    pub lanes: Vec<LaneView>,
    #[serde(default)]
    pub caches: Vec<CacheView>,
    #[serde(default)]
    pub searches: Vec<SearchView>,
    /// Programmes of coupons.
    #[serde(default)]
    pub programmes: Vec<ProgrammeView>,
    pub tasks: Vec<TaskView>,
    /// The leases that processes hold now.
    #[serde(default)]
    pub leases: Vec<LeaseView>,
    /// The tables with the most changes among those that this process reads; none for a client without a token.
    #[serde(default)]
    pub busiest: Vec<BusiestView>,
    /// Certificates of servers whose end is known.
    #[serde(default)]
    pub certificates: Vec<CertificateView>,
    /// Drift that spot checks of this process found, the last row of each within the hour.
    #[serde(default)]
    pub drifts: Vec<DriftView>,
    /// Servers that do not answer this process now.
    #[serde(default)]
    pub unanswered: Vec<UnansweredView>,
    /// Codes by which this process has lately refused numbers of payment documents.
    #[serde(default)]
    pub refusals: Vec<String>,
}

/// One source and its stream.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SourceView {
    pub source: String,
    /// `unknown`, `unreachable`, `lagging`, `current`, or `incomparable` (the server's binlog ends below the position
    /// that was read: it was reset); or the state of the daemon's task when it has failed: `retrying`, `stopped`.
    pub state: String,
    pub code: Option<String>,
    pub fault: Option<String>,
    /// Newest known end of the binlog.
    pub head: Option<String>,
    /// Position of the end of the stream.
    pub position: Option<String>,
    /// Stream sequence of the last message.
    pub sequence: u64,
    pub lag_seconds: Option<f64>,
    /// Commit time of the newest change in the stream, microseconds since the Unix epoch.
    pub committed_at_us: Option<u64>,
    pub binlog_bytes_per_second: Option<f64>,
    pub messages_per_second: Option<f64>,
    /// Time until the source may purge binlog that its reader needs; `None` = it keeps it, or that is not known.
    #[serde(default)]
    pub binlog_purge_seconds: Option<f64>,
    #[serde(default)]
    pub stream_bytes: Option<u64>,
    /// Size from which the stream drops its oldest messages.
    #[serde(default)]
    pub stream_bytes_max: Option<u64>,
}

/// One lane.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LaneView {
    pub projection: String,
    pub target: String,
    pub source: String,
    pub lane: u32,
    /// A state as of a source; or `replaying` (below its highest position), `new` (no progress yet), `paused`, or
    /// `incomparable` (its epoch is later than the stream's, or another server's: `log-epoch-lagging`,
    /// `log-epoch-reused`).
    pub state: String,
    /// The pause, with its operator, time and reason.
    #[serde(default)]
    pub pause: Option<Pause>,
    /// Time until neither log nor binlog has what the paused lane needs next.
    #[serde(default)]
    pub paused_seconds_left: Option<f64>,
    pub code: Option<String>,
    pub fault: Option<String>,
    pub position: Option<String>,
    /// Origin of its newest changes: `stream`, or `binlog` while the stream does not link.
    pub feed: Option<String>,
    pub lag_seconds: Option<f64>,
    /// Commit time of the newest applied change, microseconds since the Unix epoch.
    pub committed_at_us: Option<u64>,
    pub rows: u64,
    pub rows_per_second: Option<f64>,
    /// Rows of the source that the refresh under way has read.
    pub refreshed_rows: Option<u64>,
    pub refreshed_rows_per_second: Option<f64>,
    /// Rows that the refresh will read in all, as the source estimates; `None` for keys or a condition.
    pub refresh_rows: Option<u64>,
    pub refresh_seconds_left: Option<f64>,
    /// Dropped and truncated tables of which the lane is still to remove derived rows.
    #[serde(default)]
    pub withdrawn_tables: usize,
    /// Tables that wait to be read again, as far as progress lists them. Their derived rows stand meanwhile.
    #[serde(default)]
    pub owed_tables: usize,
    /// Some of them that could not be read; only the daemon that runs the lane knows why.
    #[serde(default)]
    pub owed: Vec<OwedTableView>,
    #[serde(flatten)]
    pub lasting: LastingView,
}

/// One cache.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CacheView {
    pub cache: String,
    /// `believed`; `passed` = lookups bypass it, because it lags or has begun another life; `unknown`, `unreachable`;
    /// or the state of the daemon's task when it has failed: `retrying`, `stopped`.
    pub state: String,
    pub code: Option<String>,
    pub fault: Option<String>,
    /// Time for which the oldest change has waited to be removed from the cache.
    pub delay_seconds: Option<f64>,
}

/// The index of one projection.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchView {
    pub projection: String,
    pub code: Option<String>,
    pub fault: Option<String>,
    /// Index that is searched.
    pub index: Option<String>,
    /// Index that a rebuild fills beside it.
    pub building: Option<String>,
    pub documents: Option<u64>,
    pub tombstones: Option<u64>,
    /// Documents that were rejected and are parked.
    pub dead_letters: Option<u64>,
}

/// One task of the daemon that answers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskView {
    pub task: String,
    /// `getting-ready`, `running`, `retrying`, `stopped`, `standby` (another process holds its lease and does the work)
    /// or `paused` (until an operator resumes it).
    pub state: String,
    /// Thing that it waits for while it is getting ready, or that a part of its work waits for while it runs.
    #[serde(default)]
    pub waits_for: Option<String>,
    pub code: Option<String>,
    pub fault: Option<String>,
    /// Time for which it has not run.
    pub down_seconds: Option<f64>,
    /// Whether it has been retrying for longer than the retry budget.
    pub lasting: bool,
}

/// A reason why a process is not ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reason {
    pub thing: String,
    pub reason: String,
    pub code: Option<String>,
}

/// Returns the name of a source among other things.
pub fn source_thing(source: &str) -> String {
    format!("source/{source}")
}

impl Observatory {
    /// Returns the present state. `tasks` are the tasks of this process; there may be none.
    pub fn status(&self, tasks: &BTreeMap<String, TaskStatus>, now: Instant) -> StatusView {
        let (certificates, drifts) = (self.certificates(), self.drifts(now));
        let (unanswered, refusals) = (self.unanswered(now), self.refusals(now));
        let all = self.lock();
        let mut sources: Vec<_> = all.sources.iter().map(|(name, source)| source.view(name, now)).collect();
        let mut lanes: Vec<LaneView> = Vec::new();
        for (id, lane) in &all.lanes {
            let entity = all.entities.get(&id.projection).copied();
            let mut view = lane.view(all.sources.get(&id.source), entity, now);
            view.projection = id.projection.clone();
            view.target = id.target.clone();
            view.source = id.source.clone();
            view.lane = id.lane;
            if let Some(status) = tasks.get(&lane_task(id)) {
                overlay(status, &mut view.state, &mut view.code, &mut view.fault);
            }
            if let Some(pause) = all.pauses.borrow().as_ref().and_then(|pauses| pauses.of_lane(id)) {
                TaskState::Paused.name().clone_into(&mut view.state);
                view.pause = Some(pause.clone());
            }
            view.paused_seconds_left = all.paused_left(id, lane).map(|left| left.as_secs_f64());
            lanes.push(view);
        }
        for view in &mut sources {
            if let Some(status) = tasks.get(&reader_task(&view.source)) {
                overlay(status, &mut view.state, &mut view.code, &mut view.fault);
            }
        }
        let mut caches: Vec<_> = all.caches.iter().map(|(name, cache)| cache.view(name)).collect();
        for view in &mut caches {
            if let Some(status) = tasks.get(&cache_task(&view.cache)) {
                overlay(status, &mut view.state, &mut view.code, &mut view.fault);
            }
        }
        let tasks = tasks.iter().map(|(name, status)| TaskView::of(name, status, now)).collect();
        let searches = all.searches.iter().map(|(name, search)| search.view(name)).collect();
        let programmes = all.programmes.iter().map(|(name, known)| known.view(name)).collect();
        let (leases, busiest) = (all.leases.clone(), all.busiest.clone());
        StatusView {
            sources,
            lanes,
            caches,
            searches,
            programmes,
            tasks,
            leases,
            busiest,
            certificates,
            drifts,
            unanswered,
            refusals,
        }
    }

    /// Returns the reasons why this process is not ready; none = ready. Only the work of its own tasks counts: the work
    /// of another process is in order here as soon as the task stands by.
    pub fn reasons_against_ready(&self, tasks: &BTreeMap<String, TaskStatus>, now: Instant) -> Vec<Reason> {
        let getting_ready = |status: &TaskStatus| format!("getting ready: it waits for {}", status.waits_for);
        let mut reasons: Vec<Reason> = tasks
            .iter()
            .filter(|(_, status)| !is_in_order(status.state))
            .map(|(name, status)| Reason {
                thing: name.clone(),
                reason: status.fault.as_ref().map_or_else(|| getting_ready(status), |(_, text)| text.clone()),
                code: status.fault.as_ref().map(|(code, _)| code.as_str().to_owned()),
            })
            .collect();
        let is_here = |task: &str| {
            tasks
                .get(task)
                .is_some_and(|status| !matches!(status.state, TaskState::Standby | TaskState::Paused))
        };
        let all = self.lock();
        if all.stops {
            let (thing, reason) = ("process".to_owned(), "it was asked to stop".to_owned());
            reasons.push(Reason { thing, reason, code: None });
        }
        for (name, source) in &all.sources {
            let task = reader_task(name);
            if is_here(&task) {
                reasons.extend(without_progress(task, source.owed(now), source.moved_at, now));
            }
        }
        for (id, lane) in &all.lanes {
            let task = lane_task(id);
            if is_here(&task) {
                let lag = all.sources.get(&id.source).and_then(|source| lane.owed(source, now));
                reasons.extend(without_progress(task, lag, lane.moved_at, now));
            }
        }
        reasons
    }
}

/// Returns whether a task works, or is meant to wait: for another process, or for the operator who paused it.
fn is_in_order(state: TaskState) -> bool {
    matches!(state, TaskState::Running | TaskState::Standby | TaskState::Paused)
}

/// Returns a reason if a thing lags and its position does not move.
fn without_progress(
    thing: String,
    lag: Option<Duration>,
    moved_at: Option<Instant>,
    now: Instant,
) -> Option<Reason> {
    let reason = match lag {
        None => "head or position are not known yet, or cannot be compared".to_owned(),
        Some(lag) if lag <= LAG_READY => return None,
        Some(_) if moved_at.is_some_and(|at| now.saturating_duration_since(at) <= PROGRESS_WITHIN) => {
            return None;
        }
        Some(lag) => format!("no progress, and a lag of {} s", lag.as_secs()),
    };
    Some(Reason { thing, reason, code: None })
}

/// Shows a failed task in place of the observation. A task that stands by shows nothing: another process does its work.
fn overlay(status: &TaskStatus, state: &mut String, code: &mut Option<String>, fault: &mut Option<String>) {
    if !matches!(status.state, TaskState::Retrying | TaskState::Stopped) {
        return;
    }
    status.state.name().clone_into(state);
    if let Some((found, text)) = &status.fault {
        *code = Some(found.as_str().to_owned());
        *fault = Some(text.clone());
    }
}

impl LaneView {
    /// Returns the lane's id as it is written everywhere: `birthday/target/source-a/0`.
    pub fn id(&self) -> String {
        format!("{}/{}/{}/{}", self.projection, self.target, self.source, self.lane)
    }
}

impl TaskView {
    fn of(name: &str, status: &TaskStatus, now: Instant) -> Self {
        Self {
            task: name.to_owned(),
            state: status.state.name().to_owned(),
            waits_for: match status.state {
                TaskState::Waiting => Some(status.waits_for.clone()),
                TaskState::Running => status.work_waits_for.clone(),
                _ => None,
            },
            code: status.fault.as_ref().map(|(code, _)| code.as_str().to_owned()),
            fault: status.fault.as_ref().map(|(_, text)| text.clone()),
            down_seconds: status.down_since.map(|since| now.saturating_duration_since(since).as_secs_f64()),
            lasting: status.lasting,
        }
    }
}

/// Returns the first failure to ask, as (code, text).
fn first_fault(answers: &[&LastAnswer]) -> (Option<String>, Option<String>) {
    let fault = answers.iter().find_map(|answer| answer.fault.as_ref());
    (fault.map(|(code, _)| code.as_str().to_owned()), fault.map(|(_, text)| text.clone()))
}

/// Returns `unreachable` when a server could not be asked, else the state by position.
fn state_of(faulty: bool, head: Option<Lsn>, position: Option<Lsn>) -> &'static str {
    match (head, position) {
        _ if faulty => "unreachable",
        (Some(head), Some(position)) if position >= head => "current",
        (Some(_), Some(_)) => "lagging",
        _ => "unknown",
    }
}

/// Returns the feed; `None` for a lane that has not begun. Progress stores only messages of the stream.
fn feed(progress: &Progress) -> Option<&'static str> {
    let is_from_stream = progress.message.is_some();
    (progress.position > Lsn::ZERO).then_some(if is_from_stream { "stream" } else { "binlog" })
}

/// Returns about how many rows a refresh reads in all, not fewer than it has read; `None` if that is not known.
fn expected_rows(refresh: &Refresh, sizes: &[TableSize], entity: Entity) -> Option<u64> {
    let of_tables = |is_meant: &dyn Fn(ShardId) -> bool| -> Option<u64> {
        let sizes = sizes.iter().filter(|table| table.entity == entity && is_meant(table.shard));
        sizes.map(|table| table.rows).reduce(u64::saturating_add)
    };
    let rows = match &refresh.scope {
        Scope::Source => of_tables(&|_| true),
        Scope::Table(only) => of_tables(&|shard| shard == *only),
        Scope::Rereads => of_tables(&|shard| refresh.rereads.contains_key(&shard)),
        Scope::Keys(_) | Scope::Where(..) => None,
    };
    rows.map(|rows| rows.max(refresh.rows))
}

/// Returns `None` for 0, which means an unknown time.
fn known_time(committed_at_us: u64) -> Option<u64> {
    (committed_at_us > 0).then_some(committed_at_us)
}

impl SourceObservation {
    fn view(&self, name: &str, now: Instant) -> SourceView {
        let (code, fault) = first_fault(&[&self.head_answer, &self.log_answer]);
        let state = match code {
            None if self.is_reset => "incomparable",
            _ => state_of(code.is_some(), self.head.newest(), self.position),
        };
        SourceView {
            source: name.to_owned(),
            state: state.to_owned(),
            code,
            fault,
            head: self.head.newest().map(|head| head.to_string()),
            position: self.position.map(|position| position.to_string()),
            sequence: self.sequence,
            lag_seconds: self.lag(now).map(|lag| lag.as_secs_f64()),
            committed_at_us: known_time(self.committed_at_us),
            binlog_bytes_per_second: self.head_bytes.per_second(),
            messages_per_second: self.messages.per_second(),
            binlog_purge_seconds: self.purge_left().map(|left| left.as_secs_f64()),
            stream_bytes: self.stream.map(|stream| stream.bytes),
            stream_bytes_max: self.stream.and_then(|stream| stream.bytes_max),
        }
    }
}

impl CacheObservation {
    fn view(&self, name: &str) -> CacheView {
        let (code, fault) = first_fault(&[&self.answer]);
        let state = match self.seen {
            _ if code.is_some() => "unreachable",
            None => "unknown",
            Some((_, true)) => "believed",
            Some((_, false)) => "passed",
        };
        CacheView {
            cache: name.to_owned(),
            state: state.to_owned(),
            code,
            fault,
            delay_seconds: self.seen.map(|(delay, _)| delay.as_secs_f64()),
        }
    }
}

impl SearchObservation {
    fn view(&self, projection: &str) -> SearchView {
        let (code, fault) = first_fault(&[&self.answer]);
        let seen = self.seen.as_ref();
        SearchView {
            projection: projection.to_owned(),
            code,
            fault,
            index: seen.map(|seen| seen.generations.serving.clone()),
            building: seen.and_then(|seen| seen.generations.building.clone()),
            documents: seen.map(|seen| seen.documents),
            tombstones: seen.map(|seen| seen.tombstones),
            dead_letters: seen.map(|seen| seen.dead_letters),
        }
    }
}

impl LaneObservation {
    /// Returns the view without the lane's names, which the observation does not know.
    fn view(&self, source: Option<&SourceObservation>, entity: Option<Entity>, now: Instant) -> LaneView {
        let refresh = self.progress.as_ref().and_then(|progress| progress.refresh.as_ref());
        let sizes = source.and_then(|source| source.sizes.as_ref()).map(|(_, sizes)| &**sizes);
        let refresh_rows = refresh.and_then(|refresh| expected_rows(refresh, sizes?, entity?));
        let refreshed_rows_per_second = self.refreshed.per_second();
        let (code, fault) = first_fault(&[&self.answer]);
        let head = source.and_then(|source| source.head.newest());
        let position = self.progress.as_ref().map(|progress| progress.position);
        let state = match &self.progress {
            _ if code.is_some() => "unreachable",
            Some(progress) if progress.revision == 0 => "new",
            _ if source.is_some_and(|source| self.is_incomparable(source)) => "incomparable",
            Some(progress) if progress.is_replaying() => "replaying",
            _ => state_of(false, head, position),
        };
        LaneView {
            state: state.to_owned(),
            code,
            fault,
            position: position.map(|position| position.to_string()),
            feed: self.progress.as_ref().and_then(feed).map(str::to_owned),
            lag_seconds: source.and_then(|source| self.lag(source, now)).map(|lag| lag.as_secs_f64()),
            committed_at_us: self.progress.as_ref().and_then(|progress| known_time(progress.committed_at_us)),
            rows: self.progress.as_ref().map_or(0, |progress| progress.rows),
            rows_per_second: self.rows.per_second(),
            withdrawn_tables: self.progress.as_ref().map_or(0, |progress| progress.withdrawals.len()),
            owed_tables: self.owed_tables(),
            owed: self.owed_table_views(),
            lasting: self.lasting.view(now),
            refreshed_rows: refresh.map(|refresh| refresh.rows),
            refreshed_rows_per_second,
            refresh_rows,
            refresh_seconds_left: refresh.zip(refresh_rows).and_then(|(refresh, rows)| {
                let rate = refreshed_rows_per_second.filter(|rate| *rate > 0.0)?;
                Some((rows - refresh.rows) as f64 / rate)
            }),
            ..LaneView::default()
        }
    }
}
