//! Drift of every kind is planted in every store, and the verification finds each of it.

use std::time::Duration;

use anabranch_demo::drift::Planter;
use anabranch_demo::{Pace, SetAside, WorkloadOptions};
use anabranch_tests::{Installation, Plan};

use crate::stores::GROUND;

/// Keys of planted drift: enough for each kind in each of four stores.
const KEYS: u64 = 160;
/// Rows of the workload, which leaves the set-aside keys alone.
const ROWS: u64 = 3_000;

#[tokio::test(flavor = "multi_thread")]
async fn each_planted_drift_is_a_difference_and_nothing_else_is() {
    let installation = Installation::set_up(GROUND.turn().await, &Plan::everything()).await;
    let mut daemon = installation.run();
    let mut workloads = installation.workloads(WorkloadOptions::new(43));
    let mut aside: Vec<SetAside> = Vec::new();
    for workload in &mut workloads {
        workload.insert_rows(ROWS).await.unwrap();
        aside.extend(workload.set_aside(Planter::rows_needed(KEYS)));
    }
    installation.expect_equal().await;

    let planted = Planter::new(&installation.audits, 43).plant(KEYS, &aside).await.unwrap();
    assert_eq!(planted.total(), KEYS);
    for workload in &mut workloads {
        workload.run_for(Pace::of(500), Duration::from_secs(1)).await.unwrap();
    }
    installation.drained().await;
    daemon.kill();
    let comparisons = installation.compare_each().await;
    for (audit, comparison) in installation.audits.iter().zip(comparisons) {
        let (planted, found) = (&planted.layers[audit.name()], comparison.differences);
        let keys: u64 = planted.values().sum();
        // Two rows of one device are two differences and one key.
        let is_right = found.total() == keys || (audit.name() == "mapping" && found.total() > keys);
        assert!(is_right, "{}: {planted:?}, {found:?}, {:?}", audit.name(), comparison.examples);
        assert!(planted.len() >= 6, "not each kind: {planted:?}");
    }
}
