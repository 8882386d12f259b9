//! From a source's binlog to its stream: batches in commit order, appended under a fence.
//!
//! A batch collects changes, `pace.rs` decides when it leaves, `run.rs` is one attempt, `enter.rs` decides where it
//! begins. The stream's last message is the only checkpoint: the next reader resumes there. `begin.rs` makes a source
//! begin anew when nothing else mends its stream.

mod begin;
mod enter;
mod epochs;
mod pace;
mod run;

pub use begin::{BeginAnew, Gap};
pub use enter::Capture;
pub(crate) use epochs::Epochs;
pub use run::run;
