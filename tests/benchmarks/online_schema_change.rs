//! The lag of live changes while `pt-online-schema-change` copies another table of many rows and swaps the names, and
//! until the swapped table is read again.
//!
//! The changes make new users in all other tables. Of the runs beside the tool the worst one counts, because the swap
//! and the reading that follows it fall into one of them. The copy has the same rows, so nothing needs to be derived
//! again; a row that a lane writes nevertheless gets a new version.

use anabranch_demo::Endpoint;
use anabranch_stack::{Layout, Program, pt_online_schema_change};
use anabranch_tests::{blocking, until};
use serde_json::json;
use tokio::process::Command;

use crate::Scale;
use crate::latency::{Load, PROCESSES};
use crate::load::{Latencies, beside};
use crate::report::{Line, Report};
use crate::site::{SOURCE, Site, TABLES, TARGET};

const MOST: f64 = 3.0;
const CHANGES_A_SECOND: u64 = 500;
/// Number of the first user of the altered table, above those of all changes.
const FIRST_USER: u64 = 3_000_000_000_000;
const DATABASE: &str = "user_00";
/// Rows that are written at once.
const ROWS_AT_ONCE: usize = 50_000;
/// Derived tables that one statement reads.
const UNION_TABLES: usize = 61;

pub async fn measure(mut site: Site<'_>, scale: &Scale, report: &mut Report) {
    let layout = Layout::find().expect("a benchmark runs in a checkout");
    let tool = blocking(|| pt_online_schema_change(&layout)).expect("it installs, where it can be had");
    let Some(tool) = tool else {
        return report.note("online-schema-change: left out, as this machine cannot have the tool");
    };
    let _ = site.new_log("altered").await;
    site.installation.command(&["setup"]).await.expect_success();
    fill(&site, scale.altered_rows).await;
    let daemon = site.installation.run();
    daemon.until_ready().await;
    daemon.until_loaded(&[SOURCE]).await;
    site.installation.drained().await;
    let (rows, version) = derived(&site, 0).await;

    let mut load = Load::begin(&site, &daemon, 0, scale).await.at(CHANGES_A_SECOND);
    let (mut alone, mut with) = (Vec::new(), Vec::new());
    for _ in 0..scale.rounds {
        alone.push(load.run(false).await);
    }
    let mut command = command(&site, &tool);
    let altering = tokio::spawn(async move { command.output().await });
    while with.is_empty() || !altering.is_finished() {
        with.push(load.run(false).await);
    }
    let output = altering.await.expect("it does not panic").expect("the tool runs");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    until("the swap is read", async || daemon.metric("anabranch_source_rereads_total", &[]).await > 0.0)
        .await;
    while daemon.metric("anabranch_refresh_rereads", &[]).await > 0.0 {
        with.push(load.run(false).await);
    }
    load.finish().await;

    let (rewritten, _) = derived(&site, version).await;
    let differences = site.installation.compare().await.differences.total();
    report.note(&format!(
        "online-schema-change: {} rows in the altered table, {rows} derived from it, {} runs of the load beside it",
        scale.altered_rows,
        with.len()
    ));
    let worst = with.into_iter().max_by(|one, other| one.p99_ms().total_cmp(&other.p99_ms()));
    let worst: Vec<Latencies> = worst.into_iter().collect();
    report.add(beside("lag beside pt-online-schema-change", &worst, &alone, &PROCESSES, MOST));
    report.add(count("rows derived again", rewritten, rows));
    report.add(count("differences after the swap", differences, rows));
}

/// Returns the line of a figure that is to be 0.
fn count(figure: &'static str, found: u64, rows: u64) -> Line {
    Line {
        figure,
        measured: found.to_string(),
        limit: format!("{rows} rows derived from the table"),
        ratio: "-".to_owned(),
        cpu: "-".to_owned(),
        bar: "none".to_owned(),
        passes: Some(found == 0),
        detail: json!({ "found": found, "rows": rows }),
    }
}

/// Returns the name of the altered table in its database.
fn table() -> String {
    format!("user_{TABLES:03}")
}

async fn fill(site: &Site<'_>, rows: u64) {
    for first in (0..rows).step_by(ROWS_AT_ONCE) {
        let last = (first + ROWS_AT_ONCE as u64).min(rows) - 1;
        let table = table();
        site.source(format!(
            "INSERT INTO {DATABASE}.{table} (user_id, user_name, birthday)
             SELECT {FIRST_USER} + seq, CONCAT('user-', seq), DATE '1950-01-01' + INTERVAL (seq * 7919 % 20000) DAY
             FROM {DATABASE}.seq_{first}_to_{last}"
        ))
        .await;
    }
}

fn command(site: &Site<'_>, tool: &Program) -> Command {
    let endpoint = Endpoint::admin(site.installation.stack(), SOURCE).expect("a server of the stack");
    let Endpoint { port, user, password, .. } = endpoint;
    let mut command = Command::new(&tool.file);
    command.envs(tool.environment.iter().map(|(name, value)| (name, value)));
    command.args(["--alter", "ADD COLUMN note INT", "--execute", "--no-version-check"]);
    command.args(["--recursion-method", "none"]);
    command.arg(format!("h=127.0.0.1,P={port},u={user},p={password},D={DATABASE},t={}", table()));
    command.kill_on_drop(true);
    command
}

/// Returns the number of rows that are derived from the altered table under a version above this one, and the highest
/// version.
async fn derived(site: &Site<'_>, above: u64) -> (u64, u64) {
    let mut target = site.installation.admin(TARGET).await;
    let tables = "SELECT CONCAT(table_schema, '.', table_name) FROM information_schema.tables \
                  WHERE table_schema LIKE 'birthday\\_%' AND table_name LIKE 'birthday\\_%'";
    let tables: Vec<String> = target.rows("list derived tables", tables).await.expect("it answers");
    let (mut rows, mut highest) = (0, above);
    for part in tables.chunks(UNION_TABLES) {
        let select = |table: &String| {
            format!(
                "SELECT COUNT(*), CAST(COALESCE(MAX(lsn), 0) AS UNSIGNED) FROM {table} \
                 WHERE user_id >= {FIRST_USER} AND lsn > {above}"
            )
        };
        let selects: Vec<String> = part.iter().map(select).collect();
        let sql = selects.join(" UNION ALL ");
        for (count, version) in target.rows::<(u64, u64)>("count versions", sql).await.expect("it answers") {
            rows += count;
            highest = highest.max(version);
        }
    }
    (rows, highest)
}
