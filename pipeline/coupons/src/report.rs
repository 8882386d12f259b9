//! The report of a day: eligible = granted + already granted + refused by reason + failed + in flight + missed.

use std::collections::BTreeMap;

use jiff::civil::Date;

use crate::programme::ProgrammeVersion;
use crate::records::{MemberState, Reason, RowState};

/// Counts of a day. Their sum is the cohort, or something is wrong with the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Members of the frozen cohort.
    pub eligible: u64,
    pub granted: u64,
    /// Members of `granted` by the version of the programme in their row.
    pub versions: BTreeMap<Option<ProgrammeVersion>, u64>,
    /// Members whose coupon of the occurrence was given, or is held, on another day.
    pub already_granted: u64,
    pub refused: BTreeMap<Reason, u64>,
    pub failed: u64,
    pub in_flight: u64,
    /// Members in none of the other counts, also because a source row could not be read.
    pub missed: u64,
    /// Members among `missed` whose source row could not be read by the latest hour.
    pub unreadable: u64,
    /// Members among `missed` who wait for a reconciliation that compares their source tables.
    pub held: u64,
}

impl Report {
    /// Counts a member; a row of the day takes precedence.
    pub fn add(&mut self, member_state: &MemberState, day: Date) {
        let of_day = member_state.row.as_ref().filter(|row| row.day == day);
        match (of_day.map(|row| row.state), member_state.refused, &member_state.row) {
            (Some(RowState::Settled), ..) => {
                self.granted += 1;
                *self.versions.entry(of_day.and_then(|row| row.version)).or_default() += 1;
            }
            (Some(RowState::Failed(_)), ..) => self.failed += 1,
            (Some(RowState::Reserved | RowState::Issued { .. }), ..) => self.in_flight += 1,
            (Some(RowState::Refused(Reason::SourceUnreadable)), ..) => {
                self.missed += 1;
                self.unreadable += 1;
            }
            (Some(RowState::Refused(reason)), ..) => *self.refused.entry(reason).or_default() += 1,
            (None, Some(refused), _) => *self.refused.entry(refused.reason).or_default() += 1,
            (None, None, Some(row)) if !matches!(row.state, RowState::Refused(_)) => {
                self.already_granted += 1
            }
            (None, None, _) => self.missed += 1,
        }
    }

    /// Returns `versions` with their texts; `unknown` stands for rows that were reserved before rows had a version.
    pub fn version_texts(&self) -> BTreeMap<String, u64> {
        let text = |version: &Option<ProgrammeVersion>| {
            version.map_or_else(|| "unknown".to_owned(), |version| version.to_string())
        };
        self.versions.iter().map(|(version, granted)| (text(version), *granted)).collect()
    }

    /// Returns `refused` with the texts of the reasons.
    pub fn refused_texts(&self) -> BTreeMap<String, u64> {
        self.refused.iter().map(|(reason, members)| (reason.as_str().to_owned(), *members)).collect()
    }

    /// Returns the number of counted members.
    pub fn sum(&self) -> u64 {
        let refused: u64 = self.refused.values().sum();
        self.granted + self.already_granted + refused + self.failed + self.in_flight + self.missed
    }

    /// Returns whether the parts add up to the whole.
    pub fn is_balanced(&self) -> bool {
        self.sum() == self.eligible
    }
}
