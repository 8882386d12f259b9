//! The verification names each kind of difference, and does not take two empty sides for equal ones.
//!
//! This test fills the derived layer from the product's own calendar, so the comparison's SQL and that calendar are
//! also checked against each other on every kind of value that the workload writes.

use std::borrow::Cow;
use std::time::Duration;

use anabranch_demo::verify::{BirthdayLayer, Comparison, DerivedLayout, Differences, Layer, Verification};
use anabranch_demo::{BirthdayType, Connection, Endpoint, Pace, Topology, Workload, WorkloadOptions};
use anabranch_schemas::birthday::{Layout, MonthDay};
use anabranch_schemas::celebration::Calendar;
use anabranch_schemas::change::Value;
use anabranch_schemas::shard::{NameHash, ShardId, Spread};

use crate::workload::start_sources;

const DATABASES: u32 = 3;

fn product_layout(layout: DerivedLayout) -> Layout {
    match layout {
        DerivedLayout::ByDay => Layout::ByDay,
        DerivedLayout::ByUser => Layout::ByUser,
    }
}

async fn create_layer(target: &mut Connection, layout: DerivedLayout) {
    let mut sql = String::new();
    for database in 0..DATABASES {
        sql.push_str(&format!("CREATE OR REPLACE DATABASE birthday_{database:02};"));
        for day in
            MonthDay::all().filter(|day| product_layout(layout).has_table(DATABASES, database, day.ordinal()))
        {
            sql.push_str(&format!(
                "CREATE TABLE birthday_{database:02}.birthday_{} (shard_id BIGINT UNSIGNED, user_id BIGINT UNSIGNED, \
                 birthday CHAR(5), PRIMARY KEY (shard_id, user_id)) ENGINE=Aria TRANSACTIONAL=0;",
                day.compact()
            ));
        }
    }
    target.execute("make derived tables", sql).await.unwrap();
}

/// A birthday as the reader delivers it.
fn value(text: Option<String>, column: BirthdayType) -> Value<'static> {
    let Some(text) = text else { return Value::Null };
    if column == BirthdayType::Text {
        return Value::Bytes(Cow::Owned(text.into_bytes()));
    }
    let number = |range: std::ops::Range<usize>| text[range].parse::<u16>().unwrap();
    Value::Date { year: number(0..4), month: number(5..7) as u8, day: number(8..10) as u8 }
}

/// Fills the derived tables as the product should; returns how many claims there are.
async fn fill_layer(target: &mut Connection, topology: &Topology, layout: DerivedLayout) -> u64 {
    let mut claims = 0;
    for (index, source) in topology.sources.iter().enumerate() {
        let mut connection = source.connect(&[]).await.unwrap();
        for source_table in topology.tables_of(index) {
            let shard =
                ShardId::of(&source.name, &source_table.database_name(), &source_table.table_name(), 0);
            let sql = format!("SELECT user_id, CAST(birthday AS CHAR) FROM {}", source_table.quoted());
            let users: Vec<(u64, Option<String>)> = connection.rows("read users", sql).await.unwrap();
            let column = BirthdayType::of(source_table);
            let mut sql = String::new();
            for (user, text) in users {
                let Ok(day) = MonthDay::from_value(&value(text, column)) else { continue };
                let database = product_layout(layout).database(DATABASES, user, day.ordinal());
                sql.push_str(&format!(
                    "INSERT INTO birthday_{database:02}.birthday_{} VALUES ({shard}, {user}, '{day}');",
                    day.compact()
                ));
                claims += 1;
            }
            target.execute("fill derived tables", sql).await.unwrap();
        }
    }
    claims
}

pub struct Bench {
    pub audit: Verification,
    pub target: Connection,
}

impl Bench {
    pub async fn compare(&self) -> Comparison {
        self.audit.compare().await.unwrap()
    }

    pub async fn sql(&mut self, sql: &str) {
        self.target.execute("plant a difference", sql).await.unwrap();
    }

    /// One row of the layer: database and table, shard and user.
    async fn any_row(&mut self) -> (String, u64, u64) {
        let table = "birthday_00.birthday_0101";
        let sql = format!("SELECT shard_id, user_id FROM {table} ORDER BY user_id DESC LIMIT 1");
        let (shard, user) = self.target.first("pick a row", sql).await.unwrap().unwrap();
        (table.to_owned(), shard, user)
    }

    /// Plants a difference, expects it to be named, repairs it and expects both sides to be equal.
    pub async fn check(&mut self, plant: &str, repair: &str, expected: Differences, example: (&str, &str)) {
        self.sql(plant).await;
        let found = self.compare().await;
        assert_eq!(found.differences, expected, "{plant}: {:?}", found.examples);
        let named = found.examples.iter().any(|row| (row.row.as_str(), row.table.as_str()) == example);
        assert!(named && !found.problems().is_empty(), "{plant}: {:?}", found.examples);
        self.sql(repair).await;
        assert_eq!(self.compare().await.differences.total(), 0, "{repair}");
    }
}

async fn bench(sources: Vec<Endpoint>, target: Endpoint, layout: DerivedLayout) -> Bench {
    let topology = Topology::standard(sources, Spread::Spread, NameHash::Crc32);
    let mut workload = Workload::new(topology.clone(), WorkloadOptions::new(21));
    workload.create_schema().await.unwrap();
    let connection = target.connect(&["SET SESSION sql_log_bin = 0"]).await.unwrap();
    let layer = Layer::Birthday(BirthdayLayer {
        calendar: Calendar::Solar,
        layout,
        databases: DATABASES,
        targets: vec![target],
    });
    let mut bench = Bench { audit: Verification { topology, layer }, target: connection };
    create_layer(&mut bench.target, layout).await;
    let empty = bench.compare().await;
    assert_eq!(empty.differences.total(), 0);
    assert!(!empty.problems().is_empty(), "two empty sides passed");
    workload.insert_rows(8_000).await.unwrap();
    workload.run_for(Pace::Unlimited, Duration::from_secs(2)).await.unwrap();
    let unfilled = bench.compare().await;
    assert_eq!(unfilled.differences.missing, unfilled.claims);
    let claims = fill_layer(&mut bench.target, &bench.audit.topology, layout).await;
    let equal = bench.compare().await;
    assert_eq!(equal.problems(), Vec::<String>::new(), "{:?}", equal.differences);
    assert_eq!((equal.claims, equal.derived_rows), (claims, claims));
    assert!(equal.source_rows > claims, "no invalid birthday was written");
    bench
}

async fn plant_each_difference(bench: &mut Bench) {
    let (table, shard, user) = bench.any_row().await;
    let none = Differences::default();
    let put =
        |table: &str, birthday: &str| format!("INSERT INTO {table} VALUES ({shard}, {user}, '{birthday}')");
    let remove = |table: &str| format!("DELETE FROM {table} WHERE shard_id = {shard} AND user_id = {user}");
    let name = format!("user_id {user}");
    let (name, here) = (name.as_str(), (name.as_str(), table.as_str()));

    let missing = Differences { missing: 1, ..none };
    bench.check(&remove(&table), &put(&table, "01-01"), missing, here).await;

    let orphan = format!("INSERT INTO {table} VALUES ({shard}, 123456789012, '01-01')");
    let repair = format!("DELETE FROM {table} WHERE user_id = 123456789012");
    bench.check(&orphan, &repair, Differences { orphan: 1, ..none }, ("user_id 123456789012", &table)).await;

    // Another day of the same database.
    let other = "birthday_00.birthday_0104";
    let moved = format!("{}; {}", remove(&table), put(other, "01-04"));
    let back = format!("{}; {}", remove(other), put(&table, "01-01"));
    bench.check(&moved, &back, Differences { wrong_table: 1, ..none }, (name, other)).await;

    bench
        .check(&put(other, "01-04"), &remove(other), Differences { duplicate: 1, ..none }, (name, other))
        .await;

    let second = format!("INSERT INTO {table} VALUES (77, {user}, '01-01')");
    let repair = format!("DELETE FROM {table} WHERE shard_id = 77");
    bench.check(&second, &repair, Differences { duplicate: 1, ..none }, here).await;

    let set = |day: &str| {
        format!("UPDATE {table} SET birthday = '{day}' WHERE shard_id = {shard} AND user_id = {user}")
    };
    bench.check(&set("01-02"), &set("01-01"), Differences { wrong_birthday: 1, ..none }, here).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_difference_is_named_in_the_layout_by_day() {
    let (stack, sources) = start_sources();
    let target = Endpoint::admin(&stack, "target").unwrap();
    let mut bench = bench(sources, target, DerivedLayout::ByDay).await;
    plant_each_difference(&mut bench).await;

    bench.sql("DROP TABLE birthday_01.birthday_0102").await;
    assert!(bench.compare().await.unmet().iter().any(|text| text.contains("birthday_01.birthday_0102")));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_difference_is_named_in_the_layout_by_user() {
    let (stack, sources) = start_sources();
    let target = Endpoint::admin(&stack, "target").unwrap();
    let mut bench = bench(sources, target, DerivedLayout::ByUser).await;
    plant_each_difference(&mut bench).await;

    // The right day in the wrong database.
    let (table, shard, user) = bench.any_row().await;
    let other = "birthday_01.birthday_0101";
    let delete = |table: &str| format!("DELETE FROM {table} WHERE shard_id = {shard} AND user_id = {user};");
    let insert = |table: &str| format!("INSERT INTO {table} VALUES ({shard}, {user}, '01-01');");
    let expected = Differences { wrong_table: 1, ..Differences::default() };
    let (plant, repair) = (delete(&table) + &insert(other), delete(other) + &insert(&table));
    bench.check(&plant, &repair, expected, (&format!("user_id {user}"), other)).await;
}
