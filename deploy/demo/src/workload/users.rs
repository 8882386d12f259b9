//! Users: birthdays of every kind, and names that decide the shard of a user.

use rand::RngExt;
use rand::rngs::StdRng;

use super::application::{Application, WorkerRows};
use super::model::Row;
use super::report::WorkloadReport;
use super::transaction::{
    CARRIED, CrossMove, Transaction, delete_statement, literal, literal_of_column, where_rows,
};
use super::values::{self, BirthdayKind};
use crate::topology::{BirthdayType, SourceTable};

const COLUMNS: &str = "(user_id, user_name, birthday, phone, address, lunar_birthday, birthday_type)";

#[derive(Debug)]
pub(super) struct Users;

impl Application for Users {
    fn columns(&self) -> &'static str {
        COLUMNS
    }

    fn new_row(
        &mut self,
        worker_rows: &mut WorkerRows,
        source: usize,
        report: &mut WorkloadReport,
    ) -> (Row, String) {
        let (name, source_table) = name_on(worker_rows, source, report);
        let returning = worker_rows.returning_id();
        report.returns += u64::from(returning.is_some());
        let row = Row { id: returning.unwrap_or_else(|| worker_rows.fresh_id()), source_table };
        let birthday = new_birthday(&mut worker_rows.random, source_table, report);
        (row, values_of(&mut worker_rows.random, row.id, &name, &birthday))
    }

    fn change(
        &mut self,
        random: &mut StdRng,
        source_table: SourceTable,
        rows: u64,
        report: &mut WorkloadReport,
    ) -> String {
        let kind = match random.random_range(0..100) {
            0..8 => BirthdayKind::Null,
            8..18 => BirthdayKind::Invalid,
            _ => BirthdayKind::Valid,
        };
        let column = BirthdayType::of(source_table);
        match kind {
            BirthdayKind::Valid => report.birthday_changes += rows,
            BirthdayKind::Null => report.birthdays_set_null += rows,
            BirthdayKind::Invalid => count_invalid(report, column, rows),
        }
        format!("birthday = {}", values::birthday(random, kind, column))
    }

    fn change_of_other_columns(&mut self, random: &mut StdRng) -> String {
        let (lunar, kind) = values::lunar(random);
        match random.random_range(0..4) {
            0 => format!("lunar_birthday = {lunar}"),
            1 => format!("birthday_type = {kind}"),
            _ => {
                let (phone, address) = values::contact(random);
                format!("phone = {phone}, address = {address}")
            }
        }
    }

    /// Gives a user a new name whose table is on the same server.
    fn move_inside(&mut self, worker_rows: &mut WorkerRows, transaction: &mut Transaction) -> bool {
        let Some(user) = worker_rows.model.take(&mut worker_rows.random, transaction.source) else {
            return false;
        };
        let (name, source_table) = name_on(worker_rows, transaction.source, &mut transaction.report);
        worker_rows.model.add(transaction.source, Row { id: user.id, source_table });
        let (old_table, new_table, chosen) =
            (user.source_table.quoted(), source_table.quoted(), where_rows(&[user]));
        if source_table == user.source_table {
            let name = literal(&name);
            transaction.statement(&format!("UPDATE {old_table} SET user_name = {name} WHERE {chosen}"));
            transaction.rows += 1;
            transaction.report.renames_in_place += 1;
            return true;
        }
        if worker_rows.random.random_bool(0.7) {
            let birthday = match carries(user.source_table, source_table) {
                true => "birthday".to_owned(),
                false => new_birthday(&mut worker_rows.random, source_table, &mut transaction.report),
            };
            transaction.statement(&format!(
                "INSERT INTO {new_table} {COLUMNS} SELECT user_id, {}, {birthday}, phone, address, lunar_birthday, \
                 birthday_type FROM {old_table} WHERE {chosen}",
                literal(&name)
            ));
            transaction.statement(&delete_statement(user));
            transaction.report.moves_inside_server_insert_first += 1;
        } else {
            let birthday = new_birthday(&mut worker_rows.random, source_table, &mut transaction.report);
            let values = values_of(&mut worker_rows.random, user.id, &name, &birthday);
            transaction.statement(&delete_statement(user));
            transaction.statement(&format!("INSERT INTO {new_table} {COLUMNS} VALUES {values}"));
            transaction.report.moves_inside_server_delete_first += 1;
        }
        transaction.rows += 2;
        true
    }

    fn cross_move(&mut self, worker_rows: &mut WorkerRows, source: usize) -> Option<CrossMove> {
        let sources = worker_rows.topology.sources.len();
        let to_source = (source + worker_rows.random.random_range(1..sources)) % sources;
        let from = worker_rows.model.take(&mut worker_rows.random, source)?;
        let mut report = WorkloadReport::default();
        let (name, to) = name_on(worker_rows, to_source, &mut report);
        worker_rows.model.add(to_source, Row { id: from.id, source_table: to });
        let insert_first = worker_rows.random.random_bool(0.5);
        report.count_cross_move(insert_first);
        let is_carried = carries(from.source_table, to) && worker_rows.random.random_bool(0.7);
        let (birthday, carried) = if is_carried {
            let (column, table) = (literal_of_column("birthday"), from.source_table.quoted());
            (CARRIED.to_owned(), Some(format!("SELECT {column} FROM {table} WHERE {}", where_rows(&[from]))))
        } else {
            (new_birthday(&mut worker_rows.random, to, &mut report), None)
        };
        let values = values_of(&mut worker_rows.random, from.id, &name, &birthday);
        let insert = format!("INSERT INTO {} {COLUMNS} VALUES {values}", to.quoted());
        Some(CrossMove { from, to, insert_first, insert, carried, report })
    }
}

/// Returns a name whose shard is on that server.
fn name_on(
    worker_rows: &mut WorkerRows,
    source: usize,
    report: &mut WorkloadReport,
) -> (String, SourceTable) {
    loop {
        let (name, is_odd) = values::name(&mut worker_rows.random);
        let source_table = worker_rows.topology.source_table(&name);
        if worker_rows.topology.source_of(source_table) == source {
            report.odd_names += u64::from(is_odd);
            return (name, source_table);
        }
    }
}

fn values_of(random: &mut StdRng, id: u64, name: &str, birthday: &str) -> String {
    let (phone, address) = values::contact(random);
    let (lunar, kind) = values::lunar(random);
    format!("({id}, {}, {birthday}, {phone}, {address}, {lunar}, {kind})", literal(name))
}

fn new_birthday(random: &mut StdRng, source_table: SourceTable, report: &mut WorkloadReport) -> String {
    let kind = values::birthday_kind(random);
    let column = BirthdayType::of(source_table);
    if kind == BirthdayKind::Invalid {
        count_invalid(report, column, 1);
    }
    values::birthday(random, kind, column)
}

/// Whether the new table can store every birthday of the old table as it is.
fn carries(old: SourceTable, new: SourceTable) -> bool {
    BirthdayType::of(new) == BirthdayType::Text || BirthdayType::of(old) != BirthdayType::Text
}

fn count_invalid(report: &mut WorkloadReport, column: BirthdayType, rows: u64) {
    match column {
        BirthdayType::Date => report.invalid_dates += rows,
        BirthdayType::DateTime | BirthdayType::DateTimeMicroseconds => report.invalid_datetimes += rows,
        BirthdayType::Text => report.invalid_texts += rows,
    }
}
