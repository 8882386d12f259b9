//! The end of a run: everything runs and has drained, then the demo's comparison and a reconciliation of the product.

use std::time::Duration;

use anabranch_demo::Result;
use anabranch_demo::daemon::Commands;
use anabranch_demo::drift::Reconciliation;
use anabranch_demo::verify::drain_and_compare;
use serde_json::Value;
use tokio::time::Instant;

use crate::journal::Journal;
use crate::site::Site;

/// Limit until everything is current: a task that could not reach its server pauses for up to 60 s.
const CURRENT_MAX: Duration = Duration::from_secs(300);
/// Limit of deriving everything that the binlogs hold when the load has ended.
const DRAIN_MAX: Duration = Duration::from_secs(300);
/// Limit of reconciliations until one of them has read everything.
const RECONCILIATION_MAX: Duration = Duration::from_secs(300);
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const CLEAN: &str = "clean";
/// Verdict of a reconciliation that could not decide everything yet.
const INCOMPLETE: &str = "incomplete";

impl Site {
    /// Ends the load, waits until everything is derived, and compares; returns the number of compared rows. Each
    /// difference is a problem.
    pub async fn finish(&mut self, journal: &Journal) -> Result<u64> {
        self.expect_changes(journal);
        self.load.stop().await?;
        let fleet = self.fleet();
        fleet.expect_running(journal).await?;
        // Positions of another server may be lower than those that lanes have from the server before it.
        until_current(fleet.commands(), journal).await;
        let (drained, comparisons) = drain_and_compare(&self.audits, DRAIN_MAX).await?;
        drained.lagging.iter().for_each(|lagging| journal.problem(format!("not drained: {lagging}")));
        let mut rows = 0;
        for (audit, comparison) in self.audits.iter().zip(&comparisons) {
            let (name, found) = (audit.name(), comparison.differences.total());
            rows += comparison.derived_rows;
            journal.note(&format!(
                "{name}: {} {} compared with {} claims, {found} differences",
                comparison.derived_rows,
                audit.noun(),
                comparison.claims
            ));
            if found > 0 {
                let examples: Vec<String> = comparison.examples.iter().map(ToString::to_string).collect();
                journal.problem(format!(
                    "{name}: {found} rows differ ({:?}): {}",
                    comparison.differences,
                    examples.join("; ")
                ));
            }
            if comparison.claims == 0 || !comparison.absent_tables.is_empty() {
                journal.problem(format!(
                    "{name}: {} claims, absent tables {:?}",
                    comparison.claims, comparison.absent_tables
                ));
            }
        }
        reconcile(fleet.commands(), journal).await?;
        for number in fleet.defects().await? {
            journal.problem(format!("the log of daemon {number} shows a defect"));
        }
        fleet.expect_running(journal).await?;
        Ok(rows)
    }
}

/// Reconciles until every row was read and decided; anything but equal stores is a problem.
async fn reconcile(commands: &Commands, journal: &Journal) -> Result<()> {
    let deadline = Instant::now() + RECONCILIATION_MAX;
    loop {
        let Ok(report) = tokio::time::timeout_at(deadline, Reconciliation::run(commands)).await else {
            let seconds = RECONCILIATION_MAX.as_secs();
            journal.problem(format!("the reconciliation has no report within {seconds} s"));
            return Ok(());
        };
        let report = report?;
        let reasons: Vec<&String> = report.stores.iter().flat_map(|store| &store.incomplete).collect();
        journal.note(&format!("reconciliation {}: {} {reasons:?}", report.id, report.verdict));
        match report.verdict.as_str() {
            CLEAN => return Ok(()),
            INCOMPLETE if Instant::now() < deadline => tokio::time::sleep(POLL_INTERVAL).await,
            verdict => {
                let stores: Vec<String> = report
                    .stores
                    .iter()
                    .map(|store| format!("{} {:?}, {} left", store.store, store.verdicts, store.left))
                    .collect();
                let stores = stores.join("; ");
                journal.problem(format!("reconciliation {} ended {verdict}: {stores}", report.id));
                return Ok(());
            }
        }
    }
}

/// Waits until the product shows everything as current. Notes what is not when the time is over, since the comparison
/// decides; a status without an answer is a problem by then.
async fn until_current(commands: &Commands, journal: &Journal) {
    let (deadline, seconds) = (Instant::now() + CURRENT_MAX, CURRENT_MAX.as_secs());
    loop {
        let found = status(commands, deadline).await.map(|status| disorder(&status));
        if found.as_ref().is_ok_and(Vec::is_empty) {
            return;
        }
        if Instant::now() >= deadline {
            match found {
                Ok(left) => left.iter().for_each(|what| journal.note(&format!("after {seconds} s {what}"))),
                Err(reason) => {
                    journal.problem(format!("after {seconds} s `status --json` has no answer: {reason}"));
                }
            }
            return;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Returns the product's status, or why there is none.
async fn status(commands: &Commands, deadline: Instant) -> Result<Value, String> {
    match tokio::time::timeout_at(deadline, commands.run(&["status", "--json"])).await {
        Ok(Ok(finished)) => serde_json::from_str(finished.stdout.trim())
            .map_err(|_| format!("it ended with {}\n{}", finished.status, finished.stderr)),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("it ran on".to_owned()),
    }
}

/// Returns each source, lane and cache that is not current, with its state.
fn disorder(status: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let list = |name: &str| status[name].as_array().cloned().unwrap_or_default();
    for (name, wanted, parts) in [
        ("sources", "current", &["source"][..]),
        ("lanes", "current", &["projection", "source", "lane"]),
        ("caches", "believed", &["cache"]),
    ] {
        for view in list(name) {
            let state = view["state"].as_str().unwrap_or_default();
            if state != wanted || !view["refreshed_rows"].is_null() {
                let parts: Vec<String> = parts.iter().map(|part| view[*part].to_string()).collect();
                found.push(format!("{name} {} is {state}, code {}", parts.join(" "), view["code"]));
            }
        }
    }
    if list("lanes").is_empty() {
        found.push("the status has no lanes".to_owned());
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_lane_that_reads_tables_and_a_cache_that_is_passed_by_are_not_current() {
        let lane = json!({ "projection": "p", "source": "a", "lane": 0, "state": "current", "refreshed_rows": null });
        let mut status = json!({
            "sources": [{ "source": "a", "state": "current" }],
            "lanes": [lane],
            "caches": [{ "cache": "redis", "state": "believed" }],
        });
        assert_eq!(disorder(&status), Vec::<String>::new());
        status["lanes"][0]["refreshed_rows"] = json!(5);
        status["caches"][0]["state"] = json!("passed");
        assert_eq!(disorder(&status).len(), 2);
        assert_eq!(disorder(&json!({})), ["the status has no lanes"]);
    }
}
