//! Tables on a target besides those of its projections; the same rules create and check them.

use std::path::Path;
use std::sync::Arc;

use anabranch_pipeline::config::ServerUrl;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::projections::Assignments;
use tokio::sync::{Mutex, Notify};

use super::catalog::{Catalog, FoundTable};
use super::check::{differences, missing};
use super::ddl::{Column, Shape, create};
use super::session::Session;
use super::setup::SetupReport;
use super::{MysqlTarget, StoreSettings};
use crate::mysql::connection::{quote_identifier, quote_table};
use crate::mysql::remedy::SETUP_COMMAND;

/// A table that a part of Anabranch other than the lanes needs.
#[derive(Debug)]
pub struct NeededTable {
    pub(in crate::mysql) database: String,
    pub(in crate::mysql) table: String,
    /// The statement that creates the table, with `{table}` for its name.
    pub(in crate::mysql) statement: &'static str,
}

impl MysqlTarget {
    /// Makes a target that holds such tables only; faults show `name`.
    pub(in crate::mysql) fn of_tables(
        name: &str,
        url: &ServerUrl,
        setup_url: Option<&ServerUrl>,
        ca_file: Option<&Path>,
    ) -> Self {
        Self(Arc::new(StoreSettings {
            name: name.to_owned(),
            url: url.clone(),
            setup_url: setup_url.cloned(),
            ca_file: ca_file.map(Path::to_owned),
            control_database: String::new(),
            statement_rows: 1,
            assignments: Assignments::default(),
            retains: false,
            has_coupon_reports: false,
            touched: Notify::new(),
            progress_session: Mutex::default(),
        }))
    }

    pub(in crate::mysql) fn control_database(&self) -> &str {
        &self.0.control_database
    }

    /// Creates a database (quoted) and its missing tables, and then runs a statement. It adds columns that tables of an
    /// earlier version lack.
    ///
    /// # Errors
    ///
    /// If the account may not alter tables, the fault has the statements that an administrator is to run.
    pub(in crate::mysql) async fn make(
        &self,
        database: &str,
        needed: &[NeededTable],
        then: &str,
    ) -> Result<SetupReport, Fault> {
        let target = self.as_setup_account();
        let mut session = Session::open(&target).await?;
        let catalog = Catalog::of_databases(&mut session, &databases(needed)).await?;
        let mut report = SetupReport::default();
        let (mut statements, mut additions) = (Vec::new(), Vec::new());
        if needed.first().is_some_and(|first| !catalog.has_database(&first.database)) {
            report.databases = 1;
            statements.push(format!("CREATE DATABASE IF NOT EXISTS {database}"));
        }
        for NeededTable { database, table, statement } in needed {
            let quoted = quote_table(database, table);
            match catalog.table(database, table) {
                Some(found) => additions.extend(column_additions(&quoted, found, &Shape::of(statement))),
                None => {
                    report.tables += 1;
                    statements.push(create(statement, &quoted));
                }
            }
        }
        statements.push(then.to_owned());
        session.run(statements.join("; ")).await?;
        if !additions.is_empty() {
            let added = session.run(additions.join("; ")).await;
            added.map_err(|fault| with_statements(fault, &additions))?;
            report.columns = additions.len();
        }
        session.close().await;
        Ok(report)
    }

    /// Returns faults of missing tables and of differences from the needed ones.
    pub(in crate::mysql) async fn check_tables(&self, needed: &[NeededTable]) -> Result<Vec<Fault>, Fault> {
        let mut session = Session::open(self).await?;
        let catalog = Catalog::of_databases(&mut session, &databases(needed)).await?;
        session.close().await;
        let (mut faults, mut absent) = (Vec::new(), Vec::new());
        for NeededTable { database, table, statement } in needed {
            let quoted = quote_table(database, table);
            match catalog.table(database, table) {
                Some(found) => {
                    let shape = Shape::of(statement);
                    match column_additions(&quoted, found, &shape).is_empty() {
                        true => faults.extend(differences(self, &quoted, found, &shape)),
                        false => faults.push(of_an_earlier_version(self, &quoted)),
                    }
                }
                None => absent.push(quoted),
            }
        }
        faults.extend(missing(self, &absent, needed.len()));
        Ok(faults)
    }
}

/// Returns the statements that add the columns which a table of an earlier version lacks.
///
/// Only columns that may be NULL are added, because the rows of that version have no value for them.
fn column_additions(quoted: &str, found: &FoundTable, needed: &Shape) -> Vec<String> {
    let is_missing = |column: &&Column| {
        column.nullable && found.columns.iter().all(|existing| existing.name != column.name)
    };
    let addition = |column: &Column| {
        format!("ALTER TABLE {quoted} ADD COLUMN {} {}", quote_identifier(column.name), column.definition)
    };
    needed.columns.iter().filter(is_missing).map(addition).collect()
}

/// Returns the fault of a table that lacks columns which set-up adds. It stops no task: the columns come while a daemon
/// of the new version runs.
fn of_an_earlier_version(target: &MysqlTarget, quoted: &str) -> Fault {
    let subject = format!("{}, table {quoted}", target.subject());
    Fault::new(Code::TargetTableMissing, subject, "it lacks columns, because an earlier version made it")
        .needs("the columns of this version")
        .remedy(SETUP_COMMAND)
}

/// Returns the fault of an account that may not run the statements, with the statements as its remedy.
fn with_statements(fault: Fault, statements: &[String]) -> Fault {
    match fault.code() {
        Code::TargetGrantMissing => fault
            .needs("an administrator who adds the columns of this version: no account of Anabranch may alter a table")
            .remedy(statements.join("; ")),
        _ => fault,
    }
}

fn databases(needed: &[NeededTable]) -> Vec<&str> {
    let mut databases: Vec<&str> = needed.iter().map(|table| table.database.as_str()).collect();
    databases.dedup();
    databases
}
