//! Tables of an entity with `removal = "retain"`: a table that leaves as a whole becomes a record that it was retired,
//! in the order of the binlog, and row events inside a table are changes as always.

use anabranch_pipeline::config::UnseenChanges;
use anabranch_pipeline::ports::BinlogStart;

use crate::source::{Database, Seen, SourceProbe};

on_each_mariadb!(
    a_table_that_leaves_is_retired_and_one_that_is_swapped_is_read_again,
    a_table_that_is_renamed_away_does_not_stop_a_source_that_stops_at_unseen_changes,
);

mod mysql {
    use crate::source::Database;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_table_that_leaves_is_retired_and_one_that_is_swapped_is_read_again() {
        if let Some(database) = Database::mysql_alone() {
            super::a_table_that_leaves_is_retired_and_one_that_is_swapped_is_read_again(database).await;
        }
    }
}

async fn a_table_that_leaves_is_retired_and_one_that_is_swapped_is_read_again(database: Database) {
    let database = database.with_tables().await;
    let source = database.source_that_retains(UnseenChanges::Reread);
    let mut probe = SourceProbe::open(&source, BinlogStart::Latest).await.unwrap();
    let statements = [
        "INSERT INTO $0.t0 VALUES (1, '', NULL)",
        "INSERT INTO $0.t0 VALUES (2, '', NULL)",
        "DELETE FROM $0.t0 WHERE user_id = 1",
        "TRUNCATE TABLE $0.t0",
        "INSERT INTO $0.t0 VALUES (3, '', NULL)",
        "DROP TABLE $0.t0, $0.other",
        "CREATE TABLE $0.t0 LIKE $0.t1",
        "INSERT INTO $0.t0 VALUES (4, '', NULL)",
        "RENAME TABLE $0.t1 TO $0.away",
        "CREATE TABLE $0._t0_new LIKE $0.t0",
        "RENAME TABLE $0.t0 TO $0._t0_old, $0._t0_new TO $0.t0",
    ];
    database.run(&statements).await;
    let seen = [
        "t0 + 1 NULL",
        "t0 + 2 NULL",
        "t0 - 1 NULL",
        "t0 retired",
        "t0 + 3 NULL",
        "t0 retired",
        "t0 + 4 NULL",
        "t1 retired",
        "t0 again",
    ];
    probe.until_end_of(&source).await;
    assert_eq!(probe.texts(), seen);

    // The same records at the same positions, wherever a stream enters the binlog.
    for index in 0..probe.batches.len() {
        let sent = probe.batches[index].position;
        let later: Vec<&Seen> = probe.seen.iter().filter(|seen| seen.lsn > sent).collect();
        let other = database.source_that_retains(UnseenChanges::Reread);
        let mut again = SourceProbe::open(&other, probe.entry_after(index)).await.unwrap();
        if !later.is_empty() {
            again.until_seen(later.len()).await;
        }
        assert!(later.into_iter().eq(&again.seen), "behind batch {index} at {sent}");
    }

    database.run(&["DROP DATABASE $0"]).await;
    probe.until_end_of(&source).await;
    assert_eq!(probe.texts()[seen.len()..], ["t0 retired", "t1 retired"]);
}

async fn a_table_that_is_renamed_away_does_not_stop_a_source_that_stops_at_unseen_changes(
    database: Database,
) {
    let database = database.with_tables().await;
    let source = database.source_that_retains(UnseenChanges::Stop);
    let mut probe = SourceProbe::open(&source, BinlogStart::Latest).await.unwrap();
    database.run(&["RENAME TABLE $0.t0 TO $0.away", "INSERT INTO $0.t1 VALUES (1, '', NULL)"]).await;
    probe.until_end_of(&source).await;
    assert_eq!(probe.texts(), ["t0 retired", "t1 + 1 NULL"]);
}
