//! The task that removes derived rows of retired source tables once they have outlived their table.
//!
//! Documents of a dropped month are asked for as long as refunds of them may come (`flux.index_months_after`). After
//! that their rows go in small steps, with a pause after each, so that lanes hardly wait. A lease saves work only: two
//! processes that remove the same rows remove each of them once. No lane writes a retired row. The task also counts the
//! tables that left before they were due (`early.rs`).

pub mod age;
pub mod early;

use std::num::NonZeroU32;
use std::time::Duration;

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::metrics as names;
use anabranch_pipeline::supervise::{Ready, Supervisor, TaskHandle, under_lease};
use metrics::counter;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::early::EarlyTables;
use crate::task_names::sweep_task;
use crate::wiring::{DerivedStore, SweepPlace, Wiring};

/// Rows that a step examines, and removes at most: a few dozen transactions, each of some milliseconds.
const STEP_ROWS: usize = 2_000;
/// Pause after a step: at most some eight thousand rows a second, of which a month of a hundred million rows takes four
/// hours.
const STEP_PAUSE: Duration = Duration::from_millis(250);
/// Pause while no row has outlived its table: they do so by the month.
const IDLE_PAUSE: Duration = Duration::from_secs(3600);

/// Starts a task for each projection whose source tables may be retired. The tasks share the tables that were counted:
/// a table that left is retired in each projection.
pub fn spawn_sweeps(supervisor: &mut Supervisor, wiring: &Wiring) {
    let projections: Vec<&str> = wiring.retaining_projections().collect();
    if projections.is_empty() {
        return;
    }
    let early = EarlyTables::new(wiring);
    projections.into_iter().for_each(|projection| spawn_sweep(supervisor, wiring, projection, &early));
}

fn spawn_sweep(supervisor: &mut Supervisor, wiring: &Wiring, projection: &str, early: &EarlyTables) {
    for metric in [names::RETIRED_ROWS_REMOVED, names::RETIRED_TABLES_FORGOTTEN] {
        counter!(metric, "projection" => projection.to_owned()).increment(0);
    }
    let (name, context) = (sweep_task(projection), (wiring.clone(), projection.to_owned(), early.clone()));
    supervisor.spawn_with(&name, context, |(wiring, projection, early), handle, cancel| async move {
        sweep(&wiring, &projection, &early, &handle, &cancel).await
    });
}

async fn sweep(
    wiring: &Wiring,
    projection: &str,
    early: &EarlyTables,
    handle: &TaskHandle,
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    let log = wiring.log().await?;
    let months = wiring.config().flux_retention().index_months_after;
    let targets = wiring.derived(projection)?;
    let mut places: Vec<Option<SweepPlace>> = vec![None; targets.len()];
    let work = async |ready: Ready| loop {
        // A removal may last days, and the fault of a target ends the attempt: the count waits for neither.
        if early.is_due(projection, Instant::now()) {
            early.count(wiring, &targets).await;
        }
        let is_done = step(&targets, projection, months, &mut places).await?;
        ready.report();
        let pause = if is_done { early.pause(projection, Instant::now(), IDLE_PAUSE) } else { STEP_PAUSE };
        tokio::select! {
            () = cancel.cancelled() => return Ok(()),
            () = tokio::time::sleep(pause) => {}
        }
    };
    under_lease(log, handle, cancel, work).await
}

/// Makes one step on each target, each at its place; returns whether nothing is left. The fault of a target ends the
/// attempt after the others have made their step.
async fn step(
    targets: &[DerivedStore],
    projection: &str,
    months: NonZeroU32,
    places: &mut [Option<SweepPlace>],
) -> Result<bool, Fault> {
    let (mut is_done, mut failed) = (true, None);
    for (target, place) in targets.iter().zip(places) {
        let outlived = match target.remove_outlived(months.get(), STEP_ROWS, place.take()).await {
            Ok(outlived) => outlived,
            Err(fault) => {
                failed = Some(fault);
                continue;
            }
        };
        let count = |name: &'static str, number: u64| {
            counter!(name, "projection" => projection.to_owned()).increment(number);
        };
        count(names::RETIRED_ROWS_REMOVED, outlived.rows);
        count(names::RETIRED_TABLES_FORGOTTEN, outlived.tables);
        is_done &= outlived.is_done;
        *place = outlived.place;
    }
    failed.map_or(Ok(is_done), Err)
}
