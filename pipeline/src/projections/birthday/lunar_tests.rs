//! Lunar tables beside solar ones: the mutations that a change of one row becomes.

use anabranch_schemas::change::{Action, Change};

use super::tests::{birthday, birthday_by, config, date, joined, lsn, lunar_row, row, table};
use super::*;
use crate::projections::{LaneScope, Projection};
use crate::records::{Flush, MutationAction, OrderedMutation};

/// Returns `lunar_birthday_0101 7 upsert 01-01 solar` and the like for each mutation of one change.
fn lunar_texts(projection: &Projection, action: Action<'static>) -> (Vec<String>, Vec<&'static str>) {
    let (table, mut flush, mut defects) = (table(0), Flush::default(), Defects::default());
    let change = Change { lsn: lsn(1), table: &table, action };
    projection.project(&change, LaneScope { target: 0, lane: 0 }, &mut flush, &mut defects);
    let text = |mutation: OrderedMutation<'_>| {
        let table = &projection.tables()[mutation.table as usize].derived.table;
        let [Cell::UInt(user_id)] = mutation.key else { panic!("one key column") };
        let action = match mutation.action {
            MutationAction::Delete => "delete".to_owned(),
            MutationAction::Upsert(cells) => format!("upsert {}", String::from_utf8(joined(cells)).unwrap()),
        };
        format!("{table} {user_id} {action}")
    };
    let texts = flush.ordered().into_iter().map(text).collect();
    (texts, defects.iter().map(|(defect, _)| defect.reason()).collect())
}

#[test]
fn a_lunar_row_follows_month_day_and_type_and_says_by_which_calendar_the_user_celebrates() {
    let projection = birthday_by(Calendar::Lunar, (Layout::ByDay, 4, 1, 1));
    assert_eq!(projection.tables().len(), 360);
    let insert = |birthday, birthday_type| Action::Insert { after: lunar_row(7, birthday, birthday_type) };
    let update = |before: (_, _), after: (_, _)| Action::Update {
        before: lunar_row(7, before.0, before.1),
        after: lunar_row(7, after.0, after.1),
    };
    let short = Action::Insert { after: row(7, date(1, 1)) };
    for (action, expected, reasons) in [
        (insert("01-01", ""), vec!["lunar_birthday_0101 7 upsert 01-01 solar"], vec![]),
        (insert("12-30", "lunar"), vec!["lunar_birthday_1230 7 upsert 12-30 lunar"], vec![]),
        (
            insert("12-30", "odd"),
            vec!["lunar_birthday_1230 7 upsert 12-30 solar"],
            vec!["birthday_type_unknown"],
        ),
        (insert("12-31", "lunar"), vec![], vec!["not_a_date"]),
        (insert("", "lunar"), vec![], vec!["null"]),
        (short, vec![], vec!["null"]),
        (update(("01-01", ""), ("01-01", "solar")), vec![], vec![]),
        (update(("01-01", ""), ("01-01", "lunar")), vec!["lunar_birthday_0101 7 upsert 01-01 lunar"], vec![]),
        (
            update(("01-01", "lunar"), ("01-02", "lunar")),
            vec!["lunar_birthday_0101 7 delete", "lunar_birthday_0102 7 upsert 01-02 lunar"],
            vec![],
        ),
        (update(("01-01", "lunar"), ("", "lunar")), vec!["lunar_birthday_0101 7 delete"], vec!["null"]),
    ] {
        assert_eq!(
            lunar_texts(&projection, action.clone()),
            (expected.iter().map(|e| (*e).to_owned()).collect(), reasons),
            "{action:?}"
        );
    }
}

#[test]
fn a_solar_table_knows_nothing_of_lunar_birthdays_and_types() {
    let projection = birthday(Layout::ByDay, 4, 1, 1);
    let (before, after) = (lunar_row(7, "01-01", ""), lunar_row(7, "02-02", "odd"));
    assert_eq!(lunar_texts(&projection, Action::Update { before, after }), (vec![], vec![]));
    assert_eq!(
        (projection.fields(), birthday_by(Calendar::Lunar, (Layout::ByDay, 4, 1, 1)).fields()),
        (2, 4)
    );
}

#[test]
fn without_the_column_of_the_type_everybody_celebrates_by_the_solar_calendar() {
    let both = config(Calendar::Lunar, Layout::ByDay, 4);
    let without = Birthday::new(BirthdayTables { captures_type: false, ..both }, 1, 1);
    let projection = Projection(Arc::new(without));
    // The value after the captured fields is the key of a sharding rule.
    let (texts, reasons) = lunar_texts(&projection, Action::Insert { after: lunar_row(7, "01-01", "lunar") });
    assert_eq!(
        (&texts[..], &reasons[..]),
        (&["lunar_birthday_0101 7 upsert 01-01 solar".to_owned()][..], &[][..])
    );
    assert_eq!(projection.fields(), 3);
}
