//! Daemons are killed beside the removals of a retention rule: no document is lost before its time, and those that have
//! outlived their table go, whatever step of their removal is cut off.

use anabranch_pipeline::failpoints;
use anabranch_tests::{Daemon, Installation, Plan, until};
use serde_json::json;

use crate::STANDARD;
use crate::retired::{id, retired, shown, until_rows, with_documents};

/// Durable steps that a retirement passes. Each of them has a month's table of its own, from January on.
const STEPS: [&str; 5] =
    ["capture-after-append", "lane-before-commit", "lane-rows-sent", "lane-commit-sent", "lane-after-commit"];
const TABLES: [&str; 8] = [
    "composite_05_00",
    "composite_05_01",
    "composite_05_02",
    "composite_05_03",
    "composite_05_04",
    "composite_05_11",
    "composite_05_99",
    "atom_05_00",
];
/// Documents of each month's table that is dropped.
const RECHARGES: u64 = 2;

/// The table of a month that will be dropped.
fn table(month: usize) -> &'static str {
    TABLES[month]
}

/// A recharge in the table of a month that will be dropped.
fn recharge(month: usize, sequence: u32) -> String {
    id(&format!("2016{:02}15", month + 1), 1, month as u8, sequence)
}

/// A refund without a month, of the first recharge of a month.
fn refund(month: usize) -> String {
    id("20170303", 3, 99, 1 + month as u32)
}

/// A document of the table that stays, which a job deletes behind its marker.
fn retained(step: usize) -> String {
    id("20161215", 1, 11, 1 + step as u32)
}

/// A document of the table that stays, which is deleted as any other row.
fn withdrawn(step: usize) -> String {
    id("20161215", 1, 11, 101 + step as u32)
}

/// One source and one lane, so that the first commit after a removal is the one that a failpoint stops.
async fn filled() -> Installation<'static> {
    let plan = Plan { entities: Vec::new(), ..Plan::small() };
    let mut installation = Installation::prepare(STANDARD.turn().await, &plan).await;
    installation.configuration.sources.truncate(1);
    assert_eq!(installation.configuration.sources, ["source-a"]);
    let installation = with_documents(installation, &TABLES, 1).await;
    let mut daemon = installation.run();
    daemon.until_ready().await;
    daemon.until_loaded(&["source-a"]).await;
    let insert = |name: &str, document: &str, parent: &str| {
        format!("INSERT INTO flux_00_0.{name} (id, parent_id) VALUES ('{document}', {parent});")
    };
    let mut sql = String::new();
    for step in 0..STEPS.len() {
        let (first, second) = (recharge(step, 1), recharge(step, 2));
        sql += &insert(table(step), &first, "NULL");
        sql += &insert(table(step), &second, "NULL");
        sql += &insert("composite_05_99", &refund(step), &format!("'{first}'"));
        sql += &insert("composite_05_11", &retained(step), "NULL");
        sql += &insert("composite_05_11", &withdrawn(step), "NULL");
    }
    installation.execute("source-a", sql).await;
    until_rows(&installation, 25).await;
    end(&installation, &mut daemon).await;
    installation
}

async fn end(installation: &Installation<'_>, daemon: &mut Daemon) {
    daemon.kill();
    installation.free_leases().await;
}

/// Starts a daemon that stops at the failpoint, and kills it there.
async fn killed_at(installation: &Installation<'_>, name: &str) {
    let mut daemon = installation.run_with(&[], &[("ANABRANCH_FAILPOINT", name)]);
    daemon.until_failpoint(name).await;
    end(installation, &mut daemon).await;
}

/// Number of these documents in the index.
async fn stored_rows(installation: &Installation<'_>, documents: &[String]) -> u64 {
    let sql = format!(
        "SELECT COUNT(*) FROM flux_relations.flux_relation_05 WHERE id IN ('{}')",
        documents.join("', '")
    );
    installation.admin("target").await.first::<u64>("count documents", sql).await.unwrap().unwrap()
}

/// Both recharges of a month.
fn recharges(month: usize) -> [String; 2] {
    [recharge(month, 1), recharge(month, 2)]
}

/// The retirements of the target, as `table@position`.
async fn retirements(installation: &Installation<'_>) -> Vec<String> {
    let sql = "SELECT CONCAT(source_table, '@', `position`) FROM anabranch.retired ORDER BY 1";
    installation.admin("target").await.rows("list retirements", sql).await.unwrap()
}

async fn is_retired(installation: &Installation<'_>, name: &str) -> bool {
    retirements(installation).await.iter().any(|retirement| retirement.starts_with(&format!("{name}@")))
}

#[tokio::test(flavor = "multi_thread")]
async fn no_parent_is_lost_before_its_time_whatever_step_of_a_retention_is_killed() {
    let installation = filled().await;
    for (step, name) in STEPS.into_iter().enumerate() {
        killed_beside_removals(&installation, step, name).await;
    }
    let mut daemon = installation.run();
    daemon.until_ready().await;
    assert_eq!(retired(&installation).await, (json!(6), json!(15)), "five tables, and the heir of the sixth");
    for month in 0..STEPS.len() {
        let parent = shown(&installation, &recharge(month, 1)).await;
        assert_eq!(parent["claims"][0]["table"], table(month), "{parent}");
        assert_eq!(parent["relations"]["documents"][0]["id"], json!(refund(month)), "{parent}");
    }
    end(&installation, &mut daemon).await;
    outlived(&installation).await;
}

/// Drops a month's table and deletes two documents, one of them behind the marker, then kills a daemon at the step.
async fn killed_beside_removals(installation: &Installation<'_>, step: usize, name: &str) {
    let drop = format!("DROP TABLE flux_00_0.{};", table(step));
    let job = format!(
        "START TRANSACTION; INSERT INTO flux_00_0.retention VALUES ({step}); \
         DELETE FROM flux_00_0.composite_05_11 WHERE id = '{}'; COMMIT;",
        retained(step)
    );
    // The last of the changes: once the index lacks this document, it has taken the other ones.
    let delete = format!("DELETE FROM flux_00_0.composite_05_11 WHERE id = '{}'", withdrawn(step));
    let removals = if step.is_multiple_of(2) { drop + &job } else { job + &drop };
    let before = retirements(installation).await;
    installation.execute("source-a", removals + &delete).await;

    killed_at(installation, name).await;
    let after = retirements(installation).await;
    eprintln!("{name}: {before:?}, then {after:?}");
    if ["lane-before-commit", "lane-rows-sent"].contains(&name) {
        assert_eq!(after, before, "{name}: nothing was committed");
    }
    let parents: Vec<String> =
        (0..STEPS.len()).flat_map(|month| [&recharges(month)[..], &[retained(month)]].concat()).collect();
    assert_eq!(stored_rows(installation, &parents).await, 15, "{name}: before the next daemon");
    let mut daemon = installation.run();
    until_rows(installation, 24 - step as u64).await;
    assert_eq!(stored_rows(installation, &parents).await, 15, "{name}");
    assert!(is_retired(installation, table(step)).await, "{name}");
    end(installation, &mut daemon).await;
}

/// Lets a table have left so many months ago.
async fn retired_before(installation: &Installation<'_>, name: &str, months: u32) {
    let sql = format!(
        "UPDATE anabranch.retired SET retired_at = UTC_TIMESTAMP(6) - INTERVAL {months} MONTH \
         WHERE source_table = '{name}'"
    );
    installation.execute("target", sql).await;
}

/// The rows of tables that left 26 and 25 months ago go, beside daemons that are killed. Those of 23 months stay.
async fn outlived(installation: &Installation<'_>) {
    for (name, months) in [(table(0), 26), (table(1), 25), (table(2), 23)] {
        retired_before(installation, name, months).await;
    }
    for (number, name) in failpoints::OUTLIVED.iter().enumerate() {
        killed_at(installation, name).await;
        let rows = if number == 0 { RECHARGES } else { 0 };
        assert_eq!(stored_rows(installation, &recharges(0)).await, rows, "{name}");
        assert_eq!(is_retired(installation, table(0)).await, number < 3, "{name}");
        assert_eq!(stored_rows(installation, &recharges(1)).await, RECHARGES, "{name}: its turn comes later");
    }
    let daemon = installation.run();
    daemon.until_ready().await;
    until("the second table is forgotten", async || {
        daemon.metric("anabranch_retired_tables_forgotten_total", &["relations"]).await >= 1.0
    })
    .await;
    assert_eq!(daemon.metric("anabranch_retired_rows_removed_total", &["relations"]).await, 2.0);
    assert_eq!(retired(installation).await, (json!(4), json!(11)), "three tables, and the heir");
    for month in 0..STEPS.len() {
        let is_there = month >= 2;
        let rows = if is_there { RECHARGES } else { 0 };
        assert_eq!(stored_rows(installation, &recharges(month)).await, rows, "month {month}");
        assert_eq!(is_retired(installation, table(month)).await, is_there, "month {month}");
    }
    // What followed a document that has gone still names it.
    let refund = shown(installation, &refund(0)).await;
    let end = json!({ "reason": "missing_parent", "parent": recharge(0, 1) });
    assert_eq!(refund["above_end"], end, "{refund}");
}
