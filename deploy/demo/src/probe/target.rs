//! Watches one target for the rows of probes that were not seen yet.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{RECONNECT_INTERVAL, Shared, derived_place};
use crate::endpoint::Connection;
use crate::error::Result;
use crate::verify::{BirthdayLayer, DerivedTables};

/// Between two queries while something is outstanding.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Probes in one query.
const QUERY_PROBES: usize = 100;

/// Looks for outstanding probes until cancelled. A target that is down is tried again.
pub(super) async fn watch(
    layer: &BirthdayLayer,
    target: usize,
    shared: &Arc<Shared>,
    cancel: &CancellationToken,
) -> Result<()> {
    let mut connection: Option<Connection> = None;
    loop {
        let arrived = shared.arrived.notified();
        let selects = selects(layer, target, shared);
        if selects.is_empty() {
            tokio::select! {
                () = cancel.cancelled() => return Ok(()),
                () = arrived => continue,
                () = tokio::time::sleep(RECONNECT_INTERVAL) => continue,
            }
        }
        if cancel.is_cancelled() {
            return Ok(());
        }
        if connection.is_none() {
            connection = layer.targets[target].connect(&[]).await.ok();
        }
        let pause = match &mut connection {
            Some(open) => match open.rows::<(u64, u64)>("look for probes", selects.join(" UNION ALL ")).await
            {
                Ok(found) => {
                    mark_seen(shared, &found);
                    POLL_INTERVAL
                }
                Err(_) => {
                    connection = None;
                    RECONNECT_INTERVAL
                }
            },
            None => RECONNECT_INTERVAL,
        };
        tokio::select! {
            () = cancel.cancelled() => return Ok(()),
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// One SELECT for each outstanding probe whose new row belongs on this target; the oldest first.
fn selects(layer: &BirthdayLayer, target: usize, shared: &Shared) -> Vec<String> {
    let mut wanted: Vec<(Instant, u64, u64)> = shared
        .lock()
        .outstanding
        .iter()
        .filter_map(|(user, probes)| probes.last().map(|probe| (probe.committed, *user, probe.day)))
        .collect();
    wanted.sort_unstable();
    wanted
        .into_iter()
        .map(|(_, user, day)| (user, day, derived_place(layer, user, day)))
        .filter(|(_, _, (database, _))| layer.target_of(*database) == target)
        .take(QUERY_PROBES)
        .map(|(user, day, (database, table))| {
            let database = layer.database_name(database);
            format!("SELECT user_id, {day} FROM {database}.{table} WHERE user_id = {user}")
        })
        .collect()
}

fn mark_seen(shared: &Shared, found: &[(u64, u64)]) {
    let now = Instant::now();
    let mut state = shared.lock();
    for (user, day) in found {
        // Meanwhile the user may have got a younger probe, which this row does not show.
        let is_shown = |probe: &super::Outstanding| probe.day == *day;
        if !state.outstanding.get(user).and_then(|probes| probes.last()).is_some_and(is_shown) {
            continue;
        }
        for probe in state.outstanding.remove(user).unwrap_or_default() {
            state.lags.record(now - probe.committed, now - probe.due);
        }
    }
}
