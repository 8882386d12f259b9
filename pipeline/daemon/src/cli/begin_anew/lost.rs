//! `begin-anew --lost-progress`: stores progress for those lanes of the source whose own is lost or damaged.
//!
//! They go on at the stream's end and read all tables. Derived rows stand meanwhile, and a sweep removes those that no
//! source row claims. The source's reader and its other lanes notice nothing.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::Log as _;
use anabranch_pipeline::records::{LaneId, Progress};
use serde::Serialize;

use super::view::print;
use super::{Arguments, confirm};
use crate::exit::Exit;
use crate::operations::{Actor, CommandText, recorded};
use crate::wiring::Wiring;
use crate::{restarts, wall_clock};

/// The lanes that get, or would get, other progress.
#[derive(Debug, Serialize)]
struct LostView<'a> {
    source: &'a str,
    lanes: Vec<String>,
    /// Position of the stream's end.
    goes_on_at: String,
    /// Faults of targets that do not answer: their lanes need the command once more.
    away: Vec<String>,
    dry_run: bool,
}

pub(super) async fn begin(wiring: &Wiring, arguments: &Arguments) -> Result<Exit, Fault> {
    let source = arguments.source.as_str();
    let refused = |found: &str| Fault::new(Code::BeginAnewRefused, format!("source {source}"), found);
    let (lost, away) = wiring.lost_lanes(source).await;
    if lost.is_empty() {
        return Err(away.into_iter().next().unwrap_or_else(|| {
            refused("each of its lanes has its progress, or progress of another layout or number of lanes")
        }));
    }
    let log = wiring.log().await?;
    let Some(end) = log.end(source).await? else {
        return Err(refused("its stream has no message").needs("a message, which a running reader sends"));
    };
    // No lane commits so often that its revision was ever as high: one that still runs is fenced off.
    let revision = wall_clock::now_ms();
    let (mut lanes, mut retaining): (Vec<(LaneId, Progress)>, Vec<String>) = (Vec::new(), Vec::new());
    for lane in lost {
        let projection = wiring.projection(&lane.projection)?;
        if wiring.config().retains(projection.entity()) {
            retaining.push(lane.to_string());
        }
        let reads = (projection.entity(), projection.fields());
        lanes.push((lane, Progress::after_loss(&end.envelope, reads, revision)));
    }
    let view = LostView {
        source,
        lanes: lanes.iter().map(|(lane, _)| lane.to_string()).collect(),
        goes_on_at: end.envelope.position.to_string(),
        away: away.iter().map(Fault::to_string).collect(),
        dry_run: arguments.dry_run,
    };
    if arguments.dry_run || !arguments.json {
        print(arguments, &view, || text(&view));
    }
    if !retaining.is_empty() && !arguments.without_retired {
        let found = format!("{} would miss which tables left by a retention rule", retaining.join(", "));
        return Err(refused(&found)
            .needs("their progress from a backup, or `--without-retired`: they remove retained rows then"));
    }
    if arguments.dry_run {
        return Ok(Exit::worst(&away));
    }
    confirm(arguments)?;
    let command =
        CommandText::of("begin-anew").option("--source", Some(source)).flag("--lost-progress", true);
    let command = command.flag("--without-retired", arguments.without_retired);
    let before = Some(format!("progress of {} is lost or damaged", view.lanes.join(", ")));
    let work = wiring.begin_lost_lanes(&lanes);
    let after = |(): &()| format!("they go on at {} and read all tables", view.goes_on_at);
    recorded(wiring, &Actor::of_command(), (command.text(), before), work, after).await?;
    tracing::warn!(source, lanes = ?view.lanes, position = view.goes_on_at, "lanes without progress read all tables");
    if arguments.json {
        print(arguments, &view, || text(&view));
    }
    restarts::request_restart(log, None).await?;
    Ok(Exit::worst(&away))
}

fn text(view: &LostView<'_>) -> String {
    let verb = if view.dry_run { "would go on" } else { "goes on" };
    let of_lane = |lane: &String| {
        format!("lane {lane} {verb} at {}, the stream's end, and reads all tables", view.goes_on_at)
    };
    let of_target = |fault: &String| format!("repeat the command once this target answers: {fault}");
    let lines = view.lanes.iter().map(of_lane).chain(view.away.iter().map(of_target));
    lines.collect::<Vec<_>>().join("\n")
}
