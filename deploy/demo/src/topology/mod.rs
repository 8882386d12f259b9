//! The tables of the demo: numbered databases with numbered tables, spread over the source servers.
//!
//! Each entity has a topology, side by side on the same servers; consecutive databases are on one server. Of 10 user
//! databases the first of two servers has 0–4 and the second 5–9. Of 5 inventory databases they have 0–2 and 3–4; the
//! history is with the last one. Payment documents have one more server, which holds their fail-over databases alone.

mod flux;
mod serials;
mod users;

use anabranch_schemas::change::Entity;
use anabranch_schemas::shard::{NameHash, ShardingRule, Spread};

pub use self::flux::{
    Document, FLUX_DATABASES, FLUX_DAYS, FLUX_KINDS, FLUX_REGION, FLUX_TABLES, RECHARGE_DAYS, WITHOUT_KIND,
    place_of,
};
pub use self::serials::{INVENTORY_DATABASES, SERIAL_TABLES, UuidType, uuid};
pub use self::users::{BirthdayType, USER_TABLES};
use crate::endpoint::Endpoint;
use crate::error::{DemoError, Result};

/// One physical source table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceTable {
    pub entity: Entity,
    /// Number of the database; for devices, [`INVENTORY_DATABASES`] is the history. For payment documents, numbers from
    /// [`FLUX_DATABASES`] on are the fail-over databases.
    pub database: u32,
    /// Number of the table; for payment documents level, second digit of the user partition, and month.
    pub table: u32,
}

impl SourceTable {
    pub fn database_name(self) -> String {
        match self.entity {
            Entity::User => format!("user_{:02}", self.database),
            Entity::SerialCode if self.is_history() => "inventory_history".to_owned(),
            Entity::SerialCode => format!("inventory_{}", self.database),
            Entity::Flux => flux::database_name(self),
        }
    }

    pub fn table_name(self) -> String {
        match self.entity {
            Entity::User => format!("user_{:03}", self.table),
            Entity::SerialCode => format!("serial_code_{:02}", self.table),
            Entity::Flux => flux::table_name(self),
        }
    }

    /// Returns a name such as `` `user_07`.`user_003` ``.
    pub fn quoted(self) -> String {
        format!("`{}`.`{}`", self.database_name(), self.table_name())
    }

    /// Returns a name such as `user_07.user_003`.
    pub fn name(self) -> String {
        format!("{}.{}", self.database_name(), self.table_name())
    }

    /// Whether the table only gets rows from other tables, and keeps them.
    pub fn is_history(self) -> bool {
        self.entity == Entity::SerialCode && self.database >= INVENTORY_DATABASES
    }

    /// Returns the history's table for rows of this one.
    pub fn history(self) -> Self {
        Self { database: INVENTORY_DATABASES, ..self }
    }

    /// Returns the primary key column.
    pub fn key_column(self) -> &'static str {
        match self.entity {
            Entity::User => "user_id",
            Entity::SerialCode => "uuid",
            Entity::Flux => "id",
        }
    }

    /// Returns the key of the row of that number, as a SQL literal for this table.
    pub fn key(self, number: u64) -> String {
        match self.entity {
            Entity::User => number.to_string(),
            Entity::SerialCode => match UuidType::of(self) {
                UuidType::Integer => uuid(number),
                UuidType::Text => format!("'{}'", uuid(number)),
            },
            Entity::Flux => format!("'{}'", Document::of(number).id()),
        }
    }

    /// Returns the SQL for the number of a row, computed from its key.
    pub fn number_sql(self) -> String {
        match self.entity {
            Entity::User => "user_id".to_owned(),
            Entity::SerialCode => format!("CAST(RIGHT(uuid, {}) AS UNSIGNED)", serials::NUMBER_DIGITS),
            Entity::Flux => flux::number_sql(),
        }
    }

    fn create_table(self) -> String {
        match self.entity {
            Entity::User => users::create_table(self),
            Entity::SerialCode => serials::create_table(self),
            Entity::Flux => flux::create_table(self),
        }
    }
}

/// The source side of one entity.
#[derive(Debug, Clone)]
pub struct Topology {
    pub entity: Entity,
    pub rule: ShardingRule,
    pub sources: Vec<Endpoint>,
}

impl Topology {
    pub fn users(sources: Vec<Endpoint>, rule: ShardingRule) -> Self {
        Self { entity: Entity::User, rule, sources }
    }

    /// Makes the topology of users in 10 databases with 10 tables each.
    pub fn standard(sources: Vec<Endpoint>, spread: Spread, hash: NameHash) -> Self {
        Self::users(sources, ShardingRule { hash, spread, databases: 10, tables: 10 })
    }

    /// Makes the topology of devices in 5 databases and the history, with that many tables each; 64 are the standard.
    pub fn serials(sources: Vec<Endpoint>, tables: u32) -> Self {
        let (hash, spread) = (NameHash::Decimal, Spread::Literal);
        let rule = ShardingRule { hash, spread, databases: INVENTORY_DATABASES, tables };
        Self { entity: Entity::SerialCode, rule, sources }
    }

    /// Makes the topology of payment documents in 10 databases with tables of that many user partitions each. The last
    /// of at least two sources holds the fail-over databases.
    pub fn flux(sources: Vec<Endpoint>, partitions: u32) -> Self {
        let (hash, spread) = (NameHash::Decimal, Spread::Literal);
        let rule = ShardingRule { hash, spread, databases: FLUX_DATABASES, tables: partitions };
        Self { entity: Entity::Flux, rule, sources }
    }

    /// Puts another server in the place of the source of the endpoint's name.
    pub fn replace_source(&mut self, endpoint: &Endpoint) {
        for source in self.sources.iter_mut().filter(|source| source.name == endpoint.name) {
            source.clone_from(endpoint);
        }
    }

    /// Returns the index into `sources` of the server that holds a table: consecutive databases are together.
    pub fn source_of(&self, source_table: SourceTable) -> usize {
        let mut sources = self.sources.len();
        if self.entity == Entity::Flux {
            sources = sources.saturating_sub(1);
            if source_table.database >= FLUX_DATABASES {
                return sources;
            }
        }
        let databases = self.rule.databases.max(1);
        source_table.database.min(databases - 1) as usize * sources / databases as usize
    }

    /// Returns the table in which the application puts a row with this sharding key: a user's name, a device's uuid,
    /// the identifier of a payment document.
    pub fn source_table(&self, key: &str) -> SourceTable {
        if self.entity == Entity::Flux {
            return flux::source_table(key);
        }
        let (database, table) = self.rule.locate(key).expect("the workload's keys have a number");
        SourceTable { entity: self.entity, database, table }
    }

    /// Whether the table may hold the row of that number.
    pub fn may_hold(&self, source_table: SourceTable, number: u64) -> bool {
        match self.entity {
            // Any table may hold it, because the name decides.
            Entity::User => true,
            Entity::SerialCode => {
                let online = self.source_table(&uuid(number));
                source_table == online || source_table == online.history()
            }
            Entity::Flux => source_table == Document::of(number).source_table(),
        }
    }

    /// Returns all tables that exist.
    pub fn source_tables(&self) -> impl Iterator<Item = SourceTable> + '_ {
        let entity = self.entity;
        let (further, tables): (u32, Vec<u32>) = match entity {
            Entity::User => (0, (0..self.rule.tables).collect()),
            Entity::SerialCode => (1, (0..self.rule.tables).collect()),
            Entity::Flux => (FLUX_DATABASES, flux::tables(self.rule.tables)),
        };
        (0..self.rule.databases + further).flat_map(move |database| {
            let tables = tables.clone();
            tables.into_iter().map(move |table| SourceTable { entity, database, table })
        })
    }

    pub fn tables_of(&self, source: usize) -> impl Iterator<Item = SourceTable> + '_ {
        self.source_tables().filter(move |source_table| self.source_of(*source_table) == source)
    }

    /// Whether some key belongs in that table: with `literal` one number decides both parts.
    pub fn is_reachable(&self, source_table: SourceTable) -> bool {
        let common = greatest_common_divisor(self.rule.databases, self.rule.tables);
        match self.rule.spread {
            _ if source_table.is_history() => false,
            _ if self.entity == Entity::Flux => true,
            Spread::Spread => true,
            Spread::Literal => source_table.database % common == source_table.table % common,
        }
    }

    /// Creates all databases and tables; safe to repeat.
    pub async fn create_schema(&self) -> Result<()> {
        for (index, source) in self.sources.iter().enumerate() {
            let mut connection = source.connect(&[]).await?;
            let mut sql = String::new();
            for source_table in self.tables_of(index) {
                if source_table.table == 0 {
                    sql.push_str(&format!(
                        "CREATE DATABASE IF NOT EXISTS `{}`;\n",
                        source_table.database_name()
                    ));
                }
                sql.push_str(&source_table.create_table());
                sql.push_str(";\n");
            }
            connection.execute("create the source tables", &sql).await?;
            let databases = match self.entity {
                Entity::User => "user\\_%",
                Entity::SerialCode => "inventory\\_%",
                Entity::Flux => "flux\\_00\\_%",
            };
            let tables = format!(
                "SELECT CONCAT(table_schema, '.', table_name) FROM information_schema.tables \
                 WHERE table_schema LIKE '{databases}'"
            );
            let known: Vec<String> = self.tables_of(index).map(SourceTable::name).collect();
            let found: Vec<String> = connection.rows("list the source tables", tables).await?;
            if let Some(table) = found.into_iter().find(|table| !known.contains(table)) {
                return Err(DemoError::TableForeign { table });
            }
        }
        Ok(())
    }
}

fn greatest_common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashSet};

    use super::*;

    fn endpoints() -> Vec<Endpoint> {
        let endpoint = |name: &str| Endpoint {
            name: name.to_owned(),
            port: 0,
            user: String::new(),
            password: String::new(),
            ca_file: "ca.pem".into(),
        };
        vec![endpoint("source-a"), endpoint("source-b")]
    }

    fn topology(spread: Spread) -> Topology {
        Topology::standard(endpoints(), spread, NameHash::Crc32)
    }

    #[test]
    fn each_server_holds_five_databases_with_all_types_of_birthday() {
        let topology = topology(Spread::Spread);
        for source in 0..2 {
            let types: HashSet<_> = topology.tables_of(source).map(BirthdayType::of).collect();
            assert_eq!(types.len(), 4);
            let databases: BTreeSet<u32> =
                topology.tables_of(source).map(|source_table| source_table.database).collect();
            assert_eq!(databases.len(), 5);
        }
    }

    #[test]
    fn names_reach_exactly_the_tables_that_are_said_to_be_reachable() {
        for spread in [Spread::Spread, Spread::Literal] {
            let topology = topology(spread);
            let reached: BTreeSet<_> =
                (0..20_000).map(|number| topology.source_table(&format!("name-{number}"))).collect();
            let said: BTreeSet<_> = topology
                .source_tables()
                .filter(|source_table| topology.is_reachable(*source_table))
                .collect();
            assert_eq!(reached, said, "{spread:?}");
            assert_eq!(said.len() as u64, topology.rule.reachable_tables());
        }
    }

    #[test]
    fn devices_reach_all_320_tables_and_lie_where_their_number_does_however_long_the_uuid_is() {
        let topology = Topology::serials(endpoints(), 64);
        assert_eq!(topology.source_tables().count(), 384);
        let (mut reached, mut lengths) = (BTreeSet::new(), BTreeSet::new());
        for number in 100_000_000..100_005_000 {
            let (uuid, source_table) = (uuid(number), topology.source_table(&uuid(number)));
            lengths.insert(uuid.len());
            assert_eq!(source_table, topology.source_table(&number.to_string()));
            assert!(uuid.len() < 64 || UuidType::of(source_table) == UuidType::Text, "{source_table:?}");
            reached.insert(source_table);
        }
        assert_eq!((reached.len(), lengths), (320, BTreeSet::from([9, 64])));
        // The history is on one server, and it gets rows from each server.
        let sources: BTreeSet<usize> =
            reached.iter().map(|source_table| topology.source_of(*source_table)).collect();
        let history: BTreeSet<usize> =
            reached.iter().map(|source_table| topology.source_of(source_table.history())).collect();
        assert_eq!((sources, history), (BTreeSet::from([0, 1]), BTreeSet::from([1])));
    }

    #[test]
    fn payment_documents_fail_over_to_databases_of_the_same_names_on_the_last_server() {
        let mut sources = endpoints();
        sources.push(Endpoint { name: "source-f".to_owned(), ..sources[0].clone() });
        let topology = Topology::flux(sources, 3);
        assert_eq!(topology.source_tables().count(), 2 * 10 * 3 * 3 * 2);
        let databases = |source| -> BTreeSet<String> {
            topology.tables_of(source).map(SourceTable::database_name).collect()
        };
        assert_eq!([0, 1, 2].map(|source| databases(source).len()), [5, 5, 10]);
        assert!(databases(2).is_superset(&databases(1)));
        let first = topology.source_tables().find(|source_table| source_table.table == 0).unwrap();
        assert_eq!(first.name(), "flux_00_0.composite_00_00");
    }
}
