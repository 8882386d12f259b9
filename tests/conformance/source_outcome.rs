//! Rows whose transaction is decided later, or undone in the log: all of them are sent after the decision, none before.

use anabranch_pipeline::error::Code;
use anabranch_pipeline::ports::BinlogStart;
use anabranch_schemas::lsn::ResumePoint;

use crate::source::{Database, SourceProbe};

on_each_mariadb!(
    rows_of_an_xa_branch_are_withheld_until_it_is_decided,
    a_branch_that_was_not_read_stops_only_when_it_is_committed,
    what_the_log_undoes_is_never_sent,
);

/// Prepares three undecided branches, one of them large, and one that is committed in one phase.
async fn prepare_branches(database: &Database) {
    let values: Vec<_> = (100..3_100).map(|id| format!("({id}, REPEAT('x', 400), NULL)")).collect();
    database
        .run(&[
            "XA START 'first'",
            "INSERT INTO $0.t1 VALUES (90, '', NULL)",
            "XA END 'first'",
            "XA PREPARE 'first'",
        ])
        .await;
    database
        .run(&[
            "XA START 'a', 'b', 7",
            "INSERT INTO $0.t0 VALUES (1, '', NULL)",
            // More rows than are kept as events.
            &format!("INSERT INTO $0.t0 VALUES {}", values.join(",")),
            "XA END 'a', 'b', 7",
            "XA PREPARE 'a', 'b', 7",
        ])
        .await;
    database
        .run(&[
            "INSERT INTO $0.t1 VALUES (1, '', NULL)",
            "XA START 'never'",
            "INSERT INTO $0.t1 VALUES (2, '', NULL)",
            "XA END 'never'",
            "XA PREPARE 'never'",
        ])
        .await;
    database
        .run(&[
            "XA START 'at once'",
            "INSERT INTO $0.t1 VALUES (3, '', NULL)",
            "XA END 'at once'",
            "XA COMMIT 'at once' ONE PHASE",
            "FLUSH BINARY LOGS",
        ])
        .await;
}

async fn rows_of_an_xa_branch_are_withheld_until_it_is_decided(database: Database) {
    let database = database.with_tables().await;
    database.run(&["ALTER TABLE $0.t0 MODIFY name VARCHAR(900)"]).await;
    let mut probe = database.read_latest().await;
    probe.until_end(&database).await;
    let before = probe.resume();
    prepare_branches(&database).await;
    probe.until_end(&database).await;
    assert_eq!(probe.texts(), ["t1 + 1 NULL", "t1 + 3 NULL"]);
    let point = |probe: &SourceProbe| ResumePoint { read_end: None, ..probe.resume() };
    assert_eq!(point(&probe), before, "reading resumes before the undecided branch");
    let end = "SELECT @@gtid_binlog_pos";
    assert_eq!(probe.resume().read_gtids(), database.ask(end).await);
    database
        .run(&[
            "XA ROLLBACK 'never'",
            "INSERT INTO $0.t1 VALUES (4, '', NULL)",
            "XA COMMIT 'a', 'b', 7",
            "INSERT INTO $0.t1 VALUES (5, '', NULL)",
        ])
        .await;
    probe.until_end(&database).await;
    assert_eq!(probe.seen.len(), 3_005);
    assert_eq!(probe.texts()[2..4], ["t1 + 4 NULL", "t0 + 1 NULL"]);
    assert_eq!(probe.texts()[3_004], "t1 + 5 NULL");
    let decided = probe.seen[3].lsn;
    assert!(probe.seen[2].lsn < decided && decided < probe.seen[3_004].lsn);
    assert!(probe.seen[3..3_004].iter().all(|seen| seen.lsn == decided), "the position of XA COMMIT");
    assert_eq!(point(&probe), before, "a branch is decided, an older one is not");
    assert_eq!(probe.resume().read_gtids(), database.ask(end).await);
    database.run(&["XA COMMIT 'first'"]).await;
    probe.until_seen(3_006).await;
    probe.until_end(&database).await;
    assert_eq!(probe.texts()[3_005], "t1 + 90 NULL");
    let resume = probe.resume();
    assert_eq!((resume.gtid_set, resume.read_end), (database.ask(end).await, None));
    assert!(probe.batches.iter().any(|batch| batch.position < decided && batch.changes > 1), "in parts");
    database.assert_resumes_behind_each_batch(&probe).await;
}

async fn a_branch_that_was_not_read_stops_only_when_it_is_committed(database: Database) {
    let database = database.with_tables().await;
    let prepare = |name: &str, id: u32| {
        [
            format!("XA START '{name}'"),
            format!("INSERT INTO $0.t0 VALUES ({id}, '', NULL)"),
            format!("XA END '{name}'"),
            format!("XA PREPARE '{name}'"),
        ]
    };
    for (name, id) in [("a", 1), ("b", 2)] {
        let statements = prepare(name, id);
        database.run(&statements.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }
    let mut probe = database.read_latest_that_stops().await;
    database.run(&["XA ROLLBACK 'a'", "INSERT INTO $0.t1 VALUES (1, '', NULL)"]).await;
    probe.until_seen(1).await;
    probe.until_end(&database).await;
    database.run(&["XA COMMIT 'b'", "INSERT INTO $0.t1 VALUES (2, '', NULL)"]).await;
    let fault = probe.until_fault(Code::BinlogXaUnread).await;
    assert!(fault.to_string().contains("X'62',X'',1"), "{fault}");
    assert_eq!(probe.texts(), ["t1 + 1 NULL"]);
    let mut earliest = database.read(BinlogStart::Earliest).await;
    earliest.until_end(&database).await;
    assert_eq!(earliest.texts(), ["t1 + 1 NULL", "t0 + 2 NULL", "t1 + 2 NULL"]);
}

async fn what_the_log_undoes_is_never_sent(database: Database) {
    let database = database.with_tables().await;
    database
        .run(&[
            "CREATE TABLE $0.plain (id INT PRIMARY KEY) ENGINE = MyISAM",
            "ALTER TABLE $0.t0 MODIFY name VARCHAR(900)",
        ])
        .await;
    let mut probe = database.read_latest().await;
    let values: Vec<_> = (100..6_100).map(|id| format!("({id}, REPEAT('x', 400), NULL)")).collect();
    let large = format!("INSERT INTO $0.t0 VALUES {}", values.join(","));
    database
        .run(&[
            "BEGIN",
            "INSERT INTO $0.t0 VALUES (1, '', NULL)",
            "SAVEPOINT s",
            "INSERT INTO $0.t0 VALUES (2, '', NULL)",
            "ROLLBACK TO s",
            "COMMIT",
            // A temporary table is not undone, so the server logs the transaction together with its end.
            "BEGIN",
            "INSERT INTO $0.t0 VALUES (3, '', NULL)",
            "CREATE TEMPORARY TABLE $0.temporary (a INT)",
            "ROLLBACK",
            "BEGIN",
            &large,
            "DROP TEMPORARY TABLE $0.temporary",
            "ROLLBACK",
            "BEGIN",
            "INSERT INTO $0.t0 VALUES (4, '', NULL)",
            "CREATE TEMPORARY TABLE $0.temporary (a INT)",
            "COMMIT",
            // A table without transactions: the log has even rows that are undone to a savepoint.
            "BEGIN",
            "INSERT INTO $0.t0 VALUES (5, '', NULL)",
            "INSERT INTO $0.plain VALUES (1)",
            "SAVEPOINT `S 1`",
            "INSERT INTO $0.t1 VALUES (1, '', NULL)",
            &large,
            "ROLLBACK TO `s 1`",
            "INSERT INTO $0.t1 VALUES (2, '', NULL)",
            "SAVEPOINT two",
            "INSERT INTO $0.t1 VALUES (3, '', NULL)",
            "COMMIT",
            "BEGIN",
            "SAVEPOINT first",
            "INSERT INTO $0.t1 VALUES (4, '', NULL)",
            "INSERT INTO $0.plain VALUES (2)",
            "ROLLBACK TO first",
            "INSERT INTO $0.t1 VALUES (5, '', NULL)",
            "COMMIT",
        ])
        .await;
    probe.until_end(&database).await;
    let expected = ["t0 + 1 NULL", "t0 + 4 NULL", "t0 + 5 NULL", "t1 + 2 NULL", "t1 + 3 NULL", "t1 + 5 NULL"];
    assert_eq!(probe.texts(), expected);
    assert!(probe.seen.is_sorted_by_key(|seen| seen.lsn));
    database.assert_resumes_behind_each_batch(&probe).await;
}
