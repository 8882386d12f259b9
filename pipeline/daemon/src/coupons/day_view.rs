//! The newest day of a programme as its dispatcher last saw it, for `status`, metrics and the live page.
//!
//! The dispatcher keeps it in a register of the log, so every process shows the same without reading the ledger. Only
//! the ledger decides.

use std::collections::BTreeMap;

use anabranch_coupons::records::{DayRun, WAVES};
use anabranch_coupons::report::Report;
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::Registers;
use jiff::Timestamp;
use jiff::civil::Date;
use serde::{Deserialize, Serialize};

/// A day with its phase and the counts of its members.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DayView {
    /// `None` before the first day.
    pub day: Option<String>,
    /// Start of the day by the programme's rules, seconds since the Unix epoch.
    pub starts_at: i64,
    /// Waves that are frozen: midnight, noon, catch-up.
    pub frozen: u8,
    /// Time at which each wave was first seen frozen, seconds since the Unix epoch.
    pub frozen_at: Vec<i64>,
    pub is_closed: bool,
    /// Every wave so far was frozen after the barrier.
    pub is_after_barrier: bool,
    /// The reconciliation that midnight relied on; `None` = the day began without one, or has not begun.
    #[serde(default)]
    pub reconciliation: Option<String>,
    /// Rows of the day's tables that say another birthday than their table.
    pub misplaced: u64,
    pub eligible: u64,
    pub granted: u64,
    /// Coupons of `granted` by the version of the programme in the ledger's rows.
    #[serde(default)]
    pub versions: BTreeMap<String, u64>,
    pub already_granted: u64,
    pub refused: BTreeMap<String, u64>,
    /// Dead letters of this day.
    pub failed: u64,
    pub in_flight: u64,
    pub missed: u64,
    /// Members of `missed` whose source row could not be read by the latest hour.
    #[serde(default)]
    pub unreadable: u64,
    /// Members of `missed` who wait for a reconciliation that compares their source tables.
    #[serde(default)]
    pub held: u64,
    /// Dead letters of all days of the programme.
    #[serde(default)]
    pub dead_letters: u64,
    /// Earlier days that are not closed yet.
    pub open_before: u64,
    /// Start of the oldest day that is not closed, seconds since the Unix epoch; `None` = every day is closed.
    #[serde(default)]
    pub oldest_open_at: Option<i64>,
    /// Time at which the dispatcher saw the day, seconds since the Unix epoch.
    pub seen_at: i64,
}

impl DayView {
    /// Returns the view of a day as a pass found it.
    pub fn of(day: Date, run: &DayRun, report: &Report, open_before: u64, now: Timestamp) -> Self {
        Self {
            day: Some(day.to_string()),
            starts_at: run.rules.at(day, run.rules.starts_at).map_or(0, Timestamp::as_second),
            frozen: run.frozen,
            frozen_at: Vec::new(),
            is_closed: run.is_closed,
            is_after_barrier: run.is_after_barrier,
            reconciliation: run.reconciliation.as_ref().map(|relied_on| relied_on.id.to_string()),
            misplaced: run.misplaced,
            eligible: report.eligible,
            granted: report.granted,
            versions: report.version_texts(),
            already_granted: report.already_granted,
            refused: report.refused_texts(),
            failed: report.failed,
            in_flight: report.in_flight,
            missed: report.missed,
            unreadable: report.unreadable,
            held: report.held,
            dead_letters: 0,
            open_before,
            oldest_open_at: None,
            seen_at: now.as_second(),
        }
    }

    /// Returns the phase of the day: `waiting`, `midnight`, `noon`, `catch-up`, `closed`.
    pub fn phase(&self) -> &'static str {
        match self.frozen {
            _ if self.is_closed => "closed",
            0 => "waiting",
            1 => "midnight",
            2 => "noon",
            _ => "catch-up",
        }
    }

    pub fn refused_count(&self) -> u64 {
        self.refused.values().sum()
    }

    /// Keeps the freeze times of an earlier view of the same day, and adds one for each wave that is new.
    fn remember(&mut self, before: Self) {
        if before.day == self.day {
            self.frozen_at = before.frozen_at;
        }
        self.frozen_at.resize(usize::from(self.frozen.min(WAVES)), self.seen_at);
    }
}

fn key(programme: &str) -> String {
    format!("coupon-day/{programme}")
}

/// Returns the newest day of a programme; an empty view if no dispatcher has seen one, or another version wrote it.
pub async fn read(registers: &impl Registers, programme: &str) -> Result<DayView, Fault> {
    let register = registers.read(&key(programme)).await?;
    Ok(serde_json::from_str(&register.value).unwrap_or_default())
}

/// Stores the view of a dispatcher. An overtaken dispatcher is refused, which does no harm.
pub async fn store_newest(
    registers: &impl Registers,
    programme: &str,
    mut seen: DayView,
) -> Result<(), Fault> {
    let register = registers.read(&key(programme)).await?;
    seen.remember(serde_json::from_str(&register.value).unwrap_or_default());
    let text = serde_json::to_string(&seen).expect("a view holds text and numbers only");
    registers.compare_and_set(&key(programme), &register, text).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(day: &str, frozen: u8, seen_at: i64) -> DayView {
        DayView { day: Some(day.to_owned()), frozen, seen_at, ..DayView::default() }
    }

    #[test]
    fn each_wave_keeps_the_time_at_which_it_was_first_seen_frozen() {
        let mut view = seen("2027-02-28", 1, 100);
        view.remember(DayView::default());
        let mut later = seen("2027-02-28", 2, 500);
        later.remember(view);
        assert_eq!((later.frozen_at.clone(), later.phase()), (vec![100, 500], "noon"));
        let mut next = seen("2027-03-01", 0, 900);
        next.remember(later);
        assert_eq!((next.frozen_at.clone(), next.phase()), (vec![], "waiting"));
    }
}
