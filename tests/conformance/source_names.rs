//! A column with several names: a rename that reaches one table after the other loses nothing and has nothing read
//! again, and a table with two of the names is named.

use std::time::Duration;

use anabranch_connectors::mysql::source::MysqlSource;
use anabranch_pipeline::config::{ColumnNames, EntityConfig, UnseenChanges};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{BinlogStart, RowSource, SourceConnector};
use anabranch_pipeline::records::{Cell, Condition};
use anabranch_schemas::lsn::FIRST_EPOCH;

use crate::ports::rows::{rows, table_of, texts, whole};
use crate::source::{Database, Seen, SourceProbe};

on_each_server!(
    a_rename_among_the_names_of_a_column_loses_nothing_and_has_nothing_read_again,
    rows_are_read_under_the_name_that_each_table_has,
    a_table_with_two_of_the_names_is_named_and_left_out_until_one_is_gone,
);

/// A source whose columns have two names each; no table has the first one of a user's key.
fn source(database: &Database, unseen_changes: UnseenChanges) -> MysqlSource {
    let [key, birthday] =
        [["uid", "user_id"], ["birthday", "birth_date"]].map(|[one, other]| ColumnNames::from(one).or(other));
    let entity = EntityConfig { columns: vec![key, birthday], unseen_changes, ..database.entity() };
    MysqlSource::new(&database.config(), &[entity], Duration::from_secs(2))
}

async fn read(database: &Database, unseen_changes: UnseenChanges, entry: BinlogStart) -> SourceProbe {
    SourceProbe::open(&source(database, unseen_changes), entry).await.unwrap()
}

/// The reader stops where rows change unseen, and it does not stop.
async fn a_rename_among_the_names_of_a_column_loses_nothing_and_has_nothing_read_again(database: Database) {
    let database = database.with_tables().await;
    let mut probe = read(&database, UnseenChanges::Stop, BinlogStart::Latest).await;
    database
        .run(&[
            // Nothing is known of this table yet.
            "ALTER TABLE $0.t1 RENAME COLUMN birthday TO birth_date",
            "INSERT INTO $0.t0 VALUES (1, '', '2000-01-01')",
            "INSERT INTO $0.t1 VALUES (2, '', '2000-01-02')",
            "ALTER TABLE $0.t0 RENAME COLUMN birthday TO birth_date",
            "INSERT INTO $0.t0 VALUES (3, '', '2000-01-03')",
            "UPDATE $0.t0 SET birth_date = '2001-01-01' WHERE user_id = 1",
            "UPDATE $0.t1 SET birth_date = '2001-01-02' WHERE user_id = 2",
            "ALTER TABLE $0.t1 CHANGE birth_date birthday DATE FIRST",
            "DELETE FROM $0.t1 WHERE user_id = 2",
            "ALTER TABLE $0.t0 RENAME COLUMN birth_date TO birthday",
            "INSERT INTO $0.t0 VALUES (4, '', NULL)",
        ])
        .await;
    probe.until_end(&database).await;
    assert_eq!(
        probe.texts(),
        [
            "t0 + 1 2000-01-01",
            "t1 + 2 2000-01-02",
            "t0 + 3 2000-01-03",
            "t0 1 2000-01-01 ~ 1 2001-01-01",
            "t1 2 2000-01-02 ~ 2 2001-01-02",
            "t1 - 2 2001-01-02",
            "t0 + 4 NULL",
        ]
    );
    // A reader that begins anywhere among the renames reads the same.
    for index in 0..probe.batches.len() {
        let sent = probe.batches[index].position;
        let kept = probe.seen[..probe.seen_with[index]].iter().filter(|seen| seen.lsn <= sent);
        let missing = probe.seen.iter().filter(|seen| seen.lsn > sent).count();
        let mut again = read(&database, UnseenChanges::Reread, probe.entry_after(index)).await;
        if missing > 0 {
            again.until_seen(missing).await;
        }
        let all: Vec<&Seen> = kept.chain(&again.seen).collect();
        assert!(all.into_iter().eq(&probe.seen), "behind batch {index} at {sent}");
    }
    // The column may also leave its names for a moment.
    database
        .run(&[
            "ALTER TABLE $0.t0 RENAME COLUMN birthday TO born",
            "ALTER TABLE $0.t0 RENAME COLUMN born TO birth_date",
            "INSERT INTO $0.t0 VALUES (5, '', NULL)",
        ])
        .await;
    probe.until_end(&database).await;
    assert_eq!(probe.texts()[7..], ["t0 + 5 NULL"]);
}

async fn rows_are_read_under_the_name_that_each_table_has(database: Database) {
    let database = database.with_tables().await;
    database
        .run(&[
            "ALTER TABLE $0.t1 RENAME COLUMN birthday TO birth_date",
            "INSERT INTO $0.t0 VALUES (1, '', '2000-01-01'), (2, '', '2000-01-02')",
            "INSERT INTO $0.t1 SELECT * FROM $0.t0",
        ])
        .await;
    let source = source(&database, UnseenChanges::Reread);
    let codes = |faults: Vec<Fault>| faults.iter().map(Fault::code).collect::<Vec<_>>();
    assert_eq!(codes(source.check().await), []);
    let condition: Condition = Condition::new(vec!["birthday = 2000-01-02".parse().unwrap()]).unwrap();
    let captured = source.captured_tables().await.unwrap();
    // Plans are kept between these reads, and a rename makes them outdated.
    for alter in ["", "ALTER TABLE $0.t0 RENAME COLUMN birthday TO birth_date"] {
        if !alter.is_empty() {
            database.run(&[alter]).await;
        }
        for name in ["t0", "t1"] {
            let table = table_of(&source, name).await;
            let chunks = whole(&source, &table, 1).await.unwrap();
            let found: Vec<String> = chunks.iter().flat_map(|chunk| texts(&table, chunk)).collect();
            assert_eq!(found, ["1 2000-01-01", "2 2000-01-02"], "{name} {alter}");
            let chunk = source.matching(&table, &condition, None, rows(9), FIRST_EPOCH).await.unwrap();
            assert_eq!(texts(&table, &chunk), ["2 2000-01-02"], "{name} {alter}");
            let chunk = source.rows(&[(table.clone(), vec![Cell::UInt(1)])], FIRST_EPOCH).await.unwrap();
            assert_eq!(texts(&table, &chunk), ["1 2000-01-01"], "{name} {alter}");
            let known = captured.iter().find(|known| known.identity == table).unwrap();
            let row = ["2", "2000-01-02"].map(|text| Some(text.as_bytes().to_vec())).to_vec();
            assert_eq!(source.rows_by_key(known, &[&b"2"[..]]).await.unwrap(), [row], "{name} {alter}");
        }
    }
    let extents = source.extents(|_| true).await.unwrap();
    assert_eq!(extents.iter().filter(|extent| extent.greatest_key.is_some()).count(), 2);
}

async fn a_table_with_two_of_the_names_is_named_and_left_out_until_one_is_gone(database: Database) {
    let database = database.with_tables().await;
    let source = source(&database, UnseenChanges::Reread);
    let mut probe = read(&database, UnseenChanges::Reread, BinlogStart::Latest).await;
    database
        .run(&[
            "INSERT INTO $0.t0 VALUES (1, '', '2000-01-01')",
            "ALTER TABLE $0.t0 ADD COLUMN birth_date DATE",
            "UPDATE $0.t0 SET birth_date = '1999-09-09'",
            "INSERT INTO $0.t1 VALUES (2, '', NULL)",
        ])
        .await;
    probe.until_end(&database).await;
    assert_eq!(probe.texts(), ["t0 + 1 2000-01-01", "t0 again", "t0 again", "t1 + 2 NULL"]);
    let faults = source.check().await;
    assert_eq!(faults.iter().map(Fault::code).collect::<Vec<_>>(), [Code::SourceColumnAmbiguous]);
    let table = table_of(&source, "t0").await;
    let read = whole(&source, &table, 9).await.expect_err("it has two columns for one field");
    assert_eq!(read.code(), Code::SourceColumnAmbiguous, "{read}");
    for fault in [&faults[0], &read] {
        let text = fault.to_string();
        assert!(text.contains("0.t0") && text.contains("birthday and birth_date"), "{text}");
    }
    // Each of these steps changes which column the values come from.
    database
        .run(&[
            "ALTER TABLE $0.t0 RENAME COLUMN birthday TO old",
            "INSERT INTO $0.t0 (user_id, birth_date) VALUES (3, '2000-01-03')",
            "ALTER TABLE $0.t0 DROP COLUMN birth_date",
            "ALTER TABLE $0.t0 RENAME COLUMN old TO birthday",
            "INSERT INTO $0.t0 (user_id, birthday) VALUES (4, '2000-01-04')",
        ])
        .await;
    probe.until_end(&database).await;
    let later = ["t0 again", "t0 + 3 2000-01-03", "t0 again", "t0 again", "t0 + 4 2000-01-04"];
    assert_eq!(probe.texts()[4..], later);
    assert!(source.check().await.is_empty());
    let chunks = whole(&source, &table, 9).await.unwrap();
    let found: Vec<String> = chunks.iter().flat_map(|chunk| texts(&table, chunk)).collect();
    assert_eq!(found, ["1 2000-01-01", "3 NULL", "4 2000-01-04"]);
}
