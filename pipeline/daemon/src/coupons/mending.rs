//! Mends a ledger that was restored from an older copy: asks the coupon system for every coupon that it gave since.
//!
//! A dispatcher does this half an hour after it saw the restore. By then each call that began before it has ended.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anabranch_coupons::programme::Programme;
use anabranch_coupons::records::ATTEMPT_TIMEOUT;
use anabranch_coupons::restored;
use anabranch_pipeline::error::{Code, Fault};
use tokio::time::Instant;

use super::{LedgerRegister, Process};
use crate::operations::{Actor, CommandText, recorded};
use crate::wiring::Wiring;

/// Asks the coupon system for its statement, takes it in and records that; returns the number of its coupons.
pub async fn mend(
    wiring: &Wiring,
    programmes: &[Programme],
    actor: &Actor,
    command: &str,
) -> Result<usize, Fault> {
    let (ledger, system) = (wiring.coupon_ledger().await?, wiring.coupon_caller()?);
    let register = LedgerRegister(wiring.clone());
    let asked = (&system, programmes);
    let work = async { restored::ask_and_take_in(&ledger, &register, &Process, asked).await };
    let after = |coupons: &usize| format!("{coupons} coupons were settled");
    Ok(recorded(wiring, actor, (CommandText::of(command).text(), None), work, after).await?.done)
}

/// The time since which a task sees the ledger as restored; clones share it.
#[derive(Debug, Clone, Default)]
pub struct SeenRestored(Arc<Mutex<Option<Instant>>>);

impl SeenRestored {
    /// Takes note of a pass; returns whether the ledger has been seen as restored for long enough.
    fn note(&self, is_restored: bool, now: Instant) -> bool {
        let mut since = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *since = is_restored.then(|| since.unwrap_or(now));
        let wait = Duration::try_from(ATTEMPT_TIMEOUT).unwrap_or(Duration::MAX);
        since.is_some_and(|since| now.duration_since(since) >= wait)
    }

    /// Mends the ledger if a pass of the first programme ended because it was restored, and if no earlier call can be
    /// under way. Returns whether it did; a fault has the reason why a person decides.
    pub(super) async fn mend(
        &self,
        wiring: &Wiring,
        programme: &Programme,
        fault: Option<&Fault>,
    ) -> Result<bool, Fault> {
        let is_restored = fault.is_some_and(|fault| fault.code() == Code::CouponLedgerRestored);
        let programmes = super::programmes(wiring.config())?;
        // The ledger is one for all programmes, so one of their tasks mends it.
        let is_first = programmes.first().is_some_and(|first| first.name == programme.name);
        if !self.note(is_restored, Instant::now()) || !is_first {
            return Ok(false);
        }
        let mended = mend(wiring, &programmes, &Actor::of_command(), "dispatch take-in").await;
        mended.map(|_| true).map_err(|fault| match fault.code() {
            Code::CouponLedgerRestored => fault,
            _ => restored::fault().caused_by(fault),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_is_mended_half_an_hour_after_it_was_first_seen_as_restored_without_a_break() {
        let seen = SeenRestored::default();
        let began = Instant::now();
        let at = |minutes: u64| began + Duration::from_secs(60 * minutes);
        assert!(!seen.note(true, at(0)));
        assert!(!seen.note(true, at(29)));
        assert!(seen.note(true, at(30)));
        assert!(!seen.note(false, at(31)), "a pass found the ledger whole");
        assert!(!seen.note(true, at(40)));
        assert!(!seen.note(true, at(69)));
        assert!(seen.note(true, at(70)));
    }
}
