//! The newest day of each coupon programme, as its dispatcher has left it in the log.

use std::time::Instant;

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::metrics as names;
use serde::{Deserialize, Serialize};

use super::exposition::Exposition;
use super::{LastAnswer, Observatory};
use crate::coupons::DayView;

/// The last answer about a programme.
#[derive(Debug, Clone, Default)]
pub(super) struct ProgrammeObservation {
    /// `None` until the log has answered.
    seen: Option<DayView>,
    answer: LastAnswer,
}

/// One programme of coupons and its newest day.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProgrammeView {
    pub programme: String,
    /// `unknown`, `unreachable`, `none` (no day has begun yet), or the day's phase: `waiting`, `midnight`, `noon`,
    /// `catch-up`, `closed`.
    pub state: String,
    pub code: Option<String>,
    pub fault: Option<String>,
    /// The newest day; `None` while none is known.
    pub day: Option<DayView>,
}

impl ProgrammeObservation {
    pub(super) fn view(&self, name: &str) -> ProgrammeView {
        let day = self.seen.clone().filter(|seen| seen.day.is_some());
        let fault = self.answer.fault.as_ref();
        let state = match (&self.seen, &day) {
            _ if fault.is_some() => "unreachable",
            (None, _) => "unknown",
            (Some(_), None) => "none",
            (Some(_), Some(day)) => day.phase(),
        };
        ProgrammeView {
            programme: name.to_owned(),
            state: state.to_owned(),
            code: fault.map(|(code, _)| code.as_str().to_owned()),
            fault: fault.map(|(_, text)| text.clone()),
            day,
        }
    }
}

impl Observatory {
    /// Returns the names of all programmes.
    pub(super) fn programmes(&self) -> Vec<String> {
        self.lock().programmes.keys().cloned().collect()
    }

    /// Records the newest day of a programme in the log, or the failed query.
    pub fn programme_seen(&self, programme: &str, seen: &Result<DayView, Fault>, now: Instant) {
        let mut all = self.lock();
        let Some(known) = all.programmes.get_mut(programme) else { return };
        match seen {
            Ok(seen) => {
                known.seen = Some(seen.clone());
                known.answer.good(now);
            }
            Err(fault) => known.answer.bad(fault),
        }
    }

    pub(super) fn show_programmes(&self, shown: &mut Exposition) {
        let all = self.lock();
        let days: Vec<(&str, &DayView)> = all
            .programmes
            .iter()
            .filter_map(|(name, known)| Some((name.as_str(), known.seen.as_ref()?)))
            .filter(|(_, day)| day.day.is_some())
            .collect();
        type Value = fn(&DayView) -> f64;
        let gauges: [(&'static str, Value); 7] = [
            (names::COUPON_WAVES, |day| f64::from(day.frozen)),
            (names::COUPON_CLOSED, |day| f64::from(u8::from(day.is_closed))),
            (names::COUPON_DAY_BEGAN, |day| day.starts_at as f64),
            (names::COUPON_SEEN, |day| day.seen_at as f64),
            (names::COUPON_UNREADABLE, |day| day.unreadable as f64),
            (names::COUPON_LETTERS, |day| day.dead_letters as f64),
            (names::COUPON_OPEN_BEFORE, |day| day.open_before as f64),
        ];
        for (metric, value) in gauges {
            shown.metric(metric);
            days.iter().for_each(|(name, day)| shown.sample(&[("programme", name)], value(day)));
        }
        shown.metric(names::COUPON_OLDEST_OPEN);
        for (name, day) in &days {
            if let Some(at) = day.oldest_open_at {
                shown.sample(&[("programme", name)], at as f64);
            }
        }
        shown.metric(names::COUPON_FREEZE_DELAY);
        for (name, day) in &days {
            for (wave, at) in WAVES.iter().zip(&day.frozen_at) {
                shown.sample(&[("programme", name), ("wave", wave)], (at - day.starts_at) as f64);
            }
        }
        shown.metric(names::COUPON_MEMBERS);
        for (name, day) in &days {
            for (outcome, count) in outcomes(day) {
                shown.sample(&[("programme", name), ("outcome", outcome)], count as f64);
            }
        }
        shown.metric(names::COUPON_REFUSED);
        for (name, day) in &days {
            for (reason, count) in &day.refused {
                shown.sample(&[("programme", name), ("reason", reason)], *count as f64);
            }
        }
    }
}

/// Names of waves, in their order.
const WAVES: [&str; 3] = ["midnight", "noon", "catch-up"];

/// Returns the outcomes of the members of a day. Their sum is the cohort.
fn outcomes(day: &DayView) -> [(&'static str, u64); 6] {
    [
        ("granted", day.granted),
        ("already_granted", day.already_granted),
        ("refused", day.refused_count()),
        ("failed", day.failed),
        ("in_flight", day.in_flight),
        ("missed", day.missed),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_shown_by_its_phase_and_its_members_by_what_became_of_them() {
        let day = DayView {
            day: Some("2027-02-28".to_owned()),
            starts_at: 1_000,
            frozen: 2,
            frozen_at: vec![1_007, 44_200],
            granted: 5,
            refused: [("within_gap".to_owned(), 2)].into(),
            ..DayView::default()
        };
        let known = ProgrammeObservation { seen: Some(day.clone()), answer: LastAnswer::default() };
        assert_eq!(known.view("birthday").state, "noon");
        assert_eq!(ProgrammeObservation::default().view("birthday").state, "unknown");
        assert_eq!(outcomes(&day)[..3], [("granted", 5), ("already_granted", 0), ("refused", 2)]);
    }
}
