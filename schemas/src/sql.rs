//! DDL of the derived and control tables, as text with placeholders.
//!
//! Each file holds one statement with one column a line: set-up executes it, and checks read the needed columns from
//! it, so that both mean the same table. `{table}` stands for the quoted name.

/// One table of the birthday layer.
pub const BIRTHDAY: &str = include_str!("sql/birthday.sql");
/// Progress of lanes.
pub const PROGRESS: &str = include_str!("sql/progress.sql");
/// Which progress rows were made once.
pub const ENROLLED: &str = include_str!("sql/enrolled.sql");
