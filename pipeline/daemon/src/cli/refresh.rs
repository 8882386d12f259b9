//! `refresh`: has the lanes of a projection read their rows from the source again.
//!
//! Only progress rows are written. The daemon that runs the lanes notices and reads the tables beside its feed; a daemon
//! that starts later does. `status` shows how far it is.

use anabranch_pipeline::deliver::{LaneId, Scope, request_refresh};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::shard::ShardId;
use clap::Args;
use serde::Serialize;

use super::selection::Selection;
use super::{Cli, Outcome, block_on};
use crate::exit::Exit;
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
    /// Print one JSON object a lane
    #[arg(long)]
    json: bool,
}

/// What was asked of one lane.
#[derive(Debug, Serialize)]
struct Asked<'a> {
    lane: String,
    table: Option<&'a str>,
}

pub fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let wiring = Wiring::new(cli.configuration()?);
    let one = |fault| vec![fault];
    let lanes = arguments.selection.lanes(&wiring, Code::RefreshRefused).map_err(one)?;
    block_on(async {
        let scope = scope(&wiring, &lanes, arguments.table.as_deref()).await.map_err(one)?;
        let mut faults = Vec::new();
        for id in &lanes {
            match ask(&wiring, id, scope).await {
                Ok(()) => _ = output::line(&text(id, arguments)),
                Err(fault) => faults.push(fault),
            }
        }
        if faults.is_empty() { Ok(Exit::Success) } else { Err(faults) }
    })?
}

/// The one table that is named must be captured from the one source.
async fn scope(wiring: &Wiring, lanes: &[LaneId], table: Option<&str>) -> Result<Scope, Fault> {
    let Some(name) = table else { return Ok(Scope::Source) };
    let refused = |found: &str| Fault::new(Code::RefreshRefused, format!("table {name}"), found);
    let source = &lanes[0].source;
    if lanes.iter().any(|lane| lane.source != *source) {
        return Err(refused("a table belongs to one source").needs("--source NAME, once"));
    }
    let Some((database, table)) = name.split_once('.') else {
        return Err(refused("it is no name of a table").needs("DATABASE.TABLE"));
    };
    let entity = wiring.projection(&lanes[0].projection)?.entity();
    let config = wiring.config();
    let is_captured = |known: &anabranch_pipeline::config::EntityConfig| {
        known.entity == entity && known.tables.matches(database, table).is_some()
    };
    if !config.entities.iter().any(is_captured) {
        return Err(refused("the projection does not read it").needs("a captured table of its entity"));
    }
    let generation = wiring.source_config(source)?.generation;
    Ok(Scope::Table(ShardId::of(source, database, table, generation)))
}

async fn ask(wiring: &Wiring, id: &LaneId, scope: Scope) -> Result<(), Fault> {
    request_refresh(id, &mut wiring.lane(id)?, scope).await.map(drop)
}

fn text(id: &LaneId, arguments: &Arguments) -> String {
    let table = arguments.table.as_deref();
    match arguments.json {
        true => output::json(&Asked { lane: id.to_string(), table }),
        false => format!("lane {id} refreshes {}", table.unwrap_or("all tables of its source")),
    }
}
