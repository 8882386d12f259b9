//! A night over all stores of an installation: who works on it, how far it is, and where its report goes.
//!
//! Exactly one process works on it, under a lease. How far it is stands in a mark, raised behind every unit by who knows
//! its last revision: whoever was overtaken stops there, and whoever is next goes on there, if he means the same night.
//! The report goes into the history of the first MySQL target.

mod schedule;
mod stores;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use anabranch_pipeline::config::Config;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::metrics as names;
use anabranch_pipeline::ports::{History, Leases, Mark, Marks};
use anabranch_pipeline::projections::{Assignment, Assignments};
use anabranch_pipeline::reconcile::{
    self, Checkpoint, Limits, Mode, NightReport, Outcome, PastNight, Settings, Shown, StoreReport,
    StoreState, seal,
};
use anabranch_pipeline::retry;
use metrics::gauge;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

pub use self::schedule::spawn_nights;
pub use self::watch::spawn_watches;
use crate::tasks::while_held;
use crate::wall_clock;
use crate::wiring::Wiring;

/// The mark and the lease of the night.
pub const NIGHT: &str = "night";
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
pub async fn run_now(wiring: &Wiring, order: &Order, cancel: &CancellationToken) -> Result<Ended, Fault> {
    retry::again(|| attempt(wiring, order, cancel)).await
}

async fn attempt(wiring: &Wiring, order: &Order, cancel: &CancellationToken) -> Result<Ended, Fault> {
    let log = wiring.log().await?;
    let Ok(lease) = tokio::time::timeout(PATIENCE, log.acquire(NIGHT)).await else {
        return Err(Fault::new(Code::ReconcileRefused, "reconcile", "another process is at a night")
            .needs("its end: `anabranch reconcile status` shows how far it is"));
    };
    while_held(lease?, run(wiring, order, None, cancel)).await
}

/// Goes on with a night that was cut off, or begins one, in a window of the schedule that began then, if in any.
async fn run(
    wiring: &Wiring,
    order: &Order,
    window_began_at_ms: Option<u64>,
    cancel: &CancellationToken,
) -> Result<Ended, Fault> {
    let (log, history) = (wiring.log().await?, wiring.history()?);
    let stores = stores::names(wiring, order)?;
    let mark = log.read(NIGHT).await?;
    let state = match resumed(&mark, order, &layout(wiring.config())) {
        Some(state) => {
            tracing::info!(night = state.id, stores = state.done.len(), "the night goes on");
            state
        }
        None => begun(order, layout(wiring.config())),
    };
    let settings = settings(wiring, order);
    let mut reached = Reached { log, mark, state };
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
        let mut of_store = of_store.unwrap_or_else(|| StoreState::new(store, rand::random()));
        stores::night(wiring, &settings, &mut of_store, &mut reached, cancel).await?;
        if cancel.is_cancelled() {
            return Ok(Ended::Paused { id: reached.state.id, windows: reached.state.windows });
        }
        let report = &of_store.report;
        let (outcome, left, reason) = (report.outcome().name(), report.left, report.incomplete.first());
        tracing::info!(night = reached.state.id, store, outcome, left, reason, "a store is through");
        reached.state.current = None;
        reached.state.done.push(of_store.report);
        reached.raise().await?;
    }
    let Reached { mark, state, .. } = reached;
    let report = close(wiring, &history, state, settings.mode).await?;
    log.raise(NIGHT, &mark, String::new()).await?;
    tell(&report);
    Ok(Ended::Over(Box::new(report)))
}

/// How far the night is, here and in its mark.
struct Reached<'a, M> {
    log: &'a M,
    mark: Mark,
    state: State,
}

impl<M: Marks> Reached<'_, M> {
    async fn raise(&mut self) -> Result<(), Fault> {
        self.mark = self.log.raise(NIGHT, &self.mark, written(&self.state)).await?;
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
    let State { id, begun_at_ms, done: mut stores, .. } = state;
    let last = before.as_ref().and_then(|night| parsed(&night.report));
    if let Some(last) = &last {
        stores.iter_mut().for_each(|store| reconcile::count_again(store, last));
    }
    let tables =
        stores::tables(wiring, &mut stores, &last.map_or_else(Shown::new, |last| last.tables)).await?;
    stores.iter_mut().for_each(StoreReport::put_in_order);
    let verdict = reconcile::worst(&stores);
    let ended_at_ms = wall_clock::now_ms();
    let report = NightReport { id, verdict, begun_at_ms, ended_at_ms, mode, stores, tables };
    let key = wiring.config().reconcile.signing_key.as_ref();
    let text = serde_json::to_string(&report).expect("a report holds text and numbers only");
    // Written, and cut off before the mark was raised: it is the same night.
    if before.as_ref().is_none_or(|before| before.id != report.id) {
        history.append(&seal(before.as_ref(), (&report.id, ended_at_ms, verdict), text, key)).await?;
    }
    Ok(report)
}

/// The report of a past night, unless another version wrote it in another form.
pub fn parsed(report: &str) -> Option<NightReport> {
    serde_json::from_str(report).ok()
}

/// Shows how the last night ended.
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
    pub begun_at_ms: u64,
    /// Of the schedule, in which it was worked on.
    pub windows: u32,
    pub done: Vec<StoreReport>,
    pub current: Option<StoreReport>,
    /// Of the current store, from 0 to 1.
    pub share: f64,
}

/// The night that is not over, if there is one.
pub async fn underway(wiring: &Wiring) -> Result<Option<Underway>, Fault> {
    let mark = wiring.log().await?.read(NIGHT).await?;
    let Some(Ok(state)) = read(&mark) else { return Ok(None) };
    let share = state.current.as_ref().map_or(0.0, StoreState::share);
    let State { id, begun_at_ms, windows, done, current, .. } = state;
    Ok(Some(Underway { id, begun_at_ms, windows, done, current: current.map(|state| state.report), share }))
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
mod tests {
    use super::*;

    const CONFIG: &str = include_str!("../../../../deploy/anabranch.example.toml");

    fn layout_of(text: &str) -> String {
        layout(&Config::parse(text).unwrap())
    }

    fn mark(value: String) -> Mark {
        Mark { value, revision: 7 }
    }

    #[test]
    fn a_night_goes_on_as_the_same_only_and_from_what_is_whole() {
        let order = Order { stores: vec!["birthday".to_owned()], ..Order::default() };
        let state = begun(&order, "a layout".to_owned());
        let goes_on = |value: &str, order: &Order, layout: &str| {
            resumed(&mark(value.to_owned()), order, layout).map(|state| state.id)
        };
        let whole = written(&state);
        assert_eq!(goes_on(&whole, &order, "a layout"), Some(state.id.clone()));
        assert_eq!(goes_on(&whole, &order, "another layout"), None);
        for other in [
            Order::default(),
            Order { mode: Some(Mode::Report), ..order.clone() },
            Order { is_gate_open: true, ..order.clone() },
        ] {
            assert_eq!(goes_on(&whole, &other, "a layout"), None, "{other:?}");
        }
        let changed = whole.replace("\"windows\":0", "\"windows\":1");
        assert_ne!(changed, whole);
        for broken in ["", "{", &whole[1..], &whole[..whole.len() - 1], &changed] {
            assert_eq!(goes_on(broken, &order, "a layout"), None, "{broken}");
        }
    }

    #[test]
    fn whatever_decides_which_rows_stand_where_makes_another_layout() {
        let present = layout_of(CONFIG);
        assert_eq!(
            present,
            layout_of(&CONFIG.replace("127.0.0.1:3306", "127.0.0.1:3310")),
            "a server that moved"
        );
        for (text, other) in [
            ("birthday = \"birthday\" }", "birthday = \"born\" }"),
            ("\"user_{db:02}.user_{table:03}\"", "\"user_{db:02}.user_{table:04}\""),
            ("name = \"source-b\"\n", "name = \"source-c\"\n"),
            ("name = \"source-b\"\n", "name = \"source-b\"\ngeneration = 1\n"),
            ("layout = \"by_day\"\n", "layout = \"by_user\"\n"),
            ("databases = 4\n", "databases = 5\n"),
        ] {
            let changed = CONFIG.replace(text, other);
            assert_ne!(changed, CONFIG, "{text}");
            assert_ne!(layout_of(&changed), present, "{other}");
        }
    }
}
