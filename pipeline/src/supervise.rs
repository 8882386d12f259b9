//! Placeholder: supervision of tasks.
