//! Judges whether a server has lost more rows than may be removed without a person's word, before its source begins
//! anew: each lane then removes the derived rows of every row that the server lacks.
//!
//! The rows of before are those of the last reconciliation that proved them. The limits are those of the drift gate.
//!
//! A table that is too large to be counted in time has an estimate of the server, which may be far too low. It counts
//! as the most that the table can have: a server with all its rows must not be refused for its size, because operators
//! would learn to open the gate each time. In return, a loss of 40 % of the rows that were not counted may pass.
//!
//! Rows of an entity whose tables leave by a retention rule may be gone by that rule, and are not judged.

use anabranch_schemas::change::Entity;

use crate::config::reconcile::ReconcileSettings;
use crate::error::{Code, Fault};

/// Percent of a table's rows that its estimate shows at least: InnoDB's may be wrong by 40 %.
const ESTIMATE_PERCENT: u64 = 60;
/// Rows that may be lost whatever share they are: the share of a small table says nothing.
const SHARE_ROWS_MIN: u64 = 100;

/// The rows of one entity in the tables of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntityRows {
    pub entity: Entity,
    /// Whether the entity's tables leave by a retention rule.
    pub is_retained: bool,
    /// The reconciliation that counted the rows of before, and their number; `None` = no report has it.
    pub before: Option<(String, u64)>,
    /// Rows that were counted now.
    pub counted: u64,
    /// Rows of the tables that were not counted, by the server's estimates; 0 = all were counted.
    pub estimated: u64,
}

impl EntityRows {
    /// Returns the number of rows that the tables have at most.
    fn most(&self) -> u64 {
        let estimated = u128::from(self.estimated) * 100 / u128::from(ESTIMATE_PERCENT);
        self.counted.saturating_add(u64::try_from(estimated).unwrap_or(u64::MAX))
    }

    /// Returns whether more rows are lost than the limits of the drift gate let pass.
    fn is_beyond(&self, settings: &ReconcileSettings) -> bool {
        let Some((_, before)) = self.before.as_ref().filter(|_| !self.is_retained) else { return false };
        let lost = before.saturating_sub(self.most());
        let share = lost as f64 / (*before).max(1) as f64;
        lost > settings.gate_keys || lost > SHARE_ROWS_MIN && share > settings.gate_share
    }

    /// Describes the rows of now, with what the number rests on.
    fn now(&self) -> String {
        match self.estimated {
            0 => format!("have {} now by a count of all of them", self.counted),
            estimated => format!(
                "have at most {} now by an estimate: {} are counted, and the server estimates {estimated} in the other \
                 tables, which may be as few as {ESTIMATE_PERCENT} % of theirs",
                self.most(),
                self.counted
            ),
        }
    }
}

/// Refuses a server that has lost more rows of an entity than the drift gate lets pass.
pub fn require_rows_kept(
    source: &str,
    rows: &[EntityRows],
    settings: &ReconcileSettings,
) -> Result<(), Fault> {
    let Some(beyond) = rows.iter().find(|rows| rows.is_beyond(settings)) else { return Ok(()) };
    let (reconciliation, before) = beyond.before.clone().unwrap_or_default();
    let found = format!(
        "its tables of {} had {before} rows at reconciliation {reconciliation} and {}: derived rows of the others \
         would be removed",
        beyond.entity.name(),
        beyond.now()
    );
    let percent = (settings.gate_share * 1000.0).round() / 10.0;
    let limits = format!(
        "at most {} rows less (reconcile.gate_keys), and {percent} % (reconcile.gate_percent)",
        settings.gate_keys
    );
    let renewed = match beyond.estimated {
        0 => "",
        _ => "renew the estimates with ANALYZE NO_WRITE_TO_BINLOG TABLE; ",
    };
    let remedy = format!(
        "{renewed}load what is missing, or correct the address of the source; if the server is right, repeat the \
         command with `--open-gate`"
    );
    Err(Fault::new(Code::BeginAnewRefused, format!("source {source}"), found).needs(limits).remedy(remedy))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::config::reconcile::{Mode, PressureLimits};

    fn settings(gate_keys: u64) -> ReconcileSettings {
        let (memory, limits) = (NonZeroUsize::MIN, PressureLimits::none());
        ReconcileSettings { mode: Mode::Repair, memory, gate_keys, gate_share: 0.1, limits }
    }

    fn judged(before: u64, counted: u64, estimated: u64) -> Result<(), String> {
        let before = Some(("r-1".to_owned(), before));
        let rows = EntityRows { entity: Entity::User, is_retained: false, before, counted, estimated };
        require_rows_kept("a", &[rows], &settings(10_000)).map_err(|fault| fault.to_string())
    }

    #[test]
    fn a_server_that_lost_more_than_the_limits_is_refused_with_both_numbers() {
        for (before, now) in [(0, 0), (0, 5), (100, 0), (1_000, 900), (1_000_000, 990_000), (5, 1_000)] {
            assert_eq!(judged(before, now, 0), Ok(()), "{before} before, {now} now");
        }
        for (before, now) in [(101, 0), (1_000, 899), (1_000_000, 989_999), (1_000_000, 1)] {
            let refused = judged(before, now, 0).expect_err("it is refused");
            let numbers = format!("had {before} rows at reconciliation r-1 and have {now} now by a count");
            for part in ["source a", "tables of user", &numbers, "10000 rows less", "10 %", "--open-gate"] {
                assert!(refused.contains(part), "no {part}: {refused}");
            }
        }
    }

    #[test]
    fn an_estimate_counts_as_the_most_that_it_can_mean() {
        const LARGE: u64 = 500_000_000;
        for (before, counted, estimated) in [
            (1_000, 0, 1_500),
            (1_000, 300, 420),
            (LARGE, 0, LARGE),
            (LARGE, 0, LARGE / 100 * 60),
            (LARGE, LARGE / 2, LARGE / 100 * 30),
            (LARGE, u64::MAX, u64::MAX),
        ] {
            assert_eq!(judged(before, counted, estimated), Ok(()), "{before}: {counted} and {estimated}");
        }
        for (before, counted, estimated, most) in [
            (1_000, 300, 300, 800),
            (LARGE, 0, LARGE / 100 * 57, LARGE / 100 * 95),
            (LARGE, LARGE / 2, LARGE / 100 * 24, LARGE / 100 * 90),
            (LARGE, LARGE / 2, 0, LARGE / 2),
        ] {
            let refused = judged(before, counted, estimated).expect_err("it is refused");
            let (by, is_estimate) = match estimated {
                0 => (format!("have {most} now by a count"), false),
                _ => (format!("have at most {most} now by an estimate: {counted} are counted"), true),
            };
            assert!(refused.contains(&by), "no {by}: {refused}");
            assert_eq!(refused.contains("ANALYZE NO_WRITE_TO_BINLOG TABLE"), is_estimate, "{refused}");
        }
    }

    #[test]
    fn rows_that_nothing_counted_before_or_that_a_retention_rule_may_have_removed_are_not_judged() {
        let before = Some(("r-1".to_owned(), 1_000_000));
        for (before, is_retained, is_refused) in
            [(None, false, false), (before.clone(), true, false), (before, false, true)]
        {
            let rows = EntityRows { entity: Entity::Flux, is_retained, before, counted: 0, estimated: 0 };
            assert_eq!(require_rows_kept("a", &[rows], &settings(0)).is_err(), is_refused);
        }
    }
}
