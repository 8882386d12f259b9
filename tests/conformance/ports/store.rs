//! The store of a lane: fence, versions, order.

mod documents;

use std::collections::BTreeSet;
use std::sync::Arc;

use anabranch_connectors::memory::{MemoryStore, MemoryTarget, StoreKind, Weather};
use anabranch_connectors::mysql::store::MysqlLane;
use anabranch_pipeline::error::{Class, Code};
use anabranch_pipeline::ports::LaneStore;
use anabranch_pipeline::projections::{LaneScope, Projection};
use anabranch_pipeline::records::{
    Cell, Flush, KEYS_MAX, Mutation, MutationAction, Progress, Refresh, Replacement, ScanCursor, Scope,
    TableRefresh,
};
use anabranch_schemas::change::Action;
use anabranch_schemas::lsn::Lsn;

use crate::derived::{Rows, StoreSite, flush_of, insert, lsn, table, update, user};
use crate::source::DatabaseKind;
use documents::Documents;

/// One target with one lane for source-a, which owns all tables.
pub trait Ground {
    type Store: LaneStore;

    async fn start() -> Self;
    /// The lane of one process, and its progress.
    async fn lane(&self) -> (Self::Store, Progress);
    fn projection(&self) -> Projection;
    /// `database.table`, shard, user id → birthday, version.
    async fn rows(&self) -> Rows;
}

pub struct Twin {
    projection: Projection,
    target: MemoryTarget,
}

impl Twin {
    fn store_kind(store_kind: StoreKind) -> Self {
        let config = crate::nats::parse("nats://x:x@127.0.0.1:1", "/none");
        let mut birthday = config.projections[0].clone();
        birthday.lanes = std::num::NonZeroU32::MIN;
        Self {
            projection: Projection::new(&birthday),
            target: MemoryTarget::new(Weather::calm(), store_kind),
        }
    }
}

/// The twin that keeps documents.
pub struct DocumentsTwin(Twin);

impl Ground for DocumentsTwin {
    type Store = MemoryStore;

    async fn start() -> Self {
        Self(Twin::store_kind(StoreKind::Documents))
    }

    async fn lane(&self) -> (MemoryStore, Progress) {
        self.0.lane().await
    }

    fn projection(&self) -> Projection {
        self.0.projection()
    }

    async fn rows(&self) -> Rows {
        self.0.rows().await
    }
}

impl Ground for Twin {
    type Store = MemoryStore;

    async fn start() -> Self {
        Self::store_kind(StoreKind::Rows)
    }

    async fn lane(&self) -> (MemoryStore, Progress) {
        let id = anabranch_pipeline::records::LaneId {
            projection: "birthday".to_owned(),
            target: "target".to_owned(),
            source: "source-a".to_owned(),
            lane: 0,
        };
        let tables: BTreeSet<u32> = self.projection.target_tables(0).map(|(index, _)| index).collect();
        let mut store = self.target.lane(id, Arc::new(tables));
        let progress = store.load().await.unwrap();
        (store, progress)
    }

    fn projection(&self) -> Projection {
        self.projection.clone()
    }

    async fn rows(&self) -> Rows {
        let row =
            |((table, shard, key), (version, values)): (_, (anabranch_schemas::lsn::Lsn, Box<[Cell]>))| {
                let (table, key): (u32, Box<[Cell]>) = (table, key);
                let ([Cell::UInt(user)], [Cell::Bytes(birthday)]) = (&*key, &*values) else {
                    panic!("{key:?} {values:?}")
                };
                let derived = &self.projection.tables()[table as usize].derived;
                let name = format!("{}.{}", derived.database, derived.table);
                let shard: anabranch_schemas::shard::ShardId = shard;
                let birthday = String::from_utf8(birthday.to_vec()).unwrap();
                ((name, shard.as_u64(), *user), (birthday, version.as_u64(), 0))
            };
        self.target.rows().into_iter().map(row).collect()
    }
}

pub struct Server(StoreSite);

impl Server {
    pub async fn further(kind: DatabaseKind) -> Option<Self> {
        Some(Self::of(StoreSite::further(kind).await?).await)
    }

    async fn of(site: StoreSite) -> Self {
        let site = StoreSite { lanes: 1, ..site };
        site.target("target-a").setup().await.unwrap();
        Self(site)
    }
}

impl Ground for Server {
    type Store = MysqlLane;

    async fn start() -> Self {
        Self::of(StoreSite::new().await).await
    }

    async fn lane(&self) -> (MysqlLane, Progress) {
        self.0.lane("source-a", 0).await
    }

    fn projection(&self) -> Projection {
        self.0.projection()
    }

    async fn rows(&self) -> Rows {
        self.0.rows().await
    }
}

/// `(table, birthday, lsn)` of each row of a user.
async fn rows_of(ground: &impl Ground, user_id: u64) -> Vec<(String, String, u64)> {
    let name = |table: &str| table.split_once('.').unwrap().1.to_owned();
    let rows = ground.rows().await.into_iter().filter(|((_, _, user), _)| *user == user_id);
    rows.map(|((table, ..), (birthday, lsn, _))| (name(&table), birthday, lsn)).collect()
}

/// One lane, and the flushes that advance it.
struct Writer<S> {
    store: S,
    progress: Progress,
    projection: Projection,
}

impl<S: LaneStore> Writer<S> {
    async fn open(ground: &impl Ground<Store = S>) -> Self {
        let (store, progress) = ground.lane().await;
        Self { store, progress, projection: ground.projection() }
    }

    fn flush(&self, changes: Vec<(u64, u32, Action<'static>)>) -> Flush {
        flush_of(&self.projection, LaneScope { target: 0, lane: 0 }, &self.progress, changes)
    }

    async fn commit(&mut self, changes: Vec<(u64, u32, Action<'static>)>) {
        let flush = self.flush(changes);
        self.commit_flush(flush).await;
    }

    async fn commit_flush(&mut self, flush: Flush) {
        self.store.commit(&flush).await.unwrap();
        self.progress = flush.progress;
    }
}

/// Every store, with the same tests.
macro_rules! on_every_store {
    ($($test:ident),+ $(,)?) => {
        on_twin_and_both_kinds_of_server!(Twin, Server: $($test),+);
        on_twin!(documents_twin, DocumentsTwin: $($test),+);
        on_server!(search, Documents: $($test),+);
    };
}

on_every_store!(
    what_was_committed_is_read_back_whole,
    progress_without_rows_is_stored_too,
    a_stale_writer_is_fenced_and_changes_nothing,
    an_older_mutation_neither_overwrites_nor_deletes_a_newer_row,
    the_value_of_an_older_version_is_not_taken,
    each_row_of_a_multi_row_delete_has_its_own_version,
    the_last_mutation_of_a_claim_wins_and_a_move_over_three_days_leaves_one_row,
    a_withdrawal_takes_one_shards_older_claims_out_of_every_table_of_the_lane,
    each_shard_that_has_rows_is_named_for_every_writer,
    of_what_is_replaced_exactly_what_is_written_stands_afterwards_whatever_stood,
);

// One test of each statement that a lane sends: fence, progress, rows under versions, withdrawal, replacement.
on_further_server!(mariadb_11, MariaDb11, Server:
    what_was_committed_is_read_back_whole,
    a_stale_writer_is_fenced_and_changes_nothing,
    an_older_mutation_neither_overwrites_nor_deletes_a_newer_row,
    a_withdrawal_takes_one_shards_older_claims_out_of_every_table_of_the_lane,
    each_shard_that_has_rows_is_named_for_every_writer,
    of_what_is_replaced_exactly_what_is_written_stands_afterwards_whatever_stood,
);

on_twin!(documents_twin_alone, DocumentsTwin:
    what_a_withdrawal_swallowed_is_not_brought_by_who_comes_late,
    what_a_replay_from_nothing_removes_comes_again_in_its_old_version,
);
on_server!(search_alone, Documents:
    what_a_withdrawal_swallowed_is_not_brought_by_who_comes_late,
    what_a_replay_from_nothing_removes_comes_again_in_its_old_version,
);

async fn what_was_committed_is_read_back_whole(ground: impl Ground) {
    let mut writer = Writer::open(&ground).await;
    assert_eq!(writer.progress, Progress::default());
    let mut flush = writer.flush(vec![(5, 0, insert(user(7, 2, 29)))]);
    flush.progress.resume.file = "binlog'ü;.000007".into();
    flush.progress.resume.position = 1 << 40;
    flush.progress.resume.gtid_set = "0-1-42,1-2-7".into();
    flush.progress.resume.read_end = Some("7:4096:0-1-50,1-2-7".parse().unwrap());
    flush.progress.resume.partial = Some("0-1-51".into());
    flush.progress.withdrawals = "1:7:160=1a,2b;1:7:160-1:7:480=3c".parse().unwrap();
    flush.progress.server.flavor = "mariadb".into();
    flush.progress.server.id = "1".into();
    flush.progress.message = Some((u64::MAX / 2, "attempt-1".into()));
    flush.progress.committed_at_us = 1_700_000_000_000_001;
    flush.progress.rows = 1;
    flush.progress.highest_change = lsn(6);
    let key = ScanCursor([0, 39, 255].repeat(1000).into());
    let table =
        TableRefresh { shard: table(0).shard, first: lsn(3), chunks: 7, after: Some(key), is_reread: true };
    let refresh = Refresh {
        done: Some(crate::derived::table(1).shard),
        table: Some(table),
        rows: 9,
        rereads: [(crate::derived::table(0).shard, lsn(2)), (crate::derived::table(1).shard, lsn(4))].into(),
        ..Refresh::new(Scope::Source)
    };
    flush.progress.refresh = Some(refresh);
    flush.progress.was_refreshed = true;
    writer.commit_flush(flush).await;
    assert_eq!(writer.store.load().await.unwrap(), writer.progress);
    let mut flush = writer.flush(vec![]);
    let keys = vec![Cell::Bytes(vec![0; 64].into()); KEYS_MAX];
    let keys = Refresh::new(Scope::Keys([(crate::derived::table(1).shard, keys)].into()));
    flush.progress.refresh = Some(Refresh::with_every_table(Some(keys)));
    flush.progress.beginning = 7;
    writer.commit_flush(flush).await;
    assert_eq!(writer.store.load().await.unwrap(), writer.progress);
    assert_eq!(rows_of(&ground, 7).await, [("birthday_0229".into(), "02-29".into(), 5)]);
    let mut flush = writer.flush(vec![]);
    flush.progress.refresh = None;
    writer.commit_flush(flush).await;
    assert_eq!(writer.store.load().await.unwrap(), writer.progress);
}

async fn progress_without_rows_is_stored_too(ground: impl Ground) {
    let mut writer = Writer::open(&ground).await;
    let mut flush = writer.flush(vec![]);
    flush.progress.position = lsn(77);
    writer.commit_flush(flush).await;
    assert_eq!(writer.store.load().await.unwrap().position, lsn(77));
}

async fn a_stale_writer_is_fenced_and_changes_nothing(ground: impl Ground) {
    let (mut stale, mut current) = (Writer::open(&ground).await, Writer::open(&ground).await);
    current.commit(vec![(1, 0, insert(user(1, 1, 1)))]).await;
    let before = ground.rows().await;

    let zombie = stale.flush(vec![
        (9, 0, insert(user(2, 1, 1))),
        (9, 0, Action::Delete { before: user(1, 1, 1) }),
        (9, 0, Action::Withdraw),
    ]);
    let fault = stale.store.commit(&zombie).await.unwrap_err();
    assert_eq!((fault.code(), fault.class()), (Code::TargetFenced, Class::Transient));
    assert_eq!(ground.rows().await, before);
    assert_eq!(stale.store.load().await.unwrap(), current.progress, "the connection still works");
}

async fn an_older_mutation_neither_overwrites_nor_deletes_a_newer_row(ground: impl Ground) {
    let mut writer = Writer::open(&ground).await;
    for (number, action) in [
        (10, insert(user(1, 1, 1))),
        (5, update(user(1, 1, 1), user(1, 1, 1))),
        (9, Action::Delete { before: user(1, 1, 1) }),
    ] {
        writer.commit(vec![(number, 0, action)]).await;
        let found = rows_of(&ground, 1).await;
        assert_eq!(found, [("birthday_0101".into(), "01-01".into(), 10)], "after {number}");
    }
    // One version is one event: within it the log's order decides.
    for (number, action, expected) in [
        (10, Action::Delete { before: user(1, 1, 1) }, 0),
        (10, insert(user(1, 1, 1)), 1),
        (11, Action::Delete { before: user(1, 1, 1) }, 0),
    ] {
        writer.commit(vec![(number, 0, action)]).await;
        assert_eq!(rows_of(&ground, 1).await.len(), expected, "after {number}");
    }
}

async fn the_value_of_an_older_version_is_not_taken(ground: impl Ground) {
    let mut writer = Writer::open(&ground).await;
    // A birthday table has one value for all rows, so other values are made up here.
    for (version, value, expected) in [(5, "aa-aa", "aa-aa"), (4, "bb-bb", "aa-aa"), (6, "cc-cc", "cc-cc")] {
        let mut flush = writer.flush(vec![]);
        flush.push(Mutation {
            table: 0,
            shard: table(0).shard,
            key: Box::new([Cell::UInt(1)]),
            lsn: lsn(version),
            action: MutationAction::Upsert(std::sync::Arc::new([Cell::Bytes(value.as_bytes().into())])),
        });
        writer.commit_flush(flush).await;
        assert_eq!(rows_of(&ground, 1).await[0].1, expected, "after version {version}");
    }
}

async fn each_row_of_a_multi_row_delete_has_its_own_version(ground: impl Ground) {
    let mut writer = Writer::open(&ground).await;
    writer.commit(vec![(4, 0, insert(user(1, 1, 1))), (8, 0, insert(user(2, 1, 1)))]).await;
    let deletes = [1, 2, 3].map(|id| (6, 0, Action::Delete { before: user(id, 1, 1) }));
    writer.commit(deletes.into()).await;
    assert_eq!((rows_of(&ground, 1).await.len(), rows_of(&ground, 2).await.len()), (0, 1));
}

async fn the_last_mutation_of_a_claim_wins_and_a_move_over_three_days_leaves_one_row(ground: impl Ground) {
    let mut writer = Writer::open(&ground).await;
    writer.commit(vec![(1, 0, insert(user(1, 1, 1)))]).await;
    writer
        .commit(vec![
            (2, 0, update(user(1, 1, 1), user(1, 1, 2))),
            (3, 0, update(user(1, 1, 2), user(1, 1, 3))),
            (4, 0, insert(user(2, 5, 5))),
            (5, 0, Action::Delete { before: user(2, 5, 5) }),
            (6, 0, insert(user(2, 5, 6))),
        ])
        .await;
    assert_eq!(rows_of(&ground, 1).await, [("birthday_0103".into(), "01-03".into(), 3)]);
    assert_eq!(rows_of(&ground, 2).await, [("birthday_0506".into(), "05-06".into(), 6)]);
}

async fn a_withdrawal_takes_one_shards_older_claims_out_of_every_table_of_the_lane(ground: impl Ground) {
    let mut writer = Writer::open(&ground).await;
    let mut changes: Vec<_> = (1..=12u8)
        .flat_map(|month| [0, 1].map(|shard| (3, shard, insert(user(u64::from(month), month, 1)))))
        .collect();
    changes.push((7, 0, insert(user(99, 6, 6))));
    writer.commit(changes).await;
    // TRUNCATE at 5, and one row after it in the same flush.
    writer.commit(vec![(5, 0, Action::Withdraw), (6, 0, insert(user(50, 2, 2)))]).await;
    let rows = ground.rows().await;
    let of_shard = |number| {
        let shard = table(number).shard.as_u64();
        rows.keys().filter(|(_, owner, _)| *owner == shard).map(|(_, _, user)| *user).collect::<Vec<_>>()
    };
    assert_eq!(of_shard(0), [50, 99], "the newer claims only");
    assert_eq!(of_shard(1).len(), 12, "the other shard's all");
}

/// A lane withdraws many shards at once, and leaves out those without a row. Documents have no transaction, so an
/// interrupted flush may still be written after another process has taken the lane.
async fn each_shard_that_has_rows_is_named_for_every_writer(ground: impl Ground) {
    let mut writer = Writer::open(&ground).await;
    let shards = BTreeSet::from([0, 1, 2].map(|number| table(number).shard));
    writer.commit(vec![(1, 0, insert(user(1, 1, 1)))]).await;
    let named = writer.store.shards_with_rows(shards.clone()).await.unwrap();
    assert!(named.contains(&table(0).shard), "{named:?}");
    if writer.store.is_atomic() {
        assert_eq!(named.len(), 1, "of the others no row stands");
    }
    writer.commit(vec![(2, 1, insert(user(2, 5, 6)))]).await;
    let named = writer.store.shards_with_rows(shards.clone()).await.unwrap();
    assert!(named.contains(&table(0).shard) && named.contains(&table(1).shard), "{named:?}");

    // Another process has the lane for some time.
    let mut other = Writer::open(&ground).await;
    other.commit(vec![(3, 2, insert(user(3, 7, 8)))]).await;
    let named = other.store.shards_with_rows(shards.clone()).await.unwrap();
    assert_eq!(named, shards);
    writer.progress = writer.store.load().await.unwrap();
    assert_eq!(writer.store.shards_with_rows(shards.clone()).await.unwrap(), shards);
    writer.commit(vec![(4, 0, Action::Withdraw), (4, 1, Action::Withdraw), (4, 2, Action::Withdraw)]).await;
    assert!(ground.rows().await.is_empty());
}

async fn what_a_withdrawal_swallowed_is_not_brought_by_who_comes_late(ground: impl Ground) {
    let mut writer = Writer::open(&ground).await;
    let inserts = || vec![(4, 0, insert(user(1, 1, 1))), (4, 1, insert(user(2, 1, 1)))];
    let whole = [inserts(), vec![(5, 0, Action::Withdraw)]].concat();
    writer.commit(whole).await;
    writer.commit(inserts()).await;
    assert_eq!((rows_of(&ground, 1).await.len(), rows_of(&ground, 2).await.len()), (0, 1));
}

async fn what_a_replay_from_nothing_removes_comes_again_in_its_old_version(ground: impl Ground) {
    let mut writer = Writer::open(&ground).await;
    let past = || {
        vec![
            (5, 0, insert(user(1, 1, 1))),
            (6, 0, insert(user(2, 1, 1))),
            (7, 0, Action::Delete { before: user(2, 1, 1) }),
        ]
    };
    writer.commit(past()).await;
    let before = ground.rows().await;
    let progress = Progress { position: Lsn::ZERO, highest_position: lsn(7), ..writer.progress.clone() };
    let mut emptied = Flush::new(Progress { revision: progress.revision + 1, ..progress });
    emptied.withdraw(table(0).shard, Lsn::MAX);
    writer.commit_flush(emptied).await;
    assert!(ground.rows().await.is_empty());
    writer.commit(past()).await;
    assert_eq!((ground.rows().await, before.len()), (before, 1));
}

async fn of_what_is_replaced_exactly_what_is_written_stands_afterwards_whatever_stood(ground: impl Ground) {
    let mut writer = Writer::open(&ground).await;
    let at = |version, shard, id, month, day| (version, shard, insert(user(id, month, day)));
    writer
        .commit(vec![
            // Rows: right but old, far too new, doubled in another table, to be deleted, of another shard, not named.
            at(3, 0, 1, 1, 1),
            at(99, 0, 2, 1, 2),
            at(3, 0, 3, 1, 3),
            at(3, 0, 3, 2, 3),
            at(99, 0, 3, 3, 3),
            at(3, 0, 4, 1, 4),
            at(99, 0, 5, 1, 5),
            at(99, 1, 2, 1, 2),
            at(99, 0, 6, 1, 6),
        ])
        .await;
    let shard = table(0).shard;
    let rows = [1, 2, 3, 4, 5, 7].map(|id| (shard, Cell::UInt(id)));
    let read = [(1, 1, 1), (2, 1, 2), (3, 4, 3), (7, 1, 7)];
    let replaced = |writer: &Writer<_>, low| {
        let mut flush = writer.flush(read.map(|(id, month, day)| at(low, 0, id, month, day)).into());
        flush.replacement = Some(Replacement { low: lsn(low), column: 0, rows: rows.clone().into() });
        flush
    };
    let flush = replaced(&writer, 50);
    writer.commit_flush(flush).await;
    let found = ground.rows().await;
    let name = |(table, owner, id): &(String, u64, u64)| {
        (table.rsplit_once('_').unwrap().1.to_owned(), *owner == shard.as_u64(), *id)
    };
    let found: BTreeSet<_> = found.iter().map(|(site, row)| (name(site), row.1)).collect();
    let row = |day: &str, own, id, version| ((day.to_owned(), own, id), version);
    let own = [
        row("0101", true, 1, 50),
        row("0102", true, 2, 50),
        row("0403", true, 3, 50),
        row("0107", true, 7, 50),
    ];
    let others = [row("0102", false, 2, 99), row("0106", true, 6, 99)];
    assert_eq!(found, own.into_iter().chain(others).collect());
    // The replacement may be repeated, and changes after it count again.
    let flush = replaced(&writer, 50);
    writer.commit_flush(flush).await;
    writer.commit(vec![(51, 0, Action::Delete { before: user(2, 1, 2) }), at(52, 0, 5, 6, 5)]).await;
    assert_eq!((rows_of(&ground, 2).await.len(), rows_of(&ground, 5).await.len()), (1, 1));
}
