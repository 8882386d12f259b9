//! Sweeps of a run: they overlap, and the run knows each by its number.

use anabranch_coupons::days::{begin_sweep, continue_sweep};
use anabranch_coupons::ports::Ledger;
use anabranch_coupons::records::{DayRun, RunKey, RunLedger, SWEEPS_MAX, Unique};

/// Expects that a run knows the numbers of sweeps that overlap until too many have begun since.
pub async fn expect_sweeps(ledger: &impl Ledger, run: &RunKey, stored: DayRun) {
    let sweep = |number| move |l: &mut RunLedger| begin_sweep(l, Unique(number));
    let first = ledger.with_run(run, &[], sweep(u128::MAX)).await.unwrap().unwrap();
    assert_eq!(first.run, DayRun { sweeps: vec![Unique(7), Unique(u128::MAX)], ..stored });
    for number in 1..SWEEPS_MAX as u128 {
        ledger.with_run(run, &[], sweep(number)).await.unwrap().unwrap();
    }
    // The second reading of the oldest one has a number of its own, behind the others.
    let again = |number| {
        let first = first.clone();
        move |l: &mut RunLedger| continue_sweep(l, &first, Unique(number))
    };
    let numbers: Vec<Unique> = (1..SWEEPS_MAX as u128).chain([100]).map(Unique).collect();
    let continued = ledger.with_run(run, &[], again(100)).await.unwrap().unwrap();
    assert_eq!(continued.run.sweeps, numbers);
    assert_eq!(ledger.with_run(run, &[], again(101)).await.unwrap(), None);
    let newest = ledger.with_run(run, &[], sweep(102)).await.unwrap().unwrap();
    assert_eq!((newest.run.sweeps.len(), newest.run.sweeps[0]), (SWEEPS_MAX, Unique(2)));
}
