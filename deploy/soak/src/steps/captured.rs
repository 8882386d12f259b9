//! Changes captured columns of users, and rows of them in ways that row events do not show.
//!
//! A captured column that is gone makes its table stop alone. The load's statements fail on it meanwhile, and other
//! tables go on. Each step puts the table back, with other rows than before.

use std::collections::BTreeSet;
use std::time::Duration;

use anabranch_demo::{BirthdayType, Endpoint, Result, SourceTable};

use super::tables::{SESSION, beside, persist};
use crate::journal::Journal;
use crate::site::{NAMES, Site};

/// The captured column.
const COLUMN: &str = NAMES[0];
/// Has the binlog say statements and no rows.
const BY_TEXT: &str = "SET SESSION binlog_format = 'STATEMENT'";
/// Keeps changes out of the binlog.
const UNSEEN: &str = "SET SESSION sql_log_bin = 0";
/// The projection of users.
const BIRTHDAYS: &str = "birthday";
/// Added to the ids of users in a made table, so that no other table has them.
const MADE_USERS: u64 = 4_000_000_000_000;
/// Added to the number of a database for one that no rule has.
const MADE_DATABASE: u32 = 50;
/// Grant of the capture account that covers all databases of users.
const GRANTED: &str = "user\\_%";
/// Column and key that lead from users to their parents.
const PARENT: &str = "soak_parent";

impl Site {
    pub(super) async fn rename_column(&self, number: usize, time: Duration, journal: &Journal) -> Result<()> {
        let (endpoint, source_table) = self.named(number, journal);
        let table = source_table.quoted();
        let [first, second] = NAMES;
        let mut connection = endpoint.connect(&SESSION).await?;
        persist(&mut connection, &format!("ALTER TABLE {table} RENAME COLUMN {first} TO {second}")).await?;
        let change = format!("UPDATE {table} SET {second} = '1988-08-08' WHERE user_id % 5 = 1");
        persist(&mut connection, &change).await?;
        tokio::time::sleep(time).await;
        persist(&mut connection, &format!("ALTER TABLE {table} RENAME COLUMN {second} TO {first}")).await
    }

    /// Drops the captured column, deletes rows of the table that does not fit, and adds the column with other values.
    pub(super) async fn drop_column(&self, number: usize, time: Duration, journal: &Journal) -> Result<()> {
        let (endpoint, source_table) = self.named(number, journal);
        let (table, sql_type) = (source_table.quoted(), BirthdayType::of(source_table).sql());
        let mut connection = endpoint.connect(&SESSION).await?;
        persist(&mut connection, &format!("ALTER TABLE {table} DROP COLUMN {COLUMN}")).await?;
        persist(&mut connection, &format!("DELETE FROM {table} WHERE user_id % 11 = 1")).await?;
        tokio::time::sleep(time).await;
        let add = format!("ALTER TABLE {table} ADD COLUMN {COLUMN} {sql_type} NULL AFTER user_name");
        persist(&mut connection, &add).await?;
        let fill = format!(
            "UPDATE {table} SET {COLUMN} = DATE '1950-01-01' + INTERVAL (user_id % 20000) DAY \
             WHERE user_id % 7 <> 0"
        );
        persist(&mut connection, &fill).await
    }

    pub(super) async fn widen_column(&self, number: usize, time: Duration, journal: &Journal) -> Result<()> {
        let (_, source_table) = self.table(number);
        let other = match BirthdayType::of(source_table) {
            BirthdayType::Date | BirthdayType::DateTime => "DATETIME(6)",
            // The widest one becomes narrower.
            BirthdayType::DateTimeMicroseconds => "DATETIME",
            BirthdayType::Text => "VARCHAR(255) CHARACTER SET utf8mb4",
        };
        self.modify_column(number, other, time, journal).await
    }

    pub(super) async fn convert_column(
        &self,
        number: usize,
        time: Duration,
        journal: &Journal,
    ) -> Result<()> {
        self.modify_column(number, "VARCHAR(64) CHARACTER SET latin1", time, journal).await
    }

    /// Gives the captured column another type, and its own one again.
    async fn modify_column(
        &self,
        number: usize,
        other: &str,
        time: Duration,
        journal: &Journal,
    ) -> Result<()> {
        let (endpoint, source_table) = self.named(number, journal);
        let table = source_table.quoted();
        let mut connection = endpoint.connect(&SESSION).await?;
        persist(&mut connection, &format!("ALTER TABLE {table} MODIFY COLUMN {COLUMN} {other} NULL")).await?;
        tokio::time::sleep(time).await;
        let own = BirthdayType::of(source_table).sql();
        persist(&mut connection, &format!("ALTER TABLE {table} MODIFY COLUMN {COLUMN} {own} NULL")).await
    }

    /// Makes a table with the next number of the same database, and one in a new database, both with users of their
    /// own, and drops them. The table is dropped before its database, so that the binlog names it.
    pub(super) async fn make_table(&self, number: usize, time: Duration, journal: &Journal) -> Result<()> {
        let (endpoint, source_table) = self.named(number, journal);
        let next = SourceTable { table: source_table.table + 1, ..source_table };
        let elsewhere = SourceTable { database: source_table.database + MADE_DATABASE, ..source_table };
        let table = source_table.quoted();
        let mut connection = endpoint.connect(&SESSION).await?;
        for (made, added) in [(next, MADE_USERS), (elsewhere, 2 * MADE_USERS)] {
            let (database, made) = (made.database_name(), made.quoted());
            persist(&mut connection, &format!("CREATE DATABASE IF NOT EXISTS `{database}`")).await?;
            persist(&mut connection, &format!("CREATE TABLE IF NOT EXISTS {made} LIKE {table}")).await?;
            let fill = format!(
                "INSERT IGNORE INTO {made} (user_id, user_name, {COLUMN}) \
                 SELECT user_id + {added}, user_name, {COLUMN} FROM {table} WHERE user_id < {MADE_USERS}"
            );
            persist(&mut connection, &fill).await?;
        }
        tokio::time::sleep(time).await;
        for made in [next, elsewhere] {
            persist(&mut connection, &format!("DROP TABLE IF EXISTS {}", made.quoted())).await?;
        }
        let remove = format!("DROP DATABASE IF EXISTS `{}`", elsewhere.database_name());
        persist(&mut connection, &remove).await
    }

    /// Takes the grant on a database away, loses rows of it unseen, and has all tables read. The lanes find the lost
    /// rows only if they read the table once the grant is back.
    pub(super) async fn lose_grant(&self, number: usize, time: Duration, journal: &Journal) -> Result<()> {
        let (endpoint, source_table) = self.named(number, journal);
        let account = format!("'{}'@'127.0.0.1'", self.server(&endpoint.name)?.user());
        let is_beside = |(server, table): &(Endpoint, SourceTable)| {
            server.name == endpoint.name
                && table.entity == source_table.entity
                && table.database != source_table.database
        };
        let others = self.tables().into_iter().filter(is_beside);
        let others: BTreeSet<String> =
            others.map(|(_, table)| table.database_name().replace('_', "\\_")).collect();
        let grant = |databases: &str| format!("GRANT SELECT ON `{databases}`.* TO {account}");
        let revoke = |databases: &str| format!("REVOKE SELECT ON `{databases}`.* FROM {account}");
        let mut connection = endpoint.connect(&SESSION).await?;
        for other in &others {
            persist(&mut connection, &grant(other)).await?;
        }
        persist(&mut connection, &revoke(GRANTED)).await?;
        let mut unseen = endpoint.connect(&[SESSION[0], UNSEEN]).await?;
        let lose = format!("DELETE FROM {} WHERE user_id % 17 = 1", source_table.quoted());
        persist(&mut unseen, &lose).await?;
        let asked = self.command(&["refresh", "--projection", BIRTHDAYS, "--source", &endpoint.name]).await;
        tokio::time::sleep(time).await;
        persist(&mut connection, &grant(GRANTED)).await?;
        for other in &others {
            persist(&mut connection, &revoke(other)).await?;
        }
        asked.map(drop)
    }

    /// Gives users a parent each, and deletes a parent, whose users go with it.
    pub(super) async fn cascade(&self, number: usize, journal: &Journal) -> Result<()> {
        let (endpoint, source_table) = self.named(number, journal);
        let (table, parents) = (source_table.quoted(), beside(source_table, "parents"));
        let mut connection = endpoint.connect(&SESSION).await?;
        for change in [
            format!("CREATE TABLE IF NOT EXISTS {parents} (id BIGINT UNSIGNED PRIMARY KEY) ENGINE = InnoDB"),
            format!("INSERT IGNORE INTO {parents} VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)"),
            format!("ALTER TABLE {table} ADD COLUMN {PARENT} BIGINT UNSIGNED NULL"),
            format!("UPDATE {table} SET {PARENT} = user_id % 10"),
            format!(
                "ALTER TABLE {table} ADD CONSTRAINT {PARENT} FOREIGN KEY ({PARENT}) REFERENCES {parents} (id) \
                 ON DELETE CASCADE"
            ),
            format!("DELETE FROM {parents} WHERE id IN (3, 4)"),
            format!("ALTER TABLE {table} DROP FOREIGN KEY {PARENT}"),
            format!("ALTER TABLE {table} DROP COLUMN {PARENT}"),
            format!("DROP TABLE IF EXISTS {parents}"),
        ] {
            persist(&mut connection, &change).await?;
        }
        Ok(())
    }

    pub(super) async fn change_by_text(&self, number: usize, journal: &Journal) -> Result<()> {
        let (endpoint, source_table) = self.named(number, journal);
        let mut connection = endpoint.connect(&[SESSION[0], BY_TEXT]).await?;
        let table = source_table.quoted();
        let change = format!("UPDATE {table} SET {COLUMN} = '1977-07-07' WHERE user_id % 6 = 1");
        persist(&mut connection, &change).await?;
        persist(&mut connection, &format!("DELETE FROM {table} WHERE user_id % 13 = 1")).await
    }
}
