//! Properties of a table for which its row events do not show every change, although its columns fit. A stream leaves
//! the rows of such a table out and has the table read again, which shows its present rows.

use anabranch_pipeline::error::{Code, Fault};

/// One such property.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnfitTable {
    /// MariaDB logs a delete as an update, and an update with a row of history after it.
    Versioned,
    /// The engine keeps changes that a transaction rolled back.
    Engine(String),
}

impl UnfitTable {
    /// Returns the fault that names the table; `quoted` is its name in SQL.
    pub fn fault(&self, subject: impl Into<String>, quoted: &str) -> Fault {
        match self {
            Self::Versioned => Fault::new(
                Code::SourceTableVersioned,
                subject,
                "it is system-versioned, so its updates and deletes are logged in another form",
            )
            .needs("a table without system versioning")
            .remedy(format!("ALTER TABLE {quoted} DROP SYSTEM VERSIONING")),
            Self::Engine(engine) => Fault::new(
                Code::SourceTableNotTransactional,
                subject,
                format!("its engine is {engine}, which keeps changes that a transaction rolled back"),
            )
            .needs("an engine with transactions")
            .remedy(format!("ALTER TABLE {quoted} ENGINE = InnoDB")),
        }
    }
}
