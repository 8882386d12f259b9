//! The lag of live changes while an online schema tool copies another table of many rows and swaps the names, and
//! until the swapped table is read again: `pt-online-schema-change`, and then the statements of gh-ost in their order.
//!
//! Half of the changes make new users in all other tables, and the lag is theirs. The other half changes the altered
//! table. Of the runs beside a tool the worst one counts, because the swap and the reading that follows it fall into
//! one of them. The copy has the same rows, so nothing needs to be derived again. A row that a lane writes nevertheless
//! gets a new version, which shows at the rows that no change touches.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anabranch_demo::ghost::{GhostCopy, columns_of};
use anabranch_demo::{Connection, Endpoint};
use anabranch_stack::{Layout, Program, pt_online_schema_change};
use anabranch_tests::{Daemon, blocking, until};
use serde_json::json;
use tokio::process::Command;
use tokio::task::JoinSet;

use crate::Scale;
use crate::latency::{Load, PROCESSES};
use crate::load::{Latencies, beside};
use crate::report::{Line, Report};
use crate::site::{SOURCE, Site, TABLES, TARGET};

const MOST: f64 = 3.0;
/// Changes of the other tables together, and as many of the altered one.
const CHANGES_A_SECOND: u64 = 250;
/// Connections that change the altered table.
const WRITERS: u64 = 5;
/// Number of the first user of the altered table, above those of all changes.
const FIRST_USER: u64 = 3_000_000_000_000;
/// Number of the first user that is made in the altered table, and deleted, while the tools run.
const FIRST_MADE: u64 = 2_500_000_000_000;
/// Users of the altered table for each one that may change.
const TOUCHED_SHARE: u64 = 10;
const DATABASE: &str = "user_00";
/// Rows that are written at once.
const ROWS_AT_ONCE: usize = 50_000;
/// Derived tables that one statement reads.
const UNION_TABLES: usize = 61;

/// A way to alter a table beside changes.
enum Tool {
    Percona(Program),
    GhOst,
}

/// Numbers of the next changes.
#[derive(Debug, Default)]
struct Numbers {
    others: u64,
    altered: u64,
}

pub async fn measure(mut site: Site<'_>, scale: &Scale, report: &mut Report) {
    let layout = Layout::find().expect("a benchmark runs in a checkout");
    let percona = blocking(|| pt_online_schema_change(&layout)).expect("it installs, where it can be had");
    let _ = site.new_log("altered").await;
    site.installation.command(&["setup"]).await.expect_success();
    fill(&site, scale.altered_rows).await;
    let daemon = site.installation.run();
    daemon.until_ready().await;
    daemon.until_loaded(&[SOURCE]).await;
    let mut numbers = Numbers::default();
    match percona {
        None => report.note("online-schema-change: this machine cannot have pt-online-schema-change"),
        Some(program) => {
            let tool = Tool::Percona(program);
            measure_beside(&site, &daemon, &tool, &mut numbers, scale, report).await;
        }
    }
    measure_beside(&site, &daemon, &Tool::GhOst, &mut numbers, scale, report).await;
}

/// Measures the lag beside a tool. No number of a change comes twice.
async fn measure_beside(
    site: &Site<'_>,
    daemon: &Daemon,
    tool: &Tool,
    numbers: &mut Numbers,
    scale: &Scale,
    report: &mut Report,
) {
    site.installation.drained().await;
    let (rows, version) = derived(site, scale.altered_rows, 0).await;
    let rereads = daemon.metric("anabranch_source_rereads_total", &[]).await;
    let writers = Writers::start(site, scale.altered_rows, numbers.altered).await;
    let mut load = Load::begin(site, daemon, 0, scale).await.at(CHANGES_A_SECOND);
    load.skip(numbers.others);
    let mut alone = Vec::new();
    for _ in 0..scale.rounds {
        alone.push(load.run(false).await);
    }
    let is_over = Cell::new(false);
    let altering = async {
        alter(site, tool).await;
        is_over.set(true);
    };
    let measuring = async {
        let mut with = Vec::new();
        while with.is_empty() || !is_over.get() {
            with.push(load.run(false).await);
        }
        with
    };
    let ((), mut with) = tokio::join!(altering, measuring);
    until("the swap is read", async || daemon.metric("anabranch_source_rereads_total", &[]).await > rereads)
        .await;
    while daemon.metric("anabranch_refresh_rereads", &[]).await > 0.0 {
        with.push(load.run(false).await);
    }
    let next = writers.stop().await;
    let changed = next - numbers.altered;
    *numbers = Numbers { others: load.written(), altered: next };
    load.finish().await;

    let differences = site.installation.compare().await.differences.total();
    let (rewritten, _) = derived(site, scale.altered_rows, version).await;
    let (name, figure) = match tool {
        Tool::Percona(_) => ("pt-online-schema-change", "lag beside pt-online-schema-change"),
        Tool::GhOst => ("the statements of gh-ost", "lag beside the statements of gh-ost"),
    };
    report.note(&format!(
        "online-schema-change, {name}: {} rows in the altered table, {changed} changes of it, {} runs of the load \
         beside it, {differences} differences, {rewritten} of {rows} untouched derived rows written again",
        scale.altered_rows,
        with.len()
    ));
    assert_eq!(differences, 0, "rows differ after {name}");
    assert_eq!(rewritten, 0, "derived rows were written again after {name}");
    let worst = with.into_iter().max_by(|one, other| one.p99_ms().total_cmp(&other.p99_ms()));
    let worst: Vec<Latencies> = worst.into_iter().collect();
    let line = beside(figure, &worst, &alone, &PROCESSES, MOST);
    let detail = json!({
        "latency": line.detail, "changes_of_the_altered_table": changed, "differences": differences,
        "derived_rows_rewritten": rewritten, "derived_rows_untouched": rows,
    });
    report.add(Line { detail, ..line });
}

/// Has a tool add a column to the altered table.
async fn alter(site: &Site<'_>, tool: &Tool) {
    let endpoint = Endpoint::admin(site.installation.stack(), SOURCE).expect("a server of the stack");
    let program = match tool {
        Tool::Percona(program) => program,
        Tool::GhOst => {
            let mut connection = endpoint.connect(&[]).await.expect("it answers");
            let columns = columns_of(&mut connection, DATABASE, &table()).await.expect("it answers");
            let copy = GhostCopy {
                database: DATABASE.to_owned(),
                table: table(),
                key: "user_id".to_owned(),
                columns,
                alter: "ADD COLUMN remark INT".to_owned(),
            };
            copy.run(&endpoint).await.expect("the statements are right");
            return;
        }
    };
    let output = command(&endpoint, program).output().await.expect("the tool runs");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

/// Tasks that change the altered table, each change when it is due.
struct Writers {
    tasks: JoinSet<()>,
    is_over: Arc<AtomicBool>,
    /// Number of the next change.
    next: Arc<AtomicU64>,
}

impl Writers {
    async fn start(site: &Site<'_>, rows: u64, first: u64) -> Self {
        let endpoint = Endpoint::admin(site.installation.stack(), SOURCE).expect("a server of the stack");
        let (mut tasks, is_over) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
        let next = Arc::new(AtomicU64::new(first));
        for _ in 0..WRITERS {
            let connection = endpoint.connect(&[]).await.expect("it answers");
            tasks.spawn(change_altered(connection, rows, Arc::clone(&next), Arc::clone(&is_over)));
        }
        Self { tasks, is_over, next }
    }

    /// Ends the changes once each was made; returns the number of the next one.
    async fn stop(mut self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("the statements are right");
        }
        self.next.load(Ordering::Relaxed)
    }
}

async fn change_altered(
    mut connection: Connection,
    rows: u64,
    next: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
) {
    // A tick that is late is made up for.
    let mut ticks = tokio::time::interval(Duration::from_micros(1_000_000 * WRITERS / CHANGES_A_SECOND));
    while !is_over.load(Ordering::Relaxed) {
        ticks.tick().await;
        let sql = change(next.fetch_add(1, Ordering::Relaxed), rows);
        loop {
            match connection.execute("change the altered table", &sql).await {
                // The tool holds the row, or the lock of the swap.
                Err(error) if error.is_lock_conflict() => {}
                done => {
                    done.expect("the server takes it");
                    break;
                }
            }
        }
    }
}

/// Returns the change of the altered table with this number: a user is made, deleted, or gets another birthday.
fn change(number: u64, rows: u64) -> String {
    let table = format!("{DATABASE}.{}", table());
    let day = format!("DATE '1950-01-01' + INTERVAL {} DAY", number * 104_729 % 20_000);
    let user = FIRST_MADE + number;
    match number % 4 {
        0 => format!("INSERT INTO {table} (user_id, user_name, birthday) VALUES ({user}, 'made', {day})"),
        // Users of some 80 changes before, which the other connections have made by then.
        1 => format!("DELETE FROM {table} WHERE user_id = {}", user - 81),
        _ => {
            let user = FIRST_USER + number * 7_919 % touched(rows);
            format!("UPDATE {table} SET birthday = {day} WHERE user_id = {user}")
        }
    }
}

/// Returns the number of first users of the altered table that changes touch.
fn touched(rows: u64) -> u64 {
    (rows / TOUCHED_SHARE).max(1)
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

fn command(endpoint: &Endpoint, tool: &Program) -> Command {
    let Endpoint { port, user, password, .. } = endpoint;
    let mut command = Command::new(&tool.file);
    command.envs(tool.environment.iter().map(|(name, value)| (name, value)));
    command.args(["--alter", "ADD COLUMN note INT", "--execute", "--no-version-check"]);
    command.args(["--recursion-method", "none"]);
    command.arg(format!("h=127.0.0.1,P={port},u={user},p={password},D={DATABASE},t={}", table()));
    command.kill_on_drop(true);
    command
}

/// Returns the number of rows that are derived from untouched users of the altered table under a version above this
/// one, and the highest version.
async fn derived(site: &Site<'_>, altered_rows: u64, above: u64) -> (u64, u64) {
    let first = FIRST_USER + touched(altered_rows);
    let mut target = site.installation.admin(TARGET).await;
    let tables = "SELECT CONCAT(table_schema, '.', table_name) FROM information_schema.tables \
                  WHERE table_schema LIKE 'birthday\\_%' AND table_name LIKE 'birthday\\_%'";
    let tables: Vec<String> = target.rows("list derived tables", tables).await.expect("it answers");
    let (mut rows, mut highest) = (0, above);
    for part in tables.chunks(UNION_TABLES) {
        let select = |table: &String| {
            format!(
                "SELECT COUNT(*), CAST(COALESCE(MAX(lsn), 0) AS UNSIGNED) FROM {table} \
                 WHERE user_id >= {first} AND lsn > {above}"
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
