//! Decides whether a candidate is drift: reads source, barrier, derived stores and source, always in this order, twice.
//!
//! - A transaction that the first read of the source misses either changes the row before the second read, which makes
//!   the row *hot*, or comes after both.
//! - A transaction that the first read sees is in the stores once every lane has passed the position of that read (the
//!   *barrier*), since lanes commit progress with their rows.
//! - A transaction that waits for a replica's acknowledgement may be in the stores and in no snapshot. So the second
//!   read must have come as far as the lanes had when the stores were read.
//! - A difference is drift when both reads agree and a second round finds the same: a row that changed and changed back
//!   between the reads may be found half way. A hot or undecided row is checked again, a few times.
//! - A lane that stands still, reads another server or is being loaded makes its keys *unreadable*.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use anabranch_schemas::change::Action;
use anabranch_schemas::codec;
use anabranch_schemas::envelope::ServerIdentity;
use anabranch_schemas::lsn::{FIRST_EPOCH, Lsn};
use anabranch_schemas::shard::ShardId;
use futures::future::{join_all, try_join_all};
use serde::{Deserialize, Serialize};

use super::candidates::{CandidateBatch, SourceKey};
use super::lane_wait::{LaneWait, hinders};
use super::scan::{Sides, SourceTable};
use crate::error::{Class, Code, Fault};
use crate::ports::{DerivedRowQuery, DerivedRows, Lanes, RowSource};
use crate::records::{Cell, CellRef, Chunk, Claimed, EntryDrift, LaneId, Progress};
use crate::retry::again;

/// Rounds of checks before a candidate is called hot and left to the next reconciliation.
const ROUNDS: u32 = 6;
/// Pause before the second round; each later pause is longer by as much.
const HOT_PAUSE: Duration = Duration::from_secs(1);
/// Keys that one query asks for, at most.
const KEYS_A_QUERY: usize = 500;

/// The result of checking the derived rows of one source row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Rows that should exist do not.
    Missing,
    /// A row has values that the source does not have.
    Stale,
    /// Rows exist, and the source row makes none.
    Orphan,
    /// A row exists where it should not, and does not where it should.
    WrongPartition,
    /// Rows exist where they should, and also where they should not.
    InTwoPartitions,
    /// An entry of a cache that lives for ever, or longer than is configured.
    Lasting,
    /// A code whose cache entry no process can fill any more.
    Blocked,
    /// The derived rows are right: the change was on its way during the scan.
    InFlight,
    /// The source row changed in each round, or disagreed in another way each time.
    Hot,
    /// One of the sides could not be read, or a lane has not come so far.
    Unreadable,
}

impl Verdict {
    /// Returns whether the verdict says that the stores are wrong.
    pub fn is_drift(self) -> bool {
        !matches!(self, Self::InFlight | Self::Hot | Self::Unreadable)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Stale => "stale",
            Self::Orphan => "orphan",
            Self::WrongPartition => "wrong_partition",
            Self::InTwoPartitions => "in_two_partitions",
            Self::Lasting => "lasting",
            Self::Blocked => "blocked",
            Self::InFlight => "in_flight",
            Self::Hot => "hot",
            Self::Unreadable => "unreadable",
        }
    }
}

impl From<EntryDrift> for Verdict {
    fn from(drift: EntryDrift) -> Self {
        match drift {
            EntryDrift::Stale | EntryDrift::Unreadable => Self::Stale,
            EntryDrift::Orphan => Self::Orphan,
            EntryDrift::Lasting => Self::Lasting,
            EntryDrift::Blocked => Self::Blocked,
        }
    }
}

/// The derived rows of a source row: values by table and key.
type Rows = BTreeMap<(u32, Box<[Cell]>), Box<[Cell]>>;

/// The expected and the found rows of each source row that disagreed in the round before.
type Suspected = BTreeMap<SourceKey, (Rows, Rows)>;

/// Compares the expected rows with the found ones.
pub fn judge(expected: &Rows, found: &Rows) -> Verdict {
    let is_missing = expected.keys().any(|row| !found.contains_key(row));
    let is_extra = found.keys().any(|row| !expected.contains_key(row));
    let is_changed = found.iter().any(|(row, values)| expected.get(row).is_some_and(|right| right != values));
    match (is_missing, is_extra) {
        (true, true) => Verdict::WrongPartition,
        (true, false) => Verdict::Missing,
        (false, true) if expected.is_empty() => Verdict::Orphan,
        (false, true) => Verdict::InTwoPartitions,
        (false, false) if is_changed => Verdict::Stale,
        (false, false) => Verdict::InFlight,
    }
}

/// The verdicts of a batch of candidates, and why some could not be read.
#[derive(Debug, Default)]
pub struct WindowVerdicts {
    /// The verdict of each source row, with the derived tables that were checked.
    pub verdicts: BTreeMap<SourceKey, (Verdict, BTreeSet<u32>)>,
    pub unread: BTreeSet<String>,
}

/// Keys of some tables that are read at one watermark.
type KeyBatch = Vec<(ShardId, Vec<Cell>)>;

/// Cuts keys into batches of at most [`KEYS_A_QUERY`].
fn batches(shards: Vec<(ShardId, Vec<Cell>)>) -> Vec<KeyBatch> {
    let mut batches = vec![KeyBatch::new()];
    let mut room = KEYS_A_QUERY;
    for (shard, mut keys) in shards {
        while !keys.is_empty() {
            let rest = keys.split_off(keys.len().min(room));
            room -= keys.len();
            batches.last_mut().expect("there is always one").push((shard, keys));
            keys = rest;
            if room == 0 {
                batches.push(KeyBatch::new());
                room = KEYS_A_QUERY;
            }
        }
    }
    batches.retain(|batch| !batch.is_empty());
    batches
}

/// The access to source, stores and lanes that a check of single rows needs.
pub struct Recheck<'a, S, D, L> {
    pub sides: &'a Sides<S, D>,
    pub lanes: &'a L,
    pub tables: &'a BTreeMap<ShardId, SourceTable>,
    pub lane_wait: &'a LaneWait,
}

/// The derived rows that source rows make, as one read of the sources saw them.
#[derive(Debug, Default)]
struct SourceObservation {
    rows: BTreeMap<SourceKey, Rows>,
    /// The furthest position of the read and the server that it belongs to, by source.
    places: BTreeMap<String, (Lsn, ServerIdentity)>,
    /// The position up to which all reads of a shard's rows have seen.
    seen: BTreeMap<ShardId, Lsn>,
    /// Shards that could not be read, and why.
    failed: BTreeMap<ShardId, String>,
}

/// How far the lanes of sources have come.
#[derive(Debug, Default)]
struct Applied {
    /// The furthest change that any lane has in its tables, by source.
    furthest: BTreeMap<String, Lsn>,
    /// Tables that a lane is still to read again, with the reason: their rows may be stale.
    owed: BTreeMap<ShardId, String>,
}

impl<S: RowSource + 'static, D: DerivedRows + 'static, L: Lanes> Recheck<'_, S, D, L> {
    pub async fn judge(&self, window: CandidateBatch) -> Result<WindowVerdicts, Fault> {
        let mut judged = WindowVerdicts::default();
        let (mut pending, mut suspected) = (window, Suspected::new());
        for round in 1..=ROUNDS {
            pending = self.round(pending, &mut suspected, &mut judged).await?;
            if pending.is_empty() {
                return Ok(judged);
            }
            if round < ROUNDS {
                tokio::time::sleep(HOT_PAUSE * round).await;
            }
        }
        judged.verdicts.extend(pending.into_iter().map(|(key, tables)| (key, (Verdict::Hot, tables))));
        Ok(judged)
    }

    /// Checks all pending rows once; returns those that are not decided yet.
    async fn round(
        &self,
        pending: CandidateBatch,
        suspected: &mut Suspected,
        judged: &mut WindowVerdicts,
    ) -> Result<CandidateBatch, Fault> {
        let mut first = self.read_sources(pending.keys()).await;
        let barred = self.barrier(&first.places).await;
        let mut wanted = pending;
        for (key, tables) in &mut wanted {
            tables.extend(
                first.rows.get(key).into_iter().flat_map(|rows| rows.keys().map(|(table, _)| *table)),
            );
        }
        let mut found = self.read_derived(&wanted).await?;
        let Applied { furthest: applied, owed } = self.applied(&first.places).await;
        let second = self.read_sources(wanted.keys()).await;
        let mut undecided = CandidateBatch::new();
        for (key, tables) in wanted {
            let why = first.failed.get(&key.shard).or(second.failed.get(&key.shard));
            let source = self.tables.get(&key.shard).map(|table| &table.source);
            let why = why.or_else(|| barred.get(source?)).or_else(|| owed.get(&key.shard));
            // Lanes may have applied a change that no snapshot shows yet, so that both reads missed it.
            let applied = source.and_then(|source| applied.get(source));
            let has_seen_all = applied.is_some_and(|applied| second.seen.get(&key.shard) >= Some(applied));
            let verdict = match why {
                Some(why) => {
                    judged.unread.insert(why.clone());
                    Verdict::Unreadable
                }
                None if !has_seen_all || first.rows.get(&key) != second.rows.get(&key) => {
                    undecided.insert(key, tables);
                    continue;
                }
                None => {
                    let expected = first.rows.remove(&key).unwrap_or_default();
                    let found = found.remove(&key).unwrap_or_default();
                    let (verdict, seen) = (judge(&expected, &found), Some((expected, found)));
                    if verdict.is_drift() && suspected.get(&key) != seen.as_ref() {
                        suspected.extend(seen.map(|seen| (key.clone(), seen)));
                        undecided.insert(key, tables);
                        continue;
                    }
                    verdict
                }
            };
            judged.verdicts.insert(key, (verdict, tables));
        }
        Ok(undecided)
    }

    /// Reads source rows by their keys. A failure concerns its table only.
    async fn read_sources(&self, keys: impl Iterator<Item = &SourceKey>) -> SourceObservation {
        let mut of_shard: BTreeMap<ShardId, Vec<Cell>> = BTreeMap::new();
        keys.for_each(|key| of_shard.entry(key.shard).or_default().push(key.key.clone()));
        let mut observed = SourceObservation::default();
        let mut of_source: BTreeMap<&str, Vec<(ShardId, Vec<Cell>)>> = BTreeMap::new();
        for (shard, keys) in of_shard {
            match self.tables.get(&shard) {
                Some(table) => of_source.entry(&table.source).or_default().push((shard, keys)),
                None => {
                    _ = observed.failed.insert(shard, format!("no source has the table of shard {shard}"))
                }
            }
        }
        let batches = of_source.into_iter().map(|(source, shards)| self.read_source(source, shards));
        for part in join_all(batches).await {
            observed.rows.extend(part.rows);
            observed.places.extend(part.places);
            observed.seen.extend(part.seen);
            observed.failed.extend(part.failed);
        }
        observed
    }

    async fn read_source(&self, source: &str, shards: Vec<(ShardId, Vec<Cell>)>) -> SourceObservation {
        let mut observed = SourceObservation::default();
        let Some(connector) = self.sides.primaries.get(source) else { return observed };
        // The source reports watermarks in the epoch of the lanes; whether both name the same server is compared later.
        let epoch = match self.lanes.progress(source).await {
            Ok(lanes) => lanes.iter().map(|(_, progress)| progress.position.epoch()).max(),
            Err(_) => None,
        };
        let mut batches = batches(shards).into_iter().collect::<VecDeque<_>>();
        while let Some(batch) = batches.pop_front() {
            let keys: Vec<_> = (batch.iter())
                .map(|(shard, keys)| (self.tables[shard].identity.clone(), keys.clone()))
                .collect();
            let read = again(|| connector.rows(&keys, epoch.unwrap_or(FIRST_EPOCH))).await;
            match read.and_then(|chunk| self.add_chunk(source, &batch, &chunk, &mut observed)) {
                Ok(()) => {}
                // If one table of several fails, each is read alone, so that the others are read.
                Err(fault) if batch.len() > 1 && fault.class() != Class::Transient => {
                    batches.extend(batch.into_iter().map(|one| vec![one]))
                }
                Err(fault) => {
                    observed.failed.extend(batch.iter().map(|(shard, _)| (*shard, fault.to_string())));
                }
            }
        }
        observed
    }

    fn add_chunk(
        &self,
        source: &str,
        batch: &KeyBatch,
        chunk: &Chunk,
        observed: &mut SourceObservation,
    ) -> Result<(), Fault> {
        let broken = |error| {
            let subject = format!("source {source}");
            Fault::new(Code::Internal, subject, "rows cannot be read").caused_by(error)
        };
        let mut changes = codec::decode(&chunk.payload).map_err(broken)?;
        while let Some(change) = changes.next().map_err(broken)? {
            if let Action::Insert { after } = &change.action {
                self.sides
                    .projection
                    .claims(change.table, after, |row| self.collect(&row, &mut observed.rows));
            }
        }
        let place = (chunk.high, chunk.server.clone());
        let furthest = observed.places.entry(source.to_owned()).or_insert_with(|| place.clone());
        if furthest.1 != place.1 {
            return Err(Fault::new(
                Code::SourceUnreachable,
                format!("source {source}"),
                "another server took over",
            ));
        }
        furthest.0 = furthest.0.max(place.0);
        for (shard, _) in batch {
            let seen = observed.seen.entry(*shard).or_insert(chunk.low);
            *seen = chunk.low.min(*seen);
        }
        Ok(())
    }

    fn collect(&self, row: &Claimed<'_>, rows: &mut BTreeMap<SourceKey, Rows>) {
        let Some(key) = self.sides.projection.source_key(row.key) else { return };
        let owned = |cells: &[CellRef<'_>]| {
            cells.iter().map(|cell| CellRef::to_owned(*cell)).collect::<Box<[Cell]>>()
        };
        let key = SourceKey { shard: row.shard, key: key.to_owned() };
        rows.entry(key).or_default().insert((row.table, owned(row.key)), owned(row.values));
    }

    /// Reads the derived rows of all wanted source rows.
    async fn read_derived(&self, wanted: &CandidateBatch) -> Result<BTreeMap<SourceKey, Rows>, Fault> {
        let tables = self.sides.projection.tables();
        let of_target = |place: u32| {
            let sought = wanted.iter().flat_map(|(key, of_key)| {
                of_key.iter().map(|table| DerivedRowQuery {
                    table: *table,
                    shard: key.shard,
                    key: key.key.clone(),
                })
            });
            sought.filter(|sought| tables[sought.table as usize].target == place).collect::<Vec<_>>()
        };
        let batches = self.sides.targets.iter().zip(0u32..).map(async |(target, place)| {
            let (sought, mut rows) = (of_target(place), BTreeMap::new());
            for sought in sought.chunks(KEYS_A_QUERY) {
                let read = async || {
                    let mut found = BTreeMap::new();
                    target.rows(sought, &mut |row| self.collect(&row, &mut found)).await.map(|()| found)
                };
                for (key, found) in again(read).await? {
                    rows.entry(key).or_insert_with(Rows::new).extend(found);
                }
            }
            Ok::<_, Fault>(rows)
        });
        let mut all: BTreeMap<SourceKey, Rows> = BTreeMap::new();
        for rows in try_join_all(batches).await? {
            for (key, found) in rows {
                all.entry(key).or_default().extend(found);
            }
        }
        Ok(all)
    }

    /// Returns how far lanes are after the stores were read. It leaves out a source whose lanes do not answer, or one
    /// of whose lanes lacks what it had at the barrier: an operator may have set the lane back meanwhile.
    async fn applied(&self, places: &BTreeMap<String, (Lsn, ServerIdentity)>) -> Applied {
        let asked = places.iter().map(async |(source, (place, server))| {
            let lanes = self.lanes.progress(source).await.ok()?;
            if lanes.iter().any(|(_, lane)| hinders(lane, *place, server).is_some()) {
                return None;
            }
            Some((source, lanes))
        });
        let mut applied = Applied::default();
        for (source, lanes) in join_all(asked).await.into_iter().flatten() {
            let furthest = lanes.iter().map(|(_, lane)| lane.highest_change).max();
            applied.furthest.extend(furthest.map(|furthest| (source.clone(), furthest)));
            for (id, progress) in &lanes {
                let rereads = progress.refresh.iter().flat_map(|refresh| refresh.rereads.keys());
                for shard in rereads {
                    applied.owed.insert(*shard, self.owes(id, *shard));
                }
            }
        }
        applied
    }

    fn owes(&self, lane: &LaneId, shard: ShardId) -> String {
        let table = self.tables.get(&shard).map_or_else(
            || format!("the table of shard {shard}"),
            |table| format!("table {}.{}", table.identity.database, table.identity.table),
        );
        format!("lane {lane} is to read {table} again, whose rows changed without row events")
    }

    /// Waits until the lanes of each source have passed its position; returns the sources whose lanes have not, and
    /// why.
    async fn barrier(&self, places: &BTreeMap<String, (Lsn, ServerIdentity)>) -> BTreeMap<String, String> {
        let waits = places.iter().map(async |(source, (place, server))| {
            let hindered = |progress: &Progress| hinders(progress, *place, server);
            let ended = self.lane_wait.until(self.lanes, source, hindered).await;
            Some((source.clone(), ended.err()?))
        });
        join_all(waits).await.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(of: &[(u32, u64, &str)]) -> Rows {
        let cell = |text: &str| [Cell::Bytes(text.as_bytes().into())].into();
        of.iter().map(|(table, key, value)| ((*table, [Cell::UInt(*key)].into()), cell(value))).collect()
    }

    #[test]
    fn every_kind_of_disagreement_has_its_name() {
        let right = rows(&[(3, 7, "a")]);
        let judged = |found: &[(u32, u64, &str)]| judge(&right, &rows(found)).name();
        assert_eq!(judged(&[(3, 7, "a")]), "in_flight");
        assert_eq!(judged(&[]), "missing");
        assert_eq!(judged(&[(3, 7, "b")]), "stale");
        assert_eq!(judged(&[(4, 7, "a")]), "wrong_partition");
        assert_eq!(judged(&[(3, 7, "a"), (4, 7, "a")]), "in_two_partitions");
        assert_eq!(judge(&Rows::new(), &right).name(), "orphan");
        assert_eq!(judge(&Rows::new(), &Rows::new()).name(), "in_flight");
    }
}
