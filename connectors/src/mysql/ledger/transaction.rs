//! A transaction in two packets: the first reads and locks; after the core's decision the second writes and commits.
//!
//! Nothing is changed before the second packet is sent, so after a lost connection the transaction begins again. After
//! it, a server error is a rollback: a deadlock, a lock time-out, a duplicate key and a moved token begin again too. If
//! the connection is lost at that point, the outcome is unknown, and the fault does not show it.

use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::retry::Collisions;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row};

use super::MySqlLedger;
use crate::mysql::answer::sets;
use crate::mysql::error::{Side, from_async};
use crate::mysql::remedy::with_remedy;

/// Settings of each connection beside those of every session on a target. Each list of users names its index, so the
/// server need not dive into the index once for each of them to choose one.
pub(super) const SETTINGS: &str = "innodb_lock_wait_timeout = 10, eq_range_index_dive_limit = 1";
/// Begins a transaction; ROLLBACK ends one that a cancelled call may have left open.
pub(super) const WRITING: &str = "ROLLBACK; START TRANSACTION; ";
/// Begins a single statement that only reads.
pub(super) const READ_ONLY: &str = "ROLLBACK; ";
/// Begins a transaction whose reads are all of one moment.
const SNAPSHOT: &str = "ROLLBACK; SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
     START TRANSACTION WITH CONSISTENT SNAPSHOT; ";
/// Limit of an attempt: longer than several waits for locks in turn.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Two granters of one user collide twice at most; an issuer collides with each other process.
const ATTEMPTS: u32 = 12;
/// The pause grows by this with each attempt.
const PAUSE: Duration = Duration::from_millis(3);

const NOT_NULL_VIOLATED: u16 = 1048;
const DUPLICATE_KEY: u16 = 1062;
const CHANGED_SINCE_READ: u16 = 1020;
const LOCK_WAIT_TIMEOUT: u16 = 1205;
const DEADLOCK: u16 = 1213;

/// The core's decision: its result, and the statements to write.
pub(super) struct LedgerDecision<T> {
    pub(super) result: T,
    pub(super) writes: Vec<String>,
}

impl<T> LedgerDecision<T> {
    /// Makes a decision that writes nothing.
    pub(super) fn read(result: T) -> Self {
        Self { result, writes: Vec::new() }
    }
}

/// An attempt that ended without a result.
pub(super) enum Failed {
    /// Nothing was committed, and the next attempt may succeed.
    Again(Fault),
    Final(Fault),
}

impl Failed {
    /// Pauses before the next attempt; returns the fault if there is none.
    pub(super) async fn again(self, collisions: &mut Collisions) -> Result<(), Fault> {
        match self {
            Failed::Again(fault) => collisions.failed(fault).await,
            Failed::Final(fault) => Err(fault),
        }
    }
}

/// Returns the attempts at one transaction.
pub(super) fn collisions() -> Collisions {
    Collisions::new(ATTEMPTS, PAUSE)
}

impl MySqlLedger {
    /// Runs one transaction. `decide` gets a list of rows for each SELECT of `read`; the argument of `read` is whether
    /// an attempt has failed before.
    pub(super) async fn transact<T: Send>(
        &self,
        begin: &str,
        read: impl Fn(bool) -> String + Send + Sync,
        decide: impl Fn(Vec<Vec<Row>>) -> Result<LedgerDecision<T>, Fault> + Send + Sync,
    ) -> Result<T, Fault> {
        let mut collisions = collisions();
        loop {
            let sql = format!("{begin}{}", read(collisions.have_begun()));
            match self.in_time(self.attempt(&sql, &decide)).await {
                Ok(result) => return Ok(result),
                Err(failed) => failed.again(&mut collisions).await?,
            }
        }
    }

    /// Changes exactly `rows` rows by these statements, or none at all; returns whether it changed them.
    pub(super) async fn change(&self, statements: &str, rows: u64) -> Result<bool, Fault> {
        let sql = format!("{WRITING}{statements}");
        let mut collisions = collisions();
        loop {
            let work = async {
                let mut connection = self.pool.connection().await.map_err(Failed::Final)?;
                let changed = match affected(&mut connection, &sql).await {
                    Ok(changed) => changed,
                    Err(error) => return Err(self.failed(connection, error, true).await),
                };
                if changed != rows {
                    rollback(connection).await;
                    return Ok(false);
                }
                match connection.query_drop("COMMIT").await {
                    Ok(()) => Ok(true),
                    Err(error) => Err(self.failed(connection, error, false).await),
                }
            };
            match self.in_time(work).await {
                Ok(result) => return Ok(result),
                Err(failed) => failed.again(&mut collisions).await?,
            }
        }
    }

    /// Reads twice in one snapshot: `next` makes the second query from the first rows.
    pub(super) async fn read_twice<M: Send>(
        &self,
        first: &str,
        next: impl Fn(Vec<Vec<Row>>) -> Result<(M, String), Fault> + Send + Sync,
    ) -> Result<(M, Vec<Vec<Row>>), Fault> {
        let sql = format!("{SNAPSHOT}{first}");
        let mut collisions = collisions();
        loop {
            let work = async {
                let mut connection = self.pool.connection().await.map_err(Failed::Final)?;
                let found = match sets(&mut connection, &sql).await {
                    Ok(found) => found,
                    Err(error) => return Err(self.failed(connection, error, true).await),
                };
                let (made, second) = match next(found) {
                    Ok(next) => next,
                    Err(fault) => {
                        rollback(connection).await;
                        return Err(Failed::Final(fault));
                    }
                };
                let outcome = sets(&mut connection, &second).await;
                match outcome {
                    Ok(found) => {
                        rollback(connection).await;
                        Ok((made, found))
                    }
                    Err(error) => Err(self.failed(connection, error, true).await),
                }
            };
            match self.in_time(work).await {
                Ok(result) => return Ok(result),
                Err(failed) => failed.again(&mut collisions).await?,
            }
        }
    }

    pub(super) async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, Failed>>,
    ) -> Result<T, Failed> {
        tokio::time::timeout(TIMEOUT, work).await.unwrap_or_else(|_| {
            let found = format!("no answer within {} s", TIMEOUT.as_secs());
            Err(Failed::Final(Fault::new(Code::TargetUnreachable, &*self.subject, found)))
        })
    }

    async fn attempt<T: Send>(
        &self,
        read: &str,
        decide: &(impl Fn(Vec<Vec<Row>>) -> Result<LedgerDecision<T>, Fault> + Sync),
    ) -> Result<T, Failed> {
        let mut connection = self.pool.connection().await.map_err(Failed::Final)?;
        let sets = match sets(&mut connection, read).await {
            Ok(sets) => sets,
            Err(error) => return Err(self.failed(connection, error, true).await),
        };
        let decided = match decide(sets) {
            Ok(decided) => decided,
            Err(fault) => {
                rollback(connection).await;
                return Err(Failed::Final(fault));
            }
        };
        // A single statement outside of a transaction needs no COMMIT.
        if !read.starts_with(WRITING) && decided.writes.is_empty() {
            return Ok(decided.result);
        }
        let mut write = decided.writes.join("; ");
        write.push_str(if decided.writes.is_empty() { "COMMIT" } else { "; COMMIT" });
        match connection.query_drop(write).await {
            Ok(()) => Ok(decided.result),
            Err(error) => Err(self.failed(connection, error, decided.writes.is_empty()).await),
        }
    }

    /// Classifies an error and ends the transaction. `is_unwritten` = no sent packet could have changed a row.
    pub(super) async fn failed(
        &self,
        connection: Conn,
        error: mysql_async::Error,
        is_unwritten: bool,
    ) -> Failed {
        let number = match &error {
            mysql_async::Error::Server(server) => Some(server.code),
            _ => None,
        };
        let is_again = match number {
            Some(number) => matches!(
                number,
                NOT_NULL_VIOLATED | DUPLICATE_KEY | CHANGED_SINCE_READ | LOCK_WAIT_TIMEOUT | DEADLOCK
            ),
            None => is_unwritten,
        };
        self.pool.discard_after(&error);
        if number.is_some() {
            rollback(connection).await;
        } else {
            // The connection is in an unknown state.
            _ = connection.disconnect().await;
        }
        let fault = with_remedy(from_async(Side::Target, &self.subject, error));
        if is_again { Failed::Again(fault) } else { Failed::Final(fault) }
    }
}

/// Ends the transaction, so that its locks are free; if this fails, the server has ended it.
pub(super) async fn rollback(mut connection: Conn) {
    _ = connection.query_drop("ROLLBACK").await;
}

/// Returns the number of rows that all statements changed.
async fn affected(connection: &mut Conn, sql: &str) -> Result<u64, mysql_async::Error> {
    let mut result = connection.query_iter(sql).await?;
    let mut changed = result.affected_rows();
    while !result.is_empty() {
        // This moves on to the next statement's result.
        result.collect::<Row>().await?;
        changed += result.affected_rows();
    }
    // The client library keeps an error of a later statement until it is polled once more.
    result.drop_result().await?;
    Ok(changed)
}
