//! Judges whether a server has lost more rows than may be removed without a person's word, before its source begins
//! anew: each lane then removes the derived rows of every row that the server lacks.
//!
//! The rows of before are those of the last reconciliation that proved them. The limits are those of the drift gate. A
//! table that is too large to be counted in time has an estimate of the server, which may be far too high. It counts as
//! the least that the table can have: a refusal too many costs a person a check, and one too few costs derived rows.

use anabranch_schemas::change::Entity;

use crate::config::reconcile::ReconcileSettings;
use crate::error::{Code, Fault};

/// Percent of an estimate that a table has at least: InnoDB's may be wrong by 40 %.
const ESTIMATE_PERCENT: u64 = 60;
/// Rows that may be lost whatever share they are: the share of a small table says nothing.
const SHARE_ROWS_MIN: u64 = 100;

/// The rows of one entity in the tables of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntityRows {
    pub entity: Entity,
    /// The reconciliation that counted the rows of before, and their number; `None` = no report has it.
    pub before: Option<(String, u64)>,
    /// Rows that were counted now.
    pub counted: u64,
    /// Rows of the tables that were not counted, by the server's estimates.
    pub estimated: u64,
}

impl EntityRows {
    /// Returns the number of rows that the tables have at least.
    pub fn least(&self) -> u64 {
        self.counted + (u128::from(self.estimated) * u128::from(ESTIMATE_PERCENT) / 100) as u64
    }

    /// Returns whether more rows are lost than the limits of the drift gate let pass.
    fn is_beyond(&self, settings: &ReconcileSettings) -> bool {
        let Some((_, before)) = &self.before else { return false };
        let lost = before.saturating_sub(self.least());
        let share = lost as f64 / (*before).max(1) as f64;
        lost > settings.gate_keys || lost > SHARE_ROWS_MIN && share > settings.gate_share
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
    let (now, entity) = (beyond.least(), beyond.entity.name());
    let how = match beyond.estimated {
        0 => String::new(),
        estimated => format!(
            " ({} counted, and {ESTIMATE_PERCENT} % of the server's estimate of {estimated})",
            beyond.counted
        ),
    };
    let found = format!(
        "its tables of {entity} had {before} rows at reconciliation {reconciliation} and have {now} now{how}: derived \
         rows of the others would be removed"
    );
    let percent = (settings.gate_share * 1000.0).round() / 10.0;
    let limits = format!(
        "at most {} rows less (reconcile.gate_keys), and {percent} % (reconcile.gate_percent)",
        settings.gate_keys
    );
    Err(Fault::new(Code::BeginAnewRefused, format!("source {source}"), found).needs(limits).remedy(
        "load what is missing, or correct the address of the source; if the server is right, repeat the command with \
         `--open-gate`",
    ))
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
        let rows = EntityRows { entity: Entity::User, before, counted, estimated };
        require_rows_kept("a", &[rows], &settings(10_000)).map_err(|fault| fault.to_string())
    }

    #[test]
    fn a_server_that_lost_more_than_the_limits_is_refused_with_both_numbers() {
        for (before, now) in [(0, 0), (0, 5), (100, 0), (1_000, 900), (1_000_000, 990_000), (5, 1_000)] {
            assert_eq!(judged(before, now, 0), Ok(()), "{before} before, {now} now");
        }
        for (before, now) in [(101, 0), (1_000, 899), (1_000_000, 989_999), (1_000_000, 1)] {
            let refused = judged(before, now, 0).expect_err("it is refused");
            let numbers = format!("had {before} rows at reconciliation r-1 and have {now} now");
            for part in ["source a", "tables of user", &numbers, "10000 rows less", "10 %", "--open-gate"] {
                assert!(refused.contains(part), "no {part}: {refused}");
            }
        }
    }

    #[test]
    fn an_estimate_counts_as_the_least_that_it_can_mean() {
        assert_eq!(judged(1_000, 0, 1_500), Ok(()));
        let refused = judged(1_000, 300, 900).expect_err("it is refused");
        assert!(refused.contains("have 840 now (300 counted, and 60 % of"), "{refused}");
    }

    #[test]
    fn without_rows_of_before_nothing_can_be_judged() {
        let rows = EntityRows { entity: Entity::User, before: None, counted: 0, estimated: 0 };
        assert_eq!(require_rows_kept("a", &[rows], &settings(0)).map_err(|fault| fault.to_string()), Ok(()));
    }
}
