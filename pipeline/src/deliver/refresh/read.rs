//! The result of one read, and reads of single keys: keys that are named, or that a condition finds.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;

use anabranch_schemas::change::{Change, Entity, TableIdentity};
use anabranch_schemas::codec::{self, CodecError};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;

use super::Refresher;
use super::unlisted::hidden_of;
use crate::error::{Code, Fault};
use crate::ports::RowSource;
use crate::projections::key_of;
use crate::records::{Cell, Chunk, Condition, Flush, Replacement, ScanCursor};

/// The result of one read.
#[derive(Debug)]
pub(super) struct Read {
    pub chunk: Chunk,
    /// Watermark of the query that found the rows; the query that read them may be older or newer.
    pub found_at: Lsn,
    /// Keys of the rows: afterwards only the claims of these rows remain. `None` = the read is not of single keys.
    pub keys: Option<BTreeMap<ShardId, Vec<Cell>>>,
    /// Tables of further keys that were not read, because the source may hide the tables.
    pub hidden: BTreeSet<ShardId>,
    /// The name of a table that does not exist between the watermarks, so it has no row.
    pub absent: Option<String>,
}

impl Read {
    /// Returns a read that is not of single keys.
    pub(super) fn of_chunk(chunk: Chunk) -> Self {
        Self { found_at: chunk.low, chunk, keys: None, hidden: BTreeSet::new(), absent: None }
    }
}

impl<S: RowSource> Refresher<'_, S> {
    /// Returns the mutations of a chunk; for keys, only those whose source rows have not changed after its watermark.
    pub(super) fn project_chunk(
        &self,
        Read { chunk, keys, .. }: &Read,
        mut flush: Flush,
        mut project: impl FnMut(&Change<'_, '_>, &mut Flush),
    ) -> Result<Flush, Fault> {
        let broken = |error| {
            Fault::new(Code::Internal, format!("lane {}", self.id), "a chunk cannot be read").caused_by(error)
        };
        let mut changes = codec::decode(&chunk.payload).map_err(broken)?;
        while let Some(change) = changes.next().map_err(broken)? {
            project(&change, &mut flush);
        }
        let Some(keys) = keys else { return Ok(flush) };
        let changed = self.changes.changed(self.source_column, chunk.low);
        let all = keys.iter().flat_map(|(shard, keys)| keys.iter().map(|key| (*shard, key)));
        let stand = all.filter(|(shard, key)| !changed.has(*shard, key));
        let rows = stand.map(|(shard, key)| (shard, key.clone())).collect();
        let replacement = Replacement { low: chunk.low, column: self.source_column, rows };
        flush.retain(|_, shard, key| replacement.covers(shard, key));
        flush.replacement = Some(replacement);
        Ok(flush)
    }
}

/// Reads a part of the rows that a condition finds, with all other rows of their keys.
pub(super) async fn rows_where<S: RowSource>(
    source: &S,
    table: TableIdentity<'static>,
    condition: Condition,
    after: Option<ScanCursor>,
    rows: NonZeroUsize,
    epoch: u16,
) -> Result<Read, Fault> {
    let found = source.matching(&table, &condition, after.as_ref(), rows, epoch).await?;
    let (mut keys, mut changes) =
        (Vec::new(), codec::decode(&found.payload).map_err(|error| broken(&table, error))?);
    while let Some(change) = changes.next().map_err(|error| broken(&table, error))? {
        let (_, after) = change.action.images().unwrap_or_default();
        keys.extend(after.and_then(|row| key_of(table.entity, row)));
    }
    drop(changes);
    keys.sort_unstable();
    keys.dedup();
    let found_at = found.low;
    let chunk = match keys.is_empty() {
        true => found,
        false => Chunk { next: found.next, ..source.rows(&[(table.clone(), keys.clone())], epoch).await? },
    };
    Ok(Read { found_at, keys: Some([(table.shard, keys)].into()), ..Read::of_chunk(chunk) })
}

fn broken(table: &TableIdentity<'_>, error: CodecError) -> Fault {
    let table = format!("table {}.{}", table.database, table.table);
    Fault::new(Code::Internal, table, "a chunk cannot be read").caused_by(error)
}

/// Reads the rows of these keys. A table that is proved absent has none, at a watermark after which it still does not
/// exist. Keys of a table that the source may hide are not read.
pub(super) async fn rows_of<S: RowSource>(
    source: &S,
    entity: Entity,
    mut tables: Vec<TableIdentity<'static>>,
    mut keys: BTreeMap<ShardId, Vec<Cell>>,
    epoch: u16,
) -> Result<Read, Fault> {
    loop {
        if tables.is_empty() {
            let shard = keys.keys().next().map_or("?".to_owned(), ToString::to_string);
            let subject = format!("shard {shard}");
            return Err(Fault::new(
                Code::SourceTableMissing,
                subject,
                "no table of the source has this shard id",
            ));
        }
        let there = tables.iter().filter_map(|table| Some((table.clone(), keys.get(&table.shard)?.clone())));
        let wanted: Vec<_> = there.collect();
        let chunk = source.rows(&wanted, epoch).await?;
        let is_known = |shard| wanted.iter().any(|(table, _)| table.shard == shard);
        if wanted.len() < keys.len() {
            tables = source.tables().await?;
        }
        if tables.iter().all(|table| is_known(table.shard) || !keys.contains_key(&table.shard)) {
            let unlisted = keys.keys().copied().filter(|shard| !is_known(*shard)).collect();
            let hidden = hidden_of(source, entity, &unlisted, epoch).await?;
            keys.retain(|shard, _| !hidden.contains(shard));
            return Ok(Read { keys: Some(keys), hidden, ..Read::of_chunk(chunk) });
        }
    }
}
