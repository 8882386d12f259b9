//! Carries the steps out on servers and tables. Steps of daemons stand in `fleet.rs`.

mod captured;
mod servers;
mod sources;
mod tables;

use std::time::Duration;

use anabranch_demo::drift::Reconciliation;
use anabranch_demo::{DemoError, Result};
use tokio::time::Instant;

use crate::fleet::DEFECT;
use crate::journal::Journal;
use crate::plan::Step;
use crate::site::Site;

/// Limit until a reconciliation beside everything else has a report; the next one continues one that was cut off.
const RECONCILIATION_MAX: Duration = Duration::from_secs(240);
/// Time between two reconciliations of which the first one was cut off.
const TRY_AGAIN: Duration = Duration::from_secs(2);
/// Verdicts of a reconciliation beside changes that show no defect.
const HARMLESS: [&str; 2] = ["clean", "incomplete"];

impl Site {
    /// Takes a step; returns when it is over.
    pub async fn take(&mut self, step: &Step, journal: &Journal) -> Result<()> {
        match *step {
            Step::KillServer { server, down } => self.kill_server(server, down).await,
            Step::PauseServer { server, time } => self.pause_server(server, time).await,
            Step::AlterColumn { table } => self.alter_column(table, journal).await,
            Step::Swap { table, tool } => self.swap(table, tool, journal).await,
            Step::Truncate { table } => self.truncate(table, journal).await,
            Step::ExchangePartition { table, time } => self.exchange_partition(table, time, journal).await,
            Step::RenameColumn { table, time } => self.rename_column(table, time, journal).await,
            Step::DropColumn { table, time } => self.drop_column(table, time, journal).await,
            Step::WidenColumn { table, time } => self.widen_column(table, time, journal).await,
            Step::ConvertColumn { table, time } => self.convert_column(table, time, journal).await,
            Step::MakeTable { table, time } => self.make_table(table, time, journal).await,
            Step::LoseGrant { table, time } => self.lose_grant(table, time, journal).await,
            Step::Cascade { table } => self.cascade(table, journal).await,
            Step::ChangeByText { table } => self.change_by_text(table, journal).await,
            Step::PauseLanes { projection, source, time } => self.pause_lanes(projection, source, time).await,
            Step::RestartAll => self.command(&["restart", "--all"]).await.map(drop),
            Step::Reconcile => self.reconcile_beside(journal).await,
            Step::FailOver => self.fail_over(journal).await,
            Step::BeginAnew => self.begin_anew(journal).await,
            Step::KillDaemon { .. } | Step::FreezeDaemon { .. } => {
                unreachable!("{step} is a step of the daemons' course")
            }
        }
    }

    async fn pause_lanes(&self, projection: &str, source: Option<&str>, time: Duration) -> Result<()> {
        let mut lanes = vec!["--projection", projection];
        if let Some(source) = source {
            lanes.extend(["--source", source]);
        }
        let pause = [&["pause", "--reason", "soak"][..], &lanes[..]].concat();
        self.command(&pause).await?;
        tokio::time::sleep(time).await;
        self.command(&[&["resume"][..], &lanes[..]].concat()).await.map(drop)
    }

    /// Runs a reconciliation beside the load. It repairs what it finds, so drift is a problem of this moment.
    async fn reconcile_beside(&self, journal: &Journal) -> Result<()> {
        let report = self.report_beside(journal).await?;
        let reason = report.stores.iter().flat_map(|store| &store.incomplete).next();
        let reason = reason.map_or(String::new(), |reason| format!(", such as: {reason}"));
        journal.note(&format!("reconciliation {}: {}{reason}", report.id, report.verdict));
        if HARMLESS.contains(&report.verdict.as_str()) {
            return Ok(());
        }
        let drifted: Vec<String> = report
            .stores
            .iter()
            .filter(|store| store.found() + store.left > 0)
            .map(|store| format!("{} keys of {} ({:?})", store.found(), store.store, store.verdicts))
            .collect();
        let what = format!("reconciliation {} ended {}: {}", report.id, report.verdict, drifted.join(", "));
        journal.problem(what);
        Ok(())
    }

    /// Runs reconciliations until one has a report: a server or daemon that dies may cut one off.
    async fn report_beside(&self, journal: &Journal) -> Result<Reconciliation> {
        let fleet = self.fleet();
        let deadline = Instant::now() + RECONCILIATION_MAX;
        loop {
            match tokio::time::timeout_at(deadline, Reconciliation::run(fleet.commands())).await {
                Ok(Ok(report)) => return Ok(report),
                Ok(Err(error)) => {
                    let is_defect = error.to_string().contains(DEFECT);
                    if is_defect || Instant::now() >= deadline {
                        return Err(error);
                    }
                    journal.note(&format!("it has no report: {error}"));
                }
                Err(_) => {
                    return Err(Self::late("a reconciliation has a report".to_owned(), RECONCILIATION_MAX));
                }
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
    }

    fn late(what: String, limit: Duration) -> DemoError {
        DemoError::Late { what, seconds: limit.as_secs() }
    }
}
