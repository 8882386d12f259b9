//! The verification of mapping tables names each kind of difference. This test fills the tables by the product's own
//! rules, so those and the comparison's SQL are checked against each other on every kind of code.

use std::time::Duration;

use anabranch_demo::verify::{Differences, Layer, MappingLayer, Verification};
use anabranch_demo::{Connection, Endpoint, Pace, Topology, Workload, WorkloadOptions};
use anabranch_schemas::serial::{CodeKind, LengthClass, StoredCode};
use anabranch_schemas::shard::ShardId;

use crate::verify::Bench;
use crate::workload::start_sources;

/// Tables by each rule; not a power of two, so that each digit of a value counts.
const TABLES: u32 = 7;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn create_layer(target: &mut Connection) {
    let mut sql = String::new();
    for class in LengthClass::ALL {
        let database = format!("serial_code_{}", class.name());
        sql.push_str(&format!("CREATE OR REPLACE DATABASE {database};"));
        for table in 0..TABLES {
            sql.push_str(&format!(
                "CREATE TABLE {database}.mapping_{table:03} (value VARBINARY(255), shard_id BIGINT UNSIGNED, \
                 uuid VARBINARY(64), kind TINYINT UNSIGNED, lsn BIGINT UNSIGNED, \
                 PRIMARY KEY (value, shard_id, uuid, kind)) ENGINE=Aria TRANSACTIONAL=0;"
            ));
        }
    }
    target.execute("make derived tables", sql).await.unwrap();
}

/// Fills the mapping tables as the product should; returns how many claims there are.
async fn fill_layer(target: &mut Connection, topology: &Topology) -> u64 {
    let mut claims = 0;
    for (index, source) in topology.sources.iter().enumerate() {
        let mut connection = source.connect(&[]).await.unwrap();
        for source_table in topology.tables_of(index) {
            let shard =
                ShardId::of(&source.name, &source_table.database_name(), &source_table.table_name(), 0);
            let codes = CodeKind::ALL.map(|kind| format!("CAST({} AS BINARY)", kind.name())).join(", ");
            let sql = format!("SELECT CAST(uuid AS BINARY), {codes} FROM {}", source_table.quoted());
            let rows: Vec<mysql_async::Row> = connection.rows("read devices", sql).await.unwrap();
            let mut sql = String::new();
            for row in rows {
                let uuid: Vec<u8> = row.get(0).unwrap();
                for kind in CodeKind::ALL {
                    let code: Option<Vec<u8>> = row.get(usize::from(kind.number())).unwrap();
                    let Some(value) = StoredCode::new(kind, &code.unwrap_or_default()) else { continue };
                    let (class, table) = (value.length_class().name(), value.table(TABLES));
                    sql.push_str(&format!(
                        "INSERT INTO serial_code_{class}.mapping_{table:03} VALUES (x'{}', {shard}, x'{}', {}, 9);",
                        hex(value.as_bytes()),
                        hex(&uuid),
                        kind.number()
                    ));
                    claims += 1;
                }
            }
            target.execute("fill derived tables", sql).await.unwrap();
        }
    }
    claims
}

async fn bench(sources: Vec<Endpoint>, target: Endpoint) -> Bench {
    let topology = Topology::serials(sources, 4);
    let mut workload = Workload::new(topology.clone(), WorkloadOptions::new(31));
    workload.create_schema().await.unwrap();
    workload.create_schema().await.unwrap();
    let connection = target.connect(&["SET SESSION sql_log_bin = 0"]).await.unwrap();
    let layer = Layer::Mapping(MappingLayer { tables: TABLES, targets: vec![target] });
    let mut bench = Bench { audit: Verification { topology, layer }, target: connection };
    create_layer(&mut bench.target).await;
    let empty = bench.compare().await;
    assert_eq!(empty.differences.total(), 0);
    assert!(!empty.problems().is_empty(), "two empty sides passed");

    workload.insert_rows(1_000).await.unwrap();
    workload.run_for(Pace::of(500), Duration::from_secs(2)).await.unwrap();
    let unfilled = bench.compare().await;
    assert_eq!(unfilled.differences.missing, unfilled.claims);
    let claims = fill_layer(&mut bench.target, &bench.audit.topology).await;
    let equal = bench.compare().await;
    assert_eq!(equal.problems(), Vec::<String>::new(), "{:?}", equal.differences);
    assert_eq!((equal.claims, equal.derived_rows, equal.doubled_source_rows), (claims, claims, 0));
    bench
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_difference_in_mapping_tables_is_named() {
    let (stack, sources) = start_sources();
    let target = Endpoint::admin(&stack, "target").unwrap();
    let mut bench = bench(sources, target).await;
    let none = Differences::default();

    // A phone's first IMEI; the phone has other codes too.
    let table = "serial_code_15.mapping_003";
    let sql = format!(
        "SELECT HEX(i.value), i.shard_id, CONVERT(i.uuid USING ascii) FROM {table} i
         JOIN serial_code_14.mapping_000 m USING (shard_id, uuid) WHERE i.kind = 1 LIMIT 1"
    );
    let (value, shard, uuid): (String, u64, String) =
        bench.target.first("pick a row", sql).await.unwrap().unwrap();
    let row = format!("(x'{value}', {shard}, '{uuid}', 1, 9)");
    let put = |table: &str| format!("INSERT INTO {table} VALUES {row};");
    let remove = |table: &str| {
        format!(
            "DELETE FROM {table} WHERE value = x'{value}' AND shard_id = {shard} AND uuid = '{uuid}' AND kind = 1;"
        )
    };
    let name = format!("uuid {uuid} imei1");
    let here = (name.as_str(), table);

    bench.check(&remove(table), &put(table), Differences { missing: 1, ..none }, here).await;

    // A code that no device has.
    let strange = format!("INSERT INTO {table} VALUES ('nobody has this', {shard}, '{uuid}', 5, 9)");
    let repair = format!("DELETE FROM {table} WHERE value = 'nobody has this'");
    let example = format!("uuid {uuid} item_code");
    bench.check(&strange, &repair, Differences { orphan: 1, ..none }, (&example, table)).await;

    // The right code as another kind.
    let other_kind =
        format!("UPDATE {table} SET kind = 2 WHERE value = x'{value}' AND uuid = '{uuid}' AND kind = 1");
    let repair =
        format!("UPDATE {table} SET kind = 1 WHERE value = x'{value}' AND uuid = '{uuid}' AND kind = 2");
    bench.check(&other_kind, &repair, Differences { missing: 1, orphan: 1, ..none }, here).await;

    // In another table, by number or by length, in addition to the right one.
    for other in ["serial_code_15.mapping_004", "serial_code_other.mapping_003"] {
        let (moved, back) = (remove(table) + &put(other), remove(other) + &put(table));
        bench.check(&moved, &back, Differences { wrong_table: 1, ..none }, (&name, other)).await;
        bench.check(&put(other), &remove(other), Differences { duplicate: 1, ..none }, (&name, other)).await;
    }

    // A row that remains of a shard which the device has left.
    let left = format!("INSERT INTO {table} VALUES (x'{value}', 77, '{uuid}', 1, 9)");
    let repair = format!("DELETE FROM {table} WHERE shard_id = 77");
    bench.check(&left, &repair, Differences { duplicate: 1, ..none }, here).await;

    let set = |lsn| {
        format!("UPDATE {table} SET lsn = {lsn} WHERE value = x'{value}' AND uuid = '{uuid}' AND kind = 1")
    };
    bench.check(&set(0), &set(9), Differences { no_version: 1, ..none }, here).await;

    bench.sql("DROP TABLE serial_code_14.mapping_002").await;
    assert!(bench.compare().await.unmet().iter().any(|text| text.contains("serial_code_14.mapping_002")));
}
