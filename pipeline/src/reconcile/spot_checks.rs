//! Spot checks compare some changed keys again between reconciliations, by default after 1, 5 and 10 minutes.
//!
//! A log reader takes the keys from the source's stream, from its present end on. For each second and store it chooses
//! the keys with the lowest seeded hashes: at most a fixed number, whatever the rate of changes. Each check is the
//! recheck of a reconciliation (`recheck.rs`) with a shorter wait: a lane that has not come so far is late, and its
//! keys are unreadable. Spot checks repair nothing. Every key goes on to the next check, whatever its verdict, so an
//! alarm can wait for the last one.
//!
//! Changes and keys for which there is no time or memory are only counted. No lane waits for a spot check.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anabranch_schemas::change::Change;
use anabranch_schemas::codec::{self, CodecError};
use anabranch_schemas::shard::ShardId;
use futures::future::join_all;
use tokio::time::{Instant, MissedTickBehavior, interval};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::candidates::{CandidateBatch, SourceKey, hash};
use super::lane_wait::LaneWait;
use super::recheck::{Recheck, Verdict};
use super::scan::{Sides, SourceTable};
use crate::config::SpotCheckConfig;
use crate::deliver::is_hole;
use crate::error::Fault;
use crate::ports::{DerivedRows, Lanes, Log, LogMessage, LogReader, ReadFrom, RowSource};
use crate::records::CellRef;

/// The interval whose keys are chosen together and checked together.
const SECOND: Duration = Duration::from_secs(1);
/// Changes of a second from which keys are chosen: a small part of what a processor decodes in a second. The message
/// that reaches this number is still decoded; later ones are skipped.
const CHANGES_A_SECOND: u64 = 20_000;
/// Keys that wait for a check, at most: some ten megabytes.
const WAITING_MAX: usize = 50_000;
/// Keys after which a check takes no further second; it always takes whole seconds.
const CHECK_KEYS: usize = 2_000;
/// Pause before a stream that was lost is opened again.
const PAUSE: Duration = Duration::from_secs(1);

/// A store whose changed keys are checked.
pub struct CheckedStore<S, D, L> {
    pub name: String,
    pub sides: Sides<S, D>,
    pub lanes: L,
}

/// An event that the spot checks report.
#[derive(Debug)]
pub enum SpotCheckEvent<'a> {
    /// A key was checked. With [`Verdict::InFlight`] the store equals the source.
    Checked { store: &'a str, after: Duration, table: &'a SourceTable, key: &'a SourceKey, verdict: Verdict },
    /// Number of changes that were skipped unread and of chosen keys that were dropped.
    Skipped(u64),
}

/// The spot checks of one source, in all stores that are made from its changes.
pub struct SpotChecks<'a, S, D, L, G> {
    pub source: &'a str,
    pub log: &'a G,
    pub stores: &'a [CheckedStore<S, D, L>],
    pub config: &'a SpotCheckConfig,
    pub lane_wait: LaneWait,
    pub on_event: &'a (dyn Fn(SpotCheckEvent<'_>) + Sync),
}

impl<S: RowSource + 'static, D: DerivedRows + 'static, L: Lanes, G: Log> SpotChecks<'_, S, D, L, G> {
    /// Runs the spot checks until something fails; keys that still wait for a check are then forgotten.
    pub async fn run(&self) -> Result<(), Fault> {
        let waiting = Mutex::new(Waiting::new(self.config.after.len()));
        tokio::select! {
            ended = self.collect(&waiting) => ended,
            () = self.check_due_keys(&waiting) => Ok(()),
        }
    }

    /// Reads the stream and chooses keys of each second.
    async fn collect(&self, waiting: &Mutex<Waiting>) -> Result<(), Fault> {
        let mut sample = Sample::new(self.stores.len());
        let mut reader = self.open().await?;
        let mut seconds = interval(SECOND);
        seconds.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                message = reader.next() => match message {
                    Ok(message) => self.sample_message(&message, &mut sample),
                    Err(fault) if is_hole(&fault) => {
                        tracing::warn!(
                            source = self.source, %fault,
                            "the spot checks continue at the end of the stream"
                        );
                        tokio::time::sleep(PAUSE).await;
                        reader = self.open().await?;
                    }
                    Err(fault) => return Err(fault),
                },
                _ = seconds.tick() => {
                    let skipped = lock(waiting).add(sample.end_second(Instant::now()));
                    if skipped > 0 {
                        (self.on_event)(SpotCheckEvent::Skipped(skipped));
                    }
                }
            }
        }
    }

    /// Opens the stream at its present end; tries again when that end is gone before it is read from.
    async fn open(&self) -> Result<G::Reader, Fault> {
        loop {
            let from = match self.log.end(self.source).await? {
                Some(end) => ReadFrom::After { sequence: end.sequence, id: end.id },
                None => ReadFrom::At(anabranch_schemas::lsn::Lsn::ZERO),
            };
            match self.log.reader(self.source, from).await {
                Err(fault) if is_hole(&fault) => tokio::time::sleep(PAUSE).await,
                opened => return opened,
            }
        }
    }

    fn sample_message(&self, message: &LogMessage, sample: &mut Sample) {
        let changes = message.entry.envelope.changes;
        // A position message has no payload.
        if changes == 0 {
            return;
        }
        if sample.seen >= CHANGES_A_SECOND {
            sample.skipped += u64::from(changes);
            return;
        }
        sample.seen += u64::from(changes);
        let read = || -> Result<(), CodecError> {
            let mut changes = codec::decode(&message.payload)?;
            while let Some(change) = changes.next()? {
                for (place, store) in self.stores.iter().enumerate() {
                    sample.choose(self, place, &store.sides, &change);
                }
            }
            Ok(())
        };
        // The lanes report the same message and its remedy.
        if let Err(error) = { read }() {
            tracing::debug!(
                source = self.source,
                error = &error as &dyn std::error::Error,
                "a message cannot be read"
            );
        }
    }

    /// Checks due keys, without end.
    async fn check_due_keys(&self, waiting: &Mutex<Waiting>) {
        loop {
            tokio::time::sleep(SECOND).await;
            for (place, after) in self.config.after.iter().enumerate() {
                loop {
                    let due = lock(waiting).due(place, *after, Instant::now());
                    if due.is_empty() {
                        break;
                    }
                    let checks = self
                        .stores
                        .iter()
                        .enumerate()
                        .map(|(store, of)| self.check_keys(of, store, &due, *after));
                    join_all(checks).await;
                    lock(waiting).queue_next(place, due);
                }
            }
        }
    }

    async fn check_keys(
        &self,
        store: &CheckedStore<S, D, L>,
        place: usize,
        due: &[SampledKeys],
        after: Duration,
    ) {
        let (mut window, mut tables) = (CandidateBatch::new(), BTreeMap::<ShardId, SourceTable>::new());
        for key in due.iter().flat_map(|chosen| chosen.keys[place].values()) {
            window.entry(key.key.clone()).or_default().extend(&key.derived);
            tables.insert(key.key.shard, key.table.clone());
        }
        if window.is_empty() {
            return;
        }
        let recheck =
            Recheck { sides: &store.sides, lanes: &store.lanes, tables: &tables, lane_wait: &self.lane_wait };
        let keys: Vec<SourceKey> = window.keys().cloned().collect();
        let verdicts = match recheck.judge(window).await {
            Ok(judged) => {
                judged.unread.iter().for_each(|why| {
                    tracing::debug!(store = store.name, why, "a changed row was not checked")
                });
                judged.verdicts.into_iter().map(|(key, (verdict, _))| (key, verdict)).collect()
            }
            Err(fault) => {
                tracing::debug!(store = store.name, %fault, "a changed row was not checked");
                BTreeMap::new()
            }
        };
        for key in &keys {
            let verdict = verdicts.get(key).copied().unwrap_or(Verdict::Unreadable);
            (self.on_event)(SpotCheckEvent::Checked {
                store: &store.name,
                after,
                table: &tables[&key.shard],
                key,
                verdict,
            });
        }
    }
}

/// A source row that changed.
#[derive(Debug)]
struct ChangedKey {
    key: SourceKey,
    /// Derived tables that its row was in before the change, or should be in after it.
    derived: BTreeSet<u32>,
    table: SourceTable,
}

/// The keys that were chosen of one second.
#[derive(Debug)]
struct SampledKeys {
    seen_at: Instant,
    /// The chosen keys of each store, by the hash that they were chosen for.
    keys: Vec<BTreeMap<u64, ChangedKey>>,
    /// Changes of that second that were skipped unread.
    skipped: u64,
}

impl SampledKeys {
    fn len(&self) -> usize {
        self.keys.iter().map(BTreeMap::len).sum()
    }
}

/// Chooses among the keys of a second; each has the same chance, however often it changes.
struct Sample {
    /// Seed of the hashes, new each second, so that chance leaves out no key for long.
    seed: u64,
    keys: Vec<BTreeMap<u64, ChangedKey>>,
    seen: u64,
    skipped: u64,
}

impl Sample {
    fn new(stores: usize) -> Self {
        let keys = (0..stores).map(|_| BTreeMap::new()).collect();
        Self { seed: rand::random(), keys, seen: 0, skipped: 0 }
    }

    fn choose<S, D, L, G>(
        &mut self,
        watch: &SpotChecks<'_, S, D, L, G>,
        place: usize,
        sides: &Sides<S, D>,
        change: &Change<'_, '_>,
    ) {
        // The withdrawal of a shard table names no keys.
        let Some((before, after)) = change.action.images() else { return };
        if change.table.entity != sides.projection.entity() {
            return;
        }
        for row in [before, after].into_iter().flatten() {
            sides.projection.claims(change.table, row, |claimed| {
                if let Some(key) = sides.projection.source_key(claimed.key) {
                    self.offer(place, watch.config.keys_a_second, claimed.shard, key, claimed.table, || {
                        let identity = change.table.clone().into_owned();
                        SourceTable { source: watch.source.to_owned(), identity }
                    });
                }
            });
        }
    }

    fn offer(
        &mut self,
        place: usize,
        most: usize,
        shard: ShardId,
        key: CellRef<'_>,
        derived: u32,
        table: impl FnOnce() -> SourceTable,
    ) {
        let (keys, seed) = (&mut self.keys[place], self.seed ^ shard.as_u64());
        let hash = xxh3_64_with_seed(&hash(key).to_le_bytes(), seed);
        if keys.len() >= most && keys.last_key_value().is_none_or(|(highest, _)| hash > *highest) {
            return;
        }
        let known = keys.entry(hash).or_insert_with(|| {
            let key = SourceKey { shard, key: key.to_owned() };
            ChangedKey { key, derived: BTreeSet::from([derived]), table: table() }
        });
        known.derived.insert(derived);
        if keys.len() > most {
            keys.pop_last();
        }
    }

    /// Ends the second: returns its chosen keys, and begins the next one.
    fn end_second(&mut self, now: Instant) -> SampledKeys {
        let Self { keys, skipped, .. } = std::mem::replace(self, Self::new(self.keys.len()));
        SampledKeys { seen_at: now, keys, skipped }
    }
}

/// Chosen keys that wait for their checks: one queue for each check, the oldest first.
struct Waiting {
    queues: Vec<VecDeque<SampledKeys>>,
    keys: usize,
}

impl Waiting {
    fn new(checks: usize) -> Self {
        Self { queues: (0..checks).map(|_| VecDeque::new()).collect(), keys: 0 }
    }

    /// Queues the chosen keys for the first check; returns how many changes and keys will not be checked.
    fn add(&mut self, chosen: SampledKeys) -> u64 {
        let (skipped, keys) = (chosen.skipped, chosen.len());
        if keys == 0 {
            return skipped;
        }
        if self.keys + keys > WAITING_MAX {
            return skipped + keys as u64;
        }
        self.keys += keys;
        self.queues[0].push_back(chosen);
        skipped
    }

    /// Takes keys that are due for a check now, about [`CHECK_KEYS`] of them.
    fn due(&mut self, check: usize, after: Duration, now: Instant) -> Vec<SampledKeys> {
        let (mut due, mut keys) = (Vec::new(), 0);
        while keys < CHECK_KEYS
            && let Some(chosen) = self.queues[check].pop_front_if(|chosen| chosen.seen_at + after <= now)
        {
            keys += chosen.len();
            due.push(chosen);
        }
        due
    }

    /// Queues checked keys for the next check; drops them after the last.
    fn queue_next(&mut self, check: usize, chosen: Vec<SampledKeys>) {
        match self.queues.get_mut(check + 1) {
            Some(next) => next.extend(chosen),
            None => self.keys -= chosen.iter().map(SampledKeys::len).sum::<usize>(),
        }
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use anabranch_schemas::change::{Entity, TableIdentity};

    use super::*;

    fn offer(sample: &mut Sample, key: u64, derived: u32) {
        let shard = ShardId::of("s", "d", "t", 0);
        let (database, table) = (Cow::Borrowed("d"), Cow::Borrowed("t"));
        let identity = TableIdentity { entity: Entity::User, shard, database, table };
        sample.offer(0, 20, shard, CellRef::UInt(key), derived, || SourceTable {
            source: "s".to_owned(),
            identity,
        });
    }

    #[test]
    fn of_each_second_so_many_keys_are_chosen_whatever_the_rate() {
        let mut sample = Sample::new(1);
        let mut chosen_ever = BTreeSet::new();
        for _ in 0..200 {
            (0..1_000).for_each(|key| offer(&mut sample, key, 1));
            // One key changes a thousand times more: it has the same chance, and takes one entry.
            (0..1_000).for_each(|_| offer(&mut sample, 7, 2));
            let chosen = sample.end_second(Instant::now());
            assert_eq!(chosen.len(), 20);
            let hot = chosen.keys[0].values().find(|changed| changed.key.key.borrowed() == CellRef::UInt(7));
            assert!(hot.is_none_or(|hot| hot.derived == BTreeSet::from([1, 2])), "{hot:?}");
            chosen_ever.extend(chosen.keys[0].values().map(|changed| changed.key.clone()));
        }
        // 4,000 choices among 1,000 keys leave out some 20 of them.
        assert!(chosen_ever.len() > 900, "{} keys", chosen_ever.len());
        (0..5).for_each(|key| offer(&mut sample, key, 1));
        assert_eq!(sample.end_second(Instant::now()).len(), 5);
    }

    #[test]
    fn what_is_chosen_waits_for_each_look_in_turn_and_memory_is_bounded() {
        let (mut waiting, begin) = (Waiting::new(2), Instant::now());
        let chosen = |second: u64| {
            let mut sample = Sample::new(1);
            (0..20).for_each(|key| offer(&mut sample, key, 1));
            sample.end_second(begin + SECOND * second as u32)
        };
        let minute = Duration::from_secs(60);
        (0..5).for_each(|second| assert_eq!(waiting.add(chosen(second)), 0));
        assert!(waiting.due(0, minute, begin + minute - SECOND).is_empty());
        let due = waiting.due(0, minute, begin + minute + SECOND);
        assert_eq!(due.len(), 2);
        waiting.queue_next(0, due);
        assert_eq!((waiting.queues[0].len(), waiting.queues[1].len(), waiting.keys), (3, 2, 100));
        let due = waiting.due(1, minute * 5, begin + minute * 6);
        waiting.queue_next(1, due);
        assert_eq!((waiting.queues[1].len(), waiting.keys), (0, 60));
        let skipped: u64 = (0..3_000).map(|second| waiting.add(chosen(second))).sum();
        assert!(waiting.keys <= WAITING_MAX && skipped > 0, "{} keys, {skipped} skipped", waiting.keys);
    }
}
