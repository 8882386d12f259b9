//! The projection against a model of the target: final rows must equal the pure function of the final source rows.

use std::collections::{BTreeMap, BTreeSet};

use anabranch_schemas::change::{Action, Change};
use anabranch_schemas::flux::id::{Level, Month, Parts, Region, SYSTEM, Side};
use anabranch_schemas::flux::placement::Kind;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::{ShardId, TablePattern};
use jiff::civil::date;
use proptest::prelude::*;

use super::*;
use crate::projections::{LaneScope, Projection, key_of};
use crate::records::{Flush, FluxPlaces, FluxSource, FluxTables, MutationAction};

const ALL: LaneScope = LaneScope { target: 0, lane: 0 };
const RECHARGE: u8 = 1;
const REFUND: u8 = 3;

fn places() -> FluxPlaces {
    let pattern = TablePattern::parse("flux_00_{db}.composite_{partition:02}_{month:02}").unwrap();
    let tables = vec![FluxTables { pattern, level: Some(Level::Composite) }];
    let site = Some((Region::UnitedStates, Side::Main));
    let sources = vec![FluxSource { name: "source".to_owned(), generation: 0, site }];
    FluxPlaces::new(SYSTEM, &[(RECHARGE, Kind::Recharge), (REFUND, Kind::Refund)], tables, sources)
}

fn rules(targets: u32, lanes: u32) -> FluxRelations {
    let (database, table) = ("flux_relations".to_owned(), "flux_relation_{partition:02}".to_owned());
    FluxRelations::new(RelationTables { database, table, places: Arc::new(places()) }, targets, lanes)
}

fn table(partition: u8, month: u8) -> TableIdentity<'static> {
    let (database, name) =
        (format!("flux_00_{}", partition / 10), format!("composite_{partition:02}_{month:02}"));
    let shard = ShardId::of("source", &database, &name, 0);
    TableIdentity { entity: Entity::Flux, shard, database: database.into(), table: name.into() }
}

/// Returns the identifier of a composite of main in the United States.
fn id(business: u8, month: Month, partition: u8, sequence: u32) -> FluxId {
    let parts = Parts {
        date: date(2026, 6, 6),
        version: 1,
        region: Region::UnitedStates,
        system: SYSTEM,
        level: Level::Composite,
        business,
        side: Side::Main,
        month,
        partition,
        reserved: 24,
        sequence,
    };
    FluxId::of(parts, SYSTEM).unwrap()
}

fn text(text: impl ToString) -> Value<'static> {
    Value::Bytes(text.to_string().into_bytes().into())
}

fn row(id: &FluxId, parent: Option<&FluxId>) -> Vec<Value<'static>> {
    let created =
        Value::DateTime { year: 2026, month: 6, day: 6, hour: 7, minute: 8, second: 9, microsecond: 120_000 };
    vec![text(id), parent.map_or(Value::Null, text), text("12.5000"), created]
}

/// Table, identifier and values of a claim.
type FoundClaim = (u32, String, Vec<Cell>);

/// Returns the claims of a row of partition 05 and June, and its defects by reason.
fn claims_of(row: &[Value<'_>]) -> (Vec<FoundClaim>, Vec<(&'static str, u64)>) {
    let (mut found, mut defects) = (Vec::new(), Defects::default());
    rules(1, 1).claims(&table(5, 5), row, Some(&mut defects), &mut |claim| {
        let [CellRef::Bytes(digits)] = claim.key else { panic!("{claim:?}") };
        found.push((claim.table, String::from_utf8(digits.to_vec()).unwrap(), claim.values.to_vec()));
    });
    (found, defects.iter().map(|(defect, count)| (defect.reason(), count)).collect())
}

#[test]
fn a_document_stands_in_the_table_of_its_partition_with_what_its_row_says() {
    let recharge = id(RECHARGE, Month::Of(5), 5, 7);
    let bytes = |text: &str| Cell::Bytes(text.as_bytes().into());
    let values = vec![Cell::Null, bytes("12.5000"), bytes("2026-06-06 07:08:09.120000")];
    assert_eq!(claims_of(&row(&recharge, None)), (vec![(5, recharge.to_string(), values)], vec![]));
    let sparse = [text(recharge), Value::Null];
    assert_eq!(claims_of(&sparse).0[0].2, [Cell::Null, Cell::Null, Cell::Null]);
}

#[test]
fn an_amount_that_is_too_long_is_left_out_and_counted_and_never_another_number() {
    let amount_of = |amount: String| {
        let (claims, defects) =
            claims_of(&[text(id(RECHARGE, Month::Of(5), 5, 7)), Value::Null, text(amount)]);
        (claims[0].2[1].clone(), defects)
    };
    let longest = format!("{}.{}", "9".repeat(29), "9".repeat(10));
    assert_eq!(amount_of(longest.clone()), (Cell::Bytes(longest.into_bytes().into()), vec![]));
    let of_decimal_50 = format!("-{}.{}", "9".repeat(40), "9".repeat(10));
    assert_eq!(amount_of(of_decimal_50), (Cell::Null, vec![("amount_too_long", 1)]));
    assert_eq!(amount_of("9".repeat(41)).0, Cell::Null);
}

#[test]
fn a_document_whose_parent_has_another_partition_stands_in_both_tables() {
    let parent = id(RECHARGE, Month::Of(5), 5, 1);
    let own = id(REFUND, Month::No, 5, 2);
    let elsewhere = id(REFUND, Month::No, 47, 3);
    let tables = |row: &[Value<'_>]| claims_of(row).0.iter().map(|claim| claim.0).collect::<Vec<_>>();
    assert_eq!(tables(&row(&own, Some(&parent))), [5]);
    assert_eq!(tables(&row(&elsewhere, Some(&parent))), [47, 5]);
}

#[test]
fn what_stands_wrong_is_counted_by_reason_and_claims_its_rows() {
    let parent = id(RECHARGE, Month::Of(5), 5, 1);
    let rows = |row: &[Value<'_>]| {
        let (claims, defects) = claims_of(row);
        (claims.len(), defects)
    };
    assert_eq!(rows(&row(&parent, None)), (1, vec![]));
    let other_month = id(RECHARGE, Month::Of(6), 5, 1);
    // Its date says June, whose digits are 05.
    assert_eq!(rows(&row(&other_month, None)), (1, vec![("parent_month", 1), ("table_month", 1)]));
    let other_database = id(RECHARGE, Month::Of(5), 47, 1);
    assert_eq!(rows(&row(&other_database, None)), (1, vec![("database", 1), ("table_partition", 1)]));
    let (claims, defects) = rows(&row(&id(REFUND, Month::No, 47, 1), Some(&parent)));
    assert_eq!(claims, 2);
    assert_eq!(
        defects,
        [("database", 1), ("parent_partition", 1), ("table_month", 1), ("table_partition", 1)]
    );
}

/// A retention job deletes it: it stands under another shard, and no alert may call it new.
#[test]
fn an_odd_document_that_passes_to_an_heir_of_its_table_is_not_counted_again() {
    let odd = row(&id(RECHARGE, Month::Of(6), 47, 1), None);
    let own = table(5, 5);
    let shard = ShardId::of("source", &own.database, "composite_05_05\0heir", 0);
    let count = |table: &TableIdentity<'_>| {
        let (mut claims, mut defects) = (0, Defects::default());
        rules(1, 1).claims(table, &odd, Some(&mut defects), &mut |_| claims += 1);
        (claims, defects.is_empty())
    };
    assert_eq!((count(&own), count(&TableIdentity { shard, ..own.clone() })), ((1, false), (1, true)));
}

#[test]
fn a_text_that_is_no_identifier_makes_no_claim_and_a_malformed_parent_keeps_no_row_out() {
    let good = id(RECHARGE, Month::Of(5), 5, 1);
    let rows = |id: Value<'static>, parent: Value<'static>| {
        let (claims, defects) = claims_of(&[id, parent]);
        (claims.len(), defects.iter().map(|(reason, _)| *reason).collect::<Vec<_>>())
    };
    assert_eq!(rows(Value::Null, Value::Null), (0, vec!["flux_id_null"]));
    for broken in ["", "201606061103110309905240002990", "2016060611031103099052400029904x", "２０１６"] {
        assert_eq!(rows(text(broken), Value::Null), (0, vec!["flux_id_malformed"]), "{broken}");
    }
    let of_another_system = good.to_string().replacen("031", "032", 1);
    assert_eq!(rows(text(of_another_system), Value::Null), (0, vec!["flux_id_malformed"]));
    assert_eq!(rows(text(good), text("x".repeat(100))), (1, vec!["flux_parent_malformed"]));
    let parent_of_another_system = id(RECHARGE, Month::Of(5), 47, 1).to_string().replacen("031", "032", 1);
    assert_eq!(rows(text(good), text(parent_of_another_system)), (1, vec!["flux_parent_malformed"]));
    assert_eq!(rows(text(good), text("")), (1, vec![]));
    assert_eq!(claims_of(&[text(good), text("")]).0, claims_of(&[text(good), Value::Null]).0);
    let values = claims_of(&[text(good), text("x".repeat(100))]).0[0].2.clone();
    assert_eq!(values[0], Cell::Bytes("x".repeat(PARENT_BYTES_MAX).into_bytes().into()));
}

#[test]
fn the_key_of_a_source_row_is_its_31_digits_whatever_rule_they_break() {
    for digits in [
        "2016060611031003099050000000002",
        // Month 12, 31 February, another system.
        "2016060611031003012050000000002",
        "2016023111031003099050000000002",
        "2016060611032003099050000000002",
    ] {
        let key = key_of(Entity::Flux, &[text(digits)]);
        assert_eq!(key, Some(Cell::Bytes(digits.as_bytes().into())), "{digits}");
    }
    for other in [
        "",
        "201606061103100309905000000000",
        "20160606110310030990500000000021",
        "2016060611031003099o50000000002",
    ] {
        assert_eq!(key_of(Entity::Flux, &[text(other)]), None, "{other}");
    }
    assert_eq!(key_of(Entity::Flux, &[Value::Null]), None);
    assert_eq!(key_of(Entity::Flux, &[]), None);
}

/// The fingerprint decides whether stored progress is that of this index.
#[test]
fn a_fingerprint_changes_with_each_setting_that_moves_rows() {
    let with = |system, (database, table): (&str, &str), (targets, lanes)| {
        let places = Arc::new(FluxPlaces::new(system, &[], Vec::new(), Vec::new()));
        let (database, table) = (database.to_owned(), table.to_owned());
        FluxRelations::new(RelationTables { database, table, places }, targets, lanes)
    };
    let names = ("flux_relations", "flux_relation_{partition:02}");
    let texts: BTreeSet<String> = [
        with(SYSTEM, names, (2, 2)).fingerprint(0),
        with(32, names, (2, 2)).fingerprint(0),
        with(SYSTEM, ("index", names.1), (2, 2)).fingerprint(0),
        with(SYSTEM, (names.0, "document_{partition}"), (2, 2)).fingerprint(0),
        with(SYSTEM, names, (3, 2)).fingerprint(0),
        with(SYSTEM, names, (2, 3)).fingerprint(0),
        with(SYSTEM, names, (2, 2)).fingerprint(1),
    ]
    .into();
    assert_eq!(texts.len(), 7);
    let first = "flux_relations, system 031, database flux_relations, 100 tables flux_relation_{partition:02}, \
                 target 1 of 2, 2 lanes";
    assert!(texts.contains(first), "{texts:?}");
}

#[test]
fn a_moment_of_a_timestamp_is_in_utc() {
    let at = |microseconds| cell(&Value::Timestamp { microseconds }, CREATED_BYTES_MAX);
    assert_eq!(at(1_000_000), Cell::Bytes(b"1970-01-01 00:00:01Z"[..].into()));
    assert_eq!(at(1_500_000), Cell::Bytes(b"1970-01-01 00:00:01.5Z"[..].into()));
}

#[test]
fn ten_partitions_lie_on_one_target_and_lanes_share_them() {
    let rules = rules(3, 4);
    let target = |partition: u8| rules.tables()[rules.table_of(partition) as usize].target;
    assert_eq!([0, 9, 10, 19, 29, 39].map(target), [0, 0, 1, 1, 2, 0]);
    assert_eq!(rules.tables().len(), 100);
    assert_eq!(rules.tables()[7].derived.table, "flux_relation_07");
}

type Target = BTreeMap<(u32, ShardId, Box<[Cell]>), Arc<[Cell]>>;

fn apply(flush: &Flush, target: &mut Target) {
    for mutation in flush.ordered() {
        let key = (mutation.table, mutation.shard, mutation.key.into());
        match mutation.action {
            MutationAction::Upsert(values) => target.insert(key, Arc::clone(values)),
            MutationAction::Delete => target.remove(&key),
        };
    }
}

proptest! {
    /// Documents come, change their parent, move to another table and go, in any order.
    #[test]
    fn the_target_holds_what_the_last_rows_claim(
        steps in proptest::collection::vec((0..6u32, 0..3u8, 0..8u8, any::<bool>()), 1..60),
    ) {
        let projection = Projection(Arc::new(rules(1, 1)));
        let mut rows: BTreeMap<u32, (TableIdentity<'static>, Vec<Value<'static>>)> = BTreeMap::new();
        let mut target = Target::new();
        for (number, (document, partition, parent, goes)) in (1u64..).zip(steps) {
            let new = id(REFUND, Month::No, 5 + (document % 3) as u8, document);
            let parent = (parent < 6).then(|| id(RECHARGE, Month::Of(5), parent, 1));
            let after = row(&new, parent.as_ref());
            let mut changes = Vec::new();
            let into = table(partition, 5);
            match rows.remove(&document) {
                Some((from, before)) if goes || from != into => {
                    changes.push((from, Action::Delete { before }));
                    if !goes {
                        changes.push((into.clone(), Action::Insert { after: after.clone() }));
                        rows.insert(document, (into, after));
                    }
                }
                Some((from, before)) => {
                    changes.push((from, Action::Update { before, after: after.clone() }));
                    rows.insert(document, (into, after));
                }
                None => {
                    changes.push((into.clone(), Action::Insert { after: after.clone() }));
                    rows.insert(document, (into, after));
                }
            }
            let mut flush = Flush::default();
            for (table, action) in changes {
                let change = Change { lsn: Lsn::from_u64(number).unwrap(), table: &table, action };
                projection.project(&change, ALL, &mut flush, &mut Defects::default());
            }
            apply(&flush, &mut target);
        }
        let mut expected = BTreeSet::new();
        for (table, row) in rows.values() {
            projection.claims(table, row, |claim| {
                let key: Box<[Cell]> = claim.key.iter().copied().map(CellRef::to_owned).collect();
                expected.insert((claim.table, claim.shard, key));
            });
        }
        prop_assert_eq!(target.into_keys().collect::<BTreeSet<_>>(), expected);
    }
}
