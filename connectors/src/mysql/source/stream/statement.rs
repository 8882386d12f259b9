//! Carries out a logged statement: it ends a group, withdraws or retires tables, has them read again, or stops the
//! source.

use std::borrow::Cow;
use std::sync::Arc;

use anabranch_pipeline::config::{Removal, UnseenChanges};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::records::BatchBuilder;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use mysql_async::binlog::events::Event;

use super::MysqlStream;
use super::cursor::Moment;
use super::group_reader::GroupEvent;
use super::transport::Events;
use crate::mysql::source::decode::compressed;
use crate::mysql::source::decode::events::Class;
use crate::mysql::source::decode::query::{self, MovedTable, Query, Statement, TableChange, TableName};
use crate::mysql::source::server::tables::CapturedTable;
use crate::mysql::source::server::unfit_tables::UnfitTable;

/// Bytes of EXECUTE_LOAD_QUERY before the statement: file id, two offsets, how duplicates are handled.
const LOAD_HEADER_BYTES: usize = 13;

impl<E: Events> MysqlStream<E> {
    pub(super) fn query(
        &mut self,
        class: Class,
        event: &Event,
        moment: Moment,
        batch: &mut BatchBuilder,
    ) -> Result<(), Fault> {
        let lsn = moment.lsn;
        let extra_bytes = if class == Class::LoadQuery { LOAD_HEADER_BYTES } else { 0 };
        let query = Query::read(event.data(), extra_bytes).map_err(|error| self.cursor.malformed(error))?;
        let statement = if class == Class::CompressedQuery {
            let sql = compressed::inflate(query.sql).map_err(|error| self.cursor.malformed(error))?;
            query::classify(&Query { sql: &sql, ..query })
        } else {
            query::classify(&query)
        };
        match statement {
            Statement::Begin => return self.on(GroupEvent::BeginTransaction, moment, batch),
            // `XA END` comes after the rows, when the group is a branch already.
            Statement::XaBranch => return self.on(GroupEvent::BeginXaBranch, moment, batch),
            Statement::Commit => return self.on(GroupEvent::Commit, moment, batch),
            Statement::Rollback => return self.on(GroupEvent::RollBack, moment, batch),
            Statement::XaCommit(xid) => {
                return self.on(GroupEvent::Decide { xid, is_commit: true }, moment, batch);
            }
            Statement::XaRollback(xid) => {
                return self.on(GroupEvent::Decide { xid, is_commit: false }, moment, batch);
            }
            Statement::Savepoint(name) => self.on(GroupEvent::Savepoint(name), moment, batch)?,
            Statement::RollbackTo(name) => self.on(GroupEvent::RollBackTo(name), moment, batch)?,
            Statement::Harmless => {}
            Statement::CreateTable(name) => {
                if let Some(table) = self.find(&name)? {
                    self.maps.shapes.made(table.identity.shard);
                }
            }
            Statement::CreateSpecial { table, replaces, changes } => {
                self.altered(&table, &changes, lsn, "CREATE TABLE")?;
                if replaces {
                    self.remove(vec![table], lsn)?;
                } else if let Some(table) = self.find(&table)? {
                    self.maps.shapes.made(table.identity.shard);
                }
            }
            Statement::Alter { table, changes } => {
                self.altered(&table, &changes, lsn, "ALTER TABLE")?;
            }
            Statement::CreateDatabase(name) => {
                let database = self.stored(&name).into_owned();
                self.tables.add_database(database);
            }
            Statement::Remove(names) => self.remove(names, lsn)?,
            Statement::DropDatabase(name) => self.drop_database(&name, lsn)?,
            Statement::Move { tables, how } => self.moved(&tables, how, lsn)?,
            Statement::Change(names) => self.changed_by_text(&names, lsn)?,
            Statement::Unknown(verb) => {
                let found = format!("a statement of unknown effect ({verb})");
                let fault = self
                    .cursor
                    .fault(Code::BinlogStatement, found)
                    .needs("row events (binlog_format = ROW in every session)")
                    .remedy("SET GLOBAL binlog_format = ROW");
                self.read_every_table_again(fault, lsn)?;
            }
        }
        self.on(GroupEvent::Statement, moment, batch)
    }

    /// Returns the captured table that the server finds by this name.
    fn find(&mut self, name: &TableName) -> Result<Option<Arc<CapturedTable>>, Fault> {
        let (database, table) = (self.stored(&name.database), self.stored(&name.table));
        self.tables.resolve(&database, &table)
    }

    /// Returns the name as the server stores it.
    fn stored<'n>(&self, name: &'n str) -> Cow<'n, str> {
        if self.has_lower_case_names { name.to_lowercase().into() } else { name.into() }
    }

    fn remove(&mut self, names: Vec<TableName>, lsn: Lsn) -> Result<(), Fault> {
        for name in names {
            let Some(table) = self.find(&name)? else { continue };
            self.maps.emptied(table.identity.shard);
            if self.groups.is_new(lsn) {
                self.record_end(&table, lsn)?;
            }
        }
        Ok(())
    }

    /// Withholds the record of a captured table whose rows are gone as a whole: lanes withdraw their claims, or keep
    /// them.
    fn record_end(&mut self, table: &CapturedTable, lsn: Lsn) -> Result<(), Fault> {
        match table.removal {
            Removal::Withdraw => self.groups.withdraw(lsn, &table.identity, &self.cursor),
            Removal::Retain => self.groups.retire(lsn, &table.identity, &self.cursor),
        }
    }

    fn drop_database(&mut self, name: &str, lsn: Lsn) -> Result<(), Fault> {
        if !self.groups.is_new(lsn) {
            return Ok(());
        }
        let database = self.stored(name);
        let Some(tables) = self.tables.in_database(&database)? else {
            return Err(self
                .cursor
                .fault(Code::SourceSchemaChanged, format!("captured database {database} was dropped"))
                .needs("a `rule` in [[entities]], by which Anabranch knows the tables of the database")
                .remedy(
                    "set `rule`, or refresh the source and run `remove --table` for tables that are gone",
                ));
        };
        for table in tables {
            self.maps.shapes.forget(table.identity.shard);
            self.record_end(&table, lsn)?;
        }
        Ok(())
    }

    /// Handles rows that came to tables, or went, without row events. A table whose name is gone is withdrawn or
    /// retired; its rows do not come back by that name, so a retired one does not stop the source.
    fn moved(&mut self, tables: &[MovedTable], how: &str, lsn: Lsn) -> Result<(), Fault> {
        for MovedTable { name, exists } in tables {
            let Some(table) = self.find(name)? else { continue };
            // The name may now belong to a table with other columns.
            self.maps.shapes.forget(table.identity.shard);
            let found = format!("{how} of captured table {}.{}", name.database, name.table);
            let fault = self
                .cursor
                .fault(Code::SourceSchemaChanged, found)
                .needs("changes of the table that are logged as row events");
            let stops = table.unseen_changes == UnseenChanges::Stop && table.removal == Removal::Withdraw;
            if *exists || stops {
                self.read_again(&table, fault, lsn)?;
            } else if self.groups.is_new(lsn) {
                self.record_end(&table, lsn)?;
            }
        }
        Ok(())
    }

    /// Handles an alteration of a captured table that row events do not show, or that changes what they show later.
    fn altered(
        &mut self,
        name: &TableName,
        changes: &[TableChange],
        lsn: Lsn,
        verb: &str,
    ) -> Result<(), Fault> {
        let Some(table) = self.find(name)? else { return Ok(()) };
        self.note_kind(table.identity.shard, changes);
        let Some(what) = self.maps.shapes.judge(&table, changes) else { return Ok(()) };
        let found =
            format!("{verb} of captured table {}.{}: {what} by a statement", name.database, name.table);
        let fault = self.cursor.fault(Code::SourceSchemaChanged, found);
        let fault = fault.needs("changes of the table that are logged as row events");
        let fault = match changes.contains(&TableChange::Versioned) {
            true => fault.remedy("ALTER TABLE … DROP SYSTEM VERSIONING"),
            false => fault,
        };
        self.read_again(&table, fault, lsn)
    }

    /// Notes whether row events of a table show every change from now on.
    fn note_kind(&mut self, shard: ShardId, changes: &[TableChange]) {
        for change in changes {
            match change {
                TableChange::Versioned => self.tables.becomes_unfit(shard, UnfitTable::Versioned),
                TableChange::Unversioned => self.tables.loses_versioning(shard),
                TableChange::Engine(name) => {
                    self.tables.becomes_unfit(shard, UnfitTable::Engine(name.clone()));
                }
                TableChange::Transactional => self.tables.gets_transactions(shard),
                _ => {}
            }
        }
    }

    fn changed_by_text(&mut self, names: &[TableName], lsn: Lsn) -> Result<(), Fault> {
        for name in names {
            if !self.is_captured(name) {
                continue;
            }
            let Some(table) = self.find(name)? else { continue };
            let found = format!(
                "a change of captured table {}.{} was logged as a statement",
                name.database, name.table
            );
            let fault = self
                .cursor
                .fault(Code::BinlogStatement, found)
                .needs("row events (binlog_format = ROW in every session)")
                .remedy("SET GLOBAL binlog_format = ROW");
            self.read_again(&table, fault, lsn)?;
        }
        Ok(())
    }

    /// Whether a name is captured. The name is not kept: candidates from the text of a statement are mostly columns.
    fn is_captured(&self, name: &TableName) -> bool {
        self.tables.is_captured(&self.stored(&name.database), &self.stored(&name.table))
    }
}
