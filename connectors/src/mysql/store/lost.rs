//! Lanes whose progress is lost or damaged: finds them, and stores other progress for them.

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::records::{LaneId, Progress};

use super::catalog::Catalog;
use super::session::Session;
use super::setup::{enrolment_of, read_enrolment};
use super::{MysqlTarget, ddl, progress};
use crate::mysql::connection::{quote_identifier, quote_table};

pub(super) async fn lost_lanes(target: &MysqlTarget, source: &str) -> Result<Vec<LaneId>, Fault> {
    let mut session = Session::open(target).await?;
    let catalog = Catalog::read(&mut session, target).await?;
    let enrolment = read_enrolment(&mut session, target, &catalog).await?;
    session.close().await;
    let assignments = target.0.assignments.iter();
    Ok(assignments.flat_map(|assignment| enrolment.lost_lanes(assignment, target.name(), source)).collect())
}

/// Stores progress of lanes in one transaction. A task that still runs one of them has an older revision, so its next
/// commit fails.
pub(super) async fn begin(target: &MysqlTarget, lanes: &[(LaneId, Progress)]) -> Result<(), Fault> {
    let mut session = Session::open(target).await?;
    let catalog = Catalog::read(&mut session, target).await?;
    let enrolment = read_enrolment(&mut session, target, &catalog).await?;
    create_control_tables(&mut session, target, &catalog).await?;
    let table = target.progress_table();
    let mut statements = vec!["START TRANSACTION".to_owned()];
    for (projection, source) in enrolment.pairs_of_lost(&target.0.assignments, lanes) {
        statements.push(enrolment_of(target, projection, source));
    }
    for (lane, own) in lanes {
        let Some(assignment) = target.0.assignments.of_lane(lane) else { continue };
        statements.push(progress::insert(&table, lane, assignment.lanes, &assignment.fingerprint()));
        statements.push(progress::set_revision(&table, lane, own.revision.saturating_sub(1)));
        statements.push(progress::update(&table, lane, own));
    }
    session.run(statements.join(";")).await?;
    session.run("COMMIT".to_owned()).await?;
    session.close().await;
    Ok(())
}

/// Creates the control tables that are gone. Derived tables are not created: one that is missing is another loss.
async fn create_control_tables(
    session: &mut Session,
    target: &MysqlTarget,
    catalog: &Catalog,
) -> Result<(), Fault> {
    let control = target.0.control_database.as_str();
    if !catalog.has_database(control) {
        session.run(format!("CREATE DATABASE IF NOT EXISTS {}", quote_identifier(control))).await?;
    }
    for (table, statement) in target.control_tables() {
        if catalog.table(control, table).is_none() {
            session.run(ddl::create(statement, &quote_table(control, table))).await?;
        }
    }
    Ok(())
}
