//! Measures how long a committed change needs to become visible in a derived table.
//!
//! Users of its own get a new birthday on a fixed schedule, alternating between the sources. The lag of one probe
//! runs from the moment right after COMMIT was answered to the moment after a query on the target showed the row in
//! the new day's table; queries follow each other by about a millisecond, which is the resolution.
//!
//! The schedule is open loop: probes start whether or not earlier ones are visible, so a pipeline that stands still
//! collects late probes instead of fewer ones (no coordinated omission). `from_schedule` also counts the time by which
//! a busy source delayed the commit itself. A probe that was never seen counts with the time it was waited for.

mod lag;
mod target;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::try_join_all;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::lag::Lags;
pub use self::lag::{LagReport, LagSummary};
use crate::endpoint::Connection;
use crate::error::Result;
use crate::topology::{Place, Topology};
use crate::verify::{Audit, BirthdayLayer, DerivedTables, Layer};

/// Ids far above those of the workload.
const FIRST_USER: u64 = 1 << 40;
/// At 25 probes a second and source a user's turn comes again after 40 s.
const USERS_PER_SOURCE: u64 = 1_000;
/// Days that probes move through: one a month, so that all lanes take part.
const DAYS: u64 = 12;
/// What is not visible this long after the end is given up.
const UNSEEN_MAX: Duration = Duration::from_secs(20);
const RECONNECT_INTERVAL: Duration = Duration::from_millis(100);

/// A probe user: its id and where its only row lies.
#[derive(Debug, Clone, Copy)]
struct ProbeUser {
    id: u64,
    place: Place,
}

/// A committed change that was not seen yet.
#[derive(Debug, Clone, Copy)]
struct Outstanding {
    due: Instant,
    committed: Instant,
    day: u64,
}

#[derive(Debug, Default)]
struct State {
    /// By user. An older probe of the same user becomes visible with the younger one at the latest.
    outstanding: HashMap<u64, Vec<Outstanding>>,
    lags: Lags,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    arrived: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Probe users on every source, and what they measured.
#[derive(Debug)]
pub struct LagProbe {
    topology: Topology,
    layer: BirthdayLayer,
    users: Vec<Vec<ProbeUser>>,
    shared: Arc<Shared>,
}

/// The lag so far, for a screen.
#[derive(Debug, Clone)]
pub struct LiveLag(Arc<Shared>);

impl LiveLag {
    /// Of all probes, and of those seen since the last call of this function.
    pub fn snapshot(&self) -> (LagSummary, LagSummary) {
        self.0.lock().lags.take_recent()
    }

    /// Probes that are committed and not visible, and the age of the oldest.
    pub fn outstanding(&self) -> (usize, Duration) {
        let state = self.0.lock();
        let all = state.outstanding.values().flatten();
        let oldest = all.clone().map(|probe| probe.committed.elapsed()).max();
        (all.count(), oldest.unwrap_or_default())
    }
}

/// The birthday of a probe user on one of the [`DAYS`].
fn birthday(day: u64) -> String {
    format!("1984-{:02}-15", day + 1)
}

fn day_table(day: u64) -> String {
    format!("birthday_{:02}15", day + 1)
}

/// Where a probe's change must be seen: database number and table.
fn derived_place(layer: &BirthdayLayer, user: u64, day: u64) -> (u32, String) {
    let table = day_table(day);
    let by_user = (user % u64::from(layer.databases.max(1))) as u32;
    let mut candidates = layer.tables().into_iter().filter(|(_, name)| *name == table);
    let database = match layer.layout {
        crate::verify::DerivedLayout::ByDay => candidates.next().map_or(0, |(database, _)| database),
        crate::verify::DerivedLayout::ByUser => by_user,
    };
    (database, table)
}

impl LagProbe {
    /// Inserts the probe users; the schema must exist.
    ///
    /// # Panics
    /// When the layer is not that of the birthdays.
    pub async fn create(audit: &Audit) -> Result<Self> {
        let Layer::Birthday(layer) = &audit.layer else { panic!("birthdays are probed") };
        let topology = &audit.topology;
        let mut users = Vec::new();
        for (index, source) in topology.sources.iter().enumerate() {
            let own: Vec<ProbeUser> = probe_users(topology, index);
            let mut connection = source.connect(&[]).await?;
            let mut sql = "START TRANSACTION;".to_owned();
            for (user, name) in own.iter().zip(probe_names(topology, index)) {
                let birthday = birthday(user.id % DAYS);
                let (place, id) = (user.place.quoted(), user.id);
                sql.push_str(&format!(
                    "INSERT INTO {place} (user_id, user_name, birthday) VALUES ({id}, '{name}', '{birthday}');"
                ));
            }
            sql.push_str("COMMIT");
            connection.execute("insert the users of the lag probe", sql).await?;
            users.push(own);
        }
        let shared = Shared { state: Mutex::new(State::default()), arrived: Notify::new() };
        Ok(Self { topology: topology.clone(), layer: layer.clone(), users, shared: Arc::new(shared) })
    }

    pub fn live(&self) -> LiveLag {
        LiveLag(Arc::clone(&self.shared))
    }

    /// Waits until a probe user of any source is in a derived table; false when the time was over.
    pub async fn first_row(&self, limit: Duration) -> Result<bool> {
        let start = Instant::now();
        for user in self.users.iter().flatten() {
            let initial = Outstanding { due: start, committed: start, day: user.id % DAYS };
            self.shared.lock().outstanding.insert(user.id, vec![initial]);
        }
        let seen = CancellationToken::new();
        let watch = async {
            while self.shared.lock().lags.is_empty() && start.elapsed() < limit {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            seen.cancel();
        };
        let targets =
            (0..self.layer.targets.len()).map(|index| target::watch(&self.layer, index, &self.shared, &seen));
        let (polled, ()) = tokio::join!(try_join_all(targets), watch);
        polled?;
        // The rows of the first users are no measurement.
        let state = std::mem::take(&mut *self.shared.lock());
        Ok(!state.lags.is_empty())
    }

    /// Probes until cancelled, then waits for those that are on their way.
    pub async fn run(&self, probes_per_second: u32, cancel: CancellationToken) -> Result<LagReport> {
        let start = Instant::now();
        let interval = Duration::from_secs(1) / probes_per_second.max(1);
        let written = CancellationToken::new();
        let writers = async {
            let sources = self.topology.sources.len();
            let writers = (0..sources).map(|index| {
                let first = start + interval * index as u32;
                self.write(index, first, interval * sources as u32, &cancel)
            });
            futures::future::join_all(writers).await;
            let deadline = Instant::now() + UNSEEN_MAX;
            while !self.shared.lock().outstanding.is_empty() && Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            written.cancel();
        };
        let targets = (0..self.layer.targets.len())
            .map(|index| target::watch(&self.layer, index, &self.shared, &written));
        let (seen, ()) = tokio::join!(try_join_all(targets), writers);
        seen?;
        let mut state = self.shared.lock();
        let unseen: Vec<Outstanding> = state.outstanding.drain().flat_map(|(_, probes)| probes).collect();
        for probe in &unseen {
            state.lags.record(probe.committed.elapsed(), probe.due.elapsed());
        }
        Ok(state.lags.report(unseen.len() as u64))
    }

    /// Changes birthdays on one source by the schedule. A source that is down skips its probes.
    async fn write(&self, source: usize, first: Instant, interval: Duration, cancel: &CancellationToken) {
        let mut connection: Option<Connection> = None;
        let users = &self.users[source];
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
            let user = users[number as usize % users.len()];
            // The first round leaves the day of the insert, each further round the day before.
            let round = u64::from(number) / users.len() as u64 + 1;
            let day = (user.id + round) % DAYS;
            let sql = format!(
                "UPDATE {} SET birthday = '{}' WHERE user_id = {}",
                user.place.quoted(),
                birthday(day),
                user.id
            );
            if open.execute("change a birthday", sql).await.is_err() {
                // Whether it was committed is unknown: no probe.
                connection = None;
                continue;
            }
            let probe = Outstanding { due, committed: Instant::now(), day };
            self.shared.lock().outstanding.entry(user.id).or_default().push(probe);
            self.shared.arrived.notify_waiters();
        }
    }
}

/// Names whose shards lie on one source, one for each probe user.
fn probe_names(topology: &Topology, source: usize) -> impl Iterator<Item = String> + '_ {
    (0u64..)
        .map(|number| format!("probe-{number}"))
        .filter(move |name| topology.source_of(topology.place(name)) == source)
        .take(USERS_PER_SOURCE as usize)
}

fn probe_users(topology: &Topology, source: usize) -> Vec<ProbeUser> {
    let first = FIRST_USER + source as u64 * USERS_PER_SOURCE;
    probe_names(topology, source)
        .zip(first..)
        .map(|(name, id)| ProbeUser { id, place: topology.place(&name) })
        .collect()
}
