//! `pause` and `resume`: stop the lanes of a projection, and let them continue where they stopped.

use clap::Args;
use serde::Serialize;

use super::{Cli, Outcome, block_on};
use crate::exit::Exit;
use crate::operations::{Actor, PauseRequest, ResumeRequest};
use crate::pauses::Pause;
use crate::wiring::Wiring;
use crate::{output, wall_clock};

/// Have the lanes of a projection stop until `resume`: for work on its target
///
/// Each lane commits what it has and gives its lease back, in whichever process it is. Readers, other projections and
/// lookups go on. Changes meanwhile wait in the log, and after that in the binlogs of the sources. A lane that finds
/// them in neither stops with `binlog-purged` until `refresh` and `restart --all` have it read its tables again.
#[derive(Debug, Args)]
pub struct PauseArguments {
    #[command(flatten)]
    lanes: Lanes,
    /// The reason, which `status` shows
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// Let paused lanes continue
#[derive(Debug, Args)]
pub struct ResumeArguments {
    #[command(flatten)]
    lanes: Lanes,
}

#[derive(Debug, Args)]
struct Lanes {
    /// The projection
    #[arg(long, value_name = "NAME")]
    projection: String,
    /// Only its lanes of this source. Default: of every source
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
    /// Say which lanes are meant, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct PausedView<'p> {
    pause: &'p Pause,
    /// The lanes were not paused in the same way before.
    is_new: bool,
    lanes: Vec<String>,
    dry_run: bool,
}

#[derive(Debug, Serialize)]
struct ResumedView {
    pauses_ended: usize,
    lanes: Vec<String>,
    dry_run: bool,
}

pub fn pause(cli: &Cli, PauseArguments { lanes, reason }: &PauseArguments) -> Outcome {
    let wiring = Wiring::new(cli.configuration()?);
    let (projection, source) = (lanes.projection.clone(), lanes.source.clone());
    let request = PauseRequest { projection, source, reason: reason.clone() };
    let (actor, dry_run) = (Actor::of_command(), lanes.dry_run);
    let work = async {
        match dry_run {
            true => request.rehearse(&wiring, &actor).await,
            false => Ok(request.carry_out(&wiring, &actor).await?.done),
        }
    };
    let outcome = block_on(work)?.map_err(|fault| vec![fault])?;
    let names = || outcome.lanes.iter().map(ToString::to_string).collect::<Vec<String>>();
    let text = match lanes.json {
        true => output::json(&PausedView {
            pause: &outcome.pause,
            is_new: outcome.is_new,
            lanes: names(),
            dry_run,
        }),
        false => outcome.line(dry_run),
    };
    _ = output::line(&text);
    Ok(Exit::Success)
}

pub fn resume(cli: &Cli, ResumeArguments { lanes }: &ResumeArguments) -> Outcome {
    let wiring = Wiring::new(cli.configuration()?);
    let request = ResumeRequest { projection: lanes.projection.clone(), source: lanes.source.clone() };
    let dry_run = lanes.dry_run;
    let work = async {
        match dry_run {
            true => request.rehearse(&wiring).await,
            false => Ok(request.carry_out(&wiring, &Actor::of_command()).await?.done),
        }
    };
    let outcome = block_on(work)?.map_err(|fault| vec![fault])?;
    let names = || outcome.lanes.iter().map(ToString::to_string).collect::<Vec<String>>();
    let text = match lanes.json {
        true => output::json(&ResumedView { pauses_ended: outcome.ended, lanes: names(), dry_run }),
        false => outcome.line(dry_run),
    };
    _ = output::line(&text);
    Ok(Exit::Success)
}

/// Returns `paused for 5 min by ann@db-1: new disks`, for tables of lanes.
pub(super) fn describe(pause: &Pause) -> String {
    let minutes = wall_clock::now_ms().saturating_sub(pause.since_ms) / 60_000;
    let reason = pause.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
    format!("paused for {minutes} min by {}{reason}", pause.by)
}
