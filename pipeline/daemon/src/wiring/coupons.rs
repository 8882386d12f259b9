//! The connectors of the coupon day: ledger, birthday tables, source rows, work queue, coupon system, signed reports.

use anabranch_connectors::coupon_system::CouponSystemSettings;
pub use anabranch_connectors::coupon_system::HttpCouponSystem as CouponCaller;
pub use anabranch_connectors::mysql::cohort::{
    ColumnsRow as CouponColumnsRow, ColumnsTable as CouponColumns, MysqlCohort as CouponTables,
};
use anabranch_connectors::mysql::ledger;
pub use anabranch_connectors::mysql::ledger::MySqlLedger as CouponLedger;
pub use anabranch_connectors::mysql::source_rows::MysqlSourceRows as CouponSources;
pub use anabranch_connectors::mysql::store::MysqlHistory as PastReports;
use anabranch_connectors::mysql::store::{MysqlTarget, SetupReport};
pub use anabranch_connectors::nats::work_queue::{
    ACK_WAIT as COUPON_ACK_WAIT, Delivery as CouponDelivery, NatsWorkQueue as CouponQueue,
    WorkQueuePart as CouponQueuePart,
};
use anabranch_coupons::ports::CouponSystem;
use anabranch_coupons::records::Unique;
use anabranch_pipeline::config::CouponSystemConfig;
use anabranch_pipeline::error::{Code, Fault};

use super::{TargetServer, Wiring};

/// Connections to each target for pages of birthday tables and their columns that follow the ledger.
const TABLE_CONNECTIONS: usize = 8;

/// Connections to the ledger's target at least: a freeze writes over two, and `status` and reports read beside it.
const LEDGER_CONNECTIONS_MIN: usize = 4;

/// The token of an unused ledger, and of a register that was never set.
const UNUSED: Unique = Unique(0);

impl Wiring {
    /// Returns the section `[coupon_system]`.
    pub fn coupon_system(&self) -> Result<&CouponSystemConfig, Fault> {
        self.config().coupon_system.as_ref().ok_or_else(|| {
            Fault::new(Code::ConfigInvalid, "configuration key coupon_system", "missing")
                .needs("a [coupon_system] section: the system that gives out the coupons, and the target of the ledger")
        })
    }

    /// Returns the ledger, once its tables have the needed shape.
    pub async fn coupon_ledger(&self) -> Result<CouponLedger, Fault> {
        let connections = self.coupon_system()?.calls_in_flight.get().max(LEDGER_CONNECTIONS_MIN);
        CouponLedger::open(self.ledger_target()?, connections).await
    }

    /// Creates the ledger's tables and the work queue; returns lines about both.
    pub async fn set_up_coupons(&self) -> Result<Vec<String>, Vec<Fault>> {
        let one = |fault| vec![fault];
        let target = self.ledger_target().map_err(one)?;
        let made = ledger::setup(target, UNUSED).await.map_err(one)?;
        let queue = self.work_queue().await.map_err(one)?.setup().await?;
        let thing = format!("coupon ledger of target {}", target.name());
        let SetupReport { databases, tables, columns, .. } = made;
        let added = match columns {
            0 => String::new(),
            columns => format!("; added {columns} columns to tables of an earlier version"),
        };
        let made = match made == SetupReport::default() {
            true => format!("{thing}: as needed"),
            false => format!("{thing}: created {databases} databases, {tables} tables{added}"),
        };
        Ok(vec![made, queue.to_string()])
    }

    /// Does the pre-flight of the ledger, the work queue, the coupon system and the reads of single users.
    pub async fn check_coupons(&self) -> Vec<Fault> {
        let ledger = async {
            match self.ledger_target() {
                Ok(target) => ledger::check(target).await,
                Err(fault) => vec![fault],
            }
        };
        let queue = async {
            match self.work_queue().await {
                Ok(queue) => queue.check().await,
                Err(fault) => vec![fault],
            }
        };
        let system = async { self.reach_coupon_system().await.err().into_iter().collect::<Vec<_>>() };
        let sources = async {
            match self.coupon_sources() {
                Ok(sources) => sources.check().await,
                Err(fault) => vec![fault],
            }
        };
        let (ledger, queue, system, sources) = tokio::join!(ledger, queue, system, sources);
        ledger.into_iter().chain(queue).chain(system).chain(sources).collect()
    }

    fn ledger_target(&self) -> Result<&MysqlTarget, Fault> {
        let name = &self.coupon_system()?.ledger_target;
        match &self.target(name)?.server {
            TargetServer::Mysql(server) => Ok(server),
            TargetServer::Search(_) => Err(Fault::new(
                Code::ConfigInvalid,
                "configuration key coupon_system.ledger_target",
                format!("`{name}` is a search server"),
            )
            .needs("the name of a target with a mysql:// URL")),
        }
    }

    /// Returns the birthday tables of all calendars; nothing is connected yet.
    pub fn coupon_tables(&self) -> Result<CouponTables, Fault> {
        let projections: Vec<&str> = self.coupon_system()?.projections.iter().map(String::as_str).collect();
        CouponTables::new(self.config(), &projections, TABLE_CONNECTIONS)
    }

    /// Returns the source tables of all users; nothing is connected yet.
    pub fn coupon_sources(&self) -> Result<CouponSources, Fault> {
        Ok(CouponSources::new(self.config(), self.coupon_tables()?))
    }

    /// Returns the coupon system; nothing is connected yet.
    pub fn coupon_caller(&self) -> Result<CouponCaller, Fault> {
        let system = self.coupon_system()?;
        CouponCaller::new(&CouponSystemSettings {
            url: system.url.clone(),
            token: system.token.clone(),
            ca_file: system.ca_file.clone(),
            is_batched: system.is_batched,
            timeout: system.timeout,
        })
    }

    /// Opens a connection to the coupon system, over TLS with a verified certificate, and closes it without a request.
    pub async fn reach_coupon_system(&self) -> Result<(), Fault> {
        self.coupon_caller()?.connect().await.map(drop)
    }

    /// Returns the work queue, over connections of its own.
    pub async fn work_queue(&self) -> Result<CouponQueue, Fault> {
        CouponQueue::connect(&self.config().log, &self.config().name).await
    }

    /// Returns the signed reports of coupon days, in the control database of the ledger's target.
    pub fn coupon_reports(&self) -> Result<PastReports, Fault> {
        self.ledger_target().map(PastReports::of_coupon_days)
    }
}
