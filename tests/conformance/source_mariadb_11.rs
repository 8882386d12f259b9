//! Binlogs without positions inside a transaction, which only MariaDB 11.4 and later have. Skipped where the machine
//! cannot have such a server.

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::SourceConnector;

use crate::source::{Database, DatabaseKind, Seen};

async fn mariadb_11() -> Option<Database> {
    Some(Database::lent(DatabaseKind::MariaDb11).await?.with_tables().await)
}

/// Each batch ends inside a transaction: changes that a lane keeps and repeated ones together are the whole, in order.
#[tokio::test(flavor = "multi_thread")]
async fn rows_without_positions_are_neither_lost_nor_doubled_behind_any_batch() {
    let Some(database) = mariadb_11().await else { return };
    assert_eq!(database.ask("SELECT CAST(@@binlog_legacy_event_pos AS CHAR)").await, "OFF");
    let faults = database.source().check().await;
    assert!(faults.is_empty(), "{:?}", faults.iter().map(Fault::to_string).collect::<Vec<_>>());
    let mut stream = database.read_latest().await;
    let mut statements = vec![
        "USE $0".to_owned(),
        "INSERT INTO $0.t1 VALUES (0, 'before', NULL)".to_owned(),
        "INSERT INTO $0.t0 SELECT seq, REPEAT('x', 40), '2001-01-01' FROM seq_1_to_12000".to_owned(),
        "BEGIN".to_owned(),
    ];
    for first in (20_000..26_000).step_by(30) {
        let table = first / 30 % 2;
        let last = first + 29;
        statements.push(format!(
            "INSERT INTO $0.t{table} SELECT seq, REPEAT('x', 40), '2001-01-02' FROM seq_{first}_to_{last}"
        ));
    }
    statements.extend(
        [
            "SAVEPOINT s",
            "UPDATE $0.t0 SET birthday = '2002-02-02' WHERE user_id < 3000",
            "DELETE FROM $0.t0 WHERE user_id >= 9000 AND user_id < 20000",
            "COMMIT",
            "INSERT INTO $0.t1 VALUES (1, 'behind', NULL)",
        ]
        .map(str::to_owned),
    );
    database.run(&statements.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let all = 1 + 12_000 + 6_000 + 2_999 + 3_001 + 1;
    stream.until_seen(all).await;
    assert_eq!(stream.seen.len(), all);
    assert!(stream.seen.is_sorted_by_key(|seen| seen.lsn));
    assert!(stream.batches.len() >= 4, "{} batches", stream.batches.len());
    database.assert_resumes_behind_each_batch(&stream).await;
}

/// Above `binlog_large_commit_threshold` the server turns the transaction's cache into a binlog file of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_of_200_megabytes_comes_whole_to_a_reader_that_is_cut_off_in_it() {
    const ROWS: usize = 60_000;
    let Some(database) = mariadb_11().await else { return };
    database.run(&["ALTER TABLE $0.t0 MODIFY name VARCHAR(4000)"]).await;
    let mut first = database.read_latest().await;
    let insert = format!("INSERT INTO $0.t0 SELECT seq, REPEAT('x', 3500), NULL FROM seq_1_to_{ROWS}");
    database.run(&["USE $0", &insert, "INSERT INTO $0.t1 VALUES (1, 'behind', NULL)"]).await;
    let mut found: Vec<Seen> = Vec::new();
    for cut_off_at in [1, ROWS / 3, ROWS / 2] {
        first.until("the next part", |stream| stream.seen.len() >= cut_off_at).await;
        let last = first.batches.len() - 1;
        let sent = first.batches[last].position;
        found.extend(first.seen.iter().filter(|seen| seen.lsn <= sent).cloned());
        first = database.read(first.entry_after(last)).await;
    }
    first.until_end(&database).await;
    found.append(&mut first.seen);
    assert_eq!(found.len(), ROWS + 1);
    assert!(found.is_sorted_by_key(|seen| seen.lsn));
    let texts: Vec<&str> = found.iter().map(|seen| seen.text.as_str()).collect();
    assert!((1..=ROWS).all(|id| texts[id - 1] == format!("t0 + {id} NULL")));
    assert_eq!(texts[ROWS], "t1 + 1 NULL");
}
