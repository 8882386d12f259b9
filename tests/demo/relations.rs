//! The workload of payment documents makes each kind of change, and the verification of the relation index names each
//! kind of difference. This test fills the index by the product's own identifiers, so those and the comparison's SQL
//! are checked against each other.

use std::time::Duration;

use anabranch_demo::verify::{Differences, Layer, RelationLayer, Verification};
use anabranch_demo::{Connection, Endpoint, Pace, Topology, Workload, WorkloadOptions};
use anabranch_schemas::change::Entity;
use anabranch_schemas::flux::id::FluxId;
use anabranch_schemas::flux::table::PARTITIONS;
use anabranch_schemas::shard::ShardId;
use anabranch_stack::{Options, ServerSpec, Stack};
use anabranch_tests::until_each_kind;

use crate::verify::Bench;

/// User partitions in each database.
const IN_EACH_DATABASE: u32 = 2;

/// A document as a source has it: identifier, parent, amount, time.
type Document = (String, Option<String>, Option<String>, Option<String>);

fn start() -> (Stack, Vec<Endpoint>) {
    let sources = ["source-a", "source-b", "source-f"];
    let options = sources.into_iter().fold(Options::empty(), |options, source| {
        options.with(ServerSpec::mariadb_source(source).without_fsync())
    });
    let stack = Stack::start(options.with(ServerSpec::mariadb_target("target").without_fsync())).unwrap();
    let sources = sources.map(|name| Endpoint::admin(&stack, name).unwrap()).to_vec();
    (stack, sources)
}

fn literal(text: Option<&str>) -> String {
    text.map_or("NULL".to_owned(), |text| format!("'{text}'"))
}

async fn create_layer(target: &mut Connection) {
    let mut sql = "CREATE OR REPLACE DATABASE flux_relations;".to_owned();
    for partition in 0..PARTITIONS {
        sql.push_str(&format!(
            "CREATE TABLE flux_relations.flux_relation_{partition:02} (id VARBINARY(31), shard_id BIGINT UNSIGNED, \
             lsn BIGINT UNSIGNED, parent_id VARBINARY(64) NULL, amount VARBINARY(40) NULL, \
             created VARBINARY(32) NULL, PRIMARY KEY (id, shard_id)) ENGINE=Aria TRANSACTIONAL=0;"
        ));
    }
    target.execute("make derived tables", sql).await.unwrap();
}

/// Fills the index as the product should; returns how many claims there are.
async fn fill_layer(target: &mut Connection, topology: &Topology) -> u64 {
    let mut claims = 0;
    for (index, source) in topology.sources.iter().enumerate() {
        let mut connection = source.connect(&[]).await.unwrap();
        for source_table in topology.tables_of(index) {
            let (database, table) = (source_table.database_name(), source_table.table_name());
            let shard = ShardId::of(&source.name, &database, &table, 0);
            let sql = format!(
                "SELECT id, parent_id, CAST(amount AS CHAR), CAST(created AS CHAR) FROM {}",
                source_table.quoted()
            );
            let rows: Vec<Document> = connection.rows("read documents", sql).await.unwrap();
            let mut sql = String::new();
            for (id, parent, amount, created) in rows {
                let parsed = FluxId::parse(id.as_bytes()).unwrap();
                let parents = parent.as_deref().map(|parent| FluxId::parse(parent.as_bytes()).unwrap());
                // The index writes a fraction of a second with six digits, and none when there is none.
                let created = created.map(|text| match text.strip_suffix(".000") {
                    Some(whole) => whole.to_owned(),
                    None => format!("{text}000"),
                });
                let values =
                    [parent.as_deref(), amount.as_deref(), created.as_deref()].map(literal).join(", ");
                let own = parsed.parts().partition;
                let other = parents.map(|parent| parent.parts().partition).filter(|other| *other != own);
                for partition in [Some(own), other].into_iter().flatten() {
                    sql.push_str(&format!(
                        "INSERT INTO flux_relations.flux_relation_{partition:02} VALUES ('{id}', {shard}, 9, {values});"
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
    let topology = Topology::flux(sources, IN_EACH_DATABASE);
    let mut workload = Workload::new(topology.clone(), WorkloadOptions::new(51));
    workload.create_schema().await.unwrap();
    workload.create_schema().await.unwrap();
    let connection = target.connect(&["SET SESSION sql_log_bin = 0"]).await.unwrap();
    let layer = Layer::Relations(RelationLayer { partitions: IN_EACH_DATABASE, targets: vec![target] });
    let mut bench = Bench { audit: Verification { topology, layer }, target: connection };
    create_layer(&mut bench.target).await;
    let empty = bench.compare().await;
    assert_eq!(empty.differences.total(), 0);
    assert!(!empty.problems().is_empty(), "two empty sides passed");

    let mut report = workload.insert_rows(3_000).await.unwrap();
    report.merge(&workload.giant_transactions().await.unwrap());
    report.merge(&workload.run_for(Pace::Unlimited, Duration::from_secs(4)).await.unwrap());
    until_each_kind(&mut workload, Pace::Unlimited, &mut report).await;
    report.merge(&workload.giant_transactions().await.unwrap());
    assert_eq!(report.absent_kinds(Entity::Flux), Vec::<&str>::new(), "{report:?}");
    let unfilled = bench.compare().await;
    assert_eq!(unfilled.differences.missing, unfilled.claims);
    let claims = fill_layer(&mut bench.target, &bench.audit.topology).await;
    let equal = bench.compare().await;
    assert_eq!(equal.problems(), Vec::<String>::new(), "{:?}", equal.differences);
    assert_eq!((equal.claims, equal.derived_rows, equal.doubled_source_rows), (claims, claims, 0));
    assert_eq!((equal.misplaced_source_rows, equal.misplaced_children), (0, 0));
    assert!(claims > equal.source_rows, "no document is in its parent's table, too");
    bench
}

/// Gives an atom a parent of another user partition, and the one that it had.
async fn a_child_of_another_partition_than_its_parents_is_counted(bench: &Bench) {
    let mut source = bench.audit.topology.sources[0].connect(&[]).await.unwrap();
    let atom = "SELECT CONVERT(id USING ascii) FROM flux_00_1.atom_10_99 LIMIT 1";
    let atom: String = source.first("pick an atom", atom).await.unwrap().unwrap();
    let of_partition = |partition: u8| {
        let parent = format!("CONCAT(LEFT(parent_id, 19), '{partition}', SUBSTRING(parent_id, 22))");
        format!("UPDATE flux_00_1.atom_10_99 SET parent_id = {parent} WHERE id = '{atom}'")
    };
    for (partition, expected) in [(11, 1), (10, 0)] {
        source.execute("change a parent", of_partition(partition)).await.unwrap();
        let found = bench.compare().await;
        assert_eq!((found.misplaced_children, found.misplaced_source_rows), (expected, 0), "{atom}");
        let problem = "1 documents are not where their parent or their date puts them";
        assert_eq!(found.problems().iter().any(|text| text == problem), expected == 1, "{found:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_difference_in_the_relation_index_is_named() {
    let (stack, sources) = start();
    let target = Endpoint::admin(&stack, "target").unwrap();
    let mut bench = bench(sources, target).await;
    let none = Differences::default();

    let table = "flux_relations.flux_relation_10";
    let sql = format!(
        "SELECT CONVERT(id USING ascii), shard_id FROM {table} WHERE parent_id IS NULL AND amount IS NOT NULL LIMIT 1"
    );
    let (id, shard): (String, u64) = bench.target.first("pick a row", sql).await.unwrap().unwrap();
    let name = format!("id {id}");
    let here = (name.as_str(), table);
    let chosen = format!("id = '{id}' AND shard_id = {shard}");
    let spare = "flux_relations.spare";
    bench.sql(&format!("CREATE TABLE {spare} AS SELECT * FROM {table} WHERE {chosen}")).await;
    let put = |table: &str| format!("INSERT INTO {table} SELECT * FROM {spare};");
    let remove = |table: &str| format!("DELETE FROM {table} WHERE {chosen};");

    bench.check(&remove(table), &put(table), Differences { missing: 1, ..none }, here).await;
    let other = "flux_relations.flux_relation_63";
    let (moved, back) = (remove(table) + &put(other), remove(other) + &put(table));
    bench.check(&moved, &back, Differences { wrong_table: 1, ..none }, (&name, other)).await;
    bench.check(&put(other), &remove(other), Differences { duplicate: 1, ..none }, (&name, other)).await;

    // A row that remains of a shard which the document has left, and one of a document that no source has.
    let left = format!("INSERT INTO {table} SELECT id, 77, lsn, parent_id, amount, created FROM {spare}");
    let repair = format!("DELETE FROM {table} WHERE shard_id = 77");
    bench.check(&left, &repair, Differences { duplicate: 1, ..none }, here).await;
    let strange = format!("{}50000000", &id[..23]);
    let insert =
        format!("INSERT INTO {table} SELECT '{strange}', 77, lsn, parent_id, amount, created FROM {spare}");
    let example = format!("id {strange}");
    bench.check(&insert, &repair, Differences { orphan: 1, ..none }, (&example, table)).await;

    let set = |set: &str| format!("UPDATE {table} SET {set} WHERE {chosen};");
    bench.check(&set("lsn = 0"), &set("lsn = 9"), Differences { no_version: 1, ..none }, here).await;
    let repair = remove(table) + &put(table);
    for change in ["amount = NULL", "amount = CONCAT(amount, '0')", "created = ''", "parent_id = id"] {
        bench.check(&set(change), &repair, Differences { wrong_field: 1, ..none }, here).await;
    }

    // A document in the table of another month; its digits still name the first one.
    let (month, elsewhere) = (&id[17..19], if &id[17..19] == "99" { "00" } else { "99" });
    let move_on_the_source = |from: &str, to: &str| {
        format!(
            "INSERT INTO flux_00_1.composite_10_{to} SELECT * FROM flux_00_1.composite_10_{from} WHERE id = '{id}'; \
             DELETE FROM flux_00_1.composite_10_{from} WHERE id = '{id}'"
        )
    };
    let source = if &id[16..17] == "0" { 0 } else { 2 };
    let mut source = bench.audit.topology.sources[source].connect(&[]).await.unwrap();
    source.execute("move a document", move_on_the_source(month, elsewhere)).await.unwrap();
    assert_eq!(bench.compare().await.misplaced_source_rows, 1);
    source.execute("move it back", move_on_the_source(elsewhere, month)).await.unwrap();
    assert_eq!(bench.compare().await.misplaced_source_rows, 0);

    a_child_of_another_partition_than_its_parents_is_counted(&bench).await;

    bench.sql("DROP TABLE flux_relations.flux_relation_99").await;
    assert!(bench.compare().await.unmet().iter().any(|text| text.contains("flux_relation_99")));
}
