//! Tests of the sentence: one for each rule.

use anabranch_pipeline::records::LaneId;

use super::*;

fn difference(kind: DifferenceKind) -> Difference {
    Difference {
        kind,
        derived: "birthday_00.birthday_0412".to_owned(),
        lane: LaneId {
            projection: "birthday".to_owned(),
            target: "target".to_owned(),
            source: "a".to_owned(),
            lane: 1,
        },
        source_table: "user_00.user_001".to_owned(),
    }
}

fn lane(reach: LaneReach) -> TracedLane {
    TracedLane::for_test(difference(DifferenceKind::Missing).lane, reach)
}

/// The sentence about differences of these kinds, with the lane in this state.
fn differs(kinds: &[DifferenceKind], reach: LaneReach) -> String {
    let differences: Vec<Difference> = kinds.iter().copied().map(difference).collect();
    sentence(&Facts { differences: &differences, lanes: &[lane(reach)], ..Facts::default() })
}

fn one_row() -> Facts<'static> {
    Facts { rows: vec!["user_00.user_001 of a".to_owned()], claims: 1, stores: 1, ..Facts::default() }
}

#[test]
fn equal_stores_are_called_equal() {
    let text = sentence(&one_row());
    assert_eq!(text, "Equal: the store has exactly what user_00.user_001 of a claims, 1 derived row.");
    let text = sentence(&Facts { claims: 3, stores: 2, ..one_row() });
    assert_eq!(text, "Equal: each store has exactly what user_00.user_001 of a claims, 3 derived rows.");
}

#[test]
fn a_lane_that_has_not_come_so_far_is_the_reason() {
    let missing = [DifferenceKind::Missing];
    let begin =
        "birthday/target lacks a row in birthday_00.birthday_0412 that user_00.user_001 of a claims: ";
    for (reach, reason) in [
        (
            LaneReach::Lagging { lag_seconds: Some(12.4) },
            "lane birthday/target/a/1 has not reached the change yet (behind by 12 s).",
        ),
        (
            LaneReach::Lagging { lag_seconds: None },
            "lane birthday/target/a/1 has not reached the change yet.",
        ),
        (
            LaneReach::Paused,
            "lane birthday/target/a/1 is paused, which `anabranch resume --projection birthday` ends.",
        ),
        (
            LaneReach::Failed { state: "stopped".to_owned(), code: Some("target-fenced".to_owned()) },
            "lane birthday/target/a/1 is stopped with target-fenced: `anabranch explain target-fenced` says what to do.",
        ),
        (LaneReach::Refreshing, "lane birthday/target/a/1 reads its tables again and is not through."),
        (LaneReach::Unknown, "it is not known how far lane birthday/target/a/1 is."),
    ] {
        assert_eq!(differs(&missing, reach), format!("{begin}{reason}"));
    }
}

#[test]
fn what_stays_is_given_with_the_command_that_ends_it_and_without_the_key() {
    let command = "`anabranch refresh --projection birthday --source a --table user_00.user_001 --key KEY`";
    for (kind, found, ends) in [
        (DifferenceKind::LeftOver, "has a row left over in birthday_00.birthday_0412", "removes it."),
        (DifferenceKind::Missing, "lacks a row in birthday_00.birthday_0412", "writes it."),
        (DifferenceKind::Stale, "has other values in birthday_00.birthday_0412", "writes it."),
    ] {
        let text = differs(&[kind], LaneReach::Passed);
        assert!(text.contains(found) && text.contains("the nightly reconciliation or"), "{text}");
        assert!(text.ends_with(&format!("{command} {ends}")), "{text}");
    }
}

#[test]
fn the_gravest_difference_is_named_and_the_others_are_counted() {
    let kinds = [DifferenceKind::LeftOver, DifferenceKind::Missing, DifferenceKind::LeftOver];
    let text = differs(&kinds, LaneReach::Passed);
    assert!(text.contains("lacks a row") && text.contains("(and there are 2 more differences)"), "{text}");
}

#[test]
fn a_row_that_changes_meanwhile_is_no_finding() {
    let differences = [difference(DifferenceKind::Stale)];
    let lanes = [lane(LaneReach::Passed)];
    let text = sentence(&Facts { differences: &differences, lanes: &lanes, is_hot: true, ..one_row() });
    assert!(text.ends_with("the source row changed while it was read: trace it again."), "{text}");
}

#[test]
fn what_could_not_be_read_is_said_before_anything_is_called_equal() {
    let unread = [UnreadView { source: "b".to_owned(), why: "no answer".to_owned() }];
    let text = sentence(&Facts { unread: &unread, ..one_row() });
    assert_eq!(text, "Source b could not be read as a whole, and nothing else differs: no answer.");
    let stores = vec![("birthday/target".to_owned(), "no answer")];
    let text = sentence(&Facts { unread: &unread, unread_stores: stores, ..one_row() });
    assert_eq!(text, "birthday/target could not be read, and nothing else differs: no answer.");
    let differences = [difference(DifferenceKind::Missing)];
    let text = sentence(&Facts { differences: &differences, unread: &unread, ..one_row() });
    assert!(text.ends_with("; source b could not be read as a whole."), "{text}");
}

#[test]
fn a_row_without_derived_rows_is_explained_by_its_defect() {
    let excluded = vec![("birthday", "birthday_null")];
    let text = sentence(&Facts { claims: 0, excluded: excluded.clone(), ..one_row() });
    let expected = "Equal: the row in user_00.user_001 of a makes no derived row of birthday (birthday_null), and no \
                    store has one.";
    assert_eq!(text, expected);
    let text = sentence(&Facts { excluded, ..one_row() });
    assert!(text.ends_with("birthday gets none (birthday_null)."), "{text}");
}

#[test]
fn a_table_of_the_key_that_waits_to_be_read_again_is_named_at_the_end() {
    let owed = Some("lane p/t/s/0 is to read d.u again".to_owned());
    let text = sentence(&Facts { owed, ..one_row() });
    assert!(text.ends_with("; lane p/t/s/0 is to read d.u again."), "{text}");
}

#[test]
fn a_key_without_rows_is_looked_for_in_the_log() {
    let text = sentence(&Facts { messages: 7, ..Facts::default() });
    let expected = "Nothing has this key: no source table, no store, and none of the newest 7 messages of the log (rows of \
         tables that left are not sought).";
    assert_eq!(text, expected);
    let text = sentence(&Facts { is_in_log: true, ..Facts::default() });
    assert_eq!(
        text,
        "Equal: no source table has this key any more, and no store has a row of it (rows of tables that left are not sought)."
    );
}

#[test]
fn an_old_entry_of_a_cache_is_a_difference() {
    let cache = CacheEntryView {
        cache: "redis".to_owned(),
        state: "hit",
        age_seconds: Some(3.0),
        differs: Some(true),
    };
    let text = sentence(&Facts { cache: Some(&cache), ..one_row() });
    assert!(text.contains("cache redis holds another answer"), "{text}");
    assert!(text.contains("`anabranch reconcile --now --store cache/redis`"), "{text}");
    let right = CacheEntryView { differs: Some(false), ..cache };
    assert!(sentence(&Facts { cache: Some(&right), ..one_row() }).starts_with("Equal: "));
}
