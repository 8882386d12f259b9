//! Proves that the server does not have a table.
//!
//! Watermark, question and watermark go over one connection, so one server answers them. The question is a `SELECT`,
//! and not the server's description of its tables: a server checks the privilege before it looks for the table. It says
//! that no such table exists only to an account that could read it.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::records::Chunk;
use anabranch_schemas::change::TableIdentity;
use anabranch_schemas::codec::Encoder;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;

use super::{TIMEOUT, TableRead};
use crate::mysql::connection::quote_table;
use crate::mysql::error::{Side, code};
use crate::mysql::pool::Pool;
use crate::mysql::source::MysqlSource;

impl MysqlSource {
    /// Returns the two watermarks between which the server does not have the table; `None` if it has the table, or may
    /// hide it.
    pub(super) async fn proved_absent(
        &self,
        table: &TableIdentity<'static>,
        epoch: u16,
    ) -> Result<Option<Chunk>, Fault> {
        let mut connection = self.snapshots.connection().await?;
        let proof = self.ask_for_absence(&mut connection, table, epoch).await;
        if proof.is_err() {
            // Its transaction may be open.
            self.plans.forget_dialect();
            Pool::discard(connection).await;
        }
        proof
    }

    async fn ask_for_absence(
        &self,
        connection: &mut Conn,
        table: &TableIdentity<'static>,
        epoch: u16,
    ) -> Result<Option<Chunk>, Fault> {
        let before = self.watermarks(connection, epoch).await?;
        let name = quote_table(&table.database, &table.table);
        let ask = async {
            match connection.query_drop(format!("SELECT 1 FROM {name} LIMIT 0")).await {
                Err(mysql_async::Error::Server(refusal)) => Ok(Some(refusal)),
                answer => answer.map(|()| None),
            }
        };
        // Any other refusal is about this table alone, such as that of a view whose own table is gone: it proves
        // nothing, and other tables are asked for all the same.
        let refusal = self.snapshots.within(TIMEOUT, ask).await?;
        let is_missing =
            |refusal: mysql_async::ServerError| code(Side::Source, refusal.code) == Code::SourceTableMissing;
        if !refusal.is_some_and(is_missing) {
            return Ok(None);
        }
        let after = self.watermarks(connection, epoch).await?;
        if before.server != after.server {
            let found = format!("server {} answers after server {}", after.server, before.server);
            return Err(self.fault(Code::SourceUnreachable, found));
        }
        let TableRead { low, server, .. } = before;
        let (high, payload) = (after.high.max(low), Encoder::default().finish());
        Ok(Some(Chunk { low, high, server, payload, rows: 0, next: None }))
    }

    /// Returns the watermarks of a read without tables.
    async fn watermarks(&self, connection: &mut Conn, epoch: u16) -> Result<TableRead, Fault> {
        let dialect = self.dialect(connection).await?;
        let low = self.low_watermark(connection, dialect).await?;
        self.read_as_planned(connection, (dialect, low), &[], epoch, &mut Encoder::default()).await
    }
}
