//! `dead-letters`: documents that a search index rejected. Only their ids are shown, never their values.
//!
//! A letter disappears once the index has taken the document in the same or a newer version. `retry` sets the lanes
//! back to before their oldest letter, as `replay` does; `drop` forgets letters, and the index stays as it is.

use std::collections::BTreeMap;

use anabranch_pipeline::deliver::rewind;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::BinlogPoint;
use anabranch_pipeline::records::LaneId;
use anabranch_schemas::lsn::Lsn;
use clap::{Args, Subcommand};
use serde::Serialize;

use super::replay::past;
use super::{Cli, Outcome, block_on};
use crate::exit::Exit;
use crate::output;
use crate::wiring::{DeadLetter, Documents, Wiring};

/// Letters that one command reads, at most: the oldest.
const LETTERS_MAX: usize = 10_000;

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
    let work = async {
        for documents in chosen(&wiring, arguments)? {
            let letters = documents.target.dead_letters(&documents.projection, LETTERS_MAX).await?;
            match &arguments.command {
                Command::List { json } => letters.iter().for_each(|letter| list(letter, *json)),
                Command::Retry { dry_run } => retry(&wiring, &documents, &letters, *dry_run).await?,
                Command::Drop { ids, all } => forget(&documents, letters, ids, *all).await?,
            }
        }
        Ok(Exit::Success)
    };
    block_on(work)?.map_err(|fault| vec![fault])
}

fn chosen(wiring: &Wiring, arguments: &Arguments) -> Result<Vec<Documents>, Fault> {
    match &arguments.projection {
        Some(projection) => wiring.documents_of(projection).map(|documents| vec![documents]),
        None => Ok(wiring.all_documents().collect()),
    }
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

async fn retry(
    wiring: &Wiring,
    documents: &Documents,
    letters: &[DeadLetter],
    is_rehearsal: bool,
) -> Result<(), Fault> {
    let mut oldest: BTreeMap<LaneId, u64> = BTreeMap::new();
    for letter in letters {
        let id = LaneId {
            projection: letter.projection.clone(),
            target: documents.target.name().to_owned(),
            source: letter.source.clone(),
            lane: letter.lane,
        };
        let lsn = oldest.entry(id).or_insert(letter.lsn);
        *lsn = letter.lsn.min(*lsn);
    }
    for (id, lsn) in oldest {
        let odd =
            |_| Fault::new(Code::TargetTableShape, format!("dead letter of {id}"), "it has no position");
        let place = BinlogPoint::Lsn(Lsn::from_u64(lsn).map_err(odd)?);
        let to = past(wiring, &id.source).await?.resolve(place).await?;
        let before = rewind(&id, &mut wiring.lane(&id)?, &to, is_rehearsal).await?;
        let verb = if is_rehearsal { "would go" } else { "goes" };
        let to = Lsn::from_u64(lsn).map_err(odd)?;
        _ = output::line(&format!("lane {id} {verb} back from {} to before {to}", before.position));
    }
    Ok(())
}

async fn forget(
    documents: &Documents,
    mut letters: Vec<DeadLetter>,
    ids: &[String],
    all: bool,
) -> Result<(), Fault> {
    letters.retain(|letter| all || ids.contains(&letter.id()));
    let dropped = documents.target.drop_letters(&letters).await?;
    _ = output::line(&format!("{}: {dropped} letters dropped", documents.projection));
    Ok(())
}
