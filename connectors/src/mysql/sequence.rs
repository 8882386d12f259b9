//! The counters of payment documents' identifiers on a MySQL/MariaDB server, and the request keys beside them.
//!
//! One UPDATE of one row by its primary key allots a range, as a transaction of its own. Its condition is the decision
//! of `NumberRange::of`, and that the server waits for its disk before it answers a commit. The answer gives the range.
//! `tables.rs` creates and checks the tables, `statements.rs` is their SQL. The daemon's account may only read and
//! update counters. A process that misses a row does not create it anew: its numbers would begin at 0 again.

mod statements;
mod tables;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anabranch_pipeline::config::FluxIdentifierConfig;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::failpoints;
use anabranch_pipeline::ports::Sequence;
use anabranch_pipeline::records::{
    CounterRow, GivenOnce, NumberRange, RangeRefusal, RangeRequest, Remembered, RequestKey, SequenceServer,
    SequenceStatus,
};
use anabranch_schemas::flux::counter::{Counter, Ring};
use anabranch_schemas::flux::id::{FluxId, Region};
use jiff::civil::Date;
use mysql_async::Row;
use tokio::sync::OnceCell;

use self::statements::{Statements, UNUSED};
use self::tables::SUBJECT;
use super::answer::Cells;
use super::error::Side;
use super::pool::Pool;
use super::target_session::target_session_with;

/// Requests of many counters and keys run at the same time; each takes a millisecond or two.
const CONNECTIONS: usize = 16;
/// Settings of each connection beside those of every session. Only other requests hold the lock that one waits for.
const SETTINGS: &str = "innodb_lock_wait_timeout = 5";
const TIMEOUT: Duration = Duration::from_secs(8);
/// One in so many new keys removes old keys, five for each new one.
const SWEEP_EACH: u32 = 100;
/// Other processes may change the row between the UPDATE that refuses and the query for the reason.
const ATTEMPTS: u32 = 8;

/// The sequence of one installation. Cheap to clone; its connections are made when they are needed.
#[derive(Debug, Clone)]
pub struct MysqlSequence(Arc<Settings>);

#[derive(Debug)]
struct Settings {
    config: FluxIdentifierConfig,
    statements: Statements,
    pool: Pool,
    /// The expression for the server's name, which depends on its kind.
    name: OnceCell<&'static str>,
    remembered: AtomicU32,
}

impl MysqlSequence {
    pub fn new(config: &FluxIdentifierConfig) -> Self {
        let subject = (Side::Target, SUBJECT.to_owned());
        let (url, ca_file) = (&config.sequence_url, config.ca_file.as_deref());
        Self(Arc::new(Settings {
            statements: Statements::of(config),
            pool: Pool::with_session(subject, url, ca_file, CONNECTIONS, &target_session_with(SETTINGS))
                .shown(tables::TARGET, "sequence"),
            name: OnceCell::new(),
            remembered: AtomicU32::new(0),
            config: config.clone(),
        }))
    }

    fn region(&self) -> Region {
        self.0.config.region
    }

    /// Returns the rows of each SELECT.
    async fn sets(&self, sql: String) -> Result<Vec<Vec<Row>>, Fault> {
        self.0.pool.sets(TIMEOUT, sql).await.map_err(tables::own_remedy)
    }

    /// Returns the first row of the only SELECT.
    async fn row(&self, sql: String) -> Result<Option<Row>, Fault> {
        Ok(self.sets(sql).await?.into_iter().flatten().next())
    }

    /// Returns the expression for the server's name; reads the server's version once.
    async fn name(&self) -> Result<&'static str, Fault> {
        let ask = async || {
            let version = self.row("SELECT VERSION()".to_owned()).await?;
            let version =
                version.and_then(|row| Cells::of(row).text()).ok_or_else(|| self.odd("VERSION()"))?;
            Ok(statements::name(&version))
        };
        self.0.name.get_or_try_init(ask).await.copied()
    }

    fn odd(&self, what: &str) -> Fault {
        Fault::new(
            Code::TargetTableShape,
            SUBJECT,
            format!("{what} returned values that Anabranch never writes"),
        )
        .needs("rows as `setup` and the daemons wrote them")
        .remedy("find the person or program that changed the row, and undo the change")
    }

    /// Returns why an UPDATE changed nothing; `None` when it would change something now.
    async fn refusal(&self, request: &RangeRequest, name: &str) -> Result<Option<RangeRefusal>, Fault> {
        let sets = self.sets(self.0.statements.read_counter(&request.counter, name)).await?;
        let [server, rows] = sets.try_into().map_err(|_| self.odd("the counter"))?;
        let server = self.server_of(server.into_iter().next())?;
        let counter_row = |row: Row| {
            let mut cells = Cells::of(row);
            Some(CounterRow { date: cells.parsed()?, next: cells.parsed()? })
        };
        let row = rows.into_iter().next();
        let row = row.map(|row| counter_row(row).ok_or_else(|| self.odd("the counter"))).transpose()?;
        match NumberRange::of(request, &server, row) {
            Err(refusal) => Ok(Some(refusal)),
            Ok(_) => Ok(self.volatile_setting().await?.map(|setting| RangeRefusal::Volatile { setting })),
        }
    }

    /// Returns the setting by which a power cut could take back what the server answered; `None` if it has none.
    async fn volatile_setting(&self) -> Result<Option<String>, Fault> {
        let row = self.row(statements::volatile_setting()).await?;
        row.map(|row| Cells::of(row).text().ok_or_else(|| self.odd("a setting"))).transpose()
    }

    fn server_of(&self, row: Option<Row>) -> Result<SequenceServer, Fault> {
        let mut cells = Cells::of(row.ok_or_else(|| self.odd("the server"))?);
        let mut server = || Some(SequenceServer { name: cells.text()?, today: cells.parsed()? });
        server().ok_or_else(|| self.odd("the server"))
    }

    fn given_of(&self, row: Row) -> Result<GivenOnce, Fault> {
        let mut cells = Cells::of(row);
        let mut given = || {
            let first = FluxId::parse_of(cells.text()?.as_bytes(), self.0.config.system).ok()?;
            Some(GivenOnce { first, count: cells.parsed()? })
        };
        given().ok_or_else(|| self.odd("the table of request keys"))
    }

    /// Stores a key unless it exists, and returns the stored one; `None` when there is no room.
    async fn store(&self, key: &RequestKey, given: &GivenOnce) -> Result<Option<GivenOnce>, Fault> {
        let sql = self.0.statements.remember(key, given);
        let sets = failpoints::reach_unanswered("sequence-key-sent", self.sets(sql)).await?;
        sets.into_iter().flatten().next().map(|row| self.given_of(row)).transpose()
    }

    async fn sweep(&self) -> Result<(), Fault> {
        self.sets(self.0.statements.sweep()).await.map(drop)
    }
}

impl Sequence for MysqlSequence {
    async fn server(&self) -> Result<SequenceServer, Fault> {
        let name = self.name().await?;
        let row = self.row(statements::server(name)).await?;
        self.server_of(row)
    }

    async fn next_range(&self, request: &RangeRequest) -> Result<Result<NumberRange, RangeRefusal>, Fault> {
        let name = self.name().await?;
        for _ in 0..ATTEMPTS {
            let sql = self.0.statements.next_range(request, name);
            let sets = failpoints::reach_unanswered("sequence-lease-sent", self.sets(sql)).await?;
            let row = sets.into_iter().flatten().next().ok_or_else(|| self.odd("a lease"))?;
            let mut cells = Cells::of(row);
            let found = (cells.parsed::<i64>(), cells.parsed::<u32>());
            let (Some(changed), Some(end)) = found else { return Err(self.odd("a lease")) };
            if changed == 1 {
                return Ok(Ok(request.range_at(end - 1)));
            }
            if let Some(refusal) = self.refusal(request, name).await? {
                return Ok(Err(refusal));
            }
        }
        let found =
            format!("counter {} changed during each of {ATTEMPTS} attempts to read it", request.counter);
        Err(Fault::new(Code::TargetUnreachable, SUBJECT, found))
    }

    async fn given(&self, key: &RequestKey) -> Result<Option<GivenOnce>, Fault> {
        let row = self.row(self.0.statements.given(key)).await?;
        row.map(|row| self.given_of(row)).transpose()
    }

    async fn remember(&self, key: &RequestKey, given: &GivenOnce) -> Result<Remembered, Fault> {
        if self.0.remembered.fetch_add(1, Ordering::Relaxed).is_multiple_of(SWEEP_EACH) {
            // The numbers of this key are allotted already, and this sweep only makes room early.
            if let Err(fault) = self.sweep().await {
                tracing::warn!(%fault, "old request keys were not removed; the next sweep tries again");
            }
        }
        if let Some(existing) = self.store(key, given).await? {
            return Ok(Remembered::Existing(existing));
        }
        self.sweep().await?;
        Ok(self.store(key, given).await?.map_or(Remembered::Full, Remembered::Existing))
    }

    async fn status(&self) -> Result<SequenceStatus, Fault> {
        let server = self.server().await?;
        let sets = self.sets(self.0.statements.status()).await?;
        let [rows, keys] = sets.try_into().map_err(|_| self.odd("a counter"))?;
        let counter = |row: Row| {
            let mut cells = Cells::of(row);
            let (partition, side) = (cells.parsed()?, cells.parsed()?);
            let counter = Ring::new(self.region(), statements::side(side)?, partition)?.on(cells.parsed()?);
            Some((counter, cells.parsed()?))
        };
        let counters = rows.into_iter().map(counter).collect::<Option<Vec<(Counter, u32)>>>();
        let counters = counters.ok_or_else(|| self.odd("a counter"))?;
        let used = counters.into_iter().filter(|(counter, _)| counter.date != UNUSED).collect();
        let keys = keys.into_iter().next().and_then(|row| Cells::of(row).parsed());
        let keys = keys.ok_or_else(|| self.odd("the table of request keys"))?;
        Ok(SequenceStatus { server, counters: used, keys })
    }

    async fn raise(&self, numbers: &[(Counter, u32)]) -> Result<(), Fault> {
        for sql in self.0.statements.raise(numbers) {
            failpoints::reach("sequence-before-raise").await;
            failpoints::reach_unanswered("sequence-raise-sent", self.sets(sql)).await?;
            failpoints::reach("sequence-after-raise").await;
        }
        Ok(())
    }
}

/// Returns a date as a literal.
fn date_literal(date: Date) -> String {
    format!("DATE '{date}'")
}
