//! Flux: payment documents whose identifier of 31 digits says where they are stored.
//!
//! [`id`] reads, checks and writes identifiers, [`placement`] says where a document belongs, given the identifier of
//! what it follows, and [`table`] turns digits into names of databases and tables. [`counter`] is what the sequence of
//! an identifier counts within. Nothing here reads a row.

pub mod counter;
pub mod id;
pub mod placement;
pub mod table;
