//! `plan`: computes the needs of a set-up from a file. With `--measure` it asks the sources of the configuration first.
//!
//! `measure.rs` fills fields of the file with measured figures. `view.rs` is the plan as JSON, `text.rs` and `page.rs`
//! print the same view for a terminal and for paper.

mod measure;
mod page;
mod text;
mod view;

use std::path::PathBuf;
use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::capacity::fields::{Fields, Invalid};
use anabranch_schemas::capacity::growth::YEARS_MAX;
use anabranch_schemas::capacity::plan::Plan;
use clap::Args;

use self::view::PlanView;
use super::{Cli, Outcome};
use crate::exit::Exit;
use crate::output;

/// Seconds between the two looks of `--measure` at each server.
const MEASURE_SECONDS: u32 = 10;
/// Seconds of `--measure-seconds`, at most: a server may close a connection that is idle for longer.
const MEASURE_SECONDS_MAX: i64 = 600;

/// Compute tables, rows, bytes, disks and years until full, each with its formula
#[derive(Debug, Args)]
pub struct Arguments {
    /// The plan (TOML); deploy/plans/ has one for each system, with every field explained
    file: PathBuf,
    /// Compare the inventory of serial codes as tables only, sharded by agent, and sharded by uuid
    #[arg(long)]
    compare: bool,
    /// Show how full everything is at the end of each of so many years
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(YEARS_MAX)))]
    years: Option<u32>,
    /// Take tables, rows, bytes of a row and rows a second from the sources of --config, by statements that only read
    #[arg(long)]
    measure: bool,
    /// Seconds between the two looks at each server, for its rates
    #[arg(long, value_name = "N", requires = "measure",
          value_parser = clap::value_parser!(u32).range(1..=MEASURE_SECONDS_MAX))]
    measure_seconds: Option<u32>,
    /// Print one JSON object
    #[arg(long, conflicts_with = "page")]
    json: bool,
    /// Print one HTML page, for a browser or for paper
    #[arg(long)]
    page: bool,
}

pub fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let subject = format!("plan {}", arguments.file.display());
    let text = std::fs::read_to_string(&arguments.file).map_err(|error| {
        let fault = Fault::new(Code::PlanInvalid, &*subject, "it cannot be read").caused_by(error);
        vec![fault.needs("a readable TOML file; deploy/plans/ has examples")]
    })?;
    let mut fields = parse(&subject, &text)?;
    let measured = match arguments.measure {
        true => {
            let seconds = arguments.measure_seconds.unwrap_or(MEASURE_SECONDS);
            Some(measure::fill_in(cli, &subject, &mut fields, Duration::from_secs(seconds.into()))?)
        }
        false => None,
    };
    let plan = compute(&subject, &fields)?;
    if arguments.compare && plan.shardings().is_none() {
        let fault = Fault::new(
            Code::PlanInvalid,
            subject,
            "--compare was given, and it has no section [serial_codes]",
        );
        return Err(vec![fault.needs("a plan such as deploy/plans/serial-codes.toml")]);
    }
    let view = PlanView { measured, ..PlanView::of(&plan, arguments.compare, arguments.years) };
    _ = output::line(&match (arguments.json, arguments.page) {
        (true, _) => output::json(&view),
        (_, true) => page::of(&view),
        _ => text::of(&view),
    });
    Ok(Exit::Success)
}

/// Returns the fields of the file's text.
fn parse(subject: &str, text: &str) -> Result<Fields, Vec<Fault>> {
    toml::from_str(text).map_err(|error| {
        let line =
            error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        let found = format!("line {line} is not TOML: {}", error.message());
        vec![Fault::new(Code::PlanInvalid, subject, found).needs("TOML as in deploy/plans/")]
    })
}

/// Returns the computed plan, or every fault of its fields.
fn compute(subject: &str, fields: &Fields) -> Result<Plan, Vec<Fault>> {
    Plan::of(fields).map_err(|faults| faults.into_iter().map(|invalid| fault(subject, invalid)).collect())
}

fn fault(subject: &str, Invalid { field, found, expected }: Invalid) -> Fault {
    Fault::new(Code::PlanInvalid, format!("{subject}, {field}"), found).needs(expected)
}

#[cfg(test)]
mod tests;
