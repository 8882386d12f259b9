//! Measures how long a committed change needs to become visible in each store derived from it.
//!
//! The probe changes rows of its own on a fixed schedule, alternating between the sources. The lag of a change runs
//! from the moment after COMMIT was answered to the moment after a query showed the change in the store. Queries follow
//! each other by about a millisecond, in Redis by two and in OpenSearch by twenty, which is the resolution.
//!
//! The schedule is open loop: probes start even if earlier ones are not visible, so a stalled pipeline collects late
//! probes instead of fewer ones (no coordinated omission). `from_schedule` also counts the time by which a busy source
//! delayed the commit itself. A probe that was never seen counts with the time that was waited for it.

mod lag;
mod rows;
mod watch;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::lag::Lags;
pub use self::lag::{LagReport, LagSummary};
use self::rows::ProbeRow;
use self::watch::{ExpectedRow, StoreProbe};
use crate::endpoint::Connection;
use crate::error::Result;
use crate::topology::Topology;
use crate::verify::Verification;

/// A probe that is not visible this long after the end is given up.
const UNSEEN_MAX: Duration = Duration::from_secs(20);
const RECONNECT_INTERVAL: Duration = Duration::from_millis(100);

/// A committed change that was not seen yet.
#[derive(Debug, Clone, Copy)]
struct Outstanding {
    row: ProbeRow,
    revision: u64,
    due: Instant,
    committed: Instant,
}

#[derive(Debug, Default)]
struct State {
    /// Outstanding probes by row. An older probe of a row becomes visible with the younger one at the latest.
    outstanding: HashMap<u64, Vec<Outstanding>>,
    lags: Lags,
}

/// Outstanding probes and measured lags of one store.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    arrived: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, probe: Outstanding) {
        self.lock().outstanding.entry(probe.row.id).or_default().push(probe);
        self.arrived.notify_waiters();
    }

    /// Returns the newest probe of each row, those that wait longest first.
    fn oldest(&self) -> Vec<ExpectedRow> {
        let state = self.lock();
        let mut newest: Vec<&Outstanding> =
            state.outstanding.values().filter_map(|probes| probes.last()).collect();
        newest.sort_unstable_by_key(|probe| (probe.committed, probe.row.id));
        newest.into_iter().map(|probe| (probe.row, probe.revision)).collect()
    }

    fn position_message_seen(&self, found: &[(u64, u64)]) {
        let now = Instant::now();
        let mut state = self.lock();
        for (id, revision) in found {
            // Meanwhile the row may have got a younger probe, which was not seen.
            let is_shown = |probe: &Outstanding| probe.revision == *revision;
            if !state.outstanding.get(id).and_then(|probes| probes.last()).is_some_and(is_shown) {
                continue;
            }
            for probe in state.outstanding.remove(id).unwrap_or_default() {
                state.lags.record(now - probe.committed, now - probe.due);
            }
        }
    }

    /// Returns the report; counts the probes that were never seen.
    fn report(&self) -> LagReport {
        let mut state = self.lock();
        let unseen: Vec<Outstanding> = state.outstanding.drain().flat_map(|(_, probes)| probes).collect();
        for probe in &unseen {
            state.lags.record(probe.committed.elapsed(), probe.due.elapsed());
        }
        state.lags.report(unseen.len() as u64)
    }
}

/// A store and the changes that were seen in it.
#[derive(Debug, Clone)]
struct Watched {
    audit: Verification,
    shared: Arc<Shared>,
}

impl Watched {
    fn store_probes(&self) -> Vec<StoreProbe> {
        StoreProbe::all(&self.audit.topology, &self.audit.layer)
    }
}

/// Probe rows of one entity on every source, and the measurements in each store derived from it.
#[derive(Debug)]
pub struct LagProbe {
    topology: Topology,
    rows: Vec<Vec<ProbeRow>>,
    stores: Vec<Watched>,
}

/// The lag of one store so far, for a screen.
#[derive(Debug, Clone)]
pub struct LiveLag {
    /// Name of the store's audit.
    pub store: &'static str,
    shared: Arc<Shared>,
}

impl LiveLag {
    /// Returns the lags of all probes, and of those seen since the last call of this function.
    pub fn snapshot(&self) -> (LagSummary, LagSummary) {
        self.shared.lock().lags.take_recent()
    }

    /// Returns the lags of the probes seen since the last call of this function.
    pub fn take_phase(&self) -> LagSummary {
        self.shared.lock().lags.take_phase()
    }

    /// Returns the number of probes that are committed and not visible, and the age of the oldest.
    pub fn outstanding(&self) -> (usize, Duration) {
        let state = self.shared.lock();
        let all = state.outstanding.values().flatten();
        let oldest = all.clone().map(|probe| probe.committed.elapsed()).max();
        (all.count(), oldest.unwrap_or_default())
    }
}

impl LagProbe {
    /// Inserts the probe rows; the schema must exist. The audits must be of one entity, and at least one.
    pub async fn create(audits: &[&Verification]) -> Result<Self> {
        let topology = audits[0].topology.clone();
        let mut rows = Vec::new();
        for (index, source) in topology.sources.iter().enumerate() {
            let (own, inserts): (Vec<ProbeRow>, Vec<String>) =
                ProbeRow::all(&topology, index).into_iter().unzip();
            let mut connection = source.connect(&[]).await?;
            let sql = format!("START TRANSACTION;{}COMMIT", inserts.concat());
            connection.execute("insert the rows of the lag probe", sql).await?;
            rows.push(own);
        }
        let watched = |audit: &&Verification| Watched { audit: (*audit).clone(), shared: Arc::default() };
        // A store that shows no probe, such as lunar tables, is not watched.
        let mut stores: Vec<Watched> = audits.iter().map(watched).collect();
        stores.retain(|store| !store.store_probes().is_empty());
        Ok(Self { topology, rows, stores })
    }

    /// Returns the lag of each store.
    pub fn live(&self) -> Vec<LiveLag> {
        let live = |store: &Watched| LiveLag { store: store.audit.name(), shared: Arc::clone(&store.shared) };
        self.stores.iter().map(live).collect()
    }

    /// Waits until a probe row of any source is in the first store; returns false when the time was over.
    pub async fn first_row(&self, limit: Duration) -> bool {
        let start = Instant::now();
        let store = &self.stores[0];
        for row in self.rows.iter().flatten() {
            store.shared.add(Outstanding {
                row: *row,
                revision: row.first_revision(),
                due: start,
                committed: start,
            });
        }
        let seen = CancellationToken::new();
        let watch = async {
            while store.shared.lock().lags.is_empty() && start.elapsed() < limit {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            seen.cancel();
        };
        let store_probes =
            store.store_probes().into_iter().map(|store_probe| store_probe.watch(&store.shared, &seen));
        tokio::join!(join_all(store_probes), watch);
        // The rows of the first users do not count as a measurement.
        let state = std::mem::take(&mut *store.shared.lock());
        !state.lags.is_empty()
    }

    /// Probes until cancelled, then waits for the outstanding probes. Returns the reports by the name of the store.
    pub async fn run(
        &self,
        probes_per_second: u32,
        cancel: CancellationToken,
    ) -> Vec<(&'static str, LagReport)> {
        let start = Instant::now();
        let interval = Duration::from_secs(1) / probes_per_second.max(1);
        let written = CancellationToken::new();
        let writers = async {
            let sources = self.topology.sources.len();
            let writers = (0..sources).map(|index| {
                let first = start + interval * index as u32;
                self.write(index, first, interval * sources as u32, &cancel)
            });
            join_all(writers).await;
            let deadline = Instant::now() + UNSEEN_MAX;
            let is_waiting = || self.stores.iter().any(|store| !store.shared.lock().outstanding.is_empty());
            while is_waiting() && Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            written.cancel();
        };
        let store_probes = self.stores.iter().flat_map(|store| {
            store
                .store_probes()
                .into_iter()
                .map(|store_probe| store_probe.watch(&store.shared, &written))
                .collect::<Vec<_>>()
        });
        tokio::join!(join_all(store_probes), writers);
        self.stores.iter().map(|store| (store.audit.name(), store.shared.report())).collect()
    }

    /// Changes rows on one source by the schedule. A source that is down skips its probes.
    async fn write(&self, source: usize, first: Instant, interval: Duration, cancel: &CancellationToken) {
        let mut connection: Option<Connection> = None;
        let rows = &self.rows[source];
        for number in 0u32.. {
            let due = first + interval * number;
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                () = tokio::time::sleep_until(due) => {}
            }
            if connection.is_none() {
                connection = self.topology.sources[source].connect(&[]).await.ok();
            }
            let Some(open) = &mut connection else {
                tokio::time::sleep(RECONNECT_INTERVAL).await;
                continue;
            };
            let row = rows[number as usize % rows.len()];
            // In the first round rows have the insert's revision, in each further round that of the round before.
            let revision = row.first_revision() + u64::from(number) / rows.len() as u64 + 1;
            if open.execute("change a row of the probe", row.change(revision)).await.is_err() {
                // Whether it was committed is unknown, so it does not count as a probe.
                connection = None;
                continue;
            }
            let probe = Outstanding { row, revision, due, committed: Instant::now() };
            self.stores.iter().for_each(|store| store.shared.add(probe));
        }
    }
}
