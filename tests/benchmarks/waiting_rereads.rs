//! The daemon's memory, and the largest progress row, while a thousand tables wait to be read again.
//!
//! One statement renames all tables there and back, so a lane owes every table from one commit on. Nothing differs, and
//! the lanes compare table after table with its derived rows. A trigger notes each row of progress as it is written, so
//! no row and no moment is missed.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::report::{Line, Report};
use crate::site::{DATABASES, SOURCE, Site, TABLES_OF_MANY, TARGET};

const BAR_MEGABYTES: u64 = 200;
const BAR_ROW_BYTES: u64 = 64 * 1024;
const ROWS_A_TABLE: u32 = 200;
/// Tables that wait at one time: all of them.
const TABLES: u64 = DATABASES as u64 * TABLES_OF_MANY as u64;
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Longest wait, far above the time that it takes.
const WAIT_MAX: Duration = Duration::from_secs(600);

pub async fn measure(mut site: Site<'_>, report: &mut Report) {
    let _ = site.new_log("waiting").await;
    site.installation.command(&["setup"]).await.expect_success();
    for database in 0..DATABASES {
        for table in 0..TABLES_OF_MANY {
            let first = u64::from(database * TABLES_OF_MANY + table) * 1_000_000;
            site.source(format!(
                "INSERT INTO user_{database:02}.user_{table:03} (user_id, user_name, birthday)
                 SELECT {first} + seq, 'n', DATE '1950-01-01' + INTERVAL (seq * 79 % 20000) DAY
                 FROM user_00.seq_1_to_{ROWS_A_TABLE}"
            ))
            .await;
        }
    }
    let daemon = site.installation.run();
    daemon.until_ready().await;
    daemon.until_loaded(&[SOURCE]).await;
    site.installation.drained().await;
    let before = daemon.resident_bytes_max() / 1_000_000;
    note_rows_of_progress(&site).await;
    let mut renames = Vec::new();
    for database in 0..DATABASES {
        let spare = format!("user_{database:02}.spare");
        for table in 0..TABLES_OF_MANY {
            let table = format!("user_{database:02}.user_{table:03}");
            renames.push(format!("{table} TO {spare}, {spare} TO {table}"));
        }
    }
    site.source(format!("RENAME TABLE {}", renames.join(", "))).await;
    let deadline = Instant::now() + WAIT_MAX;
    let (longest, most) = loop {
        let (longest, most) = noted_rows(&site).await;
        let waiting = daemon.metric("anabranch_refresh_rereads", &[]).await;
        if most > 0 && waiting == 0.0 {
            break (longest, most);
        }
        assert!(Instant::now() < deadline, "{waiting} tables still wait");
        tokio::time::sleep(CHECK_INTERVAL).await;
    };
    assert_eq!(most, TABLES, "all tables wait at one time");
    let megabytes = daemon.resident_bytes_max() / 1_000_000;
    let tables = format!("{most} tables wait in one lane");
    report.note(&format!("waiting-rereads: {before} MB before, {megabytes} MB since"));
    report.add(Line {
        figure: "memory, waiting tables",
        measured: format!("{megabytes} MB resident at most"),
        limit: tables.clone(),
        ratio: "-".to_owned(),
        cpu: "-".to_owned(),
        bar: format!("≤ {BAR_MEGABYTES} MB"),
        passes: Some(megabytes <= BAR_MEGABYTES),
        detail: json!({ "resident_megabytes_max": megabytes, "before": before, "waiting_max": most }),
    });
    report.add(Line {
        figure: "progress row, waiting tables",
        measured: format!("{longest} bytes at most, all columns"),
        limit: tables,
        ratio: "-".to_owned(),
        cpu: "-".to_owned(),
        bar: format!("< {BAR_ROW_BYTES} bytes"),
        passes: Some(longest < BAR_ROW_BYTES),
        detail: json!({ "row_bytes_max": longest, "waiting_max": most }),
    });
}

/// Has the target note the length of each row of progress that is written from now on, and how many tables wait in it.
async fn note_rows_of_progress(site: &Site<'_>) {
    let mut admin = site.installation.admin(TARGET).await;
    let columns = "SELECT CONCAT('COALESCE(LENGTH(NEW.`', column_name, '`), 0)') FROM information_schema.columns \
                   WHERE table_schema = 'anabranch' AND table_name = 'progress'";
    let columns: Vec<String> = admin.rows("list the columns", columns).await.expect("it answers");
    assert!(!columns.is_empty(), "the table of progress has columns");
    // Each waiting table has one `@` in the text.
    let waiting = "LENGTH(COALESCE(NEW.refresh, '')) - LENGTH(REPLACE(COALESCE(NEW.refresh, ''), '@', ''))";
    let noting = format!(
        "DROP DATABASE IF EXISTS noted; CREATE DATABASE noted; \
         CREATE TABLE noted.progress (row_bytes BIGINT UNSIGNED NOT NULL, waiting BIGINT UNSIGNED NOT NULL); \
         CREATE OR REPLACE TRIGGER anabranch.noted AFTER UPDATE ON anabranch.progress FOR EACH ROW \
         INSERT INTO noted.progress VALUES ({}, {waiting})",
        columns.join(" + ")
    );
    admin.execute("note rows of progress", noting).await.expect("the statements are right");
}

/// Returns the bytes of the longest row that was noted, and the most tables that waited in one.
async fn noted_rows(site: &Site<'_>) -> (u64, u64) {
    let sql = "SELECT COALESCE(MAX(row_bytes), 0), COALESCE(MAX(waiting), 0) FROM noted.progress";
    let mut admin = site.installation.admin(TARGET).await;
    admin.first("look at the noted rows", sql).await.expect("it answers").expect("two numbers")
}
