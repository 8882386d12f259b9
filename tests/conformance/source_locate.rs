//! A point of the past is found, and a stream that resumes there yields all later changes.

use anabranch_pipeline::error::Code;
use anabranch_pipeline::ports::{BinlogPoint, BinlogStart, Located, SourceConnector};
use anabranch_schemas::lsn::{FIRST_EPOCH, Lsn};

use crate::source::Database;

fn resume(place: Located) -> BinlogStart {
    let Located { position, resume, server } = place;
    BinlogStart::Resume { resume, position, server }
}

async fn wait_for_another_second(database: &Database) -> u64 {
    let now =
        async || -> u64 { database.ask("SELECT CAST(UNIX_TIMESTAMP() AS CHAR)").await.parse().unwrap() };
    let before = now().await;
    loop {
        match now().await {
            after if after > before => return after,
            _ => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_to_say_a_place_leads_to_all_that_came_since() {
    let database = Database::with_flags(&[]).with_tables().await;
    database.run(&["INSERT INTO $0.t0 VALUES (1, '', NULL)"]).await;
    let after_first = database.ask("SELECT @@gtid_binlog_pos").await;
    wait_for_another_second(&database).await;
    database.run(&["FLUSH BINARY LOGS"]).await;
    let second_file_at = wait_for_another_second(&database).await;
    database.run(&["INSERT INTO $0.t0 VALUES (2, '', NULL)", "INSERT INTO $0.t0 VALUES (3, '', NULL)"]).await;
    let end = database.ask("SELECT @@gtid_binlog_pos").await;

    let source = database.source();
    let mut all = database.read(BinlogStart::Earliest).await;
    all.until_end(&database).await;
    let third = all.seen[2].lsn;
    let places = [
        (BinlogPoint::Earliest, &["t0 + 1 NULL", "t0 + 2 NULL", "t0 + 3 NULL"][..]),
        (BinlogPoint::Gtid(after_first), &["t0 + 2 NULL", "t0 + 3 NULL"]),
        (BinlogPoint::Time { at_us: second_file_at * 1_000_000 }, &["t0 + 2 NULL", "t0 + 3 NULL"]),
        (BinlogPoint::Lsn(third), &["t0 + 3 NULL"]),
        (BinlogPoint::Gtid(end), &[]),
    ];
    for (place, expected) in places {
        let located = source.locate(place.clone(), FIRST_EPOCH).await.unwrap();
        let mut stream = database.read(resume(located)).await;
        stream.until_end(&database).await;
        assert_eq!(stream.texts(), expected, "{place:?}");
        if !expected.is_empty() {
            assert_eq!(stream.resume(), all.resume(), "the GTIDs before {place:?} are known");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_is_not_there_is_named() {
    let database = Database::shared().with_tables().await;
    let source = database.source();
    for (place, epoch, code) in [
        (BinlogPoint::Lsn(Lsn::new(1, 4711, 256).unwrap()), 1, Code::BinlogPurged),
        (BinlogPoint::Lsn(Lsn::new(1, 1, 256).unwrap()), 2, Code::BinlogPurged),
        (BinlogPoint::Lsn(Lsn::new(1, 1, 1 << 35).unwrap()), 1, Code::BinlogPurged),
        (BinlogPoint::Time { at_us: 1_000_000 }, 1, Code::BinlogPurged),
        (BinlogPoint::Gtid("1-1-99999".to_owned()), 1, Code::BinlogGtidUnknown),
        (BinlogPoint::Gtid("nonsense".to_owned()), 1, Code::BinlogGtidUnknown),
    ] {
        let fault = source.locate(place.clone(), epoch).await.unwrap_err();
        assert_eq!(fault.code(), code, "{place:?}: {fault}");
    }
}
