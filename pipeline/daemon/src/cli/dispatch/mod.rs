//! `dispatch`: the days of coupon programmes. It prints plan, state and signed reports of a day, handles dead letters,
//! and says why a user gets a coupon or none. After a restore of the ledger, it takes in the coupon system's statement.
//!
//! `dispatch run DAY` does one pass of the dispatcher, as the schedule does: the pass handles every day that has come
//! and is not closed. `DAY` only selects the day that is printed afterwards. Everywhere else a *run* is the ledger's
//! record of a day, [`DayRun`].

mod explain;
mod letters;
mod plan;
mod take_in;

use std::collections::BTreeMap;
use std::sync::Arc;

use anabranch_coupons::ports::Clock;
use anabranch_coupons::programme::Programme;
use anabranch_coupons::records::{DayRun, RunKey};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::records::Outcome as Verdict;
use clap::{Args, Subcommand};
use jiff::civil::Date;
use serde::Serialize;

use super::{Cli, Outcome, block_on};
use crate::coupons::{self, DayView, Process, Signed, SignedReport};
use crate::exit::Exit;
use crate::operations::{Actor, CommandText, recorded};
use crate::output;
use crate::wiring::Wiring;

/// Plan, run, show and explain the days of coupon programmes
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Only this programme. Default: every programme
    #[arg(long, global = true, value_name = "NAME")]
    programme: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show which tables a day reads, how many users they have, and what a run would do; changes nothing
    Plan(OfDay),
    /// Begin or continue a day, as the schedule does; safe to repeat
    Run(OfDay),
    /// Show the newest day of each programme
    Status {
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Print the signed reports of a day and verify them; before noon the counts so far, unsigned
    Report(OfDay),
    /// Say why a user gets a coupon on a day, or none: dates, tables, ledger, rules
    Explain(explain::Arguments),
    Letters(letters::Arguments),
    /// Settle the coupons that the coupon system says it gave, after the ledger was restored from an older copy
    TakeIn(take_in::Arguments),
}

/// A day.
#[derive(Debug, Args)]
struct OfDay {
    /// The day that is celebrated, such as 2027-02-28
    day: Date,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

pub fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let wiring = Wiring::new(cli.configuration()?);
    let work = async {
        if let (Command::TakeIn(_), Some(name)) = (&arguments.command, &arguments.programme) {
            // The chain of tokens begins anew for the whole ledger.
            let found = format!("`--programme {name}` would leave out coupons of other programmes");
            return Err(refused("dispatch take-in", found).needs("the command without `--programme`"));
        }
        let programmes = match &arguments.programme {
            Some(name) => vec![coupons::programme(wiring.config(), name)?],
            None => coupons::programmes(wiring.config())?,
        };
        if programmes.is_empty() {
            return Err(refused("dispatch", "no programme is configured").needs("a [[programmes]] section"));
        }
        match &arguments.command {
            Command::Plan(of_day) => plan::run(&wiring, &programmes, of_day.day, of_day.json).await,
            Command::Run(of_day) => {
                let command = CommandText::of("dispatch run").word(&of_day.day.to_string());
                let command = command.option("--programme", arguments.programme.as_deref()).text();
                let work = run_day(&wiring, &programmes, of_day);
                let after = |shown: &Vec<ProgrammeDay>| counts(shown);
                let shown = recorded(&wiring, &Actor::of_command(), (command, None), work, after).await?.done;
                print(&shown, of_day.json);
                Ok(Exit::Success)
            }
            Command::Status { json } => status(&wiring, &programmes, *json).await,
            Command::Report(of_day) => report(&wiring, &programmes, of_day).await,
            Command::Explain(arguments) => explain::run(&wiring, &programmes, arguments).await,
            Command::Letters(arguments) => letters::run(&wiring, &programmes, arguments).await,
            Command::TakeIn(arguments) => take_in::run(&wiring, &programmes, arguments).await,
        }
    };
    block_on(work)?.map_err(|fault| vec![fault])
}

fn refused(subject: impl Into<String>, found: impl Into<String>) -> Fault {
    Fault::new(Code::DispatchRefused, subject, found)
}

/// The day of one programme, as it is printed.
#[derive(Debug, Serialize)]
struct ProgrammeDay {
    programme: String,
    #[serde(flatten)]
    view: DayView,
}

async fn run_day(
    wiring: &Wiring,
    programmes: &[Programme],
    of_day: &OfDay,
) -> Result<Vec<ProgrammeDay>, Fault> {
    let published = coupons::PublishedRounds::new(programmes);
    let lane_lag = coupons::LaneLag::new(wiring)?;
    let dispatcher = coupons::dispatcher(wiring, &lane_lag, &published, &Arc::default()).await?;
    let reports = coupons::ReportChain::new(wiring);
    let mut shown = Vec::new();
    for programme in programmes {
        coupons::pass(wiring, &dispatcher, programme, &reports).await?;
        let view = day_now(wiring, programme, of_day.day).await?;
        shown.push(ProgrammeDay { programme: programme.name.to_string(), view });
    }
    Ok(shown)
}

/// Returns the counts of each programme's day, for a record.
fn counts(shown: &[ProgrammeDay]) -> String {
    shown.iter().map(|day| text(&day.programme, &day.view)).collect::<Vec<_>>().join("\n")
}

/// Returns a day with the counts that the ledger has now; a fault if the day has no run.
async fn day_now(wiring: &Wiring, programme: &Programme, day: Date) -> Result<DayView, Fault> {
    let key = RunKey { programme: programme.name.clone(), day };
    let found = coupons::count(&wiring.coupon_ledger().await?, &key).await?;
    let (run, report) = found.ok_or_else(|| coupons::no_run(programme, day))?;
    Ok(DayView::of(day, &run, &report, 0, Process.now()))
}

async fn status(wiring: &Wiring, programmes: &[Programme], json: bool) -> Result<Exit, Fault> {
    let mut shown = Vec::new();
    for programme in programmes {
        let view = coupons::newest_day(wiring.log().await?, &programme.name).await?;
        shown.push(ProgrammeDay { programme: programme.name.to_string(), view });
    }
    print(&shown, json);
    Ok(Exit::Success)
}

fn print(shown: &[ProgrammeDay], json: bool) {
    if json {
        _ = output::line(&output::json(&shown));
        return;
    }
    shown.iter().for_each(|day| _ = output::line(&text(&day.programme, &day.view)));
}

/// Returns a day as text: one line with its counts, then a line for each reason, delay or defect that there is.
pub(super) fn text(programme: &str, view: &DayView) -> String {
    let Some(day) = &view.day else { return format!("{programme}: no day has begun") };
    let phase = match view.phase() {
        "waiting" => "waits before midnight's tables are frozen".to_owned(),
        "closed" => "closed".to_owned(),
        phase => format!("{phase} is frozen"),
    };
    let DayView { eligible, granted, already_granted, failed, in_flight, missed, .. } = view;
    let mut line = format!(
        "{programme}  {day}  {phase}: {eligible} eligible = {granted} granted + {already_granted} already granted + {} \
         refused + {failed} failed + {in_flight} in flight + {missed} missed",
        view.refused_count()
    );
    for (reason, count) in &view.refused {
        line.push_str(&format!("\n  refused    {count} {}", reason.replace('_', " ")));
    }
    version_lines(&view.versions).for_each(|version| line.push_str(&format!("\n{version}")));
    if view.unreadable > 0 {
        line.push_str(&format!("\n  missed     {} source unreadable", view.unreadable));
    }
    if view.held > 0 {
        line.push_str(&format!(
            "\n  missed     {} wait for a reconciliation of their source tables",
            view.held
        ));
    }
    if view.frozen > 0 {
        line.push_str(&format!("\n{}", relies_on(view.reconciliation.as_deref())));
    }
    if !view.is_after_barrier && view.frozen > 0 {
        line.push_str("\n  barrier    a wave was frozen before every lane had reached the end of its source");
    }
    if view.misplaced > 0 {
        line.push_str(&format!(
            "\n  left out   {} rows have another birthday than their table",
            view.misplaced
        ));
    }
    if view.open_before > 0 {
        line.push_str(&format!("\n  open       {} earlier days are not closed", view.open_before));
    }
    line
}

/// Returns the line that names the reconciliation a day relies on.
fn relies_on(reconciliation: Option<&str>) -> String {
    match reconciliation {
        Some(id) => format!("  relies on  reconciliation {id}"),
        None => "  relies on  no reconciliation".to_owned(),
    }
}

/// Returns a line for each version of the programme by which coupons were granted, with counts if there are several.
fn version_lines(versions: &BTreeMap<String, u64>) -> impl Iterator<Item = String> {
    versions.iter().map(move |(version, granted)| match versions.len() {
        1 => format!("  version    {version} of the programme"),
        _ => format!("  version    {granted} granted by version {version} of the programme"),
    })
}

async fn report(wiring: &Wiring, programmes: &[Programme], of_day: &OfDay) -> Result<Exit, Fault> {
    let (mut all, mut so_far) = (Vec::new(), Vec::new());
    for programme in programmes {
        let signed = coupons::signed(wiring, &programme.name, of_day.day).await?;
        if signed.is_empty() {
            let view = day_now(wiring, programme, of_day.day).await?;
            so_far.push(ProgrammeDay { programme: programme.name.to_string(), view });
        }
        all.extend(signed);
    }
    if of_day.json {
        _ = output::line(&output::json(&serde_json::json!({ "reports": all, "unsigned": so_far })));
    } else {
        all.iter().for_each(|signed| _ = output::line(&report_text(signed)));
        for day in &so_far {
            _ = output::line(&format!("not signed yet: {}", text(&day.programme, &day.view)));
        }
    }
    let worst = all.iter().map(|signed| signed.verdict).max();
    Ok(match worst {
        Some(Verdict::Failed) => Exit::Definite,
        _ => Exit::Success,
    })
}

fn report_text(signed: &Signed) -> String {
    let SignedReport { programme, day, stage, eligible, granted, already_granted, failed, .. } =
        &signed.report;
    let SignedReport { in_flight, missed, refused, reconciliation, sum, .. } = &signed.report;
    let seal = match signed.is_signed {
        true => "the signature is right",
        false => "unsigned: reconcile.signing_key is not set, so its checksum shows accidents only",
    };
    let refusals: u64 = refused.values().sum();
    let mut lines = vec![
        format!("{programme}  {day}  {stage}: {}; {seal}", signed.verdict.name()),
        format!(
            "  {eligible} eligible = {granted} granted + {already_granted} already granted + {refusals} refused + {failed} \
             failed + {in_flight} in flight + {missed} missed"
        ),
    ];
    lines.extend(
        refused.iter().map(|(reason, count)| format!("  refused    {count} {}", reason.replace('_', " "))),
    );
    lines.extend(version_lines(&signed.report.versions));
    if signed.report.unreadable > 0 {
        lines.push(format!("  missed     {} source unreadable", signed.report.unreadable));
    }
    if signed.report.held > 0 {
        let held = signed.report.held;
        lines.push(format!("  missed     {held} wait for a reconciliation of their source tables"));
    }
    lines.push(relies_on(reconciliation.as_ref().map(|(id, _)| id.as_str())));
    if !signed.report.is_after_barrier {
        lines.push(
            "  barrier    a wave was frozen before every lane had reached the end of its source".to_owned(),
        );
    }
    lines.push(format!("  cohort     sum {sum}, {} rows left out", signed.report.misplaced));
    lines.join("\n")
}

/// Returns the present phase of a run as the end of a sentence about the run.
fn phase_of(run: &DayRun) -> &'static str {
    match run.frozen {
        _ if run.is_closed => "is closed",
        0 => "has begun and has frozen nothing yet",
        1 => "has frozen midnight's tables",
        2 => "has frozen noon's tables",
        _ => "has frozen the catch-up",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coupons_are_counted_by_version_when_there_are_several() {
        let lines = |versions: &[(&str, u64)]| {
            let versions = versions.iter().map(|(version, granted)| ((*version).to_owned(), *granted));
            version_lines(&versions.collect()).collect::<Vec<_>>()
        };
        assert!(lines(&[]).is_empty());
        assert_eq!(lines(&[("3f9a12c0", 50)]), ["  version    3f9a12c0 of the programme"]);
        assert_eq!(
            lines(&[("3f9a12c0", 48), ("unknown", 2)]),
            [
                "  version    48 granted by version 3f9a12c0 of the programme",
                "  version    2 granted by version unknown of the programme",
            ]
        );
    }
}
