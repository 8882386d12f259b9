//! Builds a dispatcher and a granter on the connectors of this configuration.

use std::sync::Arc;

use anabranch_coupons::breaker::Breaker;
use anabranch_coupons::dispatching::Dispatcher;
use anabranch_coupons::granting::Granter;
use anabranch_coupons::issuers::Issuers;
use anabranch_coupons::resending::Resends;
use anabranch_pipeline::error::Fault;
use jiff::SignedDuration;

use super::cohort::DayTables;
use super::copies::{PublishedRounds, QueueWithoutCopies};
use super::lane_lag::LaneLag;
use super::process::Process;
use super::register::LedgerRegister;
use crate::wiring::{CouponCaller, CouponLedger, CouponQueue, CouponSources, Wiring};

/// A dispatcher on the real servers.
pub type DayDispatcher =
    Dispatcher<CouponLedger, DayTables, QueueWithoutCopies<CouponQueue>, LedgerRegister, Process>;
/// A granter on the real servers.
pub type DayGranter = Granter<CouponLedger, CouponSources, CouponCaller, DayTables, LedgerRegister, Process>;

/// Returns the birthday tables of the configuration.
pub fn cohort(wiring: &Wiring, lane_lag: &LaneLag) -> Result<DayTables, Fault> {
    DayTables::new(wiring, lane_lag.clone())
}

/// Returns the dispatcher of this configuration. `lane_lag` is the one of its process; `published` and `resends` are
/// those of its task.
pub async fn dispatcher(
    wiring: &Wiring,
    lane_lag: &LaneLag,
    published: &PublishedRounds,
    resends: &Arc<Resends>,
) -> Result<DayDispatcher, Fault> {
    Ok(Dispatcher {
        ledger: wiring.coupon_ledger().await?,
        cohort: cohort(wiring, lane_lag)?,
        queue: QueueWithoutCopies::new(wiring.work_queue().await?, published),
        register: LedgerRegister(wiring.clone()),
        process: Process,
        resends: resends.clone(),
    })
}

/// Returns the granter of this configuration. `breaker`, `sources` and `lane_lag` are those of its process.
pub async fn granter(
    wiring: &Wiring,
    (breaker, sources): (Arc<Breaker>, CouponSources),
    lane_lag: &LaneLag,
) -> Result<DayGranter, Fault> {
    let key_memory = wiring.coupon_system()?.key_memory;
    Ok(Granter {
        ledger: wiring.coupon_ledger().await?,
        sources,
        coupons: wiring.coupon_caller()?,
        cohort: cohort(wiring, lane_lag)?,
        register: LedgerRegister(wiring.clone()),
        process: Process,
        breaker,
        issuers: Arc::new(Issuers::default()),
        key_memory: SignedDuration::try_from(key_memory).unwrap_or(SignedDuration::MAX),
    })
}
