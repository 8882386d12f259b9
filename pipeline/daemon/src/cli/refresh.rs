//! `refresh`: has the lanes of a projection read their rows from the source again.
//!
//! The command writes progress rows only. The daemon that runs the lanes, or one that starts later, notices and reads
//! the tables beside its feed; `status` shows how far it is. The command first tries a condition on the source, and
//! refuses one that no lane could read.

use std::collections::BTreeMap;
use std::num::{NonZeroU64, NonZeroUsize};

use anabranch_pipeline::deliver::request_refresh;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::RowSource;
use anabranch_pipeline::records::{COMPARISONS_MAX, Cell, Comparison, Condition, LaneId, Scope};
use anabranch_pipeline::retry::again;
use anabranch_schemas::change::{Entity, TableIdentity};
use anabranch_schemas::lsn::FIRST_EPOCH;
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
    /// Only the row of this user id or uuid of the table, and its derived rows. May be repeated
    #[arg(long = "key", value_name = "KEY", requires = "table")]
    keys: Vec<String>,
    /// Only rows of the source for which this holds, `COLUMN >= VALUE`, with =, <, <=, > or >=, and their
    /// derived rows. Times are UTC. May be repeated: then all must hold
    #[arg(long = "where", value_name = "CONDITION", conflicts_with = "keys")]
    conditions: Vec<String>,
    /// Print one JSON object a lane
    #[arg(long)]
    json: bool,
}

/// The refresh that one lane was asked for.
#[derive(Debug, Serialize)]
struct LaneRefresh<'a> {
    lane: String,
    table: Option<&'a str>,
    keys: usize,
    conditions: &'a [String],
}

pub fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let wiring = Wiring::new(cli.configuration()?);
    let one = |fault| vec![fault];
    let lanes = arguments.selection.lanes(&wiring, Code::RefreshRefused).map_err(one)?;
    block_on(async {
        let scope = scope(&wiring, &lanes, arguments).await.map_err(one)?;
        let rate = wiring.config().limits.refresh_rows_per_second;
        let mut faults = Vec::new();
        for id in &lanes {
            match ask_lane(&wiring, id, scope.clone()).await {
                Ok(()) => _ = output::line(&text(id, arguments, rate)),
                Err(fault) => faults.push(fault),
            }
        }
        if faults.is_empty() { Ok(Exit::Success) } else { Err(faults) }
    })?
}

async fn scope(wiring: &Wiring, lanes: &[LaneId], arguments: &Arguments) -> Result<Scope, Fault> {
    let condition = condition(&arguments.conditions)?;
    let table = match &arguments.table {
        None => None,
        Some(name) => Some(table(wiring, lanes, name)?),
    };
    if let Some(condition) = condition {
        try_out(wiring, lanes, table, &condition).await?;
        return Ok(Scope::Where(table, condition));
    }
    let Some(shard) = table else { return Ok(Scope::Source) };
    if arguments.keys.is_empty() {
        return Ok(Scope::Table(shard));
    }
    let refused = || Fault::new(Code::RefreshRefused, "a key", "it is not a user id").needs("a number");
    let key = |text: &String| match wiring.projection(&lanes[0].projection)?.entity() {
        Entity::User => {
            let number = text.parse().ok().filter(|number: &u64| number.to_string() == *text);
            number.map(Cell::UInt).ok_or_else(refused)
        }
        Entity::SerialCode | Entity::Flux => Ok(Cell::Bytes(text.as_bytes().into())),
    };
    Ok(Scope::Keys([(shard, arguments.keys.iter().map(key).collect::<Result<_, _>>()?)].into()))
}

/// Returns the shard id of the table, which must be captured from the one source of the lanes.
fn table(wiring: &Wiring, lanes: &[LaneId], name: &str) -> Result<ShardId, Fault> {
    let refused = |found: &str| Fault::new(Code::RefreshRefused, format!("table {name}"), found);
    let source = &lanes[0].source;
    if lanes.iter().any(|lane| lane.source != *source) {
        return Err(refused("a table belongs to one source").needs("--source NAME, once"));
    }
    let Some((database, table)) = name.split_once('.') else {
        return Err(refused("it is not a name of a table").needs("DATABASE.TABLE"));
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
    Ok(ShardId::of(source, database, table, generation))
}

fn condition(texts: &[String]) -> Result<Option<Condition>, Fault> {
    let comparison = |(place, text): (usize, &String)| {
        text.parse::<Comparison>().map_err(|invalid| {
            Fault::new(Code::RefreshRefused, format!("condition {}", place + 1), invalid.to_string())
                .needs("`COLUMN >= VALUE`, with =, <, <=, > or >=; a value in single quotes has none in it")
        })
    };
    let comparisons = texts.iter().enumerate().map(comparison).collect::<Result<Vec<_>, _>>()?;
    let count = comparisons.len();
    match Condition::new(comparisons) {
        None if count > 0 => {
            Err(Fault::new(Code::RefreshRefused, "the condition", format!("{count} comparisons"))
                .needs(format!("at most {COMPARISONS_MAX}")))
        }
        condition => Ok(condition),
    }
}

/// Tries the condition on a table of each source: a lane would try for ever a condition that its source refuses.
async fn try_out(
    wiring: &Wiring,
    lanes: &[LaneId],
    only: Option<ShardId>,
    condition: &Condition,
) -> Result<(), Fault> {
    let sources: BTreeMap<&str, &LaneId> = lanes.iter().map(|lane| (lane.source.as_str(), lane)).collect();
    for (name, lane) in sources {
        let (source, entity) = (wiring.source(name)?, wiring.projection(&lane.projection)?.entity());
        let is_meant =
            |table: &TableIdentity<'_>| table.entity == entity && only.is_none_or(|only| only == table.shard);
        let tables = RowSource::tables(source).await?;
        match tables.iter().find(|table| is_meant(table)) {
            Some(table) => {
                _ = source.matching(table, condition, None, NonZeroUsize::MIN, FIRST_EPOCH).await?
            }
            None => {
                return Err(Fault::new(
                    Code::SourceTableMissing,
                    format!("source {name}"),
                    "none of its tables is selected",
                )
                .needs("a captured table that the projection reads"));
            }
        }
    }
    Ok(())
}

async fn ask_lane(wiring: &Wiring, id: &LaneId, scope: Scope) -> Result<(), Fault> {
    again(async || request_refresh(id, &mut wiring.lane(id)?, scope.clone()).await.map(drop)).await
}

fn text(id: &LaneId, arguments: &Arguments, rate: Option<NonZeroU64>) -> String {
    let (table, keys) = (arguments.table.as_deref(), arguments.keys.len());
    match arguments.json {
        true => {
            let conditions = &arguments.conditions;
            output::json(&LaneRefresh { lane: id.to_string(), table, keys, conditions })
        }
        false => {
            let table = table.unwrap_or("all tables of its source");
            let keys = match keys {
                0 if arguments.conditions.is_empty() => String::new(),
                0 => format!("rows where {} of ", arguments.conditions.join(" and ")),
                keys => format!("{keys} keys of "),
            };
            let rate = rate.map_or(String::new(), |rate| format!(", at most {rate} rows/s"));
            format!("lane {id} refreshes {keys}{table}{rate}")
        }
    }
}
