//! `dispatch plan`: shows the tables that a day reads, their users, and the effect of a run. It changes nothing.

use anabranch_coupons::days::{members, rules};
use anabranch_coupons::ports::{CohortRows, Ledger};
use anabranch_coupons::programme::{Programme, WithoutReconciliation};
use anabranch_coupons::records::RunKey;
use anabranch_pipeline::error::Fault;
use anabranch_schemas::celebration::{Birthday, celebrated};
use jiff::civil::Date;
use serde::Serialize;

use super::phase_of;
use crate::coupons::{self, DayTables};
use crate::exit::Exit;
use crate::output;
use crate::wiring::Wiring;

/// The plan of a programme for a day.
#[derive(Debug, Serialize)]
struct PlanView {
    programme: String,
    day: String,
    coupon: String,
    /// The version of the rules: those of the run, or those with which the file would begin it.
    version: Option<String>,
    starts_at: Option<String>,
    noon_at: Option<String>,
    tables: Vec<TableView>,
    /// The reconciliation that midnight relied on; before midnight is frozen the last good one, and whether it is
    /// young enough for the day.
    reconciliation: Option<String>,
    is_reconciled: bool,
    is_frozen: bool,
    /// Source tables that this reconciliation does not prove; a user whom only these name waits until `waits_until`.
    unproven_tables: usize,
    without_reconciliation: &'static str,
    run: Option<&'static str>,
}

/// A table of the day with its present counts.
#[derive(Debug, Serialize)]
struct TableView {
    table: String,
    reason: &'static str,
    users: u64,
    misplaced: u64,
}

pub(super) async fn run(
    wiring: &Wiring,
    programmes: &[Programme],
    day: Date,
    json: bool,
) -> Result<Exit, Fault> {
    let cohort = coupons::cohort(wiring, &coupons::LaneLag::new(wiring)?)?;
    let ledger = wiring.coupon_ledger().await?;
    let mut views = Vec::new();
    for programme in programmes {
        let key = RunKey { programme: programme.name.clone(), day };
        let found_run = ledger.with_run(&key, &[], |l| l.run.clone()).await?;
        let planned = match &found_run {
            Some(run) => run.rules.clone(),
            None => ledger.with_programme(&programme.name, |l| rules(l, programme, day)).await?,
        };
        let version = found_run.as_ref().map_or_else(|| planned.version(), |run| run.version);
        let mut tables = Vec::new();
        for found in celebrated(day, &planned.calendars, planned.leap_day) {
            let (users, misplaced) = users(&cohort, found.birthday, programme).await?;
            tables.push(TableView {
                table: found.birthday.table(),
                reason: found.reason.text(),
                users,
                misplaced,
            });
        }
        let last = cohort.last_good().await?;
        let reconciled_at = cohort.reconciled().await?.map(|reconciled| reconciled.ended_at);
        let starts_at = programme.at(day, programme.starts_at);
        let is_reconciled = reconciled_at
            .zip(starts_at)
            .is_some_and(|(at, starts_at)| at + programme.reconciliation_age >= starts_at);
        let unproven_tables = last.as_ref().map_or(0, |last| last.unproven.len());
        let frozen = found_run.as_ref().filter(|run| run.frozen > 0);
        let (reconciliation, is_reconciled) = match frozen.map(|run| &run.reconciliation) {
            Some(relied_on) => (relied_on.as_ref().map(|of_day| of_day.id.to_string()), relied_on.is_some()),
            None => (last.map(|last| last.id), is_reconciled),
        };
        views.push(PlanView {
            programme: programme.name.to_string(),
            day: day.to_string(),
            coupon: programme.coupon.to_string(),
            version: version.map(|version| version.to_string()),
            starts_at: starts_at.map(|at| at.to_string()),
            noon_at: programme.at(day, programme.noon_at).map(|at| at.to_string()),
            tables,
            unproven_tables,
            reconciliation,
            is_reconciled,
            is_frozen: frozen.is_some(),
            without_reconciliation: match programme.without_reconciliation {
                WithoutReconciliation::Go => "go",
                WithoutReconciliation::Stop => "stop",
            },
            run: found_run.as_ref().map(phase_of),
        });
    }
    match json {
        true => _ = output::line(&output::json(&views)),
        false => views.iter().for_each(|view| _ = output::line(&view.text())),
    }
    Ok(Exit::Success)
}

/// Counts the users of a table that a freeze would take now, and the rows that it would leave out.
async fn users(cohort: &DayTables, table: Birthday, programme: &Programme) -> Result<(u64, u64), Fault> {
    let (mut users, mut misplaced, mut after) = (0, 0, None);
    loop {
        let rows = cohort.page(table, after, programme.page_rows.get() as usize).await?;
        let Some(last) = rows.last() else { return Ok((users, misplaced)) };
        after = Some(last.user);
        let page = members(table, &rows);
        users += page.members.len() as u64;
        misplaced += page.misplaced;
    }
}

impl PlanView {
    fn text(&self) -> String {
        let unknown = || "outside of the calendar".to_owned();
        let starts_at = self.starts_at.clone().unwrap_or_else(unknown);
        let noon_at = self.noon_at.clone().unwrap_or_else(unknown);
        let version =
            self.version.as_ref().map_or_else(String::new, |version| format!(", version {version}"));
        let mut lines = vec![
            format!("{}  {}: coupon {}{version}", self.programme, self.day, self.coupon),
            format!("  begins     {starts_at}, reads its tables again at {noon_at}"),
        ];
        for TableView { table, reason, users, misplaced } in &self.tables {
            let left_out = match misplaced {
                0 => String::new(),
                rows => format!(", {rows} rows would be left out"),
            };
            lines.push(format!("  reads      {table}: {users} users; {reason}{left_out}"));
        }
        lines.push(match (&self.reconciliation, self.is_reconciled) {
            (Some(id), true) => super::relies_on(Some(id.as_str())),
            _ if self.is_frozen => super::relies_on(None),
            (found, _) => {
                let found = found.as_ref().map_or_else(
                    || "there is no whole reconciliation".to_owned(),
                    |id| format!("reconciliation {id} is too old"),
                );
                let then = match self.without_reconciliation {
                    "go" => "the day waits for one and then continues without it",
                    _ => "the day waits for one",
                };
                format!("  relies on  {found}: {then}")
            }
        });
        if self.unproven_tables > 0 {
            lines.push(format!(
                "  waits      users of {} source tables, which it does not prove",
                self.unproven_tables
            ));
        }
        lines.push(match self.run {
            Some(phase) => format!("  run        it {phase}; a run continues it"),
            None => "  run        there is none; a run begins it once the day has come".to_owned(),
        });
        lines.join("\n")
    }
}
