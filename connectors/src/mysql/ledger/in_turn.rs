//! A transaction that adds members beside others: it inserts their rows first, and locks the run when its turn comes.
//!
//! Rows are inserted only while the cohort has none of the users between them, so the unique key finds a process that
//! adds the same ones: that is a duplicate key, and the next attempt sees its members. With such members the whole
//! transaction waits for its turn, and goes as [`Ledger::with_run`] does.

use anabranch_coupons::ports::Ledger;
use anabranch_coupons::records::{Member, RunKey, RunLedger};
use anabranch_coupons::turns::PageTurn;
use anabranch_pipeline::error::Fault;
use anabranch_schemas::shard::ShardId;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;

use super::MySqlLedger;
use super::runs::{self, KnownMembers};
use super::transaction::{Failed, WRITING, collisions, rollback};
use crate::mysql::answer::sets;

/// An attempt that ended without a fault.
enum Ended<T> {
    Done(Option<T>),
    /// The cohort has members among the offered ones, or there is nothing to insert.
    Known,
}

impl MySqlLedger {
    /// Runs the transaction of [`Ledger::add_in_turn`].
    pub(super) async fn transact_in_turn<T: Send>(
        &self,
        run: &RunKey,
        offered: &[(Member, Vec<ShardId>)],
        turn: &PageTurn,
        decide: impl Fn(&mut RunLedger) -> T + Send + Sync,
    ) -> Result<Option<T>, Fault> {
        let mut collisions = collisions();
        loop {
            match self.in_time(self.insert_in_turn(run, offered, turn, &decide)).await {
                Ok(Ended::Done(done)) => return Ok(done),
                Ok(Ended::Known) => break,
                Err(failed) => failed.again(&mut collisions).await?,
            }
        }
        match turn.comes().await {
            true => self.with_run(run, offered, decide).await.map(Some),
            false => Ok(None),
        }
    }

    async fn insert_in_turn<T: Send>(
        &self,
        run: &RunKey,
        offered: &[(Member, Vec<ShardId>)],
        turn: &PageTurn,
        decide: &(impl Fn(&mut RunLedger) -> T + Send + Sync),
    ) -> Result<Ended<T>, Failed> {
        let mut connection = self.pool.connection().await.map_err(Failed::Final)?;
        let read = format!("{WRITING}{}", runs::read_members(&self.tables, run, offered));
        let known = match sets(&mut connection, &read).await {
            Ok(known) => known,
            Err(error) => return Err(self.failed(connection, error, true).await),
        };
        if offered.is_empty() || known.iter().any(|rows| !rows.is_empty()) {
            rollback(connection).await;
            return Ok(Ended::Known);
        }
        let insert = runs::add_members(&self.tables, run, offered, &KnownMembers::new()).join("; ");
        if let Err(error) = connection.query_drop(insert).await {
            // Nothing is committed yet, so a lost connection has taken the rows with it.
            return Err(self.failed(connection, error, true).await);
        }
        if !turn.comes().await {
            rollback(connection).await;
            return Ok(Ended::Done(None));
        }
        self.decide_in_turn(connection, run, decide).await
    }

    /// Locks the run after its members were inserted; commits both, or nothing.
    async fn decide_in_turn<T: Send>(
        &self,
        mut connection: Conn,
        run: &RunKey,
        decide: &(impl Fn(&mut RunLedger) -> T + Send + Sync),
    ) -> Result<Ended<T>, Failed> {
        let found = match sets(&mut connection, &runs::read_run(&self.tables, run, &[])).await {
            Ok(found) => found,
            Err(error) => return Err(self.failed(connection, error, true).await),
        };
        let (before, known) = match self.run_ledger(&[], found) {
            Ok(read) => read,
            Err(fault) => {
                rollback(connection).await;
                return Err(Failed::Final(fault));
            }
        };
        let mut after = before.clone();
        let result = decide(&mut after);
        if std::mem::take(&mut after.added).is_empty() {
            rollback(connection).await;
            return Ok(Ended::Done(Some(result)));
        }
        let mut write = runs::run_changes(&self.tables, run, &before, &after, &known);
        write.push("COMMIT".to_owned());
        match connection.query_drop(write.join("; ")).await {
            Ok(()) => Ok(Ended::Done(Some(result))),
            Err(error) => Err(self.failed(connection, error, false).await),
        }
    }
}
