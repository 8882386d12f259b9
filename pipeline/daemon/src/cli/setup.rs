//! `setup`: creates the streams, buckets, tables and indexes that servers lack. It never drops or empties any.
//!
//! Each server is set up on its own: a fault at one does not hinder the others, and every fault is reported.

use std::future::Future;

use anabranch_pipeline::error::Fault;
use clap::Args;

use super::{Cli, Outcome, block_on};
use crate::exit::Exit;
use crate::output;
use crate::wiring::Wiring;

/// Create streams, buckets, control and derived tables; safe to repeat
#[derive(Debug, Args)]
pub struct Arguments {}

pub fn run(cli: &Cli, Arguments {}: &Arguments) -> Outcome {
    let wiring = Wiring::new(cli.configuration()?);
    block_on(async {
        let mut faults = Vec::new();
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
