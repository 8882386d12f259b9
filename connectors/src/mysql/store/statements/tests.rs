//! Tests of the exact text of small flushes, and of properties of any flush.

use std::sync::Arc;

use anabranch_pipeline::projections::ProjectedTable;
use anabranch_pipeline::records::{Mutation, RetiredShards, TableShape};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use proptest::prelude::*;

use super::*;

static SHAPE: TableShape = TableShape {
    definition: "",
    key_columns: &["user_id"],
    shard_index: "PRIMARY",
    shard_order: &[0],
    value_columns: &["birthday"],
};

fn table() -> ProjectedTable {
    let derived = DerivedTable { database: "d`b".into(), table: "birthday_0101".into(), shape: &SHAPE };
    ProjectedTable { derived, target: 0, lane: 0 }
}

fn shard() -> ShardId {
    ShardId::of("s", "d", "t", 0)
}

fn mutation(user_id: u64, lsn: u64, value: Option<&[u8]>) -> Mutation {
    let action = match value {
        Some(bytes) => MutationAction::Upsert(Arc::new([Cell::Bytes(bytes.into())])),
        None => MutationAction::Delete,
    };
    let lsn = Lsn::from_u64(lsn).unwrap();
    Mutation { table: 0, shard: shard(), key: Box::new([Cell::UInt(user_id)]), lsn, action }
}

fn text(flush: &Flush, statement_rows: usize, packet_bytes: usize) -> Vec<String> {
    text_beside(flush, &RetiredShards::new(), statement_rows, packet_bytes)
}

fn text_beside(
    flush: &Flush,
    retired: &RetiredShards,
    statement_rows: usize,
    packet_bytes: usize,
) -> Vec<String> {
    let head = ["START TRANSACTION".to_owned()];
    let withdrawn: Vec<OccupiedTable> =
        flush.withdrawals.iter().map(|(shard, _)| OccupiedTable { table: 0, shard: *shard }).collect();
    let layout = FlushLayout {
        tables: &[table()],
        owned: &[0],
        outbox: None,
        stored_versions: &[],
        withdrawn: &withdrawn,
        retired,
    };
    packets(&head, flush, layout, TextLimits { statement_rows, packet_bytes })
}

#[test]
fn a_flush_reads_withdrawals_deletes_upserts() {
    let mut flush = Flush::default();
    flush.withdraw(shard(), Lsn::from_u64(3).unwrap());
    flush.push(mutation(2, 6, Some(b"01-01")));
    flush.push(mutation(1, 5, None));
    let (shard, table) = (shard(), "`d``b`.`birthday_0101`");
    assert_eq!(
        text(&flush, 1000, 1 << 20),
        [format!(
            "START TRANSACTION;\
             DELETE {table} FROM {table} FORCE INDEX (`PRIMARY`) WHERE `shard_id` IN ({shard}) AND `lsn` <= 3;\
             DELETE {table} FROM {table} FORCE INDEX (`PRIMARY`) WHERE (`shard_id` = {shard} AND `user_id` = 1 AND `lsn` <= 5);\
             INSERT INTO `d``b`.`birthday_0101` (`shard_id`,`user_id`,`birthday`,`lsn`) VALUES \
             ({shard},2,x'30312d3031',6) ON DUPLICATE KEY UPDATE \
             `birthday`=IF(VALUES(`lsn`)>=`lsn`,VALUES(`birthday`),`birthday`),`lsn`=GREATEST(`lsn`,VALUES(`lsn`))"
        )]
    );
}

#[test]
fn a_withdrawal_leaves_the_rows_of_a_retired_table() {
    let at = |lsn| Lsn::from_u64(lsn).unwrap();
    let mut flush = Flush::default();
    flush.withdraw(shard(), at(9));
    let written = |retired| text_beside(&flush, &[(shard(), at(retired))].into(), 1000, 1 << 20).join(";");
    assert!(written(4).ends_with("AND `lsn` <= 9 AND `lsn` > 4"), "{}", written(4));
    assert_eq!(written(9), "START TRANSACTION");
}

/// Two lanes that reach the same tables in two orders could each wait for the other.
#[test]
fn a_table_is_left_before_the_next_one_is_written() {
    let tables = [
        table(),
        ProjectedTable { derived: DerivedTable { table: "next".into(), ..table().derived }, ..table() },
    ];
    let mut flush = Flush::default();
    flush.withdraw(shard(), Lsn::from_u64(3).unwrap());
    for table in [1, 0] {
        flush.push(Mutation { table, ..mutation(2, 6, Some(b"01-01")) });
        flush.push(Mutation { table, ..mutation(1, 5, None) });
    }
    let withdrawn = [0, 1].map(|table| OccupiedTable { table, shard: shard() });
    let layout = FlushLayout {
        tables: &tables,
        owned: &[0, 1],
        outbox: None,
        stored_versions: &[],
        withdrawn: &withdrawn,
        retired: &RetiredShards::new(),
    };
    let limits = TextLimits { statement_rows: 1000, packet_bytes: 1 << 20 };
    let written = packets(&[], &flush, layout, limits).join(";");
    let of = |statement: &str| if statement.contains("`next`") { 1 } else { 0 };
    assert_eq!(written.split(';').map(of).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1], "{written}");
}

#[test]
fn many_rows_are_deleted_by_a_join_with_their_keys() {
    let mut flush = Flush::default();
    for user_id in 0..JOINED_DELETE_ROWS_MIN as u64 {
        flush.push(mutation(user_id, 5, None));
    }
    let (shard, table) = (shard(), "`d``b`.`birthday_0101`");
    let rows: Vec<String> =
        (0..JOINED_DELETE_ROWS_MIN).map(|user_id| format!("SELECT {shard},{user_id},5")).collect();
    let rows = rows.join(" UNION ALL ");
    assert_eq!(
        text(&flush, 1000, 1 << 20),
        [format!(
            "START TRANSACTION;\
             DELETE {table} FROM (SELECT 0 AS `s`,0 AS `k0`,0 AS `v` FROM DUAL WHERE FALSE UNION ALL {rows}) AS `l` \
             STRAIGHT_JOIN {table} FORCE INDEX (PRIMARY) ON {table}.`shard_id` = `l`.`s` AND {table}.`user_id` = `l`.`k0` \
             WHERE {table}.`lsn` <= `l`.`v`"
        )]
    );
}

#[test]
fn a_statement_has_at_most_so_many_rows_and_a_delete_fewer() {
    let mut flush = Flush::default();
    for user_id in 0..25 {
        flush.push(mutation(user_id, 1, Some(b"01-01")));
        flush.push(mutation(100 + user_id, 1, None));
    }
    let count = |flush: &Flush| {
        let sql = text(flush, 1000, 1 << 20).join(";");
        (sql.matches("INSERT INTO").count(), sql.matches("DELETE ").count())
    };
    assert_eq!(count(&flush), (1, 1));
    for user_id in 0..400 {
        flush.push(mutation(100 + user_id, 1, None));
    }
    assert_eq!(count(&flush), (1, 2));
    // Because a list cannot hold one of the keys, conditions are used, of which a statement takes fewer.
    flush.push(mutation(u64::MAX, 1, None));
    assert_eq!(count(&flush), (1, 7));
}

#[test]
fn statements_are_cut_by_rows() {
    let mut flush = Flush::default();
    for user_id in 0..25 {
        flush.push(mutation(user_id, 1, Some(b"01-01")));
        flush.push(mutation(100 + user_id, 1, None));
    }
    let sql = text(&flush, 10, 1 << 20).join(";");
    assert_eq!(sql.matches("INSERT INTO").count(), 3);
    assert_eq!(sql.matches("DELETE ").count(), 3);
    assert_eq!(sql.matches("x'30312d3031'").count(), 25);
    assert_eq!(sql.matches(" UNION ALL SELECT ").count(), 25);
}

proptest! {
    #[test]
    fn text_is_ascii_within_the_packet_and_holds_every_row_once(
        rows in prop::collection::btree_map(prop_oneof![9 => 0..1u64 << 40, 1 => any::<u64>()], prop::option::of(any::<[u8; 5]>()), 1..60),
        statement_rows in 1..20usize,
        packet_bytes in 700..4000usize,
    ) {
        let mut flush = Flush::default();
        for (user_id, value) in &rows {
            flush.push(mutation(*user_id, 1, value.as_ref().map(|bytes| &bytes[..])));
        }
        let packets = text(&flush, statement_rows, packet_bytes);
        let all = packets.join(";");
        prop_assert!(all.is_ascii());
        prop_assert!(packets.iter().all(|packet| packet.len() <= packet_bytes), "{packet_bytes}");
        let deletes = rows.values().filter(|value| value.is_none()).count();
        let is_large = |(key, value): (&u64, &Option<[u8; 5]>)| value.is_none() && i64::try_from(*key).is_err();
        let is_listed = deletes < JOINED_DELETE_ROWS_MIN || rows.iter().any(is_large);
        let row = if is_listed { "(`shard_id` = " } else { " UNION ALL SELECT " };
        prop_assert_eq!(all.matches(row).count(), deletes);
        prop_assert_eq!(all.matches("x'").count(), rows.len() - deletes);
    }
}
