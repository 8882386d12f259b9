//! `pause` and `resume`: stop the lanes of a projection, and let them continue where they stopped.

use anabranch_pipeline::config::Config;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::records::LaneId;
use clap::Args;
use serde::Serialize;

use super::{Cli, Outcome, block_on};
use crate::exit::Exit;
use crate::observe::lanes;
use crate::pauses::{self, Pause};
use crate::wiring::Wiring;
use crate::{output, wall_clock};

/// Have the lanes of a projection stop until `resume`: for work on its target
///
/// Each lane commits what it has and gives its lease back, in whichever process it is. Readers, other projections and
/// lookups go on. Changes meanwhile wait in the log, and after that in the binlogs of the sources. A lane that finds
/// them in neither reads its tables again.
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
}

#[derive(Debug, Serialize)]
struct ResumedView {
    pauses_ended: usize,
    lanes: Vec<String>,
}

pub fn pause(cli: &Cli, PauseArguments { lanes, reason }: &PauseArguments) -> Outcome {
    let wiring = Wiring::new(cli.configuration()?);
    let held = lanes.selected(&wiring)?;
    let pause = pauses::new(&lanes.projection, lanes.source.as_deref(), reason.as_deref());
    let is_new =
        block_on(async { pauses::pause(wiring.log().await?, &pause).await })?.map_err(|fault| vec![fault])?;
    let text = match lanes.json {
        true => output::json(&PausedView { pause: &pause, is_new, lanes: held }),
        false if is_new => format!("paused within seconds: {}", held.join(", ")),
        false => format!("paused already: {}", held.join(", ")),
    };
    _ = output::line(&text);
    Ok(Exit::Success)
}

pub fn resume(cli: &Cli, ResumeArguments { lanes }: &ResumeArguments) -> Outcome {
    let wiring = Wiring::new(cli.configuration()?);
    let held = lanes.selected(&wiring)?;
    let ended = block_on(async {
        pauses::resume(wiring.log().await?, &lanes.projection, lanes.source.as_deref()).await
    })?
    .map_err(|fault| vec![fault])?;
    let text = match (lanes.json, ended) {
        (true, _) => output::json(&ResumedView { pauses_ended: ended, lanes: held }),
        (false, 0) => format!("not paused: {}", held.join(", ")),
        (false, _) => format!("resumed within seconds: {}", held.join(", ")),
    };
    _ = output::line(&text);
    Ok(Exit::Success)
}

impl Lanes {
    /// Returns the lanes of this selection, as `status` names them.
    fn selected(&self, wiring: &Wiring) -> Result<Vec<String>, Vec<Fault>> {
        let held = held(wiring.config(), &self.projection, self.source.as_deref());
        let held = held.map_err(|fault| vec![fault])?;
        Ok(held.iter().map(ToString::to_string).collect())
    }
}

/// Returns the configured lanes that a pause would hold; refuses an unknown projection or source by name.
fn held(config: &Config, projection: &str, source: Option<&str>) -> Result<Vec<LaneId>, Fault> {
    let unknown = |kind: &str, name: &str, known: Vec<&str>| {
        let found = format!("the configuration has no {kind} of this name");
        Fault::new(Code::ConfigInvalid, format!("{kind} {name}"), found)
            .needs(format!("one of {}", known.join(", ")))
    };
    if !config.projections.iter().any(|known| known.name == projection) {
        let names = config.projections.iter().map(|known| known.name.as_str()).collect();
        return Err(unknown("projection", projection, names));
    }
    if let Some(source) = source
        && !config.sources.iter().any(|known| known.name == source)
    {
        let names = config.sources.iter().map(|known| known.name.as_str()).collect();
        return Err(unknown("source", source, names));
    }
    let is_meant =
        |lane: &LaneId| lane.projection == projection && source.is_none_or(|source| lane.source == source);
    Ok(lanes(config).into_iter().filter(is_meant).collect())
}

/// Returns `paused for 5 min by ann@db-1: new disks`, for tables of lanes.
pub(super) fn describe(pause: &Pause) -> String {
    let minutes = wall_clock::now_ms().saturating_sub(pause.since_ms) / 60_000;
    let reason = pause.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
    format!("paused for {minutes} min by {}{reason}", pause.by)
}
