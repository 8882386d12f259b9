//! Tests of what a comparison lists, and of what a later record forgets.

use super::*;
use crate::records::Mutation;

const DAY: &[u8] = b"01-01";

fn lsn(position: u64) -> Lsn {
    Lsn::new(1, 1, position * 16).expect("it is small")
}

fn shard() -> ShardId {
    ShardId::of("s", "d", "t", 0)
}

fn comparison() -> TableComparison {
    TableComparison::new(shard(), Cause::Entry(lsn(5)), lsn(5), 1)
}

/// Claims of these users, with the same day.
fn claims(users: impl IntoIterator<Item = u64>, position: u64) -> Flush {
    let mut claims = Flush::default();
    for user in users {
        claims.push(Mutation {
            table: 0,
            shard: shard(),
            key: [Cell::UInt(user)].into(),
            lsn: lsn(position),
            action: MutationAction::Upsert([Cell::Bytes(DAY.into())].into()),
        });
    }
    claims
}

fn subtract(comparison: &mut TableComparison, user: u64, day: &[u8], changes: &ChangedClaims) {
    let (key, values) = ([CellRef::UInt(user)], [CellRef::Bytes(day)]);
    comparison.subtract(&Claimed { table: 0, shard: shard(), key: &key, values: &values }, changes);
}

fn listed(mut comparison: TableComparison) -> Option<Vec<Cell>> {
    Some(comparison.list()?.into_iter().map(|row| row.key[0].clone()).collect())
}

#[test]
fn only_what_one_side_lacks_or_has_with_other_values_is_listed() {
    let (mut compared, unchanged) = (comparison(), ChangedClaims::default());
    compared.add(&claims(1..500, 7), &unchanged);
    compared.add(&claims(500..1_000, 8), &unchanged);
    for user in (2..=1_000).rev() {
        let day: &[u8] = if user == 700 { b"01-02" } else { DAY };
        subtract(&mut compared, user, day, &unchanged);
    }
    assert_eq!(listed(compared), Some([1, 700, 1_000].map(Cell::UInt).into()));
}

/// The feed wrote it as the source has it, whether the chunk and the derived row were read before or after.
#[test]
fn a_claim_that_the_feed_changed_is_left_out_on_both_sides() {
    let mut changes = ChangedClaims::new(1, [shard()].into(), lsn(5));
    let mut compared = comparison();
    changes.record(&claims([7], 9));
    compared.add(&claims([7, 8], 10), &changes);
    subtract(&mut compared, 7, b"01-02", &changes);
    subtract(&mut compared, 8, DAY, &changes);
    assert_eq!(listed(compared), Some(Vec::new()));
}

/// A lane that is far behind applies an old deletion of a user who came back without a row event. The chunk has that
/// user.
#[test]
fn a_claim_that_changed_below_the_first_chunk_is_compared_and_one_above_it_is_not() {
    let mut changes = ChangedClaims::new(1, [shard()].into(), lsn(5));
    changes.record(&claims([7], 9));
    changes.record(&claims([8], 14));
    let mut compared = comparison();
    compared.begin_at(lsn(12));
    compared.add(&claims([7, 8, 9], 12), &changes);
    subtract(&mut compared, 9, DAY, &changes);
    compared.next = Needed::Chunk(Some(ScanCursor(Box::default())), compared.at);
    compared.begin_at(lsn(20));
    assert_eq!(compared.at, lsn(12), "later chunks change nothing");
    assert_eq!(listed(compared), Some([7].map(Cell::UInt).into()));
}

#[test]
fn more_than_a_sketch_lists_is_no_result() {
    let (mut compared, unchanged) = (comparison(), ChangedClaims::default());
    compared.add(&claims(0..100_000, 7), &unchanged);
    assert_eq!(listed(compared), None);
}

#[test]
fn a_later_record_of_a_table_ends_its_comparison_and_its_own_record_does_not() {
    let (other, id, shared) = (ShardId::of("s", "d", "other", 0), lane_id(), Shared::new(1));
    let mut comparisons = TableComparisons::new(&id, &shared, true);
    let own = Refresh::with_reread(None, shard(), lsn(5));
    let later = Refresh::with_reread(Some(own.clone()), shard(), lsn(6));
    for entry in [Some(&later), None] {
        comparisons.running = Some(comparison());
        comparisons.repaired.insert(shard());
        assert!(!comparisons.begin_anew(&[Reread::Table(other)], Some(&own)) && comparisons.is_running());
        assert!(!comparisons.begin_anew(&[Reread::Table(shard())], Some(&own)) && comparisons.is_running());
        assert!(comparisons.begin_anew(&[Reread::Table(shard())], entry) && !comparisons.is_running());
        assert!(comparisons.repaired.is_empty(), "what differs then may be repaired again");
    }
}

#[test]
fn comparisons_without_a_result_are_counted_beyond_an_attempt_until_their_table_is_read() {
    let (id, shared) = (lane_id(), Shared::new(1));
    let numbers = [1, 2].map(|_| shared.comparison_begun(&id, shard()));
    assert_eq!(numbers, [1, 2]);
    let mut comparisons = TableComparisons::new(&id, &shared, true);
    comparisons.whole.insert(shard());
    comparisons.was_read(shard());
    assert!(comparisons.whole.is_empty());
    assert_eq!(shared.comparison_begun(&id, shard()), 1);
    comparisons.running = Some(comparison());
    comparisons.was_unreadable(shard());
    assert!(!comparisons.is_running());
    assert_eq!(shared.comparison_begun(&id, shard()), 1, "it was not compared");
    let [one, next] = numbers.map(|number| TableComparison::new(shard(), Cause::Turn, lsn(5), number));
    assert_ne!(format!("{:?}", one.elements), format!("{:?}", next.elements), "each has its own seed");
}

/// Each comparison in vain reads its table twice.
#[test]
fn tables_whose_turn_it_is_are_compared_while_that_spares_about_as_many_readings_as_it_costs() {
    let (id, shared) = (lane_id(), Shared::new(1));
    let compared = |useful, in_vain| {
        let new = TableComparisons::new(&id, &shared, true);
        TableComparisons { useful, in_vain, ..new }.are_worthwhile()
    };
    assert!(compared(0, IN_VAIN_MAX) && !compared(0, IN_VAIN_MAX + 1));
    assert!(compared(5, 5 + IN_VAIN_MAX) && !compared(5, 6 + IN_VAIN_MAX));
}

#[test]
fn a_table_is_compared_for_its_entry_or_when_every_table_waits_and_not_when_a_person_asks() {
    let (entry, other) = (Cause::Entry(lsn(5)), Cause::Entry(lsn(6)));
    let waits = |scope| Refresh::with_reread(Some(Refresh::new(scope)), shard(), lsn(5));
    let waiting = |refresh: &Refresh| [entry, other, Cause::Turn].map(|cause| cause.stands(shard(), refresh));
    assert_eq!(waiting(&waits(Scope::Rereads)), [true, false, false]);
    assert_eq!(waiting(&waits(Scope::Source)), [false; 3]);
    let every = Refresh::with_every_table(None);
    assert_eq!(waiting(&every), [false, false, true]);
    assert_eq!(waiting(&every.after_table(shard())), [false; 3], "its turn is over");
    assert_eq!(waiting(&Refresh::with_reread(Some(every), shard(), lsn(5))), [true, false, true]);
}

fn lane_id() -> LaneId {
    let [projection, target, source] = ["p", "t", "s"].map(str::to_owned);
    LaneId { projection, target, source, lane: 0 }
}
