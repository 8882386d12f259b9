//! Compares the findings and repairs of a reconciliation with the planted drift.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Planted;
use crate::daemon::Commands;
use crate::error::{DemoError, Result};
use crate::verify::{Layer, Verification};

/// Verdicts that do not count as drift.
const NO_DRIFT: [&str; 3] = ["in_flight", "hot", "unreadable"];
/// The reason under which the placement audit counts documents in the table of another month.
const MISPLACED: &str = "/odd_documents/table_month";

/// The judged fields of the answer of `anabranch reconcile --now --json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Reconciliation {
    pub id: String,
    pub verdict: String,
    pub stores: Vec<Store>,
}

/// One store of a reconciliation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Store {
    /// The projection or the cache.
    pub store: String,
    #[serde(default)]
    pub rows_source: u64,
    #[serde(default)]
    pub rows_derived: u64,
    #[serde(default)]
    pub candidates: u64,
    #[serde(default)]
    pub verdicts: BTreeMap<String, u64>,
    #[serde(default)]
    pub repaired: u64,
    #[serde(default)]
    pub confirmed: u64,
    #[serde(default)]
    pub left: u64,
    #[serde(default)]
    pub incomplete: Vec<String>,
    #[serde(default)]
    pub seconds: f64,
    /// The placement audit of the store's source rows.
    #[serde(default, skip_serializing)]
    pub placement: Option<serde_json::Value>,
}

/// A reconciliation and the drift planted before it, by layer.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Judgement {
    pub planted: u64,
    pub found: u64,
    pub repaired: u64,
    /// Repairs of keys in which no drift was planted.
    pub false_repairs: u64,
    pub seconds: f64,
    pub kinds: Planted,
    pub stores: Vec<Store>,
    pub problems: Vec<String>,
}

impl Store {
    /// Returns the number of keys that were found to be drift.
    pub fn found(&self) -> u64 {
        let is_drift = |(verdict, _): &(&String, &u64)| !NO_DRIFT.contains(&verdict.as_str());
        self.verdicts.iter().filter(is_drift).map(|(_, keys)| keys).sum()
    }

    /// Returns the number of payment documents that the audit found in the table of another month.
    fn misplaced(&self) -> u64 {
        let found = self.placement.as_ref().and_then(|placement| placement.pointer(MISPLACED));
        found.and_then(serde_json::Value::as_u64).unwrap_or(0)
    }
}

impl Reconciliation {
    /// Runs a reconciliation to its end, beside everything else.
    pub async fn run(commands: &Commands) -> Result<Self> {
        let finished = commands.run(&["reconcile", "--now", "--unthrottled", "--json"]).await?;
        let text = finished.stdout.trim();
        serde_json::from_str(text).map_err(|error| DemoError::Program {
            program: "anabranch reconcile".to_owned(),
            status: format!("{}, and no report: {error}", finished.status),
            log: finished.stderr,
        })
    }

    /// Judges whether exactly the planted drift was found and repaired.
    pub fn judge(&self, audits: &[Verification], planted: Planted) -> Judgement {
        let mut judgement = Judgement { planted: planted.total(), ..Judgement::default() };
        let mut problem = |text: String| judgement.problems.push(text);
        let wanted = if planted.total() == 0 { "clean" } else { "repaired" };
        if self.verdict != wanted {
            problem(format!("the reconciliation ended {} and not {wanted}", self.verdict));
        }
        let misplaced = planted.misplaced;
        for audit in audits {
            let (name, planted) = (audit.name(), planted.of(audit.name()));
            let wanted = match &audit.layer {
                Layer::Cache(layer) => format!("cache/{}", layer.server.name),
                _ => name.to_owned(),
            };
            let Some(store) = self.stores.iter().find(|store| store.store == wanted) else {
                problem(format!("{name}: the reconciliation did not look at it"));
                continue;
            };
            let Store { repaired, confirmed, left, incomplete, .. } = store;
            let found = store.found();
            judgement.found += found;
            judgement.repaired += repaired;
            judgement.false_repairs += repaired.saturating_sub(planted);
            if found != planted || *repaired != planted || confirmed != repaired || *left > 0 {
                problem(format!(
                    "{name}: {planted} keys were planted, {found} found, {repaired} repaired, {confirmed} confirmed, \
                     {left} left"
                ));
            }
            incomplete.iter().for_each(|why| problem(format!("{name}: incomplete: {why}")));
            if let Layer::Relations(_) = &audit.layer
                && store.misplaced() != misplaced
            {
                let found = store.misplaced();
                problem(format!(
                    "{name}: {misplaced} documents are in the table of another month, and the audit found {found}"
                ));
            }
        }
        judgement.seconds = self.stores.iter().map(|store| store.seconds).sum();
        judgement.stores.clone_from(&self.stores);
        Judgement { kinds: planted, ..judgement }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Topology;
    use crate::verify::{MappingLayer, RelationLayer};

    fn audits() -> Vec<Verification> {
        let layer = Layer::Mapping(MappingLayer { tables: 8, targets: Vec::new() });
        vec![Verification { topology: Topology::serials(Vec::new(), 8), layer }]
    }

    fn planted(keys: u64) -> Planted {
        let kinds = BTreeMap::from([("missing", keys)]);
        Planted { seed: 1, layers: BTreeMap::from([("mapping", kinds)]), ..Planted::default() }
    }

    fn reconciliation(verdict: &str, found: u64, repaired: u64) -> Reconciliation {
        let verdicts = BTreeMap::from([("missing".to_owned(), found), ("in_flight".to_owned(), 7)]);
        let store = Store {
            store: "mapping".to_owned(),
            verdicts,
            repaired,
            confirmed: repaired,
            ..Store::default()
        };
        Reconciliation { id: "1".to_owned(), verdict: verdict.to_owned(), stores: vec![store] }
    }

    #[test]
    fn a_reconciliation_that_finds_and_repairs_exactly_what_was_planted_has_no_problem() {
        let judged = reconciliation("repaired", 5, 5).judge(&audits(), planted(5));
        assert_eq!((judged.problems, judged.found, judged.false_repairs), (Vec::new(), 5, 0));
        assert_eq!(reconciliation("clean", 0, 0).judge(&audits(), planted(0)).problems, Vec::<String>::new());
    }

    #[test]
    fn what_was_missed_or_repaired_for_nothing_is_one() {
        for (reconciliation, planted_keys, false_repairs) in [
            (reconciliation("clean", 5, 5), 5, 0),
            (reconciliation("repaired", 4, 4), 5, 0),
            (reconciliation("repaired", 5, 4), 5, 0),
            (reconciliation("repaired", 6, 6), 5, 1),
            (Reconciliation { verdict: "repaired".to_owned(), ..Reconciliation::default() }, 5, 0),
        ] {
            let judged = reconciliation.judge(&audits(), planted(planted_keys));
            assert_eq!(
                (judged.problems.len(), judged.false_repairs),
                (1, false_repairs),
                "{reconciliation:?}"
            );
        }
        let mut unread = reconciliation("repaired", 5, 5);
        unread.stores[0].incomplete.push("a table could not be read".to_owned());
        assert_eq!(unread.judge(&audits(), planted(5)).problems.len(), 1);
    }

    #[test]
    fn misplaced_documents_that_the_audit_did_not_find_are_a_problem() {
        let layer = RelationLayer { partitions: 3, targets: Vec::new() };
        let audits =
            [Verification { topology: Topology::flux(Vec::new(), 3), layer: Layer::Relations(layer) }];
        let planted = Planted { misplaced: 7, ..Planted::default() };
        let mut reconciliation = reconciliation("clean", 0, 0);
        reconciliation.stores[0].store = "relations".to_owned();
        assert_eq!(reconciliation.judge(&audits, planted.clone()).problems.len(), 1);
        reconciliation.stores[0].placement =
            Some(serde_json::json!({ "odd_documents": { "table_month": 7 } }));
        assert_eq!(reconciliation.judge(&audits, planted).problems, Vec::<String>::new());
    }

    #[test]
    fn the_report_of_a_reconciliation_is_read() {
        let text = r#"{"id": "7", "verdict": "repaired", "mode": "repair", "stores": [{"store": "birthday",
            "verdicts": {"missing": 2, "hot": 1}, "repaired": 2, "confirmed": 2, "left": 0, "drift": []}]}"#;
        let reconciliation: Reconciliation = serde_json::from_str(text).unwrap();
        assert_eq!((reconciliation.stores[0].found(), reconciliation.stores[0].repaired), (2, 2));
    }
}
