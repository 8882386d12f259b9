//! `reconcile remove-foreign`: removes derived rows that belong to no table of any source.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::reconcile::{Foreign, Removed};
use clap::Args;

use crate::exit::Exit;
use crate::operations::{Actor, CommandText, recorded};
use crate::output;
use crate::reconciliations::{self, ForeignShard};
use crate::wiring::Wiring;

/// Text shown for rows without a shard id.
const NONE: &str = "none";

/// Remove derived rows that belong to no table of any source, which reconciliations report and never remove
#[derive(Debug, Args)]
pub struct Arguments {
    /// The projection
    #[arg(long, value_name = "NAME")]
    store: String,
    /// Only rows of this shard id, as the report of a reconciliation shows it: a number, or none
    #[arg(long, value_name = "ID")]
    shard: Option<String>,
    /// List what would go, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object a row
    #[arg(long)]
    json: bool,
}

pub async fn run(wiring: &Wiring, arguments: &Arguments) -> Result<Exit, Fault> {
    let is_projection = wiring.config().projections.iter().any(|known| known.name == arguments.store);
    if !is_projection {
        let subject = format!("store {}", arguments.store);
        return Err(Fault::new(Code::ReconcileRefused, subject, "it is not a projection")
            .needs("a projection; a reconciliation removes wrong entries of a cache"));
    }
    let only = arguments.shard.as_deref().map(named).transpose()?;
    let print_row = |row: Foreign| {
        let line = match arguments.json {
            true => output::json(&row),
            false => format!("row {} of {}, shard_id {}", row.key_hash, row.table, row.shard),
        };
        _ = output::line(&line);
    };
    let removing =
        reconciliations::remove_foreign(wiring, &arguments.store, only, arguments.dry_run, print_row);
    let removed = match arguments.dry_run {
        true => removing.await?,
        false => {
            let command =
                CommandText::of("reconcile remove-foreign").option("--store", Some(&arguments.store));
            let command = command.option("--shard", arguments.shard.as_deref()).text();
            let after =
                |removed: &Removed| format!("{} of {} rows were removed", removed.removed, removed.found);
            recorded(wiring, &Actor::of_command(), (command, None), removing, after).await?.done
        }
    };
    // With `--json`, standard output has rows only, because a program reads it.
    let text = match arguments.dry_run {
        true => format!("{} rows would be removed", removed.found),
        false => format!("{} of {} rows were removed", removed.removed, removed.found),
    };
    match arguments.json {
        true => eprintln!("{text}"),
        false => _ = output::line(&text),
    }
    Ok(Exit::Success)
}

fn named(text: &str) -> Result<ForeignShard, Fault> {
    match text.parse() {
        _ if text == NONE => Ok(ForeignShard(None)),
        Ok(shard) => Ok(ForeignShard(Some(shard))),
        Err(_) => {
            Err(Fault::new(Code::ReconcileRefused, "--shard", "it is not a shard id")
                .needs("a number, or none"))
        }
    }
}
