//! Proves that the derived stores hold every row of one source table, before a person drops the table.
//!
//! It is the comparison of a reconciliation for one table: scan, sketch, and the check of each candidate. It repairs
//! nothing. First the lanes must have passed everything that the sources had committed (the *barrier*): a lane that
//! stands still may lack rows that no scan of equal sides shows later. Changes after the proof are in the stream before
//! the record of the table's end, so lanes apply them in that order.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;

use super::barrier::barrier;
use super::lane_wait::LaneWait;
use super::recheck::{Recheck, Verdict};
use super::scan::{Sides, SourceTable, Unit, Unscanned};
use crate::ports::{DerivedRows, Lanes, RowSource};
use crate::throttle::Pace;

/// Derived rows that are checked at once.
const WINDOW_ROWS: usize = 20_000;

/// The inputs of proofs for the tables of one projection.
pub struct Proof<'a, S, D, L> {
    /// Both sides, with the servers whose changes the lanes follow in place of replicas.
    pub sides: &'a Sides<S, D>,
    pub lanes: &'a L,
    pub lane_wait: &'a LaneWait,
    /// Memory for the comparison, in bytes.
    pub memory: NonZeroUsize,
}

/// The comparison of one table with the derived stores.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableProof {
    pub rows_source: u64,
    /// Derived rows that the source rows make; `rows_derived` counts those that exist.
    pub rows_expected: u64,
    pub rows_derived: u64,
    /// Verdicts of the source rows that were checked one by one.
    pub verdicts: BTreeMap<Verdict, u64>,
    /// Reasons why rows could not be decided.
    pub unread: BTreeSet<String>,
}

impl TableProof {
    /// Returns whether every row was read and decided, and none differs.
    pub fn is_whole(&self) -> bool {
        self.unread.is_empty() && self.verdicts.keys().all(|verdict| *verdict == Verdict::InFlight)
    }
}

impl<S: RowSource + 'static, D: DerivedRows + 'static, L: Lanes> Proof<'_, S, D, L> {
    /// Compares a table behind a barrier; returns why it cannot be compared. `seed` makes the hashes of this proof.
    pub async fn of(&self, table: &SourceTable, seed: u64) -> Result<TableProof, String> {
        let shard = table.identity.shard;
        let late = barrier(&self.sides.primaries, self.lanes, self.lane_wait, Some(shard)).await;
        if let Some(why) = late.get(&table.source) {
            return Err(why.clone());
        }
        let tables = BTreeMap::from([(shard, table.clone())]);
        let unit = Unit { shards: shard..=shard, tables: tables.clone() };
        let recheck =
            Recheck { sides: self.sides, lanes: self.lanes, tables: &tables, lane_wait: self.lane_wait };
        let pace = Pace::unbounded();
        let mut scan = self.sides.scan(&unit, seed, self.memory.get(), &pace);
        let mut proof = TableProof::default();
        while let Some(scanned) = scan.next().await.map_err(why)? {
            proof.rows_source += scanned.rows_source;
            proof.rows_expected += scanned.rows_expected;
            proof.rows_derived += scanned.rows_derived;
            for window in scanned.candidates.windows(WINDOW_ROWS) {
                let judged = recheck.judge(window).await.map_err(|fault| fault.to_string())?;
                proof.unread.extend(judged.unread);
                for (verdict, _) in judged.verdicts.into_values() {
                    *proof.verdicts.entry(verdict).or_default() += 1;
                }
            }
        }
        Ok(proof)
    }
}

fn why(unscanned: Unscanned) -> String {
    match unscanned {
        Unscanned::Unread { fault, .. } => fault.to_string(),
        Unscanned::TooMuch => "more rows differ than can be listed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_proven_only_if_every_row_was_decided_and_none_differs() {
        let with = |verdict: Option<Verdict>, unread: &[&str]| TableProof {
            verdicts: verdict.into_iter().map(|verdict| (verdict, 1)).collect(),
            unread: unread.iter().map(|why| (*why).to_owned()).collect(),
            ..TableProof::default()
        };
        assert!(with(None, &[]).is_whole());
        assert!(with(Some(Verdict::InFlight), &[]).is_whole());
        assert!(!with(None, &["a lane lags"]).is_whole());
        for verdict in [Verdict::Missing, Verdict::Orphan, Verdict::Hot, Verdict::Unreadable] {
            assert!(!with(Some(verdict), &[]).is_whole(), "{verdict:?}");
        }
    }
}
