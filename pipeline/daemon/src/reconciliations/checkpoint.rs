//! The checkpoint of a reconciliation: a register that is set after every unit, read to continue, and shown.

use std::collections::BTreeMap;

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::{Register, Registers};
use anabranch_pipeline::reconcile::{Checkpoint, StoreReport, StoreState};
use anabranch_pipeline::records::AuditCursor;
use anabranch_pipeline::wall_clock;
use serde::{Deserialize, Serialize};

use super::{BY_HAND, ReconcileOrder, SCHEDULED};
use crate::wiring::Wiring;

/// Askers that a report names, at most.
const ASKERS_MAX: usize = 10;

/// Stored state of a reconciliation.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) id: String,
    pub(super) begun_at_ms: u64,
    /// The stores and options that were asked for.
    pub(super) order: ReconcileOrder,
    /// Who asked for it, in the order of asking: `user@host` of each person, and the schedule.
    #[serde(default)]
    pub(super) asked_by: Vec<String>,
    /// Checksum of the version and of the configuration that decides where rows belong. A reconciliation continues only
    /// under the same one.
    pub(super) layout: String,
    /// Number of the schedule's windows in which a process worked on it; the last one began at `window_began_at_ms`.
    #[serde(default)]
    pub(super) windows: u32,
    #[serde(default)]
    pub(super) window_began_at_ms: Option<u64>,
    /// Reports of finished stores.
    pub(super) done: Vec<StoreReport>,
    pub(super) current: Option<StoreState>,
    /// Points from which the next reconciliation continues the audits of finished caches.
    #[serde(default)]
    pub(super) caches: BTreeMap<String, AuditCursor>,
}

/// Keeps the state of the reconciliation in memory, and saves it in its register.
pub(super) struct CheckpointWriter<'a, M> {
    pub(super) log: &'a M,
    pub(super) key: &'static str,
    pub(super) register: Register,
    pub(super) state: State,
}

impl State {
    /// Notes who has asked for the reconciliation; the report names each once.
    pub(super) fn add_asker(&mut self, asker: &str) {
        if self.asked_by.len() < ASKERS_MAX && self.asked_by.iter().all(|known| known != asker) {
            self.asked_by.push(asker.to_owned());
        }
    }
}

impl<M: Registers> CheckpointWriter<'_, M> {
    pub(super) async fn save(&mut self) -> Result<(), Fault> {
        self.register = self.log.compare_and_set(self.key, &self.register, written(&self.state)).await?;
        Ok(())
    }
}

impl<M: Registers> Checkpoint for CheckpointWriter<'_, M> {
    async fn store(&mut self, state: &StoreState) -> Result<(), Fault> {
        self.state.current = Some(state.clone());
        self.save().await
    }
}

/// Returns the state of a reconciliation that was cut off. `None` when there is none, when its text is damaged, or when
/// it has another order or layout.
pub(super) fn resumed(register: &Register, order: &ReconcileOrder, layout: &str) -> Option<State> {
    let state = match read(register) {
        Some(Ok(state)) => state,
        Some(Err(())) => {
            tracing::warn!(
                "the state of the reconciliation that was cut off cannot be read: it begins again"
            );
            return None;
        }
        None => return None,
    };
    if state.layout != layout || state.order != *order {
        let why = if state.layout != layout {
            "the configuration or version has changed"
        } else {
            "it was asked for with other stores or options"
        };
        tracing::warn!(
            reconciliation = state.id,
            why,
            "the reconciliation that was cut off is not continued"
        );
        return None;
    }
    Some(state)
}

/// Returns the text for the register: a checksum, then the state. So no reconciliation continues from a truncated or
/// changed state.
pub(super) fn written(state: &State) -> String {
    let text = serde_json::to_string(state).expect("a state holds text and numbers only");
    format!("{:08x} {text}", crc32fast::hash(text.as_bytes()))
}

/// Returns the state in the register; `None` when the register is empty, and an error when its text is damaged.
pub(super) fn read(register: &Register) -> Option<Result<State, ()>> {
    if register.value.is_empty() {
        return None;
    }
    let parts = register.value.split_once(' ');
    let whole = parts.filter(|(sum, text)| format!("{:08x}", crc32fast::hash(text.as_bytes())) == *sum);
    Some(whole.and_then(|(_, text)| serde_json::from_str(text).ok()).ok_or(()))
}

/// Returns the state of a reconciliation that begins now.
pub(super) fn begun(order: &ReconcileOrder, layout: String) -> State {
    let now = wall_clock::now_ms();
    let random: u16 = rand::random();
    let at = jiff::Timestamp::from_millisecond(i64::try_from(now).unwrap_or(i64::MAX));
    let at = at.map_or_else(|_| now.to_string(), |at| at.strftime("%Y%m%dT%H%M%SZ").to_string());
    State {
        id: format!("{at}-{random:04x}"),
        begun_at_ms: now,
        order: order.clone(),
        asked_by: Vec::new(),
        layout,
        windows: 0,
        window_began_at_ms: None,
        done: Vec::new(),
        current: None,
        caches: BTreeMap::new(),
    }
}

/// Progress of a reconciliation that is not over.
#[derive(Debug, Serialize)]
pub struct RunningReconciliation {
    pub id: String,
    /// Command that begins or continues it.
    pub command: String,
    pub begun_at_ms: u64,
    /// Number of the schedule's windows in which a process worked on it.
    pub windows: u32,
    pub done: Vec<StoreReport>,
    pub current: Option<StoreReport>,
    /// Finished share of the current store, from 0 to 1.
    pub share: f64,
}

/// Returns the reconciliations that are not over: first the one with the options of the schedule, then the one with
/// other options.
pub async fn underway(
    wiring: &Wiring,
) -> Result<(Option<RunningReconciliation>, Option<RunningReconciliation>), Fault> {
    let log = wiring.log().await?;
    Ok((running(&log.read(SCHEDULED).await?), running(&log.read(BY_HAND).await?)))
}

fn running(register: &Register) -> Option<RunningReconciliation> {
    let Some(Ok(state)) = read(register) else { return None };
    let share = state.current.as_ref().map_or(0.0, StoreState::share);
    let command = state.order.to_string();
    let State { id, begun_at_ms, windows, done, current, .. } = state;
    let current = current.map(|state| state.report);
    Some(RunningReconciliation { id, command, begun_at_ms, windows, done, current, share })
}
