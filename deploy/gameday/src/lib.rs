//! The game day: faults on a real installation, one after the other. For each it measures after how long its alert
//! fires in Prometheus and the daemon shows the fault, takes a picture of the page, and takes the steps of the runbook
//! until everything is current and the alert is over.
//!
//! The steps come from the text of `deploy/RUNBOOK.md` (`runbook.rs`), the rules from `deploy/prometheus/rules.yml`.
//! `scenarios/` has the faults as data, `site/` carries them out, `drill.rs` is the course of one drill.

mod drill;
mod error;
mod pictures;
mod prometheus;
mod report;
mod runbook;
mod scenario;
mod scenarios;
mod site;
mod steps;
mod undrilled;

use std::path::PathBuf;

use self::drill::Drill;
pub use self::error::{GamedayError, Result};
use self::pictures::Pictures;
use self::prometheus::Timing;
use self::report::{Report, Row};
use self::scenario::Scenario;
use self::site::Site;

/// The drills to run, and how.
#[derive(Debug, Clone, Default)]
pub struct Order {
    /// Names of drills; none = all of them.
    pub only: Vec<String>,
    /// Times of the rules are divided.
    pub is_quick: bool,
    /// The report gets the rows of the drills that ended as they should, also when others have not run.
    pub writes: bool,
    /// The next drill follows even after one that failed.
    pub keeps_going: bool,
    /// A built daemon; without it the daemon is built.
    pub daemon: Option<PathBuf>,
}

/// Returns a line for each drill: name, fault, alert.
pub fn list() -> Vec<String> {
    scenarios::all().into_iter().map(report::listed).collect()
}

/// Runs the drills; returns whether each ended as it should. The report is written when all of them did, or by order.
pub async fn run(order: &Order) -> Result<bool> {
    let chosen = chosen(&order.only)?;
    let timing = Timing::of(order.is_quick);
    let pictures = Pictures::start().await;
    let mut site = Site::start(&timing, order.daemon.clone()).await?;
    let mut report = Report::begin(&site, &timing, pictures.is_there()).await?;
    for (number, &scenario) in chosen.iter().enumerate() {
        eprintln!("drill {} of {}: {} ({})", number + 1, chosen.len(), scenario.name, scenario.fault);
        let row = Drill::new(&mut site, scenario, &timing, &pictures).run().await;
        let (row, is_cut_off) = match row {
            Ok(row) => (row, false),
            Err(error) => {
                eprintln!("{}", site.main().log_tail());
                (Row::failed(scenario, error.to_string()), true)
            }
        };
        eprintln!("{}", row.line());
        let is_good = row.problems.is_empty();
        report.add(row);
        if !is_good && !order.keeps_going {
            break;
        }
        if is_cut_off {
            site.recover(scenario).await;
        }
    }
    site.end().await;
    report.finish(order.writes)
}

fn chosen(names: &[String]) -> Result<Vec<&'static Scenario>> {
    let all = scenarios::all();
    for name in names {
        if all.iter().all(|scenario| scenario.name != *name) {
            let known = all.iter().map(|scenario| scenario.name).collect::<Vec<_>>().join(", ");
            return Err(GamedayError::DrillUnknown { name: name.clone(), known });
        }
    }
    let is_chosen = |scenario: &&Scenario| names.is_empty() || names.iter().any(|name| name == scenario.name);
    Ok(all.into_iter().filter(is_chosen).collect())
}
