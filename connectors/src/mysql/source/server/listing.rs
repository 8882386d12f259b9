//! Lists the captured tables that a server has now, and asks for one table by its name.

use std::sync::Arc;

use anabranch_pipeline::config::{EntityConfig, Removal};
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::TableVisibility;
use anabranch_schemas::change::{Entity, TableIdentity};
use anabranch_schemas::shard::ShardId;

use super::preflight_tables;
use super::session::Session;
use super::tables::{CapturedTable, CapturedTables};
use crate::mysql::connection::quote_table;
use crate::mysql::source::MysqlSource;

/// Usual names of an entity's tables that are made at once, at most: some tens of milliseconds.
const LIKELY_NAMES_MAX: u64 = 100_000;

impl MysqlSource {
    /// Returns every captured table that exists.
    pub async fn captured_tables(&self) -> Result<Vec<Arc<CapturedTable>>, Fault> {
        let mut session = Session::open(&self.address).await?;
        let tables = self.list_tables(&mut session).await?;
        session.close().await;
        Ok(tables.all().cloned().collect())
    }

    /// Asks for no row of a table of this name, whether a pattern captures it or not. A server checks the privilege
    /// before it looks for the table.
    pub(in crate::mysql::source) async fn ask_for_table(
        &self,
        database: &str,
        table: &str,
    ) -> Result<TableVisibility, Fault> {
        let sql = format!("SELECT 1 FROM {} LIMIT 0", quote_table(database, table));
        TableVisibility::of(self.questions.rows(sql).await.map(drop))
    }

    /// Visits the usual names of an entity's tables, with the shards that such tables have.
    pub(in crate::mysql::source) fn visit_likely(
        &self,
        entity: Entity,
        visit: &mut dyn FnMut(&TableIdentity<'_>),
    ) {
        let is_meant = |own: &&EntityConfig| {
            own.entity == entity && own.removal == Removal::Withdraw && self.config.entities.contains(&entity)
        };
        for own in self.entities.iter().filter(is_meant) {
            let mut with_shard = |database: &str, table: &str| {
                let shard = ShardId::of(&self.config.name, database, table, self.config.generation);
                visit(&TableIdentity { entity, shard, database: database.into(), table: table.into() });
            };
            if !own.tables.visit_likely_names(LIKELY_NAMES_MAX, &mut with_shard) {
                tracing::debug!(source = %self.config.name, ?entity, "its pattern has too many names");
            }
        }
    }

    /// Notes the captured tables whose row events do not show every change, as the server describes them now.
    pub(in crate::mysql::source) async fn note_unfit(
        &self,
        session: &mut Session,
        tables: &mut CapturedTables,
    ) -> Result<(), Fault> {
        let entities: Vec<EntityConfig> = tables.entities().cloned().collect();
        for ((database, table), how) in preflight_tables::unfit_tables(session, &entities).await? {
            if let Some(table) = tables.resolve(&database, &table)? {
                tables.becomes_unfit(table.identity.shard, how);
            }
        }
        Ok(())
    }

    /// Returns the captured tables, with those that exist now already known.
    pub(in crate::mysql::source) async fn list_tables(
        &self,
        session: &mut Session,
    ) -> Result<CapturedTables, Fault> {
        let mut tables = CapturedTables::new(&self.config, &self.entities);
        let patterns: Vec<_> = tables
            .entities()
            .map(|entity| (entity.tables.database_like(), entity.tables.table_like()))
            .collect();
        for (database, table) in patterns {
            // Databases are listed before tables: one that is new between the two answers counts as not listed.
            for name in session.databases_like(&database).await? {
                tables.add_database(name);
            }
            for (database, table) in session.tables_like(&database, &table).await? {
                tables.resolve(&database, &table)?;
            }
        }
        Ok(tables)
    }
}
