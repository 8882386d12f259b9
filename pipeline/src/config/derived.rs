//! Projections and caches as the configuration file writes them. `raw.rs` has the rest of the file.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use anabranch_schemas::birthday::Layout;
use anabranch_schemas::celebration::Calendar;
use anabranch_schemas::change::Entity;
use serde::Deserialize;

use super::transport::{Tls, trusted};
use super::values::{Expanded, ServerUrl, placeholder};
use super::{BirthdayTables, EntityConfig, MappingTables, Problems, RelationTables, TargetStore};
use crate::records::{FluxPlaces, TimeToLive};

const LANES: NonZeroU32 = NonZeroU32::new(2).expect("not zero");
/// Tables of each length class: the inventory's design has 512, of 5 to 10 million rows.
const MAPPING_TABLES: NonZeroU32 = NonZeroU32::new(512).expect("not zero");
/// Time to live of an entry: a year, as in the inventory's design.
const CACHE_SECONDS: NonZeroU64 = NonZeroU64::new(365 * 24 * 3600).expect("not zero");
/// Time to live of an entry without devices: long enough that repeated scans of an unknown code cost nothing.
const CACHE_EMPTY_SECONDS: NonZeroU64 = NonZeroU64::new(300).expect("not zero");
/// OpenSearch takes 255 bytes, and a version follows the name.
const INDEX_NAME_MAX_BYTES: usize = 64;
/// The default database of the relation index, and the pattern of its tables.
const RELATION_DATABASE: &str = "flux_relations";
const RELATION_TABLE: &str = "flux_relation_{partition:02}";

/// A kind of projection with its settings.
#[derive(Debug, Clone)]
pub enum ProjectionKind {
    Birthday(BirthdayTables),
    SerialMapping(MappingTables),
    SerialDocuments(DocumentIndex),
    FluxRelations(RelationTables),
}

impl ProjectionKind {
    /// Returns the name of the kind in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Birthday(_) => "birthday",
            Self::SerialMapping(_) => "serial_mapping",
            Self::SerialDocuments(_) => "serial_documents",
            Self::FluxRelations(_) => "flux_relations",
        }
    }

    /// Returns the entity whose changes a projection of this kind reads.
    pub fn entity(&self) -> Entity {
        match self {
            Self::Birthday(_) => Entity::User,
            Self::SerialMapping(_) | Self::SerialDocuments(_) => Entity::SerialCode,
            Self::FluxRelations(_) => Entity::Flux,
        }
    }

    /// Returns the kind of target that can hold its tables.
    pub fn store(&self) -> TargetStore {
        match self {
            Self::Birthday(_) | Self::SerialMapping(_) | Self::FluxRelations(_) => TargetStore::Mysql,
            Self::SerialDocuments(_) => TargetStore::Search,
        }
    }

    /// Returns the tables of a projection of birthdays; `None` for another kind.
    pub fn birthday(&self) -> Option<&BirthdayTables> {
        if let Self::Birthday(tables) = self { Some(tables) } else { None }
    }

    /// Returns the mapping tables, which answer lookups and fill caches; `None` for another kind.
    pub fn mapping(&self) -> Option<&MappingTables> {
        if let Self::SerialMapping(tables) = self { Some(tables) } else { None }
    }

    /// Returns the index of documents, which answer searches; `None` for another kind.
    pub fn documents(&self) -> Option<&DocumentIndex> {
        if let Self::SerialDocuments(index) = self { Some(index) } else { None }
    }

    /// Returns the tables of the relation index; `None` for another kind.
    pub fn relations(&self) -> Option<&RelationTables> {
        if let Self::FluxRelations(tables) = self { Some(tables) } else { None }
    }
}

/// The search index of serial codes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentIndex {
    /// Name for readers: an alias of the index of the present version.
    pub index: String,
    /// Age above which the daemon removes tombstones; `None` = people remove them.
    pub tombstones_kept: Option<Duration>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cache {
    name: String,
    url: ServerUrl,
    ca_file: Option<Expanded>,
    tls: Option<Tls>,
    #[serde(default)]
    cluster: bool,
    projection: String,
    time_to_live_seconds: Option<NonZeroU64>,
    empty_time_to_live_seconds: Option<NonZeroU64>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Birthday,
    SerialMapping,
    SerialDocuments,
    FluxRelations,
}

/// An entry of `[[projections]]`; the keys after `lanes` belong to some kinds only.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Projection {
    name: String,
    kind: Kind,
    targets: Vec<String>,
    lanes: Option<NonZeroU32>,
    calendar: Option<Calendar>,
    layout: Option<Layout>,
    databases: Option<NonZeroU32>,
    database: Option<String>,
    table: Option<String>,
    tables: Option<NonZeroU32>,
    index: Option<String>,
    tombstones_kept_hours: Option<NonZeroU32>,
}

impl Cache {
    pub(super) fn resolve(self, problems: &mut Problems) -> Option<super::CacheConfig> {
        if !matches!(self.url.scheme(), "redis" | "rediss") {
            problems.add("caches.url", format!("scheme `{}`", self.url.scheme()), "redis:// or rediss://");
            return None;
        }
        let seconds = |value: Option<NonZeroU64>, default: NonZeroU64| {
            Duration::from_secs(value.unwrap_or(default).get())
        };
        let ca_file = trusted("caches.tls", &self.url, (self.tls, self.ca_file), problems);
        Some(super::CacheConfig {
            name: self.name,
            url: self.url,
            ca_file,
            is_cluster: self.cluster,
            projection: self.projection,
            time_to_live: TimeToLive {
                full: seconds(self.time_to_live_seconds, CACHE_SECONDS),
                empty: seconds(self.empty_time_to_live_seconds, CACHE_EMPTY_SECONDS),
            },
        })
    }
}

impl Projection {
    pub(super) fn resolve(
        mut self,
        entities: &[EntityConfig],
        flux_places: &Arc<FluxPlaces>,
        problems: &mut Problems,
    ) -> Option<super::ProjectionConfig> {
        let kind = match self.kind {
            Kind::Birthday => ProjectionKind::Birthday(self.birthday_tables(entities, problems)?),
            Kind::SerialMapping => ProjectionKind::SerialMapping(self.mapping_tables(problems)?),
            Kind::FluxRelations => ProjectionKind::FluxRelations(self.relation_tables(flux_places, problems)),
            Kind::SerialDocuments => {
                let index = self.required("index", |raw| raw.index.take(), problems)?;
                check_index(&index, problems);
                let hours = self.tombstones_kept_hours.take();
                let kept = hours.map(|hours| Duration::from_secs(u64::from(hours.get()) * 3600));
                ProjectionKind::SerialDocuments(DocumentIndex { index, tombstones_kept: kept })
            }
        };
        for (key, is_left) in [
            ("calendar", self.calendar.is_some()),
            ("layout", self.layout.is_some()),
            ("databases", self.databases.is_some()),
            ("database", self.database.is_some()),
            ("table", self.table.is_some()),
            ("tables", self.tables.is_some()),
            ("index", self.index.is_some()),
            ("tombstones_kept_hours", self.tombstones_kept_hours.is_some()),
        ] {
            if is_left {
                let needed = format!("a key of projection kind `{}`", kind.name());
                problems.add(&format!("projections.{key}"), format!("of `{}`", self.name), &needed);
            }
        }
        Some(super::ProjectionConfig {
            name: self.name,
            lanes: self.lanes.unwrap_or(LANES),
            targets: self.targets,
            kind,
        })
    }

    /// Takes the value of a key; a missing value is a problem.
    fn required<T>(
        &mut self,
        key: &str,
        take: impl FnOnce(&mut Self) -> Option<T>,
        problems: &mut Problems,
    ) -> Option<T> {
        let value = take(self);
        if value.is_none() {
            problems.add(&format!("projections.{key}"), format!("missing in `{}`", self.name), "a value");
        }
        value
    }

    /// Takes a name that must have a placeholder.
    fn pattern(
        &mut self,
        key: &str,
        take: impl FnOnce(&mut Self) -> Option<String>,
        (has_placeholder, example): (impl FnOnce(&str) -> bool, &str),
        problems: &mut Problems,
    ) -> Option<String> {
        let pattern = self.required(key, take, problems)?;
        if !has_placeholder(&pattern) {
            let needed = format!("a name such as {example}");
            problems.add(&format!("projections.{key}"), format!("`{pattern}`"), &needed);
        }
        Some(pattern)
    }

    fn birthday_tables(
        &mut self,
        entities: &[EntityConfig],
        problems: &mut Problems,
    ) -> Option<BirthdayTables> {
        let calendar = self.calendar.take().unwrap_or(Calendar::Solar);
        let users = |config: &&EntityConfig| config.entity == Entity::User;
        let captures = |field: &str| {
            let place = Entity::User.field_names().iter().position(|known| *known == field);
            place.is_some_and(|place| {
                entities.iter().find(users).is_some_and(|user| user.columns.len() > place)
            })
        };
        if calendar == Calendar::Lunar && !captures("lunar_birthday") {
            let found = format!("`lunar` in `{}`", self.name);
            problems.add("projections.calendar", found, "lunar_birthday in entities.columns of `user`");
        }
        let layout = self.required("layout", |raw| raw.layout.take(), problems);
        let databases = self.required("databases", |raw| raw.databases.take(), problems);
        let is_one = databases.is_none_or(|number| number.get() == 1);
        let has_db = |text: &str| is_one || placeholder(text, "db").is_some();
        let database =
            self.pattern("database", |raw| raw.database.take(), (has_db, "birthday_{db:02}"), problems);
        let has_day = |text: &str| text.contains("{mmdd}");
        let table = self.pattern("table", |raw| raw.table.take(), (has_day, "birthday_{mmdd}"), problems);
        Some(BirthdayTables {
            calendar,
            captures_type: captures("birthday_type"),
            layout: layout?,
            databases: databases?,
            database: database?,
            table: table?,
        })
    }

    fn mapping_tables(&mut self, problems: &mut Problems) -> Option<MappingTables> {
        let tables = self.tables.take().unwrap_or(MAPPING_TABLES);
        let has_length = |text: &str| text.contains("{length}");
        let database = self.pattern(
            "database",
            |raw| raw.database.take(),
            (has_length, "serial_code_{length}"),
            problems,
        );
        let has_table = |text: &str| tables.get() == 1 || placeholder(text, "table").is_some();
        let table =
            self.pattern("table", |raw| raw.table.take(), (has_table, "mapping_{table:03}"), problems);
        Some(MappingTables { tables, database: database?, table: table? })
    }

    fn relation_tables(&mut self, places: &Arc<FluxPlaces>, problems: &mut Problems) -> RelationTables {
        let database = self.database.take().unwrap_or_else(|| RELATION_DATABASE.to_owned());
        if database.is_empty() || database.contains(['{', '}']) {
            let needed = format!("a name without placeholders, such as {RELATION_DATABASE}");
            problems.add("projections.database", format!("`{database}`"), &needed);
        }
        let table = self.table.take().unwrap_or_else(|| RELATION_TABLE.to_owned());
        if placeholder(&table, "partition").is_none() {
            let needed = format!("a name such as {RELATION_TABLE}");
            problems.add("projections.table", format!("`{table}`"), &needed);
        }
        RelationTables { database, table, places: Arc::clone(places) }
    }
}

/// Checks that OpenSearch and Elasticsearch both take the name, with room for the version after it.
fn check_index(index: &str, problems: &mut Problems) {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
    let begins_well = index.starts_with(|first: char| first.is_ascii_lowercase());
    if !begins_well || index.len() > INDEX_NAME_MAX_BYTES || !index.bytes().all(is_plain) {
        let needed = "1 to 64 lower case letters, digits, `-` and `_`, beginning with a letter";
        problems.add("projections.index", format!("`{index}`"), needed);
    }
}
