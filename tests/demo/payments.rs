//! Payment documents through the product: the relation index of a whole workload is equal to its sources, and the
//! verification names each planted drift.

use std::time::Duration;

use anabranch_demo::drift::{Kinds, Planter};
use anabranch_demo::verify::Differences;
use anabranch_demo::{Pace, WorkloadOptions, WorkloadReport};
use anabranch_stack::ServerSpec;
use anabranch_tests::{Ground, Installation, Plan, until_reported};

/// The databases of main share two servers, and those of fail-over have one.
static GROUND: Ground = Ground::of(|| {
    vec![
        ServerSpec::mariadb_source("source-a"),
        ServerSpec::mariadb_source("source-b"),
        ServerSpec::mariadb_source("source-f"),
        ServerSpec::mariadb_target("target"),
        ServerSpec::nats("nats"),
    ]
});

/// Keys of planted drift: three rounds of all kinds, whose keys are 14.
const KEYS: u64 = 42;
/// Documents before the drift is planted.
const ROWS: u64 = 3_000;
/// Documents that are put into the table of another month.
const MISPLACED: u64 = 7;

#[tokio::test(flavor = "multi_thread")]
async fn the_index_of_a_workload_of_payment_documents_is_equal_and_full() {
    let installation = Installation::set_up(GROUND.turn().await, &Plan::payments()).await;
    let mut workload = installation.workload(WorkloadOptions::new(52));
    // The initial load has documents, and the stream has changes of them.
    let mut report = workload.insert_rows(ROWS).await.unwrap();
    let mut daemon = installation.run();
    report.merge(&workload.run_for(Pace::of(800), Duration::from_secs(4)).await.unwrap());
    let needed = |report: &WorkloadReport| {
        [
            ("recharges in fail-over", report.recharges_in_fail_over),
            ("refunds", report.refunds),
            ("children before parents", report.children_before_parents),
            ("changed parents", report.parents_changed),
            ("deletes", report.deletes),
        ]
    };
    let is_enough = |report: &WorkloadReport| needed(report).iter().all(|(_, count)| *count > 0);
    until_reported(&mut workload, Pace::of(800), &mut report, is_enough).await;
    for (kind, count) in needed(&report) {
        assert!(count > 0, "the workload made no {kind}: {report:?}");
    }
    let equal = installation.expect_equal_and_full().await;
    daemon.kill();
    assert!(equal.claims > equal.source_rows, "no document is in its parent's table, too");
    assert_eq!((equal.misplaced_source_rows, equal.misplaced_children), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_planted_drift_of_the_relation_index_is_named_and_nothing_else_is() {
    let installation = Installation::set_up(GROUND.turn().await, &Plan::payments()).await;
    let mut daemon = installation.run();
    let mut workload = installation.workload(WorkloadOptions::new(53));
    workload.insert_rows(ROWS).await.unwrap();
    let aside = workload.set_aside(Planter::rows_needed(KEYS));
    installation.expect_equal().await;

    let planted = Planter::new(&installation.audits, 53).plant(KEYS, &aside).await.unwrap();
    assert_eq!((planted.total(), planted.misplaced), (KEYS, MISPLACED));
    workload.run_for(Pace::of(500), Duration::from_secs(1)).await.unwrap();
    let comparison = installation.compare().await;
    daemon.kill();
    let kinds = &planted.layers["relations"];
    assert_eq!(comparison.differences, differences_of(kinds), "{kinds:?}: {:?}", comparison.examples);
    assert_eq!((comparison.misplaced_source_rows, comparison.misplaced_children), (MISPLACED, 0));
}

/// Returns the differences that planted drift is, and expects each kind of it.
fn differences_of(kinds: &Kinds) -> Differences {
    let mut differences = Differences::default();
    for (kind, keys) in kinds {
        let difference = match *kind {
            "missing" => &mut differences.missing,
            "resurrected" => &mut differences.orphan,
            "wrong_table" => &mut differences.wrong_table,
            "in_two_tables" => &mut differences.duplicate,
            _ => &mut differences.wrong_field,
        };
        *difference += keys;
    }
    assert_eq!(kinds.len(), 10, "not each kind: {kinds:?}");
    differences
}
