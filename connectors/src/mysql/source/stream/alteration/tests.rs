//! Tests which alterations of a captured table are seen as changes of values, by the names of its columns.

use anabranch_pipeline::config::{ColumnNames, Removal, UnseenChanges};
use anabranch_schemas::change::TableIdentity;

use super::*;
use crate::mysql::source::decode::query::{Query, Statement, classify};

/// A table of users whose birthday is called `birthday`, and may be called `birth_date` too.
fn table(names: ColumnNames) -> CapturedTable {
    let shard = ShardId::of("a", "d", "t", 0);
    let identity = TableIdentity { entity: Entity::User, shard, database: "d".into(), table: "t".into() };
    CapturedTable {
        identity,
        columns: vec![ColumnNames::from("user_id"), names].into(),
        unseen_changes: UnseenChanges::default(),
        removal: Removal::default(),
    }
}

fn changes(alter: &str, is_lenient: bool) -> Vec<TableChange> {
    let sql = format!("ALTER TABLE t {alter}");
    let quoting = Default::default();
    match classify(&Query { database: b"d", sql: sql.as_bytes(), quoting, is_lenient }) {
        Statement::Alter { changes, .. } => changes,
        _ => Vec::new(),
    }
}

/// The shape of a table with a number and a day.
fn shape() -> Option<Shape> {
    Some(Shape { formats: vec![Format::Integer { bytes: 8 }, Format::Date] })
}

/// Returns for each statement whether it was seen; the table's rows were seen before the first one.
fn seen(table: &CapturedTable, alters: &[&str]) -> Vec<bool> {
    let mut shapes = Shapes::default();
    shapes.saw(table.identity.shard, shape());
    alters.iter().map(|alter| shapes.judge(table, &changes(alter, false)).is_some()).collect()
}

#[test]
fn a_rename_from_one_name_of_a_column_to_another_keeps_its_values() {
    let two = table(ColumnNames::from("birthday").or("birth_date"));
    let to = "RENAME COLUMN birthday TO birth_date";
    let back = "CHANGE birth_date birthday DATE";
    assert_eq!(seen(&two, &[to, back, to]), [false, false, false]);
    // Whatever was seen before: the statement moves no value to another field.
    assert_eq!(Shapes::default().judge(&two, &changes(to, false)), None);
    // By a name that is none of them, and back under another one of them.
    assert_eq!(seen(&two, &["RENAME COLUMN birthday TO b", "RENAME COLUMN b TO birth_date"]), [false, false]);
    assert_eq!(seen(&two, &["RENAME COLUMN birthday TO b", "RENAME COLUMN c TO birth_date"]), [false, true]);
    assert_eq!(seen(&two, &["RENAME COLUMN birthday TO b, RENAME COLUMN c TO birth_date"]), [true]);
    let one = table("birthday".into());
    assert_eq!(seen(&one, &["RENAME COLUMN birthday TO b", "RENAME COLUMN b TO birthday"]), [false, false]);
    assert_eq!(seen(&one, &["RENAME COLUMN birthday TO b", "RENAME COLUMN c TO birthday"]), [false, true]);
}

#[test]
fn a_second_column_with_a_name_of_the_field_has_every_change_of_names_seen() {
    let two = table(ColumnNames::from("birthday").or("birth_date"));
    let added = "ADD birth_date DATE";
    let old_leaves = "RENAME COLUMN birthday TO old";
    assert_eq!(seen(&two, &[added, "DROP birthday"]), [true, true]);
    assert_eq!(
        seen(&two, &[added, old_leaves, "RENAME COLUMN old TO birthday", "RENAME COLUMN birth_date TO new"]),
        [true, true, true, true]
    );
    assert_eq!(seen(&two, &["ADD (note INT, birth_date DATE)"]), [true]);
    assert_eq!(seen(&two, &["ADD note INT", "RENAME COLUMN note TO birth_date"]), [false, true]);
    let mut shapes = Shapes::default();
    assert!(shapes.judge(&two, &changes(old_leaves, false)).is_some(), "nothing is known of the table");
    // Rows that fit show which column it is.
    shapes.saw(two.identity.shard, shape());
    assert_eq!(shapes.judge(&two, &changes(old_leaves, false)), None);
}

#[test]
fn a_captured_column_is_followed_while_it_has_another_name() {
    let one = table("birthday".into());
    let (away, back) = ("RENAME COLUMN birthday TO tmp", "RENAME COLUMN tmp TO birthday");
    assert_eq!(seen(&one, &[away, "MODIFY tmp INT", back]), [false, true, false]);
    assert_eq!(seen(&one, &[away, "MODIFY TMP DATETIME", "MODIFY other INT", back]), [false; 4]);
    assert_eq!(seen(&one, &["CHANGE birthday tmp INT"]), [true]);
    assert_eq!(seen(&one, &[away, "DROP tmp"]), [false, true]);
}

#[test]
fn a_new_type_keeps_values_unless_the_session_lets_the_server_cut_them_or_they_are_generated() {
    let one = table("birthday".into());
    let judged = |alter: &str, is_lenient: bool| {
        let mut shapes = Shapes::default();
        shapes.saw(one.identity.shard, shape());
        shapes.judge(&one, &changes(alter, is_lenient)).is_some()
    };
    for (alter, strict, lenient) in [
        ("MODIFY user_id SMALLINT", false, true),
        ("MODIFY user_id BIGINT UNSIGNED FIRST", false, true),
        ("MODIFY birthday VARCHAR(5)", false, true),
        ("MODIFY birthday DATETIME", false, false),
        ("MODIFY birthday DATE AFTER note", false, false),
        ("MODIFY birthday DATE AS (born) STORED", true, true),
        ("MODIFY birthday DATE INVISIBLE", false, false),
        ("ADD note INT FIRST, DROP COLUMN pad", false, false),
        ("MODIFY note SMALLINT", false, false),
    ] {
        assert_eq!((judged(alter, false), judged(alter, true)), (strict, lenient), "{alter}");
    }
}
