//! From a source's binlog to its stream: batches in commit order, appended under a fence.
//!
//! A batch collects changes, `pace.rs` decides when it leaves, `run.rs` is one attempt, `open.rs` decides where it
//! begins. The stream's last message is the only checkpoint: the next reader resumes there. `begin.rs` makes a source
//! begin anew when nothing else mends its stream, unless the server has lost too many rows (`row_loss.rs`), and
//! `touched.rs` makes it go on at a server that lacks transactions (`crossing.rs`). `busiest.rs` counts the changes of
//! each table, for people who look.

mod begin;
mod busiest;
mod crossing;
mod gaps;
mod open;
mod pace;
mod row_loss;
mod run;
mod touched;

pub use begin::{BeginAnew, Gap};
pub use busiest::{BusiestTables, BusyTable};
pub use crossing::Crossing;
pub use gaps::gap_records;
pub use open::Capture;
pub use row_loss::{EntityRows, require_rows_kept};
pub use run::run;
pub use touched::Touched;
