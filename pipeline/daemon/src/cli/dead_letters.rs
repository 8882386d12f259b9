//! `dead-letters`: documents that a search index rejected. Only their ids are shown, never their values.
//!
//! A letter disappears once the index has taken the document in the same or a newer version. `retry` sets the lanes
//! back to before their oldest letter, as `replay` does; `drop` forgets letters, and the index stays as it is.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::lsn::Lsn;
use clap::{Args, Subcommand};
use serde::Serialize;

use super::confirmation::Confirmation;
use super::{Cli, Outcome, block_on};
use crate::exit::Exit;
use crate::operations::{self, Actor, CommandText, LETTERS_MAX, RetryRequest, recorded};
use crate::output;
use crate::wiring::{DeadLetter, Documents, Wiring};

/// Show, try again or forget documents that a search index rejected
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Only letters of this projection
    #[arg(long, global = true)]
    projection: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show which documents were rejected, and the server's word for why
    List {
        /// Print one JSON object a letter
        #[arg(long)]
        json: bool,
    },
    /// Apply everything again since the oldest letter of each lane, as `replay` does; accepted documents leave the list
    Retry {
        /// Say what would be done, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Forget letters; the index stays as it is
    Drop {
        /// Ids as `list` shows them
        #[arg(required_unless_present = "all")]
        ids: Vec<String>,
        /// All of them
        #[arg(long, conflicts_with = "ids")]
        all: bool,
        /// The name of the projection once more, for --all in scripts; without it the command asks for it. The names of
        /// several projections are separated by commas
        #[arg(long, value_name = "NAME", requires = "all")]
        confirm: Option<String>,
        /// Show what would be forgotten, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
}

/// A letter and its id.
#[derive(Debug, Serialize)]
struct LetterView<'l> {
    id: String,
    position: String,
    #[serde(flatten)]
    letter: &'l DeadLetter,
}

pub fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let wiring = Wiring::new(cli.configuration()?);
    let projection = arguments.projection.as_deref();
    let work = async {
        match &arguments.command {
            Command::List { json } => {
                for documents in operations::chosen(&wiring, projection)? {
                    let letters = letters(&documents).await?;
                    letters.iter().for_each(|letter| list(letter, *json));
                }
            }
            Command::Retry { dry_run } => {
                let request = RetryRequest { projection: arguments.projection.clone() };
                let lines = match dry_run {
                    true => request.rehearse(&wiring).await?,
                    false => request.carry_out(&wiring, &Actor::of_command()).await?.done,
                };
                lines.iter().for_each(|line| _ = output::line(line));
            }
            Command::Drop { ids, all, dry_run: true, .. } => {
                for documents in operations::chosen(&wiring, projection)? {
                    let letters = meant(&documents, ids, *all).await?;
                    letters.iter().for_each(|letter| list(letter, false));
                    let line =
                        format!("{}: {} letters would be dropped", documents.projection, letters.len());
                    _ = output::line(&line);
                }
            }
            Command::Drop { ids, all, confirm, dry_run: false } => {
                let command = CommandText::of("dead-letters drop")
                    .option("--projection", projection)
                    .counted("", ids.len(), "id")
                    .flag("--all", *all)
                    .text();
                let chosen = operations::chosen(&wiring, projection)?;
                if *all && !chosen.is_empty() {
                    require_names(&chosen, confirm.as_deref())?;
                }
                let work = forget(&chosen, ids, *all);
                let after = |lines: &Vec<String>| lines.join("\n");
                recorded(&wiring, &Actor::of_command(), (command, None), work, after).await?;
            }
        }
        Ok(Exit::Success)
    };
    block_on(work)?.map_err(|fault| vec![fault])
}

async fn letters(documents: &Documents) -> Result<Vec<DeadLetter>, Fault> {
    documents.target.dead_letters(&documents.projection, LETTERS_MAX).await
}

fn list(letter: &DeadLetter, is_json: bool) {
    let position = Lsn::from_u64(letter.lsn).map_or_else(|_| "?".to_owned(), |lsn| lsn.to_string());
    let shown = LetterView { id: letter.id(), position, letter };
    let DeadLetter { projection, source, lane, reason, .. } = letter;
    _ = output::line(&match is_json {
        true => output::json(&shown),
        false => format!("{}  {projection}/{source}/{lane}  {}  {reason}", shown.id, shown.position),
    });
}

/// Returns the letters of a projection with these ids, or all.
async fn meant(documents: &Documents, ids: &[String], all: bool) -> Result<Vec<DeadLetter>, Fault> {
    let mut letters = letters(documents).await?;
    letters.retain(|letter| all || ids.contains(&letter.id()));
    Ok(letters)
}

/// Has the operator repeat the names of the projections, because their letters are the only list of what was rejected.
fn require_names(chosen: &[Documents], said: Option<&str>) -> Result<(), Fault> {
    let names: Vec<&str> = chosen.iter().map(|documents| documents.projection.as_str()).collect();
    let name = names.join(",");
    let (thing, question) = (format!("projection {name}"), format!("projection whose letters go ({name})"));
    let confirmation =
        Confirmation { code: Code::ReplayRefused, thing: &thing, name: &name, question: &question };
    confirmation.require(said)
}

/// Drops the letters with these ids, or all; returns a sentence about each projection.
async fn forget(chosen: &[Documents], ids: &[String], all: bool) -> Result<Vec<String>, Fault> {
    let mut lines = Vec::new();
    for documents in chosen {
        let letters = meant(documents, ids, all).await?;
        let dropped = documents.target.drop_letters(&letters).await?;
        let line = format!("{}: {dropped} letters dropped", documents.projection);
        _ = output::line(&line);
        lines.push(line);
    }
    Ok(lines)
}
