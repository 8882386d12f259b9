//! Tables of an entity with `removal = "retain"`: a table that leaves as a whole becomes a record that it was retired,
//! in the order of the binlog, and row events inside a table are changes as always. Deletions of a transaction that has
//! written into the marker table pass to an heir of their table, which is retired.

use std::collections::BTreeSet;
use std::time::Duration;

use anabranch_connectors::mysql::source::MysqlSource;
use anabranch_pipeline::config::{EntityConfig, MarkerTable, Removal, UnseenChanges};
use anabranch_pipeline::ports::BinlogStart;
use anabranch_schemas::change::Action;
use anabranch_schemas::codec;

use crate::source::{Database, Seen, SourceProbe};

on_each_mariadb!(
    deletions_behind_a_marker_of_their_transaction_pass_to_an_heir_and_no_others_do,
    a_table_that_leaves_is_retired_and_one_that_is_swapped_is_read_again,
    a_table_that_is_renamed_away_does_not_stop_a_source_that_stops_at_unseen_changes,
);

mod mysql {
    use crate::source::{Database, DatabaseKind};

    #[tokio::test(flavor = "multi_thread")]
    async fn deletions_behind_a_marker_of_their_transaction_pass_to_an_heir_and_no_others_do() {
        if let Some(database) = Database::lent(DatabaseKind::MySql).await {
            super::deletions_behind_a_marker_of_their_transaction_pass_to_an_heir_and_no_others_do(database)
                .await;
        }
    }

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

    assert_same_behind_each_batch(&probe, || database.source_that_retains(UnseenChanges::Reread)).await;

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

/// Compares what follows each batch with the records of a stream that enters the binlog there.
async fn assert_same_behind_each_batch(probe: &SourceProbe, source: impl Fn() -> MysqlSource) {
    for index in 0..probe.batches.len() {
        let sent = probe.batches[index].position;
        let later: Vec<&Seen> = probe.seen.iter().filter(|seen| seen.lsn > sent).collect();
        let mut again = SourceProbe::open(&source(), probe.entry_after(index)).await.unwrap();
        if !later.is_empty() {
            again.until_seen(later.len()).await;
        }
        assert!(later.into_iter().eq(&again.seen), "behind batch {index} at {sent}");
    }
}

/// Returns a source whose retention jobs name themselves in the table `other`. Capitals are no other name.
fn source_with_marker(database: &Database) -> MysqlSource {
    let marker = MarkerTable { database: format!("{}0", database.prefix), table: "OTHER".to_owned() };
    let entity =
        EntityConfig { removal: Removal::Retain, retention_marker: Some(marker), ..database.entity() };
    MysqlSource::new(&database.config(), &[entity], Duration::from_secs(2))
}

async fn deletions_behind_a_marker_of_their_transaction_pass_to_an_heir_and_no_others_do(database: Database) {
    let database = database.with_tables().await;
    let source = source_with_marker(&database);
    let mut probe = SourceProbe::open(&source, BinlogStart::Latest).await.unwrap();
    let rows: Vec<String> = (1..=9).map(|id| format!("({id}, '', NULL)")).collect();
    let insert = format!("INSERT INTO $0.t0 VALUES {}", rows.join(", "));
    let statements = [
        insert.as_str(),
        "DELETE FROM $0.t0 WHERE user_id = 1",
        "BEGIN",
        "INSERT INTO $0.other VALUES (1, '')",
        "DELETE FROM $0.t0 WHERE user_id IN (2, 3)",
        "COMMIT",
        // The marker of a transaction says nothing about the next one.
        "DELETE FROM $0.t0 WHERE user_id = 4",
        // None of these markers counts: one comes too late, one goes, and one is undone.
        "BEGIN",
        "DELETE FROM $0.t0 WHERE user_id = 5",
        "INSERT INTO $0.other VALUES (2, '')",
        "COMMIT",
        "BEGIN",
        "DELETE FROM $0.other WHERE id = 2",
        "DELETE FROM $0.t0 WHERE user_id = 6",
        "COMMIT",
        "BEGIN",
        "SAVEPOINT s",
        "INSERT INTO $0.other VALUES (3, '')",
        "ROLLBACK TO s",
        "DELETE FROM $0.t0 WHERE user_id = 7",
        "COMMIT",
        // The stream keeps the rows of a branch encoded until its decision.
        "XA START 'a'",
        "REPLACE INTO $0.other VALUES (1, 'again')",
        "DELETE FROM $0.t0 WHERE user_id = 8",
        "XA END 'a'",
        "XA PREPARE 'a'",
        "XA COMMIT 'a'",
    ];
    database.run(&statements).await;
    let inserted: Vec<String> = (1..=9).map(|id| format!("t0 + {id} NULL")).collect();
    let deleted = [
        "t0 - 1 NULL",
        "t0 - 2 NULL",
        "t0 retired",
        "t0 + 2 NULL",
        "t0 - 3 NULL",
        "t0 + 3 NULL",
        "t0 - 4 NULL",
        "t0 - 5 NULL",
        "t0 - 6 NULL",
        "t0 - 7 NULL",
        "t0 - 8 NULL",
        "t0 retired",
        "t0 + 8 NULL",
    ];
    probe.until_end_of(&source).await;
    let expected: Vec<&str> = inserted.iter().map(String::as_str).chain(deleted).collect();
    assert_eq!(probe.texts(), expected);

    let (mut retired, mut deleted) = (BTreeSet::new(), BTreeSet::new());
    for batch in &probe.batches {
        let mut changes = codec::decode(&batch.payload).unwrap();
        while let Some(change) = changes.next().unwrap() {
            _ = match change.action {
                Action::Retire => retired.insert(change.table.shard),
                Action::Delete { .. } => deleted.insert(change.table.shard),
                _ => false,
            };
        }
    }
    assert!(deleted.len() == 1 && !retired.is_empty() && retired.is_disjoint(&deleted), "{retired:?}");
    assert_same_behind_each_batch(&probe, || source_with_marker(&database)).await;
}
