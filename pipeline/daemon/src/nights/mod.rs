//! A night over all stores of an installation: who works on it, how far it is, and where its report goes.
//!
//! Exactly one process works on it, under a lease. How far it is stands in a mark, raised behind every unit by who
//! knows its last revision: whoever was overtaken stops there, and whoever is next goes on there, if he means the same
//! night. A night that was asked for in another way than the schedule's has a mark of its own, and takes nothing from
//! that one. The report goes into the history of the first MySQL target.

mod foreign;
mod schedule;
mod shown;
mod stores;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anabranch_pipeline::config::Config;
use anabranch_pipeline::config::reconcile::{Limits, Mode, Settings};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::lookup::{AuditPlace, AuditState};
use anabranch_pipeline::metrics as names;
use anabranch_pipeline::ports::{History, Leases, Mark, Marks};
use anabranch_pipeline::projections::{Assignment, Assignments};
use anabranch_pipeline::reconcile::{self, Checkpoint, NightReport, Shown, StoreReport, StoreState, seal};
use anabranch_pipeline::records::{Outcome, PastNight};
use anabranch_pipeline::retry;
use anabranch_pipeline::supervise::while_held;
use metrics::gauge;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

pub use self::foreign::{Named, remove_foreign};
pub use self::schedule::{is_believed, spawn_nights};
pub use self::shown::show_last;
pub use self::stores::whole_tables;
pub use self::watch::spawn_watches;
use crate::wall_clock;
use crate::wiring::Wiring;

/// The lease of all nights, and the mark of a whole one as configured, which the schedule begins.
pub const NIGHT: &str = "night";
/// The mark of the night that was asked for in another way.
const BY_HAND: &str = "night-by-hand";
/// So many nights back a report is looked for that says something of a store, or of all of them.
const LOOKED_BACK: usize = 1_000;
/// Who asks for a night by hand waits no longer for one that is under way.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is asked of a night.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// `None` = as configured.
    pub mode: Option<Mode>,
    /// Projections and caches; empty = all.
    pub stores: Vec<String>,
    /// Repairs whatever the share and number of what differs.
    pub is_gate_open: bool,
    /// Waits for nobody else.
    pub is_unthrottled: bool,
}

impl Order {
    /// The night does at least what the schedule's does.
    fn is_whole(&self, config: &Config) -> bool {
        let is_as_configured = self.mode.is_none_or(|mode| mode == config.reconcile.settings.mode);
        self.stores.is_empty() && is_as_configured
    }

    fn mark(&self) -> &'static str {
        if *self == Self::default() { NIGHT } else { BY_HAND }
    }
}

/// What ends the work on a night before its end.
#[derive(Debug, Clone, Copy)]
struct Until<'a> {
    /// Ends the process, or the command that asked for the night.
    cancel: &'a CancellationToken,
    /// A night of the schedule has a window: when that began, and what ends it.
    window: Option<(u64, &'a CancellationToken)>,
}

impl<'a> Until<'a> {
    fn any(self) -> &'a CancellationToken {
        self.window.map_or(self.cancel, |(_, window)| window)
    }

    /// The night has had its time, and its process works on.
    fn is_window_over(self) -> bool {
        self.any().is_cancelled() && !self.cancel.is_cancelled()
    }
}

/// How far a night is.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    id: String,
    begun_at_ms: u64,
    order: Order,
    /// What was compared by what: a night goes on only under the same.
    layout: String,
    /// Windows of the schedule in which it was worked on, and when the last of them began.
    #[serde(default)]
    windows: u32,
    #[serde(default)]
    window_began_at_ms: Option<u64>,
    /// Stores that are through.
    done: Vec<StoreReport>,
    current: Option<StoreState>,
    /// Where the audits of caches that are through go on in the next night.
    #[serde(default)]
    caches: BTreeMap<String, AuditPlace>,
}

/// What became of a night.
#[derive(Debug)]
pub enum Ended {
    Over(Box<NightReport>),
    /// It goes on when it is begun again.
    Paused {
        id: String,
        windows: u32,
    },
}

/// Works on a night, or says that somebody else does. What passes does not end it: a process that stood still until its
/// lease had run out goes on where it was.
/// One that was asked for otherwise before, and cut off, is given up on the word of a person only.
pub async fn run_now(
    wiring: &Wiring,
    order: &Order,
    abandons: bool,
    cancel: &CancellationToken,
) -> Result<Ended, Fault> {
    retry::again(|| attempt(wiring, order, abandons, cancel)).await
}

async fn attempt(
    wiring: &Wiring,
    order: &Order,
    abandons: bool,
    cancel: &CancellationToken,
) -> Result<Ended, Fault> {
    let log = wiring.log().await?;
    let Ok(lease) = tokio::time::timeout(PATIENCE, log.acquire(NIGHT)).await else {
        return Err(Fault::new(Code::ReconcileRefused, "reconcile", "another process is at a night")
            .needs("its end: `anabranch reconcile status` shows how far it is"));
    };
    while_held(lease?, async {
        if !abandons {
            require_same(&log.read(order.mark()).await?, order, &layout(wiring.config()))?;
        }
        run(wiring, order, Until { cancel, window: None }).await
    })
    .await
}

/// A night that was asked for in yet another way is not lost by asking for this one.
fn require_same(mark: &Mark, order: &Order, layout: &str) -> Result<(), Fault> {
    match read(mark) {
        Some(Ok(state)) if state.order != *order && state.layout == layout => {
            let needed = format!("its end, by what it was asked for with ({}); or --abandon", state.order);
            Err(Fault::new(
                Code::ReconcileRefused,
                format!("night {}", state.id),
                "it was asked for by hand in another way, and cut off",
            )
            .needs(needed))
        }
        _ => Ok(()),
    }
}

impl std::fmt::Display for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "reconcile --now")?;
        self.stores.iter().try_for_each(|store| write!(f, " --store {store}"))?;
        match self.mode {
            None => {}
            Some(Mode::Report) => write!(f, " --mode report")?,
            Some(Mode::Repair) => write!(f, " --mode repair")?,
        }
        let flags = [(self.is_gate_open, " --open-gate"), (self.is_unthrottled, " --unthrottled")];
        flags.iter().filter(|(is_set, _)| *is_set).try_for_each(|(_, flag)| write!(f, "{flag}"))
    }
}

/// Goes on with a night that was cut off, or begins one.
async fn run(wiring: &Wiring, order: &Order, until: Until<'_>) -> Result<Ended, Fault> {
    let (log, history) = (wiring.log().await?, wiring.history()?);
    let stores = stores::names(wiring, order)?;
    let (key, mark) = (order.mark(), log.read(order.mark()).await?);
    let window_began_at_ms = until.window.map(|(began_at_ms, _)| began_at_ms);
    let state = match resumed(&mark, order, &layout(wiring.config())) {
        Some(state) => {
            tracing::info!(night = state.id, stores = state.done.len(), "the night goes on");
            state
        }
        None => begun(order, layout(wiring.config())),
    };
    let settings = settings(wiring, order);
    let caches = carried(&history, order).await?;
    let mut reached = Reached { log, key, mark, state };
    if window_began_at_ms.is_some() && reached.state.window_began_at_ms != window_began_at_ms {
        reached.state.window_began_at_ms = window_began_at_ms;
        reached.state.windows += 1;
        gauge!(names::NIGHT_WINDOWS).set(f64::from(reached.state.windows));
        reached.raise().await?;
    }
    for store in &stores {
        if reached.state.done.iter().any(|done| done.store == *store) {
            continue;
        }
        let of_store = reached.state.current.take().filter(|current| current.report.store == *store);
        let mut of_store = of_store.unwrap_or_else(|| {
            let mut begun = StoreState::new(store, rand::random());
            begun.audit = caches.get(store).cloned().map_or_else(AuditState::default, AuditState::behind);
            begun
        });
        stores::night(wiring, &settings, &mut of_store, &mut reached, until.any()).await?;
        if until.is_window_over() && stores::is_cache(store) {
            // All tables were compared: they are again in the next window, however long a cache takes.
            stores::end_unread(&mut of_store);
        } else if until.any().is_cancelled() {
            return Ok(Ended::Paused { id: reached.state.id, windows: reached.state.windows });
        }
        let report = &of_store.report;
        let (outcome, left, reason) = (report.outcome().name(), report.left, report.incomplete.first());
        tracing::info!(night = reached.state.id, store, outcome, left, reason, "a store is through");
        reached.state.current = None;
        if stores::is_cache(store) {
            reached.state.caches.insert(store.clone(), of_store.audit.place);
        }
        reached.state.done.push(of_store.report);
        reached.raise().await?;
    }
    let Reached { mark, state, .. } = reached;
    let report = close(wiring, &history, state, settings.mode).await?;
    log.raise(key, &mark, String::new()).await?;
    if report.is_whole {
        tell(&report);
    }
    Ok(Ended::Over(Box::new(report)))
}

/// How far the night is, here and in its mark.
struct Reached<'a, M> {
    log: &'a M,
    key: &'static str,
    mark: Mark,
    state: State,
}

impl<M: Marks> Reached<'_, M> {
    async fn raise(&mut self) -> Result<(), Fault> {
        self.mark = self.log.raise(self.key, &self.mark, written(&self.state)).await?;
        Ok(())
    }
}

impl<M: Marks> Checkpoint for Reached<'_, M> {
    async fn store(&mut self, state: &StoreState) -> Result<(), Fault> {
        self.state.current = Some(state.clone());
        self.raise().await
    }
}

/// The state of a night that was cut off, if it is whole and of what is asked for now.
fn resumed(mark: &Mark, order: &Order, layout: &str) -> Option<State> {
    let state = match read(mark) {
        Some(Ok(state)) => state,
        Some(Err(())) => {
            tracing::warn!("the night that was cut off cannot be read: it begins again");
            return None;
        }
        None => return None,
    };
    if state.layout != layout || state.order != *order {
        let why = if state.layout != layout {
            "the configuration or version has changed"
        } else {
            "it was of other stores"
        };
        tracing::warn!(night = state.id, why, "the night that was cut off is not gone on with");
        return None;
    }
    Some(state)
}

/// A checksum in front: what was cut off or changed is not gone on from.
fn written(state: &State) -> String {
    let text = serde_json::to_string(state).expect("a state holds text and numbers only");
    format!("{:08x} {text}", crc32fast::hash(text.as_bytes()))
}

fn read(mark: &Mark) -> Option<Result<State, ()>> {
    if mark.value.is_empty() {
        return None;
    }
    let parts = mark.value.split_once(' ');
    let whole = parts.filter(|(sum, text)| format!("{:08x}", crc32fast::hash(text.as_bytes())) == *sum);
    Some(whole.and_then(|(_, text)| serde_json::from_str(text).ok()).ok_or(()))
}

fn begun(order: &Order, layout: String) -> State {
    let now = wall_clock::now_ms();
    let random: u16 = rand::random();
    let at = jiff::Timestamp::from_millisecond(i64::try_from(now).unwrap_or(i64::MAX));
    let at = at.map_or_else(|_| now.to_string(), |at| at.strftime("%Y%m%dT%H%M%SZ").to_string());
    State {
        id: format!("{at}-{random:04x}"),
        begun_at_ms: now,
        order: order.clone(),
        layout,
        windows: 0,
        window_began_at_ms: None,
        done: Vec::new(),
        current: None,
        caches: BTreeMap::new(),
    }
}

/// What decides which rows stand where: sources, captured tables and columns, derived tables, this version.
fn layout(config: &Config) -> String {
    let entities = config.entities.iter().map(|entity| format!("{:?} {:?}", entity.tables, entity.columns));
    let sources = config.sources.iter().map(|source| format!("{} {}", source.name, source.generation));
    let targets = config.targets.iter().flat_map(|target| {
        let fingerprint =
            |assignment: &Arc<Assignment>| format!("{} {}", assignment.name, assignment.fingerprint());
        Assignments::of(config, &target.name).iter().map(fingerprint).collect::<Vec<_>>()
    });
    let all = entities.chain(sources).chain(targets).chain([env!("CARGO_PKG_VERSION").to_owned()]);
    let all: Vec<String> = all.collect();
    format!("{:08x}", crc32fast::hash(all.join("\n").as_bytes()))
}

fn settings(wiring: &Wiring, order: &Order) -> Settings {
    let mut configured = wiring.config().reconcile.settings.clone();
    if order.is_unthrottled {
        configured.limits = Limits::none();
    }
    let mode = order.mode.unwrap_or(configured.mode);
    match order.is_gate_open {
        true => Settings { mode, gate_keys: u64::MAX, gate_share: 1.0, ..configured },
        false => Settings { mode, ..configured },
    }
}

/// Makes the report and puts it into the history.
async fn close(
    wiring: &Wiring,
    history: &impl History,
    state: State,
    mode: Mode,
) -> Result<NightReport, Fault> {
    let before = history.newest(1).await?.into_iter().next();
    let is_whole = state.order.is_whole(wiring.config());
    let State { id, begun_at_ms, done: mut stores, caches, .. } = state;
    let last = before.as_ref().and_then(|night| parsed(&night.report));
    for store in stores.iter_mut().filter(|store| !store.drift.is_empty()) {
        let looked_at_it = |report: &NightReport| {
            report.id != id && report.stores.iter().any(|known| known.store == store.store)
        };
        if let Some(last) = newest(history, looked_at_it).await? {
            reconcile::count_again(store, &last);
        }
    }
    let tables =
        stores::tables(wiring, &mut stores, &last.map_or_else(Shown::new, |last| last.tables)).await?;
    stores.iter_mut().for_each(StoreReport::put_in_order);
    let verdict = reconcile::worst(&stores);
    let ended_at_ms = wall_clock::now_ms();
    let report =
        NightReport { id, verdict, begun_at_ms, ended_at_ms, mode, stores, tables, is_whole, caches };
    let key = wiring.config().reconcile.signing_key.as_ref();
    let text = serde_json::to_string(&report).expect("a report holds text and numbers only");
    // Written, and cut off before the mark was raised: it is the same night.
    if before.as_ref().is_none_or(|before| before.id != report.id) {
        history.append(&seal(before.as_ref(), (&report.id, ended_at_ms, verdict), text, key)).await?;
    }
    Ok(report)
}

/// Where the audits of caches go on that the last whole night did not end; a night by hand reads them whole.
async fn carried(history: &impl History, order: &Order) -> Result<BTreeMap<String, AuditPlace>, Fault> {
    match order.mark() {
        NIGHT => Ok(newest(history, |report| report.is_whole)
            .await?
            .map_or_else(BTreeMap::new, |last| last.caches)),
        _ => Ok(BTreeMap::new()),
    }
}

/// The newest past night of which this holds, if it is none of those long past.
async fn newest(
    history: &impl History,
    is_it: impl Fn(&NightReport) -> bool,
) -> Result<Option<NightReport>, Fault> {
    let mut night = history.newest(1).await?.into_iter().next();
    for _ in 0..LOOKED_BACK {
        let Some(past) = night else { return Ok(None) };
        if let Some(report) = parsed(&past.report).filter(|report| is_it(report)) {
            return Ok(Some(report));
        }
        night = match past.number.checked_sub(1) {
            Some(number) => history.numbered(number).await?,
            None => None,
        };
    }
    Ok(None)
}

/// The report of a past night, unless another version wrote it in another form.
pub fn parsed(report: &str) -> Option<NightReport> {
    serde_json::from_str(report).ok()
}

/// Shows how the last whole night ended.
pub fn tell(report: &NightReport) {
    for outcome in Outcome::ALL {
        let is_it = f64::from(u8::from(outcome == report.verdict));
        gauge!(names::NIGHT_VERDICT, "verdict" => outcome.name()).set(is_it);
    }
    gauge!(names::NIGHT_ENDED).set(report.ended_at_ms as f64 / 1000.0);
    for store in &report.stores {
        let label = |name: &'static str| gauge!(name, "store" => store.store.clone());
        label(names::NIGHT_ROWS).set((store.rows_source + store.rows_derived) as f64);
        label(names::NIGHT_DRIFT).set(store.drifted() as f64);
        label(names::NIGHT_LEFT).set(store.left as f64);
        label(names::NIGHT_AGAIN).set(store.again as f64);
        label(names::NIGHT_SECONDS).set(store.seconds);
    }
}

/// How far a night is that is not over.
#[derive(Debug, Serialize)]
pub struct Underway {
    pub id: String,
    /// What begins it, or goes on with it.
    pub command: String,
    pub begun_at_ms: u64,
    /// Of the schedule, in which it was worked on.
    pub windows: u32,
    pub done: Vec<StoreReport>,
    pub current: Option<StoreReport>,
    /// Of the current store, from 0 to 1.
    pub share: f64,
}

/// The nights that are not over: that of the schedule, and one that was asked for in another way.
pub async fn underway(wiring: &Wiring) -> Result<(Option<Underway>, Option<Underway>), Fault> {
    let log = wiring.log().await?;
    Ok((far(&log.read(NIGHT).await?), far(&log.read(BY_HAND).await?)))
}

fn far(mark: &Mark) -> Option<Underway> {
    let Some(Ok(state)) = read(mark) else { return None };
    let share = state.current.as_ref().map_or(0.0, StoreState::share);
    let command = state.order.to_string();
    let State { id, begun_at_ms, windows, done, current, .. } = state;
    let current = current.map(|state| state.report);
    Some(Underway { id, command, begun_at_ms, windows, done, current, share })
}

/// The past night of this id, or the newest, with the one before it.
pub async fn past(wiring: &Wiring, id: Option<&str>) -> Result<(PastNight, Option<PastNight>), Fault> {
    let history = wiring.history()?;
    let subject = format!("night {}", id.unwrap_or("LAST"));
    let missing =
        || Fault::new(Code::ReconcileRefused, subject, "there is none").needs("one of `reconcile status`");
    let night = match id {
        Some(id) => history.named(id).await?,
        None => history.newest(1).await?.into_iter().next(),
    };
    let night = night.ok_or_else(missing)?;
    let before = match night.number.checked_sub(1) {
        Some(number) => history.numbered(number).await?,
        None => None,
    };
    Ok((night, before))
}

#[cfg(test)]
mod tests;
