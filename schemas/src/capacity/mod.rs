//! Arithmetic of capacity: tables, rows, bytes, disks and years until something is full, for all three systems.
//!
//! A plan file has a section for each system, and claims, which are figures of a document. [`plan::Plan::of`] computes
//! every figure, keeps its formula, and sets each claim beside its figure. Bytes are decimal: 1 KB is 1,000 bytes. No
//! code here asks a server.

mod birthdays;
pub mod claim;
pub mod compare;
pub mod fields;
mod flux;
pub mod growth;
pub mod plan;
mod serial_codes;
pub mod sheet;
pub mod term;

#[cfg(test)]
mod tests;
