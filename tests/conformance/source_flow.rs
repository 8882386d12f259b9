//! The yield of a stream: order, batches, resumption, positions, files.

use std::time::Duration;

use anabranch_connectors::mysql::source::MysqlSource;
use anabranch_pipeline::error::Code;
use anabranch_pipeline::ports::{BinlogStart, ChangeSource, SourceConnector};

use crate::nats::blocking;
use crate::source::{Database, Seen, SourceProbe, WAIT_MAX};

on_each_mariadb!(
    changes_come_in_commit_order_with_their_positions,
    every_entry_begins_where_it_says,
    rows_beyond_16_mebibytes_and_beside_them_arrive,
    a_new_binlog_file_is_followed_and_moves_the_resume_point,
);

async fn changes_come_in_commit_order_with_their_positions(database: Database) {
    // A server of the test's own: other tests would move the GTID position that is compared.
    let database = database.with_tables().await;
    let mut probe = database.read_latest().await;
    database
        .run(&[
            "INSERT INTO $0.t0 VALUES (1, 'a', '2000-02-29'), (18446744073709551615, NULL, NULL)",
            "BEGIN",
            "UPDATE $0.t0 SET birthday = '0000-00-00' WHERE user_id = 1",
            "INSERT INTO $0.other VALUES (1, 'x')",
            "DELETE FROM $0.t0 WHERE user_id > 1",
            "INSERT INTO $0.t1 VALUES (1, 'b', '1999-12-31')",
            "COMMIT",
            "BEGIN",
            "INSERT INTO $0.t1 VALUES (2, 'never', NULL)",
            "ROLLBACK",
        ])
        .await;
    probe.until_end(&database).await;
    assert_eq!(
        probe.texts(),
        [
            "t0 + 1 2000-02-29",
            "t0 + 18446744073709551615 NULL",
            "t0 1 2000-02-29 ~ 1 0000-00-00",
            "t0 - 18446744073709551615 NULL",
            "t1 + 1 1999-12-31",
        ]
    );
    assert!(probe.seen.is_sorted_by_key(|seen| seen.lsn));
    assert_eq!(probe.seen[0].lsn, probe.seen[1].lsn, "rows of one event share a position");
    assert_ne!(probe.seen[1].lsn, probe.seen[2].lsn);
    let resume = probe.resume();
    assert_eq!(resume.gtid_set, database.ask("SELECT @@gtid_binlog_pos").await);
    assert_eq!(resume.position / 16 * 16, probe.position().position());
    assert_eq!(probe.stream.server().flavor, "mariadb");
    let committed = probe.batches.iter().map(|batch| batch.committed_at_us).max().unwrap();
    let now: u64 = database.ask("SELECT CAST(UNIX_TIMESTAMP() AS CHAR)").await.parse().unwrap();
    assert!(now * 1_000_000 - committed < 120_000_000, "{committed}");
}

async fn every_entry_begins_where_it_says(database: Database) {
    let database = database.with_tables().await;
    database.run(&["INSERT INTO $0.t0 VALUES (1, '', NULL)"]).await;
    let middle = database.ask("SELECT @@gtid_binlog_pos").await;
    database.run(&["INSERT INTO $0.t0 VALUES (2, '', NULL)", "INSERT INTO $0.t0 VALUES (3, '', NULL)"]).await;

    let mut earliest = database.read(BinlogStart::Earliest).await;
    earliest.until_end(&database).await;
    assert_eq!(earliest.texts(), ["t0 + 1 NULL", "t0 + 2 NULL", "t0 + 3 NULL"]);
    assert_eq!(earliest.resume().gtid_set, database.ask("SELECT @@gtid_binlog_pos").await);

    let mut by_gtid = database.read(BinlogStart::Gtid(middle)).await;
    by_gtid.until_end(&database).await;
    assert_eq!(by_gtid.texts(), ["t0 + 2 NULL", "t0 + 3 NULL"]);
    assert_eq!(by_gtid.resume(), earliest.resume());
    assert_eq!(by_gtid.seen[..], earliest.seen[1..], "the same change has the same position");

    let mut latest = database.read_latest().await;
    latest.until_end(&database).await;
    assert_eq!(latest.resume(), earliest.resume(), "an entry is a resume point before the first group");
    database.run(&["INSERT INTO $0.t0 VALUES (4, '', NULL)"]).await;
    latest.until_seen(1).await;
    assert_eq!(latest.texts(), ["t0 + 4 NULL"]);
    assert_eq!(latest.source_head(&database).await, latest.position());
}

impl SourceProbe {
    async fn source_head(&self, database: &Database) -> anabranch_schemas::lsn::Lsn {
        database.source().head().await.unwrap()
    }
}

/// Changes after a crash after each batch: sent and repeated changes together, without those that are read twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_transaction_is_streamed_in_parts_and_resumed_from_each() {
    let database = Database::shared().with_tables().await;
    let mut probe = database.read_latest().await;
    let values: Vec<_> = (0..12_000).map(|id| format!("({id}, REPEAT('x', 40), '2001-01-01')")).collect();
    database
        .run(&[
            "BEGIN",
            &format!("INSERT INTO $0.t0 VALUES {}", values.join(",")),
            "UPDATE $0.t0 SET birthday = '2002-02-02' WHERE user_id < 6000",
            "COMMIT",
            "INSERT INTO $0.t1 VALUES (1, 'behind', NULL)",
        ])
        .await;
    probe.until_seen(18_001).await;
    let parts = probe.batches.len();
    assert!(parts >= 4, "{parts} batches");
    assert!(probe.batches.iter().all(|batch| batch.payload.len() < 80 * 1024));
    let mut middle = 0;
    for index in 0..parts {
        let sent = probe.batches[index].position;
        // An event whose batch has only a part of it comes again, from its first row.
        let kept = probe.seen[..probe.seen_with[index]].iter().filter(|seen| seen.lsn <= sent);
        let mut again = database.read(probe.entry_after(index)).await;
        let missing = probe.seen.iter().filter(|seen| seen.lsn > sent).count();
        if missing == 0 {
            continue;
        }
        again.until_seen(missing).await;
        middle += usize::from(missing < 18_001);
        let whole: Vec<&Seen> = kept.chain(&again.seen).collect();
        assert!(whole.iter().copied().eq(&probe.seen), "after batch {index} at {sent}");
        // Other tests write to the same server, so a later reading may have seen transactions after the last change.
        let (later, first) = (again.resume(), probe.resume());
        assert_eq!(later.file, first.file);
        assert!(later.position >= first.position, "{later:?}, {first:?}");
    }
    assert!(middle >= 2, "no batch ended in the middle");
}

async fn rows_beyond_16_mebibytes_and_beside_them_arrive(database: Database) {
    let database = database.with_tables().await;
    let mut probe = database.read_latest().await;
    database
        .run(&[
            "ALTER TABLE $0.t0 ADD COLUMN pad LONGTEXT FIRST",
            "INSERT INTO $0.t0 VALUES ('', 1, 'before', NULL)",
            &format!("INSERT INTO $0.t0 VALUES (REPEAT('x', {}), 2, 'large', '2000-01-01')", 20 << 20),
            &format!("INSERT INTO $0.other VALUES (1, REPEAT('x', {}))", 17 << 20),
            "INSERT INTO $0.t0 VALUES ('', 3, 'after', NULL)",
        ])
        .await;
    probe.until_end(&database).await;
    assert_eq!(probe.texts(), ["t0 + 1 NULL", "t0 + 2 2000-01-01", "t0 + 3 NULL"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_events_lose_nothing() {
    let flags = ["--log-bin-compress=ON", "--log-bin-compress-min-len=10"];
    let database = Database::with_flags(&flags).with_tables().await;
    let mut probe = database.read_latest().await;
    let values: Vec<_> = (0..3_000).map(|id| format!("({id}, REPEAT('x', 40), '2001-01-01')")).collect();
    database
        .run(&[
            &format!("INSERT INTO $0.t0 VALUES {}", values.join(",")),
            "UPDATE $0.t0 SET birthday = NULL WHERE user_id < 1000",
            "DELETE FROM $0.t0 WHERE user_id >= 2000",
            "TRUNCATE TABLE $0.t0 /* a statement long enough to be compressed */",
        ])
        .await;
    probe.until_seen(5_001).await;
    assert_eq!(probe.texts()[5_000], "t0 withdrawn");
    let mut again = database.read(probe.entry_after(0)).await;
    let sent = probe.batches[0].position;
    let missing: Vec<_> = probe.seen.iter().filter(|seen| seen.lsn > sent).collect();
    again.until_seen(missing.len()).await;
    assert!(again.seen.iter().eq(missing));
}

async fn a_new_binlog_file_is_followed_and_moves_the_resume_point(database: Database) {
    let database = database.with_tables().await;
    let mut probe = database.read_latest().await;
    database.run(&["INSERT INTO $0.t1 VALUES (0, '', NULL)"]).await;
    probe.until_seen(1).await;
    let old = probe.entry_after(probe.batches.len() - 1);
    for id in 1..=3 {
        let insert = format!("INSERT INTO $0.t0 VALUES ({id}, '', NULL)");
        database.run(&[&insert, "FLUSH BINARY LOGS"]).await;
    }
    probe.until_end(&database).await;
    assert_eq!(probe.texts(), ["t1 + 0 NULL", "t0 + 1 NULL", "t0 + 2 NULL", "t0 + 3 NULL"]);
    let file = database.source().head().await.unwrap().file_number();
    let file = format!("binlog.{file:06}");
    assert_eq!(probe.resume().file, file, "a quiet source would resume from a purged file");

    let mut resumed = database.read(probe.entry_after(probe.batches.len() - 1)).await;
    database.run(&["INSERT INTO $0.t0 VALUES (4, '', NULL)"]).await;
    resumed.until_seen(1).await;

    // All later transactions are in later files, so the purged file is not needed.
    let place = |probe: &SourceProbe| probe.entry_after(probe.batches.len() - 1);
    let mut kept = database.read_latest().await;
    database.run(&["INSERT INTO $0.t0 VALUES (5, '', NULL)"]).await;
    kept.until_seen(1).await;
    let later = place(&kept);
    database.run(&["FLUSH BINARY LOGS", "INSERT INTO $0.t0 VALUES (6, '', NULL)"]).await;
    let newest = database.source().head().await.unwrap().file_number();
    database.run(&[&format!("PURGE BINARY LOGS TO 'binlog.{newest:06}'")]).await;
    let mut again = database.read(later).await;
    again.until_seen(1).await;
    assert_eq!(again.texts(), ["t0 + 6 NULL"]);
    assert_eq!(again.position().epoch(), 1, "it is the same server");

    // Even without a later transaction, a lane on a direct feed learns that it is at the end.
    let later = place(&again);
    database.run(&["FLUSH BINARY LOGS"]).await;
    let newest = database.source().head().await.unwrap().file_number();
    let purge = format!("PURGE BINARY LOGS TO 'binlog.{newest:06}'");
    // The server keeps a file while a client reads it.
    let purged = async {
        loop {
            database.run(&[&purge]).await;
            let fault = SourceProbe::open(&database.source(), old.clone()).await.err().unwrap();
            assert_eq!(fault.code(), Code::BinlogPurged, "{fault}");
            if fault.to_string().contains(&format!("binlog.{newest:06}")) {
                return;
            }
        }
    };
    tokio::time::timeout(WAIT_MAX, purged).await.expect("it names the oldest file");
    let mut quiet = database.read(later).await;
    assert_eq!(quiet.stream.start_position(), again.position(), "messages link");
    quiet.until("the place in the newest file", |quiet| quiet.position().file_number() == newest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gtid_set_that_the_server_does_not_know_is_named() {
    let database = Database::shared().with_tables().await;
    let (domain, server) =
        (database.ask("SELECT @@gtid_domain_id").await, database.ask("SELECT @@server_id").await);
    let mut probe = database.read(BinlogStart::Gtid(format!("{domain}-{server}-999999999"))).await;
    probe.until_fault(Code::BinlogGtidUnknown).await;
    let fault =
        SourceProbe::open(&database.source(), BinlogStart::Gtid("nonsense".to_owned())).await.err().unwrap();
    assert_eq!(fault.code(), Code::BinlogGtidUnknown, "{fault}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_or_a_reset_server_is_not_read_on() {
    let database = Database::with_flags(&[]).with_tables().await;
    let mut probe = database.read_latest().await;
    database.run(&["INSERT INTO $0.t0 VALUES (1, '', NULL)"]).await;
    probe.until_seen(1).await;
    let BinlogStart::Resume { resume, position, server } = probe.entry_after(probe.batches.len() - 1) else {
        panic!("not a resume")
    };
    let mut other = server.clone();
    other.flavor = "mysql".to_owned();
    let entry = BinlogStart::Resume { resume: resume.clone(), position, server: other };
    let fault = SourceProbe::open(&database.source(), entry).await.err().unwrap();
    assert_eq!(fault.code(), Code::SourceServerChanged, "{fault}");

    // The same server id, file name and length, but other transactions.
    database.run(&["RESET MASTER"]).await;
    database.run(&["CREATE DATABASE $9", "DROP DATABASE $9"]).await;
    let statements: Vec<_> = (2..60).map(|id| format!("INSERT INTO $0.t0 VALUES ({id}, '', NULL)")).collect();
    database.run(&statements.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let entry = BinlogStart::Resume { resume, position, server };
    let fault = SourceProbe::open(&database.source(), entry).await.err().unwrap();
    assert_eq!(fault.code(), Code::SourceServerChanged, "{fault}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_server_stalls_and_a_stopped_one_is_unreachable() {
    let database = Database::with_flags(&[]).with_tables().await;
    // Twice this without any event is a stall: long for a busy machine.
    let heartbeat = Duration::from_secs(2);
    let source = MysqlSource::new(&database.config(), &[database.entity()], heartbeat);
    let mut probe = SourceProbe::open(&source, BinlogStart::Latest).await.unwrap();
    database.run(&["INSERT INTO $0.t0 VALUES (1, '', NULL)"]).await;
    probe.until_seen(1).await;
    // Heartbeats keep a quiet stream alive for longer than the limit.
    let quiet = tokio::time::timeout(heartbeat * 3, async {
        loop {
            probe.step().await.unwrap();
        }
    });
    assert!(quiet.await.is_err());
    blocking(|| database.server().pause()).unwrap();
    probe.until_fault(Code::SourceStalled).await;
    blocking(|| database.server().resume()).unwrap();
    let mut probe = SourceProbe::open(&source, BinlogStart::Latest).await.unwrap();
    blocking(|| database.server().kill()).unwrap();
    probe.until_fault(Code::SourceUnreachable).await;
    probe.until_fault(Code::SourceUnreachable).await;
    assert_eq!(source.head().await.unwrap_err().code(), Code::SourceUnreachable);
    blocking(|| database.server().restart()).unwrap();
    assert!(source.head().await.is_ok());
}

/// A caller that also waits for another event drops the call again and again.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_calls_lose_nothing() {
    let database = Database::shared().with_tables().await;
    let mut probe = database.read_latest().await;
    let writer = async {
        for part in 0..40 {
            let values: Vec<_> =
                (0..250).map(|id| format!("({}, 'x', '2001-01-01')", part * 250 + id)).collect();
            let insert = format!("INSERT INTO $0.t0 VALUES {}", values.join(","));
            database.run(&[&insert]).await;
        }
    };
    let reader = async {
        while probe.seen.len() < 10_000 {
            // A polled-once call is cancelled at its first wait.
            if let Ok(step) = tokio::time::timeout(Duration::ZERO, probe.step()).await {
                step.unwrap();
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::source::WAIT_MAX, async { tokio::join!(writer, reader) }).await.unwrap();
    let expected: Vec<_> = (0..10_000).map(|id| format!("t0 + {id} 2001-01-01")).collect();
    assert_eq!(probe.texts(), expected);
}
