//! The report of a reconciliation, with its counts, findings and repairs, for people, programs and the history.
//!
//! The report names a key by a hash that only a holder of the installation's secret can make. The hash is the same in
//! each reconciliation, so a row that is wrong again is recognised. Only payment documents that are not where their
//! identifiers say are listed with these identifiers.

use std::collections::{BTreeMap, BTreeSet};

use anabranch_schemas::beginning::GapRecord;
use serde::{Deserialize, Serialize};

use super::foreign::{self, Foreign};
use super::placement::Placement;
use super::recheck::Verdict;
use super::unproven::Unproven;
use super::visible_tables::{KnownTables, VisibleTables};
use crate::config::reconcile::Mode;
use crate::records::{AuditCursor, Outcome};

/// Drifted source rows that a report lists one by one, at most: the report travels in a message of 1 MB.
pub const LISTED_MAX: usize = 1_000;
const REASONS_MAX: usize = 100;

/// One source row whose derived rows were wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drifted {
    pub source: String,
    /// The source table: `database.table`.
    pub table: String,
    pub verdict: Verdict,
    /// Hash of the row's key in 16 hexadecimal digits, as the head of this module describes it.
    pub key_hash: String,
}

/// The findings of a reconciliation in the stores of one projection, or in one cache.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreReport {
    /// Name of the projection or cache.
    pub store: String,
    /// Source tables that were read; `rows_source` counts their rows.
    pub tables: u64,
    pub rows_source: u64,
    /// The same rows by source; reports of earlier versions lack them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rows_of_sources: BTreeMap<String, u64>,
    /// Derived rows that the source rows make; `rows_derived` counts those that exist.
    pub rows_expected: u64,
    pub rows_derived: u64,
    /// Source rows that were checked one by one.
    pub candidates: u64,
    pub verdicts: BTreeMap<Verdict, u64>,
    /// Source rows that lanes were asked to read again; `confirmed` counts those that were right afterwards.
    pub repaired: u64,
    pub confirmed: u64,
    /// Source rows that are still wrong.
    pub left: u64,
    /// Drifted source rows that the previous reconciliation found too.
    pub again: u64,
    pub drift: Vec<Drifted>,
    /// Whether there was more drift than `drift` lists.
    pub is_drift_cut: bool,
    /// Derived rows that belong to no table of a source; `foreign` holds the first of them.
    #[serde(default)]
    pub foreign_rows: u64,
    #[serde(default)]
    pub foreign: Vec<Foreign>,
    /// Source tables that left by a retention rule and whose derived rows stand; `retired_rows` counts these rows.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retired_tables: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retired_rows: u64,
    /// Whether more differs than may be repaired without the word of a person.
    pub is_gate_closed: bool,
    /// Findings about the placement of source rows; each entity is audited once.
    pub placement: Option<Placement>,
    /// Reasons why something could not be read or decided.
    pub incomplete: Vec<String>,
    /// The source tables that have no verdict, or not for all rows.
    #[serde(default)]
    pub unproven: Unproven,
    pub seconds: f64,
}

impl StoreReport {
    pub fn new(store: &str) -> Self {
        Self { store: store.to_owned(), ..Self::default() }
    }

    pub fn count(&mut self, verdict: Verdict, rows: u64) {
        if rows > 0 {
            *self.verdicts.entry(verdict).or_default() += rows;
        }
    }

    /// Counts source rows that were read, by source.
    pub fn count_source_rows(&mut self, rows_of_sources: BTreeMap<String, u64>) {
        for (source, rows) in rows_of_sources {
            self.rows_source += rows;
            *self.rows_of_sources.entry(source).or_default() += rows;
        }
    }

    /// Returns the number of rows of a source; `None` unless the store was compared with all rows of all sources, and
    /// was right in the end. A source that lost rows before is compared with its derived rows, and fails then.
    pub fn proven_rows_of(&self, source: &str) -> Option<u64> {
        let is_proven = self.outcome() != Outcome::Failed && self.unproven.is_empty();
        // A reconciliation that an earlier version began has counted a part of the rows.
        let is_counted = self.rows_of_sources.values().sum::<u64>() == self.rows_source;
        self.rows_of_sources.get(source).copied().filter(|_| is_proven && is_counted)
    }

    pub fn of(&self, verdict: Verdict) -> u64 {
        self.verdicts.get(&verdict).copied().unwrap_or_default()
    }

    /// Returns the number of source rows whose derived rows were wrong.
    pub fn drifted(&self) -> u64 {
        self.verdicts.iter().filter(|(verdict, _)| verdict.is_drift()).map(|(_, rows)| rows).sum()
    }

    pub fn list(&mut self, drifted: Drifted) {
        if self.drift.len() < LISTED_MAX {
            self.drift.push(drifted);
        } else {
            self.is_drift_cut = true;
        }
    }

    /// Adds `rows` foreign rows, `listed` among them; the report keeps the first of all.
    pub fn add_foreign(&mut self, rows: u64, listed: impl Iterator<Item = Foreign>) {
        self.foreign_rows += rows;
        self.foreign.extend(listed);
        self.foreign.sort();
        self.foreign.truncate(foreign::LISTED_MAX);
    }

    /// Counts `repaired` source rows, with the verdicts of those that could be read back. A row that is seen wrong
    /// counts as left; a row that changed in each round is undecided and makes the report incomplete.
    pub fn read_back(&mut self, repaired: u64, verdicts: impl Iterator<Item = Verdict>) {
        let (mut right, mut wrong) = (0, 0);
        for verdict in verdicts {
            right += u64::from(verdict == Verdict::InFlight);
            wrong += u64::from(verdict.is_drift());
        }
        self.confirmed += right;
        self.left += wrong;
        let undecided = repaired - right - wrong;
        if undecided > 0 {
            self.set_incomplete(format!(
                "{undecided} repaired rows changed meanwhile, or could not be read back"
            ));
        }
    }

    /// Sorts every list, since tables are read in an order of chance.
    pub fn put_in_order(&mut self) {
        let Self { drift, placement, incomplete, .. } = self;
        drift.sort_by(|one, two| {
            let place = |drifted: &Drifted| (drifted.verdict, drifted.source.clone(), drifted.table.clone());
            place(one).cmp(&place(two)).then_with(|| one.key_hash.cmp(&two.key_hash))
        });
        if let Some(placement) = placement {
            placement
                .doubles
                .sort_by(|one, two| (&one.tables, &one.key_hash).cmp(&(&two.tables, &two.key_hash)));
        }
        // The entry that says that reasons are left out stays after them.
        let reasons = incomplete.len().min(REASONS_MAX);
        incomplete[..reasons].sort();
    }

    /// Adds a reason why the reconciliation is incomplete: each once, and at most `REASONS_MAX`.
    pub fn set_incomplete(&mut self, why: impl Into<String>) {
        let why = why.into();
        if self.incomplete.contains(&why) {
            return;
        }
        match self.incomplete.len() {
            0..REASONS_MAX => self.incomplete.push(why),
            REASONS_MAX => self.incomplete.push("further reasons are left out".to_owned()),
            _ => {}
        }
    }

    /// Returns the outcome; it is clean only if everything was read and decided.
    pub fn outcome(&self) -> Outcome {
        let undecided = self.of(Verdict::Hot) + self.of(Verdict::Unreadable);
        match () {
            () if self.left > 0 || self.is_gate_closed => Outcome::Failed,
            () if undecided > 0 || self.foreign_rows > 0 || !self.incomplete.is_empty() => {
                Outcome::Incomplete
            }
            () if self.drifted() > 0 => Outcome::Repaired,
            () => Outcome::Clean,
        }
    }
}

/// A gap in the reading of a source that a person asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedGap {
    pub source: String,
    /// Whether the report before this one lacks it.
    pub is_new: bool,
    pub record: GapRecord,
}

/// The report of a whole run, over all of its stores.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReconciliationReport {
    /// A unique id; later ones are greater.
    pub id: String,
    pub verdict: Outcome,
    /// Milliseconds since the Unix epoch.
    pub begun_at_ms: u64,
    pub ended_at_ms: u64,
    pub mode: Mode,
    pub stores: Vec<StoreReport>,
    /// The tables that the next reconciliation expects sources to show.
    #[serde(default)]
    pub tables: VisibleTables,
    /// Tables that sources have and that no pattern captures any more.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub uncaptured: VisibleTables,
    /// Whether every store was included and treated as configured. Later reconciliations, their schedule and the
    /// metrics rely on whole ones only.
    #[serde(default = "yes")]
    pub is_whole: bool,
    /// The point where the next audit of a cache resumes, by the name of its store.
    #[serde(default)]
    pub caches: BTreeMap<String, AuditCursor>,
    /// Command that a person gave; `None` = the schedule alone began it, or an older version wrote the report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Who asked for it: `user@host` of each person, and the schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_by: Option<String>,
    /// Gaps in the reading of sources, the new ones first; registers keep the newest of each source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<ReportedGap>,
}

impl ReconciliationReport {
    /// Returns the tables that the reconciliation knew.
    pub fn into_known_tables(self) -> KnownTables {
        KnownTables { shown: self.tables, uncaptured: self.uncaptured }
    }
}

/// A store without retired tables is written as before there were any.
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A report of a version without this field counts as whole.
fn yes() -> bool {
    true
}

/// Counts the drift that the previous reconciliation found too: a repair that does not last is a defect somewhere.
pub fn count_again(store: &mut StoreReport, last: &ReconciliationReport) {
    let Some(before) = last.stores.iter().find(|before| before.store == store.store) else { return };
    let known: BTreeSet<&str> = before.drift.iter().map(|drifted| &*drifted.key_hash).collect();
    store.again = store.drift.iter().filter(|drifted| known.contains(&*drifted.key_hash)).count() as u64;
}

/// Returns the worst outcome; a reconciliation without stores is incomplete, as it has read nothing.
pub fn worst<'s>(stores: impl IntoIterator<Item = &'s StoreReport>) -> Outcome {
    stores.into_iter().map(StoreReport::outcome).max().unwrap_or(Outcome::Incomplete)
}

#[cfg(test)]
mod tests {
    use super::super::placement::DoubledKey;
    use super::*;

    #[test]
    fn a_reconciliation_is_clean_only_when_all_was_read_and_nothing_differs() {
        let clean = StoreReport::new("birthday");
        let with = |change: fn(&mut StoreReport)| {
            let mut report = clean.clone();
            change(&mut report);
            report.outcome()
        };
        assert_eq!(clean.outcome(), Outcome::Clean);
        assert_eq!(with(|report| report.count(Verdict::InFlight, 5)), Outcome::Clean);
        assert_eq!(with(|report| report.count(Verdict::Stale, 5)), Outcome::Repaired);
        assert_eq!(with(|report| report.count(Verdict::Hot, 1)), Outcome::Incomplete);
        assert_eq!(with(|report| report.count(Verdict::Unreadable, 1)), Outcome::Incomplete);
        assert_eq!(with(|report| report.set_incomplete("a table")), Outcome::Incomplete);
        assert_eq!(with(|report| report.add_foreign(1, std::iter::empty())), Outcome::Incomplete);
        assert_eq!(with(|report| report.retired_rows = 5), Outcome::Clean);
        assert_eq!(with(|report| report.left = 1), Outcome::Failed);
        assert_eq!(with(|report| report.is_gate_closed = true), Outcome::Failed);
        assert_eq!(worst([]), Outcome::Incomplete);
    }

    #[test]
    fn a_repaired_row_is_left_only_when_it_was_seen_wrong() {
        let after = |verdicts: &[Verdict]| {
            let mut report = StoreReport::new("birthday");
            report.count(Verdict::Missing, 3);
            report.read_back(3, verdicts.iter().copied());
            (report.outcome(), report.confirmed, report.left)
        };
        assert_eq!(after(&[Verdict::InFlight; 3]), (Outcome::Repaired, 3, 0));
        assert_eq!(after(&[Verdict::InFlight, Verdict::InFlight, Verdict::Hot]), (Outcome::Incomplete, 2, 0));
        assert_eq!(after(&[Verdict::InFlight]), (Outcome::Incomplete, 1, 0));
        assert_eq!(after(&[Verdict::InFlight, Verdict::Hot, Verdict::Missing]), (Outcome::Failed, 1, 1));
    }

    #[test]
    fn rows_of_a_source_are_those_of_a_report_that_proves_all() {
        let counted = |change: fn(&mut StoreReport)| {
            let mut report = StoreReport::new("birthday");
            report.count_source_rows([("a".to_owned(), 7), ("b".to_owned(), 0)].into());
            report.count_source_rows([("a".to_owned(), 2)].into());
            change(&mut report);
            (report.proven_rows_of("a"), report.proven_rows_of("b"), report.proven_rows_of("c"))
        };
        let none = (None, None, None);
        assert_eq!(counted(|_| ()), (Some(9), Some(0), None));
        assert_eq!(counted(|report| report.foreign_rows = 1), (Some(9), Some(0), None));
        assert_eq!(counted(|report| report.is_gate_closed = true), none);
        assert_eq!(counted(|report| report.unproven.add_all()), none);
        assert_eq!(counted(|report| report.rows_source += 1), none, "an earlier version counted a part");
    }

    #[test]
    fn lists_have_one_order_whatever_was_read_first() {
        let drifted = |source: &str, table: &str, verdict, key_hash: &str| Drifted {
            source: source.to_owned(),
            table: table.to_owned(),
            verdict,
            key_hash: key_hash.to_owned(),
        };
        let double = |key_hash: &str, tables: [&str; 2]| DoubledKey {
            key_hash: key_hash.to_owned(),
            tables: tables.map(str::to_owned),
        };
        let mut drift = vec![
            drifted("a", "t1", Verdict::Missing, "01"),
            drifted("a", "t1", Verdict::Missing, "02"),
            drifted("b", "t0", Verdict::Missing, "00"),
            drifted("a", "t0", Verdict::Stale, "00"),
        ];
        let mut doubles = vec![double("02", ["t1", "t2"]), double("01", ["t1", "t3"])];
        let report = |drift: &[Drifted], doubles: &[DoubledKey], reasons: &[&str]| {
            let placement = Placement { doubles: doubles.to_vec(), ..Placement::default() };
            let mut report = StoreReport::new("birthday");
            report.drift = drift.to_vec();
            report.placement = Some(placement);
            reasons.iter().for_each(|reason| report.set_incomplete(*reason));
            report.put_in_order();
            report
        };
        let one = report(&drift, &doubles, &["one", "two"]);
        assert_eq!(one.drift, drift);
        drift.reverse();
        doubles.reverse();
        assert_eq!(report(&drift, &doubles, &["two", "one"]), one);
        let mut many = StoreReport::new("birthday");
        (0..=REASONS_MAX).rev().for_each(|number| many.set_incomplete(format!("{number:03}")));
        let last = many.incomplete.last().cloned();
        many.put_in_order();
        assert_eq!((many.incomplete[0].as_str(), many.incomplete.last().cloned()), ("001", last));
    }

    #[test]
    fn a_report_of_a_version_without_orders_is_read_and_written_as_it_was() {
        let before = r#"{"id":"r","verdict":"clean","begun_at_ms":1,"ended_at_ms":2,"mode":"repair","stores":[],"tables":{},"is_whole":true,"caches":{}}"#;
        let report: ReconciliationReport = serde_json::from_str(before).unwrap();
        assert_eq!((&report.command, &report.asked_by), (&None, &None));
        assert_eq!(serde_json::to_string(&report).unwrap(), before);
        let command = Some("reconcile --now --open-gate".to_owned());
        let ordered = ReconciliationReport { command, asked_by: Some("ann@db-1".to_owned()), ..report };
        let written = serde_json::to_string(&ordered).unwrap();
        assert_eq!(serde_json::from_str::<ReconciliationReport>(&written).unwrap(), ordered);
    }

    #[test]
    fn reasons_are_told_once_and_not_endlessly() {
        let mut report = StoreReport::new("birthday");
        (0..1000).for_each(|number| report.set_incomplete(format!("{}", number % 500)));
        assert_eq!(report.incomplete.len(), REASONS_MAX + 1);
    }
}
