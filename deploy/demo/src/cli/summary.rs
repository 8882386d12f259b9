//! The result of a run as one JSON line for scripts and a few lines for people.

use std::collections::BTreeMap;

use anabranch_demo::verify::{Comparison, Differences, Drained, Example};
use anabranch_demo::{LagReport, WorkloadReport};
use serde::Serialize;

use super::arguments::Arguments;

/// What a run measured before anything is compared.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    pub seed: u64,
    /// The whole workload, with the users to begin with and the giant transactions.
    pub total: WorkloadReport,
    /// The part at the given rate, during which lag was measured.
    pub paced: WorkloadReport,
    pub paced_seconds: f64,
    pub lag: LagReport,
    pub stack_ready_seconds: f64,
    pub first_row_seconds: f64,
    pub daemon_resident_bytes: u64,
    pub daemon_restarts: u64,
    pub problems: Vec<String>,
}

/// The JSON line. Fields are only ever added.
#[derive(Debug, Serialize)]
pub struct Summary {
    pub ok: bool,
    /// Derived rows; `null` when nothing was compared, like the next fields.
    pub rows: Option<u64>,
    /// Committed row changes of the whole run.
    pub changes: u64,
    pub differences: Option<u64>,
    pub difference_kinds: Option<Differences>,
    /// From the answer to COMMIT until the row was seen in the derived table.
    pub lag_ms_p50: f64,
    pub lag_ms_p99: f64,
    pub lag_ms_max: f64,
    /// The same from the moment at which the probe's schedule wanted the change.
    pub lag_from_schedule_ms_p99: f64,
    pub probes: u64,
    pub probes_unseen: u64,
    /// Seconds of workload at the given rate.
    pub seconds: f64,
    pub seed: u64,
    /// Row changes a second: asked for (0 = as fast as possible), and committed.
    pub rate: u32,
    pub changes_per_second: f64,
    pub rule: String,
    pub hash: String,
    pub layout: String,
    pub source_users: Option<u64>,
    pub doubled_source_users: Option<u64>,
    pub days_filled: Option<u64>,
    pub rows_by_database: BTreeMap<String, u64>,
    pub drain_seconds: Option<f64>,
    /// From the start of this program.
    pub stack_ready_seconds: f64,
    pub first_row_seconds: f64,
    /// The most memory that the daemon has had in RAM.
    pub daemon_resident_bytes: u64,
    /// How often somebody killed the daemon and the demo started it again.
    pub daemon_restarts: u64,
    pub kinds: WorkloadReport,
    pub problems: Vec<String>,
    pub examples: Vec<Example>,
}

impl Summary {
    pub fn new(arguments: &Arguments, measured: Measured, compared: Option<(Drained, Comparison)>) -> Self {
        let mut problems = measured.problems;
        let lag = measured.lag;
        if arguments.verify {
            let absent = measured.total.absent_kinds();
            if !absent.is_empty() {
                problems.push(format!("the workload made no {}", absent.join(", no ")));
            }
            if lag.from_commit.probes == 0 || lag.unseen > 0 {
                problems.push(format!("{} of {} probes were never seen", lag.unseen, lag.from_commit.probes));
            }
            match &compared {
                None => problems.push("nothing was compared".to_owned()),
                Some((drained, comparison)) => {
                    if !drained.is_complete() {
                        problems.push(format!("not drained: {}", drained.behind.join("; ")));
                    }
                    problems.extend(comparison.problems());
                }
            }
        }
        let (drained, comparison) = compared.unzip();
        let comparison = comparison.as_ref();
        Self {
            ok: problems.is_empty(),
            rows: comparison.map(|comparison| comparison.derived_rows),
            changes: measured.total.changes,
            differences: comparison.map(|comparison| comparison.differences.total()),
            difference_kinds: comparison.map(|comparison| comparison.differences),
            lag_ms_p50: lag.from_commit.p50_ms,
            lag_ms_p99: lag.from_commit.p99_ms,
            lag_ms_max: lag.from_commit.max_ms,
            lag_from_schedule_ms_p99: lag.from_schedule.p99_ms,
            probes: lag.from_commit.probes,
            probes_unseen: lag.unseen,
            seconds: round(measured.paced_seconds),
            seed: measured.seed,
            rate: arguments.rate,
            changes_per_second: round(measured.paced.changes as f64 / measured.paced_seconds.max(0.001)),
            rule: anabranch_demo::daemon::spread_name(arguments.spread()).to_owned(),
            hash: anabranch_demo::daemon::hash_name(arguments.name_hash()).to_owned(),
            layout: arguments.layout_name().to_owned(),
            source_users: comparison.map(|comparison| comparison.source_users),
            doubled_source_users: comparison.map(|comparison| comparison.doubled_source_users),
            days_filled: comparison.map(|comparison| comparison.days_filled),
            rows_by_database: comparison.map(|c| c.rows_by_database.clone()).unwrap_or_default(),
            drain_seconds: drained.map(|drained| round(drained.seconds)),
            stack_ready_seconds: round(measured.stack_ready_seconds),
            first_row_seconds: round(measured.first_row_seconds),
            daemon_resident_bytes: measured.daemon_resident_bytes,
            daemon_restarts: measured.daemon_restarts,
            kinds: measured.total,
            problems,
            examples: comparison.map(|comparison| comparison.examples.clone()).unwrap_or_default(),
        }
    }

    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers and strings are always JSON")
    }

    /// For people, on stderr.
    pub fn text(&self) -> String {
        let mut lines = vec![format!(
            "{} changes committed, {:.0} a second during {:.0} s; lag p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms",
            self.changes,
            self.changes_per_second,
            self.seconds,
            self.lag_ms_p50,
            self.lag_ms_p99,
            self.lag_ms_max
        )];
        if let (Some(rows), Some(differences)) = (self.rows, self.differences) {
            let users = self.source_users.unwrap_or(0);
            lines.push(format!("{users} users, {rows} derived rows, {differences} differences"));
        }
        let megabytes = self.daemon_resident_bytes as f64 / 1e6;
        lines.push(format!(
            "daemon: {megabytes:.0} MB at most, first row after {:.1} s",
            self.first_row_seconds
        ));
        lines.extend(self.problems.iter().map(|problem| format!("FAILED: {problem}")));
        lines.join("\n")
    }
}

fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// A run in which every needed kind was counted once.
    fn every_kind() -> WorkloadReport {
        let absent = WorkloadReport::default().absent_kinds();
        let counts: BTreeMap<&str, u64> = absent.into_iter().map(|kind| (kind, 1)).collect();
        let mut all = serde_json::to_value(WorkloadReport::default()).unwrap();
        for (kind, count) in counts {
            all[kind] = count.into();
        }
        serde_json::from_value(all).unwrap()
    }

    fn equal_and_filled() -> Comparison {
        Comparison {
            claims: 9,
            derived_rows: 9,
            days_filled: 366,
            rows_by_database: BTreeMap::from([("birthday_00".to_owned(), 9)]),
            ..Comparison::default()
        }
    }

    fn problems(measured: Measured, drained: Drained, comparison: Comparison) -> Vec<String> {
        let arguments = Arguments::parse_from(["demo", "--verify"]);
        let summary = Summary::new(&arguments, measured, Some((drained, comparison)));
        assert_eq!(summary.ok, summary.problems.is_empty());
        assert!(!summary.json().contains('\n'));
        summary.problems
    }

    fn good() -> Measured {
        let mut measured = Measured { total: every_kind(), ..Measured::default() };
        measured.lag.from_commit.probes = 1;
        measured
    }

    #[test]
    fn a_run_with_everything_passes_and_each_lack_fails_it() {
        assert_eq!(problems(good(), Drained::default(), equal_and_filled()), Vec::<String>::new());

        for kind in WorkloadReport::default().absent_kinds() {
            let mut total = serde_json::to_value(every_kind()).unwrap();
            total[kind] = 0.into();
            let measured = Measured { total: serde_json::from_value(total).unwrap(), ..good() };
            let found = problems(measured, Drained::default(), equal_and_filled());
            assert!(found.len() == 1 && found[0].contains(kind), "{kind}: {found:?}");
        }

        let mut unseen = good();
        unseen.lag.unseen = 1;
        assert_eq!(problems(unseen, Drained::default(), equal_and_filled()).len(), 1);
        let behind = Drained { behind: vec!["source-a".to_owned()], seconds: 1.0 };
        assert_eq!(problems(good(), behind, equal_and_filled()).len(), 1);
        let mut different = equal_and_filled();
        different.differences.orphan = 1;
        assert_eq!(problems(good(), Drained::default(), different).len(), 1);
        let mut empty = equal_and_filled();
        empty.rows_by_database.insert("birthday_01".to_owned(), 0);
        assert_eq!(problems(good(), Drained::default(), empty).len(), 1);
        let ended = Measured { problems: vec!["the daemon ended".to_owned()], ..good() };
        assert_eq!(problems(ended, Drained::default(), equal_and_filled()).len(), 1);
    }

    #[test]
    fn a_verification_that_saw_nothing_fails() {
        let arguments = Arguments::parse_from(["demo", "--verify"]);
        assert!(!Summary::new(&arguments, Measured::default(), None).ok);
        assert!(problems(Measured::default(), Drained::default(), Comparison::default()).len() >= 3);
    }
}
