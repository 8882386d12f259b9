//! The reconciliation: both sides of every projection are read and compared, what differs is proved to differ, and
//! repaired.
//!
//! `scan.rs` reads a *unit*, all rows of a range of shards on both sides, into one `sketch.rs`, which lists what
//! differs as `candidates.rs`. `recheck.rs` looks at each candidate in the order source, barrier, derived stores,
//! source: only what disagrees while the source stands still and the lanes have passed it is drift. `repair.rs` asks
//! the lanes that own the rows to read them again. `reconciliation.rs` goes through all units, and `report.rs` says
//! what was found, `unproven.rs` of which tables nothing is said. `shown.rs` remembers which tables there were;
//! `lane_wait.rs` waits for lanes, `backpressure.rs` for servers, and `pace.rs` says how fast these are read.
//! `spot_checks.rs` looks at some of the changed keys in the same way between reconciliations, and says only what it
//! finds.
//!
//! `foreign.rs` are derived rows that belong to no table of a source. `barrier.rs` lets others wait for lanes, too.
//!
//! No reconciliation writes a derived row, and nothing is called clean that was not read.

mod backpressure;
mod barrier;
mod candidates;
mod element;
mod foreign;
mod history;
mod lane_wait;
mod pace;
mod placement;
mod recheck;
mod repair;
mod report;
mod run;
mod scan;
mod shown;
mod sketch;
mod spot_checks;
mod unproven;

pub use backpressure::Backpressure;
pub use barrier::barrier;
pub use candidates::{CandidateBatch, SourceKey};
pub use foreign::{Foreign, Removed, Unowned, remove_foreign, shard_text, table_text};
pub use history::{Seal, hash_foreign, hash_key, seal};
pub use lane_wait::LaneWait;
pub use pace::Pace;
pub(crate) use pace::released;
pub use placement::{Double, Placement, PlacementAudit, Rules};
pub use recheck::{Judged, Recheck, Verdict};
pub use report::{Drifted, ReconciliationReport, StoreReport, count_again, worst};
pub use run::{Checkpoint, Reconciliation, StoreState};
pub use scan::{Scanned, Sides, SourceTable, TABLES_AT_ONCE, Unit};
pub use shown::{HiddenTable, VisibleTables, look as look_for_tables};
pub use spot_checks::{CheckedStore, SpotCheckEvent, SpotChecks};
pub use unproven::Unproven;
