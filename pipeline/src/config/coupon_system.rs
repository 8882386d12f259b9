//! The section `[coupon_system]` of the configuration file: the system that gives out coupons, and the ledger's target.

use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::transport::{Tls, trusted};
use super::values::{Expanded, Secret, ServerUrl};
use super::{Config, Problems, ProjectionConfig, TargetStore};

/// Payment systems promise to remember idempotency keys for a day.
const KEY_MEMORY_HOURS: NonZeroU32 = NonZeroU32::new(24).expect("not zero");
/// No call is asked for again after a year, because its occurrence is over.
const KEY_MEMORY_HOURS_MAX: u32 = 8_760;
/// A call of 100 users takes some ten milliseconds, so eight of them are thousands of users a second.
const CALLS_IN_FLIGHT: NonZeroUsize = NonZeroUsize::new(8).expect("not zero");
/// More workers would wait for the rows of the ledger.
const CALLS_IN_FLIGHT_MAX: usize = 64;
/// Timeout of a call: far shorter than the half hour after which other granters take an attempt over.
const TIMEOUT_SECONDS: NonZeroU32 = NonZeroU32::new(10).expect("not zero");
const TIMEOUT_SECONDS_MAX: u32 = 300;
/// Half an hour: the coupon system closes a connection ten minutes after its last request, and stops work on a request
/// ten minutes after its client has gone away (`docs/coupon-system.md`).
const RESTORED_WAIT_SECONDS: NonZeroU32 = NonZeroU32::new(1_800).expect("not zero");
const RESTORED_WAIT_SECONDS_MAX: u32 = 86_400;
/// Lag from which lanes get the servers for themselves: the highest one (p99) of lanes whose servers do nothing else is
/// 10 to 20 ms (`cargo bench -- day-lag`).
const LANE_LAG_MS: NonZeroU64 = NonZeroU64::new(20).expect("not zero");

/// The system that gives out coupons.
#[derive(Debug, Clone)]
pub struct CouponSystemConfig {
    pub url: ServerUrl,
    pub ca_file: Option<PathBuf>,
    /// Token sent with each call; `None` = the system asks for none.
    pub token: Option<Secret>,
    /// Time for which the system promises to know the key of a call.
    pub key_memory: Duration,
    /// Calls that one process makes at once, at most.
    pub calls_in_flight: NonZeroUsize,
    pub timeout: Duration,
    /// Time for which a restored ledger waits until no earlier call can be under way.
    pub restored_wait: Duration,
    /// Lag of a lane of the birthday tables above which a day leaves the servers to the lanes.
    pub lane_lag: Duration,
    /// Whether a call asks for many users at once; otherwise it asks for one.
    pub is_batched: bool,
    /// Birthday projections whose tables name the members of a day.
    pub projections: Vec<String>,
    /// The target that holds the ledger.
    pub ledger_target: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CouponSystem {
    url: ServerUrl,
    tls: Option<Tls>,
    ca_file: Option<Expanded>,
    token: Option<Expanded>,
    key_memory_hours: Option<NonZeroU32>,
    calls_in_flight: Option<NonZeroUsize>,
    timeout_seconds: Option<NonZeroU32>,
    restored_wait_seconds: Option<NonZeroU32>,
    lane_lag_ms: Option<NonZeroU64>,
    batch: Option<bool>,
    projections: Option<Vec<String>>,
    ledger_target: Option<String>,
}

impl CouponSystem {
    /// Fills in defaults: every birthday projection, and the first target of the first one.
    pub(super) fn resolve(
        self,
        projections: &[ProjectionConfig],
        problems: &mut Problems,
    ) -> Option<CouponSystemConfig> {
        if !matches!(self.url.scheme(), "http" | "https") {
            let found = format!("scheme `{}`", self.url.scheme());
            problems.add("coupon_system.url", found, "https:// or http://");
            return None;
        }
        let ca_file = trusted("coupon_system.tls", &self.url, (self.tls, self.ca_file), problems);
        let is_birthday = |known: &&ProjectionConfig| known.kind.birthday().is_some();
        let birthdays = || projections.iter().filter(is_birthday);
        let chosen =
            self.projections.unwrap_or_else(|| birthdays().map(|known| known.name.clone()).collect());
        let odd = chosen.iter().find(|name| birthdays().all(|known| known.name != **name));
        let first = birthdays().find(|known| chosen.contains(&known.name));
        let (None, Some(first)) = (odd, first) else {
            let found = odd.map_or_else(|| "none".to_owned(), |name| format!("`{name}`"));
            problems.add("coupon_system.projections", found, "[[projections]] entries of kind `birthday`");
            return None;
        };
        let timeout = self.timeout_seconds.unwrap_or(TIMEOUT_SECONDS);
        let restored_wait = self.restored_wait_seconds.unwrap_or(RESTORED_WAIT_SECONDS);
        let calls_in_flight = self.calls_in_flight.unwrap_or(CALLS_IN_FLIGHT);
        let hours = self.key_memory_hours.unwrap_or(KEY_MEMORY_HOURS);
        for (key, found, most) in [
            ("key_memory_hours", hours.get() as usize, KEY_MEMORY_HOURS_MAX as usize),
            ("timeout_seconds", timeout.get() as usize, TIMEOUT_SECONDS_MAX as usize),
            ("restored_wait_seconds", restored_wait.get() as usize, RESTORED_WAIT_SECONDS_MAX as usize),
            ("calls_in_flight", calls_in_flight.get(), CALLS_IN_FLIGHT_MAX),
        ] {
            if found > most {
                problems.add(&format!("coupon_system.{key}"), found.to_string(), &format!("at most {most}"));
            }
        }
        if restored_wait <= timeout {
            let needed = format!("more than timeout_seconds, which is {timeout}");
            problems.add("coupon_system.restored_wait_seconds", restored_wait.to_string(), &needed);
        }
        Some(CouponSystemConfig {
            url: self.url,
            ca_file,
            token: self.token.map(|token| Secret::new(token.0)),
            key_memory: Duration::from_secs(u64::from(hours.get()) * 3600),
            calls_in_flight,
            timeout: Duration::from_secs(timeout.get().into()),
            restored_wait: Duration::from_secs(restored_wait.get().into()),
            lane_lag: Duration::from_millis(self.lane_lag_ms.unwrap_or(LANE_LAG_MS).get()),
            is_batched: self.batch.unwrap_or(true),
            ledger_target: self.ledger_target.or_else(|| first.targets.first().cloned())?,
            projections: chosen,
        })
    }
}

impl Config {
    /// Checks that programmes and the coupon system have the parts of the file that they need.
    pub(super) fn check_coupons(&self, has_coupon_system: bool, problems: &mut Problems) {
        let is_birthday = |known: &ProjectionConfig| known.kind.birthday().is_some();
        if !self.programmes.is_empty() && !self.projections.iter().any(is_birthday) {
            let needed =
                "a [[projections]] entry of kind `birthday`, whose tables have the users that celebrate";
            problems.add("programmes", "there is no birthday projection".to_owned(), needed);
        }
        if !self.programmes.is_empty() && !has_coupon_system {
            let needed = "a [coupon_system] section: the system that gives out the coupons, and the target of the \
                          ledger";
            problems.add("coupon_system", "missing beside [[programmes]]".to_owned(), needed);
        }
        let Some(system) = &self.coupon_system else { return };
        let target = self.target(&system.ledger_target);
        if target.is_none_or(|target| target.store != TargetStore::Mysql) {
            let found = format!("`{}`", system.ledger_target);
            problems.add("coupon_system.ledger_target", found, "the name of a target with a mysql:// URL");
        }
    }
}
