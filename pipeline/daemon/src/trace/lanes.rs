//! The lanes that write the traced derived rows: how far each is, and why it may not have passed a change.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anabranch_pipeline::ports::Log as _;
use anabranch_pipeline::records::{LaneId, Progress, Scope};
use anabranch_schemas::envelope::ServerIdentity;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use futures::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::question::TracedEntity;
use super::view::LaneOfKeyView;
use crate::observe::{LaneView, StatusView};

/// Time between two looks at lanes that are on their way.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Stored progress by lane; a lane whose target does not answer is left out.
pub(super) type StoredProgress = BTreeMap<LaneId, Progress>;

/// How a lane stands to the position at which its source was read.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum LaneReach {
    /// Its tables hold every change up to there.
    Passed,
    Lagging {
        lag_seconds: Option<f64>,
    },
    Paused,
    /// Its task has failed: `stopped` or `retrying`, with a code.
    Failed {
        state: String,
        code: Option<String>,
    },
    /// It reads its tables again, so rows may be missing until it is through.
    Refreshing,
    /// It has not begun, or applies a part of the past once more.
    Replaying,
    /// Its position cannot be compared with the source's.
    Incomparable,
    /// Its target or its source does not answer.
    Unknown,
}

/// A lane with everything that is known about it.
#[derive(Debug, Clone)]
pub(super) struct TracedLane {
    pub(super) id: LaneId,
    pub(super) reach: LaneReach,
    position: Option<Lsn>,
    /// Tables that wait to be read again.
    owed: BTreeSet<ShardId>,
    view: Option<LaneView>,
}

/// Reads the progress of all traced lanes.
pub(super) async fn progress(traced: &TracedEntity<'_>, until: Instant) -> StoredProgress {
    let lanes: Vec<LaneId> = traced.lanes().collect();
    let targets: BTreeSet<&str> = lanes.iter().map(|id| id.target.as_str()).collect();
    let mut all = StoredProgress::new();
    let asked = targets.iter().map(|target| timeout_at(until, traced.wiring.progress(target)));
    for (target, answer) in targets.iter().zip(join_all(asked).await) {
        let Ok(Ok(mut stored)) = answer else { continue };
        // A lane without a row has not begun.
        let of_target = lanes.iter().filter(|id| id.target == **target);
        all.extend(of_target.map(|id| (id.clone(), stored.remove(id).unwrap_or_default())));
    }
    all
}

/// Returns the epoch of each source's lanes, in which positions of the source are compared.
pub(super) fn epochs(progress: &StoredProgress) -> BTreeMap<String, u16> {
    let mut epochs = BTreeMap::new();
    for (id, progress) in progress {
        let epoch: &mut u16 = epochs.entry(id.source.clone()).or_insert(progress.position.epoch());
        *epoch = progress.position.epoch().max(*epoch);
    }
    // A source whose lanes have not begun has no epoch yet.
    epochs.retain(|_, epoch| *epoch > 0);
    epochs
}

/// Returns all traced lanes with their reach of the places where their sources were read.
pub(super) fn traced_lanes(
    traced: &TracedEntity<'_>,
    progress: &StoredProgress,
    places: &BTreeMap<String, (Lsn, ServerIdentity)>,
    status: &StatusView,
) -> Vec<TracedLane> {
    let views: BTreeMap<String, &LaneView> = status.lanes.iter().map(|view| (view.id(), view)).collect();
    let lane = |id: LaneId| {
        let view = views.get(&id.to_string()).map(|view| (*view).clone());
        let stored = progress.get(&id);
        let reach = reach(stored, places.get(&id.source), view.as_ref());
        let refresh = stored.and_then(|stored| stored.refresh.as_ref());
        let owed = refresh.into_iter().flat_map(|refresh| refresh.rereads.keys().copied()).collect();
        TracedLane { reach, position: stored.map(|stored| stored.position), owed, view, id }
    };
    traced.lanes().map(lane).collect()
}

/// Waits until none of these lanes is on its way any more, or `until`; returns the last progress. The readers of quiet
/// sources are asked for their positions meanwhile.
pub(super) async fn wait(
    traced: &TracedEntity<'_>,
    lanes: &[&TracedLane],
    places: &BTreeMap<String, (Lsn, ServerIdentity)>,
    until: Instant,
) -> StoredProgress {
    loop {
        let stored = progress(traced, until + POLL_INTERVAL).await;
        let is_on_its_way = |lane: &&TracedLane| {
            let reach = reach(stored.get(&lane.id), places.get(&lane.id.source), lane.view.as_ref());
            matches!(reach, LaneReach::Lagging { .. })
        };
        let left: BTreeSet<&str> =
            lanes.iter().filter(|lane| is_on_its_way(lane)).map(|lane| lane.id.source.as_str()).collect();
        if left.is_empty() || Instant::now() >= until {
            return stored;
        }
        if let Ok(log) = traced.wiring.log().await {
            for source in left {
                log.ask_for_position(source).await;
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn reach(
    progress: Option<&Progress>,
    place: Option<&(Lsn, ServerIdentity)>,
    view: Option<&LaneView>,
) -> LaneReach {
    let (Some(progress), Some((place, server))) = (progress, place) else { return LaneReach::Unknown };
    let is_of_source = progress.server == *server && progress.position.epoch() == place.epoch();
    let reads_tables = progress.refresh.as_ref().is_some_and(|refresh| {
        let is_of_tables = matches!(refresh.scope, Scope::Source | Scope::Table(_));
        is_of_tables || refresh.every_waits || !refresh.rereads.is_empty()
    }) || progress.withdrawals.are_owed_at(*place);
    let state = view.map(|view| view.state.as_str());
    match state {
        _ if is_of_source && !reads_tables && !progress.is_replaying() && progress.position >= *place => {
            LaneReach::Passed
        }
        Some("paused") => LaneReach::Paused,
        Some(state @ ("stopped" | "retrying")) => {
            LaneReach::Failed { state: state.to_owned(), code: view.and_then(|view| view.code.clone()) }
        }
        _ if reads_tables => LaneReach::Refreshing,
        _ if progress.position == Lsn::ZERO || progress.is_replaying() => LaneReach::Replaying,
        _ if !is_of_source => LaneReach::Incomparable,
        _ => LaneReach::Lagging { lag_seconds: view.and_then(|view| view.lag_seconds) },
    }
}

impl TracedLane {
    #[cfg(test)]
    pub(super) fn for_test(id: LaneId, reach: LaneReach) -> Self {
        Self { id, reach, position: None, owed: BTreeSet::new(), view: None }
    }

    /// Says that the lane is to read a table again that has the key, or may have it; `name` returns the name of a table
    /// that was traced, and `is_meant` whether the table is asked for.
    pub(super) fn waits(
        &self,
        is_meant: impl Fn(ShardId) -> bool,
        name: impl Fn(ShardId) -> Option<String>,
    ) -> Option<String> {
        let shard = self.owed.iter().copied().find(|shard| is_meant(*shard))?;
        let known = self.view.iter().flat_map(|view| &view.owed).find(|owed| owed.shard == shard.to_string());
        let name = name(shard).or_else(|| known?.table.clone());
        let name = name.unwrap_or_else(|| "a table that its source does not list".to_owned());
        let why = known.map_or_else(String::new, |owed| format!(" ([{}])", owed.code));
        Some(format!(
            "lane {} is to read {name} again{why}, and `anabranch status` says what it waits for",
            self.id
        ))
    }

    pub(super) fn view(&self) -> LaneOfKeyView {
        let view = self.view.as_ref();
        LaneOfKeyView {
            lane: self.id.to_string(),
            position: self.position.map(|position| position.to_string()),
            lag_seconds: view.and_then(|view| view.lag_seconds),
            state: view.map_or_else(|| "unknown".to_owned(), |view| view.state.clone()),
            code: view.and_then(|view| view.code.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::OwedTableView;

    fn server() -> ServerIdentity {
        ServerIdentity { flavor: "mariadb".to_owned(), id: "1".to_owned() }
    }

    fn at(position: &str) -> Progress {
        let position = position.parse().unwrap();
        Progress {
            revision: 1,
            position,
            highest_position: position,
            server: server(),
            ..Progress::default()
        }
    }

    fn seen(progress: &Progress, state: &str) -> LaneReach {
        let view = LaneView { state: state.to_owned(), lag_seconds: Some(7.0), ..LaneView::default() };
        reach(Some(progress), Some(&("1:4:96".parse().unwrap(), server())), Some(&view))
    }

    #[test]
    fn a_lane_says_which_table_of_the_key_it_is_to_read_again_and_why() {
        let shard = |number| ShardId::from_u64(number).unwrap();
        let id = LaneId { projection: "p".into(), target: "t".into(), source: "s".into(), lane: 0 };
        let mut lane = TracedLane::for_test(id, LaneReach::Refreshing);
        lane.owed = [shard(7), shard(9)].into();
        let name = |meant: ShardId| (meant == shard(7)).then(|| "d.u".to_owned());
        assert_eq!(lane.waits(|meant| meant == shard(8), name), None);
        let said = lane.waits(|meant| meant == shard(7), name).unwrap();
        assert!(said.starts_with("lane p/t/s/0 is to read d.u again, and"), "{said}");
        let code = "source-table-missing".to_owned();
        let owed = OwedTableView { shard: shard(9).to_string(), code, ..OwedTableView::default() };
        lane.view = Some(LaneView { owed: vec![owed], ..LaneView::default() });
        let said = lane.waits(|meant| meant == shard(9), name).unwrap();
        assert!(
            said.contains("a table that its source does not list again ([source-table-missing])"),
            "{said}"
        );
    }

    #[test]
    fn a_lane_has_passed_a_place_or_there_is_a_reason_why_it_has_not() {
        assert_eq!(seen(&at("1:4:96"), "paused"), LaneReach::Passed);
        assert_eq!(seen(&at("1:4:80"), "lagging"), LaneReach::Lagging { lag_seconds: Some(7.0) });
        assert_eq!(seen(&at("1:4:80"), "paused"), LaneReach::Paused);
        let failed = LaneReach::Failed { state: "stopped".to_owned(), code: None };
        assert_eq!(seen(&at("1:4:80"), "stopped"), failed);
        assert_eq!(seen(&at("2:1:16"), "current"), LaneReach::Incomparable);
        assert_eq!(seen(&Progress::default(), "new"), LaneReach::Replaying);
        let refresh = Some(anabranch_pipeline::records::Refresh::new(Scope::Source));
        assert_eq!(seen(&Progress { refresh, ..at("1:4:96") }, "current"), LaneReach::Refreshing);
        for (removal, expected) in [("1:4:96=1a", LaneReach::Refreshing), ("1:4:112=1a", LaneReach::Passed)] {
            let withdrawals = removal.parse().unwrap();
            assert_eq!(seen(&Progress { withdrawals, ..at("1:4:96") }, "current"), expected, "{removal}");
        }
        assert_eq!(reach(None, None, None), LaneReach::Unknown);
    }
}
