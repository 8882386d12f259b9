//! Placeholder until the first landing.
