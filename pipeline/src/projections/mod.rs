//! Pure functions from changes to mutations, one file each.

pub mod birthday;
