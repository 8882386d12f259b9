//! Decides which tables of a source are captured, under which shard ids, and with which column types.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use anabranch_pipeline::config::{ColumnNames, EntityConfig, Removal, SourceConfig, UnseenChanges};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::change::{Entity, FieldKind, TableIdentity};
use anabranch_schemas::shard::ShardId;

use super::heirs::Heirs;
use super::unfit_tables::UnfitTable;
use crate::mysql::source::decode::column::Format;

/// Tables of one pattern of payment documents in a database, at most: 100 user partitions, each with twelve months and
/// one table without, in ten years, are 13,000.
const LIKELY_TABLES_MAX: u64 = 20_000;

/// A captured table.
#[derive(Debug)]
pub struct CapturedTable {
    pub identity: TableIdentity<'static>,
    /// Names of the captured columns, in the order of [`Entity::fields`].
    pub columns: Arc<[ColumnNames]>,
    /// The stream's reaction to changes of the table's rows without row events.
    pub unseen_changes: UnseenChanges,
    /// The meaning of the table's end.
    pub removal: Removal,
}

/// The captured tables seen so far, which a lookup by name adds.
#[derive(Debug)]
pub struct CapturedTables {
    source: String,
    generation: u32,
    entities: Vec<(EntityConfig, Arc<[ColumnNames]>)>,
    known: HashMap<ShardId, Arc<CapturedTable>>,
    heirs: Heirs,
    /// Tables whose row events do not show every change, as the server described them when the stream opened, and as
    /// statements in the binlog changed them since.
    unfit: HashMap<ShardId, BTreeSet<UnfitTable>>,
    /// Databases whose tables are all known: listed when the stream opened, or created since.
    databases: HashSet<String>,
}

impl CapturedTables {
    pub fn new(config: &SourceConfig, entities: &[EntityConfig]) -> Self {
        let entities = entities
            .iter()
            .filter(|entity| config.entities.contains(&entity.entity))
            .map(|entity| (entity.clone(), entity.columns.clone().into()))
            .collect();
        Self {
            source: config.name.clone(),
            generation: config.generation,
            entities,
            known: HashMap::new(),
            heirs: Heirs::default(),
            unfit: HashMap::new(),
            databases: HashSet::new(),
        }
    }

    pub fn entities(&self) -> impl Iterator<Item = &EntityConfig> {
        self.entities.iter().map(|(entity, _)| entity)
    }

    /// Whether a name is captured; does not keep the name.
    pub fn is_captured(&self, database: &str, table: &str) -> bool {
        self.entities.iter().any(|(entity, _)| entity.tables.matches(database, table).is_some())
    }

    /// Returns the captured table of this name, `None` for another. Two tables with one shard id are refused: their
    /// claims would mix.
    pub fn resolve(&mut self, database: &str, table: &str) -> Result<Option<Arc<CapturedTable>>, Fault> {
        let Some((entity, columns)) =
            self.entities.iter().find(|(entity, _)| entity.tables.matches(database, table).is_some())
        else {
            return Ok(None);
        };
        let shard = ShardId::of(&self.source, database, table, self.generation);
        let known = self.known.entry(shard).or_insert_with(|| {
            Arc::new(CapturedTable {
                identity: TableIdentity {
                    entity: entity.entity,
                    shard,
                    database: database.to_owned().into(),
                    table: table.to_owned().into(),
                },
                columns: Arc::clone(columns),
                unseen_changes: entity.unseen_changes,
                removal: entity.removal,
            })
        });
        if known.identity.database != database || known.identity.table != table {
            return Err(Fault::new(
                Code::ConfigInvalid,
                format!("table {database}.{table} of source {}", self.source),
                format!(
                    "it has the shard id {shard} of table {}.{}",
                    known.identity.database, known.identity.table
                ),
            )
            .needs("a shard id that no other table has")
            .remedy("set another `generation` for this source and refresh it"));
        }
        Ok(Some(Arc::clone(known)))
    }

    /// Whether the name is that of the table in which retention jobs name themselves.
    pub fn is_retention_marker(&self, database: &str, table: &str) -> bool {
        let mut markers = self.entities.iter().filter_map(|(entity, _)| entity.retention_marker.as_ref());
        markers.any(|marker| marker.is(database, table))
    }

    /// Returns the heir of a captured table for rows that were deleted at this time, in seconds of the epoch.
    pub fn heir(&mut self, table: &TableIdentity<'static>, seconds: u32) -> TableIdentity<'static> {
        self.heirs.of(&self.source, self.generation, table, seconds).clone()
    }

    /// Returns the identity that changes of a shard have, with the shard of the captured table itself: the same one, or
    /// that of which it is an heir. `None` for a shard that was neither resolved nor made before.
    pub fn recorded(&self, shard: ShardId) -> Option<(&TableIdentity<'static>, ShardId)> {
        let table = self.known.get(&shard).map(|table| (&table.identity, shard));
        table.or_else(|| self.heirs.get(shard))
    }

    /// Returns a shared handle of a table that was resolved before.
    pub fn shared(&self, shard: ShardId) -> Option<Arc<CapturedTable>> {
        self.known.get(&shard).cloned()
    }

    /// Notes a reason why row events of the table do not show every change.
    pub fn becomes_unfit(&mut self, shard: ShardId, how: UnfitTable) {
        self.unfit.entry(shard).or_default().insert(how);
    }

    /// Notes that the table has no system versioning any more.
    pub fn loses_versioning(&mut self, shard: ShardId) {
        self.fits_again(shard, |how| *how == UnfitTable::Versioned);
    }

    /// Notes that the table has an engine with transactions.
    pub fn gets_transactions(&mut self, shard: ShardId) {
        self.fits_again(shard, |how| matches!(how, UnfitTable::Engine(_)));
    }

    fn fits_again(&mut self, shard: ShardId, is_over: impl Fn(&UnfitTable) -> bool) {
        if let Some(reasons) = self.unfit.get_mut(&shard) {
            reasons.retain(|how| !is_over(how));
        }
    }

    /// Returns why row events of the table do not show every change; `None` if they do.
    pub fn unfit(&self, shard: ShardId) -> Option<&UnfitTable> {
        self.unfit.get(&shard)?.first()
    }

    /// Notes that every table of this database is known, or will be when it is created.
    pub fn add_database(&mut self, database: String) {
        if self.entities.iter().any(|(entity, _)| is_of(entity, &database)) {
            self.databases.insert(database);
        }
    }

    /// Returns all tables seen so far.
    pub fn all(&self) -> impl Iterator<Item = &Arc<CapturedTable>> {
        self.known.values()
    }

    /// Returns the shards of all tables seen so far.
    pub fn shards(&self) -> impl Iterator<Item = ShardId> {
        self.known.keys().copied()
    }

    /// Returns every captured table that `DROP DATABASE` removes: those seen, and those that the sharding rule puts
    /// there (the stream never saw a table that was dropped before it opened). Payment documents have no such rule: a
    /// month, a user partition and a year digit are all that the names of their tables can have. `None` when they
    /// cannot be listed.
    pub fn in_database(&mut self, database: &str) -> Result<Option<Vec<Arc<CapturedTable>>>, Fault> {
        let mut names: Vec<String> = Vec::new();
        for (entity, _) in &self.entities {
            let pattern = &entity.tables;
            if !is_of(entity, database) {
                continue;
            }
            let is_listed = self.databases.contains(database);
            if entity.entity.is_placed_by_identifier() {
                let mut add = |table: &str| names.push(table.to_owned());
                if !is_listed && !pattern.visit_likely_tables(database, LIKELY_TABLES_MAX, &mut add) {
                    return Ok(None);
                }
                continue;
            }
            let (_, first) = pattern.names(0, 0);
            if pattern.names(0, 1).1 == first {
                names.push(first);
                continue;
            }
            match entity.rule {
                Some(rule) => names.extend((0..rule.tables).map(|number| pattern.names(0, number).1)),
                None if is_listed => {}
                None => return Ok(None),
            }
        }
        let seen = self.known.values().filter(|known| known.identity.database == database);
        names.extend(seen.map(|known| known.identity.table.clone().into_owned()));
        names.sort();
        names.dedup();
        names.iter().map(|table| self.resolve(database, table)).collect::<Result<Option<Vec<_>>, _>>()
    }
}

/// Whether captured tables of the entity can be in this database.
fn is_of(entity: &EntityConfig, database: &str) -> bool {
    entity.tables.matches_database(database)
}

/// Whether a column of this format has text, unless its collation says that it holds bytes.
pub fn is_text(format: Format) -> bool {
    matches!(format, Format::Text { .. } | Format::Blob { .. })
}

/// Whether a field of an entity can be read from a column of this format.
pub fn accepts(entity: Entity, field: usize, format: Format) -> bool {
    let Some(field) = entity.fields().get(field) else { return false };
    let is_moment = matches!(
        format,
        Format::DateTime { .. } | Format::Timestamp { .. } | Format::OldDateTime | Format::OldTimestamp
    );
    is_text(format)
        || match field.kind {
            FieldKind::Code => matches!(format, Format::Integer { .. }),
            FieldKind::Text => false,
            FieldKind::Date => is_moment || matches!(format, Format::Date),
            FieldKind::Decimal => matches!(format, Format::Integer { .. } | Format::Decimal { .. }),
            FieldKind::DateTime => is_moment,
        }
}

/// Describes, for messages, the types that [`accepts`] accepts.
pub fn accepted_types(entity: Entity, field: usize) -> &'static str {
    match entity.fields().get(field).map(|field| field.kind) {
        Some(FieldKind::Code) => "an integer or text type",
        Some(FieldKind::Text) => "a text type",
        Some(FieldKind::Date) => "DATE, DATETIME, TIMESTAMP or a text type",
        Some(FieldKind::Decimal) => "DECIMAL, an integer or text type",
        Some(FieldKind::DateTime) => "DATETIME, TIMESTAMP or a text type",
        None => "a field of the entity",
    }
}

/// Whether a field can be captured from a column of this type in `information_schema`.
pub fn accepts_data_type(entity: Entity, field: usize, data_type: &str) -> bool {
    const TEXT: &[&str] = &["char", "varchar", "tinytext", "text", "mediumtext", "longtext"];
    const INTEGER: &[&str] = &["tinyint", "smallint", "mediumint", "int", "bigint"];
    let Some(field) = entity.fields().get(field) else { return false };
    TEXT.contains(&data_type)
        || match field.kind {
            FieldKind::Code => INTEGER.contains(&data_type),
            FieldKind::Text => false,
            FieldKind::Date => ["date", "datetime", "timestamp"].contains(&data_type),
            FieldKind::Decimal => INTEGER.contains(&data_type) || data_type == "decimal",
            FieldKind::DateTime => ["datetime", "timestamp"].contains(&data_type),
        }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::path::PathBuf;
    use std::time::Duration;

    use anabranch_pipeline::config::ServerUrl;
    use anabranch_pipeline::ports::BinlogStart;
    use anabranch_schemas::shard::TablePattern;

    use super::*;

    fn captured(entity: Entity, pattern: &str) -> CapturedTables {
        let entity = EntityConfig {
            entity,
            tables: TablePattern::parse(pattern).unwrap(),
            columns: Vec::new(),
            level: None,
            rule: None,
            sharding_column: None,
            changed_at_column: None,
            unseen_changes: UnseenChanges::default(),
            removal: Removal::default(),
            retention_marker: None,
        };
        let config = SourceConfig {
            name: "source-a".to_owned(),
            url: ServerUrl::try_from("mysql://u:p@127.0.0.1:3306".to_owned()).unwrap(),
            ca_file: None::<PathBuf>,
            replica_server_id: NonZeroU32::MIN,
            start: BinlogStart::Earliest,
            generation: 0,
            entities: vec![entity.entity],
            flux: None,
            replica: None,
            retention_min: Duration::ZERO,
            spill_dir: std::env::temp_dir(),
        };
        CapturedTables::new(&config, &[entity])
    }

    #[test]
    fn a_dropped_database_that_was_never_listed_had_every_table_that_its_documents_can_have() {
        let mut documents = captured(Entity::Flux, "flux_00_{db}.atom_{partition:02}_{month:02}");
        let tables = documents.in_database("flux_00_3").unwrap().unwrap();
        assert_eq!(tables.len(), 1_300);
        assert!(tables.iter().any(|table| table.identity.table == "atom_07_99"));
        assert_eq!(documents.in_database("elsewhere").unwrap().unwrap().len(), 0);
        let mut by_month = captured(Entity::Flux, "flux_{db:02}.atom_{month:02}");
        assert_eq!(by_month.in_database("flux_01").unwrap().unwrap().len(), 13);
        by_month.add_database("flux_02".to_owned());
        assert_eq!(by_month.in_database("flux_02").unwrap().unwrap().len(), 0, "all that it had are known");
        let mut users = captured(Entity::User, "user_{db:02}.user_{table:03}");
        assert!(
            users.in_database("user_07").unwrap().is_none(),
            "any number may be a table: a rule is needed"
        );
        users.add_database("user_07".to_owned());
        assert_eq!(users.in_database("user_07").unwrap().unwrap().len(), 0);
    }
}
