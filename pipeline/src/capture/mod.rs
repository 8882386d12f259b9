//! From a source's binlog to its stream: batches in commit order, appended under a fence.
//!
//! A batch collects changes, `pace.rs` decides when it leaves, `run.rs` is one attempt. The stream's last
//! message is the only checkpoint: the next reader starts where it says.

mod epochs;
mod pace;
mod run;

pub(crate) use epochs::Epochs;
pub use run::{Capture, run};
