//! The pause of a projection's lanes, and its end.

use anabranch_pipeline::config::Config;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::records::LaneId;

use super::lanes::names;
use super::{Actor, CommandText, Recorded, recorded};
use crate::pauses::{self, Pause, Pauses};
use crate::wiring::{Wiring, lanes};

/// Lanes of a projection that are to stop.
#[derive(Debug, Clone)]
pub struct PauseRequest {
    pub projection: String,
    /// Only lanes of this source; `None` = of every source.
    pub source: Option<String>,
    pub reason: Option<String>,
}

/// A pause that was made, or would be.
#[derive(Debug)]
pub struct PauseOutcome {
    pub pause: Pause,
    /// The lanes were not paused in the same way before.
    pub is_new: bool,
    pub lanes: Vec<LaneId>,
}

/// Lanes of a projection that are to continue.
#[derive(Debug, Clone)]
pub struct ResumeRequest {
    pub projection: String,
    /// Only lanes of this source; `None` = of every source.
    pub source: Option<String>,
}

/// Pauses that ended, or would end.
#[derive(Debug)]
pub struct ResumeOutcome {
    pub ended: usize,
    pub lanes: Vec<LaneId>,
}

impl PauseOutcome {
    /// Returns the outcome as a sentence.
    pub fn line(&self, is_rehearsal: bool) -> String {
        let lanes = names(&self.lanes);
        match (self.is_new, is_rehearsal) {
            (false, _) => format!("paused already: {lanes}"),
            (true, true) => format!("would pause within seconds: {lanes}"),
            (true, false) => format!("paused within seconds: {lanes}"),
        }
    }
}

impl ResumeOutcome {
    /// Returns the outcome as a sentence.
    pub fn line(&self, is_rehearsal: bool) -> String {
        let lanes = names(&self.lanes);
        match (self.ended, is_rehearsal) {
            (0, _) => format!("not paused: {lanes}"),
            (_, true) => format!("would resume within seconds: {lanes}"),
            (_, false) => format!("resumed within seconds: {lanes}"),
        }
    }
}

impl PauseRequest {
    /// Returns the command in words.
    pub fn command(&self) -> String {
        selected("pause", &self.projection, self.source.as_deref())
            .option("--reason", self.reason.as_deref())
            .text()
    }

    /// Returns the pause that would be made; refuses unknown names.
    pub async fn rehearse(&self, wiring: &Wiring, actor: &Actor) -> Result<PauseOutcome, Fault> {
        let lanes = held(wiring.config(), &self.projection, self.source.as_deref())?;
        let known = pauses::read(wiring.log().await?).await?;
        let is_new = !known.has(&self.projection, self.source.as_deref());
        Ok(PauseOutcome { pause: self.pause(actor), is_new, lanes })
    }

    /// Pauses the lanes; refuses unknown names.
    pub async fn carry_out(&self, wiring: &Wiring, actor: &Actor) -> Result<Recorded<PauseOutcome>, Fault> {
        let lanes = held(wiring.config(), &self.projection, self.source.as_deref())?;
        let before = state(wiring, &self.projection).await;
        let work = async {
            let pause = self.pause(actor);
            let is_new = pauses::pause(wiring.log().await?, &pause).await?;
            Ok(PauseOutcome { pause, is_new, lanes })
        };
        let after = |outcome: &PauseOutcome| outcome.line(false);
        recorded(wiring, actor, (self.command(), before), work, after).await
    }

    fn pause(&self, actor: &Actor) -> Pause {
        pauses::new(&self.projection, self.source.as_deref(), self.reason.as_deref(), actor.to_string())
    }
}

impl ResumeRequest {
    /// Returns the command in words.
    pub fn command(&self) -> String {
        selected("resume", &self.projection, self.source.as_deref()).text()
    }

    /// Returns how many pauses would end; refuses unknown names, and a source that is paused with all others.
    pub async fn rehearse(&self, wiring: &Wiring) -> Result<ResumeOutcome, Fault> {
        let lanes = held(wiring.config(), &self.projection, self.source.as_deref())?;
        let known = pauses::read(wiring.log().await?).await?;
        let ended = known.ended_by(&self.projection, self.source.as_deref())?;
        Ok(ResumeOutcome { ended, lanes })
    }

    /// Lets the lanes continue; refuses unknown names.
    pub async fn carry_out(&self, wiring: &Wiring, actor: &Actor) -> Result<Recorded<ResumeOutcome>, Fault> {
        let lanes = held(wiring.config(), &self.projection, self.source.as_deref())?;
        let before = state(wiring, &self.projection).await;
        let work = async {
            let log = wiring.log().await?;
            let ended = pauses::resume(log, &self.projection, self.source.as_deref()).await?;
            Ok(ResumeOutcome { ended, lanes })
        };
        let after = |outcome: &ResumeOutcome| outcome.line(false);
        recorded(wiring, actor, (self.command(), before), work, after).await
    }
}

fn selected(command: &str, projection: &str, source: Option<&str>) -> CommandText {
    CommandText::of(command).option("--projection", Some(projection)).option("--source", source)
}

/// Returns the lanes of a projection with their pauses, for a record; `None` when they cannot be read.
async fn state(wiring: &Wiring, projection: &str) -> Option<String> {
    let lanes = held(wiring.config(), projection, None).ok()?;
    let known: Pauses = pauses::read(wiring.log().await.ok()?).await.ok()?;
    let paused = lanes.iter().filter_map(|lane| Some((lane, known.of_lane(lane)?)));
    let lines: Vec<String> = paused.map(|(lane, pause)| format!("{lane} paused by {}", pause.by)).collect();
    Some(if lines.is_empty() { "no lane paused".to_owned() } else { lines.join("\n") })
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
