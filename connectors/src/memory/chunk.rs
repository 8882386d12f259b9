//! Reads the tables of a source in memory at a watermark.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{RowSource, SourceConnector, SourcePressure, TableVisibility};
use anabranch_pipeline::records::{Cell, Chunk, Comparison, Condition, Operator, ScanCursor};
use anabranch_schemas::change::{Entity, Row, TableIdentity, Value};
use anabranch_schemas::codec::{self, Encoder};
use anabranch_schemas::lsn::{FIRST_EPOCH, Lsn};
use anabranch_schemas::shard::ShardId;

use super::source::{BROKEN, MemorySource};
use super::{Refused, SnapshotView, lock};

/// Frequency, in a thousand snapshots and for each of the newest groups, with which a snapshot does not show the group.
const UNSEEN: u32 = 150;
/// Most of the newest groups that a snapshot hides.
pub const UNSEEN_GROUPS_MAX: usize = 3;
/// Frequency, in a thousand snapshots, with which the server does not report the snapshot's position.
const UNSAID: u32 = 300;
/// Frequency, in a thousand and for each group before such a snapshot, with which the low watermark is below the group.
const BELOW: u32 = 700;
const BELOW_GROUPS_MAX: usize = 4;

/// The rows of a table, by key.
type Rows = BTreeMap<u64, Row<'static>>;
/// A function that takes some keys of a table.
type TakesKeys = fn(&Rows) -> Vec<u64>;

impl RowSource for MemorySource {
    async fn tables(&self) -> Result<Vec<TableIdentity<'static>>, Fault> {
        self.weather.pause().await;
        self.weather.answer(Refused::Source)?;
        let state = lock(&self.state);
        let mut tables = state.primary.tables();
        tables.retain(|shard, _| !state.hidden.contains(shard));
        Ok(tables.into_values().collect())
    }

    fn visit_likely_tables(&self, entity: Entity, visit: &mut dyn FnMut(&TableIdentity<'_>)) {
        let tables = lock(&self.state).primary.likely_tables();
        tables.values().filter(|table| table.entity == entity).for_each(visit);
    }

    async fn pressure(&self) -> Result<SourcePressure, Fault> {
        let head = self.head().await?;
        let state = lock(&self.state);
        Ok(SourcePressure {
            head,
            running_threads: state.running_threads,
            replica_lag: state.replica_lag,
            lag_unknown: None,
        })
    }

    async fn replication_end(&self) -> Result<String, Fault> {
        Ok(self.head().await?.to_string())
    }

    async fn has_replicated(&self, end: &str) -> Result<bool, Fault> {
        let odd = |_| {
            let found = format!("`{end}` is not its end");
            Fault::new(Code::Internal, "a source", found).needs("an answer of `replication_end`")
        };
        let end: Lsn = end.parse().map_err(odd)?;
        Ok(self.head().await? >= end)
    }

    async fn chunk(
        &self,
        table: &TableIdentity<'static>,
        after: Option<&ScanCursor>,
        rows: NonZeroUsize,
        epoch: u16,
    ) -> Result<Chunk, Fault> {
        self.part(table, |_| true, after, rows, epoch).await
    }

    async fn first_rows(&self, tables: &[TableIdentity<'static>], epoch: u16) -> Result<Chunk, Fault> {
        assert!(!tables.is_empty(), "a lane asks for one table at least");
        let first = |all: &Rows| -> Vec<u64> { all.keys().take(1).copied().collect() };
        let mut parts = Vec::with_capacity(tables.len());
        for table in tables {
            parts.push(self.read_at_watermark(&[(table, first)], epoch).await?.0);
        }
        self.joined(tables, &parts)
    }

    async fn page(
        &self,
        table: &TableIdentity<'static>,
        after: Option<&ScanCursor>,
        rows: NonZeroUsize,
        visit: &mut (dyn FnMut(&[Value<'_>]) + Send),
    ) -> Result<Option<ScanCursor>, Fault> {
        let chunk = self.chunk(table, after, rows, FIRST_EPOCH).await?;
        let breaks_after = self.weather.strikes_in(BROKEN).then_some(chunk.rows / 2);
        let mut changes = codec::decode(&chunk.payload).expect("it was just encoded");
        let mut visited = 0;
        while let Some(change) = changes.next().expect("it was just encoded") {
            if breaks_after == Some(visited) {
                return Err(lock(&self.state).primary.fault(Code::SourceUnreachable, "the connection broke"));
            }
            let (_, after) = change.action.images().expect("rows are inserts");
            visit(after.expect("rows are inserts"));
            visited += 1;
        }
        Ok(chunk.next)
    }

    async fn matching(
        &self,
        table: &TableIdentity<'static>,
        condition: &Condition,
        after: Option<&ScanCursor>,
        rows: NonZeroUsize,
        epoch: u16,
    ) -> Result<Chunk, Fault> {
        let comparisons = condition.comparisons().iter().map(|comparison| meaning(table, comparison));
        let comparisons = comparisons.collect::<Result<Vec<_>, _>>()?;
        self.part(table, |row| comparisons.iter().all(|holds| holds(row)), after, rows, epoch).await
    }

    async fn rows(&self, keys: &[(TableIdentity<'static>, Vec<Cell>)], epoch: u16) -> Result<Chunk, Fault> {
        let parts: Vec<_> = (keys.iter())
            .map(|(table, keys)| {
                let is_meant = |key: &u64| keys.contains(&Cell::UInt(*key));
                (table, move |all: &Rows| all.keys().copied().filter(is_meant).collect())
            })
            .collect();
        Ok(self.read_at_watermark(&parts, epoch).await?.0)
    }

    async fn visibility(&self, database: &str, table: &str) -> Result<TableVisibility, Fault> {
        self.weather.pause().await;
        self.weather.answer(Refused::Source)?;
        let state = lock(&self.state);
        let known = state.primary.tables();
        let is_it = |known: &&TableIdentity<'_>| known.database == database && known.table == table;
        TableVisibility::of(match known.values().find(is_it) {
            None => Err(state.primary.fault(Code::SourceTableMissing, "it does not have the table")),
            Some(table) if state.hidden.contains(&table.shard) => {
                Err(state.primary.fault(Code::SourceGrantMissing, "the account may not read a table"))
            }
            Some(_) => Ok(()),
        })
    }

    async fn absence(&self, table: &TableIdentity<'static>, epoch: u16) -> Result<Option<Chunk>, Fault> {
        let none: [(&TableIdentity<'static>, TakesKeys); 0] = [];
        let (chunk, _) = self.read_at_watermark(&none, epoch).await?;
        let state = lock(&self.state);
        if state.primary.identity() != chunk.server {
            return Err(state.primary.fault(Code::SourceUnreachable, "another server took over"));
        }
        let known = state.primary.tables();
        let is_it =
            |known: &TableIdentity<'_>| (&known.database, &known.table) == (&table.database, &table.table);
        let high = chunk.high.max(state.primary.head(epoch));
        // A server checks the privilege before it looks for the table.
        let is_refused = state.hidden.contains(&table.shard);
        Ok((!is_refused && !known.values().any(is_it)).then_some(Chunk { high, ..chunk }))
    }
}

impl MemorySource {
    /// Returns the present rows of a table, by key.
    pub fn table(&self, shard: ShardId) -> BTreeMap<u64, Row<'static>> {
        let state = lock(&self.state);
        state.primary.rows(shard, state.primary.groups())
    }

    /// Takes away the grants of these tables, and gives all others back. The binlog still shows every change.
    pub fn hide(&self, tables: impl IntoIterator<Item = ShardId>) {
        lock(&self.state).hidden = tables.into_iter().collect();
    }

    /// Returns the tables whose grants are missing.
    pub fn hidden(&self) -> BTreeSet<ShardId> {
        lock(&self.state).hidden.clone()
    }

    /// Joins the chunks of several tables, each read in a snapshot of its own.
    fn joined(&self, tables: &[TableIdentity<'static>], parts: &[Chunk]) -> Result<Chunk, Fault> {
        let low = parts.iter().map(|part| part.low).min().unwrap_or_default();
        let high = parts.iter().map(|part| part.high).max().unwrap_or_default();
        let mut encoder = Encoder::default();
        for (table, part) in tables.iter().zip(parts) {
            let mut changes = codec::decode(&part.payload).expect("it was just encoded");
            while let Some(change) = changes.next().expect("it was just encoded") {
                let (_, after) = change.action.images().expect("rows are inserts");
                encoder.insert(low, table, after.expect("rows are inserts"));
            }
        }
        let broke = || lock(&self.state).primary.fault(Code::SourceUnreachable, "the connection broke");
        let server = parts.first().map(|part| part.server.clone()).ok_or_else(broke)?;
        if parts.iter().any(|part| part.server != server) {
            return Err(broke());
        }
        let rows = u64::from(encoder.changes());
        Ok(Chunk { low, high, server, payload: encoder.finish(), rows, next: None })
    }

    /// Returns the rows after a key that `is_meant` accepts.
    async fn part(
        &self,
        table: &TableIdentity<'static>,
        is_meant: impl Fn(&Row<'static>) -> bool,
        after: Option<&ScanCursor>,
        rows: NonZeroUsize,
        epoch: u16,
    ) -> Result<Chunk, Fault> {
        let later = after.map_or(0, |after| {
            u64::from_be_bytes((*after.0).try_into().expect("a key of this source")).saturating_add(1)
        });
        let take = |all: &Rows| {
            let meant = all.range(later..).filter(|(_, row)| is_meant(row));
            meant.take(rows.get()).map(|(key, _)| *key).collect()
        };
        let (mut chunk, last) = self.read_at_watermark(&[(table, take)], epoch).await?;
        let last = last.map(|key| ScanCursor(key.to_be_bytes().into()));
        chunk.next = last.filter(|_| chunk.rows == rows.get() as u64);
        Ok(chunk)
    }

    fn snapshot_view(&self) -> SnapshotView {
        let strikes =
            |max: usize, thousand| (0..max).take_while(|_| self.weather.strikes_in(thousand)).count();
        let is_unsaid = self.weather.strikes_in(UNSAID);
        SnapshotView {
            unseen: strikes(UNSEEN_GROUPS_MAX, UNSEEN),
            below: is_unsaid.then(|| strikes(BELOW_GROUPS_MAX, BELOW)),
        }
    }

    /// Reads those rows of each table whose keys its function takes; returns the last key too.
    async fn read_at_watermark(
        &self,
        parts: &[(&TableIdentity<'static>, impl Fn(&Rows) -> Vec<u64>)],
        epoch: u16,
    ) -> Result<(Chunk, Option<u64>), Fault> {
        self.weather.pause().await;
        self.weather.answer(Refused::Source)?;
        let read = {
            let state = lock(&self.state);
            let server = &state.primary;
            if self.weather.strikes_in(BROKEN) {
                return Err(server.fault(Code::SourceUnreachable, "the connection broke"));
            }
            if parts.iter().any(|(table, _)| state.hidden.contains(&table.shard)) {
                return Err(server.fault(Code::SourceGrantMissing, "the account may not read a table"));
            }
            let SnapshotView { unseen, below } = state.snapshot_view.unwrap_or_else(|| self.snapshot_view());
            let groups = server.groups().saturating_sub(unseen);
            // A snapshot that shows everything is at the end of the newest file, even if nothing is in it.
            let end_of = |end| match end {
                all if all == server.groups() => server.head(epoch),
                part => server.end_of(epoch, part),
            };
            let (low, high) = match below {
                Some(below) => (end_of(groups.saturating_sub(below)), server.head(epoch)),
                None => (end_of(groups), end_of(groups)),
            };
            let (mut encoder, mut last) = (Encoder::default(), None);
            for (table, take) in parts {
                let all = server.rows(table.shard, groups);
                for key in take(&all) {
                    encoder.insert(low, table, self.captured_part(&all[&key]));
                    last = Some(key);
                }
            }
            let rows = u64::from(encoder.changes());
            let chunk =
                Chunk { low, high, server: server.identity(), payload: encoder.finish(), rows, next: None };
            (chunk, last)
        };
        self.weather.pause().await;
        Ok(read)
    }
}

/// Returns the test of one comparison; it supports fields that are numbers and dates.
fn meaning(
    table: &TableIdentity<'_>,
    Comparison { column, operator, value }: &Comparison,
) -> Result<impl Fn(&Row<'static>) -> bool, Fault> {
    let refused = |code, found: String| Fault::new(code, format!("table {}", table.table), found);
    let field = table.entity.field_names().iter().position(|field| field == column);
    let missing = || refused(Code::SourceColumnMissing, format!("it has no column {column}"));
    let field = field.ok_or_else(missing)?;
    let wrong = || {
        let found = format!("the value for column {column} is of another type");
        refused(Code::RefreshRefused, found).needs("a number for the key, `YYYY-MM-DD` for a date")
    };
    let number: Option<u64> = value.parse().ok();
    if (field == 0) != number.is_some() {
        return Err(wrong());
    }
    let (operator, value) = (*operator, value.clone());
    Ok(move |row: &Row<'static>| {
        let order = match &row[field] {
            Value::UInt(found) => found.cmp(&number.unwrap_or_default()),
            Value::Date { year, month, day } => format!("{year:04}-{month:02}-{day:02}").cmp(&value),
            _ => return false,
        };
        match operator {
            Operator::Equal => order.is_eq(),
            Operator::Below => order.is_lt(),
            Operator::AtMost => order.is_le(),
            Operator::Above => order.is_gt(),
            Operator::AtLeast => order.is_ge(),
        }
    })
}
