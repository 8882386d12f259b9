//! Stored derived rows: each is a claim of its source row, visited once, in pages of any size.

mod grounds;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anabranch_pipeline::ports::{DerivedRowQuery, DerivedRows, ForeignRow, ForeignRows, LaneStore};
use anabranch_pipeline::projections::{Defects, LaneScope, Projection};
use anabranch_pipeline::reconcile::remove_foreign;
use anabranch_pipeline::records::{Cell, CellRef, Claimed, DerivedRow, Flush, Progress};
use anabranch_schemas::change::{Action, Change, Entity, Row, TableIdentity, Value};
use anabranch_schemas::shard::ShardId;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

pub use self::grounds::{BirthdayServer, DocumentsServer, Ground, MappingServer};
use self::grounds::{BirthdayTwin, DocumentsTwin, MappingTwin};
use crate::derived::{lsn, table, user};
use crate::search::{device, shard};

const SHARDS: u32 = 5;

on_twin_and_both_kinds_of_server!(BirthdayTwin, BirthdayServer:
    pages_of_any_size_and_range_hold_every_row_once,
    all_rows_of_a_source_row_are_found_by_its_key,
    what_stands_through_all_pages_is_visited_whatever_comes_and_goes,
    rows_of_unknown_shards_are_found_and_removed_while_they_are_what_was_read,
);
on_twin!(mapping_twin, MappingTwin:
    pages_of_any_size_and_range_hold_every_row_once,
    all_rows_of_a_source_row_are_found_by_its_key,
    what_stands_through_all_pages_is_visited_whatever_comes_and_goes,
    rows_of_unknown_shards_are_found_and_removed_while_they_are_what_was_read,
);
on_server!(mapping_server, MappingServer:
    pages_of_any_size_and_range_hold_every_row_once,
    all_rows_of_a_source_row_are_found_by_its_key,
    what_stands_through_all_pages_is_visited_whatever_comes_and_goes,
    rows_of_unknown_shards_are_found_and_removed_while_they_are_what_was_read,
);
on_twin!(documents_twin, DocumentsTwin:
    pages_of_any_size_and_range_hold_every_row_once,
    all_rows_of_a_source_row_are_found_by_its_key,
    what_stands_through_all_pages_is_visited_whatever_comes_and_goes,
    rows_of_unknown_shards_are_found_and_removed_while_they_are_what_was_read,
);
on_server!(documents_server, DocumentsServer:
    pages_of_any_size_and_range_hold_every_row_once,
    all_rows_of_a_source_row_are_found_by_its_key,
    what_stands_through_all_pages_is_visited_whatever_comes_and_goes,
    rows_of_unknown_shards_are_found_and_removed_while_they_are_what_was_read,
);

/// A derived row that outlives its visit: table, shard, key, values.
pub type Found = (u32, ShardId, Vec<Cell>, Vec<Cell>);

pub fn found(claimed: Claimed<'_>) -> Found {
    let owned = |cells: &[CellRef<'_>]| cells.iter().map(|cell| CellRef::to_owned(*cell)).collect();
    (claimed.table, claimed.shard, owned(claimed.key), owned(claimed.values))
}

/// A row that a lane wrote, as a found row.
pub fn written(row: DerivedRow<'_>) -> Found {
    found(row.claimed().expect("a lane wrote it"))
}

/// Source rows, and the store that holds their claims.
pub struct Source<S> {
    lanes: Vec<(S, Progress, LaneScope)>,
    pub projection: Projection,
    /// (shard, key) → the row.
    rows: BTreeMap<(u32, u64), Row<'static>>,
    position: u64,
}

impl<S: LaneStore> Source<S> {
    pub async fn of(ground: &impl Ground<Store = S>) -> Self {
        let projection = ground.projection();
        let lanes = projection.tables().iter().map(|table| table.lane).max().unwrap() + 1;
        let mut opened = Vec::new();
        for lane in 0..lanes {
            let mut store = ground.lane(lane);
            let progress = store.load().await.unwrap();
            opened.push((store, progress, LaneScope { target: 0, lane }));
        }
        Self { lanes: opened, projection, rows: BTreeMap::new(), position: 0 }
    }

    fn table(&self, number: u32) -> TableIdentity<'static> {
        if self.projection.entity() == Entity::User { table(number) } else { shard(number) }
    }

    fn row(&self, key: u64, variant: u8) -> Row<'static> {
        if self.projection.entity() == Entity::User {
            return user(key, variant % 12 + 1, variant % 28 + 1);
        }
        let own = format!("BOX-{key}-{variant}").into_bytes();
        let mut device = device(key, &[("box_no", b"SHARED"), ("item_code", &own), ("sku_code", b"\xff'")]);
        // Text that is no UTF-8, empty text, and the shortest uuid.
        match key % 4 {
            0 => device[0] = Value::Bytes([b"\xfe-", key.to_string().as_bytes()].concat().into()),
            1 => device[1] = Value::Bytes(b"490154203237518".as_slice().into()),
            2 => device[4] = Value::Bytes(b"".as_slice().into()),
            _ => {}
        }
        device
    }

    /// Commits these rows; `None` deletes a row.
    pub async fn change(&mut self, changes: Vec<(u32, u64, Option<u8>)>) {
        let mut flushes: Vec<Flush> =
            self.lanes.iter().map(|(_, progress, _)| Flush::new(progress.clone())).collect();
        for (number, key, variant) in changes {
            self.position += 1;
            let after = variant.map(|variant| self.row(key, variant));
            let before = match after.clone() {
                Some(row) => self.rows.insert((number, key), row),
                None => self.rows.remove(&(number, key)),
            };
            let action = match (before, after) {
                (None, Some(after)) => Action::Insert { after },
                (Some(before), Some(after)) => Action::Update { before, after },
                (Some(before), None) => Action::Delete { before },
                (None, None) => continue,
            };
            let change = Change { lsn: lsn(self.position), table: &self.table(number), action };
            for ((.., scope), flush) in self.lanes.iter().zip(&mut flushes) {
                self.projection.project(&change, *scope, flush, &mut Defects::default());
            }
        }
        for ((store, progress, _), mut flush) in self.lanes.iter_mut().zip(flushes) {
            flush.progress.revision += 1;
            flush.progress.position = lsn(self.position);
            flush.progress.highest_position = lsn(self.position);
            store.commit(&flush).await.unwrap();
            *progress = flush.progress;
        }
    }

    /// Commits random rows in some shards.
    pub async fn fill(&mut self, random: &mut StdRng) {
        let rows = (0..60).map(|key| (random.random_range(0..SHARDS), key, Some(random.random())));
        self.change(rows.collect()).await;
    }

    pub fn claims(&self) -> BTreeSet<Found> {
        let mut claims = BTreeSet::new();
        for ((number, _), row) in &self.rows {
            self.projection.claims(&self.table(*number), row, |claim| assert!(claims.insert(found(claim))));
        }
        claims
    }
}

pub fn random() -> StdRng {
    let seed = rand::random();
    println!("seed {seed}");
    StdRng::seed_from_u64(seed)
}

pub fn whole() -> RangeInclusive<ShardId> {
    ShardId::from_u64(0).unwrap()..=ShardId::from_u64(u64::MAX >> 1).unwrap()
}

/// Reads all pages of a projection's tables; fails when a row comes twice.
pub async fn pages(
    rows: &impl DerivedRows,
    projection: &Projection,
    shards: &RangeInclusive<ShardId>,
    size: usize,
) -> BTreeSet<Found> {
    let (mut all, size) = (BTreeSet::new(), NonZeroUsize::new(size).unwrap());
    for table in (0..).take(projection.tables().len()) {
        let mut after = None;
        loop {
            let mut count = 0;
            let mut visit = |row: DerivedRow<'_>| {
                count += 1;
                let row = written(row);
                assert_eq!(row.0, table);
                assert!(shards.contains(&row.1) && all.insert(row.clone()), "{row:?}");
            };
            let next = rows.page(table, shards.clone(), after.as_ref(), size, &mut visit).await.unwrap();
            assert!(count <= size.get());
            assert!(next.is_none() || count > 0, "a page that goes on is not empty");
            after = next;
            if after.is_none() {
                break;
            }
        }
    }
    all
}

async fn pages_of_any_size_and_range_hold_every_row_once(ground: impl Ground) {
    let mut random = random();
    let (rows, mut source) = (ground.rows(), Source::of(&ground).await);
    assert!(pages(&rows, &source.projection, &whole(), 3).await.is_empty());
    source.fill(&mut random).await;
    let expected = source.claims();
    assert!(expected.len() >= 60);
    for size in [1, 7, 1000] {
        assert_eq!(pages(&rows, &source.projection, &whole(), size).await, expected, "{size} rows a page");
    }
    // Ranges that meet at an existing shard, and ranges that meet beside it.
    let cut = expected.iter().nth(random.random_range(0..expected.len())).unwrap().1;
    for cut in [cut.as_u64(), cut.as_u64() - 1] {
        let [last, first] = [cut, cut + 1].map(|number| ShardId::from_u64(number).unwrap());
        let (low, high) = (*whole().start()..=last, first..=*whole().end());
        let mut both = pages(&rows, &source.projection, &low, 5).await;
        both.extend(pages(&rows, &source.projection, &high, 5).await);
        assert_eq!(both, expected, "cut behind {cut}");
    }
    let some =
        (0..60).map(|key| (random.random_range(0..SHARDS), key, random.random_ratio(1, 2).then_some(3)));
    source.change(some.collect()).await;
    assert_eq!(
        pages(&rows, &source.projection, &whole(), 7).await,
        source.claims(),
        "what was deleted is no row"
    );
}

async fn all_rows_of_a_source_row_are_found_by_its_key(ground: impl Ground) {
    let mut random = random();
    let (rows, mut source) = (ground.rows(), Source::of(&ground).await);
    source.fill(&mut random).await;
    // A query after a commit sees its rows, even before a search does.
    for _ in 0..3 {
        let claims: Vec<Found> = source.claims().into_iter().collect();
        let key = |found: &Found| {
            let key: Vec<CellRef<'_>> = found.2.iter().map(Cell::borrowed).collect();
            CellRef::to_owned(source.projection.source_key(&key).unwrap())
        };
        let sought = |found: &Found, table| DerivedRowQuery { table, shard: found.1, key: key(found) };
        let mut some: Vec<DerivedRowQuery> = Vec::new();
        for found in &claims {
            if random.random_ratio(2, 3) {
                continue;
            }
            some.push(sought(found, found.0));
            // Another table of the layout, which may have no row.
            some.push(sought(found, random.random_range(0..source.projection.tables().len() as u32)));
        }
        // A key without a row.
        some.push(DerivedRowQuery {
            table: 0,
            shard: ShardId::of("x", "y", "z", 0),
            key: some[0].key.clone(),
        });
        some.push(some[0].clone());
        some.shuffle(&mut random);
        let expected: BTreeSet<Found> =
            claims.iter().filter(|found| some.contains(&sought(found, found.0))).cloned().collect();
        let mut seen = BTreeSet::new();
        rows.rows(&some, &mut |claimed| assert!(seen.insert(found(claimed)), "once")).await.unwrap();
        assert_eq!(seen, expected);
        rows.rows(&[], &mut |_| panic!("nothing was asked for")).await.unwrap();
        let next =
            (0..60).map(|key| (random.random_range(0..SHARDS), key, random.random_ratio(4, 5).then_some(9)));
        source.change(next.collect()).await;
    }
}

async fn what_stands_through_all_pages_is_visited_whatever_comes_and_goes(ground: impl Ground) {
    let mut random = random();
    let (rows, mut source) = (ground.rows(), Source::of(&ground).await);
    source.fill(&mut random).await;
    // Keys below this one are not deleted.
    const STAYS: u64 = 40;
    let keys: Vec<(u32, u64)> = source.rows.keys().copied().collect();
    let goes =
        keys.iter().filter(|(_, key)| *key >= STAYS).map(|(shard, key)| (*shard, *key, None)).collect();
    let before = source.claims();
    let size = NonZeroUsize::new(4).unwrap();
    let (mut seen, mut changes) = (Vec::new(), vec![goes]);
    let comes = (100..160).map(|key| (random.random_range(0..SHARDS), key, Some(1)));
    changes.push(comes.collect());
    for table in (0..).take(source.projection.tables().len()) {
        let mut after = None;
        loop {
            let mut visit = |row: DerivedRow<'_>| seen.push(written(row));
            after = rows.page(table, whole(), after.as_ref(), size, &mut visit).await.unwrap();
            if after.is_none() {
                break;
            }
            if let Some(changes) = changes.pop() {
                source.change(changes).await;
            }
        }
    }
    let stays: BTreeSet<Found> = before.intersection(&source.claims()).cloned().collect();
    assert!(stays.len() >= 40);
    let once: BTreeSet<Found> = seen.iter().cloned().collect();
    assert_eq!(once.len(), seen.len(), "nothing twice");
    assert!(once.is_superset(&stays), "{:?}", stays.difference(&once));
}

/// Reads all rows of shards that are not known, table by table.
pub async fn foreign(
    rows: &impl ForeignRows,
    projection: &Projection,
    known: &BTreeSet<ShardId>,
    size: usize,
) -> Vec<Vec<ForeignRow>> {
    let (mut all, size) = (Vec::new(), NonZeroUsize::new(size).unwrap());
    for table in (0..).take(projection.tables().len()) {
        let (mut of_table, mut after) = (Vec::new(), None);
        loop {
            let (page, next) = rows.foreign(table, known, after.as_ref(), size).await.unwrap();
            assert!(page.len() <= size.get() && page.iter().all(|row| row.table == table));
            of_table.extend(page);
            after = next;
            if after.is_none() {
                break;
            }
        }
        all.push(of_table);
    }
    all.retain(|of_table| !of_table.is_empty());
    all
}

async fn rows_of_unknown_shards_are_found_and_removed_while_they_are_what_was_read(ground: impl Ground) {
    let mut random = random();
    let (rows, mut source) = (ground.rows(), Source::of(&ground).await);
    source.fill(&mut random).await;
    // At least one row of each shard.
    source.change((0..SHARDS).map(|shard| (shard, 1_000, Some(1))).collect()).await;
    let known: BTreeSet<ShardId> = (0..SHARDS - 2).map(|number| source.table(number).shard).collect();
    let expected: BTreeSet<_> =
        source.claims().into_iter().filter(|found| !known.contains(&found.1)).collect();
    let expected: BTreeSet<_> =
        expected.into_iter().map(|(table, shard, key, _)| (table, shard, key)).collect();
    for size in [1, 4, 1000] {
        let all = foreign(&rows, &source.projection, &known, size).await;
        let all: Vec<_> = all.iter().flatten().collect();
        let keys = all.iter().map(|row| (row.table, row.owner.unwrap(), row.key.to_vec()));
        assert_eq!(
            (keys.collect::<BTreeSet<_>>(), all.len()),
            (expected.clone(), expected.len()),
            "{size} a page"
        );
        assert!(all.iter().all(|row| row.shard == row.owner.map(ShardId::as_u64)));
    }
    let whole_store: BTreeSet<ShardId> = (0..SHARDS).map(|number| source.table(number).shard).collect();
    assert!(foreign(&rows, &source.projection, &whole_store, 7).await.is_empty());

    // A lane writes all rows of one of the two shards anew before the removal: its table has been made meanwhile.
    let made = source.table(SHARDS - 2).shard;
    let again: Vec<_> = source.rows.keys().filter(|(number, _)| *number == SHARDS - 2).copied().collect();
    let all = |variant| again.iter().map(|(number, key)| (*number, *key, variant)).collect();
    source.change(all(Some(29))).await;
    let read = foreign(&rows, &source.projection, &known, 50).await;
    source.change(all(None)).await;
    source.change(all(Some(29))).await;
    let mut removed = 0;
    for of_table in &read {
        removed += rows.remove(of_table).await.unwrap();
    }
    let gone = source.table(SHARDS - 1).shard;
    assert_eq!(removed, expected.iter().filter(|(_, shard, _)| *shard == gone).count() as u64);
    let stays: BTreeSet<Found> = source.claims().into_iter().filter(|found| found.1 != gone).collect();
    assert!(stays.iter().any(|found| found.1 == made));
    assert_eq!(pages(&rows, &source.projection, &whole(), 1000).await, stays);
    for of_table in &read {
        assert_eq!(rows.remove(of_table).await.unwrap(), 0, "once");
    }
}

/// Sources that are asked twice: at first they have no table of a shard, and then one is made.
#[tokio::test(start_paused = true)]
async fn rows_of_a_table_that_was_made_while_they_were_read_are_not_removed() {
    let ground = BirthdayTwin::start().await;
    let (rows, mut source) = (ground.rows(), Source::of(&ground).await);
    source.fill(&mut random()).await;
    source.change((0..SHARDS).map(|shard| (shard, 1_000, Some(1))).collect()).await;
    let [made, gone] = [SHARDS - 2, SHARDS - 1].map(|number| source.table(number).shard);
    let of = |shard: ShardId| source.claims().iter().filter(|found| found.1 == shard).count() as u64;
    let asked = AtomicU32::new(0);
    let known = async || {
        let has_made = asked.fetch_add(1, Ordering::SeqCst) > 0;
        let numbers = 0..if has_made { SHARDS - 1 } else { SHARDS - 2 };
        Ok(numbers.map(|number| source.table(number).shard).collect())
    };
    let (targets, projection) = ([Arc::new(rows.clone())], &source.projection);
    let remove = async |is_rehearsal| {
        asked.store(0, Ordering::SeqCst);
        let mut reported = 0;
        let removed =
            remove_foreign((projection, &targets), &known, |_| true, is_rehearsal, |_| reported += 1)
                .await
                .unwrap();
        (removed.found, removed.removed, reported)
    };
    assert_eq!(remove(true).await, (of(gone), 0, of(gone)));
    assert_eq!(
        pages(&rows, projection, &whole(), 1000).await,
        source.claims(),
        "a rehearsal removes nothing"
    );
    assert_eq!(remove(false).await, (of(gone), of(gone), of(gone)));
    let stays: BTreeSet<Found> = source.claims().into_iter().filter(|found| found.1 != gone).collect();
    assert!(of(made) > 0 && pages(&rows, projection, &whole(), 1000).await == stays);
    assert_eq!(remove(false).await, (0, 0, 0));
}
