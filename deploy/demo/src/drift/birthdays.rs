//! Plants drift in birthday tables.

use std::collections::BTreeMap;

use anabranch_schemas::celebration::Calendar;

use super::rows::{Row, Step, carry_out, elsewhere, stored};
use super::{Drift, FUTURE_LSN, Hand, Kinds, drift};
use crate::error::Result;
use crate::topology::Topology;
use crate::verify::BirthdayLayer;
use crate::workload::SetAside;

#[derive(Debug, Clone, Copy)]
enum Kind {
    Missing,
    /// A row in the table of an earlier birthday, with the version of that time.
    Stale,
    /// A row of a deleted user.
    Resurrected,
    /// A row in a wrong table with the right content.
    WrongTable,
    InTwoTables,
    /// Two users have each other's birthday.
    Swapped,
    /// Several users of one day have the same other day.
    SameChange,
    /// A row in its table, without a birthday.
    Empty,
    /// A row in its table, with another birthday.
    WrongContent,
    /// An earlier birthday with a version that no log will ever reach.
    Future,
    /// A row in its table, with the other calendar.
    WrongType,
}

const KINDS: [Drift<Kind>; 11] = [
    drift(Kind::Missing, "missing", 1),
    drift(Kind::Stale, "stale", 1),
    drift(Kind::Resurrected, "resurrected", 1),
    drift(Kind::WrongTable, "wrong_table", 1),
    drift(Kind::InTwoTables, "in_two_tables", 1),
    drift(Kind::Swapped, "swapped", 2),
    drift(Kind::SameChange, "same_change_of_two", 2),
    drift(Kind::SameChange, "same_change_of_four", 4),
    drift(Kind::Empty, "empty", 1),
    drift(Kind::WrongContent, "wrong_content", 1),
    drift(Kind::Future, "future_version", 1),
];
/// Only lunar tables have the calendar by which a user celebrates.
const WRONG_TYPE: Drift<Kind> = drift(Kind::WrongType, "wrong_type", 1);

pub(super) async fn plant(
    topology: &Topology,
    layer: &BirthdayLayer,
    aside: &[SetAside],
    drifts: u64,
    hand: &mut Hand<'_>,
) -> Result<Kinds> {
    let rows = stored(topology, layer, aside).await?.concat();
    let shards: Vec<u64> = rows.iter().map(|row| row.shard).collect();
    let mut days: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    rows.into_iter().for_each(|row| days.entry(row.table.clone()).or_default().push(row));
    let mut steps = Vec::new();
    let mut kinds = KINDS.to_vec();
    if layer.calendar == Calendar::Lunar {
        kinds.push(WRONG_TYPE);
    }
    let drawn = hand.draw(&kinds, drifts, |hand, drift| {
        let Some(victims) = victims(&mut days, drift, hand) else { return false };
        steps.extend(steps_of(layer, drift.kind, victims, &shards, hand));
        true
    });
    carry_out(layer, &steps).await?;
    Ok(drawn)
}

/// Takes rows of one day for `SameChange`, of two days for `Swapped`, any rows for the others.
fn victims(
    days: &mut BTreeMap<String, Vec<Row>>,
    drift: &Drift<Kind>,
    hand: &mut Hand<'_>,
) -> Option<Vec<Row>> {
    let (of_each, different) = match drift.kind {
        Kind::Swapped => (1, 2),
        Kind::SameChange => (drift.keys as usize, 1),
        _ => (1, 1),
    };
    let mut full: Vec<String> =
        days.iter().filter(|(_, rows)| rows.len() >= of_each).map(|(day, _)| day.clone()).collect();
    if full.len() < different {
        return None;
    }
    let mut victims = Vec::new();
    for _ in 0..different {
        let day = full.swap_remove(hand.below(full.len()));
        let rows = days.get_mut(&day).expect("it was just there");
        victims.extend(rows.split_off(rows.len() - of_each));
    }
    Some(victims)
}

/// Returns the `MM-DD` of a table, as a literal.
fn day_of(table: &str) -> String {
    let digits = table.rsplit('_').next().unwrap_or_default();
    format!("'{}-{}'", &digits[..2], &digits[2..])
}

/// Returns the row with the birthday of its table's day.
fn with_day_of(row: &Row) -> Row {
    Row { checked: day_of(&row.table), ..row.clone() }
}

fn steps_of(
    layer: &BirthdayLayer,
    kind: Kind,
    rows: Vec<Row>,
    shards: &[u64],
    hand: &mut Hand<'_>,
) -> Vec<Step> {
    let row = rows[0].clone();
    let other = elsewhere(layer, &row, hand);
    let earlier = Row { lsn: row.lsn - 1, ..with_day_of(&other) };
    match kind {
        Kind::Missing => vec![Step::Remove(row)],
        Kind::Stale => vec![Step::Remove(row), Step::Put(earlier)],
        Kind::Resurrected => {
            let shard = shards[hand.below(shards.len())];
            let key = [vec![hand.nobody().to_string()], row.key[1..].to_vec()].concat();
            vec![Step::Put(Row { shard, key, ..with_day_of(&other) })]
        }
        Kind::WrongTable => vec![Step::Remove(row), Step::Put(other)],
        Kind::InTwoTables => vec![Step::Put(with_day_of(&other))],
        Kind::Swapped => {
            let to = |row: &Row, of: &Row| Row { shard: row.shard, key: row.key.clone(), ..of.clone() };
            let [one, two] = [to(&rows[0], &rows[1]), to(&rows[1], &rows[0])];
            rows.into_iter().map(Step::Remove).chain([Step::Put(one), Step::Put(two)]).collect()
        }
        Kind::SameChange => {
            let day = day_of(&other.table);
            rows.into_iter().map(|row| Step::Put(Row { checked: day.clone(), ..row })).collect()
        }
        Kind::Empty => vec![Step::Put(Row { checked: "''".to_owned(), ..row })],
        Kind::WrongContent => vec![Step::Put(Row { checked: day_of(&other.table), ..row })],
        Kind::WrongType => {
            let solar = format!("x'{}'", "736f6c6172");
            let other_type =
                if row.key[1].eq_ignore_ascii_case(&solar) { "'lunar'".to_owned() } else { solar };
            vec![Step::Put(Row { key: vec![row.key[0].clone(), other_type], ..row })]
        }
        Kind::Future => {
            vec![Step::Remove(row), Step::Put(Row { lsn: FUTURE_LSN, ..with_day_of(&other) })]
        }
    }
}
