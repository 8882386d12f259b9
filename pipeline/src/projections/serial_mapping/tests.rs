//! The projection against a model of the target: final rows must equal the pure function of the final source rows.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use anabranch_schemas::change::{Action, Change, Entity, TableIdentity};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use proptest::prelude::*;

use super::*;
use crate::projections::{LaneScope, Projection};
use crate::records::{Flush, MutationAction};

const ALL: LaneScope = LaneScope { target: 0, lane: 0 };

fn mapping(targets: u32, lanes: u32) -> Projection {
    Projection(Arc::new(rules(targets, lanes)))
}

fn rules(targets: u32, lanes: u32) -> SerialMapping {
    let config = MappingTables {
        tables: NonZeroU32::new(512).unwrap(),
        database: "serial_code_{length}".to_owned(),
        table: "mapping_{table:03}".to_owned(),
    };
    SerialMapping::new(config, targets, lanes)
}

fn table(number: u32) -> TableIdentity<'static> {
    TableIdentity {
        entity: Entity::SerialCode,
        shard: ShardId::of("source", "inventory_0", &number.to_string(), 0),
        database: Cow::Borrowed("inventory_0"),
        table: Cow::Owned(number.to_string()),
    }
}

fn text(text: &str) -> Value<'static> {
    Value::Bytes(Cow::Owned(text.as_bytes().to_vec()))
}

/// Builds a device from uuid and imei1, imei2, meid, box_no, item_code; `-` = NULL.
fn device(uuid: u64, codes: [&str; 5]) -> Vec<Value<'static>> {
    let code = |code: &str| if code == "-" { Value::Null } else { text(code) };
    let rest = [text("AGENT"), text("W1"), Value::Int(7), text("SKU")];
    std::iter::once(Value::UInt(uuid)).chain(codes.map(code)).chain(rest).collect()
}

fn flush_of(actions: Vec<Action<'static>>) -> (Flush, Defects) {
    let (projection, table) = (mapping(1, 1), table(0));
    let (mut flush, mut defects) = (Flush::default(), Defects::default());
    for (number, action) in (1..).zip(actions) {
        let change = Change { lsn: Lsn::from_u64(number).unwrap(), table: &table, action };
        projection.project(&change, ALL, &mut flush, &mut defects);
    }
    (flush, defects)
}

/// Returns `serial_code_15.mapping_142 490154203237518 7 imei1 upsert @1` and the like for each mutation.
fn texts(flush: &Flush) -> BTreeSet<String> {
    let projection = mapping(1, 1);
    let ordered = flush.ordered();
    let text = |mutation: &crate::records::OrderedMutation<'_>| {
        let derived = &projection.tables()[mutation.table as usize].derived;
        let [Cell::Bytes(value), Cell::Bytes(uuid), Cell::UInt(kind)] = mutation.key else {
            panic!("three key columns")
        };
        let action = match mutation.action {
            MutationAction::Delete => "delete",
            MutationAction::Upsert(_) => "upsert",
        };
        let kind = CodeKind::from_number(*kind as u8).unwrap().name();
        let (value, uuid) = (String::from_utf8_lossy(value), String::from_utf8_lossy(uuid));
        let lsn = mutation.lsn.as_u64();
        format!("{}.{} {value} {uuid} {kind} {action} @{lsn}", derived.database, derived.table)
    };
    ordered.iter().map(text).collect()
}

fn set<const N: usize>(texts: [&str; N]) -> BTreeSet<String> {
    texts.map(str::to_owned).into()
}

#[test]
fn a_device_is_found_by_each_of_its_codes_in_the_table_of_the_value() {
    let phone = ["490154203237518", "490154203237526", "a0000012ab34cd", "123456789012345678", "-"];
    let (flush, defects) = flush_of(vec![Action::Insert { after: device(7, phone) }]);
    assert_eq!(
        texts(&flush),
        set([
            "serial_code_15.mapping_142 490154203237518 7 imei1 upsert @1",
            "serial_code_15.mapping_150 490154203237526 7 imei2 upsert @1",
            &format!(
                "serial_code_14.mapping_{:03} A0000012AB34CD 7 meid upsert @1",
                crc32fast::hash(b"A0000012AB34CD") % 512
            ),
            "serial_code_other.mapping_334 123456789012345678 7 box_no upsert @1",
        ])
    );
    assert!(defects.is_empty());
}

#[test]
fn a_changed_code_moves_its_row_a_cleared_one_removes_it_and_one_that_stays_is_left_alone() {
    let before = device(7, ["490154203237518", "-", "-", "5", "6"]);
    let after = device(7, ["490154203237526", "-", "-", "5", ""]);
    let (flush, _) = flush_of(vec![Action::Update { before, after }]);
    assert_eq!(
        texts(&flush),
        set([
            "serial_code_15.mapping_142 490154203237518 7 imei1 delete @1",
            "serial_code_15.mapping_150 490154203237526 7 imei1 upsert @1",
            "serial_code_other.mapping_006 6 7 item_code delete @1",
        ])
    );
}

#[test]
fn swapped_codes_keep_the_values_and_change_the_kinds() {
    let before = device(7, ["490154203237518", "490154203237526", "-", "-", "-"]);
    let after = device(7, ["490154203237526", "490154203237518", "-", "-", "-"]);
    let (flush, _) = flush_of(vec![Action::Update { before, after }]);
    let texts = texts(&flush);
    assert_eq!(texts.iter().filter(|text| text.contains("delete")).count(), 2, "{texts:?}");
    assert!(texts.contains("serial_code_15.mapping_142 490154203237518 7 imei2 upsert @1"), "{texts:?}");
}

#[test]
fn one_value_in_two_codes_of_a_device_is_two_rows() {
    let twice = device(7, ["490154203237518", "490154203237518", "-", "-", "-"]);
    let (flush, _) = flush_of(vec![Action::Insert { after: twice }]);
    assert_eq!(flush.rows(), 2);
}

#[test]
fn an_odd_code_is_counted_and_mapped_all_the_same() {
    let odd = device(7, ["490154203237510", "12", "xyz", "-", "-"]);
    let (flush, defects) = flush_of(vec![Action::Insert { after: odd }]);
    assert_eq!(flush.rows(), 3);
    let reasons: Vec<_> = defects.iter().map(|(defect, count)| (defect.reason(), count)).collect();
    assert_eq!(reasons, [("imei1_check_digit", 1), ("imei2_length", 1), ("meid_length", 1)]);
}

#[test]
fn a_row_without_a_uuid_is_in_no_table_and_counted() {
    let mut row = device(7, ["5", "-", "-", "-", "-"]);
    row[0] = Value::Null;
    let (flush, defects) = flush_of(vec![Action::Insert { after: row }]);
    assert!(flush.is_empty());
    assert_eq!(defects.iter().next().unwrap().0.reason(), "uuid_null");
}

/// A mapping row: table, shard, key (value, uuid, kind).
type Row = (u32, ShardId, Vec<Cell>);

proptest! {
    /// Any history of two shard tables, cut into flushes anywhere, over any number of lanes.
    #[test]
    fn the_rows_are_a_function_of_the_source_rows(
        steps in prop::collection::vec((0..2u32, 0..3u64, prop::option::of([0..5usize, 0..5, 0..5, 0..5, 0..5]), any::<bool>()), 1..60),
        targets in 1..4u32,
        lanes in 1..4u32,
    ) {
        const CODES: [&str; 5] = ["-", "", "490154203237518", "a0000012ab34cd", "5"];
        let (rules, projection) = (rules(targets, lanes), mapping(targets, lanes));
        let tables = [table(0), table(1)];
        let mut source: BTreeMap<(u32, u64), Vec<Value<'static>>> = BTreeMap::new();
        let mut target: BTreeMap<Row, Lsn> = BTreeMap::new();
        for scope in (0..targets).flat_map(|target| (0..lanes).map(move |lane| LaneScope { target, lane })) {
            source.clear();
            let mut flush = Flush::default();
            for (number, (shard, uuid, codes, ends_flush)) in (1..).zip(&steps) {
                let after = codes.map(|codes| device(*uuid, codes.map(|code| CODES[code])));
                let before = match &after {
                    Some(row) => source.insert((*shard, *uuid), row.clone()),
                    None => source.remove(&(*shard, *uuid)),
                };
                let action = match (before, after) {
                    (None, Some(after)) => Action::Insert { after },
                    (Some(before), Some(after)) => Action::Update { before, after },
                    (Some(before), None) => Action::Delete { before },
                    (None, None) => continue,
                };
                let change = Change { lsn: Lsn::from_u64(number).unwrap(), table: &tables[*shard as usize], action };
                projection.project(&change, scope, &mut flush, &mut Defects::default());
                if *ends_flush {
                    apply(&mut target, &std::mem::take(&mut flush));
                }
            }
            apply(&mut target, &flush);
        }
        let mut expected = BTreeSet::new();
        for ((shard, uuid), row) in &source {
            for kind in CodeKind::ALL {
                let Value::Bytes(code) = &row[usize::from(kind.number())] else { continue };
                let Some(value) = StoredCode::new(kind, code) else { continue };
                let cells = vec![
                    Cell::Bytes(value.as_bytes().into()),
                    Cell::Bytes(uuid.to_string().into_bytes().into()),
                    Cell::UInt(kind.number().into()),
                ];
                expected.insert((rules.table_of(&value), tables[*shard as usize].shard, cells));
            }
        }
        prop_assert_eq!(target.into_keys().collect::<BTreeSet<_>>(), expected);
    }
}

fn apply(target: &mut BTreeMap<Row, Lsn>, flush: &Flush) {
    for mutation in flush.ordered() {
        let row = (mutation.table, mutation.shard, mutation.key.to_vec());
        match mutation.action {
            MutationAction::Upsert(_) => target.insert(row, mutation.lsn),
            MutationAction::Delete => target.remove(&row),
        };
    }
}
