//! Flux: payment documents whose identifier of 31 digits says where they are stored.
//!
//! [`id`] reads, checks and writes identifiers. [`placement`] derives a document's place from its parent's identifier,
//! and [`table`] turns digits into names of databases and tables. [`audit`] compares a document with its table, its
//! source and its parent. [`years`] has the strategy with a year digit, beside the one by month. [`counter`] has the
//! counters of the sequences, [`retention`] the age of a month's table. No code here reads a row.

pub mod audit;
pub mod counter;
pub mod id;
pub mod placement;
pub mod retention;
pub mod table;
pub mod years;
