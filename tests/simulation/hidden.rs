//! Tables that the source hides while a lane reads: a grant is missing.

#![expect(clippy::unwrap_used, reason = "the whole file is a test")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_connectors::memory::{Group, MemoryLog, MemorySource, MemoryStore, MemoryTarget};
use anabranch_pipeline::ports::{LaneStore, Located};
use anabranch_pipeline::records::{Cell, Flush, LaneId, Mutation, MutationAction, Progress, Refresh, Scope};
use anabranch_schemas::codec;
use anabranch_schemas::envelope::Envelope;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use tokio::time::sleep;

use crate::loads::{StaleSource, append, insert, insert_into, users};
use crate::one_lane::{self, OneLane, WAIT_MAX, append_changes, end, progress_at, project, twins};
use crate::script;

/// Begins a lane at the source's end with this refresh, and with these rows, which no table has. Returns its id, the
/// target, and the lane's store.
async fn lane_with(
    log: &MemoryLog,
    source: &MemorySource,
    progress: impl FnOnce(Progress) -> Progress,
    rows: impl IntoIterator<Item = (ShardId, u64, Lsn)>,
) -> (LaneId, MemoryTarget, MemoryStore) {
    let begun = end(source).await;
    let (id, target) = (one_lane::id("source-0"), one_lane::target());
    let mut store = target.lane(id.clone(), Arc::new([0].into()));
    let mut flush = Flush::new(progress(progress_at(begun.clone())));
    for (shard, user, lsn) in rows {
        let (key, action) = ([Cell::UInt(user)].into(), MutationAction::Upsert([].into()));
        flush.push(Mutation { table: 0, shard, key, lsn, action });
    }
    store.commit(&flush).await.unwrap();
    let Located { position, resume, server } = begun;
    append(log, Envelope { origin: true, position, resume, server, ..Envelope::default() }).await;
    (id, target, store)
}

fn refreshing(refresh: Refresh) -> impl FnOnce(Progress) -> Progress {
    |progress| Progress { refresh: Some(refresh), ..progress }
}

/// All tables are read after `begin-anew`, or after an unread XA branch, while a grant is missing.
#[tokio::test(start_paused = true)]
async fn a_table_that_a_reading_of_all_did_not_find_is_read_once_its_grant_is_back() {
    for is_entry_older in [false, true] {
        read_without_a_grant(is_entry_older).await;
    }
}

async fn read_without_a_grant(is_entry_older: bool) {
    let (log, source) = twins();
    source.commit(insert(1));
    let dropped = script::table(2);
    source.commit(insert_into(dropped.clone(), 8));
    source.commit(Group::Drop(dropped.clone()));
    let (table, at) = (script::table(0).shard, end(&source).await.position);
    // The entry is older than the record of every table, or younger.
    let every = match is_entry_older {
        true => Refresh::with_every_table(Some(Refresh::with_reread(None, dropped.shard, at))),
        false => Refresh::with_reread(Some(Refresh::with_every_table(None)), dropped.shard, at),
    };
    // The source lost a row unseen, and the lane owes a table that is gone.
    let rows = [(table, 9, Lsn::ZERO), (dropped.shard, 8, Lsn::ZERO)];
    let (id, target, mut store) = lane_with(&log, &source, refreshing(every), rows).await;
    let hiding = StaleSource { is_hidden: AtomicBool::new(true), ..StaleSource::new(source) };
    let through = async {
        sleep(WAIT_MAX).await;
        let refresh = target.progress("source-0")[&id].refresh.clone().unwrap();
        let waiting: Vec<ShardId> = refresh.rereads.into_keys().collect();
        assert_eq!((refresh.scope, waiting), (Scope::Rereads, vec![table]));
        assert_eq!(
            users(&target),
            [Cell::UInt(9)],
            "claims of the hidden table stay, and those of the absent one go"
        );
        hiding.is_hidden.store(false, Ordering::Relaxed);
        sleep(WAIT_MAX).await;
    };
    OneLane::new(&id, &log, &hiding).run(&mut store, project, through).await.unwrap();
    assert_eq!(target.progress("source-0")[&id].refresh, None, "it is through");
    assert_eq!(users(&target), [Cell::UInt(1)]);
}

/// A progress row has no room for all of them, so every table is read again, after a rest.
#[tokio::test(start_paused = true)]
async fn more_hidden_tables_than_a_progress_row_lists_are_read_once_their_grants_are_back() {
    const TABLES: usize = 1_100;
    const REST: Duration = Duration::from_secs(600);
    let (log, source) = twins();
    let shards: Vec<ShardId> = (0..TABLES).map(|table| script::table(table).shard).collect();
    (0..TABLES).for_each(|table| source.commit(insert_into(script::table(table), 1)));
    let every = refreshing(Refresh::with_every_table(None));
    // Each table lost a row unseen.
    let rows = shards.into_iter().map(|shard| (shard, 9, Lsn::ZERO));
    let (id, target, mut store) = lane_with(&log, &source, every, rows).await;
    let hiding = StaleSource { is_hidden: true.into(), hides_all: true, ..StaleSource::new(source) };
    let through = async {
        sleep(WAIT_MAX).await;
        let refresh = target.progress("source-0")[&id].refresh.clone().unwrap();
        assert_eq!((refresh.scope, refresh.every_waits, refresh.done), (Scope::Source, true, None));
        assert_eq!(users(&target), vec![Cell::UInt(9); TABLES], "their claims stay");
        hiding.is_hidden.store(false, Ordering::Relaxed);
        sleep(REST + WAIT_MAX).await;
    };
    OneLane::new(&id, &log, &hiding).run(&mut store, project, through).await.unwrap();
    assert_eq!(target.progress("source-0")[&id].refresh, None, "it is through");
    assert_eq!(users(&target), vec![Cell::UInt(1); TABLES]);
}

/// A repair takes a table for one without rows only if the source proves the table absent.
#[tokio::test(start_paused = true)]
async fn a_repair_removes_no_rows_of_a_table_that_lost_its_grant_meanwhile() {
    let (log, source) = twins();
    let [hidden, listed, absent] = [0, 1, 2].map(script::table);
    source.commit(insert(1));
    source.commit(insert_into(listed.clone(), 2));
    let [hidden, listed, absent] = [hidden, listed, absent].map(|table| table.shard);
    let keys = [hidden, listed, absent].map(|shard| (shard, [1, 2, 9].map(Cell::UInt).to_vec()));
    let repair = refreshing(Refresh::new(Scope::Keys(keys.into())));
    let unclaimed = [hidden, listed, absent].map(|shard| (shard, 9, Lsn::ZERO));
    let (id, target, mut store) = lane_with(&log, &source, repair, unclaimed).await;
    let hiding = StaleSource { is_hidden: AtomicBool::new(true), ..StaleSource::new(source) };
    let rows = || -> BTreeSet<(ShardId, Cell)> {
        target.rows().into_keys().map(|(_, shard, key)| (shard, key[0].clone())).collect()
    };
    let through = async {
        sleep(WAIT_MAX).await;
        let refresh = target.progress("source-0")[&id].refresh.clone().unwrap();
        let waiting: Vec<ShardId> = refresh.rereads.into_keys().collect();
        assert_eq!((refresh.scope, waiting), (Scope::Rereads, vec![hidden]));
        let left = BTreeSet::from([(hidden, Cell::UInt(9)), (listed, Cell::UInt(2))]);
        assert_eq!(rows(), left, "its claims stay");
        hiding.is_hidden.store(false, Ordering::Relaxed);
        sleep(WAIT_MAX).await;
    };
    OneLane::new(&id, &log, &hiding).run(&mut store, project, through).await.unwrap();
    assert_eq!(target.progress("source-0")[&id].refresh, None, "it is through");
    assert_eq!(rows(), BTreeSet::from([(hidden, Cell::UInt(1)), (listed, Cell::UInt(2))]));
}

/// The lane reads the second table while the first one is hidden. As it reads the third one, the connection breaks, the
/// grant of the first comes back, and the lane lists the tables anew.
#[tokio::test(start_paused = true)]
async fn a_table_that_was_hidden_in_its_turn_is_read_though_a_later_list_has_it() {
    let (log, source) = twins();
    let hidden = script::table(0);
    let mut later: Vec<_> = (1..100).map(script::table).filter(|table| table.shard > hidden.shard).collect();
    later.sort_by_key(|table| table.shard);
    later.truncate(2);
    let tables = [&[hidden][..], &later].concat();
    tables.iter().for_each(|table| source.commit(insert_into(table.clone(), 1)));
    let every = refreshing(Refresh::with_every_table(None));
    // Each table lost a row unseen.
    let rows = tables.iter().map(|table| (table.shard, 9, Lsn::ZERO));
    let (id, target, mut store) = lane_with(&log, &source, every, rows).await;
    let hiding = StaleSource {
        is_hidden: true.into(),
        breaks_at: Mutex::new(Some(tables[2].shard)),
        ..StaleSource::new(source)
    };
    OneLane::new(&id, &log, &hiding).run(&mut store, project, sleep(3 * WAIT_MAX)).await.unwrap();
    assert_eq!(target.progress("source-0")[&id].refresh, None, "it is through");
    assert_eq!(*hiding.breaks_at.lock().unwrap(), None, "the connection broke");
    let rows: Vec<(ShardId, Cell)> =
        target.rows().into_keys().map(|(_, shard, key)| (shard, key[0].clone())).collect();
    let each: Vec<(ShardId, Cell)> = tables.iter().map(|table| (table.shard, Cell::UInt(1))).collect();
    assert_eq!(rows, each);
}

/// Nothing of it is there to be read. Where a source cannot prove that, an entry would have no end.
#[tokio::test(start_paused = true)]
async fn a_table_that_was_withdrawn_while_its_reading_failed_is_not_owed() {
    let (log, source) = twins();
    source.commit(insert(1));
    let (dropped, low) = (script::table(0), end(&source).await.position);
    let every = refreshing(Refresh::with_every_table(None));
    let (id, target, mut store) = lane_with(&log, &source, every, []).await;
    let unreadable = Mutex::new(Some(dropped.shard));
    let failing = StaleSource { unreadable, ..StaleSource::new(source.clone()) };
    let through = async {
        sleep(Duration::from_millis(500)).await;
        source.commit(Group::Drop(dropped.clone()));
        let Located { position, resume, server } = end(&source).await;
        let mut withdrawal = codec::Encoder::default();
        withdrawal.withdraw(position, &dropped);
        let next = Envelope { previous: low, position, resume, server, ..Envelope::default() };
        append_changes(&log, next, withdrawal).await;
        sleep(WAIT_MAX).await;
    };
    OneLane::new(&id, &log, &failing).run(&mut store, project, through).await.unwrap();
    assert_eq!(target.progress("source-0")[&id].refresh, None, "no table waits");
}

/// The table was truncated and filled again, before all tables are to be read. The lane has yet to remove the rows from
/// before.
#[tokio::test(start_paused = true)]
async fn a_hidden_table_whose_earlier_rows_are_still_to_be_removed_is_read_once_its_grant_is_back() {
    let (log, source) = twins();
    source.commit(insert(1));
    let table = script::table(0).shard;
    let (withdrawn, later) = (Lsn::from_u64(1).unwrap(), Lsn::from_u64(2).unwrap());
    let withdrawals = format!("{withdrawn}={:x}", table.as_u64()).parse().unwrap();
    let refresh = Some(Refresh::with_every_table(None));
    let owing = |progress| Progress { refresh, withdrawals, ..progress };
    // The removal has many parts. The source lost the row that came after the withdrawal unseen.
    let rows = (100..300).map(|user| (table, user, Lsn::ZERO)).chain([(table, 9, later)]);
    let (id, target, mut store) = lane_with(&log, &source, owing, rows).await;
    let hiding = StaleSource { is_hidden: AtomicBool::new(true), ..StaleSource::new(source) };
    let through = async {
        sleep(WAIT_MAX).await;
        let refresh = target.progress("source-0")[&id].refresh.clone().unwrap();
        let waiting: Vec<ShardId> = refresh.rereads.into_keys().collect();
        assert_eq!((refresh.scope, waiting), (Scope::Rereads, vec![table]));
        assert_eq!(users(&target), [Cell::UInt(9)], "the rows from before are gone");
        hiding.is_hidden.store(false, Ordering::Relaxed);
        sleep(WAIT_MAX).await;
    };
    OneLane::new(&id, &log, &hiding).run(&mut store, project, through).await.unwrap();
    assert_eq!(target.progress("source-0")[&id].refresh, None, "it is through");
    assert_eq!(users(&target), [Cell::UInt(1)]);
}
