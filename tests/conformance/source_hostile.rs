//! Effects of a network, a disk and a large installation on a stream: silence, slowness, a flipped bit, full files,
//! huge transactions.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anabranch_connectors::mysql::source::MysqlSource;
use anabranch_pipeline::config::SourceConfig;
use anabranch_pipeline::error::Code;
use anabranch_pipeline::ports::{BinlogPoint, BinlogStart, ChangeSource, Located, SourceConnector};
use anabranch_pipeline::records::BatchBuilder;
use anabranch_schemas::lsn::{FIRST_EPOCH, Lsn, ResumePoint};
use mysql_async::prelude::Queryable as _;

use crate::nats::until;
use crate::source::{Database, SourceProbe, WAIT_MAX};
use crate::wire::Wire;

/// A heartbeat so long that a busy machine does not seem a silent server.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// The source, reached through a wire.
fn wired_source(database: &Database, wire: &Wire) -> MysqlSource {
    let config = SourceConfig { url: wire.url(database.server()), ..database.config() };
    MysqlSource::new(&config, &[database.entity()], HEARTBEAT)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_open_connection_is_noticed_and_a_slow_one_is_not_given_up() {
    // A server of the test's own: the changes of other tests would come over the slow wire too.
    let database = Database::with_flags(&[]).with_tables().await;
    let wire = Wire::to(database.server());
    let mut probe = SourceProbe::open(&wired_source(&database, &wire), BinlogStart::Latest).await.unwrap();
    wire.slow_down(Duration::from_millis(10));
    let values: Vec<_> = (0..6_000).map(|id| format!("({id}, REPEAT('x', 80), NULL)")).collect();
    // Silence ends with whole events: the text of the statement alone, of 170 kB, would take nearly too long.
    let without_its_text = "SET SESSION binlog_annotate_row_events = OFF";
    database.run(&[without_its_text, &format!("INSERT INTO $0.t0 VALUES {}", values.join(","))]).await;
    let start = Instant::now();
    probe.until_seen(6_000).await;
    assert!(start.elapsed() > 2 * HEARTBEAT, "half a megabyte takes longer than the server may be silent");
    wire.slow_down(Duration::ZERO);
    wire.swallow();
    database.run(&["INSERT INTO $0.t0 VALUES (7000, '', NULL)"]).await;
    probe.until_fault(Code::SourceStalled).await;
    assert_eq!(probe.seen.len(), 6_000);
}

/// `replay --from GTID` does this; an answer that is still on its way must not be taken for the server's end.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_behind_a_gtid_set_is_found_over_a_slow_connection() {
    let database = Database::with_flags(&[]).with_tables().await;
    database.run(&["INSERT INTO $0.t0 VALUES (1, '', NULL)"]).await;
    let after_first = database.ask("SELECT @@gtid_binlog_pos").await;
    database.run(&["INSERT INTO $0.t0 VALUES (2, '', NULL)"]).await;
    let wire = Wire::to(database.server());
    wire.slow_down(Duration::from_millis(10));
    let located = wired_source(&database, &wire).locate(BinlogPoint::Gtid(after_first), FIRST_EPOCH).await;
    let Located { position, resume, server } = located.unwrap();
    let mut probe = database.read(BinlogStart::Resume { resume, position, server }).await;
    probe.until_end(&database).await;
    assert_eq!(probe.texts(), ["t0 + 2 NULL"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn small_files_and_mixed_compression_lose_nothing() {
    let flags = ["--max-binlog-size=4096", "--log-bin-compress-min-len=10"];
    let database = Database::with_flags(&flags).with_tables().await;
    let mut probe = database.read_latest().await;
    probe.until_end(&database).await;
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
    probe.until_end(&database).await;
    assert_eq!(probe.seen.len(), 6 * 301);
    assert!(probe.seen.is_sorted_by_key(|seen| seen.lsn));
    let files = |seen: &[crate::source::Seen]| {
        let mut files: Vec<_> = seen.iter().map(|seen| seen.lsn.file_number()).collect();
        files.dedup();
        files.len()
    };
    assert!(files(&probe.seen) >= 6, "each transaction fills a file");
    let mut again = database.read(BinlogStart::Earliest).await;
    again.until_end(&database).await;
    assert_eq!(again.seen, probe.seen);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_with_one_bit_flipped_is_refused_by_its_checksum_and_not_sent() {
    const CHECKSUM_BYTES: u64 = 4;
    const DATE_BYTES: u64 = 3;
    let database = Database::with_flags(&[]).with_tables().await;
    for id in 1..4 {
        database.run(&[&format!("INSERT INTO $0.t0 VALUES ({id}, '', '2000-01-01')")]).await;
    }
    let mut whole = database.read(BinlogStart::Earliest).await;
    whole.until_seen(3).await;
    // The day of the second row: without the checksum it would silently be another date. The server does not check it.
    let path = binlog_file(&database, &whole);
    let at = ends_of_small_rows(&path)[1] - CHECKSUM_BYTES - DATE_BYTES;
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[at as usize] ^= 0b10;
    std::fs::write(&path, bytes).unwrap();
    let mut damaged = database.read(BinlogStart::Earliest).await;
    let fault = damaged.until_fault(Code::BinlogEventCorrupt).await;
    assert!(fault.to_string().contains("checksum"), "{fault}");
    assert_eq!(damaged.texts(), ["t0 + 1 2000-01-01"]);
    let again = SourceProbe::open(&database.source(), damaged.entry_after(damaged.batches.len() - 1)).await;
    again.unwrap().until_fault(Code::BinlogEventCorrupt).await;
}

/// The binlog file of a stream's first change.
fn binlog_file(database: &Database, probe: &SourceProbe) -> PathBuf {
    database.server().folder().join(format!("db/binlog.{:06}", probe.seen[0].lsn.file_number()))
}

/// Reads and counts without keeping; returns the number of changes, and the growth of the process in KiB.
async fn count(probe: SourceProbe, database: &Database) -> (u64, u64) {
    let until = database.source().head().await.unwrap();
    // Resets the process's peak of memory.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = peak_kib();
    let mut stream = probe.stream;
    let mut batch = BatchBuilder::new(64 * 1024, Lsn::ZERO, ResumePoint::default());
    let mut changes = 0;
    while batch.position() < until {
        stream.fill(&mut batch).await.unwrap();
        changes += u64::from(batch.take().changes);
    }
    (changes, peak_kib().saturating_sub(before))
}

/// Ends of the small rows events of a binlog file, by the file itself; events of uncaptured rows are larger.
fn ends_of_small_rows(file: &Path) -> Vec<u64> {
    const HEADER_BYTES: usize = 19;
    const WRITE_ROWS: u8 = 23;
    const SMALL_BYTES_MAX: u32 = 4096;
    let mut file = std::fs::File::open(file).unwrap();
    let (mut start, mut ends) = (file.seek(SeekFrom::Start(4)).unwrap(), Vec::new());
    let mut header = [0; HEADER_BYTES];
    while file.read_exact(&mut header).is_ok() {
        let size = u32::from_le_bytes(header[9..13].try_into().unwrap());
        start = file.seek(SeekFrom::Start(start + u64::from(size))).unwrap();
        if header[4] == WRITE_ROWS && size < SMALL_BYTES_MAX {
            ends.push(start);
        }
    }
    ends
}

/// Only one transaction can make a file exceed 4 GiB, as a server begins a new file after the transaction that fills
/// it. Transactions that commit together with that one follow it in the file.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "huge: a minute and 10 GB of disk; alone, as the one above"]
async fn huge_positions_beyond_four_gibibytes_are_read_and_resumed_from() {
    const WRAP: u64 = 1 << 32;
    let flags = ["--sync-binlog=0", "--innodb-flush-log-at-trx-commit=0"];
    let database = Database::with_flags(&flags).with_tables().await;
    // Each update of a row writes its pad twice, and only to the binlog.
    database
        .run(&[
            "ALTER TABLE $0.other ADD COLUMN turn INT NOT NULL DEFAULT 0",
            "INSERT INTO $0.other (id, pad) SELECT seq, REPEAT('x', 8388608) FROM $0.seq_1_to_8",
            "FLUSH BINARY LOGS",
            // Commits wait for one another.
            "SET GLOBAL binlog_commit_wait_count = 3, GLOBAL binlog_commit_wait_usec = 600000000",
        ])
        .await;
    let mut probe = SourceProbe::open_with(&database.source(), BinlogStart::Latest, 40).await.unwrap();
    let mut large = database.admin().await;
    let mut run = async |statement: &str| {
        large.query_drop(statement.replace('$', &database.prefix)).await.unwrap();
    };
    let started = Instant::now();
    run("BEGIN").await;
    run("INSERT INTO $0.t0 VALUES (1, '', NULL)").await;
    for turn in 0..36 {
        run("UPDATE $0.other SET turn = turn + 1").await;
        if turn == 18 {
            run("INSERT INTO $0.t0 VALUES (2, '', NULL)").await;
        }
    }
    run("INSERT INTO $0.t0 VALUES (3, '', NULL)").await;
    let later = async |waiting: &str, id: u32| {
        let query =
            "SELECT CAST(COUNT(*) AS CHAR) FROM information_schema.processlist WHERE info LIKE 'COMMIT%'";
        until("earlier commits wait", async || database.ask(query).await == waiting).await;
        database.run(&["BEGIN", &format!("INSERT INTO $0.t1 VALUES ({id}, '', NULL)"), "COMMIT"]).await;
    };
    tokio::join!(run("COMMIT"), later("1", 4), later("2", 5));
    println!("written after {:?}", started.elapsed());
    probe.until_seen(5).await;
    probe.until_end(&database).await;
    println!("read after {:?}", started.elapsed());
    let ends = ends_of_small_rows(&binlog_file(&database, &probe));
    let positions: Vec<u64> = probe.seen.iter().map(|seen| seen.lsn.position()).collect();
    assert_eq!(positions, ends.iter().map(|end| end / 16 * 16).collect::<Vec<_>>());
    assert!(ends[1] < WRAP && ends[2] > WRAP, "{ends:?}");

    // A crash after each change, from the beginning of its group or of the next.
    let mut resumed = Vec::new();
    for (index, count) in probe.seen_with.iter().enumerate() {
        let is_last = probe.seen_with.get(index + 1).is_none_or(|next| next > count);
        if !is_last || (1..3).contains(count) {
            continue;
        }
        let started = Instant::now();
        // A server that searches for the position of a GTID set sends no heartbeat.
        let patient = MysqlSource::new(&database.config(), &[database.entity()], WAIT_MAX);
        let mut again = SourceProbe::open(&patient, probe.entry_after(index)).await.unwrap();
        again.until_seen(probe.seen.len() - count).await;
        assert_eq!(again.seen, probe.seen[*count..]);
        println!(
            "{:?}: {count} changes were known, read on in {:?}",
            probe.batches[index].resume,
            started.elapsed()
        );
        resumed.push(probe.batches[index].resume.position);
    }
    assert!(resumed.iter().filter(|position| **position > WRAP).count() >= 2, "{resumed:?}");
}

fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute and 3 GB of disk; alone: cargo test --workspace --test conformance -- --ignored huge --nocapture"]
async fn huge_transactions_fit_into_little_memory() {
    let database = Database::with_flags(&["--innodb-log-file-size=512M"]).with_tables().await;
    let probe = database.read_latest().await;
    database.run(&["INSERT INTO $0.t0 SELECT seq, 'x', '2000-01-01' FROM $0.seq_1_to_1000000"]).await;
    let (changes, grown_kib) = count(probe, &database).await;
    println!("a million rows: {grown_kib} KiB more");
    assert_eq!(changes, 1_000_000);
    assert!(grown_kib < 64 * 1024, "{grown_kib} KiB");

    // Rows of more than 16 MiB, of which a few bytes are captured.
    let probe = database.read_latest().await;
    let row = |id: u32| format!("INSERT INTO $0.t1 (user_id, pad) VALUES ({id}, REPEAT('x', {}))", 17 << 20);
    let mut statements =
        vec!["ALTER TABLE $0.t1 ADD COLUMN pad LONGTEXT FIRST".to_owned(), "BEGIN".to_owned()];
    statements.extend((0..62).map(row));
    statements.push("COMMIT".to_owned());
    database.run(&statements.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let (changes, grown_kib) = count(probe, &database).await;
    println!("a gigabyte: {grown_kib} KiB more");
    assert_eq!(changes, 62);
    assert!(grown_kib < 128 * 1024, "{grown_kib} KiB");
}
