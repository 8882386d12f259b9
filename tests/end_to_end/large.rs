//! Rows and transactions that are far larger than any buffer, plain and compressed, in bounded memory.

use anabranch_tests::{Installation, Plan};

use crate::STANDARD;

/// Most resident memory of a debug build with everything in one process. A transaction of 100,000 rows held whole would
/// need much more than the rest beside the row of 20 MB.
const RESIDENT_BYTES_MAX: u64 = 300 * 1024 * 1024;

/// The numbers from 1 to this, at most 160,000, as a table `seq`. Only MariaDB has such tables by name.
fn numbers(count: u32) -> String {
    format!(
        "(WITH RECURSIVE n (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n < 399)
          SELECT 1 + a.n * 400 + b.n AS seq FROM n AS a, n AS b WHERE a.n * 400 + b.n < {count}) AS numbers"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_of_20_mb_and_a_transaction_of_100_000_rows_pass_in_bounded_memory() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let daemon = installation.run();
    daemon.until_ready().await;
    // On `source-b` both are sent compressed; random bytes stay as long, repeated ones become much shorter.
    for (server, database) in [("source-a", "user_00"), ("source-b", "user_05")] {
        let table = format!("{database}.user_000");
        let sql = format!(
            "ALTER TABLE {table} ADD photo LONGBLOB NULL, ADD INDEX (user_name);
             INSERT INTO {table} (user_id, user_name, birthday, photo) VALUES (1, 'large', '1970-01-01', REPEAT('x', 20000000));
             UPDATE {table} SET photo = REPEAT('y', 9000000), birthday = '1970-01-02' WHERE user_id = 1;
             INSERT INTO {table} (user_id, user_name, birthday, photo)
               SELECT 2, 'random', '1970-01-03', GROUP_CONCAT(RANDOM_BYTES(1000) SEPARATOR '') FROM {}",
            numbers(20_000)
        );
        let sql = format!("SET SESSION group_concat_max_len = 64000000; {sql}");
        installation.execute(server, sql).await;
        assert_eq!(installation.derived(1).await[0].1, "01-02");
        assert_eq!(installation.derived(2).await[0].1, "01-03");
        installation.execute(server, format!("DELETE FROM {table}")).await;
        installation.drained().await;
    }
    let with_large_rows = daemon.resident_bytes_max();

    for (server, database) in [("source-a", "user_03"), ("source-b", "user_08")] {
        let sql = format!(
            "INSERT INTO {database}.user_000 (user_id, user_name, birthday)
               SELECT seq, CONCAT('name-', seq), DATE '1970-01-01' + INTERVAL (seq % 20000) DAY FROM {}",
            numbers(100_000)
        );
        installation.execute(server, sql).await;
    }
    let comparison = installation.expect_equal().await;
    assert_eq!(comparison.derived_rows, 200_000);
    installation.execute("source-a", "DELETE FROM user_03.user_000").await;
    let comparison = installation.expect_equal().await;
    assert_eq!(comparison.derived_rows, 100_000);
    let most = daemon.resident_bytes_max();
    eprintln!("resident at most: {with_large_rows} bytes after large rows, {most} bytes at the end");
    assert!(most < RESIDENT_BYTES_MAX, "{with_large_rows} bytes after large rows, {most} bytes at the end");
}
