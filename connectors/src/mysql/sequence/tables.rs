//! The tables of the sequence: set-up, and the check of existing tables.

use anabranch_pipeline::config::FluxIdentifierConfig;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::identifiers::flux::{DURABLE_SETTINGS, SET_DURABLE};
use anabranch_schemas::flux::table::PARTITIONS;
use anabranch_schemas::sql;
use mysql_async::Row;

use super::MysqlSequence;
use super::statements::{REQUEST_TABLE, Statements, counter_table};
use crate::mysql::answer::Cells;
use crate::mysql::connection::quote_identifier;
use crate::mysql::remedy::SETUP_COMMAND;
use crate::mysql::store::{MysqlTarget, NeededTable, SetupReport};

/// The server's name in faults.
pub(super) const SUBJECT: &str = "server of flux.sequence_url";

/// Adds the remedy for a server that refuses a statement: its grants have a file of their own.
pub(super) fn own_remedy(fault: Fault) -> Fault {
    match fault.code() {
        Code::TargetGrantMissing => fault.remedy(
            "run the GRANT statements of deploy/grants/mariadb-flux-sequence.sql or mysql-flux-sequence.sql",
        ),
        _ => fault,
    }
}

/// The server's name in faults of its tables, after the word `target`.
pub(super) const TARGET: &str = "flux.sequence_url";

fn target(config: &FluxIdentifierConfig) -> MysqlTarget {
    MysqlTarget::of_tables(TARGET, &config.sequence_url, config.setup_url.as_ref(), config.ca_file.as_deref())
}

fn needed(config: &FluxIdentifierConfig) -> Vec<NeededTable> {
    let table =
        |table: String, statement| NeededTable { database: config.database.clone(), table, statement };
    let mut needed: Vec<NeededTable> =
        (0..PARTITIONS).map(|partition| table(counter_table(partition), sql::FLUX_SEQUENCE)).collect();
    needed.push(table(REQUEST_TABLE.to_owned(), sql::FLUX_REQUEST));
    needed
}

impl MysqlSequence {
    /// Creates missing tables and rows of counters. Safe to repeat. A counter that is created anew is at 0; the
    /// registers of the log know its last number.
    pub async fn setup(&self) -> Result<SetupReport, Fault> {
        let (config, statements) = (&self.0.config, &self.0.statements);
        let database = quote_identifier(&config.database);
        target(config).make(&database, &needed(config), &statements.fill()).await.map_err(own_remedy)
    }

    /// Checks tables, rows and privileges; each failed check is one fault. Changes nothing.
    pub async fn check(&self) -> Vec<Fault> {
        let config = &self.0.config;
        match target(config).check_tables(&needed(config)).await {
            Err(fault) => return vec![own_remedy(fault)],
            Ok(faults) if !faults.is_empty() => return faults,
            Ok(_) => {}
        }
        let checked = async {
            self.check_rows().await?;
            self.check_durability().await
        };
        match checked.await {
            Err(fault) => vec![fault],
            Ok(()) => self.check_privileges().await,
        }
    }

    async fn check_durability(&self) -> Result<(), Fault> {
        let Some(setting) = self.volatile_setting().await? else { return Ok(()) };
        let found = format!("it has {setting}, so a power cut could take leases back");
        Err(Fault::new(Code::FluxServerVolatile, SUBJECT, found).needs(DURABLE_SETTINGS).remedy(SET_DURABLE))
    }

    async fn check_rows(&self) -> Result<(), Fault> {
        let row = self.row(self.0.statements.rows()).await?;
        let found = row.and_then(|row: Row| Cells::of(row).parsed::<u32>()).unwrap_or(0);
        let needed = Statements::rows_needed();
        if found == needed {
            return Ok(());
        }
        let found = format!("only {found} of {needed} rows of counters exist");
        Err(Fault::new(Code::FluxSequenceLagging, SUBJECT, found)
            .needs("every row that `setup` makes")
            .remedy(SETUP_COMMAND))
    }

    async fn check_privileges(&self) -> Vec<Fault> {
        for (privileges, statement) in self.0.statements.probes() {
            if let Err(fault) = self.sets(statement).await {
                return vec![fault.needs(privileges)];
            }
        }
        Vec::new()
    }
}
