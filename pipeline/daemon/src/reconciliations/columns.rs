//! The columns of birthday tables that follow the coupon ledger, compared with it as a store of its own.
//!
//! It reads the tables of each day whose run is open. A run closes only after a reconciliation of the night after it,
//! so each day's tables are compared at least once. The ledger decides, but not one that was restored. A row that
//! differs is compared again before it counts, since a granter writes the ledger first.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::time::Duration;

use anabranch_coupons::columns::{ColumnsDrift, LastCoupon, drift};
use anabranch_coupons::issuing::Chain;
use anabranch_coupons::ports::Ledger;
use anabranch_coupons::records::RunKey;
use anabranch_coupons::restored;
use anabranch_pipeline::config::Config;
use anabranch_pipeline::config::reconcile::{Mode, ReconcileSettings};
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::reconcile::{StoreReport, StoreState, Verdict};
use anabranch_pipeline::throttle::{SharedThrottle, Throttle};
use anabranch_schemas::celebration::Birthday;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::coupons::{self, LedgerRegister};
use crate::wiring::{CouponColumns, CouponColumnsRow, CouponLedger, Wiring};

/// The name of the store. No projection has a slash in its name.
pub(super) const COLUMNS: &str = "coupons/columns";
/// Rows of a page, and users of one query of the ledger, at most.
const PAGE_ROWS: NonZeroUsize = NonZeroUsize::new(5_000).expect("it is not 0");
/// Length of a page in time at the server's rate.
const PAGE: Duration = Duration::from_millis(50);
/// Time within which a granter writes the columns after the ledger.
const FOLLOWS_WITHIN: Duration = Duration::from_secs(2);
/// Differences in a table that are repaired whatever their share, at most.
const SHARE_ROWS_MIN: usize = 100;

/// A row that differs, with its right content and the kind of its drift.
type WrongRow = (CouponColumnsRow, Option<LastCoupon>, ColumnsDrift);

/// Returns whether a configuration has the store.
pub(super) fn is_configured(config: &Config) -> bool {
    config.coupon_system.is_some() && !config.programmes.is_empty()
}

/// Compares all tables, from the beginning.
pub(super) async fn reconciliation(
    wiring: &Wiring,
    settings: &ReconcileSettings,
    state: &mut StoreState,
    cancel: &CancellationToken,
) {
    state.report = StoreReport::new(COLUMNS);
    let began = Instant::now();
    let compared = tokio::select! {
        biased;
        () = cancel.cancelled() => return,
        compared = compare(wiring, settings, &mut state.report) => compared,
    };
    if let Err(fault) = compared {
        state.report.set_incomplete(format!("not read to its end: {fault}"));
    }
    state.report.seconds = began.elapsed().as_secs_f64();
    state.next = None;
}

async fn compare(
    wiring: &Wiring,
    settings: &ReconcileSettings,
    report: &mut StoreReport,
) -> Result<(), Fault> {
    let ledger = wiring.coupon_ledger().await?;
    let (chain, ..) = restored::compare(&ledger, &LedgerRegister(wiring.clone())).await?;
    if chain == Some(Chain::Restored) {
        return Err(restored::fault());
    }
    let throttle = SharedThrottle::new(Throttle::new(settings.limits.rows_per_second, PAGE, PAGE_ROWS));
    let tables = wiring.coupon_tables()?;
    for birthday in birthdays(wiring.config(), &ledger).await? {
        for table in tables.columns_tables(birthday)? {
            let comparison = TableComparison { ledger: &ledger, table: &table, throttle: &throttle };
            comparison.run(settings, report).await?;
        }
    }
    Ok(())
}

/// Returns the birthdays of the days whose runs are open and have a cohort.
async fn birthdays(config: &Config, ledger: &CouponLedger) -> Result<BTreeSet<Birthday>, Fault> {
    let mut birthdays = BTreeSet::new();
    for programme in coupons::programmes(config)? {
        for day in ledger.with_programme(&programme.name, |l| l.open.clone()).await? {
            let key = RunKey { programme: programme.name.clone(), day };
            let run = ledger.with_run(&key, &[], |l| l.run.clone()).await?;
            birthdays.extend(run.filter(|run| run.frozen > 0).iter().flat_map(|run| run.birthdays(day)));
        }
    }
    Ok(birthdays)
}

/// Comparison of one table with the ledger.
struct TableComparison<'a> {
    ledger: &'a CouponLedger,
    table: &'a CouponColumns,
    throttle: &'a SharedThrottle,
}

impl TableComparison<'_> {
    async fn run(&self, settings: &ReconcileSettings, report: &mut StoreReport) -> Result<(), Fault> {
        let (mut suspects, mut read, mut after) = (Vec::new(), 0, None);
        loop {
            let limit = self.throttle.take().await.get();
            let page = self.table.page(after, limit).await?;
            self.throttle.give_back(limit - page.len().min(limit));
            let Some(last) = page.last() else { break };
            (after, read) = (Some(last.key), read + page.len());
            suspects.extend(self.wrong(page).await?.into_iter().map(|(row, ..)| row.key));
            if suspects.len() as u64 > settings.gate_keys {
                break;
            }
        }
        report.tables += 1;
        report.rows_derived += read as u64;
        report.rows_expected += read as u64;
        if suspects.is_empty() {
            return Ok(());
        }
        report.candidates += suspects.len() as u64;
        tokio::time::sleep(FOLLOWS_WITHIN).await;
        let wrong = self.wrong(self.table.of(&suspects).await?).await?;
        report.count(Verdict::InFlight, (suspects.len() - wrong.len()) as u64);
        wrong.iter().for_each(|(.., drift)| report.count(verdict(*drift), 1));
        let share = wrong.len() as f64 / read.max(1) as f64;
        report.is_gate_closed |= report.drifted() > settings.gate_keys
            || wrong.len() > SHARE_ROWS_MIN && share > settings.gate_share;
        if report.is_gate_closed || settings.mode == Mode::Report {
            report.left += wrong.len() as u64;
            return Ok(());
        }
        self.mend(&wrong, report).await
    }

    async fn mend(&self, wrong: &[WrongRow], report: &mut StoreReport) -> Result<(), Fault> {
        if wrong.is_empty() {
            return Ok(());
        }
        let rows: Vec<_> = wrong.iter().map(|(row, last, _)| (*row, *last)).collect();
        self.table.mend(&rows).await?;
        let keys: Vec<_> = wrong.iter().map(|(row, ..)| row.key).collect();
        let left = self.wrong(self.table.of(&keys).await?).await?.len() as u64;
        let mended = keys.len() as u64;
        report.repaired += mended;
        report.confirmed += mended - left;
        report.left += left;
        Ok(())
    }

    /// Returns the rows among these that differ from the ledger as it is now.
    async fn wrong(&self, rows: Vec<CouponColumnsRow>) -> Result<Vec<WrongRow>, Fault> {
        let mut last = BTreeMap::new();
        let users: Vec<u64> = rows.iter().map(|row| row.key.0).collect();
        for users in users.chunks(PAGE_ROWS.get()) {
            last.extend(self.ledger.last_coupons(&users.iter().copied().collect()).await?);
        }
        let calendar = self.table.calendar();
        let wrong = |row: CouponColumnsRow| {
            let last = last.get(&(row.key.0, calendar)).copied();
            drift(row.columns, last).map(|drift| (row, last, drift))
        };
        Ok(rows.into_iter().filter_map(wrong).collect())
    }
}

fn verdict(drift: ColumnsDrift) -> Verdict {
    match drift {
        ColumnsDrift::Missing => Verdict::Missing,
        ColumnsDrift::Stale => Verdict::Stale,
        ColumnsDrift::Orphan => Verdict::Orphan,
    }
}
