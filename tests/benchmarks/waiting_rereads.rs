//! The daemon's memory, and the largest progress row, while a thousand tables wait to be read again.
//!
//! One statement for each database renames all of its tables there and back, so every table is owed at once. Nothing
//! differs, and the lanes compare table after table with its derived rows.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::report::{Line, Report};
use crate::site::{DATABASES, SOURCE, Site, TABLES_OF_MANY, TARGET};

const BAR_MEGABYTES: u64 = 200;
const BAR_ROW_BYTES: u64 = 64 * 1024;
const ROWS_A_TABLE: u32 = 200;
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
    for database in 0..DATABASES {
        let name = |table: u32| format!("user_{database:02}.user_{table:03}");
        let spare = format!("user_{database:02}.spare");
        let renames: Vec<String> =
            (0..TABLES_OF_MANY).map(|table| format!("{0} TO {spare}, {spare} TO {0}", name(table))).collect();
        site.source(format!("RENAME TABLE {}", renames.join(", "))).await;
    }
    let (mut most, mut longest, deadline) = (0.0_f64, 0_u64, Instant::now() + WAIT_MAX);
    loop {
        let waiting = daemon.metric("anabranch_refresh_rereads", &[]).await;
        longest = longest.max(row_bytes(&site).await);
        if most > 0.0 && waiting == 0.0 {
            break;
        }
        most = most.max(waiting);
        assert!(Instant::now() < deadline, "{waiting} tables still wait");
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
    let megabytes = daemon.resident_bytes_max() / 1_000_000;
    let tables = format!("{most:.0} entries of waiting tables in all lanes, seen at most");
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
        measured: format!("{longest} bytes of a refresh at most"),
        limit: tables,
        ratio: "-".to_owned(),
        cpu: "-".to_owned(),
        bar: format!("< {BAR_ROW_BYTES} bytes"),
        passes: Some(longest < BAR_ROW_BYTES),
        detail: json!({ "row_bytes_max": longest }),
    });
}

/// Returns the length of the longest state of a refresh that a lane has stored.
async fn row_bytes(site: &Site<'_>) -> u64 {
    let sql = "SELECT CAST(COALESCE(MAX(LENGTH(refresh)), 0) AS UNSIGNED) FROM anabranch.progress";
    let mut admin = site.installation.admin(TARGET).await;
    admin.first("look at progress", sql).await.expect("it answers").expect("a number")
}
