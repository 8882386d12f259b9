//! What a reading yields: order, batches, resumption, positions, files.

use anabranch_pipeline::ports::{ChangeSource, Entry, SourceConnector};

use crate::source::Database;

#[tokio::test(flavor = "multi_thread")]
async fn changes_come_in_commit_order_with_their_positions() {
    let database = Database::shared().with_tables().await;
    let mut reading = database.read_latest().await;
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
    reading.to_end(&database).await;
    assert_eq!(
        reading.texts(),
        [
            "t0 + 1 2000-02-29",
            "t0 + 18446744073709551615 NULL",
            "t0 1 2000-02-29 ~ 1 0000-00-00",
            "t0 - 18446744073709551615 NULL",
            "t1 + 1 1999-12-31",
        ]
    );
    assert!(reading.seen.is_sorted_by_key(|seen| seen.lsn));
    assert_eq!(reading.seen[0].lsn, reading.seen[1].lsn, "rows of one event share a position");
    assert_ne!(reading.seen[1].lsn, reading.seen[2].lsn);
    let resume = reading.resume();
    assert_eq!(resume.gtid_set, database.ask("SELECT @@gtid_binlog_pos").await);
    assert_eq!(resume.position / 16 * 16, reading.position().position());
    assert_eq!(reading.stream.server().flavor, "mariadb");
    let committed = reading.batches.iter().map(|batch| batch.committed_at_us).max().unwrap();
    let now: u64 = database.ask("SELECT CAST(UNIX_TIMESTAMP() AS CHAR)").await.parse().unwrap();
    assert!(now * 1_000_000 - committed < 120_000_000, "{committed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_entry_begins_where_it_says() {
    let database = Database::with_flags(&[]).with_tables().await;
    database.run(&["INSERT INTO $0.t0 VALUES (1, '', NULL)"]).await;
    let middle = database.ask("SELECT @@gtid_binlog_pos").await;
    database.run(&["INSERT INTO $0.t0 VALUES (2, '', NULL)", "INSERT INTO $0.t0 VALUES (3, '', NULL)"]).await;

    let mut earliest = database.read(Entry::Earliest).await;
    earliest.to_end(&database).await;
    assert_eq!(earliest.texts(), ["t0 + 1 NULL", "t0 + 2 NULL", "t0 + 3 NULL"]);
    assert_eq!(earliest.resume().gtid_set, database.ask("SELECT @@gtid_binlog_pos").await);

    let mut by_gtid = database.read(Entry::Gtid(middle)).await;
    by_gtid.to_end(&database).await;
    assert_eq!(by_gtid.texts(), ["t0 + 2 NULL", "t0 + 3 NULL"]);
    assert_eq!(by_gtid.resume(), earliest.resume());
    assert_eq!(by_gtid.seen[..], earliest.seen[1..], "the same change has the same position");

    let mut latest = database.read_latest().await;
    latest.to_end(&database).await;
    assert_eq!(latest.resume(), earliest.resume(), "an entry is a resume point before the first group");
    database.run(&["INSERT INTO $0.t0 VALUES (4, '', NULL)"]).await;
    latest.until_seen(1).await;
    assert_eq!(latest.texts(), ["t0 + 4 NULL"]);
    assert_eq!(latest.source_head(&database).await, latest.position());
}

impl crate::source::Reading {
    async fn source_head(&self, database: &Database) -> anabranch_schemas::lsn::Lsn {
        database.source().head().await.unwrap()
    }
}
