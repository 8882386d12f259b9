//! `remove`: withdraws what a source or a table that left for good leaves behind.

use anabranch_pipeline::error::{Code, Fault};
use clap::Args;
use serde::Serialize;

use super::confirmation::Confirmation;
use super::{Cli, Outcome, block_on};
use crate::exit::Exit;
use crate::operations::{Actor, Departed, RemoveOutcome, RemoveRequest};
use crate::output;
use crate::wiring::Wiring;

/// Remove the derived rows, cache entries and documents of a source or a table that left for good
///
/// A source must be out of the file of every daemon: the command is refused while a process holds a lease of it. A
/// table must be gone from its source; the daemons may run. A removal that was cut off is repeated.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The source that left; with --table, the source of the configuration that had the table
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
    /// Only this table, as DATABASE.TABLE; without --source that of each source whose patterns its name fits
    #[arg(long, value_name = "TABLE")]
    table: Option<String>,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, Args)]
struct Options {
    /// `generation` that the source had in the configuration; a table has that of its configured source
    #[arg(long, value_name = "NUMBER", default_value_t = 0, conflicts_with = "table")]
    generation: u32,
    /// Delete the source's stream in NATS too, last of all
    #[arg(long, conflicts_with = "table")]
    with_log: bool,
    /// The name of the source or table once more, for scripts: without it the command asks for it
    #[arg(long, value_name = "NAME")]
    confirm: Option<String>,
    /// Count what would go in each store, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct RemovedView<'o> {
    removed: String,
    #[serde(flatten)]
    outcome: &'o RemoveOutcome,
    dry_run: bool,
}

pub fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let wiring = Wiring::new(cli.configuration()?);
    block_on(remove(&wiring, arguments))?.map_err(|fault| vec![fault])
}

async fn remove(wiring: &Wiring, arguments: &Arguments) -> Result<Exit, Fault> {
    let request = request(arguments)?;
    let options = &arguments.options;
    let found = request.rehearse(wiring).await?;
    if options.dry_run || !options.json {
        show(&request, &found, options.json, true);
    }
    if options.dry_run {
        return Ok(Exit::Success);
    }
    let (thing, name) = (request.thing(), request.name());
    let question = format!("{thing} to remove");
    let confirmation =
        Confirmation { code: Code::RemoveRefused, thing: &thing, name: &name, question: &question };
    confirmation.require(options.confirm.as_deref())?;
    let removed = request.carry_out(wiring, &Actor::of_command()).await?.done;
    tracing::warn!(removed = request.thing(), rows = removed.rows(), "what it left behind was removed");
    show(&request, &removed, options.json, false);
    Ok(Exit::Success)
}

fn request(Arguments { source, table, options }: &Arguments) -> Result<RemoveRequest, Fault> {
    let departed = match (source, table.as_deref()) {
        (Some(source), None) => Departed::Source(source.clone()),
        (source, Some(text)) => {
            let Some((database, table)) = text.split_once('.') else {
                return Err(Fault::new(Code::RemoveRefused, format!("table {text}"), "it has no dot")
                    .needs("DATABASE.TABLE"));
            };
            let (database, table) = (database.to_owned(), table.to_owned());
            Departed::Table { database, table, source: source.clone() }
        }
        (None, None) => {
            return Err(Fault::new(Code::RemoveRefused, "remove", "nothing is named")
                .needs("--source NAME or --table DATABASE.TABLE"));
        }
    };
    Ok(RemoveRequest { departed, generation: options.generation, with_log: options.with_log })
}

fn show(request: &RemoveRequest, outcome: &RemoveOutcome, is_json: bool, is_rehearsal: bool) {
    let text = match is_json {
        true => output::json(&RemovedView { removed: request.thing(), outcome, dry_run: is_rehearsal }),
        false => {
            let lines = outcome.lines(is_rehearsal);
            format!("{}\n  {}", request.thing(), lines.join("\n  "))
        }
    };
    _ = output::line(&text);
}
