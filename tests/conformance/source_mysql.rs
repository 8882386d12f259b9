//! Tests of MySQL alone. Skipped where the machine cannot have it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anabranch_pipeline::error::{Class, Code, Fault};
use anabranch_pipeline::ports::{BinlogStart, ChangeSource, RowSource, SourceConnector};
use anabranch_schemas::lsn::FIRST_EPOCH;
use futures::future::join_all;
use mysql_async::prelude::Queryable;

use crate::ports::rows::{are_between_their_watermarks, rows, table_of, texts};
use crate::source::{Database, DatabaseKind, SourceProbe, WAIT_MAX, row_text};

const EXECUTED: &str = "SELECT REPLACE(@@GLOBAL.gtid_executed, '\n', '')";

#[tokio::test(flavor = "multi_thread")]
async fn mysql_changes_come_in_commit_order_with_their_positions() {
    let Some(database) = Database::mysql() else { return };
    let database = database.with_tables().await;
    let faults = database.source().check().await;
    assert!(faults.is_empty(), "{:?}", faults.iter().map(Fault::to_string).collect::<Vec<_>>());
    let mut probe = database.read_latest().await;
    let before = executed_set(&database).await;
    database
        .run(&[
            "SET SESSION sql_mode = ''",
            "INSERT INTO $0.t0 VALUES (1, 'a', '2000-02-29'), (18446744073709551615, NULL, NULL)",
            "BEGIN",
            "UPDATE $0.t0 SET birthday = '0000-00-00' WHERE user_id = 1",
            "INSERT INTO $0.other VALUES (1, 'x')",
            "DELETE FROM $0.t0 WHERE user_id > 1",
            "COMMIT",
            "TRUNCATE $0.t0",
            "CREATE TABLE $0.t5 SELECT 7 AS user_id, DATE('2001-01-01') AS birthday",
            "DROP TABLE $0.t5, $0.t1",
        ])
        .await;
    let expected = [
        "t0 + 1 2000-02-29",
        "t0 + 18446744073709551615 NULL",
        "t0 1 2000-02-29 ~ 1 0000-00-00",
        "t0 - 18446744073709551615 NULL",
        "t0 withdrawn",
        "t5 + 7 2001-01-01",
        "t5 withdrawn",
        "t1 withdrawn",
    ];
    probe.until_end(&database).await;
    assert_eq!(probe.texts(), expected);
    assert!(probe.batches.iter().any(|batch| batch.committed_at_us % 1_000_000 != 0), "whole seconds only");
    assert_eq!(probe.stream.server().flavor, "mysql");

    let mut by_gtid = database.read(BinlogStart::Gtid(before)).await;
    by_gtid.until_seen(expected.len()).await;
    assert_eq!(by_gtid.seen, probe.seen);
    let mut earliest = database.read(BinlogStart::Earliest).await;
    earliest.until_end(&database).await;
    let own: Vec<_> = earliest.seen.iter().filter(|seen| seen.lsn >= probe.seen[0].lsn).collect();
    assert!(own.into_iter().eq(&probe.seen));
    for (index, _) in probe.batches.iter().enumerate() {
        let sent = probe.batches[index].position;
        let missing = probe.seen.iter().filter(|seen| seen.lsn > sent).count();
        let mut again = database.read(probe.entry_after(index)).await;
        if missing > 0 {
            again.until_seen(missing).await;
        }
    }
}

async fn executed_set(database: &Database) -> String {
    database.ask(EXECUTED).await
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql_compressed_transactions_are_streamed_in_parts_and_resumed_from_each() {
    let Some(database) = Database::mysql() else { return };
    let database = database.with_tables().await;
    let mut probe = database.read_latest().await;
    let values: Vec<_> = (0..9_000).map(|id| format!("({id}, REPEAT('x', 40), '2001-01-01')")).collect();
    database
        .run(&[
            "INSERT INTO $0.t1 VALUES (0, 'before', NULL)",
            "SET SESSION binlog_transaction_compression = ON",
            "BEGIN",
            &format!("INSERT INTO $0.t0 VALUES {}", values.join(",")),
            "UPDATE $0.t0 SET birthday = NULL WHERE user_id < 3000",
            "COMMIT",
            "INSERT INTO $0.t1 VALUES (1, 'behind', NULL)",
        ])
        .await;
    probe.until_seen(12_002).await;
    let inner = probe.seen[1].lsn;
    assert!(probe.seen[1..12_001].iter().all(|seen| seen.lsn == inner), "one position for the whole");
    assert!(probe.batches.len() >= 3);
    database.assert_resumes_behind_each_batch(&probe).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql_tagged_gtids_are_kept_and_started_from() {
    let Some(database) = Database::mysql() else { return };
    let database = database.with_tables().await;
    let mut probe = database.read_latest().await;
    database
        .run(&[
            "SET SESSION gtid_next = 'AUTOMATIC:anabranch'",
            "INSERT INTO $0.t0 VALUES (1, '', NULL)",
            "INSERT INTO $0.t0 VALUES (2, '', NULL)",
        ])
        .await;
    probe.until_seen(2).await;
    probe.until_end(&database).await;
    let set = probe.resume().gtid_set;
    assert!(set.contains(":anabranch:"), "{set}");
    let same = format!("SELECT CAST(GTID_SUBSET('{set}', @@GLOBAL.gtid_executed) AS CHAR)");
    assert_eq!(database.ask(&same).await, "1");
    database.run(&["INSERT INTO $0.t0 VALUES (3, '', NULL)", "FLUSH BINARY LOGS"]).await;
    let mut by_gtid = database.read(BinlogStart::Gtid(set)).await;
    by_gtid.until("the change after the set", |probe| probe.texts().contains(&"t0 + 3 NULL")).await;
    assert!(!by_gtid.texts().contains(&"t0 + 2 NULL"));
    let mut earliest = database.read(BinlogStart::Earliest).await;
    // Other tests write to this server.
    let executed = database.ask(EXECUTED).await;
    earliest.until_end(&database).await;
    let known = earliest.resume().gtid_set;
    let all = format!("SELECT CAST(GTID_SUBSET('{executed}', '{known}') AS CHAR)");
    assert_eq!(database.ask(&all).await, "1", "{known}");
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql_stops_are_named() {
    // A stream that meets only the end of another's XA branch reads all tables again.
    let Some(database) = Database::lent(DatabaseKind::MySql).await else { return };
    let database = database.with_tables().await;
    let mut probe = database.read_latest_that_stops().await;
    database
        .run(&[
            "XA START 'a'",
            "INSERT INTO $0.other VALUES (1, '')",
            "XA END 'a'",
            "XA PREPARE 'a'",
            "XA COMMIT 'a'",
        ])
        .await;
    database.run(&["INSERT INTO $0.t0 VALUES (1, '', NULL)"]).await;
    probe.until_seen(1).await;
    database
        .run(&["XA START 'b'", "INSERT INTO $0.t0 VALUES (2, '', NULL)", "XA END 'b'", "XA PREPARE 'b'"])
        .await;
    probe.until_end(&database).await;
    assert_eq!(probe.texts(), ["t0 + 1 NULL"]);
    database.run(&["XA COMMIT 'b'"]).await;
    probe.until_seen(2).await;
    assert_eq!(probe.texts()[1], "t0 + 2 NULL");

    let mut probe = database.read_latest_that_stops().await;
    database.run(&["SET SESSION binlog_format = STATEMENT", "INSERT INTO $0.t0 VALUES (3, '', NULL)"]).await;
    probe.until_fault(Code::BinlogStatement).await;

    let fault = SourceProbe::open(&database.source(), BinlogStart::Gtid("x".to_owned())).await.err().unwrap();
    assert_eq!(fault.code(), Code::BinlogGtidUnknown);
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql_sends_what_is_decided_and_never_what_is_undone() {
    // A stream that meets only the end of another's XA branch reads all tables again.
    let Some(database) = Database::lent(DatabaseKind::MySql).await else { return };
    let database = database.with_tables().await;
    database.run(&["CREATE TABLE $0.plain (id INT PRIMARY KEY) ENGINE = MyISAM"]).await;
    let mut probe = database.read_latest().await;
    database
        .run(&[
            "BEGIN",
            "INSERT INTO $0.t0 VALUES (1, '', NULL)",
            "CREATE TEMPORARY TABLE $0.temporary (a INT)",
            "ROLLBACK",
            "BEGIN",
            "INSERT INTO $0.t0 VALUES (2, '', NULL)",
            "SAVEPOINT s",
            "INSERT INTO $0.t0 VALUES (3, '', NULL)",
            "CREATE TEMPORARY TABLE $0.temporary2 (a INT)",
            "ROLLBACK TO s",
            "COMMIT",
            "XA START 'one'",
            "INSERT INTO $0.t0 VALUES (4, '', NULL)",
            "XA END 'one'",
            "XA COMMIT 'one' ONE PHASE",
            "XA START 'two', 'b', 9",
            "INSERT INTO $0.t0 VALUES (5, '', NULL)",
            "XA END 'two', 'b', 9",
            "XA PREPARE 'two', 'b', 9",
        ])
        .await;
    database
        .run(&[
            "XA START 'three'",
            "INSERT INTO $0.t0 VALUES (6, '', NULL)",
            "XA END 'three'",
            "XA PREPARE 'three'",
        ])
        .await;
    let before = {
        probe.until_seen(2).await;
        probe.until_end(&database).await;
        probe.resume()
    };
    database.run(&["XA ROLLBACK 'three'", "XA COMMIT 'two', 'b', 9"]).await;
    probe.until_seen(3).await;
    probe.until_end(&database).await;
    assert_eq!(probe.texts(), ["t0 + 2 NULL", "t0 + 4 NULL", "t0 + 5 NULL"]);
    assert!(before.position < probe.resume().position || before.file != probe.resume().file);
    for index in 0..probe.batches.len() {
        let sent = probe.batches[index].position;
        let missing: Vec<_> = probe.seen.iter().filter(|seen| seen.lsn > sent).collect();
        let mut again = database.read(probe.entry_after(index)).await;
        if !missing.is_empty() {
            again.until_seen(missing.len()).await;
        }
        assert!(again.seen.iter().eq(missing), "behind batch {index}");
    }
}

/// The end of the binlog is ahead of a snapshot, by the transactions that are being committed.
#[tokio::test(flavor = "multi_thread")]
async fn mysql_rows_hold_what_lies_up_to_their_low_watermark_while_many_commit() {
    const WRITERS: u64 = 8;
    let Some(database) = Database::mysql() else { return };
    let database = database.with_tables().await;
    let source = database.source();
    let table = table_of(&source, "t0").await;
    let are_read = Arc::new(AtomicBool::new(false));
    let writers = (0..WRITERS).map(|user| {
        let (writer, are_read) = (database.admin(), Arc::clone(&are_read));
        let name = format!("{}0.t0", database.prefix);
        async move {
            let mut writer = writer.await;
            let insert = format!("INSERT INTO {name} VALUES ({user}, '', '2000-01-01')");
            writer.query_drop(insert).await.unwrap();
            while !are_read.load(Ordering::Relaxed) {
                let next =
                    format!("UPDATE {name} SET birthday = birthday + INTERVAL 1 DAY WHERE user_id = {user}");
                writer.query_drop(next).await.unwrap();
            }
        }
    });
    let chunks = async {
        let mut chunks = Vec::new();
        while chunks.len() < 100 {
            chunks.push(source.chunk(&table, None, rows(100), FIRST_EPOCH).await.unwrap());
        }
        are_read.store(true, Ordering::Relaxed);
        chunks
    };
    let (chunks, _) = tokio::join!(chunks, join_all(writers));
    let mut probe = database.read(BinlogStart::Earliest).await;
    probe.until_end(&database).await;
    are_between_their_watermarks(&probe.seen, &table, &chunks);
    assert!(
        chunks.iter().any(|chunk| chunk.low < chunk.high),
        "nothing was committed between two watermarks"
    );
}

/// The low watermark waits for a transaction that is in the binlog and in no snapshot yet.
#[tokio::test(flavor = "multi_thread")]
async fn mysql_rows_wait_for_a_commit_whose_acknowledgement_is_held() {
    let Some(database) = Database::mysql_alone() else { return };
    let database = database.with_tables().await;
    database
        .run(&[
            "INSERT INTO $0.t0 VALUES (1, '', '2000-01-01')",
            "INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'",
            "SET GLOBAL rpl_semi_sync_source_timeout = 3600000",
            "SET GLOBAL rpl_semi_sync_source_wait_point = AFTER_SYNC",
            "SET GLOBAL rpl_semi_sync_source_enabled = ON",
        ])
        .await;
    let source = database.source();
    let before = source.head().await.unwrap();
    let mut writer = database.admin().await;
    let insert = format!("INSERT INTO {}0.t0 VALUES (2, '', '2000-01-02')", database.prefix);
    let held = tokio::spawn(async move { writer.query_drop(insert).await.unwrap() });
    let mut probe = database.read(BinlogStart::Earliest).await;
    probe.until("the transaction that waits", |probe| probe.seen.len() == 2).await;
    let change = probe.seen[1].lsn;
    assert!(before < change && change <= source.head().await.unwrap(), "it is in the binlog");

    // MySQL reports an end of its binlog after the transaction, and GTIDs without it. A stream that begins there must
    // not leave it out, and a stream that continues after it must not be refused for good.
    let mut latest = database.read_latest().await;
    latest.until_seen(1).await;
    assert_eq!(latest.texts(), ["t0 + 2 2000-01-02"]);
    let later = probe.entry_after(probe.batches.len() - 1);
    let waits = SourceProbe::open(&source, later.clone()).await.err().expect("it is not executed yet");
    assert_eq!(waits.class(), Class::Transient, "{waits}");

    // A page needs no watermark.
    let table = table_of(&source, "t0").await;
    let mut page = Vec::new();
    source.page(&table, None, rows(10), &mut |row| page.push(row_text(row))).await.unwrap();
    assert_eq!(page, ["1 2000-01-01"]);
    let mut chunk = pin!(source.chunk(&table, None, rows(10), FIRST_EPOCH));
    assert!(tokio::time::timeout(Duration::from_millis(500), &mut chunk).await.is_err(), "it waits");
    assert!(!held.is_finished());
    database.run(&["SET GLOBAL rpl_semi_sync_source_enabled = OFF"]).await;
    tokio::time::timeout(WAIT_MAX, held).await.unwrap().unwrap();
    let chunk = chunk.await.unwrap();
    database.read(later).await;
    assert_eq!(texts(&table, &chunk), ["1 2000-01-01", "2 2000-01-02"]);
    assert!(change <= chunk.low && chunk.low <= chunk.high);
}
