//! The configuration file as written: names, defaults and their reasons. `captured.rs` has entities and sources,
//! `derived.rs` projections and caches.
//!
//! `deploy/anabranch.example.toml` explains each key for people; a test parses it.

use std::net::SocketAddr;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anabranch_schemas::change::Entity;
use serde::Deserialize;

use super::Problems;
use super::applications::{self, Application};
use super::captured::{EntityTables, Source};
use super::coupon_system::CouponSystem;
use super::derived::{Cache, Projection};
use super::flux::{self, Flux};
use super::reconcile::Reconcile;
use super::transport::{Tls, trusted};
use super::values::{Expanded, Secret, ServerUrl};

/// Example files; a test insists that together they have every key.
pub(super) const EXAMPLES: [&str; 3] = [
    include_str!("../../../deploy/anabranch.example.toml"),
    include_str!("../../../deploy/serial-codes.example.toml"),
    include_str!("../../../deploy/flux.example.toml"),
];
/// Shorter tokens can be guessed; an empty environment variable would leave an empty one.
const TOKEN_MIN_BYTES: usize = 16;
/// A table of operations has a column for the name, and a page shows it.
const OPERATOR_NAME_MAX_BYTES: usize = 64;
/// Names become parts of NATS subjects and of a VARCHAR(128) lane key.
pub const NAME_MAX_BYTES: usize = 32;
/// From 16 KB on only the bytes of a message cost; above 256 KB nothing is gained, and 64 KB keeps latency low.
const BATCH_BYTES: NonZeroUsize = NonZeroUsize::new(64 * 1024).expect("not zero");
/// More messages in flight do not raise throughput; at 32 MB the server is far from disconnecting (64 MB pending).
const IN_FLIGHT_MESSAGES: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");
const IN_FLIGHT_BYTES: NonZeroUsize = NonZeroUsize::new(32 * 1024 * 1024).expect("not zero");
/// Flushes of 5 to 20 thousand rows make 366 tables nearly as cheap as one.
const FLUSH_ROWS: NonZeroUsize = NonZeroUsize::new(20_000).expect("not zero");
/// The cost is flat from 500 rows a statement on; 1000 stays far below `max_allowed_packet`.
const STATEMENT_ROWS: NonZeroUsize = NonZeroUsize::new(1_000).expect("not zero");
const POSITION_INTERVAL_MS: NonZeroU64 = NonZeroU64::new(5_000).expect("not zero");
/// The server sends a heartbeat after this silence; twice as long without any event is a stall.
const HEARTBEAT_MS: NonZeroU64 = NonZeroU64::new(5_000).expect("not zero");
/// A daemon that starts has its part within a minute; each check costs two requests to the log.
const REBALANCE_INTERVAL_MS: u64 = 5_000;
/// After this long without success a transient fault is shown as lasting; retries go on.
const RETRY_BUDGET_SECONDS: NonZeroU64 = NonZeroU64::new(300).expect("not zero");
const SHUTDOWN_SECONDS: NonZeroU64 = NonZeroU64::new(10).expect("not zero");
/// A week: longer than any week-end without an operator.
const LOG_MAX_AGE_SECONDS: NonZeroU64 = NonZeroU64::new(7 * 24 * 3600).expect("not zero");
/// Position messages that a quiet stream gets within its `max_age`: if one comes late, the stream still holds another.
const POSITION_MESSAGES_WITHIN_MAX_AGE: u32 = 4;
/// NATS refuses streams that are younger than their duplicate window.
const LOG_MAX_AGE_MIN: Duration = Duration::from_secs(2);
const LOG_MAX_BYTES: NonZeroU64 = NonZeroU64::new(10 * 1024 * 1024 * 1024).expect("not zero");
/// NATS' own default of `max_payload`, and the most that it can be set to.
const MESSAGE_BYTES: NonZeroUsize = NonZeroUsize::new(1024 * 1024).expect("not zero");
const MESSAGE_BYTES_MAX: NonZeroUsize = NonZeroUsize::new(64 * 1024 * 1024).expect("not zero");
/// The lanes of two projections at once; each is one more replica to the source.
const DIRECT_FEEDS: NonZeroUsize = NonZeroUsize::new(4).expect("not zero");
/// At this rate a lane reads a hundred million rows in three hours, at a few percent of a server's capacity. Each part
/// is small enough that changes hardly wait for it.
const REFRESH_ROWS_PER_SECOND: u64 = 10_000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    name: String,
    log: Log,
    #[serde(default)]
    http: Http,
    #[serde(default)]
    limits: Limits,
    #[serde(default)]
    entities: Vec<EntityTables>,
    #[serde(default)]
    sources: Vec<Source>,
    #[serde(default)]
    targets: Vec<Target>,
    #[serde(default)]
    projections: Vec<Projection>,
    #[serde(default)]
    caches: Vec<Cache>,
    #[serde(default)]
    reconcile: Reconcile,
    #[serde(default)]
    programmes: Vec<toml::Table>,
    coupon_system: Option<CouponSystem>,
    flux: Option<Flux>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Log {
    url: ServerUrl,
    ca_file: Option<Expanded>,
    tls: Option<Tls>,
    #[serde(default = "one")]
    replicas: NonZeroUsize,
    max_age_seconds: Option<NonZeroU64>,
    max_bytes: Option<NonZeroU64>,
    max_message_bytes: Option<NonZeroUsize>,
}

fn one() -> NonZeroUsize {
    NonZeroUsize::MIN
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Http {
    listen: Option<SocketAddr>,
    #[serde(default)]
    tokens: Vec<Expanded>,
    #[serde(default)]
    applications: Vec<Application>,
    #[serde(default)]
    operators: Vec<Operator>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Operator {
    name: String,
    token: Expanded,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    batch_bytes: Option<NonZeroUsize>,
    in_flight_messages: Option<NonZeroUsize>,
    in_flight_bytes: Option<NonZeroUsize>,
    flush_rows: Option<NonZeroUsize>,
    statement_rows: Option<NonZeroUsize>,
    direct_feeds: Option<NonZeroUsize>,
    refresh_rows_per_second: Option<u64>,
    position_interval_ms: Option<NonZeroU64>,
    heartbeat_ms: Option<NonZeroU64>,
    retry_budget_seconds: Option<NonZeroU64>,
    shutdown_seconds: Option<NonZeroU64>,
    spill_dir: Option<Expanded>,
    rebalance_interval_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    name: String,
    url: ServerUrl,
    setup_url: Option<ServerUrl>,
    ca_file: Option<Expanded>,
    tls: Option<Tls>,
    control_database: Option<String>,
}

impl Config {
    pub(super) fn has_coupon_system(&self) -> bool {
        self.coupon_system.is_some()
    }

    /// Fills in defaults; adds a problem and returns `None` for a value that cannot be resolved.
    pub(super) fn resolve(self, problems: &mut Problems) -> Option<super::Config> {
        let mut entities: Vec<_> =
            self.entities.into_iter().filter_map(|entity| entity.resolve(problems)).collect();
        let names: Vec<Entity> = entities.iter().map(|entity| entity.entity).collect();
        let spill_dir = self.limits.spill_dir(problems);
        let rebalance_ms = self.limits.rebalance_interval_ms.unwrap_or(REBALANCE_INTERVAL_MS);
        let sources: Vec<_> = self
            .sources
            .into_iter()
            .enumerate()
            .filter_map(|(i, s)| s.resolve(i, &names, &spill_dir, problems))
            .collect();
        flux::check_tables(self.flux.as_ref().is_some_and(Flux::has_years), &entities, problems);
        let flux = self.flux.and_then(|flux| flux.resolve(problems));
        flux::set_marker(flux.as_ref(), &mut entities, problems);
        let flux_places = flux::places(flux.as_ref(), &entities, &sources);
        let projections: Vec<_> = self
            .projections
            .into_iter()
            .filter_map(|p| p.resolve(&entities, &flux_places, problems))
            .collect();
        let coupon_system = self.coupon_system.and_then(|system| system.resolve(&projections, problems));
        let log = self.log.resolve(problems);
        let targets = self.targets.into_iter().filter_map(|target| target.resolve(problems)).collect();
        let caches = self.caches.into_iter().filter_map(|cache| cache.resolve(problems)).collect();
        let max_age = log.as_ref().map_or(Duration::MAX, |log| log.max_age);
        let limits = self.limits.resolve(max_age, problems)?;
        let http = self.http.resolve(problems);
        let reconcile = self.reconcile.resolve(problems);
        Some(super::Config {
            name: self.name,
            log: log?,
            http,
            entities,
            sources,
            targets,
            projections,
            caches,
            reconcile,
            programmes: self.programmes,
            coupon_system,
            flux,
            flux_places,
            limits,
            spill_dir,
            rebalance_interval: (rebalance_ms > 0).then(|| Duration::from_millis(rebalance_ms)),
        })
    }
}

impl Log {
    fn resolve(self, problems: &mut Problems) -> Option<super::LogConfig> {
        if !matches!(self.url.scheme(), "nats" | "tls") {
            problems.add("log.url", format!("scheme `{}`", self.url.scheme()), "nats:// or tls://");
            return None;
        }
        let max_message_bytes = self.max_message_bytes.unwrap_or(MESSAGE_BYTES);
        if !(MESSAGE_BYTES..=MESSAGE_BYTES_MAX).contains(&max_message_bytes) {
            problems.add("log.max_message_bytes", max_message_bytes.to_string(), "1048576 to 67108864");
            return None;
        }
        let ca_file = trusted("log.tls", &self.url, (self.tls, self.ca_file), problems);
        Some(super::LogConfig {
            url: self.url,
            ca_file,
            replicas: self.replicas,
            max_age: Duration::from_secs(self.max_age_seconds.unwrap_or(LOG_MAX_AGE_SECONDS).get()),
            max_bytes: self.max_bytes.unwrap_or(LOG_MAX_BYTES),
            max_message_bytes,
        })
    }
}

impl Http {
    fn resolve(self, problems: &mut Problems) -> super::HttpConfig {
        let needed = "16 or more visible ASCII characters without blanks (openssl rand -hex 32)";
        for (place, _) in self.tokens.iter().enumerate().filter(|(_, token)| !is_sound(token)) {
            problems.add("http.tokens", format!("token {} is too short or not ASCII", place + 1), needed);
        }
        if self.listen.is_none() && !self.tokens.is_empty() {
            problems.add("http.listen", "missing beside http.tokens".to_owned(), "an address to serve on");
        }
        if self.listen.is_none() && !self.operators.is_empty() {
            problems.add("http.listen", "missing beside http.operators".to_owned(), "an address to serve on");
        }
        if self.listen.is_none() && !self.applications.is_empty() {
            problems.add(
                "http.listen",
                "missing beside http.applications".to_owned(),
                "an address to serve on",
            );
        }
        self.check_applications(problems);
        for (place, Operator { name, token }) in self.operators.iter().enumerate() {
            if !is_operator_name(name) {
                let needed = "1 to 64 small letters, digits, `_`, `.` and `-`";
                problems.add("http.operators.name", format!("`{name}`"), needed);
            }
            if !is_sound(token) {
                let found = format!("the token of `{name}` is too short or not ASCII");
                problems.add("http.operators.token", found, needed);
            }
            let others = self.operators[..place].iter().map(|other| &other.token).chain(&self.tokens);
            let others = others.chain(self.applications.iter().map(|other| &other.token));
            if others.into_iter().any(|other| other.0 == token.0) {
                let found = format!("the token of `{name}` is another one's too");
                problems.add("http.operators.token", found, "a token of its own for each operator");
            }
        }
        problems.unique("http.operators.name", self.operators.iter().map(|operator| operator.name.as_str()));
        let operator = |Operator { name, token }| super::OperatorConfig { name, token: Secret::new(token.0) };
        super::HttpConfig {
            listen: self.listen,
            applications: applications::resolve(self.tokens, self.applications, problems),
            operators: self.operators.into_iter().map(operator).collect(),
        }
    }
}

impl Http {
    /// Checks names and tokens of applications; they have the form of those of operators.
    fn check_applications(&self, problems: &mut Problems) {
        for (place, Application { name, token, .. }) in self.applications.iter().enumerate() {
            if !is_operator_name(name) {
                let needed = "1 to 64 small letters, digits, `_`, `.` and `-`";
                problems.add("http.applications.name", format!("`{name}`"), needed);
            }
            if !is_sound(token) {
                let found = format!("the token of `{name}` is too short or not ASCII");
                let needed = "16 or more visible ASCII characters without blanks (openssl rand -hex 32)";
                problems.add("http.applications.token", found, needed);
            }
            let others = self.applications[..place].iter().map(|other| &other.token).chain(&self.tokens);
            if others.into_iter().any(|other| other.0 == token.0) {
                let found = format!("the token of `{name}` is another one's too");
                problems.add("http.applications.token", found, "a token of its own for each application");
            }
        }
    }
}

/// Returns whether a token is long enough and can stand in a header.
fn is_sound(token: &Expanded) -> bool {
    token.0.len() >= TOKEN_MIN_BYTES && token.0.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Returns whether a name has the form that records of operations and the live page show.
fn is_operator_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_.-".contains(&byte);
    (1..=OPERATOR_NAME_MAX_BYTES).contains(&name.len()) && name.bytes().all(is_allowed)
}

impl Limits {
    /// Returns the folder for temporary files: the configured one, otherwise the system's.
    fn spill_dir(&self, problems: &mut Problems) -> PathBuf {
        let Some(Expanded(folder)) = &self.spill_dir else { return std::env::temp_dir() };
        if !Path::new(folder).is_absolute() {
            problems.add("limits.spill_dir", format!("`{folder}`"), "an absolute path of a folder");
        }
        PathBuf::from(folder)
    }

    fn resolve(self, max_age: Duration, problems: &mut Problems) -> Option<super::Limits> {
        let millis = |value: Option<NonZeroU64>, default: NonZeroU64| {
            Duration::from_millis(value.unwrap_or(default).get())
        };
        let seconds = |value: Option<NonZeroU64>, default: NonZeroU64| {
            Duration::from_secs(value.unwrap_or(default).get())
        };
        let limits = super::Limits {
            batch_bytes: self.batch_bytes.unwrap_or(BATCH_BYTES),
            in_flight_messages: self.in_flight_messages.unwrap_or(IN_FLIGHT_MESSAGES),
            in_flight_bytes: self.in_flight_bytes.unwrap_or(IN_FLIGHT_BYTES),
            flush_rows: self.flush_rows.unwrap_or(FLUSH_ROWS),
            statement_rows: self.statement_rows.unwrap_or(STATEMENT_ROWS),
            direct_feeds: self.direct_feeds.unwrap_or(DIRECT_FEEDS),
            refresh_rows_per_second: NonZeroU64::new(
                self.refresh_rows_per_second.unwrap_or(REFRESH_ROWS_PER_SECOND),
            ),
            position_interval: millis(self.position_interval_ms, POSITION_INTERVAL_MS),
            keep_interval: max_age / POSITION_MESSAGES_WITHIN_MAX_AGE,
            heartbeat: millis(self.heartbeat_ms, HEARTBEAT_MS),
            retry_budget: seconds(self.retry_budget_seconds, RETRY_BUDGET_SECONDS),
            shutdown: seconds(self.shutdown_seconds, SHUTDOWN_SECONDS),
        };
        // NATS' default `max_payload` is 1 MB, and the rows of one event may overshoot the limit by one row.
        const BATCH_BYTES_MAX: usize = 512 * 1024;
        if limits.batch_bytes.get() > BATCH_BYTES_MAX {
            problems.add(
                "limits.batch_bytes",
                limits.batch_bytes.to_string(),
                "at most 524288 (NATS' max_payload is 1 MB)",
            );
            return None;
        }
        let max_age_min = LOG_MAX_AGE_MIN.max(limits.position_interval * POSITION_MESSAGES_WITHIN_MAX_AGE);
        if max_age < max_age_min {
            problems.add(
                "log.max_age_seconds",
                max_age.as_secs().to_string(),
                &format!(
                    "at least {} (2, and {POSITION_MESSAGES_WITHIN_MAX_AGE} × limits.position_interval_ms)",
                    max_age_min.as_secs_f64().ceil()
                ),
            );
            return None;
        }
        if limits.in_flight_bytes < limits.batch_bytes {
            problems.add(
                "limits.in_flight_bytes",
                limits.in_flight_bytes.to_string(),
                "at least limits.batch_bytes",
            );
            return None;
        }
        Some(limits)
    }
}

impl Target {
    fn resolve(self, problems: &mut Problems) -> Option<super::TargetConfig> {
        let store = match self.url.scheme() {
            "mysql" => super::TargetStore::Mysql,
            "https" | "http" => super::TargetStore::Search,
            other => {
                let needed =
                    "mysql:// for derived tables, https:// or http:// for OpenSearch or Elasticsearch";
                problems.add("targets.url", format!("scheme `{other}`"), needed);
                return None;
            }
        };
        let is_other =
            |setup: &ServerUrl| setup.scheme() != self.url.scheme() || setup.address() != self.url.address();
        if let Some(setup) = self.setup_url.as_ref().filter(|setup| is_other(setup)) {
            let found = format!("{}://{} beside {}", setup.scheme(), setup.address(), self.url.address());
            problems.add("targets.setup_url", found, "another account on the same server");
        }
        let ca_file = trusted("targets.tls", &self.url, (self.tls, self.ca_file), problems);
        Some(super::TargetConfig {
            name: self.name,
            url: self.url,
            setup_url: self.setup_url,
            ca_file,
            store,
            control_database: self.control_database.unwrap_or_else(|| "anabranch".to_owned()),
        })
    }
}
