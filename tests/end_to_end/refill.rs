//! A derived table that was dropped: one command makes it again and has the lanes of its projection read all source
//! tables, while the other derived tables stand.

use anabranch_demo::WorkloadOptions;
use anabranch_tests::{Installation, Plan, seed, until};

use crate::STANDARD;

const GONE: &str = "birthday_00.birthday_0101";

#[tokio::test(flavor = "multi_thread")]
async fn a_derived_table_that_is_gone_is_made_and_filled_by_one_command_while_the_others_stand() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let mut workload = installation.workload(WorkloadOptions::new(seed("a derived table that is gone")));
    let daemon = installation.run();
    workload.insert_rows(2_000).await.unwrap();
    installation.expect_equal().await;
    daemon.until_loaded(&["source-a", "source-b"]).await;

    installation.execute("target", format!("DROP TABLE {GONE}")).await;
    let refused = installation.command(&["setup"]).await;
    assert!(
        refused.exit_code != 0
            && refused.stderr.contains("[target-table-missing]")
            && refused.stderr.contains("setup --refill birthday"),
        "{refused:?}"
    );
    let unknown = installation.command(&["setup", "--refill", "nobody"]).await;
    assert!(unknown.exit_code != 0 && unknown.stderr.contains("projection nobody"), "{unknown:?}");

    let refilled = installation.command(&["setup", "--refill", "birthday"]).await.expect_success();
    for part in ["1 of birthday are gone", "source-a/0 refreshes all tables", "created 0 databases, 1 tables"]
    {
        assert!(refilled.stdout.contains(part), "no {part}: {refilled:?}");
    }
    until("the table is filled", async || installation.compare().await.differences.total() == 0).await;
    daemon.until_loaded(&["source-a", "source-b"]).await;
    installation.expect_equal().await;
    let repeated = installation.command(&["setup", "--refill", "birthday"]).await.expect_success();
    assert!(
        repeated.stdout.contains("no table or index of it is gone")
            && !repeated.stdout.contains("refreshes all tables"),
        "{repeated:?}"
    );
    let report = installation.command(&["reconcile", "--now", "--json"]).await.expect_success().json();
    assert_eq!(report["verdict"], "clean", "{report}");
}
