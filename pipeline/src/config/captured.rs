//! Captured tables and their sources as the configuration file writes them. `raw.rs` has the rest of the file.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use anabranch_schemas::change::Entity;
use anabranch_schemas::shard::{ShardingRule, TablePattern};
use serde::Deserialize;

use super::column_names::{ColumnNames, WrittenNames};
use super::flux::{LevelName, Site};
use super::transport::{Tls, trusted};
use super::values::{Expanded, ServerUrl};
use super::{Problems, REPLICA_SERVER_IDS};
use crate::ports::BinlogStart;

/// Three days of binlog: a week-end and a reconciliation.
const RETENTION_MIN_SECONDS: u64 = 3 * 24 * 3600;
/// Replica server ids begin at 0xA7A0 and the source's index in the file: unlikely to be taken, with room for its
/// lanes.
const REPLICA_SERVER_ID_BASE: u32 = 0xA7A0_0000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EntityTables {
    entity: Entity,
    tables: String,
    level: Option<LevelName>,
    #[serde(default)]
    columns: BTreeMap<String, WrittenNames>,
    rule: Option<ShardingRule>,
    sharding_column: Option<WrittenNames>,
    changed_at_column: Option<WrittenNames>,
    #[serde(default)]
    unseen_changes: super::UnseenChanges,
    #[serde(default)]
    removal: super::Removal,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Source {
    name: String,
    url: ServerUrl,
    ca_file: Option<Expanded>,
    tls: Option<Tls>,
    replica_server_id: Option<NonZeroU32>,
    start: Option<String>,
    replica_url: Option<ServerUrl>,
    replica_ca_file: Option<Expanded>,
    replica_tls: Option<Tls>,
    #[serde(default)]
    generation: u32,
    entities: Option<Vec<Entity>>,
    flux: Option<Site>,
    retention_min_seconds: Option<u64>,
}

impl EntityTables {
    pub(super) fn resolve(mut self, problems: &mut Problems) -> Option<super::EntityConfig> {
        let tables = TablePattern::parse(&self.tables)
            .map_err(|error| problems.add("entities.tables", error.to_string(), "a pattern"))
            .ok()?;
        let columns = self.captured_columns(problems);
        for unknown in self.columns.keys() {
            let needed = format!("one of {}", self.entity.field_names().join(", "));
            problems.add(&format!("entities.columns.{unknown}"), "an unknown field".to_owned(), &needed);
        }
        if let Some(rule) = self.rule
            && (rule.databases == 0 || rule.tables == 0)
        {
            problems.add(
                "entities.rule",
                format!("{} databases × {} tables", rule.databases, rule.tables),
                "both at least 1",
            );
        }
        check_names(&columns, problems);
        self.check_flux(problems);
        let mut resolved =
            |key: &str, names: Option<WrittenNames>| names.map(|names| names.resolve(key, problems));
        let changed_at_column = resolved("entities.changed_at_column", self.changed_at_column.take());
        let sharding_column = resolved("entities.sharding_column", self.sharding_column.take());
        if let Some(column) = &changed_at_column {
            let needed = "a column with the time at which the application changed the birthday last";
            if !self.entity.has_birthday() {
                problems.add("entities.changed_at_column", "an entity other than user".to_owned(), needed);
            } else if columns.iter().any(|field| field.shares(column)) {
                problems.add("entities.changed_at_column", format!("`{column}` is a field"), needed);
            }
        }
        if let Some(column) = &sharding_column {
            check_sharding_column(column, &columns, problems);
        }
        // A device's rule reads its uuid, which is captured; a user's reads the name, which is not.
        let uuid = self.entity.is_sharded_by_key().then(|| columns[0].clone());
        let sharding_column = sharding_column.or(uuid);
        Some(super::EntityConfig {
            entity: self.entity,
            tables,
            columns,
            level: self.level.map(Into::into),
            rule: self.rule,
            sharding_column,
            changed_at_column,
            unseen_changes: self.unseen_changes,
            removal: self.removal,
            retention_marker: None,
        })
    }

    /// Checks the keys that documents of payments have alone, and those that they cannot have.
    fn check_flux(&self, problems: &mut Problems) {
        if !self.entity.is_placed_by_identifier() && self.level.is_some() {
            let found = format!("of entity `{}`", self.entity.name());
            problems.add("entities.level", found, "a key of entity `flux`");
        }
        if !self.entity.may_retire() && self.removal == super::Removal::Retain {
            let found = format!("`retain` of entity `{}`", self.entity.name());
            let needed = "`withdraw`: a row of a table that is gone would be shown as if it existed; only payment \
                          documents outlive their table";
            problems.add("entities.removal", found, needed);
        }
        if !self.entity.is_placed_by_identifier() {
            return;
        }
        for (key, is_there) in
            [("rule", self.rule.is_some()), ("sharding_column", self.sharding_column.is_some())]
        {
            if is_there {
                let needed = "none: the identifier itself says the table of a payment document";
                problems.add(&format!("entities.{key}"), "of entity `flux`".to_owned(), needed);
            }
        }
    }

    /// Returns the names of the captured columns. An optional field is captured when the configuration names it
    /// together with the optional fields before it.
    fn captured_columns(&mut self, problems: &mut Problems) -> Vec<ColumnNames> {
        let (required, fields) = (self.entity.required_fields(), self.entity.field_names());
        let mut columns: Vec<ColumnNames> = Vec::new();
        for (place, field) in fields.iter().enumerate() {
            let key = format!("entities.columns.{field}");
            match self.columns.remove(*field) {
                Some(_) if place > columns.len() => {
                    let needed = format!("{} beside it", fields[place - 1]);
                    problems.add(&key, format!("without {}", fields[place - 1]), &needed);
                }
                Some(names) => columns.push(names.resolve(&key, problems)),
                None if place < required => columns.push(ColumnNames::from(*field)),
                None => {}
            }
        }
        columns
    }
}

/// Refuses a name that two captured columns have: a table's column would be one of them by chance.
fn check_names(columns: &[ColumnNames], problems: &mut Problems) {
    for (place, column) in columns.iter().enumerate() {
        if let Some(other) = columns[..place].iter().find(|other| other.shares(column)) {
            let found = format!("`{column}` beside `{other}`");
            problems.add("entities.columns", found, "names that no other field has");
        }
    }
}

/// Refuses a column of the rule that is a captured one in some tables and another one in others.
fn check_sharding_column(column: &ColumnNames, columns: &[ColumnNames], problems: &mut Problems) {
    let captured = columns.iter().find(|captured| captured.shares(column));
    if let Some(captured) = captured.filter(|captured| column.iter().any(|name| !captured.has(name))) {
        let found = format!("`{column}` beside field `{captured}`");
        problems.add("entities.sharding_column", found, "names of that field alone, or none of them");
    }
}

/// Refuses a server that two sources of one region and side name: each of its documents would be captured twice.
pub(super) fn check_sites(sources: &[super::SourceConfig], problems: &mut Problems) {
    for (index, source) in sources.iter().enumerate().filter(|(_, source)| source.flux.is_some()) {
        let address = source.url.address();
        let is_same =
            |other: &&super::SourceConfig| other.flux == source.flux && other.url.address() == address;
        if let Some(other) = sources[..index].iter().find(is_same) {
            let found =
                format!("{address} for `{}` and `{}` of one region and side", other.name, source.name);
            let needed = "a server of its own: the documents of this one would be captured twice";
            problems.add("sources.url", found, needed);
        }
    }
}

impl Source {
    pub(super) fn resolve(
        self,
        index: usize,
        all: &[Entity],
        spill_dir: &Path,
        problems: &mut Problems,
    ) -> Option<super::SourceConfig> {
        if self.url.scheme() != "mysql" {
            problems.add("sources.url", format!("scheme `{}`", self.url.scheme()), "mysql://");
            return None;
        }
        let start = match self.start.as_deref() {
            None | Some("earliest") => BinlogStart::Earliest,
            Some("latest") => BinlogStart::Latest,
            Some(set) if set.contains('-') => BinlogStart::Gtid(set.to_owned()),
            Some(other) => {
                problems.add("sources.start", format!("`{other}`"), "earliest, latest or a GTID set");
                return None;
            }
        };
        let entities = self.entities.unwrap_or_else(|| all.to_vec());
        for entity in entities.iter().filter(|entity| !all.contains(entity)) {
            problems.add(
                "sources.entities",
                format!("`{}`", entity.name()),
                "the name of an [[entities]] entry",
            );
        }
        if self.flux.is_some() && !entities.contains(&Entity::Flux) {
            let found = format!("of `{}`, which captures no entity `flux`", self.name);
            problems.add("sources.flux", found, "`flux` among its entities, or no such key");
        }
        if self.replica_url.as_ref().is_some_and(|url| url.scheme() != "mysql") {
            problems.add("sources.replica_url", "another scheme".to_owned(), "mysql://");
        }
        let replica = match self.replica_url {
            Some(url) => {
                let trust = (self.replica_tls, self.replica_ca_file);
                let ca_file = trusted("sources.replica_tls", &url, trust, problems);
                Some((url, ca_file))
            }
            None => {
                if self.replica_tls.is_some() || self.replica_ca_file.is_some() {
                    let found = "replica_tls or replica_ca_file without it".to_owned();
                    problems.add("sources.replica_url", found, "the replica's URL, or neither");
                }
                None
            }
        };
        let ca_file = trusted("sources.tls", &self.url, (self.tls, self.ca_file), problems);
        let base = NonZeroU32::new(REPLICA_SERVER_ID_BASE + index as u32 * REPLICA_SERVER_IDS)
            .expect("the base is not zero");
        Some(super::SourceConfig {
            name: self.name,
            url: self.url,
            ca_file,
            replica_server_id: self.replica_server_id.unwrap_or(base),
            start,
            replica,
            generation: self.generation,
            entities,
            flux: self.flux.as_ref().map(Site::resolve),
            retention_min: Duration::from_secs(self.retention_min_seconds.unwrap_or(RETENTION_MIN_SECONDS)),
            spill_dir: spill_dir.to_owned(),
        })
    }
}
