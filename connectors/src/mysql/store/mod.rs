//! A MySQL/MariaDB server as a store of derived rows.
//!
//! [`MysqlTarget`] is one configured target with the projections that have tables on it. `setup.rs` creates the tables
//! and `check.rs` is the pre-flight; both use `session.rs`, and `catalog.rs` reads which tables exist. [`MysqlLane`] in
//! `lane.rs` applies flushes, [`MysqlRows`] in `rows.rs` reads derived rows. `statements.rs` and `progress.rs` build
//! the SQL of a flush from `layout.rs` and `cells.rs`; `ddl.rs` knows the needed shape of each table. `lost.rs` handles
//! lanes whose progress is lost.

mod catalog;
mod cells;
mod check;
mod ddl;
mod foreign;
mod history;
mod lane;
mod layout;
mod lost;
mod mapping;
mod needed;
mod operations;
mod outbox;
mod progress;
mod relations;
mod replace;
mod retired;
mod rows;
mod select;
mod session;
mod setup;
mod statements;
mod withdraw;

use std::path::PathBuf;
use std::sync::Arc;

use anabranch_pipeline::config::{Config, ServerUrl, TargetConfig, TargetStore};
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::projections::{Assignment, Assignments, LaneScope, Projection};
use anabranch_pipeline::records::{LaneId, Progress};
use anabranch_schemas::sql;
use tokio::sync::{Mutex, Notify};
use tokio::time::Instant;

use self::check::Extent;
pub use self::history::MysqlHistory;
pub use self::lane::MysqlLane;
pub use self::mapping::{Duplicate, MysqlMapping};
pub use self::needed::NeededTable;
pub use self::operations::MysqlOperations;
pub use self::outbox::MysqlOutbox;
use self::outbox::{CACHE_TABLE, OUTBOX_TABLE};
pub use self::relations::MysqlRelations;
pub use self::retired::{Newest, Outlived, RetiredDocument, RetiredTable, SweepPlace};
pub use self::rows::MysqlRows;
use self::session::Session;
pub use self::setup::SetupReport;
use super::connection::quote_table;
use super::error::Side;
use super::pool::{LIFE_MAX, Pool};
use super::target_session::TARGET_SESSION;
use crate::progress::StoredProgress;
use crate::target::{Settings, Target};

/// One configured target server. Cheap to clone.
pub type MysqlTarget = Target<StoreSettings>;

/// The settings of a target with derived tables.
#[derive(Debug)]
pub struct StoreSettings {
    name: String,
    url: ServerUrl,
    setup_url: Option<ServerUrl>,
    ca_file: Option<PathBuf>,
    control_database: String,
    statement_rows: usize,
    assignments: Assignments,
    /// Some tables of an entity with projections here are retained when they leave.
    retains: bool,
    /// The target holds the ledger of coupons, and the reports of its days.
    has_coupon_reports: bool,
    /// Notified when a lane has committed rows of the outbox.
    touched: Notify,
    /// Stays open between reads of progress, which come once a second; with the moment at which it was opened.
    progress_session: Mutex<Option<(Instant, Session)>>,
}

impl Settings for StoreSettings {
    const STORE: TargetStore = TargetStore::Mysql;
    type Lane = MysqlLane;

    fn new(config: &Config, target: &TargetConfig) -> Self {
        let assignments = Assignments::of(config, &target.name);
        let retains = assignments.iter().any(|assignment| config.retains(assignment.projection.entity()));
        Self {
            name: target.name.clone(),
            url: target.url.clone(),
            setup_url: target.setup_url.clone(),
            ca_file: target.ca_file.clone(),
            control_database: target.control_database.clone(),
            statement_rows: config.limits.statement_rows.get(),
            assignments,
            retains,
            has_coupon_reports: config
                .coupon_system
                .as_ref()
                .is_some_and(|known| known.ledger_target == target.name),
            touched: Notify::new(),
            progress_session: Mutex::default(),
        }
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn assignments(&self) -> &Assignments {
        &self.assignments
    }

    fn lane(target: &MysqlTarget, assignment: &Arc<Assignment>, id: &LaneId) -> MysqlLane {
        MysqlLane::new(target.clone(), Arc::clone(assignment), id.clone())
    }
}

impl MysqlTarget {
    /// Returns the outbox of a projection; `None` unless it has tables here and a cache.
    pub fn outbox(&self, projection: &str) -> Option<MysqlOutbox> {
        let assignment = self.0.assignments.of_projection(projection)?;
        assignment.is_cached.then(|| MysqlOutbox::new(self, projection))
    }

    /// Derived rows of a projection, over `connections` of their own; `None` when it has no tables here.
    pub fn rows(&self, projection: &str, connections: usize) -> Option<MysqlRows> {
        let assignment = self.0.assignments.of_projection(projection)?;
        let pool = self.pool(connections).shown(self.name(), "derived_rows");
        Some(MysqlRows::new(self.clone(), Arc::clone(assignment), pool))
    }

    /// Derived rows of a lane's projection, over one connection that is made when it is needed.
    fn rows_of_lane(&self, assignment: &Arc<Assignment>) -> MysqlRows {
        MysqlRows::new(self.clone(), Arc::clone(assignment), self.pool(1))
    }

    fn pool(&self, connections: usize) -> Pool {
        self.pool_with_session(connections, TARGET_SESSION)
    }

    pub(super) fn pool_with_session(&self, connections: usize, session: &str) -> Pool {
        let named = (Side::Target, self.subject());
        Pool::with_session(named, &self.0.url, self.0.ca_file.as_deref(), connections, session)
    }

    /// Returns name and statement of each control table.
    fn control_tables(&self) -> Vec<(&'static str, &'static str)> {
        let mut tables = vec![
            (ddl::PROGRESS_TABLE, sql::PROGRESS),
            (ddl::ENROLLED_TABLE, sql::ENROLLED),
            (ddl::RECONCILIATIONS_TABLE, sql::RECONCILIATIONS),
            (ddl::OPERATIONS_TABLE, sql::OPERATIONS),
        ];
        if self.0.retains {
            tables.push((ddl::RETIRED_TABLE, sql::RETIRED));
        }
        if self.0.has_coupon_reports {
            tables.push((ddl::COUPON_REPORTS_TABLE, sql::COUPON_REPORTS));
        }
        // The tables are made without a cache too: lanes that know of none inform those that do.
        if self.0.assignments.iter().any(|assignment| assignment.projection.is_cached()) {
            tables.extend([(OUTBOX_TABLE, sql::OUTBOX), (CACHE_TABLE, sql::CACHE)]);
        }
        tables
    }

    /// Creates missing control tables, derived databases and tables, and first progress rows. Safe to repeat.
    ///
    /// It creates nothing when progress was lost or belongs to another layout or number of lanes.
    pub async fn setup(&self) -> Result<SetupReport, Fault> {
        setup::setup(&self.as_setup_account(), None).await
    }

    /// Returns the derived tables of a projection that do not exist although its lanes have applied rows.
    pub async fn gone_tables(&self, projection: &str) -> Result<Vec<String>, Fault> {
        setup::gone_tables(&self.as_setup_account(), projection).await
    }

    /// Sets up as [`Self::setup`] does, and creates also what [`Self::gone_tables`] returns. Its lanes must have been
    /// asked to read all source tables before: otherwise rows would be missing without a sign.
    pub async fn refill(&self, projection: &str) -> Result<SetupReport, Fault> {
        setup::setup(&self.as_setup_account(), Some(projection)).await
    }

    /// Returns the lanes of a source whose progress is lost or damaged. Lanes that have progress of another layout or
    /// number of lanes are not among them.
    pub async fn lost_lanes(&self, source: &str) -> Result<Vec<LaneId>, Fault> {
        lost::lost_lanes(self, source).await
    }

    /// Stores progress of lanes in place of what they lost; creates control tables that are gone.
    pub async fn begin_lost_lanes(&self, lanes: &[(LaneId, Progress)]) -> Result<(), Fault> {
        lost::begin(&self.as_setup_account(), lanes).await
    }

    /// Returns the target with its set-up account, if it has one.
    fn as_setup_account(&self) -> Self {
        let Some(url) = self.0.setup_url.clone() else { return self.clone() };
        Self(Arc::new(StoreSettings {
            name: self.0.name.clone(),
            url,
            setup_url: None,
            ca_file: self.0.ca_file.clone(),
            control_database: self.0.control_database.clone(),
            statement_rows: self.0.statement_rows,
            assignments: self.0.assignments.clone(),
            retains: self.0.retains,
            has_coupon_reports: self.0.has_coupon_reports,
            touched: Notify::new(),
            progress_session: Mutex::default(),
        }))
    }

    /// Checks everything that applying depends on; each failed check is one fault. Changes nothing.
    pub async fn check(&self) -> Vec<Fault> {
        check::check(self, Extent::Everything).await
    }

    /// Checks only what lanes use, as [`Self::check`] does.
    pub async fn check_for_lanes(&self) -> Vec<Fault> {
        check::check(self, Extent::Lanes).await
    }

    /// Returns all progress rows of this target, also of lanes that are not configured any more. Waits for no lock.
    pub async fn progress(&self) -> Result<Vec<StoredProgress>, Fault> {
        let mut kept = self.0.progress_session.lock().await;
        // The session is taken out, so that a cancelled or failed query never leaves a half-used session behind. A kept
        // session may be dead: only a new one's failure counts.
        match kept.take() {
            // The address may lead to another server by now, and the old one would show its old progress for ever.
            Some((opened, session)) if opened.elapsed() > LIFE_MAX => session.close().await,
            Some((opened, mut session)) => {
                if let Ok(rows) = session.progress(self).await {
                    *kept = Some((opened, session));
                    return Ok(rows);
                }
            }
            None => {}
        }
        let mut session = Session::open(self).await?;
        let rows = session.progress(self).await;
        match rows {
            Ok(_) => *kept = Some((Instant::now(), session)),
            Err(_) => session.close().await,
        }
        rows
    }

    /// End of the server's certificate, as OpenSSL writes it, over a connection of its own; `None` without TLS.
    pub async fn certificate_ends(&self) -> Result<Option<String>, Fault> {
        let mut session = Session::open(self).await?;
        let rows = session.rows(super::source::CERTIFICATE.to_owned()).await;
        session.close().await;
        let ends = rows?.into_iter().filter_map(|row| row.into_iter().nth(1).flatten());
        Ok(ends.into_iter().find(|end| !end.is_empty()))
    }

    /// `target NAME`, as faults name it.
    fn subject(&self) -> String {
        format!("target {}", self.0.name)
    }

    fn progress_table(&self) -> String {
        quote_table(&self.0.control_database, ddl::PROGRESS_TABLE)
    }

    fn retired_table(&self) -> String {
        quote_table(&self.0.control_database, ddl::RETIRED_TABLE)
    }

    fn enrolled_table(&self) -> String {
        quote_table(&self.0.control_database, ddl::ENROLLED_TABLE)
    }
}

impl MysqlLane {
    /// Returns the tables that this lane owns, in the form that the projection takes.
    pub fn scope(&self) -> LaneScope {
        LaneScope { target: self.assignment().target, lane: self.id().lane }
    }

    /// The lane's projection.
    pub fn projection(&self) -> &Projection {
        &self.assignment().projection
    }
}
