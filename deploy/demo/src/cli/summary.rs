//! The result of a run as one JSON line for scripts and a few lines for people.

use std::collections::BTreeMap;

use anabranch_demo::drift::Judgement;
use anabranch_demo::verify::{Comparison, Differences, Drained, Example, Layer, Verification};
use anabranch_demo::{CouponReport, LagReport, LagSummary, WorkloadReport};
use anabranch_schemas::change::Entity;
use serde::Serialize;

use super::arguments::Arguments;
use super::stall::Phase;

/// Measurements of a run before the comparison.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    pub seed: u64,
    /// Counts of each whole workload, the initial rows and the giant transactions included.
    pub totals: Vec<(Entity, WorkloadReport)>,
    /// Changes of the part at the given rate, during which lag was measured.
    pub paced_changes: u64,
    pub paced_seconds: f64,
    /// Lags by store; the first store's must be complete.
    pub lags: Vec<(&'static str, LagReport)>,
    pub stall: Vec<Phase>,
    pub drift: Option<Judgement>,
    pub coupons: Option<CouponReport>,
    pub stack_ready_seconds: f64,
    pub first_row_seconds: f64,
    pub daemon_resident_bytes: u64,
    pub daemon_restarts: u64,
    pub problems: Vec<String>,
}

/// The comparison of both sides while they do not change.
#[derive(Debug)]
pub struct Compared {
    pub drained: Drained,
    pub layers: Vec<(Verification, Comparison)>,
}

/// Result of comparing one layer.
#[derive(Debug, Serialize)]
pub struct LayerSummary {
    pub source_rows: u64,
    pub claims: u64,
    pub rows: u64,
    /// Noun for its rows: rows, keys, documents.
    pub noun: &'static str,
    pub differences: u64,
    pub difference_kinds: Differences,
    /// Payment documents in another table than their digits name; `None` in other layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misplaced: Option<u64>,
}

/// The JSON line. Fields are only ever added, never removed.
#[derive(Debug, Serialize)]
pub struct Summary {
    pub ok: bool,
    /// Derived rows of all layers; `null` when nothing was compared, like the next fields.
    pub rows: Option<u64>,
    /// Committed row changes of the whole run.
    pub changes: u64,
    pub differences: Option<u64>,
    pub difference_kinds: Option<Differences>,
    /// Lag from the answer to COMMIT until the row was seen in the derived table.
    pub lag_ms_p50: f64,
    pub lag_ms_p99: f64,
    pub lag_ms_max: f64,
    /// Lag from the moment at which the probe's schedule wanted the change.
    pub lag_from_schedule_ms_p99: f64,
    pub probes: u64,
    pub probes_unseen: u64,
    /// Lags by store; the fields above are those of birthdays.
    pub lags: BTreeMap<&'static str, LagReport>,
    /// Lags of a run with --stall.
    pub stall: Vec<Phase>,
    /// Judgement of a run with --drift.
    pub drift: Option<Judgement>,
    /// Report of the day of a run with --coupons.
    pub coupons: Option<CouponReport>,
    /// Seconds of workload at the given rate.
    pub seconds: f64,
    pub seed: u64,
    /// Requested row changes a second (0 = as fast as possible); the next field has the committed ones.
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
    /// Seconds from the start of this program, as in the next field.
    pub stack_ready_seconds: f64,
    pub first_row_seconds: f64,
    /// Most bytes of the daemon in RAM.
    pub daemon_resident_bytes: u64,
    /// Number of times that the daemon was killed and the demo restarted it.
    pub daemon_restarts: u64,
    /// Kinds of changes of the users' workload.
    pub kinds: WorkloadReport,
    /// Kinds of changes of the devices' workload.
    pub serial_kinds: WorkloadReport,
    /// Kinds of changes of the payment documents' workload; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flux_kinds: Option<WorkloadReport>,
    /// Layers by name; empty when nothing was compared.
    pub layers: BTreeMap<String, LayerSummary>,
    pub problems: Vec<String>,
    pub examples: Vec<Example>,
}

impl Measured {
    fn lag(&self) -> LagReport {
        self.lags.first().map(|(_, report)| *report).unwrap_or_default()
    }

    fn total(&self, entity: Entity) -> WorkloadReport {
        let own = self.totals.iter().find(|(own, _)| *own == entity);
        own.map(|(_, report)| report.clone()).unwrap_or_default()
    }
}

/// Returns the reasons why a verified run fails.
fn problems(measured: &Measured, compared: Option<&Compared>) -> Vec<String> {
    let mut problems = Vec::new();
    for (entity, total) in &measured.totals {
        let absent = total.absent_kinds(*entity);
        if !absent.is_empty() {
            problems.push(format!("the {} workload made no {}", entity.name(), absent.join(", no ")));
        }
    }
    let lag = measured.lag();
    if lag.from_commit.probes == 0 || lag.unseen > 0 {
        problems.push(format!("{} of {} probes were never seen", lag.unseen, lag.from_commit.probes));
    }
    let Some(compared) = compared.filter(|compared| !compared.layers.is_empty()) else {
        problems.push("nothing was compared".to_owned());
        return problems;
    };
    if !compared.drained.is_complete() {
        problems.push(format!("not drained: {}", compared.drained.lagging.join("; ")));
    }
    for (audit, comparison) in &compared.layers {
        let named = |problem| format!("{}: {problem}", audit.name());
        problems.extend(comparison.problems().into_iter().map(named));
        let planted = measured.drift.as_ref().map_or(0, |drift| drift.kinds.misplaced);
        let found = comparison.misplaced_source_rows;
        if matches!(audit.layer, Layer::Relations(_)) && found != planted {
            let text = format!("{found} documents are in a table of other digits, {planted} were put there");
            problems.push(named(text));
        }
    }
    problems
}

/// Returns the reasons why a run with --drift fails.
fn drift_problems(wanted: u64, drift: Option<&Judgement>) -> Vec<String> {
    let planted = drift.map_or(0, |judgement| judgement.planted);
    let few = (planted != wanted).then(|| format!("{planted} of {wanted} drifts were planted"));
    let found = drift.into_iter().flat_map(|judgement| judgement.problems.clone());
    few.into_iter().chain(found).collect()
}

impl Summary {
    pub fn new(arguments: &Arguments, mut measured: Measured, compared: Option<Compared>) -> Self {
        let mut all_problems = std::mem::take(&mut measured.problems);
        if arguments.drift > 0 {
            all_problems.extend(drift_problems(arguments.drift, measured.drift.as_ref()));
        }
        if arguments.coupons {
            let report = measured.coupons.as_ref();
            all_problems
                .extend(report.map_or(vec!["no coupon day was run".to_owned()], CouponReport::problems));
        }
        if arguments.verify {
            all_problems.extend(problems(&measured, compared.as_ref()));
        }
        let (lag, changes) = (measured.lag(), measured.totals.iter().map(|(_, total)| total.changes).sum());
        let (kinds, serial_kinds) = (measured.total(Entity::User), measured.total(Entity::SerialCode));
        let flux_kinds = measured.totals.iter().find(|(entity, _)| *entity == Entity::Flux);
        let flux_kinds = flux_kinds.map(|(_, total)| total.clone());
        let drain_seconds = compared.as_ref().map(|compared| round(compared.drained.seconds));
        let layers = compared.map(|compared| compared.layers).unwrap_or_default();
        let users = layers.iter().find(|(audit, _)| audit.topology.entity == Entity::User);
        let users = users.map(|(_, comparison)| comparison.clone());
        let sum = Comparison::sum(layers.iter().map(|(_, comparison)| comparison));
        let is_compared = !layers.is_empty();
        Self {
            ok: all_problems.is_empty(),
            rows: is_compared.then_some(sum.derived_rows),
            changes,
            differences: is_compared.then(|| sum.differences.total()),
            difference_kinds: is_compared.then_some(sum.differences),
            lag_ms_p50: lag.from_commit.p50_ms,
            lag_ms_p99: lag.from_commit.p99_ms,
            lag_ms_max: lag.from_commit.max_ms,
            lag_from_schedule_ms_p99: lag.from_schedule.p99_ms,
            probes: lag.from_commit.probes,
            probes_unseen: lag.unseen,
            lags: measured.lags.iter().copied().collect(),
            stall: measured.stall,
            drift: measured.drift,
            coupons: measured.coupons,
            seconds: round(measured.paced_seconds),
            seed: measured.seed,
            rate: arguments.rate(),
            changes_per_second: round(measured.paced_changes as f64 / measured.paced_seconds.max(0.001)),
            rule: anabranch_demo::daemon::spread_name(arguments.spread()).to_owned(),
            hash: anabranch_demo::daemon::hash_name(arguments.name_hash()).to_owned(),
            layout: arguments.layout_name().to_owned(),
            source_users: users.as_ref().map(|users| users.source_rows),
            doubled_source_users: users.as_ref().map(|users| users.doubled_source_rows),
            days_filled: users.as_ref().map(|users| users.tables_filled),
            rows_by_database: sum.rows_by_database,
            drain_seconds,
            stack_ready_seconds: round(measured.stack_ready_seconds),
            first_row_seconds: round(measured.first_row_seconds),
            daemon_resident_bytes: measured.daemon_resident_bytes,
            daemon_restarts: measured.daemon_restarts,
            kinds,
            serial_kinds,
            flux_kinds,
            layers: layers.iter().map(|(audit, comparison)| LayerSummary::of(audit, comparison)).collect(),
            problems: all_problems,
            examples: sum.examples,
        }
    }

    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers and strings are always JSON")
    }

    /// Returns the summary for people, which goes to stderr.
    pub fn text(&self) -> String {
        let mut lines = vec![format!(
            "{} changes committed, {:.0} a second during {:.0} s",
            self.changes, self.changes_per_second, self.seconds
        )];
        for (store, lag) in &self.lags {
            let LagSummary { p50_ms, p99_ms, max_ms, .. } = lag.from_commit;
            lines.push(format!("{store}: lag p50 {p50_ms:.1} ms, p99 {p99_ms:.1} ms, max {max_ms:.1} ms"));
        }
        if !self.stall.is_empty() {
            lines.push(Phase::table(&self.stall));
        }
        for (layer, found) in &self.layers {
            let LayerSummary { source_rows, claims, rows, noun, differences, misplaced, .. } = found;
            lines.push(format!(
                "{layer}: {rows} {noun} compared with {claims} claims of {source_rows} source rows, \
                 {differences} differences"
            ));
            let misplaced_text =
                |misplaced| format!("{layer}: {misplaced} documents in a table of other digits");
            lines.extend(misplaced.map(misplaced_text));
        }
        if let Some(Judgement { planted, found, repaired, false_repairs, seconds, .. }) = &self.drift {
            lines.push(format!(
                "drift: {planted} keys planted, {found} found, {repaired} repaired, {false_repairs} repaired for \
                 nothing; the reconciliation took {seconds:.1} s"
            ));
        }
        lines.extend(self.coupons.as_ref().map(CouponReport::text));
        let megabytes = self.daemon_resident_bytes as f64 / 1e6;
        lines.push(format!(
            "daemon: {megabytes:.0} MB at most, first row after {:.1} s",
            self.first_row_seconds
        ));
        lines.extend(self.problems.iter().map(|problem| format!("FAILED: {problem}")));
        lines.join("\n")
    }
}

impl LayerSummary {
    fn of(audit: &Verification, comparison: &Comparison) -> (String, Self) {
        let found = Self {
            source_rows: comparison.source_rows,
            claims: comparison.claims,
            rows: comparison.derived_rows,
            noun: audit.noun(),
            differences: comparison.differences.total(),
            difference_kinds: comparison.differences,
            misplaced: matches!(audit.layer, Layer::Relations(_)).then_some(comparison.misplaced_source_rows),
        };
        (audit.name().to_owned(), found)
    }
}

fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use anabranch_demo::Topology;
    use anabranch_demo::verify::{BirthdayLayer, DerivedLayout, Layer, MappingLayer};
    use anabranch_schemas::celebration::Calendar;
    use clap::Parser;

    use super::*;

    /// Makes the report of a workload that counted every needed kind once.
    fn every_kind(entity: Entity) -> WorkloadReport {
        let mut all = serde_json::to_value(WorkloadReport::default()).unwrap();
        for kind in WorkloadReport::default().absent_kinds(entity) {
            all[kind] = 1.into();
        }
        serde_json::from_value(all).unwrap()
    }

    fn equal_and_filled() -> Comparison {
        Comparison {
            claims: 9,
            derived_rows: 9,
            tables_filled: 8,
            tables_filled_min: 8,
            rows_by_database: BTreeMap::from([("birthday_00".to_owned(), 9)]),
            ..Comparison::default()
        }
    }

    fn audit(layer: Layer) -> Verification {
        Verification { topology: Topology::serials(Vec::new(), 8), layer }
    }

    fn layers(birthday: Comparison, mapping: Comparison) -> Vec<(Verification, Comparison)> {
        let layout = DerivedLayout::ByDay;
        let birthdays =
            BirthdayLayer { calendar: Calendar::Solar, layout, databases: 1, targets: Vec::new() };
        let mappings = MappingLayer { tables: 8, targets: Vec::new() };
        vec![(audit(Layer::Birthday(birthdays)), birthday), (audit(Layer::Mapping(mappings)), mapping)]
    }

    fn problems(measured: Measured, drained: Drained, birthday: Comparison) -> Vec<String> {
        problems_of(measured, drained, birthday, equal_and_filled())
    }

    fn problems_of(
        measured: Measured,
        drained: Drained,
        birthday: Comparison,
        mapping: Comparison,
    ) -> Vec<String> {
        let arguments = Arguments::parse_from(["demo", "--verify"]);
        let compared = Compared { drained, layers: layers(birthday, mapping) };
        let summary = Summary::new(&arguments, measured, Some(compared));
        assert_eq!(summary.ok, summary.problems.is_empty());
        assert!(!summary.json().contains('\n'));
        summary.problems
    }

    fn good() -> Measured {
        let totals = Entity::ALL.map(|entity| (entity, every_kind(entity))).to_vec();
        let mut lag = LagReport::default();
        lag.from_commit.probes = 1;
        Measured { totals, lags: vec![("birthday", lag)], ..Measured::default() }
    }

    #[test]
    fn a_run_with_everything_passes_and_each_lack_fails_it() {
        assert_eq!(problems(good(), Drained::default(), equal_and_filled()), Vec::<String>::new());

        for (number, entity) in Entity::ALL.into_iter().enumerate() {
            for kind in WorkloadReport::default().absent_kinds(entity) {
                let mut total = serde_json::to_value(every_kind(entity)).unwrap();
                total[kind] = 0.into();
                let mut measured = good();
                measured.totals[number].1 = serde_json::from_value(total).unwrap();
                let found = problems(measured, Drained::default(), equal_and_filled());
                assert!(found.len() == 1 && found[0].contains(kind), "{kind}: {found:?}");
            }
        }

        let mut unseen = good();
        unseen.lags[0].1.unseen = 1;
        assert_eq!(problems(unseen, Drained::default(), equal_and_filled()).len(), 1);
        let lagging = Drained { lagging: vec!["source-a".to_owned()], seconds: 1.0 };
        assert_eq!(problems(good(), lagging, equal_and_filled()).len(), 1);
        let mut different = equal_and_filled();
        different.differences.orphan = 1;
        assert_eq!(problems(good(), Drained::default(), different.clone()).len(), 1);
        let found = problems_of(good(), Drained::default(), equal_and_filled(), different);
        assert!(found.len() == 1 && found[0].starts_with("mapping: "), "{found:?}");
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
