//! Rows of source tables: chunks at a watermark.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use anabranch_pipeline::error::{Class, Code, Fault};
use anabranch_pipeline::ports::{BinlogStart, RowSource, SourceConnector};
use anabranch_pipeline::records::{Cell, Chunk, Condition, ScanCursor};
use anabranch_schemas::change::{Action, TableIdentity, Value};
use anabranch_schemas::codec;
use anabranch_schemas::lsn::{FIRST_EPOCH, Lsn};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

pub use super::source::{Ground, Server, Twin};
use super::source::{delete, insert, update};
use crate::source::{Seen, SourceProbe, row_text};

on_twin_and_every_server!(Twin, Server:
    chunks_hold_every_row_once_in_the_order_of_the_key,
    a_chunk_holds_what_lies_up_to_its_watermark_and_nothing_else,
    a_table_without_rows_is_one_chunk_with_a_watermark,
    tables_without_a_first_row_are_empty,
    the_usual_names_have_those_of_tables_that_exist,
    the_watermark_of_a_quiet_source_is_reached,
    the_watermark_is_said_in_the_epoch_that_is_asked_for,
    rows_of_keys_are_those_of_the_table,
    a_condition_finds_the_rows_that_it_holds_for_a_part_at_a_time,
    what_no_row_can_be_compared_with_is_refused,
);

pub fn rows(rows: usize) -> NonZeroUsize {
    NonZeroUsize::new(rows).unwrap()
}

/// The rows as text; each must be an insert at the watermark into the table.
pub fn texts(table: &TableIdentity<'_>, chunk: &Chunk) -> Vec<String> {
    let texts = texts_of(table, chunk);
    assert_eq!(texts.len() as u64, chunk.rows, "rows of other tables");
    texts
}

/// The rows of one table in a chunk that may have rows of others too.
fn texts_of(table: &TableIdentity<'_>, chunk: &Chunk) -> Vec<String> {
    let (mut texts, mut changes) = (Vec::new(), codec::decode(&chunk.payload).unwrap());
    while let Some(change) = changes.next().unwrap() {
        assert_eq!(change.lsn, chunk.low);
        let Action::Insert { after } = &change.action else { panic!("{:?}", change.action) };
        if change.table == table {
            texts.push(row_text(after));
        }
    }
    texts
}

pub async fn table_of(source: &impl RowSource, name: &str) -> TableIdentity<'static> {
    let tables = source.tables().await.unwrap();
    assert!(tables.is_sorted_by_key(|table| table.shard));
    tables.into_iter().find(|table| table.table == name).unwrap()
}

/// Reads all chunks of a table.
pub async fn whole(
    source: &impl RowSource,
    table: &TableIdentity<'static>,
    size: usize,
) -> Result<Vec<Chunk>, Fault> {
    let (mut chunks, mut after): (Vec<Chunk>, Option<ScanCursor>) = (Vec::new(), None);
    loop {
        let chunk = source.chunk(table, after.as_ref(), rows(size), FIRST_EPOCH).await?;
        after.clone_from(&chunk.next);
        chunks.push(chunk);
        if after.is_none() {
            return Ok(chunks);
        }
    }
}

async fn the_usual_names_have_those_of_tables_that_exist(ground: impl Ground) {
    let source = ground.connector();
    ground.commit(&[insert(0, 1, 1)]).await;
    let table = table_of(&source, "t0").await;
    let mut is_among = false;
    source.visit_likely_tables(table.entity, &mut |likely| is_among |= *likely == table);
    assert!(is_among, "{table:?}");
}

async fn chunks_hold_every_row_once_in_the_order_of_the_key(ground: impl Ground) {
    let source = ground.connector();
    for user in [7, 3, 200, 100, 5, 1] {
        ground.commit(&[insert(0, user, 1), insert(1, user + 1, 2)]).await;
    }
    let table = table_of(&source, "t0").await;
    let expected = [1, 3, 5, 7, 100, 200].map(|user| format!("{user} 2000-01-01"));
    for size in [1, 2, 4, 6, 7] {
        let chunks = whole(&source, &table, size).await.unwrap();
        let found: Vec<String> = chunks.iter().flat_map(|chunk| texts(&table, chunk)).collect();
        assert_eq!(found, expected, "{size} rows a chunk");
        assert!(chunks.iter().all(|chunk| chunk.rows <= size as u64));
        assert!(chunks.iter().is_sorted_by_key(|chunk| chunk.low));
        let (mut visited, mut after) = (Vec::new(), None);
        for chunk in &chunks {
            let mut visit = |row: &[Value<'_>]| visited.push(row_text(row));
            after = source.page(&table, after.as_ref(), rows(size), &mut visit).await.unwrap();
            assert_eq!(after, chunk.next);
        }
        assert_eq!(visited, expected, "{size} rows a page");
    }
}

/// The rows of a table by the binlog, up to a position.
fn replayed(seen: &[Seen], table: &str, up_to: Lsn) -> BTreeMap<u64, String> {
    let mut rows = BTreeMap::new();
    for seen in seen.iter().filter(|seen| seen.lsn <= up_to) {
        let Some(what) = seen.text.strip_prefix(&format!("{table} ")) else { continue };
        let key = |row: &str| row.split(' ').next().unwrap().parse::<u64>().unwrap();
        match (what.strip_prefix("+ "), what.strip_prefix("- "), what.split_once(" ~ ")) {
            (Some(row), ..) => _ = rows.insert(key(row), row.to_owned()),
            (_, Some(row), _) => _ = rows.remove(&key(row)),
            (.., Some((before, after))) => {
                rows.remove(&key(before));
                rows.insert(key(after), after.to_owned());
            }
            _ => rows.clear(),
        }
    }
    rows
}

fn keys(users: impl IntoIterator<Item = u64>) -> Vec<Cell> {
    users.into_iter().map(Cell::UInt).collect()
}

async fn rows_of_keys_are_those_of_the_table(ground: impl Ground) {
    let source = ground.connector();
    for user in [7, 3, 200, 100, 5, 1] {
        ground.commit(&[insert(0, user, 1), insert(1, user + 1, 2)]).await;
    }
    let tables = [table_of(&source, "t0").await, table_of(&source, "t1").await];
    let chunk = source.rows(&[(tables[0].clone(), keys([200, 4, 3, 201]))], FIRST_EPOCH).await.unwrap();
    assert_eq!(texts(&tables[0], &chunk), ["3 2000-01-01", "200 2000-01-01"]);
    assert_eq!(chunk.next, None);
    let wanted = tables.clone().map(|table| (table, keys([200, 201, 4])));
    let both = source.rows(&wanted, FIRST_EPOCH).await.unwrap();
    assert_eq!((both.rows, &both.next, both.low), (3, &None, chunk.low));
    let [first, second] = tables.map(|table| texts_of(&table, &both));
    assert_eq!(
        (first, second),
        (vec!["200 2000-01-01".to_owned()], vec!["4 2000-01-02".to_owned(), "201 2000-01-02".to_owned()])
    );
    let none = source.rows(&[], FIRST_EPOCH).await.unwrap();
    assert_eq!((none.rows, none.next, none.low), (0, None, chunk.low));
}

async fn tables_without_a_first_row_are_empty(ground: impl Ground) {
    let source = ground.connector();
    ground.commit(&[insert(0, 7, 1), insert(0, 3, 2), insert(1, 5, 1)]).await;
    ground.commit(&[delete(1, 5, 1)]).await;
    let tables = [table_of(&source, "t0").await, table_of(&source, "t1").await];
    let chunk = source.first_rows(&tables, FIRST_EPOCH).await.unwrap();
    assert_eq!((texts(&tables[0], &chunk), &chunk.next), (vec!["3 2000-01-02".to_owned()], &None));
    let empty = source.first_rows(&tables[1..], FIRST_EPOCH).await.unwrap();
    assert_eq!((empty.rows, empty.low, empty.high), (0, chunk.low, chunk.high));
    ground.commit(&[insert(1, 9, 1)]).await;
    let both = source.first_rows(&tables, FIRST_EPOCH).await.unwrap();
    assert_eq!((both.rows, texts_of(&tables[1], &both)), (2, vec!["9 2000-01-01".to_owned()]));
}

pub fn condition(comparisons: &[&str]) -> Condition {
    Condition::new(comparisons.iter().map(|text| text.parse().unwrap()).collect()).unwrap()
}

async fn a_condition_finds_the_rows_that_it_holds_for_a_part_at_a_time(ground: impl Ground) {
    let source = ground.connector();
    for user in [7, 3, 200, 100, 5, 1] {
        ground.commit(&[insert(0, user, 1 + (user % 2) as u8), insert(1, user, 1)]).await;
    }
    let table = table_of(&source, "t0").await;
    for (comparisons, expected) in [
        (vec!["user_id >= 5", "user_id < 200"], vec![5, 7, 100]),
        (vec!["user_id > 5", "user_id <= 200"], vec![7, 100, 200]),
        (vec!["user_id = 7"], vec![7]),
        (vec!["user_id = 8"], vec![]),
        (vec!["user_id >= 0"], vec![1, 3, 5, 7, 100, 200]),
        (vec!["birthday = 2000-01-01"], vec![100, 200]),
        (vec!["birthday > 2000-01-01", "user_id > 1"], vec![3, 5, 7]),
    ] {
        let (condition, mut found, mut after) = (condition(&comparisons), Vec::new(), None);
        loop {
            let chunk =
                source.matching(&table, &condition, after.as_ref(), rows(2), FIRST_EPOCH).await.unwrap();
            assert!(chunk.rows <= 2);
            found.extend(texts(&table, &chunk));
            after = chunk.next;
            if after.is_none() {
                break;
            }
        }
        let expected: Vec<String> =
            expected.into_iter().map(|user| format!("{user} 2000-01-0{}", 1 + user % 2)).collect();
        assert_eq!(found, expected, "{comparisons:?}");
    }
}

async fn what_no_row_can_be_compared_with_is_refused(ground: impl Ground) {
    let source = ground.connector();
    ground.commit(&[insert(0, 1, 1)]).await;
    let table = table_of(&source, "t0").await;
    for (comparison, expected) in [
        ("age = 7", Code::SourceColumnMissing),
        ("user_id = x", Code::RefreshRefused),
        ("user_id > 2000-01-01", Code::RefreshRefused),
        ("birthday > 7", Code::RefreshRefused),
    ] {
        let refused = source.matching(&table, &condition(&[comparison]), None, rows(1), FIRST_EPOCH).await;
        assert_eq!(refused.unwrap_err().code(), expected, "{comparison}");
    }
}

async fn a_chunk_holds_what_lies_up_to_its_watermark_and_nothing_else(ground: impl Ground) {
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let source = ground.connector();
    ground.commit(&[insert(0, 1000, 1), insert(1, 1000, 1)]).await;
    let table = table_of(&source, "t0").await;
    let changes = async {
        let mut days: BTreeMap<u64, u8> = BTreeMap::new();
        for _ in 0..150 {
            let (user, day) = (random.random_range(0..6), random.random_range(1..29));
            let change = match (days.get(&user).copied(), random.random_ratio(1, 3)) {
                (None, _) => insert(0, user, day),
                (Some(before), true) => delete(0, user, before),
                (Some(before), false) => update(0, user, before, day),
            };
            if days.insert(user, day).is_some() && change.after.is_none() {
                days.remove(&user);
            }
            ground.commit(&[change]).await;
            if random.random_ratio(1, 40) {
                ground.rotate().await;
            }
            if random.random_ratio(1, 60) {
                ground.truncate(0).await;
                days.clear();
            }
            tokio::task::yield_now().await;
        }
    };
    let chunks = async {
        let mut chunks = Vec::new();
        while chunks.len() < 40 {
            let chunk = match chunks.len() % 2 {
                0 => source.chunk(&table, None, rows(100), FIRST_EPOCH).await,
                _ => source.rows(&[(table.clone(), keys((0..6).chain([1000])))], FIRST_EPOCH).await,
            };
            match chunk {
                Ok(chunk) => chunks.push(chunk),
                // The table was truncated after the watermark: a lane would read again.
                Err(fault) => assert_eq!(fault.class(), Class::Transient, "{fault}"),
            }
            tokio::task::yield_now().await;
        }
        chunks
    };
    let ((), chunks) = tokio::join!(changes, chunks);
    let mut probe = SourceProbe::open(&source, BinlogStart::Earliest).await.unwrap();
    probe.until_end_of(&source).await;
    are_between_their_watermarks(&probe.seen, &table, &chunks);
}

/// Whether the next change of a table after a position takes all of its rows.
fn is_withdrawn_next(seen: &[Seen], table: &str, after: Lsn) -> bool {
    let prefix = format!("{table} ");
    let mut later =
        seen.iter().filter(|seen| seen.lsn > after).filter_map(|seen| seen.text.strip_prefix(&*prefix));
    let is_of_a_row = |what: &str| what.starts_with("+ ") || what.starts_with("- ") || what.contains(" ~ ");
    later.next().is_some_and(|what| !is_of_a_row(what))
}

/// Expects each chunk of a whole table to equal the binlog's rows at a position between its watermarks.
pub fn are_between_their_watermarks(seen: &[Seen], table: &TableIdentity<'_>, chunks: &[Chunk]) {
    for chunk in chunks {
        let (found, Chunk { low, high, .. }) = (texts(table, chunk), chunk);
        let between = seen.iter().map(|seen| seen.lsn).filter(|lsn| low < lsn && lsn <= high);
        let is_found = |place| replayed(seen, &table.table, place).into_values().eq(found.iter().cloned());
        // A server that truncates a table empties it a moment before it writes the statement into its binlog.
        let is_emptied = || found.is_empty() && is_withdrawn_next(seen, &table.table, *high);
        assert!(
            [*low].into_iter().chain(between).any(is_found) || is_emptied(),
            "{found:?} between {low} and {high}"
        );
    }
}

async fn a_table_without_rows_is_one_chunk_with_a_watermark(ground: impl Ground) {
    let source = ground.connector();
    ground.commit(&[insert(0, 1, 1)]).await;
    ground.truncate(0).await;
    let table = table_of(&source, "t0").await;
    let chunks = whole(&source, &table, 10).await.unwrap();
    assert_eq!((chunks.len(), chunks[0].rows), (1, 0));
    assert!(chunks[0].low > Lsn::ZERO);
}

/// Otherwise a lane would wait for ever to pass it.
async fn the_watermark_of_a_quiet_source_is_reached(ground: impl Ground) {
    let source = ground.connector();
    ground.commit(&[insert(0, 1, 1)]).await;
    for is_rotated in [false, true] {
        if is_rotated {
            ground.rotate().await;
        }
        let table = table_of(&source, "t0").await;
        let chunk = source.chunk(&table, None, rows(10), FIRST_EPOCH).await.unwrap();
        assert!(chunk.low <= chunk.high);
        let mut probe = SourceProbe::open(&source, BinlogStart::Earliest).await.unwrap();
        probe.until("the high watermark", |probe| probe.position() >= chunk.high).await;
        // The watermark is not above the end: a lane there has nothing left to read.
        assert!(chunk.high <= source.head().await.unwrap());
        // A refresh waits for a watermark that is not below its lane. Other tests write to the server too.
        anabranch_tests::until("a watermark that is as far as the reading", async || {
            let later = source.chunk(&table, None, rows(10), FIRST_EPOCH).await.unwrap().low;
            later >= probe.position()
        })
        .await;
    }
}

async fn the_watermark_is_said_in_the_epoch_that_is_asked_for(ground: impl Ground) {
    let source = ground.connector();
    ground.commit(&[insert(0, 1, 1)]).await;
    let table = table_of(&source, "t0").await;
    let first = source.chunk(&table, None, rows(10), 1).await.unwrap().low;
    let other = source.chunk(&table, None, rows(10), 7).await.unwrap().low;
    assert_eq!((first.epoch(), other), (1, first.in_epoch(7).unwrap()));
}
