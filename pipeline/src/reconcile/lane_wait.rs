//! The wait of a reconciliation for lanes. It waits once for a lane that stands still. It polls progress only;
//! `recheck.rs` decides what to judge afterwards.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anabranch_schemas::envelope::ServerIdentity;
use anabranch_schemas::lsn::Lsn;
use tokio::time::Instant;

use crate::ports::Lanes;
use crate::records::{LaneId, Progress, Refresh, Scope};

/// Time between two polls of progress.
const POLL: Duration = Duration::from_millis(100);
/// The longest wait for a lane that moves.
const LANE_WAIT_MAX: Duration = Duration::from_secs(600);

/// Waits for lanes and remembers those that stood still: it waits for them again only after they move.
#[derive(Debug)]
pub struct LaneWait {
    standstill: Duration,
    /// The longest wait for a lane that moves.
    longest: Duration,
    /// Lanes with the revisions at which they stood still, by source.
    stood_still: Mutex<BTreeMap<String, Vec<(LaneId, u64)>>>,
}

impl LaneWait {
    /// Returns a wait that gives up on lanes that do not move for `standstill`: several times the interval at which a
    /// quiet source reports its position.
    pub fn new(standstill: Duration) -> Self {
        Self { standstill, longest: LANE_WAIT_MAX, stood_still: Mutex::default() }
    }

    /// Returns a wait that ends after `standstill` for lanes that move too, so that a late lane is seen as late.
    pub fn short(standstill: Duration) -> Self {
        Self { longest: standstill, ..Self::new(standstill) }
    }

    /// Returns how long the wait lasts for a lane that does not move.
    pub(super) fn standstill(&self) -> Duration {
        self.standstill
    }

    /// Waits until no lane of a source has an obstacle; returns the obstacle as soon as waiting is of no use.
    pub(super) async fn until<L: Lanes>(
        &self,
        lanes: &L,
        source: &str,
        hindered: impl Fn(&Progress) -> Option<LaneObstacle>,
    ) -> Result<(), String> {
        let mut last: Vec<(LaneId, u64)> = Vec::new();
        let (begun_at, mut moved_at) = (Instant::now(), Instant::now());
        loop {
            let why = match lanes.progress(source).await {
                Ok(progress) => {
                    let hindered = progress.iter().find_map(|(id, now)| Some((id, hindered(now)?)));
                    let Some((id, obstacle)) = hindered else { return Ok(()) };
                    if lanes.is_paused(id).await {
                        return Err(format!("lane {id} is paused, and {}", obstacle.why));
                    }
                    let why = format!("lane {id} {}", obstacle.why);
                    let revisions: Vec<_> =
                        progress.iter().map(|(id, now)| (id.clone(), now.revision)).collect();
                    if !obstacle.passes || self.stood_still().get(source) == Some(&revisions) {
                        return Err(why);
                    }
                    if last != revisions {
                        (last, moved_at) = (revisions, Instant::now());
                    }
                    why
                }
                Err(fault) => fault.to_string(),
            };
            if moved_at.elapsed() >= self.standstill || begun_at.elapsed() >= self.longest {
                self.stood_still().insert(source.to_owned(), last);
                return Err(why);
            }
            lanes.ask_for_position(source).await;
            tokio::time::sleep(POLL).await;
        }
    }

    fn stood_still(&self) -> MutexGuard<'_, BTreeMap<String, Vec<(LaneId, u64)>>> {
        self.stood_still.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reason why rows of a lane cannot be judged yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct LaneObstacle {
    pub why: &'static str,
    /// Whether the obstacle may pass by waiting.
    pub passes: bool,
}

/// Returns whether the refresh may leave rows missing that no chunk has brought yet.
fn reads_tables(refresh: &Refresh) -> bool {
    match refresh.scope {
        Scope::Source | Scope::Table(_) => true,
        Scope::Rereads | Scope::Keys(_) | Scope::Where(..) => refresh.every_waits,
    }
}

/// Returns why a lane does not hold every change up to a position; `None` when it does.
pub(super) fn hinders(progress: &Progress, place: Lsn, server: &ServerIdentity) -> Option<LaneObstacle> {
    let waits = |why| Some(LaneObstacle { why, passes: true });
    let is_of_lane = progress.server == *server && progress.position.epoch() == place.epoch();
    match () {
        () if progress.refresh.as_ref().is_some_and(reads_tables) => {
            Some(LaneObstacle { why: "reads its tables again", passes: false })
        }
        () if progress.position == Lsn::ZERO => waits("has not begun"),
        () if progress.is_replaying() => waits("is replaying"),
        () if !is_of_lane => waits("reads another server"),
        () if progress.position < place => waits("has not reached the position of the comparison"),
        () if progress.withdrawals.are_owed_at(place) => {
            waits("is to remove the rows of tables that were dropped or truncated")
        }
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_hinders_while_it_owes_the_removal_of_a_table_from_before_the_place() {
        let place: Lsn = "1:4:96".parse().unwrap();
        let progress = |withdrawals: &str| Progress {
            position: place,
            highest_position: place,
            withdrawals: withdrawals.parse().unwrap(),
            ..Progress::default()
        };
        for (withdrawals, expected) in
            [("1:4:96=1a", true), ("1:4:80-1:4:112=1a", true), ("1:4:112=1a", false)]
        {
            let hindered = hinders(&progress(withdrawals), place, &ServerIdentity::default());
            assert_eq!(hindered.is_some(), expected, "{withdrawals}");
        }
    }
}
