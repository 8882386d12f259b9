//! `replay`: sets the lanes of a projection back, without touching the others.
//!
//! The command writes progress rows only. The daemon that runs the lanes notices and resumes from there by itself: from
//! the stream where that still holds the past, else from the binlog.

use anabranch_pipeline::deliver::{Rewind, rewind};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{BinlogPoint, LaneStore as _};
use anabranch_pipeline::records::{LaneId, Progress};
use anabranch_schemas::lsn::Lsn;
use clap::Args;
use serde::Serialize;

use super::confirmation::Confirmation;
use super::selection::Selection;
use super::{Cli, Outcome, block_on};
use crate::exit::Exit;
use crate::operations::{Actor, BegunOperation, CommandText, past};
use crate::output;
use crate::wiring::Wiring;

/// Apply a part of the past once more, for one projection; others are not touched or delayed
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    selection: Selection,
    /// `nothing` (remove the derived rows, begin anew), `earliest` (the oldest binlog), a position (1:42:8192), a GTID
    /// set after which to begin, or a time (2026-11-21T03:00:00Z), of which the binlog file's start is taken
    #[arg(long, value_name = "PLACE", value_parser = From::parse)]
    from: From,
    /// Continue from `nothing` although the oldest binlog is not the first, so that rows not changed since will be
    /// missing
    #[arg(long)]
    accept_missing_history: bool,
    /// The name of the projection once more, for `nothing` in scripts; without it the command asks for it
    #[arg(long, value_name = "NAME")]
    confirm: Option<String>,
    /// Say what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object a lane
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum From {
    Nothing,
    BinlogPoint(BinlogPoint),
}

impl From {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(match text {
            "nothing" => Self::Nothing,
            "earliest" => Self::BinlogPoint(BinlogPoint::Earliest),
            _ => {
                if let Ok(lsn) = text.parse::<Lsn>() {
                    Self::BinlogPoint(BinlogPoint::Lsn(lsn))
                } else if let Ok(time) = text.parse::<jiff::Timestamp>() {
                    let at_us = u64::try_from(time.as_microsecond()).map_err(|_| "a time before 1970")?;
                    Self::BinlogPoint(BinlogPoint::Time { at_us })
                } else if text.contains('-') && !text.contains('T') {
                    Self::BinlogPoint(BinlogPoint::Gtid(text.to_owned()))
                } else {
                    let expected =
                        "nothing, earliest, a position (1:42:8192), a GTID set, or a time with zone";
                    return Err(format!("expected {expected}"));
                }
            }
        })
    }

    fn is_of_one_source(&self) -> bool {
        matches!(self, Self::BinlogPoint(BinlogPoint::Lsn(_) | BinlogPoint::Gtid(_)))
    }
}

/// The change that was, or would be, made to one lane.
#[derive(Debug, Serialize)]
struct ReplayedLane {
    lane: String,
    /// Position before; `0:0:0` = the lane had not begun.
    before: String,
    /// Position now; `0:0:0` = the lane begins anew.
    after: String,
    dry_run: bool,
}

pub fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let wiring = Wiring::new(cli.configuration()?);
    let one = |fault| vec![fault];
    let lanes = chosen(&wiring, arguments).map_err(one)?;
    if arguments.from == From::Nothing && !arguments.dry_run {
        confirm(arguments).map_err(one)?;
    }
    block_on(async {
        match arguments.dry_run {
            true => set_all_back(&wiring, &lanes, arguments).await.0,
            false => {
                let before = positions(&wiring, &lanes).await;
                let begun =
                    BegunOperation::begin(&wiring, &Actor::of_command(), command(arguments), before).await;
                let (outcome, lines) = set_all_back(&wiring, &lanes, arguments).await;
                let faults = outcome.as_ref().err().into_iter().flatten().map(ToString::to_string);
                let all = lines.into_iter().chain(faults).collect::<Vec<_>>().join("\n");
                begun.end(if outcome.is_ok() { Ok(all) } else { Err(all) }).await;
                outcome
            }
        }
    })?
}

/// Has the operator repeat the projection's name, because its derived rows are gone until the lanes write them again.
fn confirm(arguments: &Arguments) -> Result<(), Fault> {
    let name = arguments.selection.projection.as_str();
    let (thing, question) = (format!("projection {name}"), format!("projection whose rows go ({name})"));
    let confirmation = Confirmation { code: Code::ReplayRefused, thing: &thing, name, question: &question };
    confirmation.require(arguments.confirm.as_deref())
}

/// Returns the command in words, for its record.
fn command(arguments: &Arguments) -> String {
    let place = match &arguments.from {
        From::Nothing => "nothing".to_owned(),
        From::BinlogPoint(BinlogPoint::Earliest) => "earliest".to_owned(),
        From::BinlogPoint(BinlogPoint::Latest) => "latest".to_owned(),
        From::BinlogPoint(BinlogPoint::Lsn(position)) => position.to_string(),
        From::BinlogPoint(BinlogPoint::Gtid(set)) => set.clone(),
        From::BinlogPoint(BinlogPoint::Time { at_us }) => {
            let at = i64::try_from(*at_us).ok().and_then(|at| jiff::Timestamp::from_microsecond(at).ok());
            at.map_or_else(|| format!("{at_us} us"), |at| at.to_string())
        }
    };
    let text = arguments.selection.plain().add_to(CommandText::of("replay")).option("--from", Some(&place));
    text.flag("--accept-missing-history", arguments.accept_missing_history).text()
}

/// Returns the position of each lane that answers, for the record of the beginning.
async fn positions(wiring: &Wiring, lanes: &[LaneId]) -> Option<String> {
    let mut lines = Vec::new();
    for id in lanes {
        let Ok(mut store) = wiring.lane(id) else { continue };
        let Ok(progress) = store.load().await else { continue };
        lines.push(format!("{id} at {}", progress.position));
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// Sets every lane back; the fault of one lane does not hold up the others. Returns the outcome, and what was done.
async fn set_all_back(wiring: &Wiring, lanes: &[LaneId], arguments: &Arguments) -> (Outcome, Vec<String>) {
    let (mut faults, mut lines) = (Vec::new(), Vec::new());
    for id in lanes {
        match set_back(wiring, id, arguments).await {
            Ok(done) => {
                _ = output::line(&text(&done, arguments.json));
                lines.push(text(&done, false));
            }
            Err(fault) => faults.push(fault),
        }
    }
    (if faults.is_empty() { Ok(Exit::Success) } else { Err(faults) }, lines)
}

fn chosen(wiring: &Wiring, arguments: &Arguments) -> Result<Vec<LaneId>, Fault> {
    let lanes = arguments.selection.plain().lanes(wiring, Code::ReplayRefused)?;
    if arguments.from.is_of_one_source() && lanes.iter().any(|id| id.source != lanes[0].source) {
        let found = "positions and GTID sets belong to one source";
        return Err(Fault::new(Code::ReplayRefused, "replay", found).needs("--source NAME, once"));
    }
    Ok(lanes)
}

async fn set_back(wiring: &Wiring, id: &LaneId, arguments: &Arguments) -> Result<ReplayedLane, Fault> {
    let mut store = wiring.lane(id)?;
    let past = past(wiring, &id.source).await?;
    let to = match &arguments.from {
        From::Nothing => past.nothing(arguments.accept_missing_history).await?,
        From::BinlogPoint(place) => past.resolve(place.clone()).await?,
    };
    let before: Progress = rewind(id, &mut store, &to, arguments.dry_run).await?;
    let after = match &to {
        Rewind::To(place) => place.position,
        Rewind::ToNothing => Lsn::ZERO,
    };
    Ok(ReplayedLane {
        lane: id.to_string(),
        before: before.position.to_string(),
        after: after.to_string(),
        dry_run: arguments.dry_run,
    })
}

fn text(done: &ReplayedLane, is_json: bool) -> String {
    if is_json {
        return output::json(done);
    }
    let verb = if done.dry_run { "would go" } else { "goes" };
    format!("lane {} {verb} back from {} to {}", done.lane, done.before, done.after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_to_say_a_place_is_understood() {
        assert_eq!(From::parse("nothing"), Ok(From::Nothing));
        assert_eq!(From::parse("earliest"), Ok(From::BinlogPoint(BinlogPoint::Earliest)));
        let position = Lsn::new(1, 42, 8192).unwrap();
        assert_eq!(From::parse("1:42:8192"), Ok(From::BinlogPoint(BinlogPoint::Lsn(position))));
        for set in ["0-1-42", "0-1-42,3-1-7", "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"] {
            assert_eq!(From::parse(set), Ok(From::BinlogPoint(BinlogPoint::Gtid(set.to_owned()))));
        }
        let time = From::BinlogPoint(BinlogPoint::Time { at_us: 1_795_230_000_000_000 });
        for text in ["2026-11-21T03:00:00Z", "2026-11-21T04:00:00+01:00"] {
            assert_eq!(From::parse(text), Ok(time.clone()), "{text}");
        }
        for wrong in ["", "latest", "now", "2026-11-21T03:00:00", "42"] {
            assert!(From::parse(wrong).is_err(), "{wrong}");
        }
    }
}
