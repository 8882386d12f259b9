//! `begin-anew`: begins a source anew at the server's present end, when no other way mends it.
//!
//! It writes one register and asks for restarts. The reader continues from there by itself, and each lane reads its
//! tables again beside the changes; existing rows are served meanwhile. A request that was cut off can be repeated.

mod lost;
mod rows;
mod touched;
mod view;

use std::collections::BTreeMap;
use std::time::Duration;

use anabranch_pipeline::capture::{BeginAnew, EntityRows, Gap, require_rows_kept};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::failpoints;
use anabranch_pipeline::ports::Log as _;
use anabranch_pipeline::records::{LaneId, Progress};
use anabranch_pipeline::retry::again;
use anabranch_schemas::envelope::Envelope;
use anabranch_schemas::lsn::ResumePoint;
use clap::Args;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use self::rows::RowsView;
use self::view::{RequestView, Verbs, print, state_before};
use super::confirmation::Confirmation;
use super::{Cli, Outcome, block_on};
use crate::exit::Exit;
use crate::operations::{Actor, CommandText, recorded};
use crate::task_names::reader_task;
use crate::wiring::{Log, Source, Wiring, lanes};
use crate::{operator, restarts, wall_clock};

/// Time within which a running reader restarts and sends its first message.
const READER_WAIT: Duration = Duration::from_secs(30);
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
const VERBS: Verbs = Verbs {
    repeated: "begins anew already, and nothing is written now",
    rehearsed: "would begin anew",
    written: "begins anew",
};

/// Continue at the server's present end and read all tables again, where a source was reset or restored, lacks
/// transactions that were read, or has a binlog that cannot be read
#[derive(Debug, Args)]
pub struct Arguments {
    /// The source that begins anew
    #[arg(long, value_name = "NAME")]
    source: String,
    /// The source's name once more, for scripts: without it the command asks for it
    #[arg(long, value_name = "NAME")]
    confirm: Option<String>,
    /// Id of this request: requests with the same id begin the source anew only once
    #[arg(long, value_name = "TEXT")]
    id: Option<String>,
    /// Read again only the tables of which the server lacks transactions, after a fail-over that came too early; the
    /// log must still hold these transactions
    #[arg(long)]
    touched: bool,
    /// Begin anew although the server has fewer rows than the drift gate lets pass: derived rows of those that it lacks
    /// are removed
    #[arg(long, conflicts_with = "touched")]
    open_gate: bool,
    /// Only give lanes of the source whose progress is lost or damaged other progress: they go on at the stream's end
    /// and read all tables
    #[arg(long, conflicts_with_all = ["touched", "open_gate", "id"])]
    lost_progress: bool,
    /// Also give such lanes of an entity with `removal = "retain"` other progress: they miss which tables left by the
    /// retention rule, and remove retained rows
    #[arg(long, requires = "lost_progress")]
    without_retired: bool,
    /// Say what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The beginning that was, or would be, made.
#[derive(Debug, Serialize)]
struct BeginAnewView<'a> {
    #[serde(flatten)]
    request: RequestView<'a>,
    /// Number of the beginning.
    beginning: u64,
    /// Position from which the source is read; no reader reads the changes between `read_up_to` and it.
    goes_on_at: String,
    /// Projections that read their tables again, and how many lanes of each do.
    projections: BTreeMap<&'a str, usize>,
    /// Targets that did not answer: their lanes begin anew when they are back.
    away: Vec<String>,
    /// Rows of the source before and now, by entity; none for a repeated request, and none if their count failed.
    rows: Vec<RowsView<'a>>,
}

/// The lanes of the source, as the targets that answer know them.
struct KnownLanes {
    lanes: Vec<LaneId>,
    progress: Vec<Progress>,
    away: Vec<String>,
}

impl KnownLanes {
    /// Whether the progress of every lane is known. A lane whose progress row is missing or damaged is not in
    /// `progress`.
    fn are_all(&self) -> bool {
        self.progress.len() == self.lanes.len()
    }
}

pub fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let wiring = Wiring::new(cli.configuration()?);
    block_on(begin(&wiring, arguments))?.map_err(|fault| vec![fault])
}

async fn begin(wiring: &Wiring, arguments: &Arguments) -> Result<Exit, Fault> {
    let source = arguments.source.as_str();
    wiring.source(source)?;
    if arguments.lost_progress {
        return lost::begin(wiring, arguments).await;
    }
    require_own_server(wiring, source).await?;
    let known = known_lanes(wiring, source).await?;
    let id = arguments.id.clone().unwrap_or_else(new_id);
    if arguments.touched {
        return touched::begin(wiring, arguments, &known, &id).await;
    }
    let gap = ask(wiring, source, &id, &known, true).await?;
    let rows =
        if gap.is_repeated { Vec::new() } else { rows::read(wiring, source, arguments.open_gate).await? };
    if arguments.dry_run || !gap.is_repeated && !arguments.json {
        show(&known, &id, (&gap, &rows[..]), arguments);
    }
    if !arguments.open_gate {
        require_rows_kept(source, &rows, &wiring.config().reconcile.settings)?;
    }
    if arguments.dry_run {
        return Ok(Exit::Success);
    }
    if !gap.is_repeated {
        confirm(arguments)?;
    }
    let command = CommandText::of("begin-anew").option("--source", Some(source));
    let command = command.flag("--open-gate", arguments.open_gate);
    let command = command.option("--id", arguments.id.as_deref()).text();
    let before = state_before(gap.read.as_ref().map(|(position, _)| *position), gap.why.as_deref());
    // The server may have written more meanwhile, so the beginning is at its end of this moment.
    // A beginning that waits is not asked for again: its reader may begin meanwhile, and another one would be written.
    let work = again(async || match gap.is_repeated {
        true => Ok(gap.clone()),
        false => ask(wiring, source, &id, &known, false).await,
    });
    let after = |gap: &Gap| {
        let begins = &gap.beginning;
        format!("beginning {} at {} of server {}, id {id}", begins.number, begins.position, begins.server)
    };
    let gap = recorded(wiring, &Actor::of_command(), (command, before), work, after).await?.done;
    tracing::warn!(source, id, position = %gap.beginning.position, why = gap.why, "the source begins anew");
    if arguments.json || gap.is_repeated {
        show(&known, &id, (&gap, &rows[..]), arguments);
    }
    wake(wiring, source, |end| end.beginning >= gap.beginning.number).await?;
    Ok(Exit::Success)
}

/// Refuses an address that leads to the server of another source, whose rows would be loaded as this source's.
async fn require_own_server(wiring: &Wiring, source: &str) -> Result<(), Fault> {
    let own = wiring.source(source)?.instance().await?;
    for other in wiring.config().sources.iter().filter(|other| other.name != source) {
        // A server that does not answer is another one: the source's own server has answered.
        if wiring.source(&other.name)?.instance().await.is_ok_and(|instance| instance == own) {
            let found = format!("its `url` leads to the server of source {}", other.name);
            return Err(Fault::new(Code::BeginAnewRefused, format!("source {source}"), found)
                .needs("the `url` of its own server"));
        }
    }
    Ok(())
}

async fn known_lanes(wiring: &Wiring, source: &str) -> Result<KnownLanes, Fault> {
    let mut lanes = lanes(wiring.config());
    lanes.retain(|lane| lane.source == source);
    let (mut progress, mut away) = (Vec::new(), Vec::new());
    for target in wiring.targets().filter(|target| lanes.iter().any(|lane| lane.target == *target)) {
        match wiring.progress(target).await {
            Ok(rows) => {
                let of_lane = |(id, progress): (LaneId, Progress)| lanes.contains(&id).then_some(progress);
                progress.extend(rows.into_iter().filter_map(of_lane));
            }
            Err(fault) => {
                tracing::warn!(%fault, "a target does not answer: its lanes begin anew when it does");
                away.push(target.to_owned());
            }
        }
    }
    Ok(KnownLanes { lanes, progress, away })
}

async fn ask(
    wiring: &Wiring,
    source: &str,
    request: &str,
    known: &KnownLanes,
    is_rehearsal: bool,
) -> Result<Gap, Fault> {
    let command = command(wiring, source, request).await?;
    command.run(&known.progress, known.are_all(), is_rehearsal).await
}

/// Returns the flow's command for a request with this id.
async fn command<'a>(
    wiring: &'a Wiring,
    source: &'a str,
    request: &'a str,
) -> Result<BeginAnew<'a, Source, Log, Log>, Fault> {
    let log = wiring.log().await?;
    let connector = wiring.source(source)?;
    let generation = wiring.source_config(source)?.generation;
    let (who, at_ms) = (Actor::of_command().to_string(), wall_clock::now_ms());
    Ok(BeginAnew { source, generation, connector, log, registers: log, request, who, at_ms })
}

/// Returns an id with operator, host and time, which the register keeps.
fn new_id() -> String {
    let who = operator::user_at_host();
    format!("{who} {} {:08x}", jiff::Timestamp::now(), rand::random::<u32>())
}

/// Has the operator repeat the source's name, because derived rows that the server lacks will go.
fn confirm(arguments: &Arguments) -> Result<(), Fault> {
    let name = arguments.source.as_str();
    let (thing, question) = (format!("source {name}"), format!("source to begin anew ({name})"));
    let confirmation =
        Confirmation { code: Code::BeginAnewRefused, thing: &thing, name, question: &question };
    confirmation.require(arguments.confirm.as_deref())
}

/// Has the stopped reader try again, and then, once the stream's end `has_begun`, the lanes that stopped beside it.
async fn wake(wiring: &Wiring, source: &str, has_begun: impl Fn(&Envelope) -> bool) -> Result<(), Fault> {
    let log = wiring.log().await?;
    failpoints::reach("begin-anew-before-wake").await;
    restarts::request_restart(log, Some(&reader_task(source))).await?;
    failpoints::reach("begin-anew-reader-woken").await;
    let deadline = Instant::now() + READER_WAIT;
    while !log.end(source).await?.is_some_and(|end| has_begun(&end.envelope)) {
        if Instant::now() > deadline {
            eprintln!(
                "no reader has begun yet: a running daemon begins one; then `anabranch --config FILE restart --all` \
                 wakes lanes that have stopped"
            );
            return Ok(());
        }
        sleep(CHECK_INTERVAL).await;
    }
    failpoints::reach("begin-anew-before-lanes").await;
    restarts::request_restart(log, None).await.map(drop)
}

fn show(known: &KnownLanes, id: &str, (gap, rows): (&Gap, &[EntityRows]), arguments: &Arguments) {
    let mut projections: BTreeMap<&str, usize> = BTreeMap::new();
    for lane in &known.lanes {
        *projections.entry(&lane.projection).or_default() += 1;
    }
    let begins = &gap.beginning;
    let place = |position: &dyn std::fmt::Display, resume: &ResumePoint| {
        let gtids = if resume.gtid_set.is_empty() { "none" } else { &resume.gtid_set };
        format!("{position} ({}:{}, GTIDs {gtids})", resume.file, resume.position)
    };
    let done = BeginAnewView {
        request: RequestView {
            source: &arguments.source,
            id,
            server: begins.server.to_string(),
            why: gap.why.as_deref(),
            read_up_to: gap.read.as_ref().map(|(position, resume)| place(position, resume)),
            dry_run: arguments.dry_run,
            repeated: gap.is_repeated,
        },
        beginning: begins.number,
        goes_on_at: place(&begins.position, &begins.resume),
        projections,
        away: known.away.clone(),
        rows: rows.iter().map(RowsView::of).collect(),
    };
    print(arguments, &done, || text(&done));
}

fn text(done: &BeginAnewView<'_>) -> String {
    let mut lines = vec![format!(
        "  goes on at  {} of server {}; no reader reads the changes in between",
        done.goes_on_at, done.request.server
    )];
    for (projection, lanes) in &done.projections {
        lines.push(format!(
            "  projection {projection}: {lanes} lanes read all of its tables of this source again"
        ));
    }
    lines.extend(done.rows.iter().map(RowsView::text));
    lines.extend(
        done.away.iter().map(|target| format!("  target {target} does not answer: its lanes follow later")),
    );
    done.request.text(&VERBS, &format!("(beginning {})", done.beginning), lines)
}
