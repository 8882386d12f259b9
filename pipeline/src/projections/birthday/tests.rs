//! The projection against a model of the target: final rows must equal the pure function of the final source rows.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use anabranch_schemas::birthday::BirthdayDefect;
use anabranch_schemas::change::{Action, Change, Entity, TableIdentity};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use proptest::prelude::*;

use super::*;
use crate::projections::{LaneScope, Projection};
use crate::records::{Flush, MutationAction, OrderedMutation};

pub(super) fn birthday(layout: Layout, databases: u32, targets: u32, lanes: u32) -> Projection {
    birthday_by(Calendar::Solar, (layout, databases, targets, lanes))
}

pub(super) fn birthday_by(
    calendar: Calendar,
    (layout, databases, targets, lanes): (Layout, u32, u32, u32),
) -> Projection {
    Projection(Arc::new(Birthday::new(config(calendar, layout, databases), targets, lanes)))
}

pub(super) fn config(calendar: Calendar, layout: Layout, databases: u32) -> BirthdayTables {
    BirthdayTables {
        calendar,
        captures_type: true,
        layout,
        databases: NonZeroU32::new(databases).unwrap(),
        database: "birthday_{db:02}".to_owned(),
        table: match calendar {
            Calendar::Solar => "birthday_{mmdd}".to_owned(),
            Calendar::Lunar => "lunar_birthday_{mmdd}".to_owned(),
        },
    }
}

pub(super) fn table(number: u32) -> TableIdentity<'static> {
    TableIdentity {
        entity: Entity::User,
        shard: ShardId::of("source", "users", &number.to_string(), 0),
        database: Cow::Borrowed("users"),
        table: Cow::Owned(number.to_string()),
    }
}

pub(super) fn date(month: u8, day: u8) -> Value<'static> {
    Value::Date { year: 2000, month, day }
}

pub(super) fn row(user_id: u64, birthday: Value<'static>) -> Vec<Value<'static>> {
    vec![Value::UInt(user_id), birthday]
}

pub(super) fn lsn(number: u64) -> Lsn {
    Lsn::from_u64(number).unwrap()
}

/// Projects changes of one table into one flush, for the only lane.
fn flush_of(actions: Vec<Action<'static>>) -> (Flush, Defects) {
    let (projection, table) = (birthday(Layout::ByDay, 4, 1, 1), table(0));
    let (mut flush, mut defects) = (Flush::default(), Defects::default());
    for (number, action) in (1..).zip(actions) {
        let change = Change { lsn: lsn(number), table: &table, action };
        projection.project(&change, LaneScope { target: 0, lane: 0 }, &mut flush, &mut defects);
    }
    (flush, defects)
}

/// Returns `0101 delete 1` and the like for each mutation.
fn texts(flush: &Flush) -> Vec<String> {
    let projection = birthday(Layout::ByDay, 4, 1, 1);
    let text = |mutation: OrderedMutation<'_>| {
        let table = &projection.tables()[mutation.table as usize].derived.table;
        let [Cell::UInt(user_id)] = mutation.key else { panic!("one key column") };
        let action = match mutation.action {
            MutationAction::Delete => "delete".to_owned(),
            MutationAction::Upsert(cells) => {
                let [Cell::Bytes(day)] = &**cells else { panic!("one value column") };
                format!("upsert {}", std::str::from_utf8(day).unwrap())
            }
        };
        format!("{} {user_id} {action} @{}", table.trim_start_matches("birthday_"), mutation.lsn.as_u64())
    };
    flush.ordered().into_iter().map(text).collect()
}

#[test]
fn a_row_that_moves_twice_within_one_flush_leaves_both_tables() {
    // Compaction before projection would keep 0102 → 0103 only, and the row would stay in 0101 for ever.
    let (flush, _) = flush_of(vec![
        Action::Update { before: row(7, date(1, 1)), after: row(7, date(1, 2)) },
        Action::Update { before: row(7, date(1, 2)), after: row(7, date(1, 3)) },
    ]);
    assert_eq!(texts(&flush), ["0101 7 delete @1", "0102 7 delete @2", "0103 7 upsert 01-03 @2"]);
}

#[test]
fn each_kind_of_change_becomes_its_mutations() {
    let update = |before, after| vec![Action::Update { before, after }];
    for (actions, expected) in [
        (vec![Action::Insert { after: row(7, date(2, 29)) }], vec!["0229 7 upsert 02-29 @1"]),
        (vec![Action::Delete { before: row(7, date(2, 29)) }], vec!["0229 7 delete @1"]),
        (update(row(7, date(5, 4)), row(7, date(5, 4))), vec![]),
        (update(row(7, date(5, 4)), row(7, date(5, 5))), vec!["0504 7 delete @1", "0505 7 upsert 05-05 @1"]),
        (update(row(7, date(5, 4)), row(8, date(5, 4))), vec!["0504 7 delete @1", "0504 8 upsert 05-04 @1"]),
        (update(row(7, date(5, 4)), row(7, Value::Null)), vec!["0504 7 delete @1"]),
        (update(row(7, date(2, 30)), row(7, date(5, 4))), vec!["0504 7 upsert 05-04 @1"]),
        (update(row(7, Value::Null), row(7, date(0, 0))), vec![]),
        (vec![Action::Delete { before: row(7, Value::Null) }], vec![]),
    ] {
        let (flush, _) = flush_of(actions.clone());
        assert_eq!(texts(&flush), expected, "{actions:?}");
    }
}

#[test]
fn a_withdrawal_deletes_what_was_to_be_written_before_it_and_keeps_what_came_after() {
    let (flush, _) = flush_of(vec![
        Action::Insert { after: row(7, date(1, 1)) },
        Action::Withdraw,
        Action::Insert { after: row(8, date(1, 1)) },
    ]);
    assert_eq!(flush.withdrawals, [(table(0).shard, lsn(2))]);
    assert_eq!(texts(&flush), ["0101 7 delete @2", "0101 8 upsert 01-01 @3"]);
}

#[test]
fn integers_and_canonical_decimal_text_are_user_ids() {
    let text = |text: &'static str| Value::Bytes(Cow::Borrowed(text.as_bytes()));
    for (value, expected) in [
        (Value::Int(7), Ok(7)),
        (Value::UInt(u64::MAX), Ok(u64::MAX)),
        (text("0"), Ok(0)),
        (text("18446744073709551615"), Ok(u64::MAX)),
        (Value::Int(-1), Err(UserIdDefect::Negative)),
        (text("18446744073709551616"), Err(UserIdDefect::Malformed)),
        (text(""), Err(UserIdDefect::Malformed)),
        (text("07"), Err(UserIdDefect::Malformed)),
        (text("-7"), Err(UserIdDefect::Malformed)),
        (text("7 "), Err(UserIdDefect::Malformed)),
        (text("٧"), Err(UserIdDefect::Malformed)),
        (text("7e2"), Err(UserIdDefect::Malformed)),
        (Value::Null, Err(UserIdDefect::Null)),
        (Value::Double(7.0), Err(UserIdDefect::WrongType)),
    ] {
        assert_eq!(user_id(&value), expected, "{value:?}");
    }
}

#[test]
fn each_defect_of_a_new_image_is_counted_once_and_old_images_are_not() {
    let (flush, defects) = flush_of(vec![
        Action::Insert { after: row(1, Value::Null) },
        Action::Insert { after: row(2, date(2, 30)) },
        Action::Update { before: row(2, date(2, 30)), after: row(2, date(0, 0)) },
        Action::Delete { before: row(2, date(0, 0)) },
        Action::Insert { after: vec![Value::Int(-5), date(1, 1)] },
    ]);
    assert!(flush.is_empty());
    let counted: Vec<_> = defects.iter().map(|(defect, count)| (defect.reason(), count)).collect();
    assert_eq!(counted, [("null", 1), ("zero", 1), ("not_a_date", 1), ("user_id_negative", 1)]);
    assert_eq!(defects.total(), 4);
}

#[test]
fn reasons_are_unique() {
    let user_id =
        [UserIdDefect::Null, UserIdDefect::Negative, UserIdDefect::Malformed, UserIdDefect::WrongType];
    let reasons: BTreeSet<_> = BirthdayDefect::ALL
        .iter()
        .map(|defect| defect.reason())
        .chain(user_id.iter().map(|defect| defect.reason()))
        .collect();
    assert_eq!(reasons.len(), BirthdayDefect::ALL.len() + user_id.len());
}

#[test]
fn a_defect_is_counted_by_one_lane_of_all() {
    let (projection, table) = (birthday(Layout::ByUser, 4, 2, 3), table(0));
    let mut counted = 0;
    for target in 0..2 {
        for lane in 0..3 {
            let (mut flush, mut defects) = (Flush::default(), Defects::default());
            let action = Action::Insert { after: row(1, Value::Null) };
            let change = Change { lsn: lsn(1), table: &table, action };
            projection.project(&change, LaneScope { target, lane }, &mut flush, &mut defects);
            counted += defects.total();
        }
    }
    assert_eq!(counted, 1);
}

#[test]
fn tables_lie_on_target_database_modulo_targets_and_lanes_share_them_evenly() {
    for (layout, databases, targets, lanes) in
        [(Layout::ByDay, 100, 3, 4), (Layout::ByUser, 5, 2, 4), (Layout::ByDay, 1, 1, 2)]
    {
        let projection = birthday(layout, databases, targets, lanes);
        for target in 0..targets {
            let mut shares = vec![0u32; lanes as usize];
            for table in projection.tables().iter().filter(|table| table.target == target) {
                let database: u32 = table.derived.database.trim_start_matches("birthday_").parse().unwrap();
                assert_eq!(database % targets, target);
                shares[table.lane as usize] += 1;
            }
            assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1, "{shares:?}");
        }
        let names: BTreeSet<_> =
            projection.tables().iter().map(|t| (&t.derived.database, &t.derived.table)).collect();
        assert_eq!(names.len(), projection.tables().len());
    }
}

#[test]
fn a_fingerprint_changes_with_each_setting_that_moves_rows() {
    let texts: BTreeSet<_> = [
        birthday(Layout::ByDay, 4, 2, 2).fingerprint(0),
        birthday(Layout::ByUser, 4, 2, 2).fingerprint(0),
        birthday(Layout::ByDay, 5, 2, 2).fingerprint(0),
        birthday(Layout::ByDay, 4, 3, 2).fingerprint(0),
        birthday(Layout::ByDay, 4, 2, 3).fingerprint(0),
        birthday(Layout::ByDay, 4, 2, 2).fingerprint(1),
        birthday_by(Calendar::Lunar, (Layout::ByDay, 4, 2, 2)).fingerprint(0),
    ]
    .into();
    assert_eq!(texts.len(), 7);
    assert!(texts.contains(
        "birthday by_day, 4 databases birthday_{db:02}, tables birthday_{mmdd}, target 1 of 2, 2 lanes"
    ));
}

pub(super) fn lunar_row(
    user_id: u64,
    birthday: &'static str,
    birthday_type: &'static str,
) -> Vec<Value<'static>> {
    let text = |text: &'static str| Value::Bytes(Cow::Borrowed(text.as_bytes()));
    vec![Value::UInt(user_id), date(1, 1), text(birthday), text(birthday_type)]
}

pub(super) fn joined(cells: &[Cell]) -> Vec<u8> {
    let bytes = cells.iter().map(|cell| match cell {
        Cell::Bytes(bytes) => &**bytes,
        _ => panic!("value columns are text"),
    });
    bytes.collect::<Vec<_>>().join(&b' ')
}

/// A target that behaves as SQL does: (table, shard, user) → (day, version).
#[derive(Debug, Default, Clone, PartialEq)]
struct Model(BTreeMap<(u32, ShardId, u64), (Vec<u8>, Lsn)>);

impl Model {
    fn apply(&mut self, flush: &Flush, owned: &BTreeSet<u32>) {
        for (shard, lsn) in &flush.withdrawals {
            self.0.retain(|(table, owner, _), (_, version)| {
                !(owned.contains(table) && owner == shard && *version <= *lsn)
            });
        }
        for mutation in flush.ordered() {
            assert!(owned.contains(&mutation.table), "a lane writes only its own tables");
            let [Cell::UInt(user_id)] = mutation.key else { panic!("one key column") };
            let key = (mutation.table, mutation.shard, *user_id);
            let newer_stands = self.0.get(&key).is_some_and(|(_, version)| *version > mutation.lsn);
            match mutation.action {
                _ if newer_stands => {}
                MutationAction::Delete => drop(self.0.remove(&key)),
                MutationAction::Upsert(cells) => {
                    self.0.insert(key, (joined(cells), mutation.lsn));
                }
            }
        }
    }
}

/// A change that a person makes to the source; days 0 to 3 are valid, 6 and 7 as lunar ones, others not.
#[derive(Debug, Clone)]
enum Step {
    Put { table: u32, user_id: u64, day: u8 },
    ChangeId { table: u32, user_id: u64, to: u64 },
    Rename { from: u32, to: u32, user_id: u64, insert_first: bool, day: u8 },
    Delete { table: u32, user_id: u64 },
    Truncate { table: u32 },
}

const TABLES_OF_MODEL: u32 = 4;

/// Tables 0 and 1 belong to the first source's log, 2 and 3 to the second's.
fn source_of(table: u32) -> usize {
    (table / 2) as usize
}

fn day_value(day: u8) -> Value<'static> {
    match day {
        0 => date(1, 1),
        1 => date(1, 2),
        2 => date(2, 29),
        3 => date(12, 31),
        4 | 6 | 7 => Value::Null,
        _ => date(2, 30),
    }
}

/// Returns a lunar birthday with its ordinal in the calendar, and a type with its meaning.
fn lunar_value(day: u8) -> ((&'static str, Option<u32>), (&'static str, &'static str)) {
    match day {
        0 => (("01-01", Some(0)), ("", "solar")),
        1 => (("01-02", Some(1)), ("lunar", "lunar")),
        2 => (("02-30", Some(59)), ("solar", "solar")),
        3 => (("12-30", Some(359)), ("LUNAR ", "lunar")),
        6 => (("01-01", Some(0)), ("lunar", "lunar")),
        7 => (("01-01", Some(0)), ("odd", "solar")),
        4 => (("", None), ("lunar", "lunar")),
        _ => (("01-31", None), ("", "solar")),
    }
}

fn row_of(user_id: u64, day: u8) -> Vec<Value<'static>> {
    let ((birthday, _), (birthday_type, _)) = lunar_value(day);
    let mut row = lunar_row(user_id, birthday, birthday_type);
    row[BIRTHDAY] = day_value(day);
    row
}

type SourceRows = BTreeMap<(u32, u64), u8>;
type Log = Vec<(Lsn, u32, Action<'static>)>;

/// Returns both logs and the final rows. Steps of one table change get one Lsn each two steps, so some share it.
fn history(steps: &[Step]) -> ([Log; 2], SourceRows) {
    let (mut logs, mut rows) = ([Log::new(), Log::new()], SourceRows::new());
    let mut write = |number: usize, table: u32, action| {
        logs[source_of(table)].push((lsn(1 + number as u64 / 2), table, action));
    };
    for (number, step) in steps.iter().enumerate() {
        match *step {
            Step::Put { table, user_id, day } => {
                let after = row_of(user_id, day);
                match rows.insert((table, user_id), day) {
                    None => write(number, table, Action::Insert { after }),
                    Some(old) => {
                        let before = row_of(user_id, old);
                        write(number, table, Action::Update { before, after });
                    }
                }
            }
            Step::ChangeId { table, user_id, to } => {
                if !rows.contains_key(&(table, to))
                    && let Some(day) = rows.remove(&(table, user_id))
                {
                    rows.insert((table, to), day);
                    let (before, after) = (row_of(user_id, day), row_of(to, day));
                    write(number, table, Action::Update { before, after });
                }
            }
            Step::Rename { from, to, user_id, insert_first, day } => {
                if from != to
                    && !rows.contains_key(&(to, user_id))
                    && let Some(old) = rows.remove(&(from, user_id))
                {
                    rows.insert((to, user_id), day);
                    let delete = Action::Delete { before: row_of(user_id, old) };
                    let insert = Action::Insert { after: row_of(user_id, day) };
                    if insert_first {
                        write(number, to, insert);
                        write(number, from, delete);
                    } else {
                        write(number, from, delete);
                        write(number, to, insert);
                    }
                }
            }
            Step::Delete { table, user_id } => {
                if let Some(old) = rows.remove(&(table, user_id)) {
                    write(number, table, Action::Delete { before: row_of(user_id, old) });
                }
            }
            Step::Truncate { table } => {
                rows.retain(|(owner, _), _| *owner != table);
                write(number, table, Action::Withdraw);
            }
        }
    }
    (logs, rows)
}

fn expected(config: &BirthdayTables, rows: &SourceRows) -> BTreeMap<(u32, ShardId, u64), Vec<u8>> {
    rows.iter()
        .filter_map(|((number, user_id), day)| {
            let (ordinal, text) = match config.calendar {
                Calendar::Solar => {
                    let day = MonthDay::from_value(&day_value(*day)).ok()?;
                    (day.ordinal(), day.to_string())
                }
                Calendar::Lunar => {
                    let ((birthday, ordinal), (_, celebrates_by)) = lunar_value(*day);
                    (ordinal?, format!("{birthday} {celebrates_by}"))
                }
            };
            let databases = config.databases.get();
            let place = match config.layout {
                Layout::ByDay => ordinal,
                Layout::ByUser => {
                    (*user_id % u64::from(databases)) as u32 * config.calendar.tables() + ordinal
                }
            };
            Some(((place, table(*number).shard, *user_id), text.into_bytes()))
        })
        .collect()
}

/// One lane of one source, with its position in the log.
struct Feed {
    source: usize,
    scope: LaneScope,
    owned: BTreeSet<u32>,
    next: usize,
}

impl Feed {
    /// Applies the next `count` changes in one flush.
    fn step(&mut self, projection: &Projection, log: &Log, count: usize, model: &mut Model) {
        let (mut flush, mut defects) = (Flush::default(), Defects::default());
        for (lsn, number, action) in log.iter().skip(self.next).take(count) {
            let table = table(*number);
            let change = Change { lsn: *lsn, table: &table, action: action.clone() };
            projection.project(&change, self.scope, &mut flush, &mut defects);
        }
        self.next = (self.next + count).min(log.len());
        model.apply(&flush, &self.owned);
    }
}

fn feeds(projection: &Projection, (targets, lanes): (u32, u32)) -> Vec<Feed> {
    let mut feeds = Vec::new();
    for source in 0..2 {
        for target in 0..targets {
            for lane in 0..lanes {
                let owned = (0u32..)
                    .zip(projection.tables())
                    .filter(|(_, table)| table.target == target && table.lane == lane)
                    .map(|(index, _)| index)
                    .collect();
                feeds.push(Feed { source, scope: LaneScope { target, lane }, owned, next: 0 });
            }
        }
    }
    feeds
}

fn step() -> impl Strategy<Value = Step> {
    let (table, user_id, day) = (0..TABLES_OF_MODEL, 0..4u64, 0..8u8);
    prop_oneof![
        6 => (table.clone(), user_id.clone(), day.clone())
            .prop_map(|(table, user_id, day)| Step::Put { table, user_id, day }),
        2 => (table.clone(), user_id.clone(), user_id.clone())
            .prop_map(|(table, user_id, to)| Step::ChangeId { table, user_id, to }),
        4 => (table.clone(), table.clone(), user_id.clone(), any::<bool>(), day)
            .prop_map(|(from, to, user_id, insert_first, day)| Step::Rename { from, to, user_id, insert_first, day }),
        3 => (table.clone(), user_id).prop_map(|(table, user_id)| Step::Delete { table, user_id }),
        1 => table.prop_map(|table| Step::Truncate { table }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// Windows are cut anywhere, the logs interleave in any way, and lanes are set back and replay.
    #[test]
    fn derived_rows_are_the_pure_function_of_the_source_rows(
        steps in prop::collection::vec(step(), 1..40),
        schedule in prop::collection::vec((any::<prop::sample::Index>(), 1..6usize, 0..10u8), 0..60),
        by_user: bool,
        is_lunar: bool,
        (databases, targets, lanes) in (1..5u32, 1..3u32, 1..4u32),
    ) {
        let layout = [Layout::ByDay, Layout::ByUser][usize::from(by_user)];
        let calendar = Calendar::ALL[usize::from(is_lunar)];
        let projection = birthday_by(calendar, (layout, databases, targets, lanes));
        let (logs, rows) = history(&steps);
        let (mut model, mut feeds) = (Model::default(), feeds(&projection, (targets, lanes)));
        for (feed, count, rewind) in schedule {
            let feed = feed.index(feeds.len());
            let feed = &mut feeds[feed];
            if rewind == 0 {
                feed.next = feed.next.saturating_sub(count * 3);
            }
            feed.step(&projection, &logs[feed.source], count, &mut model);
        }
        for feed in &mut feeds {
            feed.step(&projection, &logs[feed.source], usize::MAX / 2, &mut model);
        }
        let found = model.0.into_iter().map(|(key, (day, _))| (key, day)).collect::<BTreeMap<_, _>>();
        prop_assert_eq!(found, expected(&config(calendar, layout, databases), &rows));
    }
}
