//! The soak: three daemons on real servers, a steady load, and random faults and table changes from a seed. At the end
//! everything runs, the stores are drained, and every row is compared with its source.
//!
//! `plan.rs` draws the steps, `steps/` carries them out, `site.rs` is the installation, `fleet.rs` its daemons,
//! `verdict.rs` the comparison, `journal.rs` the output. The comparison is the demo's own, which shares no code with
//! the product; a reconciliation of the product follows it.

mod fleet;
mod journal;
mod plan;
mod site;
mod steps;
mod verdict;

use std::path::PathBuf;
use std::time::Duration;

use anabranch_demo::Result;
use tokio::time::Instant;

use self::fleet::Fleet;
use self::journal::Journal;
use self::plan::{Plan, Step};
use self::site::Site;

/// The run to make.
#[derive(Debug, Clone)]
pub struct Order {
    /// Time of random steps, which go on after it until each kind has come once.
    pub time: Duration,
    /// Seed of the steps and of the load.
    pub seed: u64,
    /// Row changes a second, of users and devices together.
    pub rate: u32,
    /// Whether documents are derived too.
    pub has_search: bool,
    /// A built daemon; without it the daemon is built.
    pub daemon: Option<PathBuf>,
}

/// Runs the soak to its end; returns whether every store equals its sources.
pub async fn run(order: &Order) -> Result<bool> {
    println!("seed {}: {} s of steps", order.seed, order.time.as_secs());
    let mut site = Site::start(order).await?;
    let journal = Journal::begin();
    let fleet = site.fleet();
    let choices = site.choices();
    let deadline = Instant::now() + order.time;
    let of_daemons = Plan::of_daemons(order.seed, choices.clone());
    let of_ground = Plan::of_ground(order.seed, choices);
    tokio::join!(
        break_daemons(&fleet, of_daemons, &journal, deadline),
        break_ground(&mut site, of_ground, &journal, deadline),
    );
    println!("the steps are over; draining and comparing every row ...");
    let rows = match site.finish(&journal).await {
        Ok(rows) => rows,
        Err(error) => {
            journal.problem(format!("the comparison could not be made: {error}"));
            0
        }
    };
    println!("{}", journal.summary(order.seed, site.changes(), rows));
    let problems = journal.problems();
    if problems.is_empty() {
        return Ok(true);
    }
    problems.iter().for_each(|problem| println!("FAILED: {problem}"));
    println!("the logs are in {}", site.keep_logs(order.seed)?.display());
    let search = if order.has_search { " --with-search" } else { "" };
    let (minutes, seed, rate) = (order.time.as_secs() / 60, order.seed, order.rate);
    println!("the same steps again: cargo soak -- --minutes {minutes} --seed {seed} --rate {rate}{search}");
    Ok(false)
}

/// Takes the steps of the daemons' course until the time is over, or until something has failed.
async fn break_daemons(fleet: &Fleet, mut plan: Plan, journal: &Journal, deadline: Instant) {
    while let Some(step) = next(&mut plan, journal, deadline).await {
        journal.step("daemons", &step);
        let taken = match step {
            Step::FreezeDaemon { daemon, time } => fleet.freeze(daemon, time).await,
            Step::KillDaemon { daemon, down } => fleet.kill(daemon, down, journal).await,
            other => unreachable!("{other} is no step of this course"),
        };
        let taken = match taken {
            Ok(()) => fleet.expect_running(journal).await,
            failed => failed,
        };
        if let Err(error) = taken {
            journal.problem(error.to_string());
        }
    }
}

/// Takes the steps of the other course, likewise.
async fn break_ground(site: &mut Site, mut plan: Plan, journal: &Journal, deadline: Instant) {
    while let Some(step) = next(&mut plan, journal, deadline).await {
        journal.step("ground", &step);
        if let Err(error) = site.take(&step, journal).await {
            journal.problem(format!("{step}: {error}"));
        }
    }
}

/// Waits for the next step; `None` when the run is over, which has each kind of step however slow the machine is.
async fn next(plan: &mut Plan, journal: &Journal, deadline: Instant) -> Option<Step> {
    let is_owed = plan.owes_a_kind();
    let (gap, step) = plan.draw();
    tokio::time::sleep(gap).await;
    ((is_owed || Instant::now() < deadline) && !journal.has_failed()).then_some(step)
}
