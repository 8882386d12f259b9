//! Mapping tables on a real server: values keep their exact bytes, whatever the server's collation.

use std::collections::BTreeSet;

use anabranch_connectors::mysql::store::{MysqlLane, MysqlMapping};
use anabranch_pipeline::ports::{LaneStore, MappingStore, Outbox};
use anabranch_pipeline::projections::Defects;
use anabranch_pipeline::records::{Cell, Flush, LaneId, Progress, Replacement};
use anabranch_schemas::change::{Action, Change, Entity, Row, TableIdentity, Value};
use anabranch_schemas::serial::StoredCode;
use anabranch_schemas::shard::ShardId;
use mysql_async::prelude::Queryable;

use crate::derived::{StoreSite, lsn};
use crate::wire::Wire;

pub const TABLES: u32 = 2;

async fn site() -> (StoreSite, MysqlLane, Progress) {
    let site = StoreSite { mapping_tables: TABLES, ..StoreSite::new().await };
    site.target("target-a").setup().await.unwrap();
    let (lane, progress) = lane(&site).await;
    (site, lane, progress)
}

/// The lane of `source-a` in a new process.
pub async fn lane(site: &StoreSite) -> (MysqlLane, Progress) {
    let id = LaneId { projection: "serials".into(), ..site.lane_id("source-a", 0) };
    let mut lane = site.target("target-a").lane(&id).unwrap();
    let progress = lane.load().await.unwrap();
    (lane, progress)
}

pub fn shard(number: u32) -> TableIdentity<'static> {
    TableIdentity {
        entity: Entity::SerialCode,
        shard: ShardId::of("source-a", "inventory_0", &number.to_string(), 0),
        database: "inventory_0".into(),
        table: number.to_string().into(),
    }
}

/// A device with only this box.
pub fn boxed(uuid: u64, code: &[u8]) -> Row<'static> {
    let mut row = vec![Value::Null; Entity::SerialCode.fields().len()];
    (row[0], row[4]) = (Value::UInt(uuid), Value::Bytes(code.to_vec().into()));
    row
}

/// Applies changes of one shard at these positions; returns the progress after them.
pub async fn apply(
    lane: &mut MysqlLane,
    progress: Progress,
    changes: Vec<(u64, u32, Action<'static>)>,
) -> Progress {
    let mut flush = Flush::new(progress);
    flush.progress.revision += 1;
    for (position, table, action) in changes {
        let (table, lsn) = (shard(table), lsn(position));
        let change = Change { lsn, table: &table, action };
        lane.projection().project(&change, lane.scope(), &mut flush, &mut Defects::default());
    }
    lane.commit(&flush).await.unwrap();
    flush.progress
}

/// (value in hexadecimal, shard, uuid, kind) of every mapping row.
async fn rows(site: &StoreSite) -> BTreeSet<(String, u64, String, u8)> {
    let mut rows = BTreeSet::new();
    let mut admin = site.admin().await;
    for class in ["15", "14", "other"] {
        for table in 0..TABLES {
            let sql = format!(
                "SELECT HEX(value), shard_id, CAST(uuid AS CHAR), kind FROM serial_code_{}_{class}.mapping_{table:03}",
                site.prefix
            );
            rows.extend(admin.query::<(String, u64, String, u8), _>(sql).await.unwrap());
        }
    }
    rows
}

#[tokio::test]
async fn values_that_a_collation_would_mix_are_told_apart() {
    let (site, mut lane, progress) = site().await;
    let long = [vec![b'x'; 300], vec![b'y'; 300]].concat();
    let longer = [long.clone(), vec![b'z']].concat();
    let codes: Vec<&[u8]> = vec![
        b"abc",
        b"ABC",
        b"abc ",
        b" abc",
        b"abc\0",
        b"100",
        b"0100",
        "\u{e9}".as_bytes(),
        b"e",
        b"\xff\xfe",
        b"a'\"\\;--",
        &long,
        &longer,
    ];
    let insert = |(uuid, code): (u64, &&[u8])| (5, 0, Action::Insert { after: boxed(uuid, code) });
    let inserts = (1..).zip(&codes).map(insert).collect();
    let progress = apply(&mut lane, progress, inserts).await;
    let found = rows(&site).await;
    assert_eq!(found.len(), codes.len(), "{found:?}");
    for code in codes.iter().filter(|code| code.len() <= 255) {
        let hexadecimal: String = code.iter().map(|byte| format!("{byte:02X}")).collect();
        assert!(found.iter().any(|(value, ..)| *value == hexadecimal), "{hexadecimal} in {found:?}");
    }

    // Each row is removed by itself, and the others stay.
    let mut left = codes.len();
    let mut progress = progress;
    for (uuid, code) in (1..).zip(&codes) {
        let delete = vec![(6, 0, Action::Delete { before: boxed(uuid, code) })];
        progress = apply(&mut lane, progress, delete).await;
        left -= 1;
        assert_eq!(rows(&site).await.len(), left, "after the code of device {uuid}");
    }
}

#[tokio::test]
async fn a_device_that_moves_between_shards_is_found_in_either_order_and_once_at_the_end() {
    for delete_first in [false, true] {
        let (site, mut lane, progress) = site().await;
        let there = vec![(5, 0, Action::Insert { after: boxed(7, b"BOX-7") })];
        let mut progress = apply(&mut lane, progress, there).await;
        let arrival = (6, 1, Action::Insert { after: boxed(7, b"BOX-7") });
        let departure = (6, 0, Action::Delete { before: boxed(7, b"BOX-7") });
        let steps = if delete_first { [departure, arrival] } else { [arrival, departure] };
        for step in steps {
            progress = apply(&mut lane, progress, vec![step]).await;
        }
        let found = rows(&site).await;
        let shards: Vec<u64> = found.iter().map(|(_, shard, ..)| *shard).collect();
        assert_eq!(shards, [shard(1).shard.as_u64()], "{found:?}");
    }
}

#[tokio::test]
async fn an_older_change_neither_removes_nor_restores_a_mapping_row() {
    let (site, mut lane, progress) = site().await;
    let insert = |position, code: &[u8]| (position, 0, Action::Insert { after: boxed(7, code) });
    let delete = |position, code: &[u8]| (position, 0, Action::Delete { before: boxed(7, code) });
    let progress = apply(&mut lane, progress, vec![insert(9, b"5")]).await;
    let progress = apply(&mut lane, progress, vec![delete(8, b"5")]).await;
    assert_eq!(rows(&site).await.len(), 1, "the older delete did nothing");
    let progress = apply(&mut lane, progress, vec![(10, 0, Action::Withdraw)]).await;
    assert!(rows(&site).await.is_empty(), "the shard is withdrawn");
    let progress = apply(&mut lane, progress, vec![insert(12, b"5")]).await;
    apply(&mut lane, progress, vec![(11, 0, Action::Withdraw)]).await;
    assert_eq!(rows(&site).await.len(), 1, "what came after the withdrawal stays");
}

/// A row by hand whose value is no code: if it were noted, the outbox entry would stop its drain for good.
#[tokio::test]
async fn what_is_no_code_is_removed_and_not_noted_in_the_outbox() {
    let site = StoreSite { mapping_tables: TABLES, is_cached: true, ..StoreSite::new().await };
    site.target("target-a").setup().await.unwrap();
    let outbox = site.target("target-a").outbox("serials").unwrap();
    let (mut lane, mut progress) = lane(&site).await;
    let of = shard(0).shard;
    for is_refreshed in [true, false] {
        let at = progress.revision * 10 + 5;
        progress =
            apply(&mut lane, progress, vec![(at, 0, Action::Insert { after: boxed(7, b"BOX-7") })]).await;
        let table = format!("serial_code_{}_other.mapping_000", site.prefix);
        let plant = format!(
            "INSERT INTO {table} (value, shard_id, uuid, kind, lsn) VALUES ('', {}, '7', 1, 1)",
            of.as_u64()
        );
        site.admin().await.query_drop(plant).await.unwrap();
        let mut flush = Flush::new(progress.clone());
        flush.progress.revision += 1;
        if is_refreshed {
            let rows = [(of, Cell::Bytes(b"7".as_slice().into()))].into();
            flush.replacement = Some(Replacement { low: lsn(at + 1), column: 1, rows });
        } else {
            flush.withdraw(of, lsn(at + 1));
        }
        lane.commit(&flush).await.unwrap();
        progress = flush.progress;
        assert!(rows(&site).await.is_empty(), "both are gone");
        let pending = outbox.pending(100).await.unwrap();
        let codes: Vec<_> = pending.iter().flat_map(|row| &row.codes).collect();
        assert!(codes.contains(&&StoredCode::exact(b"BOX-7").unwrap()), "{codes:?}");
    }
}

/// A handshake costs ten times as much as an answer.
#[tokio::test]
async fn lookups_one_after_the_other_share_connections_that_stay_open() {
    const AT_ONCE: usize = 2;
    let (site, mut lane, progress) = site().await;
    apply(&mut lane, progress, vec![(5, 0, Action::Insert { after: boxed(7, b"BOX-7") })]).await;
    let server = site.stack.server("target-a").unwrap();
    let wire = Wire::to(&server);
    let mut config = site.config();
    config.targets[0].url = wire.url(&server);
    let mapping = MysqlMapping::new(&config, "serials", AT_ONCE).unwrap();
    let code = StoredCode::exact(b"BOX-7").unwrap();
    for _ in 0..20 {
        let found = mapping.claims(std::slice::from_ref(&code), 10).await.unwrap();
        assert_eq!(found[0].claims.len(), 1);
    }
    assert!(wire.connections() <= AT_ONCE, "{} connections for 20 lookups", wire.connections());
}
