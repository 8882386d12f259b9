//! What a network and a large installation do to a reading: silence, slowness, full files, huge transactions.

use std::time::Duration;

use anabranch_connectors::mysql::source::MysqlSource;
use anabranch_pipeline::capture::BatchBuilder;
use anabranch_pipeline::config::ServerUrl;
use anabranch_pipeline::error::Code;
use anabranch_pipeline::ports::{ChangeSource, Entry, SourceConnector};
use anabranch_schemas::lsn::{Lsn, ResumePoint};

use crate::source::{Database, Reading};
use crate::wire::Wire;

/// The source as seen through a wire.
fn source_behind(database: &Database, wire: &Wire) -> MysqlSource {
    let mut config = database.config();
    let server = database.server();
    let url = server.url().replace(&format!(":{}", server.port()), &format!(":{}", wire.port));
    config.url = ServerUrl::try_from(url).unwrap();
    MysqlSource::new(&config, &[database.entity()], Duration::from_millis(500))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_open_connection_is_noticed_and_a_slow_one_is_not_given_up() {
    let database = Database::shared().with_tables().await;
    let wire = Wire::to(database.server().port());
    let mut reading = Reading::open(&source_behind(&database, &wire), Entry::Latest).await.unwrap();
    wire.slow_down(Duration::from_millis(4));
    let values: Vec<_> = (0..6_000).map(|id| format!("({id}, REPEAT('x', 80), NULL)")).collect();
    database.run(&[&format!("INSERT INTO $0.t0 VALUES {}", values.join(","))]).await;
    // Half a megabyte: longer than the server may be silent.
    reading.until_seen(6_000).await;
    wire.slow_down(Duration::ZERO);
    wire.swallow();
    database.run(&["INSERT INTO $0.t0 VALUES (7000, '', NULL)"]).await;
    reading.until_fault(Code::SourceStalled).await;
    assert_eq!(reading.seen.len(), 6_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn small_files_and_mixed_compression_lose_nothing() {
    let flags = ["--max-binlog-size=4096", "--log-bin-compress-min-len=10"];
    let database = Database::with_flags(&flags).with_tables().await;
    let mut reading = database.read_latest().await;
    reading.until_end(&database).await;
    for round in 0..6 {
        let switch = format!("SET GLOBAL log_bin_compress = {}", round % 2);
        let values: Vec<_> =
            (0..200).map(|id| format!("({}, REPEAT('x', 40), '2001-01-01')", round * 1000 + id)).collect();
        database
            .run(&[
                &switch,
                "BEGIN",
                &format!("INSERT INTO $0.t0 VALUES {}", values.join(",")),
                &format!("UPDATE $0.t0 SET birthday = NULL WHERE user_id >= {}", round * 1000 + 100),
                "COMMIT",
                &format!("INSERT INTO $0.t1 VALUES ({round}, '', NULL)"),
            ])
            .await;
    }
    reading.until_end(&database).await;
    assert_eq!(reading.seen.len(), 6 * 301);
    assert!(reading.seen.is_sorted_by_key(|seen| seen.lsn));
    let files = |seen: &[crate::source::Seen]| {
        let mut files: Vec<_> = seen.iter().map(|seen| seen.lsn.file_number()).collect();
        files.dedup();
        files.len()
    };
    assert!(files(&reading.seen) >= 6, "each transaction fills a file");
    let mut again = database.read(Entry::Earliest).await;
    again.until_end(&database).await;
    assert_eq!(again.seen, reading.seen);
}

/// Reads and counts without keeping; changes, and by how much the process grew meanwhile.
async fn count(reading: Reading, database: &Database) -> (u64, u64) {
    let until = database.source().head().await.unwrap();
    // The high-water mark begins anew.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = peak_kib();
    let mut stream = reading.stream;
    let mut batch = BatchBuilder::new(64 * 1024, Lsn::ZERO, ResumePoint::default());
    let mut changes = 0;
    while batch.position() < until {
        stream.fill(&mut batch).await.unwrap();
        changes += u64::from(batch.take().changes);
    }
    (changes, peak_kib().saturating_sub(before))
}

fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute and 3 GB of disk; alone, with: cargo test -p anabranch-tests --test conformance -- --ignored huge --nocapture"]
async fn huge_transactions_fit_into_little_memory() {
    let database = Database::with_flags(&["--innodb-log-file-size=512M"]).with_tables().await;
    let reading = database.read_latest().await;
    database.run(&["INSERT INTO $0.t0 SELECT seq, 'x', '2000-01-01' FROM $0.seq_1_to_1000000"]).await;
    let (changes, grown_kib) = count(reading, &database).await;
    println!("a million rows: {grown_kib} KiB more");
    assert_eq!(changes, 1_000_000);
    assert!(grown_kib < 64 * 1024, "{grown_kib} KiB");

    // Rows of more than 16 MiB, of which a few bytes are captured.
    let reading = database.read_latest().await;
    let row = |id: u32| format!("INSERT INTO $0.t1 (user_id, pad) VALUES ({id}, REPEAT('x', {}))", 17 << 20);
    let mut statements =
        vec!["ALTER TABLE $0.t1 ADD COLUMN pad LONGTEXT FIRST".to_owned(), "BEGIN".to_owned()];
    statements.extend((0..62).map(row));
    statements.push("COMMIT".to_owned());
    database.run(&statements.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let (changes, grown_kib) = count(reading, &database).await;
    println!("a gigabyte: {grown_kib} KiB more");
    assert_eq!(changes, 62);
    assert!(grown_kib < 128 * 1024, "{grown_kib} KiB");
}
