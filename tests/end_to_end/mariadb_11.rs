//! The main flows on MariaDB 11.8, as a source and as a target, where the machine can have it.

use anabranch_tests::Ground;

use crate::begin_anew::restored_without_its_past;
use crate::coupon_faults::two_programmes_without_a_table;
use crate::flux_flow::given_written_and_found;
use crate::online_schema_change::{altered_by_percona_toolkit, swapped_in_the_order_of_gh_ost};
use crate::pauses::paused_and_resumed;
use crate::refresh::refreshed_beside_changes;
use crate::remove::owed_until_removed;
use crate::retired::dropped_without_refusals;
use crate::unread::{read_again, stop_and_refresh};

static MARIADB_11: Ground = Ground::mariadb_11();

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_mariadb_11_come_by_a_refresh_and_rows_of_nobody_go_while_changes_go_on() {
    let Some(turn) = MARIADB_11.turn_if_there().await else { return };
    refreshed_beside_changes(turn).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stops_a_reader_of_mariadb_11_is_left_behind_by_a_refresh() {
    let Some(turn) = MARIADB_11.turn_if_there().await else { return };
    stop_and_refresh(turn).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_mariadb_11_whose_rows_changed_unseen_is_read_again() {
    let Some(turn) = MARIADB_11.turn_if_there().await else { return };
    read_again(turn).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coupon_day_on_mariadb_11_gives_everybody_one_coupon_though_a_table_cannot_be_read() {
    let Some(turn) = MARIADB_11.turn_if_there().await else { return };
    two_programmes_without_a_table(turn).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_of_a_month_dropped_on_mariadb_11_are_found_beside_those_of_the_next_table() {
    let Some(turn) = MARIADB_11.turn_if_there().await else { return };
    dropped_without_refusals(turn).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_with_identifiers_of_mariadb_11_are_found_audited_and_reconciled() {
    let Some(turn) = MARIADB_11.turn_if_there().await else { return };
    given_written_and_found(turn).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_mariadb_11_that_percona_toolkit_alters_beside_changes_is_read_again() {
    let Some(turn) = MARIADB_11.turn_if_there().await else { return };
    altered_by_percona_toolkit(turn).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_mariadb_11_that_is_swapped_in_the_order_of_gh_ost_is_read_again() {
    let Some(turn) = MARIADB_11.turn_if_there().await else { return };
    swapped_in_the_order_of_gh_ost(turn).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_of_mariadb_11_that_was_restored_without_its_past_begins_anew() {
    let Some(turn) = MARIADB_11.turn_if_there().await else { return };
    restored_without_its_past(turn).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lanes_of_mariadb_11_are_paused_and_go_on() {
    let Some(turn) = MARIADB_11.turn_if_there().await else { return };
    paused_and_resumed(turn).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_mariadb_11_that_is_gone_is_owed_no_longer_once_it_is_removed() {
    let Some(turn) = MARIADB_11.turn_if_there().await else { return };
    owed_until_removed(turn).await;
}
