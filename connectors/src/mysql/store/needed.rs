//! Tables on a target besides those of its projections; the same rules create and check them.

use std::path::Path;
use std::sync::Arc;

use anabranch_pipeline::config::ServerUrl;
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::projections::Assignments;
use tokio::sync::{Mutex, Notify};

use super::catalog::Catalog;
use super::check::{differences, missing};
use super::ddl::{Shape, create};
use super::session::Session;
use super::setup::SetupReport;
use super::{MysqlTarget, StoreSettings};
use crate::mysql::connection::quote_table;

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

    /// Creates a database (quoted) and its missing tables, and then runs a statement.
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
        let mut statements = Vec::new();
        if needed.first().is_some_and(|first| !catalog.has_database(&first.database)) {
            report.databases = 1;
            statements.push(format!("CREATE DATABASE IF NOT EXISTS {database}"));
        }
        for NeededTable { database, table, statement } in needed {
            if catalog.table(database, table).is_none() {
                report.tables += 1;
                statements.push(create(statement, &quote_table(database, table)));
            }
        }
        statements.push(then.to_owned());
        session.run(statements.join("; ")).await?;
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
                Some(found) => faults.extend(differences(self, &quoted, found, &Shape::of(statement))),
                None => absent.push(quoted),
            }
        }
        faults.extend(missing(self, &absent, needed.len()));
        Ok(faults)
    }
}

fn databases(needed: &[NeededTable]) -> Vec<&str> {
    let mut databases: Vec<&str> = needed.iter().map(|table| table.database.as_str()).collect();
    databases.dedup();
    databases
}
