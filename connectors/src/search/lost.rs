//! Lanes whose progress is lost or damaged: finds them, and stores other progress for them.

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::records::{LaneId, Progress};

use super::setup::{ensure_progress_index, read_enrolment};
use super::{SearchTarget, progress};

/// Returns the lost lanes of a source; all of them if the index of progress does not exist.
pub(super) async fn lost_lanes(target: &SearchTarget, source: &str) -> Result<Vec<LaneId>, Fault> {
    let enrolment = read_enrolment(target.client().await?, target).await?;
    let assignments = target.0.assignments.iter();
    Ok(assignments.flat_map(|assignment| enrolment.lost_lanes(assignment, target.name(), source)).collect())
}

/// Stores progress of lanes, and before it that they are enrolled: a lane that is enrolled alone is lost.
pub(super) async fn begin(target: &SearchTarget, lanes: &[(LaneId, Progress)]) -> Result<(), Fault> {
    let client = target.client().await?;
    let enrolment = read_enrolment(client, target).await?;
    ensure_progress_index(client, target).await?;
    let pairs = enrolment.pairs_of_lost(&target.0.assignments, lanes);
    progress::enrol_all(client, target, &pairs).await?;
    for (lane, own) in lanes {
        let Some(assignment) = target.0.assignments.of_lane(lane) else { continue };
        let layout = assignment.fingerprint();
        progress::write_lost(client, target, (lane, own), assignment.lanes, &layout).await?;
    }
    Ok(())
}
