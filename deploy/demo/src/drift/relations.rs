//! Plants drift in the relation index, and puts payment documents into source tables that their digits do not name.

use anabranch_schemas::flux::id::{FluxId, Month};
use anabranch_schemas::flux::placement::StorageAddress;

use super::rows::{Row, chosen, elsewhere, execute_all, name, stored};
use super::{Drift, FUTURE_LSN, Hand, Kinds, NOBODY, drift};
use crate::error::Result;
use crate::topology::{SourceTable, Topology, place_of};
use crate::verify::RelationLayer;
use crate::workload::SetAside;

/// Documents that are put into a wrong source table.
const MISPLACED: usize = 7;
/// The first sequence of documents that no source has: between those of the workload and those of the lag probe.
const FIRST_SEQUENCE: u64 = 50_000_000;
/// Sequences of such documents.
const SEQUENCES: u64 = 10_000_000;
/// All columns but the identifier.
const COLUMNS: &str = "shard_id, lsn, parent_id, amount, created";

#[derive(Debug, Clone, Copy)]
enum Kind {
    Missing,
    /// A document with an earlier parent, and the version of that time.
    Stale,
    /// A row of a deleted document.
    Resurrected,
    WrongTable,
    InTwoTables,
    /// Several documents have the same other parent.
    SameChange,
    /// A document without amount and time.
    Empty,
    WrongAmount,
    /// An earlier parent with a version that no log will ever reach.
    Future,
}

const KINDS: [Drift<Kind>; 10] = [
    drift(Kind::Missing, "missing", 1),
    drift(Kind::Stale, "stale", 1),
    drift(Kind::Resurrected, "resurrected", 1),
    drift(Kind::WrongTable, "wrong_table", 1),
    drift(Kind::InTwoTables, "in_two_tables", 1),
    drift(Kind::SameChange, "same_change_of_two", 2),
    drift(Kind::SameChange, "same_change_of_four", 4),
    drift(Kind::Empty, "empty", 1),
    drift(Kind::WrongAmount, "wrong_amount", 1),
    drift(Kind::Future, "future_version", 1),
];

/// A statement, and the database number of its table.
type Statement = (u32, String);

pub(super) async fn plant(
    topology: &Topology,
    layer: &RelationLayer,
    aside: &[SetAside],
    drifts: u64,
    hand: &mut Hand<'_>,
) -> Result<Kinds> {
    let mut documents = stored(topology, layer, aside).await?;
    // A document in two tables would be two differences.
    documents.retain(|rows| rows.len() == 1);
    let mut documents = documents.concat();
    let mut statements = Vec::new();
    let drawn = hand.draw(&KINDS, drifts, |hand, drift| {
        if documents.len() < drift.keys as usize {
            return false;
        }
        let mut any = || documents.swap_remove(hand.below(documents.len()));
        let victims: Vec<Row> = (0..drift.keys).map(|_| any()).collect();
        statements.extend(statements_of(layer, drift.kind, &victims, hand));
        true
    });
    execute_all(layer, &statements).await?;
    Ok(drawn)
}

/// Moves some documents, as they are, into the table of another month on the same server. Returns how many, which are
/// the first of the rows set aside.
pub(super) async fn misplace(topology: &Topology, aside: &[SetAside]) -> Result<usize> {
    let wrong = &aside[..aside.len().min(MISPLACED)];
    for row in wrong {
        let SetAside { source_table, number } = *row;
        let source = &topology.sources[topology.source_of(source_table)];
        let mut connection = source.connect(&[]).await?;
        let (other, table) = (other_month(source_table).quoted(), source_table.quoted());
        let id = source_table.key(number);
        let sql = format!(
            "START TRANSACTION; INSERT INTO {other} SELECT * FROM {table} WHERE id = {id}; \
             DELETE FROM {table} WHERE id = {id}; COMMIT"
        );
        connection.execute("put documents into a wrong table", sql).await?;
    }
    Ok(wrong.len())
}

/// Returns the table of another month that exists.
fn other_month(source_table: SourceTable) -> SourceTable {
    let (_, StorageAddress { month, .. }) = place_of(source_table);
    let other = if month == Month::No { Month::Of(0) } else { Month::No };
    let digits = |month: Month| u32::from(month.digits());
    SourceTable { table: source_table.table - digits(month) + digits(other), ..source_table }
}

/// Returns a document of the same digits that no source has.
fn nobodys(row: &Row, hand: &mut Hand<'_>) -> FluxId {
    let sequence = FIRST_SEQUENCE + (hand.nobody() - NOBODY) % SEQUENCES;
    let sequence = u32::try_from(sequence).expect("it has eight digits");
    identifier(row).with_sequence(sequence).expect("it has eight digits")
}

/// Reads the identifier from the literal of a row's key, such as `x'3230'`.
fn identifier(row: &Row) -> FluxId {
    // The second hexadecimal digit of an ASCII digit is that digit.
    let hex = row.key[0].trim_matches(['x', '\'']).as_bytes();
    let digits: Vec<u8> = hex.chunks(2).filter_map(|pair| pair.get(1).copied()).collect();
    FluxId::parse(&digits).expect("the workload's identifiers follow every rule")
}

fn statements_of(layer: &RelationLayer, kind: Kind, rows: &[Row], hand: &mut Hand<'_>) -> Vec<Statement> {
    let row = &rows[0];
    let (table, chosen_row) = (name(layer, row), chosen(layer, row));
    let other = elsewhere(layer, row, hand);
    let remove = (row.database, format!("DELETE FROM {table} WHERE {chosen_row}"));
    let set = |set: &str| vec![(row.database, format!("UPDATE {table} SET {set} WHERE {chosen_row}"))];
    let parent = nobodys(row, hand);
    let copy = (
        other.database,
        format!(
            "INSERT INTO {} (id, {COLUMNS}) SELECT id, {COLUMNS} FROM {table} WHERE {chosen_row}",
            name(layer, &other)
        ),
    );
    match kind {
        Kind::Missing => vec![remove],
        Kind::Stale => set(&format!("parent_id = '{parent}', lsn = lsn - 1")),
        Kind::Resurrected => {
            let id = nobodys(row, hand);
            let insert = format!(
                "INSERT INTO {table} (id, {COLUMNS}) SELECT '{id}', {COLUMNS} FROM {table} WHERE {chosen_row}"
            );
            vec![(row.database, insert)]
        }
        Kind::WrongTable => vec![copy, remove],
        Kind::InTwoTables => vec![copy],
        Kind::SameChange => {
            let change = |row: &Row| {
                let (table, chosen) = (name(layer, row), chosen(layer, row));
                (row.database, format!("UPDATE {table} SET parent_id = '{parent}' WHERE {chosen}"))
            };
            rows.iter().map(change).collect()
        }
        Kind::Empty => set("amount = NULL, created = ''"),
        Kind::WrongAmount => set("amount = '0.00005'"),
        Kind::Future => set(&format!("parent_id = '{parent}', lsn = {FUTURE_LSN}")),
    }
}

#[cfg(test)]
mod tests {
    use anabranch_schemas::flux::id::{Level, Side};

    use super::*;
    use crate::topology::Document;

    #[test]
    fn another_month_is_a_table_that_exists_and_the_digits_stay_readable() {
        for month in [Month::Of(0), Month::Of(11), Month::No] {
            let address = StorageAddress { side: Side::Main, partition: 12, month };
            let document = Document { day: 1, level: Level::Atom, business: 1, address, sequence: 5 };
            let table = document.source_table();
            let (level, found) = place_of(other_month(table));
            assert_eq!((level, found.partition), (Level::Atom, 12));
            assert_ne!(found.month, month);
            let hex: String = document.id().to_string().bytes().map(|digit| format!("{digit:02X}")).collect();
            let row = Row {
                database: 1,
                table: String::new(),
                shard: 1,
                key: vec![format!("x'{hex}'")],
                checked: String::new(),
                lsn: 1,
            };
            assert_eq!(identifier(&row), document.id());
        }
    }
}
