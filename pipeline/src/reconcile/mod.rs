//! The night: both sides of every projection are read and compared, what differs is proved to differ, and repaired.
//!
//! `scan.rs` reads a *unit*, all rows of a range of shards on both sides, into one `sketch.rs`, which lists what
//! differs as `candidates.rs`. `recheck.rs` looks at each candidate in the order source, barrier, derived stores,
//! source: only what disagrees while the source stands still and the lanes have passed it is drift. `repair.rs` asks
//! the lanes that own the rows to read them again. `night.rs` goes through all units, and `report.rs` says what was
//! found. `shown.rs` remembers which tables there were; `patience.rs` waits for lanes, `brake.rs` for
//! servers, and `pace.rs` says how fast these are read. `watch.rs` looks at some of the
//! changed keys in the same way between nights, and says only what it finds.
//!
//! `foreign.rs` are derived rows that belong to no table of a source.
//!
//! No night writes a derived row, and nothing is called clean that was not read.

mod brake;
mod candidates;
mod element;
mod foreign;
mod history;
mod night;
mod pace;
mod patience;
mod placement;
mod recheck;
mod repair;
mod report;
mod scan;
mod shown;
mod sketch;
mod watch;

pub use brake::Brake;
pub use candidates::{SourceKey, Window};
pub use foreign::{Foreign, Removed, Unowned, remove_foreign, shard_text, table_text};
pub use history::{Seal, hash_foreign, hash_key, seal};
pub use night::{Checkpoint, Night, StoreState};
pub use pace::Pace;
pub(crate) use pace::released;
pub use patience::Patience;
pub use placement::{Audit, Double, Placement, Rules};
pub use recheck::{Judged, Recheck, Verdict};
pub use report::{Drifted, NightReport, StoreReport, count_again, worst};
pub use scan::{Scanned, Sides, SourceTable, TABLES_AT_ONCE, Unit};
pub use shown::{Shown, look as look_for_tables};
pub use watch::{Told, Watch, Watched};
