//! Server settings that must not matter: sessions set all that they rely on, and tasks need only the tables they use.

use anabranch_tests::{Installation, Plan};

use crate::STANDARD;
use crate::faults::{insert, until_derived};
use crate::reconciliations::reconcile;

/// The number of reconciliations in the history.
async fn reconciliations(installation: &Installation<'_>) -> u64 {
    let sql = "SELECT COUNT(*) FROM anabranch.reconciliations";
    installation.admin("target").await.first("count reconciliations", sql).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_without_autocommit_lose_no_reconciliation_and_are_seen_as_they_are() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let servers = ["source-a", "source-b", "target"];
    for server in servers {
        installation.execute(server, "SET GLOBAL autocommit = 0").await;
    }
    let daemon = installation.run();
    daemon.until_loaded(&servers[..2]).await;
    let source = "user_00.user_000";
    let change = |user: u64| {
        format!(
            "SET SESSION autocommit = 1; INSERT INTO {source} (user_id, user_name, birthday) \
             VALUES ({user}, 'n', '1990-01-01')"
        )
    };
    for user in [1, 2] {
        // Only a session without an old snapshot sees the second user.
        installation.execute("source-a", change(user)).await;
        let applied =
            |lane: &serde_json::Value| lane["rows"].as_u64() == Some(user) && lane["state"] == "current";
        daemon.until_view("lanes", ("source", "source-a"), applied).await;
    }
    daemon.until_ready().await;
    let (ended, report) = reconcile(&installation, &[]).await;
    assert_eq!((ended.exit_code, &report["verdict"]), (0, &"clean".into()), "{report}");
    let written = reconciliations(&installation).await;
    for server in servers {
        installation.execute(server, "SET GLOBAL autocommit = 1").await;
    }
    assert_eq!(written, 1, "the reconciliation stands in the history");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_history_of_reconciliations_stops_no_lane() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    installation
        .execute("target", "RENAME TABLE anabranch.reconciliations TO anabranch.reconciliations_away")
        .await;
    let checked = installation.command(&["check"]).await;
    assert!(checked.stderr.contains("[target-table-missing]"), "{checked:?}");
    let _daemon = installation.run();
    insert(&installation, "source-a", "user_00.user_000", 1).await;
    until_derived(&installation, 1).await;
}
