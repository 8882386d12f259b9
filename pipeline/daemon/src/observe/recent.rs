//! The last hours as this daemon saw them: rates and lags of sources and lanes, and changes of state.
//!
//! They are taken from the status once a second, so they show exactly what `/v1/status` showed. Nothing of it is
//! stored: a daemon that starts begins anew.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use anabranch_pipeline::supervise::TaskStates;
use axum::body::Bytes;
use tokio_util::sync::CancellationToken;

use super::Observatory;
use super::ring::Ring;
use super::state_changes::{StateChange, StateChanges};
use super::view::{LaneView, SourceView, StatusView, source_thing};
use crate::task_names::lane_task;
use crate::wall_clock;

const INTERVAL: Duration = Duration::from_secs(1);

/// The last hours of one daemon.
#[derive(Debug, Default)]
pub(super) struct Recent {
    ring: Ring,
    changes: StateChanges,
    /// Number of closed slots and text of all series then, so that any number of clients costs one text a slot.
    text: Option<(u64, Bytes)>,
}

impl Recent {
    /// Drops the text of a time with fewer closed slots.
    fn forget_old_text(&mut self) {
        if self.text.as_ref().is_some_and(|(closed, _)| *closed != self.ring.closed()) {
            self.text = None;
        }
    }
}

/// Series and changes of state, as of one moment.
#[derive(Debug)]
pub struct RecentHours {
    /// Length of a slot.
    pub step_seconds: u64,
    /// Time since the end of the newest sample.
    pub age: Duration,
    /// The list of series, as JSON.
    pub series: Bytes,
    /// The oldest change comes first.
    pub changes: Vec<StateChange>,
}

/// Records the status each second until `cancel`.
pub async fn record(observatory: Observatory, tasks: TaskStates, cancel: CancellationToken) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let now = Instant::now();
        let status = observatory.status(&tasks.snapshot(), now);
        observatory.status_seen(&status, now, wall_clock::now_ms());
    }
}

impl Observatory {
    pub(super) fn status_seen(&self, status: &StatusView, now: Instant, now_ms: u64) {
        let of_source =
            |view: &SourceView| (source_thing(&view.source), view.binlog_bytes_per_second, view.lag_seconds);
        let of_lane = |view: &LaneView| (lane_task(view.id()), view.rows_per_second, view.lag_seconds);
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let values = status.sources.iter().map(of_source).chain(status.lanes.iter().map(of_lane));
        recent.ring.record(values, now);
        recent.changes.observe(status, now_ms);
        recent.forget_old_text();
    }

    /// Returns the last hours of all things or of one; `None` when no such thing is known.
    pub fn recent_hours(&self, thing: Option<&str>, now: Instant) -> Option<RecentHours> {
        // No code under this lock leaves it half changed.
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.forget_old_text();
        let Recent { ring, changes, text } = &mut *recent;
        let written = |series: Result<String, serde_json::Error>| -> Bytes {
            series.expect("series hold text and numbers only").into()
        };
        let series = match thing {
            Some(thing) => written(serde_json::to_string(&[ring.series(thing)?])),
            None => {
                let make = || {
                    let all: Vec<_> = ring.all_series().collect();
                    (ring.closed(), written(serde_json::to_string(&all)))
                };
                text.get_or_insert_with(make).1.clone()
            }
        };
        let (step_seconds, age) = (ring.step_seconds(), ring.age(now));
        Some(RecentHours { step_seconds, age, series, changes: changes.of(thing) })
    }
}
