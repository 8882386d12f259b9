//! The reader's failpoints on servers with other binlogs, where the machine can have them: MariaDB 11.8, whose events
//! have no position within a transaction, and MySQL.
//!
//! Before each daemon starts, one transaction is committed that takes several log messages, so the daemon is killed
//! within it.

use anabranch_tests::{Ground, Installation, Plan, Turn};

use crate::failpoints::{VARIABLE, goes_on};

/// The steps of a reader, and the commit of a lane that has a part of the transaction.
const STEPS: [&str; 4] =
    ["capture-before-append", "capture-after-append", "capture-after-ack", "lane-after-commit"];
/// The square root of the transaction's number of rows.
const ROWS_ROOT: u32 = 120;

static MARIADB_11: Ground = Ground::mariadb_11();
static MYSQL: Ground = Ground::mysql();

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_killed_within_a_transaction_of_mariadb_11_loses_nothing() {
    let Some(turn) = MARIADB_11.turn_if_there().await else { return };
    killed_within_a_transaction(turn).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_killed_within_a_transaction_of_mysql_loses_nothing() {
    let Some(turn) = MYSQL.turn_if_there().await else { return };
    killed_within_a_transaction(turn).await;
}

async fn killed_within_a_transaction(turn: Turn<'static>) {
    let installation = Installation::set_up(turn, &Plan::small()).await;
    for (round, step) in STEPS.iter().enumerate() {
        let first_id = (round + 1) * 1_000_000;
        let sql = format!(
            "INSERT INTO user_00.user_000 (user_id, user_name, birthday)
               WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < {ROWS_ROOT} - 1)
               SELECT {first_id} + a.n * {ROWS_ROOT} + b.n, 'n', DATE('1990-01-01') + INTERVAL b.n DAY
               FROM numbers a, numbers b;
             BEGIN;
             UPDATE user_00.user_000 SET birthday = birthday + INTERVAL 200 DAY WHERE user_id % 3 = 0;
             DELETE FROM user_00.user_000 WHERE user_id % 7 = 0;
             COMMIT"
        );
        installation.execute("source-a", sql).await;
        let mut daemon = installation.run_with(&[], &[(VARIABLE, step)]);
        daemon.until_failpoint(step).await;
        daemon.kill();
        goes_on(&installation).await;
    }
}
