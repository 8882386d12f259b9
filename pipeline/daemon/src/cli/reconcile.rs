//! `reconcile`: compares both sides of every store, and has repaired what differs.
//!
//! `--now` does a night in this process; repairs are done by the daemons that run the lanes. `status` shows the night that
//! is under way and those that are over, `show` one of them, `verify` that nobody has changed the history.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::History;
use anabranch_pipeline::reconcile::{
    Mode, NightReport, Outcome as Verdict, PastNight, Placement, Seal, StoreReport,
};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{Cli, Outcome, block_on};
use crate::exit::Exit;
use crate::nights::{self, Ended, Order, Underway};
use crate::output;
use crate::wiring::Wiring;

/// Nights that `status` lists.
const LISTED: usize = 10;
/// Nights that are read at a time to be verified.
const VERIFIED_AT_ONCE: usize = 500;
/// The newest night.
const LAST: &str = "LAST";

/// Compare sources with derived stores row by row, and repair what differs
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Do it now, in this process; goes on with a night that was cut off
    #[arg(long)]
    now: bool,
    /// Only this projection, or cache/NAME; may be repeated
    #[arg(long = "store", value_name = "NAME")]
    stores: Vec<String>,
    /// What is done about drift. Default: as configured
    #[arg(long, value_enum)]
    mode: Option<ModeArgument>,
    /// Repair also when more differs than the gate lets pass
    #[arg(long)]
    open_gate: bool,
    /// Read as fast as it goes, also while lanes or a replica are behind
    #[arg(long)]
    unthrottled: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Status(Printed),
    Show(Show),
    Verify,
}

/// Show the night that is under way, and the last ones
#[derive(Debug, Args)]
struct Printed {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Show the report of a night
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
    /// Say what differs, and change nothing
    Report,
    /// Have the lanes read again what differs
    Repair,
}

pub fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let one = |fault| vec![fault];
    let wiring = Wiring::new(cli.configuration()?);
    match &arguments.command {
        Some(Command::Status(printed)) => block_on(status(&wiring, printed.json))?.map_err(one),
        Some(Command::Show(show)) => block_on(show_night(&wiring, show))?.map_err(one),
        Some(Command::Verify) => block_on(verify(&wiring))?.map_err(one),
        None if arguments.now => block_on(now(&wiring, arguments))?.map_err(one),
        None => Err(one(Fault::new(Code::ReconcileRefused, "reconcile", "nothing is asked for")
            .needs("--now, or one of: status, show, verify"))),
    }
}

async fn now(wiring: &Wiring, arguments: &Arguments) -> Result<Exit, Fault> {
    let order = Order {
        mode: arguments.mode.map(|mode| match mode {
            ModeArgument::Report => Mode::Report,
            ModeArgument::Repair => Mode::Repair,
        }),
        stores: arguments.stores.clone(),
        is_gate_open: arguments.open_gate,
        is_unthrottled: arguments.unthrottled,
    };
    let cancel = CancellationToken::new();
    let interrupted = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        cancel.cancel();
        std::future::pending::<()>().await;
    };
    let ended = tokio::select! {
        ended = nights::run_now(wiring, &order, &cancel) => ended?,
        () = interrupted => unreachable!("it never ends"),
    };
    match ended {
        Ended::Over(report) => {
            print(&report, arguments.json);
            Ok(exit(report.verdict))
        }
        Ended::Paused { id, .. } => {
            eprintln!("night {id} is cut off; the same command goes on with it");
            Ok(Exit::Transient)
        }
    }
}

/// What a script may rely on.
fn exit(verdict: Verdict) -> Exit {
    match verdict {
        Verdict::Clean | Verdict::Repaired => Exit::Success,
        Verdict::Incomplete => Exit::Transient,
        Verdict::Failed => Exit::Definite,
    }
}

fn print(report: &NightReport, json: bool) {
    if json {
        _ = output::line(&output::json(report));
        return;
    }
    let seconds = report.ended_at_ms.saturating_sub(report.begun_at_ms) / 1000;
    _ = output::line(&format!("night {}: {}, {seconds} s", report.id, report.verdict.name()));
    report.stores.iter().for_each(print_store);
}

fn print_store(store: &StoreReport) {
    let rate = (store.rows_source + store.rows_derived) as f64 / store.seconds.max(0.001);
    let lines = [
        format!("{}: {}", store.store, store.outcome().name()),
        format!(
            "  read       {} source rows of {} tables, {} derived rows of {}, {:.1} s, {rate:.0} rows/s",
            store.rows_source, store.tables, store.rows_derived, store.rows_expected, store.seconds
        ),
        format!("  looked at  {} source rows{}", store.candidates, verdicts(store)),
        format!(
            "  repaired   {}, confirmed {}, left {}, also wrong the night before {}",
            store.repaired, store.confirmed, store.left, store.again
        ),
    ];
    lines.iter().for_each(|line| _ = output::line(line));
    store.placement.iter().for_each(print_placement);
    for why in &store.incomplete {
        _ = output::line(&format!("  missing    {why}"));
    }
    if store.is_gate_closed {
        _ = output::line(
            "  gate       more differs than may be repaired unasked: look first; then --open-gate, or `anabranch refresh`",
        );
    }
}

fn print_placement(placement: &Placement) {
    let Placement { rows, undecided, misplaced, share_of_keys, doubles, unreachable, not_audited } =
        placement;
    let elsewhere: u64 = misplaced.values().sum();
    _ = output::line(&format!(
        "  placement  {rows} rows, {elsewhere} belong into another table, {undecided} have no place; {} keys in two tables \
         ({:.0} % of keys looked for)",
        doubles.len(),
        share_of_keys * 100.0
    ));
    for (table, rows) in misplaced {
        _ = output::line(&format!("  placement  {rows} rows of {table} belong into other tables"));
    }
    for double in doubles {
        _ = output::line(&format!(
            "  placement  key {} stands in {}",
            double.key_hash,
            double.tables.join(" and ")
        ));
    }
    for text in unreachable.iter().chain(not_audited) {
        _ = output::line(&format!("  placement  {text}"));
    }
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
    underway: Option<Underway>,
    nights: Vec<Listed>,
}

#[derive(Debug, Serialize)]
struct Listed {
    id: String,
    ended_at_ms: u64,
    verdict: Verdict,
    is_signature_right: bool,
}

async fn status(wiring: &Wiring, json: bool) -> Result<Exit, Fault> {
    let underway = nights::underway(wiring).await?;
    // One more, so that the oldest that is shown is seen beside the one before it.
    let newest = wiring.history()?.newest(LISTED + 1).await?;
    let nights = newest.iter().take(LISTED).zip(0..).map(|(night, place)| Listed {
        id: night.id.clone(),
        ended_at_ms: night.ended_at_ms,
        verdict: night.verdict,
        is_signature_right: sealed(wiring, night, newest.get(place + 1)) == Seal::Whole,
    });
    let status = Status { underway, nights: nights.collect() };
    if json {
        _ = output::line(&output::json(&status));
        return Ok(Exit::Success);
    }
    match &status.underway {
        None => _ = output::line("no night is under way"),
        Some(night) => {
            let now = night.current.as_ref().map_or("between two stores".to_owned(), |store| {
                format!(
                    "{}, {:.0} % of its tables, {} rows",
                    store.store,
                    night.share * 100.0,
                    store.rows_source
                )
            });
            let windows = match night.windows {
                0 | 1 => String::new(),
                windows => format!(", worked on in {windows} windows"),
            };
            _ = output::line(&format!(
                "under way: {}{windows}, {} stores are through, now {now}",
                night.id,
                night.done.len()
            ));
        }
    }
    for night in &status.nights {
        let seal = if night.is_signature_right { "" } else { "  SIGNATURE WRONG" };
        _ = output::line(&format!("{}  {}{seal}", night.id, night.verdict.name()));
    }
    Ok(Exit::Success)
}

fn sealed(wiring: &Wiring, night: &PastNight, before: Option<&PastNight>) -> Seal {
    Seal::of(night, before, wiring.config().reconcile.signing_key.as_ref())
}

async fn show_night(wiring: &Wiring, show: &Show) -> Result<Exit, Fault> {
    let id = (show.id != LAST).then_some(show.id.as_str());
    let (night, before) = nights::past(wiring, id).await?;
    match (nights::parsed(&night.report), show.json) {
        (Some(report), false) => print(&report, false),
        _ => _ = output::line(&night.report),
    }
    match sealed(wiring, &night, before.as_ref()) {
        Seal::Whole => Ok(Exit::Success),
        Seal::Broken => Err(broken(&night, "its signature is not that of its report and of this key")),
        Seal::Unlinked => Err(broken(&night, "the night before it is not the one that it was signed over")),
    }
}

async fn verify(wiring: &Wiring) -> Result<Exit, Fault> {
    let history = wiring.history()?;
    let mut before: Option<PastNight> = None;
    loop {
        let number = before.as_ref().map_or(0, |night| night.number);
        let nights = history.behind(number, VERIFIED_AT_ONCE).await?;
        if nights.is_empty() {
            break;
        }
        for night in nights {
            if sealed(wiring, &night, before.as_ref()) != Seal::Whole {
                return Err(broken(&night, "it, or what stands before it, was changed or taken away"));
            }
            before = Some(night);
        }
    }
    let count = before.map_or(0, |night| night.number);
    _ = output::line(&format!("{count} nights, every signature right"));
    Ok(Exit::Success)
}

fn broken(night: &PastNight, found: &str) -> Fault {
    Fault::new(Code::HistoryBroken, format!("night {}", night.id), found)
        .needs("the history as nights have written it, and the reconcile.signing_key of then")
}
