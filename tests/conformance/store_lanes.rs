//! Lanes of two sources write the same tables and never each other's rows: none waits for rows that another has locked.
//!
//! A server would rather read every row of a small table than look some up, and a DELETE locks the rows that it reads.
//! It would then wait for the flush of another source until its lock wait time-out.

use std::collections::BTreeMap;
use std::time::Duration;

use anabranch_connectors::mysql::store::MysqlLane;
use anabranch_pipeline::ports::LaneStore;
use anabranch_pipeline::projections::{Defects, Projection};
use anabranch_pipeline::records::{Cell, Flush, LaneId, Progress, Replacement};
use anabranch_schemas::change::{Action, Change, Entity, TableIdentity};
use anabranch_schemas::shard::ShardId;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row};

use crate::derived::{StoreSite, insert, lsn, table, update, user};
use crate::store_mapping::boxed;

/// Mapping tables of each length class.
const TABLES: u32 = 16;
/// Number of a shard's devices, some in each table of their class.
const DEVICES: u64 = 64;
/// Devices in each table, so many that a server would read the whole of a table that has few others.
const DEVICES_A_TABLE: usize = 4;
/// Number of rounds in which both lanes meet.
const ROUNDS: u32 = 50;

fn shard_of(source: &str, number: u32) -> TableIdentity<'static> {
    TableIdentity {
        entity: Entity::SerialCode,
        shard: ShardId::of(source, "inventory_0", &number.to_string(), 0),
        database: "inventory_0".into(),
        table: number.to_string().into(),
    }
}

/// A mapping lane with its progress.
struct Lane {
    store: MysqlLane,
    source: &'static str,
    progress: Progress,
}

impl Lane {
    async fn of(site: &StoreSite, source: &'static str) -> Self {
        let id = LaneId { projection: "serials".into(), ..site.lane_id(source, 0) };
        let mut store = site.target("target-a").lane(&id).unwrap();
        let progress = store.load().await.unwrap();
        Self { store, source, progress }
    }

    /// The next flush of these changes of the source's shards.
    fn flush(&self, changes: impl IntoIterator<Item = (u32, Action<'static>)>) -> Flush {
        let mut flush = Flush::new(self.progress.clone());
        flush.progress.revision += 1;
        let lsn = lsn(10 * flush.progress.revision);
        for (number, action) in changes {
            let table = shard_of(self.source, number);
            let change = Change { lsn, table: &table, action };
            self.store.projection().project(&change, self.store.scope(), &mut flush, &mut Defects::default());
        }
        flush
    }

    async fn commit(&mut self, flush: Flush) {
        self.store.commit(&flush).await.unwrap();
        self.progress = flush.progress;
    }

    async fn apply(&mut self, changes: impl IntoIterator<Item = (u32, Action<'static>)>) {
        self.commit(self.flush(changes)).await;
    }
}

fn device(shard: u32, number: u64) -> anabranch_schemas::change::Row<'static> {
    boxed(uuid(shard, number), &code(shard, number))
}

fn uuid(shard: u32, number: u64) -> u64 {
    u64::from(shard) * 1_000_000 + number + 1
}

fn code(shard: u32, number: u64) -> Vec<u8> {
    format!("BOX-{}", uuid(shard, number)).into_bytes()
}

fn arrives(shard: u32, number: u64) -> (u32, Action<'static>) {
    (shard, Action::Insert { after: device(shard, number) })
}

fn leaves(shard: u32, number: u64) -> (u32, Action<'static>) {
    (shard, Action::Delete { before: device(shard, number) })
}

/// A counter of the server since its start.
async fn counted(admin: &mut Conn, name: &str) -> u64 {
    let counter: Option<(String, String)> =
        admin.query_first(format!("SHOW GLOBAL STATUS LIKE '{name}'")).await.unwrap();
    counter.unwrap().1.parse().unwrap()
}

/// Writes rows of a foreign shard into every derived table of these databases, and does not commit them.
async fn write_everywhere(holder: &mut Conn, databases: &str, columns: &str, values: &str) {
    let tables = format!(
        "SELECT CONCAT('`', table_schema, '`.`', table_name, '`') FROM information_schema.tables \
         WHERE table_schema LIKE '{databases}'"
    );
    let tables: Vec<String> = holder.query(tables).await.unwrap();
    assert!(!tables.is_empty(), "no tables in {databases}");
    let inserts = tables.iter().map(|table| format!("INSERT INTO {table} ({columns}) VALUES {values}"));
    let inserts: Vec<String> = inserts.collect();
    holder.query_drop(format!("START TRANSACTION; {}", inserts.join("; "))).await.unwrap();
}

/// Numbers of the lowest and of a high shard, which are none of the tests' own.
const OTHERS: [u64; 2] = [1, (1 << 62) + 1];

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_of_mapping_rows_waits_for_no_row_of_another_source() {
    let site = StoreSite { mapping_tables: TABLES, ..StoreSite::alone().await };
    site.target("target-a").setup().await.unwrap();
    let mut lane = Lane::of(&site, "source-a").await;
    lane.apply((0..DEVICES).flat_map(|number| [arrives(0, number), arrives(1, number)])).await;
    let mut holder = site.admin().await;
    let [low, high] = OTHERS;
    let values = format!("('A', {low}, 'a', 4, 1), ('BOX-7', {low}, 'a', 4, 1), ('z', {high}, 'a', 4, 1)");
    let databases = format!("serial\\_code\\_{}\\_%", site.prefix);
    write_everywhere(&mut holder, &databases, "value, shard_id, uuid, kind, lsn", &values).await;

    let mut admin = site.admin().await;
    let before = counted(&mut admin, "Innodb_row_lock_waits").await;
    lane.apply((0..DEVICES).flat_map(|number| [leaves(0, number), arrives(0, DEVICES + number)])).await;
    let mut replacing = lane.flush([]);
    let rows = (0..DEVICES).map(|number| {
        (shard_of("source-a", 1).shard, Cell::Bytes(uuid(1, number).to_string().into_bytes().into()))
    });
    // Below the stored versions, so that versions are lowered too.
    replacing.replacement = Some(Replacement { low: lsn(5), column: 1, rows: rows.collect() });
    lane.commit(replacing).await;
    lane.apply([(0, Action::Withdraw), (1, Action::Withdraw)]).await;
    assert_eq!(counted(&mut admin, "Innodb_row_lock_waits").await, before, "a flush waited for another");
    holder.query_drop("ROLLBACK").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_of_birthdays_waits_for_no_row_of_another_source() {
    let site = StoreSite { lanes: 1, ..StoreSite::alone().await };
    site.target("target-a").setup().await.unwrap();
    let (mut lane, mut progress) = site.lane("source-a", 0).await;
    let days = || (1..=28u8).map(|day| (u64::from(day), day));
    let rows = days().flat_map(|(id, day)| (0..2).map(move |shard| (1, shard, insert(user(id, 1, day)))));
    let flush = site.flush(&lane, &progress, rows.collect());
    lane.commit(&flush).await.unwrap();
    progress = flush.progress;
    let mut holder = site.admin().await;
    let [low, high] = OTHERS;
    let values = format!("({low}, 1, '01-01', 1), ({high}, 1, '01-01', 1)");
    let databases = format!("birthday\\_{}\\_%", site.prefix);
    write_everywhere(&mut holder, &databases, "shard_id, user_id, birthday, lsn", &values).await;

    let mut admin = site.admin().await;
    let before = counted(&mut admin, "Innodb_row_lock_waits").await;
    let moved = days().map(|(id, day)| (2, 0, update(user(id, 1, day), user(id, 2, day))));
    let mut replacing = site.flush(&lane, &progress, moved.collect());
    let rows: BTreeMap<_, _> = days().map(|(id, _)| ((table(1).shard, Cell::UInt(id)), ())).collect();
    replacing.replacement = Some(Replacement { low: lsn(1), column: 0, rows: rows.into_keys().collect() });
    lane.commit(&replacing).await.unwrap();
    let withdrawals = (0..2).map(|shard| (3, shard, Action::Withdraw));
    let flush = site.flush(&lane, &replacing.progress, withdrawals.collect());
    lane.commit(&flush).await.unwrap();
    assert_eq!(counted(&mut admin, "Innodb_row_lock_waits").await, before, "a flush waited for another");
    holder.query_drop("ROLLBACK").await.unwrap();
}

/// The other transaction has written more rows than the flush, so the server ends the flush's.
#[tokio::test(flavor = "multi_thread")]
async fn a_flush_that_a_deadlock_ends_begins_anew_and_is_committed() {
    let site = StoreSite { lanes: 1, ..StoreSite::new().await };
    site.target("target-a").setup().await.unwrap();
    let (mut lane, progress) = site.lane("source-a", 0).await;
    let both = |at| vec![(at, 0, insert(user(1, 1, 1))), (at, 0, insert(user(2, 1, 2)))];
    let written = site.flush(&lane, &progress, both(1));
    lane.commit(&written).await.unwrap();
    let (first, second) = (site.table(0, "0101"), site.table(1, "0102"));
    let (mut holder, mut admin) = (site.admin().await, site.admin().await);
    let rows: Vec<String> = (100..200).map(|id| format!("(1, {id}, '01-02', 1)")).collect();
    let holds = format!(
        "START TRANSACTION; INSERT INTO {second} (shard_id, user_id, birthday, lsn) VALUES {}; \
         SELECT * FROM {second} WHERE user_id = 2 FOR UPDATE",
        rows.join(",")
    );
    holder.query_drop(holds).await.unwrap();
    let waits = format!(
        "SELECT COUNT(*) FROM information_schema.innodb_trx \
         WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE '%birthday\\_{}\\_%'",
        site.prefix
    );
    let next = site.flush(&lane, &written.progress, both(2));
    let meets = async {
        while admin.query_first::<u64, _>(waits.as_str()).await.unwrap() != Some(1) {
            // The server refreshes this table only after a tenth of a second without a reader.
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        holder.query_drop(format!("UPDATE {first} SET lsn = 1 WHERE user_id = 1")).await.unwrap();
        holder.query_drop("ROLLBACK").await.unwrap();
    };
    let (committed, ()) = tokio::join!(lane.commit(&next), meets);
    committed.unwrap();
    let versions: Vec<u64> = site.rows().await.into_values().map(|(_, version, _)| version).collect();
    assert_eq!(versions, [2, 2]);
}

/// Some devices of a shard in each mapping table of boxes, in the order of tables.
fn some_a_table(projection: &Projection, shard: u32) -> Vec<u64> {
    let table_of = |number: u64| {
        let mut table = None;
        let (source, row) = (shard_of("source", shard), device(shard, number));
        projection.claims(&source, &row, |claim| table = Some(claim.table));
        table.expect("a device with a box has a row")
    };
    let mut of_tables: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for number in 0..100 * u64::from(TABLES) {
        let of_table = of_tables.entry(table_of(number)).or_default();
        if of_table.len() < DEVICES_A_TABLE {
            of_table.push(number);
        }
    }
    let numbers: Vec<u64> = of_tables.into_values().flatten().collect();
    assert_eq!(numbers.len(), DEVICES_A_TABLE * TABLES as usize, "there are devices enough for each table");
    numbers
}

/// One source withdraws rows of high tables and deletes in low ones, in one flush; another one writes all of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_withdrawal_and_small_flushes_of_another_source_at_once_cost_no_deadlock_and_no_time_out() {
    let site = StoreSite { mapping_tables: TABLES, ..StoreSite::alone().await };
    site.target("target-a").setup().await.unwrap();
    let mut withdrawing = Lane::of(&site, "source-a").await;
    let mut writing = Lane::of(&site, "source-b").await;
    let middle = DEVICES_A_TABLE * TABLES as usize / 2;
    let high = some_a_table(withdrawing.store.projection(), 0).split_off(middle);
    let mut low = some_a_table(withdrawing.store.projection(), 1);
    low.truncate(middle);
    let everywhere = some_a_table(writing.store.projection(), 2);
    let mut admin = site.admin().await;
    let metrics = "SET GLOBAL innodb_monitor_enable = 'lock_deadlocks'; \
                   SET GLOBAL innodb_monitor_enable = 'lock_timeouts'";
    admin.query_drop(metrics).await.unwrap();
    let withdrawals = async {
        for _ in 0..ROUNDS {
            let high = high.iter().map(|number| arrives(0, *number));
            withdrawing.apply(high.chain(low.iter().map(|number| arrives(1, *number)))).await;
            let gone = [(0, Action::Withdraw)].into_iter();
            withdrawing.apply(gone.chain(low.iter().map(|number| leaves(1, *number)))).await;
        }
    };
    let flushes = async {
        loop {
            writing.apply(everywhere.iter().map(|number| arrives(2, *number))).await;
            writing.apply(everywhere.iter().map(|number| leaves(2, *number))).await;
        }
    };
    tokio::select! {
        () = withdrawals => {}
        () = flushes => unreachable!("it has no end"),
    }
    let metrics = "SELECT name, count FROM information_schema.innodb_metrics \
                   WHERE name IN ('lock_deadlocks', 'lock_timeouts')";
    let counted: Vec<Row> = admin.query(metrics).await.unwrap();
    let counted: BTreeMap<String, u64> = counted.into_iter().map(mysql_async::from_row).collect();
    assert_eq!(counted.values().sum::<u64>(), 0, "{counted:?}");
}
