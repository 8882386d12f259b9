//! The text of a flush: multi-row statements, cut into packets that the server accepts.
//!
//! Numbers and `x'…'` literals mean the same in any SQL mode and character set. The shape of statements varies with
//! their rows, so none is prepared. The order is fixed: table by table its withdrawals, lowered versions, deletes and
//! upserts, then the outbox. Deletes and upserts have rising keys. So two lanes that write the same tables lock them in
//! one order, and no flush returns to a table that it has left.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anabranch_pipeline::records::{Cell, DerivedTable, Flush, MutationAction, OrderedMutation};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;

use super::cells::push_cell;
use super::layout::{FlushLayout, OccupiedTable};
use super::outbox::OutboxText;
use super::replace::Undoing;
use crate::mysql::connection::{push_number, quote_identifier, quote_table};

/// Rows in a DELETE by a list of conditions, at most. The server's optimiser examines each `OR` as a range: a row costs
/// three times as much at 1000 rows as at 60.
const DELETE_ROWS_MAX: usize = 60;
/// Rows in a DELETE by a join with a list of keys, at most. A lookup of a key costs the server a quarter of a condition
/// (MariaDB 10.11: 9 µs of CPU a row instead of 35 µs).
const JOINED_DELETE_ROWS_MAX: usize = 300;
/// Fewest rows for which a DELETE uses the join. For one row conditions cost less, from about eight rows on the join
/// does (MariaDB 10.11, CPU a statement, conditions and join: 75 and 135 µs for one row, 187 and 173 µs for eight).
const JOINED_DELETE_ROWS_MIN: usize = 8;

/// Shards whose rows one DELETE withdraws, at most. `DROP DATABASE` withdraws all its shards at one version. A
/// statement for each shard would cost more than the few rows that it finds.
const WITHDRAWN_SHARDS_MAX: usize = 100;

/// Limits of the text.
#[derive(Debug, Clone, Copy)]
pub(super) struct TextLimits {
    pub(super) statement_rows: usize,
    /// Bytes of a packet, at most. A packet exceeds them only if it is one longer statement, such as one with a very
    /// long row.
    pub(super) packet_bytes: usize,
}

/// Returns `head` and then the statements of a flush as packets: queries of several statements, separated by
/// semicolons.
///
/// Each table that has rows of withdrawn shards gets a DELETE for each version, of up to [`WITHDRAWN_SHARDS_MAX`]
/// shards. All are in the flush's transaction. A shard of a million users keeps the transaction open for some ten
/// seconds, and progress is visible only after its commit.
pub(super) fn packets(
    head: &[String],
    flush: &Flush,
    layout: FlushLayout<'_>,
    limits: TextLimits,
) -> Vec<String> {
    let FlushLayout { tables, outbox, stored_versions, withdrawn, retired, .. } = layout;
    let mut packets = Packets { limit_bytes: limits.packet_bytes, ..Packets::default() };
    for statement in head {
        packets.push(statement);
    }
    let versions = flush.withdrawn_versions(retired);
    let Undoing { mut deletes, mut lowers } = Undoing::of(flush, stored_versions, &layout);
    lowers.sort_by_key(|(table, _)| *table);
    let mut ordered = flush.ordered();
    ordered.append(&mut deletes);
    ordered.sort_unstable_by(|a, b| (a.table, a.shard, a.key).cmp(&(b.table, b.shard, b.key)));
    let mut touched: BTreeSet<u32> = ordered.iter().map(|mutation| mutation.table).collect();
    touched.extend(withdrawn.iter().map(|occupied| occupied.table));
    touched.extend(lowers.iter().map(|(table, _)| *table));
    for index in touched {
        let table = &tables[index as usize].derived;
        let mut shards_of = BTreeMap::<(Option<Lsn>, Lsn), Vec<ShardId>>::new();
        for OccupiedTable { shard, .. } in part_of(withdrawn, |occupied| occupied.table, index) {
            // Rows of a shard that this flush does not withdraw stay.
            for ((_, above), lsn) in versions.range((*shard, None)..=(*shard, Some(Lsn::MAX))) {
                shards_of.entry((*above, *lsn)).or_default().push(*shard);
            }
        }
        for ((above, lsn), shards) in &shards_of {
            for shards in shards.chunks(WITHDRAWN_SHARDS_MAX) {
                withdrawal(&mut packets, table, outbox, &withdrawn_versions(*above, *lsn, shards));
            }
        }
        // A replacement lowers stored versions that are too high, so that the deletes and upserts after it apply.
        for (_, statement) in part_of(&lowers, |(table, _)| *table, index) {
            packets.push(statement);
        }
        rows(&mut packets, table, part_of(&ordered, |mutation| mutation.table, index), limits);
    }
    for statement in outbox.map(|outbox| outbox.touched(&ordered)).unwrap_or_default() {
        packets.push(&statement);
    }
    packets.finish()
}

/// Returns the condition for the rows of these shards whose version is at most `lsn`, and above the other position if
/// there is one.
fn withdrawn_versions(above: Option<Lsn>, lsn: Lsn, shards: &[ShardId]) -> String {
    let mut condition = String::from("`shard_id` IN (");
    for (place, shard) in shards.iter().enumerate() {
        condition.push_str(if place == 0 { "" } else { "," });
        push_number(&mut condition, shard.as_u64());
    }
    write!(condition, ") AND `lsn` <= {}", lsn.as_u64()).expect("writing to a String cannot fail");
    if let Some(above) = above {
        write!(condition, " AND `lsn` > {}", above.as_u64()).expect("writing to a String cannot fail");
    }
    condition
}

/// Returns the part of a list, sorted by table, that belongs to one table.
fn part_of<T>(sorted: &[T], table_of: impl Fn(&T) -> u32, table: u32) -> &[T] {
    let first = sorted.partition_point(|entry| table_of(entry) < table);
    let end = sorted.partition_point(|entry| table_of(entry) <= table);
    &sorted[first..end]
}

/// Returns the head of a DELETE that finds its rows by this index. Otherwise the server would read every row of a small
/// table, and wait for those that another source's lane has locked. Only the multi-table form of DELETE takes an index
/// hint on both MariaDB and MySQL. The hint costs CPU (MariaDB 10.11, a statement: 31 in place of 24 µs for one row, 96
/// in place of 75 µs for four).
fn delete_by(table: &str, index: &str) -> String {
    format!("DELETE {table} FROM {table} FORCE INDEX ({})", quote_identifier(index))
}

/// Adds the DELETE of the rows that a condition finds. If there is a cache, adds before it the statement that stores
/// the rows' values in the outbox.
fn withdrawal(packets: &mut Packets, table: &DerivedTable, outbox: Option<&OutboxText>, condition: &str) {
    let name = quote_table(&table.database, &table.table);
    if let Some(outbox) = outbox {
        packets.push(&outbox.withdrawn(&name, condition));
    }
    packets.push(&format!("{} WHERE {condition}", delete_by(&name, table.shape.shard_index)));
}

/// Adds the deletes and upserts of one table.
fn rows(packets: &mut Packets, table: &DerivedTable, of_table: &[OrderedMutation<'_>], limits: TextLimits) {
    let is_delete = |mutation: &&OrderedMutation<'_>| *mutation.action == MutationAction::Delete;
    let deletes = || of_table.iter().filter(is_delete);
    let at_most = |rows: usize| TextLimits { statement_rows: limits.statement_rows.min(rows), ..limits };
    let is_joined = deletes().nth(JOINED_DELETE_ROWS_MIN - 1).is_some()
        && deletes().all(|mutation| mutation.key.iter().all(is_joinable));
    if is_joined {
        let limits = at_most(JOINED_DELETE_ROWS_MAX);
        let key = deletes().next().map_or(&[][..], |mutation| mutation.key);
        multi_row(packets, deletes(), limits, &JoinedDeleteText { table, key });
    } else {
        multi_row(packets, deletes(), at_most(DELETE_ROWS_MAX), &DeleteText { table });
    }
    multi_row(
        packets,
        of_table.iter().filter(|mutation| !is_delete(mutation)),
        limits,
        &UpsertText { table },
    );
}

/// A statement that takes any number of rows.
trait RowsText {
    const SEPARATOR: &'static str;
    fn head(&self) -> String;
    fn push_row(&self, sql: &mut String, mutation: &OrderedMutation<'_>);
    fn tail(&self) -> String;
}

fn multi_row<'m, 'f: 'm, T: RowsText>(
    packets: &mut Packets,
    mutations: impl Iterator<Item = &'m OrderedMutation<'f>>,
    limits: TextLimits,
    text: &T,
) {
    let mut mutations = mutations.peekable();
    if mutations.peek().is_none() {
        return;
    }
    let (head, tail) = (text.head(), text.tail());
    let (mut statement, mut row, mut rows) = (head.clone(), String::new(), 0);
    for mutation in mutations {
        row.clear();
        text.push_row(&mut row, mutation);
        let bytes = statement.len() + T::SEPARATOR.len() + row.len() + tail.len();
        let is_full = rows == limits.statement_rows || bytes > limits.packet_bytes && rows > 0;
        if is_full {
            statement.push_str(&tail);
            packets.push(&statement);
            statement.clone_from(&head);
            rows = 0;
        }
        if rows > 0 {
            statement.push_str(T::SEPARATOR);
        }
        statement.push_str(&row);
        rows += 1;
    }
    statement.push_str(&tail);
    packets.push(&statement);
}

/// Whether a key column compares with a column of the joined list, made of such cells, as it does with one literal. The
/// server gives the list's column one type for all its literals. Numbers in the signed range make it signed; a larger
/// one would turn it into decimals. Bytes make it binary text, as key columns of text are. If those had another
/// collation, the server would compare in that collation.
fn is_joinable(cell: &Cell) -> bool {
    match cell {
        Cell::UInt(number) => i64::try_from(*number).is_ok(),
        Cell::Bytes(_) => true,
        Cell::Null | Cell::Int(_) => false,
    }
}

/// Deletes rows by a join with a list of their whole keys, in the list's order. A row is deleted only if its stored
/// version is at most that of its mutation.
struct JoinedDeleteText<'t> {
    table: &'t DerivedTable,
    /// The key of one of the rows, which shows the types of the list's columns.
    key: &'t [Cell],
}

impl RowsText for JoinedDeleteText<'_> {
    const SEPARATOR: &'static str = " UNION ALL ";

    /// Begins the list with a SELECT that returns no row and names the columns: shard `s`, key `k0` and following,
    /// version `v`.
    fn head(&self) -> String {
        let typed = |cell: &Cell| if matches!(cell, Cell::Bytes(_)) { "x''" } else { "0" };
        let keys: String = self
            .key
            .iter()
            .enumerate()
            .map(|(index, cell)| format!("{} AS `k{index}`,", typed(cell)))
            .collect();
        let table = quote_table(&self.table.database, &self.table.table);
        format!("DELETE {table} FROM (SELECT 0 AS `s`,{keys}0 AS `v` FROM DUAL WHERE FALSE UNION ALL ")
    }

    fn push_row(&self, sql: &mut String, mutation: &OrderedMutation<'_>) {
        sql.push_str("SELECT ");
        push_number(sql, mutation.shard.as_u64());
        for cell in mutation.key {
            sql.push(',');
            push_cell(sql, cell);
        }
        sql.push(',');
        push_number(sql, mutation.lsn.as_u64());
    }

    /// Names the table itself, because an alias would need a default database, and always forces the primary key:
    /// otherwise the server would read and lock every row of a small table.
    fn tail(&self) -> String {
        let table = quote_table(&self.table.database, &self.table.table);
        let keys: String = (self.table.shape.key_columns.iter().enumerate())
            .map(|(index, column)| format!(" AND {table}.{} = `l`.`k{index}`", quote_identifier(column)))
            .collect();
        format!(
            ") AS `l` STRAIGHT_JOIN {table} FORCE INDEX (PRIMARY) ON {table}.`shard_id` = `l`.`s`{keys} \
             WHERE {table}.`lsn` <= `l`.`v`"
        )
    }
}

/// Deletes rows by conditions on their whole key. A row is deleted only if its stored version is at most that of its
/// mutation.
struct DeleteText<'t> {
    table: &'t DerivedTable,
}

impl RowsText for DeleteText<'_> {
    const SEPARATOR: &'static str = " OR ";

    fn head(&self) -> String {
        format!("{} WHERE ", delete_by(&quote_table(&self.table.database, &self.table.table), "PRIMARY"))
    }

    fn push_row(&self, sql: &mut String, mutation: &OrderedMutation<'_>) {
        sql.push_str("(`shard_id` = ");
        push_number(sql, mutation.shard.as_u64());
        for (column, cell) in self.table.shape.key_columns.iter().zip(mutation.key) {
            write!(sql, " AND {} = ", quote_identifier(column)).expect("writing to a String cannot fail");
            push_cell(sql, cell);
        }
        sql.push_str(" AND `lsn` <= ");
        push_number(sql, mutation.lsn.as_u64());
        sql.push(')');
    }

    fn tail(&self) -> String {
        String::new()
    }
}

/// Inserts rows, or updates those that are not newer. Only the projection's columns and the version are ever set,
/// the version last: MySQL evaluates assignments from left to right.
struct UpsertText<'t> {
    table: &'t DerivedTable,
}

impl RowsText for UpsertText<'_> {
    const SEPARATOR: &'static str = ",";

    fn head(&self) -> String {
        let table = quote_table(&self.table.database, &self.table.table);
        let columns: String = (self.table.shape.key_columns.iter().chain(self.table.shape.value_columns))
            .map(|column| format!("{},", quote_identifier(column)))
            .collect();
        format!("INSERT INTO {table} (`shard_id`,{columns}`lsn`) VALUES ")
    }

    fn push_row(&self, sql: &mut String, mutation: &OrderedMutation<'_>) {
        sql.push('(');
        push_number(sql, mutation.shard.as_u64());
        sql.push(',');
        let MutationAction::Upsert(values) = mutation.action else {
            unreachable!("deletes were filtered out");
        };
        for cell in mutation.key.iter().chain(&**values) {
            push_cell(sql, cell);
            sql.push(',');
        }
        push_number(sql, mutation.lsn.as_u64());
        sql.push(')');
    }

    fn tail(&self) -> String {
        let values: String = (self.table.shape.value_columns.iter())
            .map(|column| {
                let column = quote_identifier(column);
                format!("{column}=IF(VALUES(`lsn`)>=`lsn`,VALUES({column}),{column}),")
            })
            .collect();
        format!(" ON DUPLICATE KEY UPDATE {values}`lsn`=GREATEST(`lsn`,VALUES(`lsn`))")
    }
}

/// Statements collected into packets.
#[derive(Debug, Default)]
struct Packets {
    limit_bytes: usize,
    done: Vec<String>,
    current: String,
}

impl Packets {
    fn push(&mut self, statement: &str) {
        if !self.current.is_empty() {
            if self.current.len() + 1 + statement.len() > self.limit_bytes {
                self.done.push(std::mem::take(&mut self.current));
            } else {
                self.current.push(';');
            }
        }
        self.current.push_str(statement);
    }

    fn finish(mut self) -> Vec<String> {
        if !self.current.is_empty() {
            self.done.push(self.current);
        }
        self.done
    }
}

#[cfg(test)]
mod tests;
