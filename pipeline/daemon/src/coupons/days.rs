//! Begins days by hand: in the ledger, by the rule of the schedule.

use std::sync::Arc;

use anabranch_coupons::dispatching::begin_days;
use anabranch_coupons::ports::{Clock, Ledger};
use anabranch_coupons::programme::Programme;
use anabranch_coupons::records::{DayRun, RunKey};
use anabranch_pipeline::error::{Code, Fault};
use jiff::civil::Date;
use tokio::sync::OnceCell;

use super::process::Process;
use crate::wiring::{CouponLedger, Wiring};

/// The days of all programmes. Cheap to clone.
#[derive(Clone)]
pub struct CouponDays {
    wiring: Wiring,
    ledger: Arc<OnceCell<CouponLedger>>,
}

impl CouponDays {
    pub fn new(wiring: &Wiring) -> Self {
        Self { wiring: wiring.clone(), ledger: Arc::default() }
    }

    /// Returns whether a programme of this name is configured and grants coupons.
    pub fn knows(&self, programme: &str) -> bool {
        let config = self.wiring.config();
        config.coupon_system.is_some() && super::programme(config, programme).is_ok()
    }

    /// Begins the days of a programme that have come, and returns the run of this one.
    pub async fn begin(&self, programme: &str, day: Date) -> Result<DayRun, Fault> {
        let programme = super::programme(self.wiring.config(), programme)?;
        let ledger = self.ledger.get_or_try_init(|| self.wiring.coupon_ledger()).await?;
        begin_days(ledger, &Process, &programme).await?;
        let key = RunKey { programme: programme.name.clone(), day };
        let run = ledger.with_run(&key, &[], |l| l.run.clone()).await?;
        run.ok_or_else(|| no_run(&programme, day))
    }
}

/// Returns the fault for a day without a run, with the reason why its schedule has begun none.
pub fn no_run(programme: &Programme, day: Date) -> Fault {
    let subject = format!("programme {}, day {day}", programme.name);
    let refused = |found: String| Fault::new(Code::DispatchRefused, subject, found);
    match programme.at(day, programme.starts_at).filter(|at| Process.now() < *at) {
        Some(at) => refused(format!("the day begins at {at}")).needs("a day that has begun"),
        None => refused("the programme has no run of this day, since it began on a later one".to_owned())
            .needs("a day from the programme's first one on"),
    }
}
