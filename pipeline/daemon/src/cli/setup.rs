//! `setup`: creates the streams, buckets, tables and indexes that servers lack. It never drops or empties any.
//!
//! Each server is set up on its own: a fault at one does not hinder the others, and every fault is reported. A derived
//! table that is gone beside moved progress is created only with `--refill`, after its lanes were asked to read all
//! source tables: created first, it would lack its rows if the command broke off, without a sign.

use std::future::Future;

use anabranch_pipeline::error::Fault;
use clap::Args;

use super::{Cli, Outcome, block_on};
use crate::exit::Exit;
use crate::operations::{Actor, LaneSelection, RefreshRequest};
use crate::output;
use crate::wiring::Wiring;

/// Create streams, buckets, control and derived tables; safe to repeat
#[derive(Debug, Args)]
pub struct Arguments {
    /// Create also the derived tables or the index of this projection that are gone, and have its lanes read all source
    /// tables again; tables that are there stay as they are
    #[arg(long, value_name = "PROJECTION")]
    refill: Option<String>,
}

pub fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let wiring = Wiring::new(cli.configuration()?);
    block_on(async {
        let mut faults = Vec::new();
        if let Some(projection) = &arguments.refill {
            report(refill(&wiring, projection), &mut faults).await;
        }
        report(wiring.set_up_log(), &mut faults).await;
        for target in wiring.targets() {
            report(wiring.set_up_target(target), &mut faults).await;
        }
        if wiring.config().coupon_system.is_some() {
            report(wiring.set_up_coupons(), &mut faults).await;
        }
        if wiring.config().flux_identifiers().is_some() {
            report(wiring.set_up_flux(), &mut faults).await;
        }
        if faults.is_empty() { Ok(Exit::Success) } else { Err(faults) }
    })?
}

async fn report(work: impl Future<Output = Result<Vec<String>, Vec<Fault>>>, faults: &mut Vec<Fault>) {
    match work.await {
        Ok(steps) => _ = output::line(&steps.join("\n")),
        Err(found) => faults.extend(found),
    }
}

/// Creates what is gone of a projection on each of its targets, and has its lanes there fill it.
async fn refill(wiring: &Wiring, projection: &str) -> Result<Vec<String>, Vec<Fault>> {
    let one = |fault| vec![fault];
    wiring.projection(projection).map_err(one)?;
    let (mut steps, mut faults) = (Vec::new(), Vec::new());
    for target in wiring.targets() {
        match refill_target(wiring, projection, target).await {
            Ok(of_target) => steps.extend(of_target),
            Err(found) => faults.extend(found),
        }
    }
    if steps.is_empty() && faults.is_empty() {
        steps.push(format!("projection {projection}: no table or index of it is gone"));
    }
    if faults.is_empty() { Ok(steps) } else { Err(faults) }
}

async fn refill_target(wiring: &Wiring, projection: &str, target: &str) -> Result<Vec<String>, Vec<Fault>> {
    let one = |fault| vec![fault];
    let gone = wiring.gone_tables(target, projection).await.map_err(one)?;
    let Some(first) = gone.first() else { return Ok(Vec::new()) };
    let mut steps =
        vec![format!("target {target}: {} of {projection} are gone, such as {first}", gone.len())];
    let selection = LaneSelection {
        projection: projection.to_owned(),
        targets: vec![target.to_owned()],
        ..LaneSelection::default()
    };
    let request = RefreshRequest { selection, ..RefreshRequest::default() };
    // Lanes cannot end this refresh before the tables are there.
    let asked = request.carry_out(wiring, &Actor::of_command(), |_| {}).await.map_err(one)?.done;
    let mut faults = Vec::new();
    for asked in asked {
        match asked.outcome {
            Ok(()) => steps.push(request.line(wiring, &asked.lane, false)),
            Err(fault) => faults.push(fault),
        }
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    steps.push(wiring.refill_target(target, projection).await.map_err(one)?);
    Ok(steps)
}
