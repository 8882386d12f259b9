//! The rows of one shard, as its lane reads them to compare a table: each once, in pages of any size. The claims of
//! withdrawn shards, as it removes them: in parts.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use anabranch_pipeline::ports::{ClaimsPage, LaneStore, ShardPage};
use anabranch_pipeline::projections::LaneScope;
use anabranch_pipeline::records::{CellRef, DerivedRow, Flush, Progress};

use super::store::{Ground, Server, Twin};
use crate::derived::{flush_of, insert, lsn, table, user};

const USERS: u64 = 40;

on_twin_and_both_kinds_of_server!(Twin, Server:
    pages_of_any_size_hold_every_row_of_the_shard_once,
    claims_of_withdrawn_shards_go_in_parts_and_newer_ones_stay,
);

/// Table with its database, and user.
type Found = BTreeSet<(String, u64)>;

async fn pages_of_any_size_hold_every_row_of_the_shard_once(ground: impl Ground) {
    let (mut store, progress) = ground.lane().await;
    let projection = ground.projection();
    let row = |id: u64| user(id, (id % 3 + 1) as u8, (id % 28 + 1) as u8);
    let changes = (1..=USERS).flat_map(|id| [0, 1].map(|number| (id, number, insert(row(id)))));
    let scope = LaneScope { target: 0, lane: 0 };
    store.commit(&flush_of(&projection, scope, &progress, changes.collect())).await.unwrap();
    let shard = table(0).shard;
    let of_shard = ground.rows().await.into_keys().filter(|(_, of, _)| *of == shard.as_u64());
    let expected: Found = of_shard.map(|(name, _, id)| (name, id)).collect();
    assert_eq!(expected.len() as u64, USERS);
    for limit in [1, 3, 1_000] {
        let (mut found, mut rows, mut largest) = (Found::new(), 0, 0);
        let mut next = Some(ShardPage { shard, table: 0, after: None });
        while let Some(page) = next {
            let mut of_page = 0;
            let mut visit = |row: DerivedRow<'_>| {
                let row = row.claimed().expect("a lane wrote it");
                let [CellRef::UInt(id)] = row.key else { panic!("{:?}", row.key) };
                let derived = &projection.tables()[row.table as usize].derived;
                assert_eq!(row.shard, shard);
                found.insert((format!("{}.{}", derived.database, derived.table), *id));
                of_page += 1;
            };
            let limit = NonZeroUsize::new(limit).unwrap();
            next = store.rows_of_shard(&page, limit, &mut visit).await.unwrap();
            (rows, largest) = (rows + of_page, largest.max(of_page));
        }
        assert_eq!((&found, rows), (&expected, USERS), "pages of {limit}");
        assert!(largest <= limit as u64, "{largest} rows in a page of {limit}");
    }
}

/// One table is truncated before another one; the first exists again.
async fn claims_of_withdrawn_shards_go_in_parts_and_newer_ones_stay(ground: impl Ground) {
    let (mut store, progress) = ground.lane().await;
    let (projection, scope) = (ground.projection(), LaneScope { target: 0, lane: 0 });
    let row = |id: u64| user(id, (id % 12 + 1) as u8, (id % 28 + 1) as u8);
    let of_all = (1..=USERS).flat_map(|id| [0, 1, 2].map(|number| (5, number, insert(row(id)))));
    let again = (101..=103).map(|id| (9, 0, insert(user(id, 1, 1))));
    let written = flush_of(&projection, scope, &progress, of_all.chain(again).collect());
    store.commit(&written).await.unwrap();
    let withdrawals = [(table(0).shard, lsn(7)), (table(1).shard, lsn(6))];
    let limit = NonZeroUsize::new(7).unwrap();
    let (mut progress, mut next, mut parts) = (written.progress, Some(ClaimsPage::default()), 0);
    while let Some(from) = next {
        let (claims, rest) = store.withdrawn_claims(&withdrawals, &from, limit).await.unwrap();
        assert!(claims.len() <= limit.get(), "{claims:?}");
        let moves_on = rest.as_ref().is_none_or(|page| page.table >= from.table && *page != from);
        assert!(moves_on, "{rest:?} after {from:?}: rows that stay are passed once");
        parts += usize::from(!claims.is_empty());
        let mut flush = Flush::new(Progress { revision: progress.revision + 1, ..progress });
        claims.into_iter().for_each(|claim| flush.push(claim));
        store.commit(&flush).await.unwrap();
        (progress, next) = (flush.progress, rest);
    }
    assert!(parts > 2 * USERS as usize / limit.get(), "{parts} parts");
    let rows = ground.rows().await;
    let of_shard = |number| {
        let shard = table(number).shard.as_u64();
        rows.keys().filter(|(_, of, _)| *of == shard).map(|(_, _, id)| *id).collect::<BTreeSet<u64>>()
    };
    assert_eq!(of_shard(0), [101, 102, 103].into());
    assert_eq!((of_shard(1).len(), of_shard(2).len() as u64), (0, USERS));
}
