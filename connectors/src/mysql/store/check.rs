//! Pre-flight of a target: checks everything that applying depends on; each fault has its remedy.
//!
//! Nothing is changed: privileges are tried with statements that touch no row. A lane's obstacles are reported before
//! its first flush instead of in the middle of one.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::projections::Assignment;
use anabranch_schemas::sql;

use super::MysqlTarget;
use super::catalog::{Catalog, FoundTable};
use super::ddl::{COUPON_REPORTS_TABLE, OPERATIONS_TABLE, RECONCILIATIONS_TABLE, Shape};
use super::session::Session;
use super::setup::{gone, read_enrolment};
use crate::mysql::connection::{quote_identifier, quote_table};
use crate::mysql::remedy::SETUP_COMMAND;
use crate::progress::Enrolment;

/// The oldest server on which the SQL of set-up and flushes is known to work.
const MARIADB_MIN: (u32, u32) = (10, 6);
const MYSQL_MIN: (u32, u32) = (8, 0);
/// Faults that are shown for tables of a wrong shape: 366 tables of the same wrong shape are one mistake.
const SHAPE_FAULTS_MAX: usize = 20;

/// The scope of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    Everything,
    /// Everything that lanes use; the histories, which must not stop them, are left out.
    Lanes,
}

pub(super) async fn check(target: &MysqlTarget, extent: Extent) -> Vec<Fault> {
    let mut faults = Vec::new();
    if let Err(fault) = add_faults(target, extent, &mut faults).await {
        faults.push(fault);
    }
    faults
}

async fn add_faults(target: &MysqlTarget, extent: Extent, faults: &mut Vec<Fault>) -> Result<(), Fault> {
    let mut session = Session::open(target).await?;
    check_server(&mut session, target, faults).await?;
    let catalog = Catalog::read(&mut session, target).await?;
    let control = target.0.control_database.as_str();
    let mut shapes = Vec::new();
    let mut missing_control = Vec::new();
    let mut control_tables = target.control_tables();
    if extent == Extent::Lanes {
        let histories = [RECONCILIATIONS_TABLE, OPERATIONS_TABLE, COUPON_REPORTS_TABLE];
        control_tables.retain(|(table, _)| !histories.contains(table));
    }
    for (table, statement) in &control_tables {
        let (quoted, shape) = (quote_table(control, table), Shape::of(statement));
        match catalog.table(control, table) {
            Some(found) => shapes.extend(differences(target, &quoted, found, &shape)),
            None => missing_control.push(quoted),
        }
    }
    faults.extend(missing(target, &missing_control, control_tables.len()));
    let control_is_usable = missing_control.is_empty() && shapes.is_empty();
    let mut probed = vec![];
    if control_is_usable {
        probed.push(Probe::of_progress(target));
        if target.0.retains {
            probed.push(Probe::of_retired(target));
        }
        if extent == Extent::Everything {
            probed.push(Probe::of_history(target, RECONCILIATIONS_TABLE, sql::RECONCILIATIONS));
            probed.push(Probe::of_history(target, OPERATIONS_TABLE, sql::OPERATIONS));
            if target.0.has_coupon_reports {
                probed.push(Probe::of_history(target, COUPON_REPORTS_TABLE, sql::COUPON_REPORTS));
            }
        }
    }
    let enrolment = match control_is_usable {
        true => read_enrolment(&mut session, target, &catalog).await?,
        false => Enrolment::at(target.progress_table()),
    };
    for assignment in target.0.assignments.iter() {
        // Progress of another layout means other tables: those that are missing then are no mistake of their own.
        if control_is_usable && let Some(fault) = progress_fault(target, assignment, &enrolment) {
            faults.push(fault);
        } else {
            check_tables(target, assignment, &catalog, &enrolment, &mut shapes, &mut probed, faults);
        }
    }
    limit(&mut shapes, target);
    faults.extend(shapes);
    check_privileges(&mut session, target, probed, faults).await;
    session.close().await;
    Ok(())
}

/// Checks version and strict mode.
async fn check_server(
    session: &mut Session,
    target: &MysqlTarget,
    faults: &mut Vec<Fault>,
) -> Result<(), Fault> {
    let sql = "SET SESSION sql_mode = 'STRICT_ALL_TABLES'; SELECT VERSION(), @@SESSION.sql_mode";
    let rows = session.rows(sql.to_owned()).await?;
    let mut cells = rows.into_iter().flatten().map(Option::unwrap_or_default);
    let (version, sql_mode) = (cells.next().unwrap_or_default(), cells.next().unwrap_or_default());
    let needed = if version.contains("MariaDB") { MARIADB_MIN } else { MYSQL_MIN };
    if version_number(&version) < needed {
        faults.push(
            Fault::new(Code::TargetRejected, target.subject(), format!("the server is {version}"))
                .needs("MariaDB 10.6 or MySQL 8.0 at least")
                .remedy("upgrade the server"),
        );
    }
    if !sql_mode.contains("STRICT_ALL_TABLES") {
        faults.push(
            Fault::new(
                Code::TargetRejected,
                target.subject(),
                "sql_mode cannot be made strict in the session",
            )
            .needs("STRICT_ALL_TABLES: the fence depends on it")
            .remedy("connect to the server itself, not through a proxy that hides session settings"),
        );
    }
    Ok(())
}

/// Parses `10.11.19-MariaDB-log` as (10, 11).
fn version_number(version: &str) -> (u32, u32) {
    let mut parts = version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

fn check_tables(
    target: &MysqlTarget,
    assignment: &Assignment,
    catalog: &Catalog,
    enrolment: &Enrolment,
    shapes: &mut Vec<Fault>,
    probed: &mut Vec<Probe>,
    faults: &mut Vec<Fault>,
) {
    let (mut absent, mut tables) = (Vec::new(), 0);
    // All tables of a projection have one shape.
    let Some(shape) = assignment.tables().next().map(|table| Shape::of(table.derived.shape.definition))
    else {
        return;
    };
    for table in assignment.tables() {
        let (database, name) = (&table.derived.database, &table.derived.table);
        let quoted = quote_table(database, name);
        tables += 1;
        match catalog.table(database, name) {
            None => absent.push(quoted),
            Some(found) => {
                let before = shapes.len();
                shapes.extend(differences(target, &quoted, found, &shape));
                if shapes.len() == before {
                    probed.push(Probe::of_derived(database, &quoted, &shape));
                }
            }
        }
    }
    match absent.first() {
        Some(table) if enrolment.has_moved(&assignment.name) => {
            faults.push(gone(target, &assignment.name, table));
        }
        _ => faults.extend(missing(target, &absent, tables)),
    }
}

pub(super) fn missing(target: &MysqlTarget, absent: &[String], tables: usize) -> Option<Fault> {
    let first = absent.first()?;
    let found = match absent.len() {
        1 => "it does not exist, or the account has no privilege on it".to_owned(),
        count => format!("it and {} more of {tables} tables do not exist", count - 1),
    };
    Some(
        Fault::new(Code::TargetTableMissing, format!("{}, table {first}", target.subject()), found)
            .needs("every derived and control table")
            .remedy(SETUP_COMMAND),
    )
}

/// Returns the fault of the projection's first lane without a matching progress row: the others share its mistake.
fn progress_fault(target: &MysqlTarget, assignment: &Assignment, enrolment: &Enrolment) -> Option<Fault> {
    let lanes = target.lane_ids().into_iter().filter(|lane| lane.projection == assignment.name);
    lanes.into_iter().find_map(|lane| {
        let new = || {
            let found = "no progress row was made for it yet";
            Fault::new(Code::TargetProgressLost, format!("lane {lane}"), found)
                .needs("a progress row")
                .remedy(SETUP_COMMAND)
        };
        enrolment
            .loss(&target.subject(), assignment, &lane)
            .or_else(|| enrolment.row(&lane).is_none().then(new))
    })
}

/// Returns the differences between a table and its needed shape.
pub(super) fn differences(
    target: &MysqlTarget,
    quoted: &str,
    found: &FoundTable,
    needed: &Shape,
) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut add = |what: String, needs: &str, alter: String| {
        faults.push(
            Fault::new(Code::TargetTableShape, format!("{}, table {quoted}", target.subject()), what)
                .needs(needs)
                .remedy(format!("ALTER TABLE {quoted} {alter}")),
        );
    };
    for column in &needed.columns {
        let name = quote_identifier(column.name);
        match found.columns.iter().find(|found| found.name == column.name) {
            None => add(
                format!("column {name} is missing"),
                column.column_type,
                format!("ADD COLUMN {name} {}", column.definition),
            ),
            Some(other) if other.column_type != column.column_type || other.nullable != column.nullable => {
                let null = |nullable| if nullable { "NULL" } else { "NOT NULL" };
                add(
                    format!("column {name} is {} {}", other.column_type, null(other.nullable)),
                    &format!("{} {}", column.column_type, null(column.nullable)),
                    format!("MODIFY COLUMN {name} {}", column.definition),
                );
            }
            Some(_) => {}
        }
    }
    for extra in found.columns.iter().filter(|c| needed.columns.iter().all(|n| n.name != c.name)) {
        if !extra.fills_itself {
            let name = quote_identifier(&extra.name);
            let what = format!("a further column {name} is {} NOT NULL without a default", extra.column_type);
            add(what, "a column that may be left out of an INSERT", {
                format!("MODIFY COLUMN {name} {} NULL", extra.column_type)
            });
        }
    }
    key_differences(found, needed, &mut add);
    if !found.engine.eq_ignore_ascii_case("InnoDB") {
        add(format!("its engine is {}", found.engine), "InnoDB: rows and progress in one transaction", {
            "ENGINE = InnoDB".to_owned()
        });
    }
    faults
}

fn key_differences(found: &FoundTable, needed: &Shape, add: &mut impl FnMut(String, &str, String)) {
    let needed_key: Vec<String> = needed.primary_key.iter().map(|name| quote_identifier(name)).collect();
    let needed_key = needed_key.join(", ");
    match found.unique_keys.get("PRIMARY") {
        Some(key) if key.iter().map(String::as_str).eq(needed.primary_key.iter().copied()) => {}
        Some(key) => add(
            format!("its primary key is ({})", key.join(", ")),
            &format!("PRIMARY KEY ({needed_key})"),
            format!("DROP PRIMARY KEY, ADD PRIMARY KEY ({needed_key})"),
        ),
        None => add(
            "it has no primary key".to_owned(),
            &format!("PRIMARY KEY ({needed_key})"),
            format!("ADD PRIMARY KEY ({needed_key})"),
        ),
    }
    for (name, columns) in found.unique_keys.iter().filter(|(name, _)| *name != "PRIMARY") {
        // ON DUPLICATE KEY UPDATE would change the row that this key finds, which may be another shard's claim.
        add(
            format!("a second unique key {} ({})", quote_identifier(name), columns.join(", ")),
            "no unique key beside the primary key: several shards may claim one row",
            format!("DROP INDEX {}", quote_identifier(name)),
        );
    }
}

fn limit(shapes: &mut Vec<Fault>, target: &MysqlTarget) {
    if shapes.len() > SHAPE_FAULTS_MAX {
        let more = shapes.len() - SHAPE_FAULTS_MAX;
        shapes.truncate(SHAPE_FAULTS_MAX);
        shapes.push(Fault::new(
            Code::TargetTableShape,
            target.subject(),
            format!("{more} more differences like these"),
        ));
    }
}

/// Statements that need the privileges of lanes and reconciliations, and touch no row.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Probe {
    /// The object of the grant: a database with all its tables, or one table.
    on: String,
    privileges: &'static str,
    statements: String,
}

impl Probe {
    fn of_derived(database: &str, quoted: &str, shape: &Shape) -> Self {
        let (columns, first) = columns(shape);
        let statements = format!(
            "INSERT INTO {quoted} ({columns}) SELECT {columns} FROM {quoted} AS `nothing` WHERE FALSE \
             ON DUPLICATE KEY UPDATE {quoted}.{first} = {quoted}.{first}; DELETE FROM {quoted} WHERE FALSE"
        );
        let on = format!("{}.*", quote_identifier(database));
        Self { on, privileges: "SELECT, INSERT, UPDATE, DELETE", statements }
    }

    /// Probes the progress table, whose rows set-up inserts.
    fn of_progress(target: &MysqlTarget) -> Self {
        let on = target.progress_table();
        let statements = format!("UPDATE {on} SET `lane` = `lane` WHERE FALSE");
        Self { on, privileges: "SELECT, UPDATE", statements }
    }

    /// Probes the table of retired source tables, whose rows go with the last derived row.
    fn of_retired(target: &MysqlTarget) -> Self {
        let on = target.retired_table();
        let (columns, first) = columns(&Shape::of(sql::RETIRED));
        let statements = format!(
            "INSERT INTO {on} ({columns}) SELECT {columns} FROM {on} AS `nothing` WHERE FALSE \
             ON DUPLICATE KEY UPDATE {on}.{first} = {on}.{first}; DELETE FROM {on} WHERE FALSE"
        );
        Self { on, privileges: "SELECT, INSERT, UPDATE, DELETE", statements }
    }

    /// Probes a table of history, whose rows are never changed.
    fn of_history(target: &MysqlTarget, table: &str, statement: &'static str) -> Self {
        let on = quote_table(&target.0.control_database, table);
        let (columns, _) = columns(&Shape::of(statement));
        let statements =
            format!("INSERT INTO {on} ({columns}) SELECT {columns} FROM {on} AS `nothing` WHERE FALSE");
        Self { on, privileges: "SELECT, INSERT", statements }
    }
}

/// Returns all columns of a table, and the first one.
fn columns(shape: &Shape) -> (String, String) {
    let columns: Vec<String> = shape.columns.iter().map(|column| quote_identifier(column.name)).collect();
    (columns.join(", "), columns[0].clone())
}

/// Tries the privileges on each object at once: usually a missing one is missing on the whole object.
async fn check_privileges(
    session: &mut Session,
    target: &MysqlTarget,
    mut probed: Vec<Probe>,
    faults: &mut Vec<Fault>,
) {
    probed.sort();
    for together in probed.chunk_by(|a, b| a.on == b.on) {
        let statements: Vec<&str> = together.iter().map(|probe| probe.statements.as_str()).collect();
        let tried = session.run(format!("START TRANSACTION; {}; ROLLBACK", statements.join("; "))).await;
        let Err(fault) = tried else { continue };
        match fault.code() {
            Code::TargetGrantMissing => {
                let (Probe { on, privileges, .. }, user) = (&together[0], target.0.url.user());
                let remedy = format!("GRANT {privileges} ON {on} TO '{user}'@'<host of Anabranch>'");
                faults.push(fault.needs(*privileges).remedy(remedy));
            }
            Code::TargetReadOnly => {
                faults.push(fault.needs("a server that accepts writes").remedy(
                    "SET GLOBAL read_only = OFF (MySQL: super_read_only too), or configure the primary",
                ));
            }
            _ => faults.push(fault),
        }
        // An error leaves the transaction open; after a lost connection nothing more can be checked.
        if session.run("ROLLBACK".to_owned()).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_both_flavors() {
        assert_eq!(version_number("10.11.19-MariaDB-log"), (10, 11));
        assert_eq!(version_number("8.4.3"), (8, 4));
        assert_eq!(version_number("weird"), (0, 0));
    }
}
