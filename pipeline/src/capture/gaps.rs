//! The records of the gaps in a source's reading: who asked for each, when and why.
//!
//! `begin.rs` and `touched.rs` put a record into the register that they write, after the newest ones before it. Each
//! report of a reconciliation lists the records, and the history signs the report.

use anabranch_schemas::beginning::GapRecord;

use super::crossing::KnownCrossing;
use crate::epochs::Epochs;
use crate::error::Fault;
use crate::ports::Registers;

/// Returns the records that the registers of a source keep: those of beginnings, then those of crossings.
pub async fn gap_records<M: Registers>(registers: &M, source: &str) -> Result<Vec<GapRecord>, Fault> {
    let mut records = Epochs::read(registers, source).await?.into_gaps();
    let crossing = KnownCrossing::read(registers, source).await?.crossing;
    records.extend(crossing.into_iter().flat_map(|crossing| crossing.gaps));
    Ok(records)
}
