//! Builds a dispatcher and a granter on the connectors of this configuration.

use std::sync::Arc;

use anabranch_coupons::breaker::Breaker;
use anabranch_coupons::dispatching::Dispatcher;
use anabranch_coupons::granting::Granter;
use anabranch_coupons::issuers::Issuers;
use anabranch_pipeline::error::Fault;
use jiff::SignedDuration;

use super::cohort::DayTables;
use super::process::Process;
use super::register::LedgerRegister;
use crate::wiring::{CouponCaller, CouponLedger, CouponQueue, CouponSources, Wiring};

/// A dispatcher on the real servers.
pub type DayDispatcher = Dispatcher<CouponLedger, DayTables, CouponQueue, LedgerRegister, Process>;
/// A granter on the real servers.
pub type DayGranter = Granter<CouponLedger, CouponSources, CouponCaller, DayTables, LedgerRegister, Process>;

/// Returns the birthday tables of the configuration.
pub fn cohort(wiring: &Wiring) -> Result<DayTables, Fault> {
    DayTables::new(wiring)
}

/// Returns the dispatcher of this configuration.
pub async fn dispatcher(wiring: &Wiring) -> Result<DayDispatcher, Fault> {
    Ok(Dispatcher {
        ledger: wiring.coupon_ledger().await?,
        cohort: cohort(wiring)?,
        queue: wiring.work_queue().await?,
        register: LedgerRegister(wiring.clone()),
        process: Process,
    })
}

/// Returns the granter of this configuration, with the breaker of its process.
pub async fn granter(wiring: &Wiring, breaker: Arc<Breaker>) -> Result<DayGranter, Fault> {
    let key_memory = wiring.coupon_system()?.key_memory;
    Ok(Granter {
        ledger: wiring.coupon_ledger().await?,
        sources: wiring.coupon_sources()?,
        coupons: wiring.coupon_caller()?,
        cohort: cohort(wiring)?,
        register: LedgerRegister(wiring.clone()),
        process: Process,
        breaker,
        issuers: Arc::new(Issuers::default()),
        key_memory: SignedDuration::try_from(key_memory).unwrap_or(SignedDuration::MAX),
    })
}
