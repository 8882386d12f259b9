//! A reconciliation of all stores of an installation: its lease, its checkpoint, and its report.
//!
//! Exactly one process works on it, under a lease, and stores its state in a register after every unit, by
//! compare-and-set. A process that was overtaken is refused there. The next one continues from there, if it was asked
//! for the same reconciliation. A reconciliation that was asked for in another way than the schedule's has a register
//! of its own, and takes nothing from the other. The report goes into the history of the first MySQL target.

mod book;
mod checkpoint;
mod columns;
mod foreign;
mod gaps;
mod proof;
mod proven_rows;
mod relied_on;
mod schedule;
mod shown;
mod spot_checks;
mod stores;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anabranch_pipeline::config::Config;
use anabranch_pipeline::config::reconcile::{Mode, PressureLimits, ReconcileSettings};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::metrics as names;
use anabranch_pipeline::ports::{History, Register, Registers};
use anabranch_pipeline::projections::{Assignment, Assignments};
use anabranch_pipeline::reconcile::{self, ReconciliationReport, StoreReport, StoreState, seal};
use anabranch_pipeline::records::{AuditCursor, AuditState, Outcome, PastReconciliation};
use anabranch_pipeline::retry;
use anabranch_pipeline::supervise::{acquired_within, while_held};
use metrics::gauge;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

pub use self::book::{HistoryEntry, Progress, ReconciliationBook};
use self::checkpoint::{CheckpointWriter, State, begun, read, resumed};
pub use self::checkpoint::{RunningReconciliation, underway};
pub use self::foreign::{DepartedRows, ForeignShard, remove_departed, remove_foreign, reported_tables};
pub use self::proof::prove;
pub use self::proven_rows::proven_rows;
pub use self::relied_on::{LastGood, ReliedOn, barrier};
pub use self::schedule::{is_believed, spawn_reconciliations};
pub use self::shown::show_last;
pub use self::spot_checks::{OnDrift, spawn_spot_checks};
pub use self::stores::whole_tables;
use crate::wall_clock;
use crate::wiring::Wiring;

/// The lease of all reconciliations, and the register of a whole one as configured, which the schedule begins.
pub const SCHEDULED: &str = "reconciliation";
/// The register of the reconciliation that was asked for in another way.
const BY_HAND: &str = "reconciliation-by-hand";
/// The asker of a reconciliation that the schedule begins.
const SCHEDULE: &str = "schedule";
/// Past reports that are searched, at most, for one that says something of a store, or of all stores.
const LOOKED_BACK: usize = 1_000;
/// Time that a reconciliation by hand waits for one that is under way.
const LEASE_WAIT: Duration = Duration::from_secs(10);

/// Options of a reconciliation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReconcileOrder {
    /// `None` = as configured.
    pub mode: Option<Mode>,
    /// Projections and caches; empty = all.
    pub stores: Vec<String>,
    /// Repairs whatever the number and share of differences.
    pub is_gate_open: bool,
    /// Reads as fast as it can, without backpressure.
    pub is_unthrottled: bool,
}

impl ReconcileOrder {
    /// Returns whether the reconciliation does at least as much as the schedule's.
    fn is_whole(&self, config: &Config) -> bool {
        let is_as_configured = self.mode.is_none_or(|mode| mode == config.reconcile.settings.mode);
        self.stores.is_empty() && is_as_configured
    }

    fn register(&self) -> &'static str {
        if *self == Self::default() { SCHEDULED } else { BY_HAND }
    }
}

/// Causes that end the work on a reconciliation before its end.
#[derive(Debug, Clone, Copy)]
struct EndSignals<'a> {
    /// Ends the process, or the command that asked for the reconciliation.
    cancel: &'a CancellationToken,
    /// Window of a reconciliation of the schedule: the time when it began, and the token that ends it.
    window: Option<(u64, &'a CancellationToken)>,
}

/// The work that a reconciliation would do.
#[derive(Debug)]
pub struct ReconcilePlan {
    pub stores: Vec<String>,
    pub mode: Mode,
    /// The id of one that was cut off and would continue.
    pub continued: Option<String>,
    /// A process holds the lease of reconciliations at this moment.
    pub is_lease_held: bool,
}

impl<'a> EndSignals<'a> {
    fn any(self) -> &'a CancellationToken {
        self.window.map_or(self.cancel, |(_, window)| window)
    }

    /// Returns whether the window is over while the process works on.
    fn is_window_over(self) -> bool {
        self.any().is_cancelled() && !self.cancel.is_cancelled()
    }
}

/// The end of the work on a reconciliation.
#[derive(Debug)]
pub enum ReconciliationEnd {
    Over(Box<ReconciliationReport>),
    /// The reconciliation continues when it is begun again.
    Paused {
        id: String,
        windows: u32,
    },
}

/// Works on a reconciliation; returns a fault if another process does. Transient faults do not end it: a process that
/// slept until its lease had run out continues where it was. A reconciliation that was asked for otherwise and cut off
/// is given up only if `abandons`, which only a person sets. The report says `asked_by`.
pub async fn run_now(
    wiring: &Wiring,
    order: &ReconcileOrder,
    abandons: bool,
    asked_by: &str,
    cancel: &CancellationToken,
) -> Result<ReconciliationEnd, Fault> {
    retry::again(|| attempt(wiring, order, abandons, asked_by, cancel)).await
}

/// Returns what [`run_now`] would do, or the fault with which it would refuse. Changes nothing.
pub async fn rehearse(
    wiring: &Wiring,
    order: &ReconcileOrder,
    abandons: bool,
) -> Result<ReconcilePlan, Fault> {
    let (stores, layout) = (stores::names(wiring, order)?, layout(wiring.config()));
    wiring.history()?;
    let log = wiring.log().await?;
    let register = log.read(order.register()).await?;
    let is_lease_held = log.lease_holders().await?.contains_key(SCHEDULED);
    if !abandons {
        require_same(&register, order, &layout)?;
    }
    let is_same = |state: &State| state.order == *order && state.layout == layout;
    let continued = read(&register).and_then(Result::ok).filter(is_same).map(|state| state.id);
    let mode = order.mode.unwrap_or(wiring.config().reconcile.settings.mode);
    Ok(ReconcilePlan { stores, mode, continued, is_lease_held })
}

async fn attempt(
    wiring: &Wiring,
    order: &ReconcileOrder,
    abandons: bool,
    asked_by: &str,
    cancel: &CancellationToken,
) -> Result<ReconciliationEnd, Fault> {
    let log = wiring.log().await?;
    let Some(lease) = acquired_within(log, SCHEDULED, LEASE_WAIT).await? else {
        return Err(Fault::new(Code::ReconcileRefused, "reconcile", "another process runs a reconciliation")
            .needs("its end: `anabranch reconcile status` shows how far it is"));
    };
    while_held(lease, async {
        if !abandons {
            require_same(&log.read(order.register()).await?, order, &layout(wiring.config()))?;
        }
        run(wiring, order, asked_by, EndSignals { cancel, window: None }).await
    })
    .await
}

/// Refuses an order if a reconciliation of another order was cut off, so that the request does not lose it.
fn require_same(register: &Register, order: &ReconcileOrder, layout: &str) -> Result<(), Fault> {
    match read(register) {
        Some(Ok(state)) if state.order != *order && state.layout == layout => {
            let needed = format!("its end, by the same command ({}); or --abandon", state.order);
            Err(Fault::new(
                Code::ReconcileRefused,
                format!("reconciliation {}", state.id),
                "it was begun by hand with other options, and cut off",
            )
            .needs(needed))
        }
        _ => Ok(()),
    }
}

impl std::fmt::Display for ReconcileOrder {
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

/// Continues a reconciliation that was cut off, or begins one.
async fn run(
    wiring: &Wiring,
    order: &ReconcileOrder,
    asked_by: &str,
    until: EndSignals<'_>,
) -> Result<ReconciliationEnd, Fault> {
    let (log, history) = (wiring.log().await?, wiring.history()?);
    let stores = stores::names(wiring, order)?;
    let (key, register) = (order.register(), log.read(order.register()).await?);
    let window_began_at_ms = until.window.map(|(began_at_ms, _)| began_at_ms);
    let state = begun_or_resumed(&register, order, wiring.config(), asked_by);
    let settings = settings(wiring, order);
    let caches = carried(&history, order).await?;
    let mut reached = CheckpointWriter { log, key, register, state };
    if window_began_at_ms.is_some() && reached.state.window_began_at_ms != window_began_at_ms {
        reached.state.window_began_at_ms = window_began_at_ms;
        reached.state.windows += 1;
        gauge!(names::RECONCILE_WINDOWS).set(f64::from(reached.state.windows));
        reached.save().await?;
    }
    for store in &stores {
        if reached.state.done.iter().any(|done| done.store == *store) {
            continue;
        }
        let of_store = reached.state.current.take().filter(|current| current.report.store == *store);
        let mut of_store = of_store.unwrap_or_else(|| {
            let mut begun = StoreState::new(store, rand::random());
            begun.audit = caches.get(store).cloned().map_or_else(AuditState::default, AuditState::after);
            begun
        });
        stores::reconciliation(wiring, &settings, &mut of_store, &mut reached, until.any()).await?;
        if until.is_window_over() && stores::is_cache(store) {
            // All tables were compared, and are again in the next window, however long a cache takes.
            stores::end_unread(&mut of_store);
        } else if until.any().is_cancelled() {
            return Ok(ReconciliationEnd::Paused { id: reached.state.id, windows: reached.state.windows });
        }
        let report = &of_store.report;
        let (outcome, left, reason) = (report.outcome().name(), report.left, report.incomplete.first());
        tracing::info!(
            reconciliation = reached.state.id,
            store,
            outcome,
            left,
            reason,
            "the comparison of a store has ended"
        );
        reached.state.current = None;
        if stores::is_cache(store) {
            reached.state.caches.insert(store.clone(), of_store.audit.place);
        }
        reached.state.done.push(of_store.report);
        reached.save().await?;
    }
    let CheckpointWriter { register, state, .. } = reached;
    let report = close(wiring, &history, state, settings.mode).await?;
    log.compare_and_set(key, &register, String::new()).await?;
    if report.is_whole {
        publish_metrics(&report);
    }
    Ok(ReconciliationEnd::Over(Box::new(report)))
}

/// Returns the state of the reconciliation that continues, or of a new one.
fn begun_or_resumed(register: &Register, order: &ReconcileOrder, config: &Config, asked_by: &str) -> State {
    let mut state = match resumed(register, order, &layout(config)) {
        Some(state) => {
            tracing::info!(
                reconciliation = state.id,
                stores = state.done.len(),
                "the reconciliation continues"
            );
            state
        }
        None => begun(order, layout(config)),
    };
    state.add_asker(asked_by);
    state
}

/// Returns all that decides where rows belong: sources, captured tables and columns, derived tables, this version.
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

fn settings(wiring: &Wiring, order: &ReconcileOrder) -> ReconcileSettings {
    let mut configured = wiring.config().reconcile.settings.clone();
    if order.is_unthrottled {
        configured.limits = PressureLimits::none();
    }
    let mode = order.mode.unwrap_or(configured.mode);
    match order.is_gate_open {
        true => ReconcileSettings { mode, gate_keys: u64::MAX, gate_share: 1.0, ..configured },
        false => ReconcileSettings { mode, ..configured },
    }
}

/// Makes the report and puts it into the history.
async fn close(
    wiring: &Wiring,
    history: &impl History,
    state: State,
    mode: Mode,
) -> Result<ReconciliationReport, Fault> {
    let before = history.newest(1).await?.into_iter().next();
    let is_whole = state.order.is_whole(wiring.config());
    let State { id, begun_at_ms, order, asked_by, done: mut stores, caches, .. } = state;
    let is_of_a_person = asked_by.iter().any(|asker| asker != SCHEDULE);
    let last = before.as_ref().and_then(|reconciliation| parsed(&reconciliation.report));
    let gaps = gaps::reported(wiring, last.as_ref()).await?;
    for store in stores.iter_mut().filter(|store| !store.drift.is_empty()) {
        let looked_at_it = |report: &ReconciliationReport| {
            report.id != id && report.stores.iter().any(|known| known.store == store.store)
        };
        if let Some(last) = newest(history, looked_at_it).await? {
            reconcile::count_again(store, &last);
        }
    }
    let known_before = last.map(ReconciliationReport::into_known_tables).unwrap_or_default();
    let known = stores::tables(wiring, &mut stores, &known_before).await?;
    stores.iter_mut().for_each(StoreReport::put_in_order);
    let verdict = reconcile::worst(&stores);
    let ended_at_ms = wall_clock::now_ms();
    let report = ReconciliationReport {
        id,
        verdict,
        begun_at_ms,
        ended_at_ms,
        mode,
        stores,
        tables: known.shown,
        uncaptured: known.uncaptured,
        is_whole,
        caches,
        command: is_of_a_person.then(|| order.to_string()),
        asked_by: (!asked_by.is_empty()).then(|| asked_by.join(", ")),
        gaps,
    };
    let key = wiring.config().reconcile.signing_key.as_ref();
    let text = serde_json::to_string(&report).expect("a report holds text and numbers only");
    // A process wrote the report and was cut off before it set the register: it is the same reconciliation.
    if before.as_ref().is_none_or(|before| before.id != report.id) {
        history.append(&seal(before.as_ref(), (&report.id, ended_at_ms, verdict), text, key)).await?;
    }
    Ok(report)
}

/// Returns the points at which audits of caches continue that the last whole reconciliation did not end; a
/// reconciliation by hand reads caches whole.
async fn carried(
    history: &impl History,
    order: &ReconcileOrder,
) -> Result<BTreeMap<String, AuditCursor>, Fault> {
    match order.register() {
        SCHEDULED => Ok(newest(history, |report| report.is_whole)
            .await?
            .map_or_else(BTreeMap::new, |last| last.caches)),
        _ => Ok(BTreeMap::new()),
    }
}

/// Returns the newest past report for which `is_it` holds, among the last [`LOOKED_BACK`]; `None` without one.
async fn newest(
    history: &impl History,
    is_it: impl Fn(&ReconciliationReport) -> bool,
) -> Result<Option<ReconciliationReport>, Fault> {
    let mut reconciliation = history.newest(1).await?.into_iter().next();
    for _ in 0..LOOKED_BACK {
        let Some(past) = reconciliation else { return Ok(None) };
        if let Some(report) = parsed(&past.report).filter(|report| is_it(report)) {
            return Ok(Some(report));
        }
        reconciliation = match past.number.checked_sub(1) {
            Some(number) => history.numbered(number).await?,
            None => None,
        };
    }
    Ok(None)
}

/// Parses the report of a past reconciliation; `None` if another version wrote it in another form.
pub fn parsed(report: &str) -> Option<ReconciliationReport> {
    serde_json::from_str(report).ok()
}

/// Shows how the last whole reconciliation ended.
pub fn publish_metrics(report: &ReconciliationReport) {
    for outcome in Outcome::ALL {
        let is_it = f64::from(u8::from(outcome == report.verdict));
        gauge!(names::RECONCILE_VERDICT, "verdict" => outcome.name()).set(is_it);
    }
    gauge!(names::RECONCILE_ENDED).set(report.ended_at_ms as f64 / 1000.0);
    for store in &report.stores {
        let label = |name: &'static str| gauge!(name, "store" => store.store.clone());
        label(names::RECONCILE_ROWS).set((store.rows_source + store.rows_derived) as f64);
        label(names::RECONCILE_DRIFT).set(store.drifted() as f64);
        label(names::RECONCILE_LEFT).set(store.left as f64);
        label(names::RECONCILE_AGAIN).set(store.again as f64);
        label(names::RECONCILE_SECONDS).set(store.seconds);
        if let Some(placement) = &store.placement {
            label(names::RECONCILE_MISPLACED).set(placement.misplaced.values().sum::<u64>() as f64);
        }
    }
}

/// Returns the past reconciliation of this id, or the newest, with the one before it.
pub async fn past(
    wiring: &Wiring,
    id: Option<&str>,
) -> Result<(PastReconciliation, Option<PastReconciliation>), Fault> {
    let history = wiring.history()?;
    let subject = format!("reconciliation {}", id.unwrap_or("LAST"));
    let missing =
        || Fault::new(Code::ReconcileRefused, subject, "there is none").needs("one of `reconcile status`");
    let reconciliation = match id {
        Some(id) => history.named(id).await?,
        None => history.newest(1).await?.into_iter().next(),
    };
    let reconciliation = reconciliation.ok_or_else(missing)?;
    let before = match reconciliation.number.checked_sub(1) {
        Some(number) => history.numbered(number).await?,
        None => None,
    };
    Ok((reconciliation, before))
}

#[cfg(test)]
mod tests;
