//! From a source's binlog to its stream: batches in commit order, appended under a fence.
//!
//! `batch.rs` collects changes, `writer.rs` runs one attempt. The stream's last message is the only checkpoint.

mod batch;

pub use batch::{Batch, BatchBuilder};
