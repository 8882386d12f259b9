//! The lag of live changes while databases of 5,000 tables by the rule are dropped, ten of which have rows; and the
//! daemon's memory.
//!
//! The statement names no table, so every table that the rule puts there is withdrawn. A database is made, filled and
//! dropped every other second while changes are measured, so more than a hundredth of the changes meet a withdrawal.
//! The limit is the same statements for a database that no rule names, as those cost the source as much.

use std::time::Duration;

use serde_json::json;

use crate::Scale;
use crate::latency::{Load, PROCESSES};
use crate::load::beside;
use crate::report::{Line, Report};
use crate::site::{DATABASES, SOURCE, Site, TABLES};

const MOST: f64 = 3.0;
const BAR_MEGABYTES: u64 = 150;
/// Tables that the rule puts into each database.
const TABLES_BY_RULE: u32 = 5_000;
const TABLES_WITH_ROWS: u32 = 10;
const ROWS: u32 = 100;
/// A database that no rule of the configuration names.
const UNCAPTURED: &str = "other_00";
const EVERY: Duration = Duration::from_secs(2);
/// Rows that are written at once; with the pause after them they cost the others no more than common changes do.
const ROWS_AT_ONCE: u32 = 20;
const PAUSE: Duration = Duration::from_millis(20);

pub async fn measure(mut site: Site<'_>, scale: &Scale, report: &mut Report) {
    let _ = site.new_log("dropped").await;
    let rule = |databases: u32, tables: u32| format!("databases = {databases}, tables = {tables} }}");
    let text = site.installation.configuration_text();
    let larger = text.replace(&rule(DATABASES, TABLES), &rule(DATABASES + 1, TABLES_BY_RULE));
    assert_ne!(text, larger, "the rule stands in the configuration");
    site.installation.write_configuration_text(&larger);
    site.installation.command(&["setup"]).await.expect_success();
    let daemon = site.installation.run();
    daemon.until_ready().await;
    let mut load = Load::begin(&site, &daemon, 0, scale).await;
    let captured = format!("user_{DATABASES:02}");
    let (mut alone, mut with, mut dropped, mut beside_it) = (Vec::new(), Vec::new(), 0, 0);
    for _ in 0..scale.rounds {
        tokio::select! {
            latencies = load.run(false) => alone.push(latencies),
            () = drop_databases(&site, UNCAPTURED, &mut beside_it) => unreachable!("it has no end"),
        }
        let before = daemon.resident_bytes_max();
        tokio::select! {
            latencies = load.run(false) => with.push(latencies),
            () = drop_databases(&site, &captured, &mut dropped) => unreachable!("it has no end"),
        }
        report.note(&format!(
            "dropped: {dropped} databases of {TABLES_BY_RULE} tables so far, memory {} MB before, {} MB since",
            before / 1_000_000,
            daemon.resident_bytes_max() / 1_000_000
        ));
    }
    load.finish().await;
    let most = daemon.resident_bytes_max() / 1_000_000;
    report.add(beside("lag beside DROP DATABASE", &with, &alone, &PROCESSES, MOST));
    report.add(Line {
        figure: "memory, DROP DATABASE",
        measured: format!("{most} MB resident at most"),
        limit: format!("{dropped} databases of {TABLES_BY_RULE} tables by the rule"),
        ratio: "-".to_owned(),
        cpu: "-".to_owned(),
        bar: format!("≤ {BAR_MEGABYTES} MB"),
        passes: Some(most <= BAR_MEGABYTES),
        detail: json!({ "resident_megabytes_max": most, "databases_dropped": dropped }),
    });
}

/// Makes, fills and drops a database that receives no change, until the task is aborted.
async fn drop_databases(site: &Site<'_>, database: &str, dropped: &mut u32) {
    let mut make = format!("DROP DATABASE IF EXISTS {database}; CREATE DATABASE {database};");
    let mut fill = Vec::new();
    for table in 0..TABLES_WITH_ROWS {
        make.push_str(&format!("CREATE TABLE {database}.user_{table:03} LIKE user_00.user_{table:03};"));
        let rows = 1 + table * ROWS..1 + (table + 1) * ROWS;
        fill.extend(rows.step_by(ROWS_AT_ONCE as usize).map(|first| {
            format!(
                "INSERT INTO {database}.user_{table:03} (user_id, user_name, birthday)
                 SELECT seq, 'n', DATE '1950-01-01' + INTERVAL seq DAY FROM user_00.seq_{first}_to_{}",
                first + ROWS_AT_ONCE - 1
            )
        }));
    }
    let mut connection = site.installation.admin(SOURCE).await;
    let mut ticks = tokio::time::interval(EVERY);
    loop {
        ticks.tick().await;
        connection.execute("make a database", &make).await.expect("the server takes it");
        for rows in &fill {
            connection.execute("fill a database", rows).await.expect("the server takes it");
            tokio::time::sleep(PAUSE).await;
        }
        let drop = format!("DROP DATABASE {database}");
        connection.execute("drop a database", drop).await.expect("the server takes it");
        *dropped += 1;
    }
}
