//! Proves, on the word of a person, that a projection's stores hold every row of some source tables.
//!
//! It is the comparison of a reconciliation, table by table, behind a barrier. It needs no lease and writes nothing, so
//! it may run beside a reconciliation.

use std::collections::BTreeSet;

use anabranch_pipeline::composition::ProjectionLanes;
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::reconcile::{LaneWait, Proof, Sides, SourceTable, TableProof};

use super::stores::{sides, standstill};
use crate::wiring::Wiring;

/// Compares each table with the stores; in place of a result there is the reason why a table could not be compared.
pub async fn prove(
    wiring: &Wiring,
    store: &str,
    tables: &[SourceTable],
) -> Result<Vec<Result<TableProof, String>>, Fault> {
    let config = wiring.config();
    let sides = sides(wiring, store)?;
    // A replica may lag, and its rows would prove nothing about the source's.
    let sources = sides.primaries.clone();
    let sides = Sides { sources, replicated: BTreeSet::new(), audit: None, ..sides };
    let lanes = ProjectionLanes { connectors: wiring, projection: store };
    let lane_wait = LaneWait::new(standstill(config, config.reconcile.lane_wait));
    let memory = config.reconcile.settings.memory;
    let proof = Proof { sides: &sides, lanes: &lanes, lane_wait: &lane_wait, memory };
    let mut proven = Vec::new();
    for table in tables {
        proven.push(proof.of(table, rand::random()).await);
    }
    Ok(proven)
}
