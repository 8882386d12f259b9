//! From a source's binlog to its stream: batches in commit order, appended under a fence.
//!
//! `batch.rs` collects changes, `frame.rs` makes the envelopes, `pace.rs` decides when a batch leaves, `run.rs` is one
//! attempt. The stream's last message is the only checkpoint: whoever reads on starts where it says.

mod batch;
mod epochs;
mod frame;
mod pace;
mod run;

pub use batch::{Batch, BatchBuilder};
pub(crate) use epochs::Epochs;
pub use frame::Framer;
pub use run::{Capture, run};
