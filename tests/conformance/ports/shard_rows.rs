//! The rows of one shard, as its lane reads them to compare a table: each once, in pages of any size.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use anabranch_pipeline::ports::{LaneStore, ShardPage};
use anabranch_pipeline::projections::LaneScope;
use anabranch_pipeline::records::{CellRef, DerivedRow};

use super::store::{Ground, Server, Twin};
use crate::derived::{flush_of, insert, table, user};

const USERS: u64 = 40;

on_twin_and_both_kinds_of_server!(Twin, Server: pages_of_any_size_hold_every_row_of_the_shard_once);

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
