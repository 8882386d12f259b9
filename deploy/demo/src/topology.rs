//! Where the demo's users lie: numbered databases with numbered tables, shared out over the source servers.
//!
//! With the standard shape databases 0–4 lie on the first server and 5–9 on the second. The type of the birthday column
//! differs from database to database, so each run meets all of them on each server.

use anabranch_schemas::shard::{NameHash, ShardingRule, Spread};
use anabranch_schemas::sql::user_table;

use crate::endpoint::Endpoint;
use crate::error::{DemoError, Result};

/// Pattern of the physical names, as in the daemon's configuration.
pub const TABLE_PATTERN: &str = "user_{db:02}.user_{table:03}";

/// Column type of a birthday.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BirthdayType {
    Date,
    DateTime,
    DateTimeMicroseconds,
    Text,
}

impl BirthdayType {
    pub fn sql(self) -> &'static str {
        match self {
            BirthdayType::Date => "DATE",
            BirthdayType::DateTime => "DATETIME",
            BirthdayType::DateTimeMicroseconds => "DATETIME(6)",
            BirthdayType::Text => "VARCHAR(64) CHARACTER SET utf8mb4",
        }
    }
}

/// One physical user table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub database: u32,
    pub table: u32,
}

impl Place {
    pub fn database_name(self) -> String {
        format!("user_{:02}", self.database)
    }

    pub fn table_name(self) -> String {
        format!("user_{:03}", self.table)
    }

    /// `` `user_07`.`user_003` ``
    pub fn quoted(self) -> String {
        format!("`user_{:02}`.`user_{:03}`", self.database, self.table)
    }
}

/// The source side of the demo.
#[derive(Debug, Clone)]
pub struct Topology {
    pub rule: ShardingRule,
    pub sources: Vec<Endpoint>,
}

impl Topology {
    /// 10 databases with 10 tables each.
    pub fn standard(sources: Vec<Endpoint>, spread: Spread, hash: NameHash) -> Self {
        Self { rule: ShardingRule { hash, spread, databases: 10, tables: 10 }, sources }
    }

    /// Index into `sources` of the server that holds a database: consecutive databases lie together.
    pub fn source_of(&self, database: u32) -> usize {
        let (database, databases) = (database as usize, self.rule.databases.max(1) as usize);
        database * self.sources.len() / databases
    }

    /// Where the application puts a user of this name.
    pub fn place(&self, user_name: &str) -> Place {
        let (database, table) = self.rule.place(user_name).expect("a hash of names places every name");
        Place { database, table }
    }

    pub fn birthday_type(&self, database: u32) -> BirthdayType {
        match database % 5 {
            0 | 3 => BirthdayType::Date,
            1 => BirthdayType::DateTime,
            2 => BirthdayType::Text,
            _ => BirthdayType::DateTimeMicroseconds,
        }
    }

    /// All tables that exist.
    pub fn places(&self) -> impl Iterator<Item = Place> + '_ {
        (0..self.rule.databases)
            .flat_map(|database| (0..self.rule.tables).map(move |table| Place { database, table }))
    }

    pub fn places_of(&self, source: usize) -> impl Iterator<Item = Place> + '_ {
        self.places().filter(move |place| self.source_of(place.database) == source)
    }

    /// Whether some name belongs into that table: with `literal` one number decides both parts.
    pub fn is_reachable(&self, place: Place) -> bool {
        let common = greatest_common_divisor(self.rule.databases, self.rule.tables);
        match self.rule.spread {
            Spread::Spread => true,
            Spread::Literal => place.database % common == place.table % common,
        }
    }

    /// Makes all databases and tables; safe to repeat.
    pub async fn create_schema(&self) -> Result<()> {
        for (index, source) in self.sources.iter().enumerate() {
            let mut connection = source.connect(&[]).await?;
            let mut sql = String::new();
            for place in self.places_of(index) {
                if place.table == 0 {
                    sql.push_str(&format!("CREATE DATABASE IF NOT EXISTS `{}`;\n", place.database_name()));
                }
                let birthday_type = self.birthday_type(place.database).sql();
                sql.push_str(&user_table(&place.database_name(), &place.table_name(), birthday_type));
                sql.push_str(";\n");
            }
            connection.execute("create the user tables", &sql).await?;
            let tables = "SELECT CONCAT(table_schema, '.', table_name) FROM information_schema.tables \
                          WHERE table_schema LIKE 'user\\_%'";
            let known: Vec<String> = self
                .places_of(index)
                .map(|place| format!("{}.{}", place.database_name(), place.table_name()))
                .collect();
            let found: Vec<String> = connection.rows("list the user tables", tables).await?;
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
    use super::*;

    fn topology(spread: Spread) -> Topology {
        let endpoint = |name: &str| Endpoint {
            name: name.to_owned(),
            port: 0,
            user: String::new(),
            password: String::new(),
            ca_file: "ca.pem".into(),
        };
        Topology::standard(vec![endpoint("source-a"), endpoint("source-b")], spread, NameHash::Crc32)
    }

    #[test]
    fn each_server_holds_five_databases_with_all_types_of_birthday() {
        let topology = topology(Spread::Spread);
        for source in 0..2 {
            let databases: std::collections::BTreeSet<u32> =
                topology.places_of(source).map(|place| place.database).collect();
            assert_eq!(databases.len(), 5);
            let types: std::collections::HashSet<_> =
                databases.iter().map(|database| topology.birthday_type(*database)).collect();
            assert_eq!(types.len(), 4);
        }
    }

    #[test]
    fn names_reach_exactly_the_tables_that_are_said_to_be_reachable() {
        for spread in [Spread::Spread, Spread::Literal] {
            let topology = topology(spread);
            let reached: std::collections::BTreeSet<_> =
                (0..20_000).map(|number| topology.place(&format!("name-{number}"))).collect();
            let said: std::collections::BTreeSet<_> =
                topology.places().filter(|place| topology.is_reachable(*place)).collect();
            assert_eq!(reached, said, "{spread:?}");
            assert_eq!(said.len() as u64, topology.rule.reachable_tables());
        }
    }
}
