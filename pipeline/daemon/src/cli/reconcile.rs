//! `reconcile`: compares both sides of every store, and has the lanes repair differences.
//!
//! `--now` reconciles in this process; the daemons that run the lanes do the repairs. `status` lists the reconciliation
//! that is under way and past ones, `show` prints one of them, and `verify` checks that the history is unchanged.
//! `remove-foreign` removes rows that no reconciliation removes (`foreign.rs`).

use anabranch_pipeline::config::reconcile::Mode;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::History;
use anabranch_pipeline::reconcile::{
    MalformedDocument, OddDocument, Placement, ReconciliationReport, ReportedGap, Seal, StoreReport,
};
use anabranch_pipeline::records::{Outcome as Verdict, PastReconciliation};
use anabranch_schemas::beginning::GapRecord;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use super::{Cli, Outcome, block_on, foreign};
use crate::exit::Exit;
use crate::operations::{
    Actor, BegunOperation, newest_reconciliation, plan_lines, reconcile_until_interrupt, reconciliation_end,
};
use crate::output;
use crate::reconciliations::{self, ReconcileOrder, ReconciliationEnd, RunningReconciliation};
use crate::wall_clock;
use crate::wiring::Wiring;

/// Past reconciliations that `status` lists, at most.
const LISTED: usize = 10;
/// Lines of each list that a report as text shows, at most.
const LINES_MAX: usize = 10;
/// Reconciliations that `verify` reads at a time.
const VERIFIED_AT_ONCE: usize = 500;
/// Id that means the newest reconciliation.
const LAST: &str = "LAST";

/// Compare sources with derived stores row by row, and repair differences
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Reconcile now, in this process; continues a reconciliation that was cut off
    #[arg(long)]
    now: bool,
    /// Only this projection, or cache/NAME; may be repeated
    #[arg(long = "store", value_name = "NAME")]
    stores: Vec<String>,
    /// Treatment of drift. Default: as configured
    #[arg(long, value_enum)]
    mode: Option<ModeArgument>,
    /// Repair also when more differs than the gate lets pass
    #[arg(long)]
    open_gate: bool,
    /// Read as fast as possible, also while lanes or a replica lag
    #[arg(long)]
    unthrottled: bool,
    /// Give up a reconciliation that was begun by hand with other options, and cut off
    #[arg(long)]
    abandon: bool,
    /// Say what would be compared, and change nothing
    #[arg(long, requires = "now")]
    dry_run: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Status(Printed),
    Show(Show),
    RemoveForeign(foreign::Arguments),
    /// Verify that the reports of past reconciliations were not changed; says so when they are not signed
    Verify,
}

/// Show the reconciliation that is under way, and the last ones
#[derive(Debug, Args)]
struct Printed {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Show the report of a reconciliation
#[derive(Debug, Args)]
struct Show {
    /// Its id, or LAST
    #[arg(default_value = LAST)]
    id: String,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ModeArgument {
    /// Report differences, and change nothing
    Report,
    /// Have the lanes read rows again that differ
    Repair,
}

pub fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let one = |fault| vec![fault];
    let wiring = Wiring::new(cli.configuration()?);
    match &arguments.command {
        Some(Command::Status(printed)) => block_on(status(&wiring, printed.json))?.map_err(one),
        Some(Command::Show(show)) => block_on(show_reconciliation(&wiring, show))?.map_err(one),
        Some(Command::RemoveForeign(arguments)) => block_on(foreign::run(&wiring, arguments))?.map_err(one),
        Some(Command::Verify) => block_on(verify(&wiring))?.map_err(one),
        None if arguments.now => block_on(now(&wiring, arguments))?.map_err(one),
        None => Err(one(Fault::new(Code::ReconcileRefused, "reconcile", "no action is given")
            .needs("--now, or one of: status, show, verify, remove-foreign"))),
    }
}

async fn now(wiring: &Wiring, arguments: &Arguments) -> Result<Exit, Fault> {
    let order = ReconcileOrder {
        mode: arguments.mode.map(|mode| match mode {
            ModeArgument::Report => Mode::Report,
            ModeArgument::Repair => Mode::Repair,
        }),
        stores: arguments.stores.clone(),
        is_gate_open: arguments.open_gate,
        is_unthrottled: arguments.unthrottled,
    };
    if arguments.dry_run {
        let plan = reconciliations::rehearse(wiring, &order, arguments.abandon).await?;
        plan_lines(&plan).iter().for_each(|line| _ = output::line(line));
        return Ok(Exit::Success);
    }
    let (actor, before) = (Actor::of_command(), newest_reconciliation(wiring).await);
    let abandon = if arguments.abandon { " --abandon" } else { "" };
    let begun = BegunOperation::begin(wiring, &actor, format!("anabranch {order}{abandon}"), before).await;
    let ended = reconcile_until_interrupt(wiring, &order, arguments.abandon, &actor.to_string()).await;
    begun.end(reconciliation_end(&ended)).await;
    match ended? {
        ReconciliationEnd::Over(report) => {
            print(&report, arguments.json);
            Ok(exit(report.verdict))
        }
        ReconciliationEnd::Paused { id, .. } => {
            eprintln!("reconciliation {id} is cut off; the same command continues it");
            Ok(Exit::Transient)
        }
    }
}

/// Returns the exit code of a verdict, on which scripts may rely.
fn exit(verdict: Verdict) -> Exit {
    match verdict {
        Verdict::Clean | Verdict::Repaired => Exit::Success,
        Verdict::Incomplete => Exit::Transient,
        Verdict::Failed => Exit::Definite,
    }
}

fn print(report: &ReconciliationReport, json: bool) {
    if json {
        _ = output::line(&output::json(report));
        return;
    }
    let seconds = report.ended_at_ms.saturating_sub(report.begun_at_ms) / 1000;
    _ = output::line(&format!("reconciliation {}: {}, {seconds} s", report.id, report.verdict.name()));
    if let Some(asked_by) = &report.asked_by {
        let command = report.command.as_ref().map_or(String::new(), |command| format!(": {command}"));
        _ = output::line(&format!("asked for by {asked_by}{command}"));
    }
    report.gaps.iter().filter(|gap| gap.is_new).for_each(|gap| _ = output::line(&gap_line(gap)));
    report.stores.iter().flat_map(lines_of).for_each(|line| _ = output::line(&line));
}

/// Returns the line of a gap in the reading of a source: who asked for it, when and why, and what no reader reads.
fn gap_line(gap: &ReportedGap) -> String {
    let GapRecord { request, who, at_ms, why, read, position, server, tables } = &gap.record;
    let at = i64::try_from(*at_ms).ok().and_then(|at| jiff::Timestamp::from_millisecond(at).ok());
    let at = at.map_or_else(|| at_ms.to_string(), |at| at.to_string());
    let read = read.map_or_else(|| "an unknown position".to_owned(), |read| read.to_string());
    let source = &gap.source;
    let what = match tables {
        None => format!("source {source} began anew: it was read up to {read}, and goes on at {position}"),
        Some(tables) => format!(
            "source {source} lacks what was read between {position} and {read}: {tables} of its tables are read again"
        ),
    };
    format!("{what} of server {server}; {who} asked for it at {at} (id {request}), because of {why}")
}

/// Returns a report's lines: facts that decide the verdict come first, and long lists are cut.
fn lines_of(store: &StoreReport) -> Vec<String> {
    let rate = (store.rows_source + store.rows_derived) as f64 / store.seconds.max(0.001);
    let mut lines = vec![format!("{}: {}", store.store, store.outcome().name())];
    if store.is_gate_closed {
        lines.push(
            "  gate       more rows differ than may be repaired without a person's word: check them, then --open-gate \
             or `anabranch refresh`"
                .to_owned(),
        );
    }
    lines.extend(cut(&store.incomplete, |why| format!("  missing    {why}")));
    if store.foreign_rows > 0 {
        lines
            .push(format!("  foreign    {} derived rows belong to no table of a source", store.foreign_rows));
        lines.extend(cut(&store.foreign, |row| {
            format!("  foreign    row {} of {}, shard_id {}", row.key_hash, row.table, row.shard)
        }));
    }
    if store.retired_tables > 0 {
        lines.push(format!(
            "  retired    {} source tables left by a retention rule, and {} derived rows of them stand",
            store.retired_tables, store.retired_rows
        ));
    }
    lines.extend([
        format!(
            "  repaired   {}, confirmed {}, left {}, also wrong in the reconciliation before {}",
            store.repaired, store.confirmed, store.left, store.again
        ),
        format!("  checked    {} source rows{}", store.candidates, verdicts(store)),
    ]);
    lines.extend(cut(&store.drift, |drifted| {
        let kind = drifted.verdict.name().replace('_', " ");
        format!(
            "  drift      {kind}: key {} of {}, source {}",
            drifted.key_hash, drifted.table, drifted.source
        )
    }));
    lines.push(format!(
        "  read       {} source rows of {} tables, {} derived rows of {}, {:.1} s, {rate:.0} rows/s",
        store.rows_source, store.tables, store.rows_derived, store.rows_expected, store.seconds
    ));
    store.placement.iter().for_each(|placement| lines.extend(lines_of_placement(placement)));
    lines
}

fn lines_of_placement(placement: &Placement) -> Vec<String> {
    let Placement {
        rows,
        undecided,
        misplaced,
        share_of_keys,
        doubles,
        unreachable,
        not_audited,
        odd_documents,
        // A sentence of `not_audited` has it.
        without_kind: _,
        odd,
        malformed,
    } = placement;
    let elsewhere: u64 = misplaced.values().sum();
    let mut lines = vec![format!(
        "  placement  {rows} rows, {elsewhere} belong in another table, {undecided} have no place; {} keys in two \
         tables ({:.0} % of keys checked)",
        doubles.len(),
        share_of_keys * 100.0
    )];
    let texts: Vec<&String> = unreachable.iter().chain(not_audited).collect();
    lines.extend(cut(&texts, |text| format!("  placement  {text}")));
    let misplaced: Vec<_> = misplaced.iter().collect();
    lines.extend(cut(&misplaced, |(table, rows)| {
        format!("  placement  {rows} rows of {table} belong in other tables")
    }));
    let odd_documents: Vec<_> = odd_documents.iter().collect();
    lines.extend(cut(&odd_documents, |(reason, documents)| {
        format!("  placement  {documents} payment documents are odd: {}", reason.replace('_', " "))
    }));
    lines.extend(cut(odd, |OddDocument { table, id, parent, what }| {
        let parent = parent.as_ref().map_or(String::new(), |parent| format!(", parent {parent}"));
        format!("  placement  document {id} of {table}{parent}: {what}")
    }));
    lines.extend(cut(malformed, |MalformedDocument { table, id, what }| {
        format!("  placement  document \"{id}\" of {table} has a malformed identifier: {what}")
    }));
    lines.extend(cut(doubles, |double| {
        format!("  placement  key {} is in {}", double.key_hash, double.tables.join(" and "))
    }));
    lines
}

/// Returns the lines of the first entries of a list, and one with the number of the others.
fn cut<T>(list: &[T], line: impl Fn(&T) -> String) -> Vec<String> {
    let mut lines: Vec<String> = list.iter().take(LINES_MAX).map(line).collect();
    match list.len().saturating_sub(LINES_MAX) {
        0 => {}
        more => lines.push(format!("             and {more} more: --json has them all")),
    }
    lines
}

fn verdicts(store: &StoreReport) -> String {
    let parts: Vec<String> = store
        .verdicts
        .iter()
        .map(|(verdict, rows)| format!("{rows} {}", verdict.name().replace('_', " ")))
        .collect();
    if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) }
}

#[derive(Debug, Serialize)]
struct Status {
    underway: Option<RunningReconciliation>,
    underway_by_hand: Option<RunningReconciliation>,
    reconciliations: Vec<ListedReconciliation>,
}

#[derive(Debug, Serialize)]
struct ListedReconciliation {
    id: String,
    ended_at_ms: u64,
    verdict: Verdict,
    is_signature_right: bool,
}

/// Returns the output of `reconcile status --json`.
pub(super) async fn status_as_json(wiring: &Wiring) -> Result<String, Fault> {
    Ok(output::json(&listed(wiring).await?))
}

/// Returns the newest report as it was signed.
pub(super) async fn newest_as_json(wiring: &Wiring) -> Result<String, Fault> {
    let (newest, _) = reconciliations::past(wiring, None).await?;
    Ok(newest.report)
}

async fn listed(wiring: &Wiring) -> Result<Status, Fault> {
    let (underway, underway_by_hand) = reconciliations::underway(wiring).await?;
    // One more is read, because the seal of each reconciliation is checked against the one before it.
    let newest = wiring.history()?.newest(LISTED + 1).await?;
    let reconciliations =
        newest.iter().take(LISTED).zip(0..).map(|(reconciliation, place)| ListedReconciliation {
            id: reconciliation.id.clone(),
            ended_at_ms: reconciliation.ended_at_ms,
            verdict: reconciliation.verdict,
            is_signature_right: sealed(wiring, reconciliation, newest.get(place + 1)) == Seal::Whole,
        });
    Ok(Status { underway, underway_by_hand, reconciliations: reconciliations.collect() })
}

async fn status(wiring: &Wiring, json: bool) -> Result<Exit, Fault> {
    let status = listed(wiring).await?;
    if json {
        _ = output::line(&output::json(&status));
        return Ok(Exit::Success);
    }
    if status.underway.is_none() && status.underway_by_hand.is_none() {
        _ = output::line("no reconciliation is under way");
    }
    let both = [&status.underway, &status.underway_by_hand];
    both.into_iter().flatten().for_each(|reconciliation| _ = output::line(&under_way(reconciliation)));
    for reconciliation in &status.reconciliations {
        let seal = if reconciliation.is_signature_right { "" } else { "  SIGNATURE WRONG" };
        let is_believed = reconciliations::is_believed(reconciliation.ended_at_ms, wall_clock::now_ms());
        let end = if is_believed { "" } else { "  ENDED IN THE FUTURE: a clock was wrong" };
        _ = output::line(&format!("{}  {}{seal}{end}", reconciliation.id, reconciliation.verdict.name()));
    }
    Ok(Exit::Success)
}

fn under_way(reconciliation: &RunningReconciliation) -> String {
    let now = reconciliation.current.as_ref().map_or("between two stores".to_owned(), |store| {
        format!(
            "{}, {:.0} % of its tables, {} rows",
            store.store,
            reconciliation.share * 100.0,
            store.rows_source
        )
    });
    let windows = match reconciliation.windows {
        0 | 1 => String::new(),
        windows => format!(", worked on in {windows} windows"),
    };
    let (id, command, through) = (&reconciliation.id, &reconciliation.command, reconciliation.done.len());
    format!("under way: {id} ({command}){windows}, {through} stores are through, now {now}")
}

fn sealed(wiring: &Wiring, reconciliation: &PastReconciliation, before: Option<&PastReconciliation>) -> Seal {
    Seal::of(reconciliation, before, wiring.config().reconcile.signing_key.as_ref())
}

async fn show_reconciliation(wiring: &Wiring, show: &Show) -> Result<Exit, Fault> {
    let id = (show.id != LAST).then_some(show.id.as_str());
    let (reconciliation, before) = reconciliations::past(wiring, id).await?;
    match (reconciliations::parsed(&reconciliation.report), show.json) {
        (Some(report), false) => print(&report, false),
        _ => _ = output::line(&reconciliation.report),
    }
    match sealed(wiring, &reconciliation, before.as_ref()) {
        Seal::Whole => Ok(Exit::Success),
        Seal::Broken => {
            Err(broken(&reconciliation, "its signature does not fit its report and reconcile.signing_key"))
        }
        Seal::Unlinked => {
            Err(broken(&reconciliation, "its signature covers another reconciliation than the one before it"))
        }
    }
}

async fn verify(wiring: &Wiring) -> Result<Exit, Fault> {
    let history = wiring.history()?;
    let mut before: Option<PastReconciliation> = None;
    loop {
        let number = before.as_ref().map_or(0, |reconciliation| reconciliation.number);
        let reconciliations = history.after(number, VERIFIED_AT_ONCE).await?;
        if reconciliations.is_empty() {
            break;
        }
        for reconciliation in reconciliations {
            if sealed(wiring, &reconciliation, before.as_ref()) != Seal::Whole {
                return Err(broken(
                    &reconciliation,
                    "it, or a reconciliation before it, was changed or removed",
                ));
            }
            before = Some(reconciliation);
        }
    }
    let count = before.map_or(0, |reconciliation| reconciliation.number);
    _ = output::line(&match wiring.config().reconcile.signing_key {
        Some(_) => format!("{count} reconciliations, every signature right"),
        None => format!(
            "{count} reconciliations, unsigned: reconcile.signing_key is not set, so their checksums are right, which \
             shows accidents and no deliberate change"
        ),
    });
    Ok(Exit::Success)
}

fn broken(reconciliation: &PastReconciliation, found: &str) -> Fault {
    Fault::new(Code::HistoryBroken, format!("reconciliation {}", reconciliation.id), found)
        .needs("the history as reconciliations wrote it, and the reconcile.signing_key that signed it")
}

#[cfg(test)]
mod tests;
