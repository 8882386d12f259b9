//! The section `[flux]` of the configuration file: system and kinds of payment documents, and, where identifiers are
//! made, the region and the counters. Capture and audit need the first part only. `flux/years.rs` has the strategy by
//! year, `flux/settlement.rs` the names of settlement tables.

mod settlement;
mod years;

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anabranch_schemas::change::Entity;
use anabranch_schemas::flux::id::{Level, Region, SYSTEM, Side};
use anabranch_schemas::flux::placement::Kind;
use anabranch_schemas::flux::table::AtomSettlement;
use anabranch_schemas::flux::years::Years;
use jiff::tz::TimeZone;
use serde::Deserialize;

use self::settlement::SettlementAtoms;
use self::years::YearsSection;
pub(super) use self::years::check_tables;
use super::transport::{Tls, trusted};
use super::values::{Expanded, ServerUrl};
use super::{EntityConfig, Problems, Removal, SourceConfig};
use crate::records::{FluxPlaces, FluxSource, FluxTables};

/// A week: a payment that is retried after a long week-end still finds its identifier.
const REQUEST_KEYS_DAYS: NonZeroU32 = NonZeroU32::new(7).expect("not zero");
/// `POST /v1/uuids` keeps its keys for a day; keys of payments are kept for longer.
const REQUEST_KEYS_DAYS_MIN: u32 = 2;
const REQUEST_KEYS_DAYS_MAX: u32 = 400;
/// Request keys, at most: some 3 GB of rows. A day of 270 million identifiers in hundreds has 2.7 million keys.
const REQUEST_KEYS_MAX: NonZeroU64 = NonZeroU64::new(20_000_000).expect("not zero");
/// A month's table is dropped when its documents are sixteen months old, as the source document has it.
const RETENTION_MONTHS: NonZeroU32 = NonZeroU32::new(16).expect("not zero");
/// Refunds come up to two years after their recharge.
const INDEX_MONTHS_AFTER: NonZeroU32 = NonZeroU32::new(24).expect("not zero");
/// Months of both settings, at most: ten years.
const MONTHS_MAX: u32 = 120;
const DATABASE: &str = "flux_sequence";
/// Bytes of the name of a database or table, by MySQL's limit.
const NAME_BYTES_MAX: usize = 64;

/// Settings for payment documents.
#[derive(Debug, Clone)]
pub struct FluxConfig {
    /// Digits 11 to 13 of every identifier.
    pub system: u16,
    /// Business codes (digits 15 and 16) with their kinds: at most one composite and one atom for each.
    pub kinds: Vec<(u8, Kind)>,
    /// `None` = no identifiers are made here.
    pub identifiers: Option<FluxIdentifierConfig>,
    pub retention: FluxRetention,
    /// The table in which retention jobs name themselves; `None` = each deleted row is a deletion.
    pub retention_marker: Option<MarkerTable>,
    /// The strategy by year beside the one by month; `None` = no identifier has a year digit.
    pub years: Option<Years>,
    /// The month digits in the names of the settlement tables of atoms, which `flux explain` prints.
    pub settlement_atoms: AtomSettlement,
}

/// A table that is not captured. A transaction that inserts a row into it says that its later deletions are those of a
/// retention rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkerTable {
    pub database: String,
    pub table: String,
}

impl MarkerTable {
    /// Returns whether this is the name of the table. A server may store names in lower case.
    pub fn is(&self, database: &str, table: &str) -> bool {
        self.database.eq_ignore_ascii_case(database) && self.table.eq_ignore_ascii_case(table)
    }

    /// Reads `database.table`; `None` unless both are names.
    fn parse(text: &str) -> Option<Self> {
        let (database, table) = text.split_once('.')?;
        let is_name = |name: &str| {
            !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(['.', '{', '}', '`'])
        };
        (is_name(database) && is_name(table))
            .then(|| Self { database: database.to_owned(), table: table.to_owned() })
    }
}

/// Time for which tables of payment documents, and rows of dropped ones, are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FluxRetention {
    /// Age in months at which a month's table is due.
    pub months: NonZeroU32,
    /// Months for which index rows outlive their table.
    pub index_months_after: NonZeroU32,
}

impl Default for FluxRetention {
    fn default() -> Self {
        Self { months: RETENTION_MONTHS, index_months_after: INDEX_MONTHS_AFTER }
    }
}

/// Settings for new identifiers of payment documents.
#[derive(Debug, Clone)]
pub struct FluxIdentifierConfig {
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
pub(super) enum RegionName {
    #[serde(rename = "us")]
    UnitedStates,
    #[serde(rename = "singapore")]
    Singapore,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SideName {
    Main,
    FailOver,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LevelName {
    Atom,
    Composite,
}

/// Key `flux` of a source.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Site {
    region: RegionName,
    side: SideName,
}

/// One kind of a business code, or several.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected the name of a kind, or a list of names")]
enum KindNames {
    One(String),
    Several(Vec<String>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Flux {
    system: Option<u16>,
    #[serde(default)]
    kinds: BTreeMap<String, KindNames>,
    retention_months: Option<NonZeroU32>,
    index_months_after: Option<NonZeroU32>,
    retention_marker: Option<String>,
    years: Option<YearsSection>,
    settlement_atoms: Option<SettlementAtoms>,
    region: Option<RegionName>,
    time_zone: Option<String>,
    sequence_url: Option<ServerUrl>,
    sequence_setup_url: Option<ServerUrl>,
    sequence_tls: Option<Tls>,
    sequence_ca_file: Option<Expanded>,
    sequence_database: Option<String>,
    request_keys_days: Option<NonZeroU32>,
    request_keys_max: Option<NonZeroU64>,
}

impl From<RegionName> for Region {
    fn from(name: RegionName) -> Self {
        match name {
            RegionName::UnitedStates => Self::UnitedStates,
            RegionName::Singapore => Self::Singapore,
        }
    }
}

impl From<LevelName> for Level {
    fn from(name: LevelName) -> Self {
        match name {
            LevelName::Atom => Self::Atom,
            LevelName::Composite => Self::Composite,
        }
    }
}

impl Site {
    pub(super) fn resolve(&self) -> (Region, Side) {
        let side = match self.side {
            SideName::Main => Side::Main,
            SideName::FailOver => Side::FailOver,
        };
        (self.region.into(), side)
    }
}

/// Returns the places of payment documents by these settings, which may lack the section `[flux]`.
pub(super) fn places(
    flux: Option<&FluxConfig>,
    entities: &[EntityConfig],
    sources: &[SourceConfig],
) -> Arc<FluxPlaces> {
    let entities = entities.iter().filter(|config| config.entity == Entity::Flux);
    let tables = entities.map(|config| FluxTables { pattern: config.tables.clone(), level: config.level });
    let sources = sources.iter().filter(|source| source.entities.contains(&Entity::Flux));
    let sources = sources.map(|source| FluxSource {
        name: source.name.clone(),
        generation: source.generation,
        site: source.flux,
    });
    let system = flux.map_or(SYSTEM, |flux| flux.system);
    let kinds = flux.map_or(&[][..], |flux| &flux.kinds);
    let years = flux.and_then(|flux| flux.years);
    Arc::new(FluxPlaces::new(system, kinds, tables.collect(), sources.collect()).with_years(years))
}

/// Gives the marker table to the entries whose documents outlive their tables. One that could never count is a problem,
/// because a job that relies on it would remove documents from the index.
pub(super) fn set_marker(flux: Option<&FluxConfig>, entities: &mut [EntityConfig], problems: &mut Problems) {
    let Some(marker) = flux.and_then(|flux| flux.retention_marker.as_ref()) else { return };
    let (key, found) = ("flux.retention_marker", format!("`{}.{}`", marker.database, marker.table));
    let (database, table) = (&marker.database, &marker.table);
    if let Some(entity) = entities.iter().find(|entity| entity.tables.matches(database, table).is_some()) {
        let needed = format!("a table that is not captured, as it is by {}", entity.tables);
        problems.add(key, found, &needed);
        return;
    }
    let is_retained =
        |entity: &&mut EntityConfig| entity.entity == Entity::Flux && entity.removal == Removal::Retain;
    let mut retained = entities.iter_mut().filter(is_retained).peekable();
    if retained.peek().is_none() {
        problems.add(key, found, "an entry of entity `flux` with removal = \"retain\"");
    }
    retained.for_each(|entity| entity.retention_marker = Some(marker.clone()));
}

impl Flux {
    /// Returns whether the file has the section `[flux.years]`, right or wrong.
    pub(super) fn has_years(&self) -> bool {
        self.years.is_some()
    }

    /// Fills in defaults; adds a problem and returns `None` for a value that cannot be resolved.
    pub(super) fn resolve(self, problems: &mut Problems) -> Option<FluxConfig> {
        let before = problems.0.len();
        let system = self.system.unwrap_or(SYSTEM);
        if system > 999 {
            problems.add("flux.system", system.to_string(), "at most three digits");
        }
        let kinds = kinds(&self.kinds, problems);
        let retention = self.retention(problems);
        let retention_marker = self.marker(problems);
        let years = self.years.as_ref().and_then(|years| years.resolve(retention.months.get(), problems));
        let settlement_atoms = self.settlement_atoms.map(AtomSettlement::from).unwrap_or_default();
        let identifiers = self.identifiers(system, problems);
        (problems.0.len() == before).then_some(FluxConfig {
            system,
            kinds,
            identifiers,
            retention,
            retention_marker,
            years,
            settlement_atoms,
        })
    }

    fn marker(&self, problems: &mut Problems) -> Option<MarkerTable> {
        let text = self.retention_marker.as_deref()?;
        let marker = MarkerTable::parse(text);
        if marker.is_none() {
            let needed = "one table as `database.table`, without placeholders or backquotes";
            problems.add("flux.retention_marker", format!("`{text}`"), needed);
        }
        marker
    }

    fn retention(&self, problems: &mut Problems) -> FluxRetention {
        let mut months = |key: &str, configured: Option<NonZeroU32>, default| {
            let months = configured.unwrap_or(default);
            if months.get() > MONTHS_MAX {
                let needed = format!("1 to {MONTHS_MAX} months");
                problems.add(&format!("flux.{key}"), months.to_string(), &needed);
            }
            months
        };
        FluxRetention {
            months: months("retention_months", self.retention_months, RETENTION_MONTHS),
            index_months_after: months("index_months_after", self.index_months_after, INDEX_MONTHS_AFTER),
        }
    }

    /// Returns the settings for new identifiers, if the section has both the region and the server. One of them alone,
    /// or another key of theirs without them, is a problem.
    fn identifiers(self, system: u16, problems: &mut Problems) -> Option<FluxIdentifierConfig> {
        let both = "both flux.region and flux.sequence_url to make identifiers, or neither of them";
        let missing = match (&self.region, &self.sequence_url) {
            (Some(_), Some(_)) => None,
            (Some(_), None) => Some(("sequence_url", "region")),
            (None, Some(_)) => Some(("region", "sequence_url")),
            (None, None) => {
                for key in self.further_keys() {
                    problems.add(&format!("flux.{key}"), "no identifiers are made here".to_owned(), both);
                }
                return None;
            }
        };
        if let Some((missing, there)) = missing {
            problems.add(&format!("flux.{missing}"), format!("missing beside flux.{there}"), both);
        }
        let (region, url) = (self.region?, self.sequence_url?);
        if url.scheme() != "mysql" {
            problems.add("flux.sequence_url", format!("scheme `{}`", url.scheme()), "mysql://");
        }
        let is_other = |setup: &ServerUrl| setup.scheme() != url.scheme() || setup.address() != url.address();
        if let Some(setup) = self.sequence_setup_url.as_ref().filter(|setup| is_other(setup)) {
            let found = format!("{}://{} beside {}", setup.scheme(), setup.address(), url.address());
            problems.add("flux.sequence_setup_url", found, "another account on the same server");
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
        if database.is_empty() || database.len() > NAME_BYTES_MAX {
            problems.add("flux.sequence_database", format!("`{database}`"), "1 to 64 characters");
        }
        let ca_file =
            trusted("flux.sequence_tls", &url, (self.sequence_tls, self.sequence_ca_file), problems);
        Some(FluxIdentifierConfig {
            region: region.into(),
            system,
            time_zone,
            sequence_url: url,
            setup_url: self.sequence_setup_url,
            ca_file,
            database,
            request_keys_kept: Duration::from_secs(u64::from(days) * 24 * 3600),
            request_keys_max: self.request_keys_max.unwrap_or(REQUEST_KEYS_MAX),
        })
    }

    /// Returns the keys that the file has and that concern new identifiers only, without the two that begin them.
    fn further_keys(&self) -> impl Iterator<Item = &'static str> {
        let keys = [
            ("time_zone", self.time_zone.is_some()),
            ("sequence_setup_url", self.sequence_setup_url.is_some()),
            ("sequence_tls", self.sequence_tls.is_some()),
            ("sequence_ca_file", self.sequence_ca_file.is_some()),
            ("sequence_database", self.sequence_database.is_some()),
            ("request_keys_days", self.request_keys_days.is_some()),
            ("request_keys_max", self.request_keys_max.is_some()),
        ];
        keys.into_iter().filter(|(_, is_there)| *is_there).map(|(key, _)| key)
    }
}

/// Returns each business code with its kinds; adds a problem for a wrong code or name, and for two kinds of one level.
fn kinds(named: &BTreeMap<String, KindNames>, problems: &mut Problems) -> Vec<(u8, Kind)> {
    let mut kinds = Vec::new();
    for (code, names) in named {
        let key = format!("flux.kinds.{code}");
        let is_code = code.len() == 2 && code.bytes().all(|byte| byte.is_ascii_digit());
        let Some(business) = code.parse::<u8>().ok().filter(|_| is_code) else {
            problems.add(&key, format!("the code `{code}`"), "a business code of two digits, such as \"03\"");
            continue;
        };
        let names = match names {
            KindNames::One(name) => std::slice::from_ref(name),
            KindNames::Several(names) => names,
        };
        if names.is_empty() {
            problems.add(&key, "an empty list".to_owned(), "at least one kind");
        }
        let mut of_code: Vec<Kind> = Vec::new();
        for name in names {
            let Some(kind) = Kind::from_name(name) else {
                let needed = format!("one of {}", Kind::ALL.map(Kind::name).join(", "));
                problems.add(&key, format!("`{name}`"), &needed);
                continue;
            };
            if let Some(other) = of_code.iter().find(|other| other.level() == kind.level()) {
                let level = kind.level().name();
                let found = format!("`{}` and `{}`, which both are a {level}", other.name(), kind.name());
                let needed = "at most one kind of composites and one of atoms: digit 14 tells them apart";
                problems.add(&key, found, needed);
            }
            of_code.push(kind);
        }
        kinds.extend(of_code.into_iter().map(|kind| (business, kind)));
    }
    kinds
}
