//! The share that the fullest counter of a process has used: one gauge for all counters of today and later.
//!
//! A process knows a counter as far as it leased numbers of it. An alert reads the gauge before a counter is used up.
//! So a lease of another counter does not lower the gauge, and a day that is over does not keep it high: each scrape of
//! an idle process shows the counters that are left.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anabranch_schemas::flux::counter::Counter;
use anabranch_schemas::flux::id::SEQUENCES;
use jiff::civil::Date;
use metrics::gauge;

use crate::metrics as names;

/// The number behind the last lease of each counter.
#[derive(Debug, Default)]
pub(super) struct UsedShare(Mutex<BTreeMap<Counter, u32>>);

impl UsedShare {
    /// Records how far a counter is leased, and shows the greatest share.
    pub fn leased(&self, counter: Counter, end: u32, today: Date) {
        let mut ends = self.ends();
        let known = ends.entry(counter).or_default();
        *known = end.max(*known);
        show(&mut ends, today);
    }

    /// Shows the greatest share of the counters that are left on this day.
    pub fn refresh(&self, today: Date) {
        show(&mut self.ends(), today);
    }

    fn ends(&self) -> MutexGuard<'_, BTreeMap<Counter, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets the days before today, and shows the greatest share of the others.
fn show(ends: &mut BTreeMap<Counter, u32>, today: Date) {
    ends.retain(|counter, _| counter.date >= today);
    let greatest = ends.values().copied().max().unwrap_or(0);
    gauge!(names::FLUX_USED).set(f64::from(greatest) / f64::from(SEQUENCES));
}
