//! The reconciliation reads both sides of every projection, compares them, proves each difference, and has it repaired.
//!
//! - `scan.rs` reads a *unit*, all rows of a range of shards on both sides, into one sketch; its differences
//!   are `candidates.rs`.
//! - `recheck.rs` checks each candidate in the order source, barrier, derived stores, source. A difference is drift
//!   only if the source row did not change meanwhile and the lanes have passed it.
//! - `repair.rs` asks the lanes that own the rows to read them again.
//! - `run.rs` goes through all units; `report.rs` holds the findings, `unproven.rs` the tables without a verdict.
//! - `visible_tables.rs` remembers which tables sources showed, and `foreign.rs` derived rows that belong to none of
//!   them.
//! - `lane_wait.rs` waits for lanes, and `backpressure.rs` for servers.
//! - `spot_checks.rs` rechecks some of the changed keys between reconciliations and only reports its findings.
//! - `barrier.rs` lets other tasks wait for lanes, too, and `proof.rs` compares one table before a person drops it.
//!
//! A reconciliation writes no derived row, and calls nothing clean that it has not read.

mod backpressure;
mod barrier;
mod candidates;
mod foreign;
mod history;
mod lane_wait;
mod placement;
mod proof;
mod recheck;
mod repair;
mod report;
mod run;
mod scan;
mod spot_checks;
mod unproven;
mod visible_tables;

pub use backpressure::Backpressure;
pub use barrier::barrier;
pub use candidates::{CandidateBatch, SourceKey};
pub use foreign::{Foreign, Removed, UnownedRows, remove_foreign, shard_text, table_text};
pub use history::{Seal, hash_foreign, hash_key, seal};
pub use lane_wait::LaneWait;
pub use placement::{DoubledKey, MalformedDocument, OddDocument, Placement, PlacementAudit, Rules};
pub use proof::{Proof, TableProof};
pub use recheck::{Recheck, Verdict, WindowVerdicts};
pub use report::{Drifted, ReconciliationReport, ReportedGap, StoreReport, count_again, worst};
pub use run::{Checkpoint, Reconciliation, StoreState};
pub use scan::{Scanned, Sides, SourceTable, TABLES_AT_ONCE, Unit};
pub use spot_checks::{CheckedStore, SpotCheckEvent, SpotChecks};
pub use unproven::Unproven;
pub use visible_tables::{HiddenTable, KnownTables, VisibleTables, find_hidden_tables};
