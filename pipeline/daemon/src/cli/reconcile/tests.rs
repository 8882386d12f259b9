//! Tests of the lines of a report.

use anabranch_pipeline::reconcile::{DoubledKey, Foreign};

use super::*;

#[test]
fn a_text_begins_with_what_decides_its_verdict_and_cuts_long_lists() {
    let double = |number: u64| DoubledKey {
        key_hash: format!("{number:016x}"),
        tables: ["user_00.user_000".to_owned(), "user_01.user_000".to_owned()],
    };
    let mut report = StoreReport::new("birthday");
    report.placement = Some(Placement { doubles: (0..993).map(double).collect(), ..Placement::default() });
    report.set_incomplete("a table cannot be read");
    report.is_gate_closed = true;
    let lines = lines_of(&report);
    assert_eq!(lines[0], "birthday: failed");
    assert!(lines[1].starts_with("  gate"), "{lines:#?}");
    assert_eq!(lines[2], "  missing    a table cannot be read");
    let row = |number: u64| Foreign {
        table: "birthday_00.birthday_0101".to_owned(),
        shard: "7".to_owned(),
        key_hash: format!("{number:016x}"),
    };
    report.add_foreign(2, (0..2).map(row));
    let lines = lines_of(&report);
    assert_eq!(
        lines[3..6],
        [
            "  foreign    2 derived rows belong to no table of a source",
            "  foreign    row 0000000000000000 of birthday_00.birthday_0101, shard_id 7",
            "  foreign    row 0000000000000001 of birthday_00.birthday_0101, shard_id 7",
        ]
    );
    assert!(lines.len() < 30, "{lines:#?}");
    assert!(lines.last().is_some_and(|last| last.contains("and 983 more")), "{lines:#?}");
}

#[test]
fn odd_payment_documents_are_counted_by_reason_and_listed_with_their_identifiers() {
    let odd = |parent: Option<&str>| OddDocument {
        table: "flux_00_0.atom_05_00".to_owned(),
        id: "2016060611031103099052400029904".to_owned(),
        parent: parent.map(str::to_owned),
        what: "digit 17 (main or fail-over) is 0 (main); expected by its source: 1 (fail-over)".to_owned(),
    };
    let placement = Placement {
        rows: 9,
        misplaced: [("flux_00_0.atom_05_00".to_owned(), 2)].into(),
        odd_documents: [("source_side".to_owned(), 2)].into(),
        odd: vec![odd(None), odd(Some("2016060611031003099052400029903"))],
        ..Placement::default()
    };
    let lines = lines_of_placement(&placement);
    assert!(lines[0].starts_with("  placement  9 rows, 2 belong in another table"), "{lines:#?}");
    assert_eq!(
        lines[2..],
        [
            "  placement  2 payment documents are odd: source side",
            "  placement  document 2016060611031103099052400029904 of flux_00_0.atom_05_00: digit 17 (main or \
             fail-over) is 0 (main); expected by its source: 1 (fail-over)",
            "  placement  document 2016060611031103099052400029904 of flux_00_0.atom_05_00, parent \
             2016060611031003099052400029903: digit 17 (main or fail-over) is 0 (main); expected by its source: \
             1 (fail-over)",
        ]
    );
}

#[test]
fn documents_with_a_malformed_identifier_are_listed_with_its_text() {
    let malformed = |number: usize| MalformedDocument {
        table: "flux_00_0.atom_05_00".to_owned(),
        id: format!("none\\x00{number:02}"),
        what: "it has 2 digits; expected: 31".to_owned(),
    };
    let placement = Placement {
        rows: 20,
        undecided: 12,
        malformed: (0..12).map(malformed).collect(),
        ..Placement::default()
    };
    let lines = lines_of_placement(&placement);
    assert!(
        lines[0].starts_with("  placement  20 rows, 0 belong in another table, 12 have no"),
        "{lines:#?}"
    );
    assert_eq!(
        lines[1],
        "  placement  document \"none\\x0000\" of flux_00_0.atom_05_00 has a malformed identifier: it has 2 \
         digits; expected: 31"
    );
    assert_eq!(lines[11..], ["             and 2 more: --json has them all"]);
}
