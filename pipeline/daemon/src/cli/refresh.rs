//! `refresh`: has the lanes of a projection read their rows from the source again.
//!
//! The command writes progress rows only. The daemon that runs the lanes, or one that starts later, notices and reads
//! the tables beside its feed; `status` shows how far it is. `operations/refresh.rs` has the request itself.

use anabranch_pipeline::error::Fault;
use clap::Args;
use serde::Serialize;

use super::selection::Selection;
use super::{Cli, Outcome, block_on};
use crate::exit::Exit;
use crate::operations::{Actor, LaneRefresh, RefreshRequest};
use crate::output;
use crate::wiring::Wiring;

/// Read the source's tables again beside the changes, and make the derived rows equal to them; also for rows that are
/// older than the binlog, and for derived rows of source rows that are gone
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    selection: Selection,
    /// Only this table of the source, which must then be named
    #[arg(long, value_name = "DATABASE.TABLE")]
    table: Option<String>,
    /// Only the row of this user id or uuid of the table, and its derived rows. May be repeated
    #[arg(long = "key", value_name = "KEY", requires = "table")]
    keys: Vec<String>,
    /// Only rows of the source for which this holds, `COLUMN >= VALUE`, with =, <, <=, > or >=, and their
    /// derived rows. Times are UTC. May be repeated: then all must hold
    #[arg(long = "where", value_name = "CONDITION", conflicts_with = "keys")]
    conditions: Vec<String>,
    /// Say which lanes would be asked, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object a lane
    #[arg(long)]
    json: bool,
}

/// The refresh that one lane was, or would be, asked for.
#[derive(Debug, Serialize)]
struct LaneView<'a> {
    lane: String,
    table: Option<&'a str>,
    keys: usize,
    conditions: &'a [String],
    dry_run: bool,
}

pub fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let wiring = Wiring::new(cli.configuration()?);
    let request = RefreshRequest {
        selection: arguments.selection.plain(),
        table: arguments.table.clone(),
        keys: arguments.keys.clone(),
        conditions: arguments.conditions.clone(),
    };
    let print = |asked: &LaneRefresh| {
        if asked.outcome.is_ok() {
            _ = output::line(&text(&wiring, &request, asked, arguments));
        }
    };
    let work = async {
        match arguments.dry_run {
            true => {
                let asked = request.rehearse(&wiring).await?;
                asked.iter().for_each(print);
                Ok::<_, Fault>(asked)
            }
            false => Ok(request.carry_out(&wiring, &Actor::of_command(), print).await?.done),
        }
    };
    let asked = block_on(work)?.map_err(|fault| vec![fault])?;
    let faults: Vec<_> = asked.into_iter().filter_map(|asked| asked.outcome.err()).collect();
    if faults.is_empty() { Ok(Exit::Success) } else { Err(faults) }
}

fn text(wiring: &Wiring, request: &RefreshRequest, asked: &LaneRefresh, arguments: &Arguments) -> String {
    if !arguments.json {
        return request.line(wiring, &asked.lane, arguments.dry_run);
    }
    output::json(&LaneView {
        lane: asked.lane.to_string(),
        table: request.table.as_deref(),
        keys: request.keys.len(),
        conditions: &request.conditions,
        dry_run: arguments.dry_run,
    })
}
