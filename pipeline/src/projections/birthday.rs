//! Users to birthday tables.
