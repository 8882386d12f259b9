//! The section `[flux]` of the configuration file: the region whose payment documents get identifiers, and the
//! counters.

use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::time::Duration;

use anabranch_schemas::flux::id::{Region, SYSTEM};
use jiff::tz::TimeZone;
use serde::Deserialize;

use super::Problems;
use super::transport::{Tls, trusted};
use super::values::{Expanded, ServerUrl};

/// A week: a payment that is retried after a long week-end still finds its identifier.
const REQUEST_KEYS_DAYS: NonZeroU32 = NonZeroU32::new(7).expect("not zero");
/// `POST /v1/uuids` keeps its keys for a day; keys of payments are kept for longer.
const REQUEST_KEYS_DAYS_MIN: u32 = 2;
const REQUEST_KEYS_DAYS_MAX: u32 = 400;
/// Request keys, at most: some 3 GB of rows. A day of 270 million identifiers in hundreds has 2.7 million keys.
const REQUEST_KEYS_MAX: NonZeroU64 = NonZeroU64::new(20_000_000).expect("not zero");
const DATABASE: &str = "flux_sequence";
/// Bytes of a database name, by MySQL's limit.
const DATABASE_BYTES_MAX: usize = 64;

/// Settings for identifiers of payment documents.
#[derive(Debug, Clone)]
pub struct FluxConfig {
    /// Digit 10 of every identifier that is made here.
    pub region: Region,
    /// Digits 11 to 13 of every identifier.
    pub system: u16,
    /// The time zone that decides which day it is.
    pub time_zone: TimeZone,
    pub sequence_url: ServerUrl,
    /// The account that makes the tables; `None` = the one of `sequence_url`.
    pub setup_url: Option<ServerUrl>,
    pub ca_file: Option<PathBuf>,
    /// Database of the counters.
    pub database: String,
    /// Time for which a key is known, at least.
    pub request_keys_kept: Duration,
    pub request_keys_max: NonZeroU64,
}

#[derive(Debug, Clone, Copy, Deserialize)]
enum RegionName {
    #[serde(rename = "us")]
    UnitedStates,
    #[serde(rename = "singapore")]
    Singapore,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Flux {
    region: RegionName,
    system: Option<u16>,
    time_zone: Option<String>,
    sequence_url: ServerUrl,
    sequence_setup_url: Option<ServerUrl>,
    sequence_tls: Option<Tls>,
    sequence_ca_file: Option<Expanded>,
    sequence_database: Option<String>,
    request_keys_days: Option<NonZeroU32>,
    request_keys_max: Option<NonZeroU64>,
}

impl Flux {
    /// Fills in defaults; adds a problem and returns `None` for a value that cannot be resolved.
    pub(super) fn resolve(self, problems: &mut Problems) -> Option<FluxConfig> {
        let before = problems.0.len();
        let url = self.sequence_url;
        if url.scheme() != "mysql" {
            problems.add("flux.sequence_url", format!("scheme `{}`", url.scheme()), "mysql://");
        }
        let is_other = |setup: &ServerUrl| setup.scheme() != url.scheme() || setup.address() != url.address();
        if let Some(setup) = self.sequence_setup_url.as_ref().filter(|setup| is_other(setup)) {
            let found = format!("{}://{} beside {}", setup.scheme(), setup.address(), url.address());
            problems.add("flux.sequence_setup_url", found, "another account on the same server");
        }
        let system = self.system.unwrap_or(SYSTEM);
        if system > 999 {
            problems.add("flux.system", system.to_string(), "at most three digits");
        }
        let zone = self.time_zone.as_deref().unwrap_or("UTC");
        let time_zone = TimeZone::get(zone).unwrap_or_else(|_| {
            problems.add("flux.time_zone", format!("`{zone}`"), "a name such as UTC or Asia/Singapore");
            TimeZone::UTC
        });
        let days = self.request_keys_days.unwrap_or(REQUEST_KEYS_DAYS).get();
        if !(REQUEST_KEYS_DAYS_MIN..=REQUEST_KEYS_DAYS_MAX).contains(&days) {
            let needed = format!("{REQUEST_KEYS_DAYS_MIN} to {REQUEST_KEYS_DAYS_MAX}");
            problems.add("flux.request_keys_days", days.to_string(), &needed);
        }
        let database = self.sequence_database.unwrap_or_else(|| DATABASE.to_owned());
        if database.is_empty() || database.len() > DATABASE_BYTES_MAX {
            problems.add("flux.sequence_database", format!("`{database}`"), "1 to 64 characters");
        }
        let ca_file =
            trusted("flux.sequence_tls", &url, (self.sequence_tls, self.sequence_ca_file), problems);
        let resolved = FluxConfig {
            region: match self.region {
                RegionName::UnitedStates => Region::UnitedStates,
                RegionName::Singapore => Region::Singapore,
            },
            system,
            time_zone,
            sequence_url: url,
            setup_url: self.sequence_setup_url,
            ca_file,
            database,
            request_keys_kept: Duration::from_secs(u64::from(days) * 24 * 3600),
            request_keys_max: self.request_keys_max.unwrap_or(REQUEST_KEYS_MAX),
        };
        (problems.0.len() == before).then_some(resolved)
    }
}
