//! The last changes of state that this daemon saw, of sources, lanes, caches and tasks.
//!
//! A source, lane or cache has the state of its task when that has failed, so its task is not listed beside it. The
//! changes between `current` and `lagging` are no news: a lane under load makes one each second. A thing of which
//! nothing was known before has no change either.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use super::view::{StatusView, source_thing};
use crate::task_names::{cache_task, lane_task};

/// Changes that are kept, at most.
const CHANGES_MAX: usize = 500;
/// Names of tasks that begin so belong to a source, a lane or a cache.
const TASKS_OF_THINGS: [&str; 3] = ["reader/", "lane/", "cache/"];
const UNKNOWN: &str = "unknown";

/// A thing's change from one state to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StateChange {
    /// Time at which this daemon saw it.
    pub at_ms: u64,
    /// `source/a`, `lane/birthday/target/a/0`, `cache/redis` or the name of another task.
    pub thing: String,
    pub from: String,
    pub to: String,
    /// Code of the fault that it has now.
    pub code: Option<String>,
}

/// The last changes and the last state of each thing.
#[derive(Debug, Default)]
pub(super) struct StateChanges {
    states: BTreeMap<String, String>,
    changes: VecDeque<StateChange>,
}

impl StateChanges {
    /// Compares a status with the one before it.
    pub(super) fn observe(&mut self, status: &StatusView, at_ms: u64) {
        for view in &status.sources {
            self.see(source_thing(&view.source), &view.state, &view.code, at_ms);
        }
        for view in &status.lanes {
            self.see(lane_task(view.id()), &view.state, &view.code, at_ms);
        }
        for view in &status.caches {
            self.see(cache_task(&view.cache), &view.state, &view.code, at_ms);
        }
        let is_own = |name: &str| !TASKS_OF_THINGS.iter().any(|begin| name.starts_with(begin));
        for view in status.tasks.iter().filter(|view| is_own(&view.task)) {
            self.see(view.task.clone(), &view.state, &view.code, at_ms);
        }
    }

    fn see(&mut self, thing: String, state: &str, code: &Option<String>, at_ms: u64) {
        let Some(known) = self.states.get_mut(&thing) else {
            self.states.insert(thing, state.to_owned());
            return;
        };
        if known == state {
            return;
        }
        let from = std::mem::replace(known, state.to_owned());
        if from == UNKNOWN || (is_at_work(&from) && is_at_work(state)) {
            return;
        }
        if self.changes.len() >= CHANGES_MAX {
            self.changes.pop_front();
        }
        self.changes.push_back(StateChange { at_ms, thing, from, to: state.to_owned(), code: code.clone() });
    }

    /// Returns the changes of all things or of one, the oldest first.
    pub(super) fn of(&self, thing: Option<&str>) -> Vec<StateChange> {
        let is_wanted = |change: &&StateChange| thing.is_none_or(|thing| change.thing == thing);
        self.changes.iter().filter(is_wanted).cloned().collect()
    }
}

/// Returns whether a source or lane does its work, with or without a backlog.
fn is_at_work(state: &str) -> bool {
    matches!(state, "current" | "lagging")
}

#[cfg(test)]
mod tests {
    use super::super::view::{CacheView, LaneView, SourceView, TaskView};
    use super::*;

    fn status(lane: &str, code: Option<&str>) -> StatusView {
        let task = |task: &str, state: &str| TaskView {
            task: task.to_owned(),
            state: state.to_owned(),
            ..TaskView::default()
        };
        StatusView {
            sources: vec![SourceView {
                source: "a".to_owned(),
                state: "current".to_owned(),
                ..Default::default()
            }],
            lanes: vec![LaneView {
                projection: "birthday".to_owned(),
                target: "t".to_owned(),
                source: "a".to_owned(),
                state: lane.to_owned(),
                code: code.map(str::to_owned),
                ..LaneView::default()
            }],
            caches: vec![CacheView {
                cache: "redis".to_owned(),
                state: "believed".to_owned(),
                ..CacheView::default()
            }],
            tasks: vec![task("lane/birthday/t/a/0", lane), task("uuids", "running")],
            ..StatusView::default()
        }
    }

    #[test]
    fn a_change_is_kept_once_and_work_with_a_backlog_is_none() {
        let mut changes = StateChanges::default();
        for (at_ms, state) in [(1, "unknown"), (2, "lagging"), (3, "current"), (4, "lagging")] {
            changes.observe(&status(state, None), at_ms);
        }
        assert!(changes.of(None).is_empty());
        changes.observe(&status("retrying", Some("target-unreachable")), 5);
        changes.observe(&status("retrying", Some("target-unreachable")), 6);
        changes.observe(&status("current", None), 7);
        let change = |at_ms, from: &str, to: &str, code: Option<&str>| StateChange {
            at_ms,
            thing: "lane/birthday/t/a/0".to_owned(),
            from: from.to_owned(),
            to: to.to_owned(),
            code: code.map(str::to_owned),
        };
        let expected = [
            change(5, "lagging", "retrying", Some("target-unreachable")),
            change(7, "retrying", "current", None),
        ];
        assert_eq!(changes.of(None), expected);
        assert_eq!(changes.of(Some("lane/birthday/t/a/0")), expected);
        assert!(changes.of(Some("source/a")).is_empty());
    }

    #[test]
    fn sources_caches_and_other_tasks_are_seen_too_and_the_last_five_hundred_changes_are_kept() {
        let mut changes = StateChanges::default();
        let mut seen = status("current", None);
        changes.observe(&seen, 0);
        seen.sources[0].state = "stopped".to_owned();
        seen.caches[0].state = "passed".to_owned();
        seen.tasks[1].state = "standby".to_owned();
        changes.observe(&seen, 1);
        let things: Vec<_> = changes.of(None).into_iter().map(|change| change.thing).collect();
        assert_eq!(things, ["source/a", "cache/redis", "uuids"]);
        for at_ms in 2..=1_001 {
            seen.caches[0].state = if at_ms % 2 == 0 { "believed" } else { "passed" }.to_owned();
            changes.observe(&seen, at_ms);
        }
        let all = changes.of(None);
        assert_eq!((all.len(), all[0].at_ms, all[499].at_ms), (CHANGES_MAX, 502, 1_001));
    }
}
