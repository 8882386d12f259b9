//! The tables of the sequence: set-up, and the check of existing tables.

use anabranch_pipeline::config::FluxIdentifierConfig;
use anabranch_pipeline::error::{Code, Fault};
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
        match self.check_rows().await {
            Err(fault) => vec![fault],
            Ok(Some(fault)) => vec![fault],
            Ok(None) => self.check_privileges().await,
        }
    }

    async fn check_rows(&self) -> Result<Option<Fault>, Fault> {
        let row = self.row(self.0.statements.rows()).await?;
        let found = row.and_then(|row: Row| Cells::of(row).parsed::<u32>()).unwrap_or(0);
        let needed = Statements::rows_needed();
        let missing = || {
            Fault::new(
                Code::FluxSequenceBehind,
                SUBJECT,
                format!("only {found} of {needed} rows of counters exist"),
            )
            .needs("every row that `setup` makes")
            .remedy(SETUP_COMMAND)
        };
        Ok((found != needed).then(missing))
    }

    async fn check_privileges(&self) -> Vec<Fault> {
        for (privileges, statement) in self.0.statements.probes() {
            if let Err(fault) = self.sets(statement).await {
                return vec![fault.needs(privileges)];
            }
        }
        Vec::new()
    }

    /// Returns what an operator should know of the server although it is no fault.
    pub async fn warnings(&self) -> Vec<String> {
        let asked = self.row("SELECT @@innodb_flush_log_at_trx_commit".to_owned()).await;
        let setting = asked.ok().flatten().and_then(|row| Cells::of(row).text());
        match setting {
            Some(setting) if setting != "1" => vec![format!(
                "{SUBJECT}: innodb_flush_log_at_trx_commit is {setting}, so a power cut can take leases back, which the \
                 log's registers then refuse; needed: 1"
            )],
            _ => Vec::new(),
        }
    }
}
