//! The same on MariaDB 11.8, as a source and as a target, where the machine can have it.

use anabranch_tests::Ground;

use crate::nights::repaired_beside_changes;
use crate::refresh::refreshed_beside_changes;

static MARIADB_11: Ground = Ground::mariadb_11();

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_mariadb_11_come_by_a_refresh_and_rows_of_nobody_go_while_changes_go_on() {
    let Some(turn) = MARIADB_11.turn_if_there().await else { return };
    refreshed_beside_changes(turn).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "differs by kind of server, not by version"]
async fn versions_a_night_of_mariadb_11_finds_what_is_wrong_beside_the_changes_and_repairs_it() {
    let Some(turn) = MARIADB_11.turn_if_there().await else { return };
    repaired_beside_changes(turn).await;
}
