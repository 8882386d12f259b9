//! A workload that goes on until it has made what a test needs, however slow the machine is.

use std::time::Duration;

use anabranch_demo::{Pace, Workload, WorkloadReport};
use tokio::time::Instant;

use crate::waiting::WAIT_MAX;

/// Time between two checks of the report.
const PART: Duration = Duration::from_secs(1);
/// Part of the name of each kind that giant transactions alone make.
const GIANT: &str = "10000";

/// Runs the workload on until its report has each kind of change, without those that giant transactions alone make. The
/// caller expects the kinds: after [`WAIT_MAX`] the report may lack some.
///
/// # Panics
/// Panics when a server does not answer.
pub async fn until_each_kind(workload: &mut Workload, pace: Pace, report: &mut WorkloadReport) {
    let entity = workload.topology().entity;
    let is_enough =
        |report: &WorkloadReport| report.absent_kinds(entity).iter().all(|kind| kind.contains(GIANT));
    until_reported(workload, pace, report, is_enough).await;
}

/// Runs the workload on until its report satisfies the condition, or [`WAIT_MAX`] is over.
///
/// # Panics
/// Panics when a server does not answer.
pub async fn until_reported(
    workload: &mut Workload,
    pace: Pace,
    report: &mut WorkloadReport,
    is_enough: impl Fn(&WorkloadReport) -> bool,
) {
    let deadline = Instant::now() + WAIT_MAX;
    while !is_enough(report) && Instant::now() < deadline {
        report.merge(&workload.run_for(pace, PART).await.expect("the servers answer"));
    }
}
