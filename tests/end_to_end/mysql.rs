//! The main flows on MySQL, as a source and as a target, where the machine can have it.

use anabranch_demo::WorkloadOptions;
use anabranch_tests::{Ground, Installation, Plan, seed, until};

use crate::begin_anew::restored_without_its_past;
use crate::coupon_faults::two_programmes_without_a_table;
use crate::flux_flow::given_written_and_found;
use crate::online_schema_change::{altered_by_percona_toolkit, swapped_in_the_order_of_gh_ost};
use crate::pauses::paused_and_resumed;
use crate::reconciliations::repaired_beside_changes;
use crate::refresh::refreshed_beside_changes;
use crate::remove::owed_until_removed;
use crate::retired::dropped_without_refusals;
use crate::unread::read_again;

static MYSQL: Ground = Ground::mysql();

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_mysql_come_by_a_refresh_and_rows_of_nobody_go_while_changes_go_on() {
    let Some(turn) = MYSQL.turn_if_there().await else { return };
    refreshed_beside_changes(turn).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_mysql_has_its_time_from_the_commit_until_it_is_visible() {
    const VISIBLE: &str = "anabranch_lane_visible_seconds";
    let Some(turn) = MYSQL.turn_if_there().await else { return };
    let installation = Installation::set_up(turn, &Plan::small()).await;
    let daemon = installation.run();
    daemon.until_loaded(&["source-a", "source-b"]).await;
    installation.workload(WorkloadOptions::new(seed("visible"))).insert_rows(200).await.unwrap();
    installation.drained().await;
    until("flushes have a time since the commit", async || {
        daemon.metric(&format!("{VISIBLE}_count"), &[]).await > 0.0
    })
    .await;
    let count = daemon.metric(&format!("{VISIBLE}_count"), &[]).await;
    let sum = daemon.metric(&format!("{VISIBLE}_sum"), &[]).await;
    assert!(0.0 < sum && sum < 60.0 * count, "{count} flushes in {sum} s");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reconciliation_of_mysql_finds_what_is_wrong_beside_the_changes_and_repairs_it() {
    let Some(turn) = MYSQL.turn_if_there().await else { return };
    repaired_beside_changes(turn).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coupon_day_on_mysql_gives_everybody_one_coupon_though_a_table_cannot_be_read() {
    let Some(turn) = MYSQL.turn_if_there().await else { return };
    two_programmes_without_a_table(turn).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_of_a_month_dropped_on_mysql_are_found_beside_those_of_the_next_table() {
    let Some(turn) = MYSQL.turn_if_there().await else { return };
    dropped_without_refusals(turn).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_with_identifiers_of_mysql_are_found_audited_and_reconciled() {
    let Some(turn) = MYSQL.turn_if_there().await else { return };
    given_written_and_found(turn).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_mysql_that_percona_toolkit_alters_beside_changes_is_read_again() {
    let Some(turn) = MYSQL.turn_if_there().await else { return };
    altered_by_percona_toolkit(turn).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_mysql_that_is_swapped_in_the_order_of_gh_ost_is_read_again() {
    let Some(turn) = MYSQL.turn_if_there().await else { return };
    swapped_in_the_order_of_gh_ost(turn).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_mysql_whose_rows_changed_unseen_is_read_again() {
    let Some(turn) = MYSQL.turn_if_there().await else { return };
    read_again(turn).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_of_mysql_that_was_restored_without_its_past_begins_anew() {
    let Some(turn) = MYSQL.turn_if_there().await else { return };
    restored_without_its_past(turn).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lanes_of_mysql_are_paused_and_go_on() {
    let Some(turn) = MYSQL.turn_if_there().await else { return };
    paused_and_resumed(turn).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_mysql_that_is_gone_is_owed_no_longer_once_it_is_removed() {
    let Some(turn) = MYSQL.turn_if_there().await else { return };
    owed_until_removed(turn).await;
}
