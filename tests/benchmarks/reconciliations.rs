//! The cost of a reconciliation: CPU a row in units of half a million to four million users, and memory whatever
//! differs.
//!
//! Units of several sizes are contiguous ranges of the same shards, read in turn, so that only their size changes. The
//! memory is that of a whole `anabranch reconcile --now` beside the daemon: with nothing wrong, with every hundredth
//! derived row deleted, and with every derived row wrong. The gate stops repairs at 10,000 keys.

use std::time::Duration;

use anabranch_connectors::mysql::connection::quote_table;
use anabranch_connectors::mysql::store::MysqlTarget;
use anabranch_pipeline::config::Config;
use anabranch_pipeline::reconcile::Unit;
use anabranch_schemas::change::Entity;
use serde_json::{Value as Json, json};

use crate::meter::{Measured, median, resident_bytes_max};
use crate::reconcile::{open, product};
use crate::report::{Line, Report};
use crate::site::{Site, TARGET};
use crate::{Scale, apply, arrivals, capture};

/// Number of tables in each unit, of 40.
const TABLES: [usize; 4] = [5, 10, 20, 40];
/// Largest ratio of the dearest row to the cheapest.
const SLOPE_MAX: f64 = 1.10;
const SLOPE_ROUNDS: u32 = 5;
const MEMORY_BAR_MEGABYTES: u64 = 300;
/// Number of tables in one packet of a statement for every table.
const TABLES_A_PACKET: usize = 64;
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Longest wait, far above the daemon's need to catch up.
const WAIT_MAX: Duration = Duration::from_secs(900);

/// Measures CPU a row of units of several sizes, over twice the users of the other figures.
pub async fn slope(site: &mut Site<'_>, scale: &Scale, report: &mut Report) {
    let data = arrivals::write(site, &Scale { users: scale.users * 2, ..*scale }).await;
    let log = site.new_log("slope").await;
    capture::append(site, &log, &data).await;
    let config = std::sync::Arc::new(site.config());
    site.installation.command(&["setup"]).await.expect_success();
    apply::product(site, &config, &log, data.end_lsn).await;
    site.delete_log().await;
    let (sides, whole) = open(site, &config.entities, false).await;
    let units = TABLES.map(|tables| front(&whole, tables));
    let mut runs: [Vec<(Measured, u64)>; TABLES.len()] = Default::default();
    // The first run finds cold servers and is thrown away.
    for round in 0..=SLOPE_ROUNDS {
        for (unit, runs) in units.iter().zip(&mut runs) {
            let run = product(site, &sides, unit, scale.seed ^ u64::from(round)).await;
            if round > 0 {
                assert_eq!(run.rows[0], run.rows[1], "a user has one row");
                runs.push((run.measured, run.rows.iter().sum()));
            }
        }
    }
    let of = |runs: &Vec<(Measured, u64)>, part: fn(&Measured) -> f64| {
        median(runs.iter().map(|(run, rows)| part(run) * 1e6 / *rows as f64))
    };
    let client = |run: &Measured| run.own_cpu_seconds;
    let all = |run: &Measured| run.own_cpu_seconds + run.server_cpu_seconds;
    let costs: Vec<f64> = runs.iter().map(|runs| of(runs, all)).collect();
    let own: Vec<f64> = runs.iter().map(|runs| of(runs, client)).collect();
    let rows: Vec<u64> = runs.iter().map(|runs| runs[0].1).collect();
    let list =
        |values: &[f64]| values.iter().map(|value| format!("{value:.2}")).collect::<Vec<_>>().join(", ");
    let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
    let ratio = costs.iter().copied().fold(0.0, f64::max) / least;
    let millions: Vec<f64> = rows.iter().map(|rows| *rows as f64 / 1e6).collect();
    report.add(Line {
        figure: "reconcile, cost slope",
        measured: format!("{} µs a row, all processes", list(&costs)),
        limit: format!("units of {} M rows, both sides", list(&millions)),
        ratio: format!("{ratio:.2}"),
        cpu: format!("client {}", list(&own)),
        bar: format!("≤ {SLOPE_MAX:.2}"),
        passes: Some(ratio <= SLOPE_MAX),
        detail: json!({ "rows": rows, "cpu_us": costs, "client_cpu_us": own }),
    });
}

/// A unit of the first tables of another unit.
fn front(whole: &Unit, tables: usize) -> Unit {
    let tables: std::collections::BTreeMap<_, _> =
        whole.tables.iter().take(tables).map(|(shard, table)| (*shard, table.clone())).collect();
    let last = *tables.keys().next_back().expect("there are tables");
    let end = if tables.len() == whole.tables.len() { *whole.shards.end() } else { last };
    Unit { shards: *whole.shards.start()..=end, tables }
}

/// Measures memory of reconciliations in which nothing, a hundredth and everything differs.
pub async fn memory(site: &mut Site<'_>, scale: &Scale, report: &mut Report) {
    let data = arrivals::write(site, scale).await;
    let _ = site.new_log("reconciliations").await;
    site.installation.command(&["setup"]).await.expect_success();
    let daemon = site.installation.run();
    daemon.until_ready().await;
    site.installation.drained_within(WAIT_MAX).await;
    let config = site.config();
    let cases = match site.entity {
        Entity::User => [
            ("reconciliation's memory, no drift", None),
            ("reconciliation's memory, 1 % drift", Some("DELETE FROM {} WHERE user_id MOD 100 = 7")),
            ("reconciliation's memory, 100 % drift", Some("UPDATE {} SET birthday = '00-00'")),
        ],
        // A row that names another device is two differences: a surplus row and a missing one.
        Entity::SerialCode => [
            ("reconciliation's memory, devices, no drift", None),
            (
                "reconciliation's memory, devices, 1 % drift",
                Some("DELETE FROM {} WHERE CRC32(uuid) MOD 100 = 7"),
            ),
            ("reconciliation's memory, devices, 100 % drift", Some("UPDATE {} SET uuid = CONCAT(uuid, '0')")),
        ],
        Entity::Flux => [
            ("reconciliation's memory, payments, no drift", None),
            (
                "reconciliation's memory, payments, 1 % drift",
                Some("DELETE FROM {} WHERE CRC32(id) MOD 100 = 7"),
            ),
            ("reconciliation's memory, payments, 100 % drift", Some("UPDATE {} SET amount = '-1'")),
        ],
    };
    for (figure, drift) in cases {
        if let Some(drift) = drift {
            damage(site, &config, drift).await;
        }
        let reconciliation = reconciliation(site).await;
        let found = reconciliation.report["verdict"].as_str().unwrap_or("none").to_owned();
        assert_eq!(found == "clean", drift.is_none(), "{}", reconciliation.report);
        let verdicts = reconciliation.report["stores"][0]["verdicts"].to_string();
        let megabytes = reconciliation.resident_bytes / 1_000_000;
        report.add(Line {
            figure,
            measured: format!(
                "{megabytes} MB resident at most, {found} after {:.0} s, {verdicts}",
                reconciliation.seconds
            ),
            limit: format!(
                "{} {}; memory_bytes = {}",
                data.rows, data.what, config.reconcile.settings.memory
            ),
            ratio: "-".to_owned(),
            cpu: "-".to_owned(),
            bar: format!("≤ {MEMORY_BAR_MEGABYTES} MB"),
            passes: Some(megabytes <= MEMORY_BAR_MEGABYTES),
            detail: json!({
                "resident_megabytes_max": megabytes, "seconds": reconciliation.seconds, "report": reconciliation.report,
            }),
        });
    }
    report.note(&format!(
        "reconciliations: the daemon had {} MB resident at most",
        daemon.resident_bytes_max() / 1_000_000
    ));
}

/// Runs a statement for every derived table.
async fn damage(site: &Site<'_>, config: &Config, statement: &str) {
    let target = MysqlTarget::new(config, TARGET).expect("it is configured");
    let lane = target.lane(&target.lane_ids()[0]).expect("it has lanes");
    let statements: Vec<String> = (lane.projection().tables().iter())
        .map(|table| statement.replace("{}", &quote_table(&table.derived.database, &table.derived.table)))
        .collect();
    // A server that answers nothing for a minute counts as silent.
    for some in statements.chunks(TABLES_A_PACKET) {
        site.target(some.join(";")).await;
    }
}

struct Reconciliation {
    seconds: f64,
    resident_bytes: u64,
    report: Json,
}

async fn reconciliation(site: &Site<'_>) -> Reconciliation {
    let began = std::time::Instant::now();
    let reconciliation = site.installation.start(&["reconcile", "--now", "--unthrottled"], &[]);
    let mut resident_bytes = 0;
    while reconciliation.is_running() {
        // The peak of a process's memory only grows.
        resident_bytes = resident_bytes.max(resident_bytes_max(reconciliation.pid()).unwrap_or(0));
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
    let seconds = began.elapsed().as_secs_f64();
    let shown = site.installation.command(&["reconcile", "show", "LAST", "--json"]).await;
    Reconciliation { seconds, resident_bytes, report: shown.expect_success().json() }
}
