//! `flux retention`: which months' tables of payment documents are due, what it costs to remove them, and whether the
//! index has every row of those that a person is to drop (`retention_check.rs`). `retention_round.rs` looks whether
//! tables by year are empty before their digit comes round. Nothing here writes to a source.

use anabranch_pipeline::config::Removal;
use anabranch_pipeline::error::Fault;
use clap::{Args, Subcommand};
use jiff::civil::Date;
use serde::Serialize;

use super::document_tables::{DocumentTable, document_tables, today};
use super::retention_open::OpenDocuments;
use super::retention_round::{self, RoundView};
use super::{retention_check, retention_cost, retention_rows};
use crate::cli::{Cli, Outcome, block_on};
use crate::exit::Exit;
use crate::output;
use crate::retention::age::TableState;
use crate::retention::early::{EarlyTable, Judged, early_tables};
use crate::wiring::Wiring;

/// Due tables that the text lists, at most; `--json` has them all.
const LINES_MAX: usize = 50;
/// Months before a year digit comes round from which on the plan lists its tables.
const ROUND_MONTHS: i32 = 12;

/// Plan and check the removal of old tables of payment documents; the statements are for a person or a job to run
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Plan(Plan),
    Check(retention_check::Arguments),
    Round(retention_round::Arguments),
}

/// List the months' tables that are due, their rows and open refunds, and what each of three ways to remove them costs
#[derive(Debug, Args)]
struct Plan {
    /// The day that ages are counted to, as YYYY-MM-DD. Default: today, UTC
    #[arg(long, value_name = "DATE")]
    today: Option<Date>,
    /// Rows a second that a deletion or a copy reaches on your servers
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..))]
    rows_per_second: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let wiring = Wiring::new(cli.configuration()?);
    match &arguments.command {
        Command::Plan(arguments) => {
            let view = block_on(plan(&wiring, arguments))?.map_err(|fault| vec![fault])?;
            _ = output::line(&if arguments.json { output::json(&view) } else { view.text() });
            Ok(Exit::Success)
        }
        Command::Check(arguments) => block_on(retention_check::run(&wiring, arguments))?,
        Command::Round(arguments) => block_on(retention_round::run(&wiring, arguments))?,
    }
}

/// The plan, as it is printed.
#[derive(Debug, Serialize)]
struct PlanView {
    today: String,
    retention_months: u32,
    index_months_after: u32,
    /// Captured tables with a month in their name, and without one.
    tables_of_months: usize,
    tables_without_month: usize,
    /// The rows of the tables without a month, of which a job deletes the old ones.
    without_month: retention_rows::OldRows,
    /// Captured tables with a year digit in their name; they are among those of months.
    tables_by_year: usize,
    /// Tables by year with rows whose digit comes round within a year, or has come round.
    coming_round: Vec<RoundView>,
    /// Tables whose greatest key is no identifier, or one of a year that the name does not mean.
    odd: Vec<String>,
    due: Vec<DueView>,
    /// A sentence for each fault of the relation index, and for the due tables that were not asked for after them.
    open_unknown: Vec<String>,
    /// Tables that left before they were due, and whose rows stand in the index.
    early: Vec<EarlyTable>,
    /// A sentence for each table that left and whose age nothing says, and for each target that did not answer.
    early_unknown: Vec<String>,
    /// The ways to remove the due tables.
    ways: Vec<retention_cost::Way>,
}

#[derive(Debug, Serialize)]
struct DueView {
    source: String,
    table: String,
    month: String,
    age_months: i32,
    /// Number of rows by the source's statistics.
    rows: u64,
    bytes: u64,
    /// Documents with a refund, a chargeback or what clears them within the refunds' time; `None` = nothing says it, or
    /// a fault, which stands in `open_unknown`.
    open: Option<u64>,
    /// The rows of the table keep standing in the index when it is dropped.
    is_retained: bool,
}

async fn plan(wiring: &Wiring, arguments: &Plan) -> Result<PlanView, Fault> {
    let (config, today) = (wiring.config(), today(arguments.today));
    let retention = config.flux_retention();
    let tables = document_tables(wiring, today).await?;
    let is_without_month = |table: &&DocumentTable| table.state == TableState::NoMonth;
    let is_odd = |table: &&DocumentTable| matches!(table.state, TableState::Odd | TableState::TooNew(..));
    let (mut due, mut due_tables) = (Vec::new(), Vec::new());
    for table in &tables {
        let Ok(month) = table.due(retention.months.get()) else { continue };
        let TableState::Month(_, age_months) = table.state else { continue };
        due_tables.push(table);
        due.push(DueView {
            source: table.source.clone(),
            table: table.name(),
            month: month.to_string(),
            age_months,
            rows: table.extent.rows,
            bytes: table.extent.bytes,
            open: None,
            is_retained: table.table().removal == Removal::Retain,
        });
    }
    let OpenDocuments { of_tables, unknown } = OpenDocuments::of(wiring, &due_tables, today).await;
    for (due, open) in due.iter_mut().zip(of_tables) {
        due.open = open;
    }
    let total = |of: fn(&DueView) -> u64| -> u64 { due.iter().map(of).sum() };
    let extent = retention_cost::Extent {
        tables: due.len() as u64,
        rows: total(|due| due.rows),
        retained_rows: total(|due| if due.is_retained { due.rows } else { 0 }),
        bytes: total(|due| due.bytes),
        has_marker: config.flux.as_ref().is_some_and(|flux| flux.retention_marker.is_some()),
    };
    let rule = retention_rows::Rule {
        system: config.flux_places.system(),
        today,
        months: retention.months.get(),
        rows_per_second: arguments.rows_per_second,
    };
    let judged = judged(wiring).await?;
    Ok(PlanView {
        today: today.to_string(),
        retention_months: retention.months.get(),
        index_months_after: retention.index_months_after.get(),
        tables_of_months: tables.iter().filter(|table| !is_without_month(table)).count(),
        tables_without_month: tables.iter().filter(is_without_month).count(),
        without_month: retention_rows::of(tables.iter().filter(is_without_month), rule),
        tables_by_year: tables.iter().filter(|table| table.is_by_year).count(),
        coming_round: retention_round::coming(&tables, ROUND_MONTHS),
        odd: tables
            .iter()
            .filter(is_odd)
            .map(|table| format!("{} of {}", table.name(), table.source))
            .collect(),
        ways: retention_cost::ways(extent, arguments.rows_per_second),
        due,
        open_unknown: unknown,
        early: judged.early,
        early_unknown: judged.unknown,
    })
}

/// Judges the tables that left; none without an index.
async fn judged(wiring: &Wiring) -> Result<Judged, Fault> {
    let Some((projection, _)) = wiring.relations_projection() else { return Ok(Judged::default()) };
    Ok(early_tables(wiring, &wiring.derived(projection)?, None).await)
}

impl PlanView {
    fn text(&self) -> String {
        let mut lines = vec![
            format!(
                "{}: a month's table is due when it is {} months old; its index rows outlive it by {} months",
                self.today, self.retention_months, self.index_months_after
            ),
            format!(
                "tables      {} of months, {} due; {} without a month, which no month ends",
                self.tables_of_months,
                self.due.len(),
                self.tables_without_month
            ),
        ];
        lines.extend(self.due.iter().take(LINES_MAX).map(DueView::line));
        if self.due.len() > LINES_MAX {
            lines.push(format!("            and {} more: --json has them all", self.due.len() - LINES_MAX));
        }
        lines.extend(self.open_unknown.iter().map(|reason| format!("unknown     {reason}")));
        if self.tables_by_year > 0 {
            let (all, coming) = (self.tables_by_year, self.coming_round.len());
            lines.push(format!(
                "by year     {all} tables; {coming} of them have rows and come round within {ROUND_MONTHS} months"
            ));
        }
        lines.extend(self.coming_round.iter().take(LINES_MAX).map(RoundView::line));
        lines.extend(
            self.odd
                .iter()
                .map(|table| format!("odd         {table}: its greatest key is no identifier of its months")),
        );
        lines.extend(self.without_month.lines());
        lines.extend(self.early.iter().take(LINES_MAX).map(early_line));
        let unknown = self.early_unknown.iter().take(LINES_MAX);
        lines.extend(unknown.map(|reason| format!("unknown     {reason}")));
        lines.extend(self.ways.iter().flat_map(retention_cost::Way::lines));
        lines.join("\n")
    }
}

fn early_line(early: &EarlyTable) -> String {
    let EarlyTable { source, table, retired_on, why, .. } = early;
    format!("too early   {table} of {source} left on {retired_on}: {why}")
}

impl DueView {
    fn line(&self) -> String {
        let Self { source, table, month, age_months, rows, bytes, open, is_retained } = self;
        let fate = if *is_retained { "" } else { "; dropping it removes them: removal is not `retain`" };
        let open = match open {
            Some(open) => format!("{open} of its documents have an open refund or the like"),
            None => "nothing says how many of its documents have an open refund or the like".to_owned(),
        };
        format!(
            "due         {table} of {source}: {month}, {age_months} months old, some {rows} rows in {}; {open}{fate}",
            retention_cost::size(*bytes)
        )
    }
}
