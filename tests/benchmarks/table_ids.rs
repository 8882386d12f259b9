//! The peak memory of a daemon beside uncaptured tables that get a new number with each transaction.
//!
//! A server gives a table a number whenever it opens its definition anew. With room for 400 definitions and 2,000
//! tables that are written in turn, the server has closed every table before it is written again. So the numbers in the
//! binlog rise with every row.

use std::time::Duration;

use anabranch_demo::verify::drain;
use serde_json::json;
use tokio::task::JoinSet;

use crate::Scale;
use crate::report::{Line, Report};
use crate::site::{SOURCE, Site};

const TABLES: u64 = 2_000;
/// Size of the definition cache: MariaDB's least, and its default.
const DEFINITIONS: u64 = 400;
const CONNECTIONS: u64 = 4;
/// Bytes of a row; an update has it twice in the binlog, so a million updates are a gibibyte.
const ROW_BYTES: u64 = 480;
const BAR_MEGABYTES: u64 = 150;
/// Longest wait, far above the time that it takes.
const WAIT_MAX: Duration = Duration::from_secs(600);

pub async fn measure(site: &mut Site<'_>, scale: &Scale, report: &mut Report) {
    let _ = site.new_log("table-ids").await;
    site.installation.command(&["setup"]).await.expect_success();
    make_tables(site).await;
    let daemon = site.installation.run();
    daemon.until_ready().await;
    until_drained(site).await;
    let before = daemon.resident_bytes_max() / 1_000_000;
    let (opened, bytes) = (opened(site).await, binlog_bytes(site).await);
    write_in_turn(site, scale.table_ids / TABLES).await;
    until_drained(site).await;
    let (opened, bytes) = (self::opened(site).await - opened, binlog_bytes(site).await - bytes);
    let most = daemon.resident_bytes_max() / 1_000_000;
    report.note(&format!("table ids: {opened} definitions were opened, {bytes} bytes of binlog"));
    assert!(opened >= scale.table_ids * 9 / 10, "tables kept their numbers");
    report.add(Line {
        figure: "memory, table ids",
        measured: format!("{most} MB resident at most"),
        limit: format!("{before} MB before {opened} ids of {TABLES} tables, {} MB", bytes / 1_000_000),
        ratio: format!("{:.2} ×", most as f64 / before as f64),
        cpu: "-".to_owned(),
        bar: format!("≤ {BAR_MEGABYTES} MB"),
        passes: Some(most <= BAR_MEGABYTES),
        detail: json!({
            "resident_megabytes_max": most, "before": before, "definitions_opened": opened, "binlog_bytes": bytes,
        }),
    });
    site.source(
        "DROP DATABASE other; SET GLOBAL table_definition_cache = 4000; SET GLOBAL table_open_cache = 8000",
    )
    .await;
}

/// Makes tables of one row each in a database that is not captured.
async fn make_tables(site: &Site<'_>) {
    site.source(format!(
        "SET GLOBAL table_definition_cache = {DEFINITIONS}; SET GLOBAL table_open_cache = {DEFINITIONS};
         CREATE DATABASE other"
    ))
    .await;
    for first in (0..TABLES).step_by(100) {
        let tables = (first..first + 100).map(|number| {
            format!(
                "CREATE TABLE other.t{number} (id INT PRIMARY KEY, n INT NOT NULL, pad VARBINARY({ROW_BYTES}) NOT NULL);
                 INSERT INTO other.t{number} VALUES (1, 0, REPEAT('x', {ROW_BYTES}));"
            )
        });
        site.source(tables.collect::<String>()).await;
    }
}

/// Updates the row of each table `rounds` times, with a part of the tables for each connection.
async fn write_in_turn(site: &Site<'_>, rounds: u64) {
    let mut writers = JoinSet::new();
    for writer in 0..CONNECTIONS {
        let mut connection = site.installation.admin(SOURCE).await;
        let updates = (writer..TABLES)
            .step_by(CONNECTIONS as usize)
            .map(|number| format!("UPDATE other.t{number} SET n = n + 1;"));
        let transaction = format!("START TRANSACTION; {} COMMIT", updates.collect::<String>());
        writers.spawn(async move {
            for _ in 0..rounds {
                connection.execute("write tables in turn", &transaction).await.expect("the server takes it");
            }
        });
    }
    while let Some(written) = writers.join_next().await {
        written.expect("the statements are right");
    }
}

/// Number of definitions that the server has opened.
async fn opened(site: &Site<'_>) -> u64 {
    let sql = "SHOW GLOBAL STATUS LIKE 'Opened_table_definitions'";
    let mut connection = site.installation.admin(SOURCE).await;
    let counter: Option<(String, u64)> = connection.first("read a counter", sql).await.expect("it answers");
    counter.expect("every server has it").1
}

async fn binlog_bytes(site: &Site<'_>) -> u64 {
    let mut connection = site.installation.admin(SOURCE).await;
    let files: Vec<(String, u64)> =
        connection.rows("list files", "SHOW BINARY LOGS").await.expect("it answers");
    files.into_iter().map(|(_, bytes)| bytes).sum()
}

async fn until_drained(site: &Site<'_>) {
    let drained = drain(&site.installation.audits, WAIT_MAX).await.expect("the servers answer");
    assert!(drained.is_complete(), "not drained: {:?}", drained.lagging);
}
