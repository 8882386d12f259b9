//! Derived rows on real servers: the index that a page uses, and rows that no lane has written.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use anabranch_pipeline::error::Code;
use anabranch_pipeline::ports::{DerivedRowQuery, DerivedRows, ForeignRows};
use anabranch_pipeline::records::{Cell, CellRef, DerivedRow};
use anabranch_schemas::shard::ShardId;
use mysql_async::Row;
use mysql_async::prelude::Queryable;
use reqwest::Method;
use serde_json::{Value as Json, json};

use crate::derived::StoreSite;
use crate::ports::derived_rows::{
    BirthdayServer, DocumentsServer, Found, Ground, MappingServer, Source, foreign, found, pages, random,
    whole, written,
};
use crate::search::shard;

fn rows(rows: usize) -> NonZeroUsize {
    NonZeroUsize::new(rows).unwrap()
}

/// The server's plan of each statement that has read derived rows since the log of statements was turned on.
async fn plans(site: &StoreSite) -> Vec<(String, String, String)> {
    let mut admin = site.admin().await;
    let noted = "SELECT CONVERT(argument USING utf8mb4) FROM mysql.general_log WHERE argument LIKE 'SELECT `shard_id`%'";
    let mut plans = Vec::new();
    for sql in admin.query::<String, _>(noted).await.unwrap() {
        let plan: Vec<Row> = admin.query(format!("EXPLAIN {sql}")).await.unwrap();
        let text = |name: &str| plan[0].get::<Option<String>, _>(name).flatten().unwrap_or_default();
        plans.push((text("type"), text("key"), text("Extra")));
    }
    plans
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_is_a_range_of_one_index_that_has_all_of_it() {
    let site = StoreSite { mapping_tables: 2, lanes: 2, ..StoreSite::alone().await };
    site.target("target-a").setup().await.unwrap();
    let ground = MappingServer(site);
    let mut mapping = Source::of(&ground).await;
    mapping.fill(&mut random()).await;
    let site = ground.0;
    // Enough rows that the server would read them all if it may choose.
    let table = format!("`serial_code_{}_other`.`mapping_000`", site.prefix);
    site
        .sql(format!(
            "USE mysql; INSERT INTO {table} SELECT CONCAT('v', seq), seq % 7, CONCAT('u', seq % 1000), 4, 1 FROM seq_1_to_20000; \
             INSERT INTO {} SELECT seq % 7, seq, '02-29', 0, NULL, NULL, 1 FROM seq_1_to_20000; ANALYZE TABLE {table}",
            site.table(59, "0229")
        ))
        .await;
    site.sql("SET GLOBAL log_output = 'TABLE', GLOBAL general_log = 1").await;
    let target = site.target("target-a");
    let (low, high) = (ShardId::from_u64(2).unwrap(), ShardId::from_u64(4).unwrap());
    let tables = [("birthday", 59), ("serials", 4)];
    for (projection, table) in tables {
        let (reader, mut after, mut count) = (target.rows(projection, 1).unwrap(), None, 0);
        loop {
            let visit = &mut |_: DerivedRow<'_>| count += 1;
            after = reader.page(table, low..=high, after.as_ref(), rows(3000), visit).await.unwrap();
            if after.is_none() {
                break;
            }
        }
        assert!((8565..8600).contains(&count), "three of seven shards: {count}");
    }
    site.sql("SET GLOBAL general_log = 0").await;
    let plans = plans(&site).await;
    assert_eq!(plans.len(), 6, "three pages each");
    for (kind, key, extra) in &plans {
        assert_eq!(kind, "range", "{plans:?}");
        assert!(!extra.contains("filesort"), "{plans:?}");
        assert!(key == "PRIMARY" || key == "shard_id" && extra.contains("Using index"), "{plans:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_no_lane_writes_are_met_once_beside_all_others_and_removed() {
    let ground = BirthdayServer::start().await;
    let (reader, site, mut source) = (ground.rows(), &ground.0, Source::of(&ground).await);
    source.change((0..40).map(|key| (0, key, Some(key as u8))).collect()).await;
    let insert = (0..5).map(|key| format!("((1 << 63) + {key}, {key}, '01-01', 0, NULL, NULL, 1)"));
    let insert = insert.collect::<Vec<_>>().join(",");
    site.sql(format!("INSERT INTO {} VALUES {insert}", site.table(0, "0101"))).await;
    let middle = ShardId::from_u64(u64::MAX >> 2).unwrap();
    let later = ShardId::from_u64(middle.as_u64() + 1).unwrap();
    for size in [1, 2, 100] {
        let (mut strays, mut claims) = (Vec::new(), Vec::new());
        for shards in [*whole().start()..=middle, later..=*whole().end()] {
            let mut after = None;
            loop {
                let visit = &mut |row: DerivedRow<'_>| match row {
                    DerivedRow::Claimed(row) | DerivedRow::Retired(row) => claims.push(found(row)),
                    DerivedRow::Stray(row) => {
                        assert_eq!(row.key, [CellRef::UInt(row.shard.unwrap() - (1 << 63))]);
                        strays.push(row.shard.unwrap());
                    }
                };
                after = reader.page(0, shards.clone(), after.as_ref(), rows(size), visit).await.unwrap();
                if after.is_none() {
                    break;
                }
            }
        }
        assert_eq!(strays, [0, 1, 2, 3, 4].map(|key| (1 << 63) + key), "{size} rows a page");
        assert!(claims.iter().all(|found| source.claims().contains(found)));
    }
    let known = [crate::derived::table(0).shard].into();
    let read = foreign(&reader, &source.projection, &known, 2).await;
    assert_eq!((read.len(), read[0].len()), (1, 5), "{read:?}");
    assert!(read[0].iter().all(|row| row.owner.is_none()));
    assert_eq!(reader.remove(&read[0]).await.unwrap(), 5);
    assert_eq!(pages(&reader, &source.projection, &whole(), 100).await, source.claims());
    site.sql(format!("DROP TABLE {}", site.table(0, "0101"))).await;
    let fault = reader.page(0, whole(), None, rows(10), &mut |_| ()).await.unwrap_err();
    assert_eq!(fault.code(), Code::TargetTableMissing, "{fault}");
}

/// Changes a document by hand.
async fn edit(ground: &DocumentsServer, id: &str, change: Edit) {
    let path = format!("{}/_doc/{id}", ground.0.index());
    let mut document = ground.0.admin(Method::GET, &path, Json::Null).await["_source"].take();
    change(document.as_object_mut().unwrap());
    ground.0.admin(Method::PUT, &format!("{path}?refresh=true"), document).await;
}

type Edit = fn(&mut serde_json::Map<String, Json>);

#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_a_hand_has_changed_equals_no_claim() {
    let ground = DocumentsServer::start().await;
    let (reader, mut source) = (ground.rows(), Source::of(&ground).await);
    source.change((1..10).map(|key| (0, key, Some(1))).collect()).await;
    let claims = source.claims();
    let of = |key: u64| {
        let uuid = Cell::Bytes(key.to_string().into_bytes().into());
        claims.iter().find(|found| found.2 == [uuid.clone()]).unwrap().clone()
    };
    let edits: [(u64, Edit); 7] = [
        (1, |document| document["lane"] = json!(7)),
        (2, |document| drop(document.remove("withdrawn"))),
        (3, |document| drop(document.insert("codes".to_owned(), json!("BOX-9")))),
        (5, |document| document["shard_id"] = json!("7")),
        (6, |document| document["uuid"] = json!("7")),
        (7, |document| document["sku_code"] = json!("other")),
        (9, |document| document["lsn"] = json!(8)),
    ];
    let shard_id = shard(0).shard;
    for (key, change) in edits {
        edit(&ground, &format!("{shard_id}-{key}"), change).await;
    }
    let paged = pages_with_parts(&reader).await;
    let by_id = Arc::new(Mutex::new(Vec::new()));
    let sought: Vec<DerivedRowQuery> = claims
        .iter()
        .map(|found| DerivedRowQuery { table: found.0, shard: found.1, key: found.2[0].clone() })
        .collect();
    reader.rows(&sought, &mut |claimed| by_id.lock().unwrap().push(found(claimed))).await.unwrap();
    let mut by_id = by_id.lock().unwrap().clone();
    by_id.sort();
    assert_eq!(by_id, paged, "both ways see the same");
    assert_eq!(by_id.len(), claims.len());
    for (key, _) in edits {
        let (table, shard, uuid, values) = of(key);
        let changed = by_id.iter().find(|found| found.2 == uuid).unwrap();
        assert_eq!((changed.0, changed.1), (table, shard), "device {key}");
        assert_ne!(changed.3, values, "device {key}");
    }
    let is_untouched = |found: &&Found| claims.contains(*found);
    assert_eq!(by_id.iter().filter(is_untouched).count(), claims.len() - edits.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_that_no_lane_writes_are_met_once_beside_all_others_and_removed() {
    let ground = DocumentsServer::start().await;
    let (reader, mut source) = (ground.rows(), Source::of(&ground).await);
    source.change((1..10).map(|key| (0, key, Some(1))).collect()).await;
    let id_of = |id: &str| format!("{}/_doc/{id}?refresh=true", ground.0.index());
    let own = shard(0).shard.to_string();
    // By hand: documents without our fields, with a text as shard, with a known shard, and above all shards.
    let foreign_documents = [
        ("hand", json!({ "sku_code": "a secret" })),
        ("text", json!({ "shard_id": "a secret", "lane": 1 })),
        (
            "ours",
            json!({ "shard_id": own, "uuid": "1", "lane": 0, "lsn": 1, "withdrawn": false, "source": "x" }),
        ),
        ("18446744073709551615-1", json!({ "shard_id": "18446744073709551615", "lane": 1 })),
    ];
    for (id, document) in &foreign_documents {
        ground.0.admin(Method::PUT, &id_of(id), document.clone()).await;
    }
    let middle = ShardId::from_u64(u64::MAX >> 2).unwrap();
    let later = ShardId::from_u64(middle.as_u64() + 1).unwrap();
    let (mut strays, mut claims) = (Vec::new(), Vec::new());
    for (table, shards) in [0, 1]
        .into_iter()
        .flat_map(|table| [*whole().start()..=middle, later..=*whole().end()].map(|shards| (table, shards)))
    {
        let mut after = None;
        loop {
            let visit = &mut |row: DerivedRow<'_>| match row {
                DerivedRow::Claimed(row) | DerivedRow::Retired(row) => claims.push(found(row)),
                DerivedRow::Stray(row) => {
                    let [CellRef::Bytes(id)] = row.key else { panic!("{row:?}") };
                    strays.push((String::from_utf8_lossy(id).into_owned(), row.shard));
                }
            };
            after = reader.page(table, shards.clone(), after.as_ref(), rows(2), visit).await.unwrap();
            if after.is_none() {
                break;
            }
        }
    }
    strays.sort();
    let reported = [
        ("18446744073709551615-1", Some(u64::MAX)),
        ("hand", None),
        ("ours", Some(shard(0).shard.as_u64())),
        ("text", None),
    ];
    assert_eq!(strays, reported.map(|(id, shard)| (id.to_owned(), shard)));
    assert_eq!(claims.len(), source.claims().len());
    let known = [shard(0).shard].into();
    let read = foreign(&reader, &source.projection, &known, 3).await;
    assert_eq!(read.iter().map(Vec::len).sum::<usize>(), 4, "{read:?}");
    // One of them is written again, so it is not the document that was read.
    ground.0.admin(Method::PUT, &id_of("hand"), json!({ "sku_code": "another" })).await;
    let mut removed = 0;
    for of_part in &read {
        removed += reader.remove(of_part).await.unwrap();
    }
    assert_eq!(removed, 3);
    let read = foreign(&reader, &source.projection, &known, 3).await;
    assert_eq!((read.len(), read[0].len()), (1, 1), "{read:?}");
    assert_eq!(reader.remove(&read[0]).await.unwrap(), 1);
    assert_eq!(pages(&reader, &source.projection, &whole(), 100).await, source.claims());
}

/// Reads all documents, in order; even one with a wrong part.
async fn pages_with_parts(reader: &impl DerivedRows) -> Vec<Found> {
    let mut all = Vec::new();
    for table in 0..2 {
        let mut after = None;
        loop {
            let visit = &mut |row: DerivedRow<'_>| all.push(written(row));
            after = reader.page(table, whole(), after.as_ref(), rows(2), visit).await.unwrap();
            if after.is_none() {
                break;
            }
        }
    }
    all.sort();
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn many_keys_are_read_by_several_statements() {
    let ground = BirthdayServer::start().await;
    let mut source = Source::of(&ground).await;
    source.change((0..1000).map(|key| (0, key, Some(key as u8))).collect()).await;
    let expected = pages(&ground.rows(), &source.projection, &whole(), 1000).await;
    assert_eq!(expected, source.claims());
    let sought: Vec<DerivedRowQuery> = expected
        .iter()
        .map(|found| DerivedRowQuery { table: found.0, shard: found.1, key: found.2[0].clone() })
        .collect();
    let mut seen = Vec::new();
    ground.rows().rows(&sought, &mut |claimed| seen.push(found(claimed))).await.unwrap();
    seen.sort();
    assert_eq!(seen, expected.into_iter().collect::<Vec<_>>());
}
