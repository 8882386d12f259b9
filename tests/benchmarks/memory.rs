//! The most memory that the daemon ever has: catching up with everything, then with one very large transaction.

use std::time::{Duration, Instant};

use anabranch_demo::verify::drain;
use serde_json::json;

use crate::Scale;
use crate::data::Data;
use crate::report::{Line, Report};
use crate::site::{SOURCE, Site};

const BAR_MEGABYTES: u64 = 150;
/// Longest wait, far above the time that it takes.
const WAIT_MAX: Duration = Duration::from_secs(600);

pub async fn measure(site: &mut Site<'_>, data: &Data, scale: &Scale, report: &mut Report) {
    let _ = site.new_log("memory").await;
    site.installation.command(&["setup"]).await.expect_success();
    let daemon = site.installation.run();
    let began = Instant::now();
    until_drained(site).await;
    let seconds = began.elapsed().as_secs_f64();
    let load = daemon.resident_bytes_max() / 1_000_000;
    let rate = data.rows as f64 / seconds / 1e3;
    report.add(line("memory, full load", load, format!("{rate:.0} k rows/s from binlog to tables")));

    // The figure does not wait for the server's commit of it.
    let rows = scale.large_transaction_rows;
    let sql = format!(
        "CREATE DATABASE IF NOT EXISTS user_00;
         INSERT INTO user_00.user_000 (user_id, user_name, birthday)
         SELECT seq, CONCAT('large-', seq), DATE '1950-01-01' + INTERVAL (seq % 20000) DAY FROM user_00.seq_1_to_{rows}"
    );
    let mut connection = site.installation.admin(SOURCE).await;
    connection.execute("write one large transaction", sql).await.expect("the server takes it");
    until_drained(site).await;
    let large = daemon.resident_bytes_max() / 1_000_000;
    report.add(line("memory, large transaction", large, format!("{rows} rows in one transaction")));
}

async fn until_drained(site: &Site<'_>) {
    let drained = drain(&site.installation.audits, WAIT_MAX).await.expect("the servers answer");
    assert!(drained.is_complete(), "not drained: {:?}", drained.lagging);
}

fn line(figure: &'static str, megabytes: u64, under: String) -> Line {
    Line {
        figure,
        measured: format!("{megabytes} MB resident at most"),
        limit: under,
        ratio: "-".to_owned(),
        cpu: "-".to_owned(),
        bar: format!("≤ {BAR_MEGABYTES} MB"),
        passes: Some(megabytes <= BAR_MEGABYTES),
        detail: json!({ "resident_megabytes_max": megabytes }),
    }
}
