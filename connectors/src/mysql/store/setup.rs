//! Set-up of a target: control tables, derived databases and tables, first progress rows.
//!
//! Set-up is safe to repeat and to run twice at once: it only adds missing things. It never guesses: an operator must
//! decide on a loss, which is a missing progress row beside filled tables, or a missing table beside moved progress. So
//! everything is checked before anything is created.

use std::collections::HashSet;
use std::sync::Arc;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::failpoints;
use anabranch_pipeline::projections::Assignment;
use futures::future::try_join_all;

use super::catalog::Catalog;
use super::progress::{self, literal};
use super::session::Session;
use super::{MysqlTarget, ddl};
use crate::mysql::connection::{quote_identifier, quote_table};
use crate::progress::{BEGIN_LOST, Enrolment, refill};

/// Statements in a packet: hundreds of tables in a few round trips, each far below every packet limit.
const STATEMENTS_PER_PACKET: usize = 100;
/// Sessions that create tables at the same time. In one session each table takes some 30 ms of the server's own
/// housekeeping. Four sessions take a fifth of the time, and eight take no less (MariaDB 10.11).
const CREATING_SESSIONS: usize = 4;

/// Numbers of things that set-up created; all zero when nothing was missing.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SetupReport {
    pub databases: usize,
    /// Tables, control tables included.
    pub tables: usize,
    pub progress_rows: usize,
    /// Columns that were added to tables of an earlier version.
    pub columns: usize,
}

/// Reads the lanes that the control tables know.
pub(super) async fn read_enrolment(
    session: &mut Session,
    target: &MysqlTarget,
    catalog: &Catalog,
) -> Result<Enrolment, Fault> {
    let mut enrolment = Enrolment::at(target.progress_table());
    if catalog.has_progress_table(target) {
        enrolment.rows = session.progress(target).await?;
    }
    if catalog.table(&target.0.control_database, ddl::ENROLLED_TABLE).is_some() {
        let sql = format!("SELECT `projection`, `source` FROM {}", target.enrolled_table());
        for row in session.rows(sql).await? {
            let mut cells = row.into_iter().map(Option::unwrap_or_default);
            if let (Some(projection), Some(source)) = (cells.next(), cells.next()) {
                enrolment.enrolled.insert((projection, source));
            }
        }
    }
    Ok(enrolment)
}

/// Returns the derived tables of a projection that do not exist although lanes have applied rows.
pub(super) async fn gone_tables(target: &MysqlTarget, projection: &str) -> Result<Vec<String>, Fault> {
    let mut session = Session::open(target).await?;
    let catalog = Catalog::read(&mut session, target).await?;
    let enrolment = read_enrolment(&mut session, target, &catalog).await?;
    session.close().await;
    let is_meant =
        |assignment: &&Arc<Assignment>| assignment.name == projection && enrolment.has_moved(projection);
    let mut gone = Vec::new();
    for assignment in target.0.assignments.iter().filter(is_meant) {
        let missing = assignment
            .tables()
            .filter(|table| catalog.table(&table.derived.database, &table.derived.table).is_none());
        gone.extend(missing.map(|table| quote_table(&table.derived.database, &table.derived.table)));
    }
    Ok(gone)
}

/// Sets the target up. Missing tables of the projection `refilled` are created also beside moved progress: its lanes
/// were asked to read all source tables before.
pub(super) async fn setup(target: &MysqlTarget, refilled: Option<&str>) -> Result<SetupReport, Fault> {
    let mut session = Session::open(target).await?;
    let catalog = Catalog::read(&mut session, target).await?;
    let enrolment = read_enrolment(&mut session, target, &catalog).await?;
    for assignment in target.0.assignments.iter() {
        require_intact(&mut session, target, &catalog, &enrolment, assignment, refilled).await?;
    }
    let mut report = SetupReport::default();
    create(&mut session, target, &catalog, &mut report).await?;
    failpoints::reach("setup-after-tables").await;
    enrol(&mut session, target, &enrolment, &mut report).await?;
    failpoints::reach("setup-after-progress").await;
    session.close().await;
    Ok(report)
}

/// Fails on every loss that set-up must not hide. Missing tables of the projection `refilled` are none.
async fn require_intact(
    session: &mut Session,
    target: &MysqlTarget,
    catalog: &Catalog,
    enrolment: &Enrolment,
    assignment: &Assignment,
    refilled: Option<&str>,
) -> Result<(), Fault> {
    let lanes = target.lane_ids().into_iter().filter(|lane| lane.projection == assignment.name);
    for lane in lanes {
        if let Some(fault) = enrolment.loss(&target.subject(), assignment, &lane) {
            return Err(fault);
        }
    }
    if enrolment.has_moved(&assignment.name) && refilled != Some(&*assignment.name) {
        let missing = assignment
            .tables()
            .find(|table| catalog.table(&table.derived.database, &table.derived.table).is_none());
        if let Some(table) = missing {
            let table = quote_table(&table.derived.database, &table.derived.table);
            return Err(gone(target, &assignment.name, &table));
        }
    }
    if !enrolment.knows_projection(&assignment.name) {
        let existing = assignment
            .tables()
            .filter(|table| catalog.table(&table.derived.database, &table.derived.table).is_some())
            .map(|table| quote_table(&table.derived.database, &table.derived.table))
            .collect::<Vec<_>>();
        if let Some(table) = first_filled(session, &existing).await? {
            let subject = format!("{}, projection {}", target.subject(), assignment.name);
            return Err(Fault::new(
                Code::TargetProgressLost,
                subject,
                format!("table {table} holds rows, and no progress of any lane is stored"),
            )
            .needs("empty tables for a first set-up")
            .remedy(format!(
                "restore the control database together with the derived tables; or, for each source, {BEGIN_LOST}"
            )));
        }
    }
    Ok(())
}

/// Returns the fault of a table that vanished after lanes applied rows to it: set-up would create it without them.
pub(super) fn gone(target: &MysqlTarget, projection: &str, table: &str) -> Fault {
    let found = "it does not exist, although lanes have applied rows before";
    Fault::new(Code::TargetTableMissing, format!("{}, table {table}", target.subject()), found)
        .needs("the table with its rows")
        .remedy(format!(
            "restore the derived tables together with the control database, or {}",
            refill(projection)
        ))
}

/// Returns the first of the tables that holds a row.
async fn first_filled(session: &mut Session, tables: &[String]) -> Result<Option<String>, Fault> {
    for some in tables.chunks(STATEMENTS_PER_PACKET) {
        let parts: Vec<String> = some
            .iter()
            .map(|table| format!("SELECT {} FROM DUAL WHERE EXISTS (SELECT 1 FROM {table})", literal(table)))
            .collect();
        let filled = session.rows(parts.join(" UNION ALL ")).await?;
        if let Some(name) = filled.into_iter().flatten().next().flatten() {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

async fn create(
    session: &mut Session,
    target: &MysqlTarget,
    catalog: &Catalog,
    report: &mut SetupReport,
) -> Result<(), Fault> {
    let control = target.0.control_database.as_str();
    let (mut seen, mut databases, mut tables) = (HashSet::new(), Vec::new(), Vec::new());
    let mut add = |database: &str, table: &str, statement: &'static str| {
        if seen.insert(database.to_owned()) && !catalog.has_database(database) {
            databases.push(format!("CREATE DATABASE IF NOT EXISTS {}", quote_identifier(database)));
        }
        if catalog.table(database, table).is_none() {
            tables.push(ddl::create(statement, &quote_table(database, table)));
        }
    };
    for (table, statement) in target.control_tables() {
        add(control, table, statement);
    }
    for assignment in target.0.assignments.iter() {
        for table in assignment.tables() {
            add(&table.derived.database, &table.derived.table, table.derived.shape.definition);
        }
    }
    report.databases = databases.len();
    report.tables = tables.len();
    for packet in databases.chunks(STATEMENTS_PER_PACKET) {
        session.run(packet.join(";")).await?;
    }
    failpoints::reach("setup-after-databases").await;
    let share = tables.len().div_ceil(CREATING_SESSIONS).max(1);
    try_join_all(tables.chunks(share).map(|share| create_tables(target, share))).await.map(drop)
}

async fn create_tables(target: &MysqlTarget, statements: &[String]) -> Result<(), Fault> {
    let mut session = Session::open(target).await?;
    for packet in statements.chunks(STATEMENTS_PER_PACKET) {
        session.run(packet.join(";")).await?;
    }
    session.close().await;
    Ok(())
}

/// Returns the statement that stores that progress rows of a source were made, unless that is stored.
pub(super) fn enrolment_of(target: &MysqlTarget, projection: &str, source: &str) -> String {
    format!(
        "INSERT INTO {} (`projection`, `source`, `enrolled_at`) VALUES ({}, {}, UTC_TIMESTAMP(6)) \
         ON DUPLICATE KEY UPDATE `source` = `source`",
        target.enrolled_table(),
        literal(projection),
        literal(source)
    )
}

/// Inserts the progress rows of new sources and stores their enrolment, in one transaction.
async fn enrol(
    session: &mut Session,
    target: &MysqlTarget,
    enrolment: &Enrolment,
    report: &mut SetupReport,
) -> Result<(), Fault> {
    let mut statements = vec!["START TRANSACTION".to_owned()];
    for assignment in target.0.assignments.iter() {
        for source in &assignment.sources {
            statements.push(enrolment_of(target, &assignment.name, source));
        }
        let lanes = target.lane_ids().into_iter().filter(|lane| lane.projection == assignment.name);
        for lane in lanes.filter(|lane| enrolment.row(lane).is_none()) {
            report.progress_rows += 1;
            let layout = assignment.fingerprint();
            statements.push(progress::insert(&target.progress_table(), &lane, assignment.lanes, &layout));
        }
    }
    session.run(statements.join(";")).await?;
    failpoints::reach("setup-progress-sent").await;
    session.run("COMMIT".to_owned()).await
}
