//! Plants drift in mapping tables.

use std::collections::HashSet;

use super::cache::private_sets;
use super::rows::{Row, Step, carry_out, elsewhere, stored};
use super::{Drift, FUTURE_LSN, Hand, Kinds, drift};
use crate::error::Result;
use crate::topology::Topology;
use crate::verify::MappingLayer;
use crate::workload::SetAside;

/// Indexes of the columns in a row's key.
const UUID: usize = 0;
const KIND: usize = 1;
const VALUE: usize = 2;
/// Numbers of kinds of codes, as literals.
const IMEI1: &str = "1";
const MEID: &str = "3";

#[derive(Debug, Clone, Copy)]
enum Kind {
    Missing,
    /// A row of an earlier code, with the version of that time.
    Stale,
    /// A row of an earlier code beside the present ones.
    Extra,
    /// Rows of a deleted device, with its codes.
    Resurrected,
    /// A row in which one device's code belongs to another one.
    OtherDevice,
    WrongTable,
    InTwoTables,
    /// Two devices have each other's code.
    Swapped,
    /// Several devices have a code under the same wrong kind.
    SameChange,
    /// A row for the empty text, although the source has NULL or the empty text.
    Empty,
    /// An earlier code with a version that no log will ever reach.
    Future,
}

const KINDS: [Drift<Kind>; 12] = [
    drift(Kind::Missing, "missing", 1),
    drift(Kind::Stale, "stale", 1),
    drift(Kind::Extra, "extra", 1),
    drift(Kind::Resurrected, "resurrected", 1),
    drift(Kind::OtherDevice, "other_device", 2),
    drift(Kind::WrongTable, "wrong_table", 1),
    drift(Kind::InTwoTables, "in_two_tables", 1),
    drift(Kind::Swapped, "swapped", 2),
    drift(Kind::SameChange, "same_change_of_two", 2),
    drift(Kind::SameChange, "same_change_of_four", 4),
    drift(Kind::Empty, "empty", 1),
    drift(Kind::Future, "future_version", 1),
];

pub(super) async fn plant(
    topology: &Topology,
    layer: &MappingLayer,
    aside: &[SetAside],
    drifts: u64,
    hand: &mut Hand<'_>,
) -> Result<Kinds> {
    let sets = private_sets(topology, layer, aside).await?;
    let private: HashSet<String> = sets.iter().map(|(code, _)| format!("x'{}'", hex(code))).collect();
    let mut devices = stored(topology, layer, aside).await?;
    devices.iter_mut().for_each(|rows| rows.retain(|row| private.contains(&row.key[VALUE])));
    devices.retain(|rows| !rows.is_empty());
    let mut steps = Vec::new();
    let drawn = hand.draw(&KINDS, drifts, |hand, drift| {
        let Some(victims) = victims(&mut devices, drift, hand) else { return false };
        steps.extend(steps_of(layer, drift.kind, victims, hand));
        true
    });
    carry_out(layer, &steps).await?;
    Ok(drawn)
}

/// Formats bytes as `HEX` does.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// Takes devices of one shard for `OtherDevice`, phones for `SameChange`, any for the others.
fn victims(devices: &mut Vec<Vec<Row>>, drift: &Drift<Kind>, hand: &mut Hand<'_>) -> Option<Vec<Vec<Row>>> {
    let wanted = drift.keys as usize;
    let first = hand.below(devices.len());
    let shard = devices.get(first)?[0].shard;
    let is_fit = |rows: &Vec<Row>| match drift.kind {
        Kind::OtherDevice => rows[0].shard == shard,
        Kind::SameChange => rows[0].key[KIND] == IMEI1,
        _ => true,
    };
    let source_tables =
        (first..devices.len()).chain(0..first).filter(|source_table| is_fit(&devices[*source_table]));
    let mut source_tables: Vec<usize> = source_tables.take(wanted).collect();
    // They are taken from the back, so that none changes its index before it is taken.
    source_tables.sort_unstable_by(|a, b| b.cmp(a));
    (source_tables.len() == wanted)
        .then(|| source_tables.into_iter().map(|source_table| devices.swap_remove(source_table)).collect())
}

/// Returns the row with a made-up code of 15 digits, in that code's table.
fn with_other_code(layer: &MappingLayer, row: &Row, hand: &mut Hand<'_>) -> Row {
    let number = hand.nobody() % 100_000_000_000_000;
    let (table, value) = (number % u64::from(layer.tables), format!("{number:015}"));
    let mut key = row.key.clone();
    key[VALUE] = format!("'{value}'");
    Row { database: 0, table: format!("mapping_{table:03}"), key, ..row.clone() }
}

fn with(row: &Row, column: usize, literal: &str) -> Row {
    let mut key = row.key.clone();
    literal.clone_into(&mut key[column]);
    Row { key, ..row.clone() }
}

fn steps_of(layer: &MappingLayer, kind: Kind, devices: Vec<Vec<Row>>, hand: &mut Hand<'_>) -> Vec<Step> {
    let row = devices[0][hand.below(devices[0].len())].clone();
    let other = elsewhere(layer, &row, hand);
    let earlier = Row { lsn: row.lsn - 1, ..with_other_code(layer, &row, hand) };
    match kind {
        Kind::Missing => vec![Step::Remove(row)],
        Kind::Stale => vec![Step::Remove(row), Step::Put(earlier)],
        Kind::Extra => vec![Step::Put(earlier)],
        Kind::Resurrected => {
            let uuid = format!("'{}'", hand.nobody());
            let (one, two) = (with_other_code(layer, &row, hand), with_other_code(layer, &row, hand));
            vec![Step::Put(with(&one, UUID, &uuid)), Step::Put(with(&two, UUID, &uuid))]
        }
        Kind::OtherDevice => {
            let taken = with(&row, UUID, &devices[1][0].key[UUID]);
            vec![Step::Remove(row), Step::Put(taken)]
        }
        Kind::WrongTable => vec![Step::Remove(row), Step::Put(other)],
        Kind::InTwoTables => vec![Step::Put(other)],
        Kind::Swapped => {
            let [one, two] = [devices[0][0].clone(), devices[1][0].clone()];
            let to = |row: &Row, of: &Row| {
                let key = vec![row.key[UUID].clone(), of.key[KIND].clone(), of.key[VALUE].clone()];
                Row { shard: row.shard, lsn: row.lsn, key, ..of.clone() }
            };
            let swapped = [Step::Put(to(&one, &two)), Step::Put(to(&two, &one))];
            [Step::Remove(one), Step::Remove(two)].into_iter().chain(swapped).collect()
        }
        Kind::SameChange => {
            let first = |rows: &Vec<Row>| {
                let changed = with(&rows[0], KIND, MEID);
                [Step::Remove(rows[0].clone()), Step::Put(changed)]
            };
            devices.iter().flat_map(first).collect()
        }
        Kind::Empty => {
            // The empty text has no digits, and its CRC-32 is 0.
            let source_table = Row { database: 2, table: "mapping_000".to_owned(), ..row };
            vec![Step::Put(with(&source_table, VALUE, "''"))]
        }
        Kind::Future => {
            let future = Row { lsn: FUTURE_LSN, ..with_other_code(layer, &row, hand) };
            vec![Step::Remove(row), Step::Put(future)]
        }
    }
}
