//! The section `reconcile` of the configuration file: when a reconciliation runs, how much memory it takes, and how
//! much it repairs without the word of a person.

use std::num::{NonZeroU64, NonZeroUsize};
use std::str::FromStr;
use std::time::Duration;

use croner::Cron;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::values::{Expanded, Secret};
use super::{Problems, Schedule};

/// The book of a placement audit takes its part first; half of the rest is the sketch, the other half its list. The
/// example file says how many differences of one unit fit.
const MEMORY_BYTES: NonZeroUsize = NonZeroUsize::new(192 * 1024 * 1024).expect("not zero");
/// Least memory: with less, a unit would be read more than once even for little drift.
const MEMORY_BYTES_MIN: usize = 16 * 1024 * 1024;
/// The drift gate by number: more drifted keys than a bad day makes, and fewer than an emptied store has.
const GATE_KEYS: u64 = 10_000;
/// Share of a unit's source rows that may differ, in percent.
const GATE_PERCENT: f64 = 10.0;
/// A fifth of the rows that one core of a server reads in a second; half a billion rows take almost three hours.
const ROWS_PER_SECOND: u64 = 50_000;
/// Running statements above which other tools, too, call a server busy.
const RUNNING_THREADS: NonZeroU64 = NonZeroU64::new(25).expect("not zero");
const REPLICA_LAG_SECONDS: NonZeroU64 = NonZeroU64::new(10).expect("not zero");
/// Lag of the lanes above which a reconciliation waits, since live changes come first.
const LANE_LAG_MS: NonZeroU64 = NonZeroU64::new(2_000).expect("not zero");
/// Wait for a lane: longer than its longest transaction; a shard of a million users is withdrawn in some ten seconds.
const LANE_WAIT_SECONDS: NonZeroU64 = NonZeroU64::new(60).expect("not zero");
/// A window for any reconciliation; an installation that has less time in a day sets its own.
const WINDOW_HOURS: f64 = 24.0;
const WINDOW_HOURS_MAX: f64 = 24.0 * 366.0;
/// Keys that a lane has checked each second. A store checks sixty, beside a thousand changes a second or more (`cargo
/// bench -- beside`).
const SPOT_CHECK_KEYS_A_SECOND: usize = 20;
/// A limit for memory, which holds the keys that wait for a check.
const SPOT_CHECK_KEYS_A_SECOND_MAX: usize = 1_000;
/// Most late changes have come after one minute. A change that has not come after ten is worth waking a person for.
const SPOT_CHECK_AFTER_SECONDS: [u64; 3] = [60, 300, 600];
const SPOT_CHECK_AFTER_SECONDS_MAX: u64 = 3_600;
/// Shorter keys can be guessed.
const SIGNING_KEY_MIN_BYTES: usize = 16;

/// Settings of a single reconciliation.
#[derive(Debug, Clone)]
pub struct ReconcileSettings {
    pub mode: Mode,
    /// Memory for the comparison, in bytes.
    pub memory: NonZeroUsize,
    /// The drift gate by number: once more source rows of a store have drifted, nothing more is repaired without the
    /// word of a person.
    pub gate_keys: u64,
    /// The drift gate by share, from 0 to 1: a unit of which more differs (and more than 100 rows) is not repaired
    /// either.
    pub gate_share: f64,
    /// Limits for backpressure.
    pub limits: PressureLimits,
}

/// The reaction of a reconciliation to drift.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Drift is reported and not repaired.
    Report,
    /// The owning lanes read the source rows again, unless the drift gate stops that.
    #[default]
    Repair,
}

/// Limits at which a reconciliation pauses (backpressure).
#[derive(Debug, Clone)]
pub struct PressureLimits {
    /// Rows a second that are read from one server, at most; `None` = as fast as it goes.
    pub rows_per_second: Option<NonZeroU64>,
    /// Statements that a source may run at once, the one that asks for the number included.
    pub running_threads: NonZeroU64,
    /// Lag of a replica above which a reconciliation pauses.
    pub replica_lag: Duration,
    /// Lag of the projection's lanes above which a reconciliation pauses.
    pub lane_lag: Duration,
}

impl PressureLimits {
    /// Returns limits with which a reconciliation never pauses.
    pub fn none() -> Self {
        Self {
            rows_per_second: None,
            running_threads: NonZeroU64::MAX,
            replica_lag: Duration::MAX,
            lane_lag: Duration::MAX,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reconcile {
    schedule: Option<String>,
    time_zone: Option<String>,
    window_hours: Option<f64>,
    mode: Option<Mode>,
    memory_bytes: Option<NonZeroUsize>,
    gate_keys: Option<u64>,
    gate_percent: Option<f64>,
    signing_key: Option<Expanded>,
    rows_per_second: Option<u64>,
    running_threads: Option<NonZeroU64>,
    replica_lag_seconds: Option<NonZeroU64>,
    lane_lag_ms: Option<NonZeroU64>,
    lane_wait_seconds: Option<NonZeroU64>,
    spot_check_keys_per_second: Option<usize>,
    spot_check_after_seconds: Option<Vec<u64>>,
}

impl Reconcile {
    pub(super) fn resolve(self, problems: &mut Problems) -> super::ReconcileConfig {
        let memory = self.memory_bytes.unwrap_or(MEMORY_BYTES);
        if memory.get() < MEMORY_BYTES_MIN {
            problems.add("reconcile.memory_bytes", memory.to_string(), "at least 16777216");
        }
        let percent = self.gate_percent.unwrap_or(GATE_PERCENT);
        if !(0.0..=100.0).contains(&percent) {
            problems.add("reconcile.gate_percent", percent.to_string(), "0 to 100");
        }
        let signing_key = self.signing_key.map(|key| key.0);
        if signing_key.as_ref().is_some_and(|key| key.len() < SIGNING_KEY_MIN_BYTES) {
            let needed = "16 or more bytes (openssl rand -hex 32)";
            problems.add("reconcile.signing_key", "it is too short".to_owned(), needed);
        }
        let spot_checks =
            spot_checks(self.spot_check_keys_per_second, self.spot_check_after_seconds, problems);
        let schedule = self.schedule.and_then(|text| {
            schedule(&text, self.time_zone.as_deref(), self.window_hours.unwrap_or(WINDOW_HOURS), problems)
        });
        super::ReconcileConfig {
            schedule,
            settings: ReconcileSettings {
                mode: self.mode.unwrap_or_default(),
                memory,
                gate_keys: self.gate_keys.unwrap_or(GATE_KEYS),
                gate_share: percent / 100.0,
                limits: PressureLimits {
                    rows_per_second: NonZeroU64::new(self.rows_per_second.unwrap_or(ROWS_PER_SECOND)),
                    running_threads: self.running_threads.unwrap_or(RUNNING_THREADS),
                    replica_lag: Duration::from_secs(
                        self.replica_lag_seconds.unwrap_or(REPLICA_LAG_SECONDS).get(),
                    ),
                    lane_lag: Duration::from_millis(self.lane_lag_ms.unwrap_or(LANE_LAG_MS).get()),
                },
            },
            lane_wait: Duration::from_secs(self.lane_wait_seconds.unwrap_or(LANE_WAIT_SECONDS).get()),
            signing_key: signing_key.map(Secret::new),
            spot_checks,
        }
    }
}

fn spot_checks(
    keys: Option<usize>,
    after: Option<Vec<u64>>,
    problems: &mut Problems,
) -> super::SpotCheckConfig {
    let keys_a_second = keys.unwrap_or(SPOT_CHECK_KEYS_A_SECOND);
    if keys_a_second > SPOT_CHECK_KEYS_A_SECOND_MAX {
        problems.add("reconcile.spot_check_keys_per_second", keys_a_second.to_string(), "0 (off) to 1000");
    }
    let after = after.unwrap_or_else(|| SPOT_CHECK_AFTER_SECONDS.to_vec());
    let is_rising = after.is_sorted_by(|one, next| one < next);
    if !is_rising || after.last().is_none_or(|last| *last > SPOT_CHECK_AFTER_SECONDS_MAX) {
        let needed = "rising numbers up to 3600, such as [60, 300, 600]";
        problems.add("reconcile.spot_check_after_seconds", format!("{after:?}"), needed);
    }
    super::SpotCheckConfig { keys_a_second, after: after.into_iter().map(Duration::from_secs).collect() }
}

fn schedule(text: &str, zone: Option<&str>, window_hours: f64, problems: &mut Problems) -> Option<Schedule> {
    let zone = zone.unwrap_or("UTC");
    let cron = Cron::from_str(text);
    let time_zone = TimeZone::get(zone);
    if cron.is_err() {
        let needed = "five fields of cron, such as 30 2 * * * for half past two";
        problems.add("reconcile.schedule", format!("`{text}`"), needed);
    }
    if time_zone.is_err() {
        problems.add("reconcile.time_zone", format!("`{zone}`"), "a name such as Asia/Shanghai or UTC");
    }
    // A NaN is not above 0, so it is refused too.
    let is_window = window_hours > 0.0 && window_hours <= WINDOW_HOURS_MAX;
    if !is_window {
        problems.add("reconcile.window_hours", window_hours.to_string(), "above 0, such as 4 or 0.5");
        return None;
    }
    let window = Duration::from_secs_f64(window_hours * 3600.0);
    Some(Schedule { cron: cron.ok()?, time_zone: time_zone.ok()?, window })
}
