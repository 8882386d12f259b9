//! What a reconciliation has read, found and done: for people, programs and the history.
//!
//! Keys do not appear: a key is told by a hash that only who knows the installation's secret can make, the same every
//! reconciliation, so that a row which is wrong again is noticed.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::foreign::{self, Foreign};
use super::placement::Placement;
use super::recheck::Verdict;
use super::shown::VisibleTables;
use super::unproven::Unproven;
use crate::config::reconcile::Mode;
use crate::lookup::AuditPlace;
use crate::records::Outcome;

/// Drifted source rows that a report lists one by one; it goes through a message of 1 MB on its way.
pub const LISTED_MAX: usize = 1_000;
const REASONS_MAX: usize = 100;

/// One source row whose derived rows were wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drifted {
    pub source: String,
    /// The source table: `database.table`.
    pub table: String,
    pub verdict: Verdict,
    /// 16 hexadecimal digits: see the module.
    pub key_hash: String,
}

/// What a reconciliation found in the stores of one projection, or in one cache.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreReport {
    /// The projection or cache.
    pub store: String,
    /// Source tables read, and their rows.
    pub tables: u64,
    pub rows_source: u64,
    /// Derived rows that the source rows make, and those that stand.
    pub rows_expected: u64,
    pub rows_derived: u64,
    /// Source rows that were looked at one by one.
    pub candidates: u64,
    pub verdicts: BTreeMap<Verdict, u64>,
    /// Source rows whose lanes were asked to read them anew, and those that were right afterwards.
    pub repaired: u64,
    pub confirmed: u64,
    /// Source rows that are wrong still.
    pub left: u64,
    /// Found the reconciliation before too.
    pub again: u64,
    pub drift: Vec<Drifted>,
    /// There was more drift than is listed.
    pub is_drift_cut: bool,
    /// Derived rows that belong to no table of a source, and the first of them.
    #[serde(default)]
    pub foreign_rows: u64,
    #[serde(default)]
    pub foreign: Vec<Foreign>,
    /// More differs than may be repaired without being asked.
    pub is_gate_closed: bool,
    /// Where source rows stand, seen once for each kind of rows.
    pub placement: Option<Placement>,
    /// What could not be read or decided.
    pub incomplete: Vec<String>,
    /// The source tables of which nothing is said, or not of all rows.
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

    pub fn of(&self, verdict: Verdict) -> u64 {
        self.verdicts.get(&verdict).copied().unwrap_or_default()
    }

    /// Source rows whose derived rows were wrong.
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

    /// So many more rows belong to no table of a source, and these are among them; the first of all are kept.
    pub fn add_foreign(&mut self, rows: u64, listed: impl Iterator<Item = Foreign>) {
        self.foreign_rows += rows;
        self.foreign.extend(listed);
        self.foreign.sort();
        self.foreign.truncate(foreign::LISTED_MAX);
    }

    /// So many source rows were repaired, and this is how those stand that could be read back. Only what is seen wrong
    /// is left; what changed at each look was not decided.
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

    /// Gives every list one order: chance decides in which one tables are read.
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
        // What says that reasons are left out stays after them.
        let reasons = incomplete.len().min(REASONS_MAX);
        incomplete[..reasons].sort();
    }

    /// Each reason once, and not endlessly many.
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

    /// Never clean unless everything was read and decided.
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

/// The whole reconciliation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReconciliationReport {
    /// Unique, and later ones are greater.
    pub id: String,
    pub verdict: Outcome,
    /// Milliseconds since the Unix epoch.
    pub begun_at_ms: u64,
    pub ended_at_ms: u64,
    pub mode: Mode,
    pub stores: Vec<StoreReport>,
    /// What the next reconciliation expects to be shown.
    #[serde(default)]
    pub tables: VisibleTables,
    /// Every store was asked for, and treated as configured: later reconciliations, their schedule and the metrics go
    /// by it.
    #[serde(default = "yes")]
    pub is_whole: bool,
    /// Where the audit of a cache goes on the next time, by the name of its store.
    #[serde(default)]
    pub caches: BTreeMap<String, AuditPlace>,
}

/// Reconciliations were all taken for whole ones before they said it.
fn yes() -> bool {
    true
}

/// Counts what the reconciliation before found too: a repair that does not last is a defect somewhere.
pub fn count_again(store: &mut StoreReport, last: &ReconciliationReport) {
    let Some(before) = last.stores.iter().find(|before| before.store == store.store) else { return };
    let known: BTreeSet<&str> = before.drift.iter().map(|drifted| &*drifted.key_hash).collect();
    store.again = store.drift.iter().filter(|drifted| known.contains(&*drifted.key_hash)).count() as u64;
}

/// The worst of all; a reconciliation of nothing has read nothing.
pub fn worst<'s>(stores: impl IntoIterator<Item = &'s StoreReport>) -> Outcome {
    stores.into_iter().map(StoreReport::outcome).max().unwrap_or(Outcome::Incomplete)
}

#[cfg(test)]
mod tests {
    use super::super::placement::Double;
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
    fn lists_have_one_order_whatever_was_read_first() {
        let drifted = |source: &str, table: &str, verdict, key_hash: &str| Drifted {
            source: source.to_owned(),
            table: table.to_owned(),
            verdict,
            key_hash: key_hash.to_owned(),
        };
        let double = |key_hash: &str, tables: [&str; 2]| Double {
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
        let report = |drift: &[Drifted], doubles: &[Double], reasons: &[&str]| {
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
    fn reasons_are_told_once_and_not_endlessly() {
        let mut report = StoreReport::new("birthday");
        (0..1000).for_each(|number| report.set_incomplete(format!("{}", number % 500)));
        assert_eq!(report.incomplete.len(), REASONS_MAX + 1);
    }
}
