//! Devices: phones and others, with codes of every kind; they move to the history and stay there.

use rand::RngExt;
use rand::rngs::StdRng;

use super::application::{Application, WorkerRows};
use super::codes::{self, Boxes};
use super::model::Row;
use super::report::WorkloadReport;
use super::transaction::{
    CARRIED, CrossMove, Transaction, delete_statement, literal, literal_of_column, where_rows,
};
use super::uuids::Uuids;
use crate::topology::{SourceTable, uuid};

/// All columns but the uuid.
const COLUMNS: [&str; 12] = [
    "imei1",
    "imei2",
    "meid",
    "box_no",
    "item_code",
    "first_agent_code",
    "warehouse_code",
    "account_id",
    "sku_code",
    "status",
    "out_time",
    "out_request",
];
const NEW_COLUMNS: &str = "(uuid, imei1, imei2, meid, box_no, item_code, first_agent_code, warehouse_code, \
                           account_id, sku_code)";

#[derive(Debug)]
pub(super) struct Serials {
    boxes: Boxes,
    uuids: Uuids,
}

impl Serials {
    pub fn of(worker: u64) -> Self {
        Self { boxes: Boxes::default(), uuids: Uuids::of(worker) }
    }
}

impl Application for Serials {
    fn columns(&self) -> &'static str {
        NEW_COLUMNS
    }

    fn new_row(
        &mut self,
        worker_rows: &mut WorkerRows,
        source: usize,
        report: &mut WorkloadReport,
    ) -> (Row, String) {
        let row = loop {
            let id = worker_rows.top_id().unwrap_or_else(|| self.uuids.next());
            let row = Row { id, source_table: worker_rows.topology.source_table(&uuid(id)) };
            if worker_rows.source_of(row) == source {
                break row;
            }
        };
        report.uuids_of_64_digits += u64::from(uuid(row.id).len() == 64);
        let codes = codes::of_device(&mut worker_rows.random, &mut self.boxes, report);
        let stock = codes::stock(&mut worker_rows.random);
        (row, format!("({}, {codes}, {stock})", row.source_table.key(row.id)))
    }

    fn change(
        &mut self,
        random: &mut StdRng,
        _place: SourceTable,
        rows: u64,
        report: &mut WorkloadReport,
    ) -> String {
        match random.random_range(0..100) {
            0..6 => {
                report.codes_cleared_to_null += rows;
                format!("{} = NULL", codes::column(random))
            }
            6..12 => {
                report.codes_cleared_to_empty += rows;
                format!("{} = ''", codes::column(random))
            }
            12..22 => {
                report.codes_swapped += rows;
                // The session makes MariaDB assign all columns at once; MySQL assigns them in turn, and both columns
                // then have the second one's value.
                "imei1 = imei2, imei2 = imei1".to_owned()
            }
            22..30 => {
                report.codes_of_two_kinds += rows;
                "item_code = imei1".to_owned()
            }
            30..36 => {
                report.captured_columns_without_code += rows;
                format!("warehouse_code = 'W{}'", random.random_range(0..50))
            }
            kind => {
                report.code_changes += rows;
                match kind {
                    36..50 => format!("box_no = {}", literal(&self.boxes.next(random, report))),
                    50..60 => format!("meid = {}", literal(&codes::meid(random, report))),
                    60..72 => format!("item_code = {}", literal(&codes::item(random, report))),
                    _ => format!("imei1 = {}", literal(&codes::imei(random, report))),
                }
            }
        }
    }

    fn change_of_other_columns(&mut self, random: &mut StdRng) -> String {
        let request = random.random_range(0..1_000_000);
        format!("status = 1 - status, out_time = UTC_TIMESTAMP(3), out_request = 'request-{request}'")
    }

    /// Moves a row to the history if that is on the same server, or swaps a code of two devices.
    fn move_inside(&mut self, worker_rows: &mut WorkerRows, transaction: &mut Transaction) -> bool {
        if history_of(worker_rows, transaction.source).is_none() || worker_rows.random.random_bool(0.3) {
            return swap(worker_rows, transaction);
        }
        let Some(row) = worker_rows.model.take(&mut worker_rows.random, transaction.source) else {
            return false;
        };
        let history = row.source_table.history();
        let (old_table, new_table, chosen) =
            (row.source_table.quoted(), history.quoted(), where_rows(&[row]));
        let columns = COLUMNS.join(", ");
        let uuid = literal(&uuid(row.id));
        if worker_rows.random.random_bool(0.5) {
            transaction.statement(&format!(
                "INSERT INTO {new_table} (uuid, {columns}) SELECT {uuid}, {columns} FROM {old_table} WHERE {chosen}"
            ));
            transaction.statement(&delete_statement(row));
            transaction.report.moves_inside_server_insert_first += 1;
        } else {
            let variables: Vec<String> = COLUMNS.iter().map(|column| format!("@{column}")).collect();
            let variables = variables.join(", ");
            transaction
                .statement(&format!("SELECT {columns} INTO {variables} FROM {old_table} WHERE {chosen}"));
            transaction.statement(&delete_statement(row));
            transaction.statement(&format!(
                "INSERT INTO {new_table} (uuid, {columns}) VALUES ({uuid}, {variables})"
            ));
            transaction.report.moves_inside_server_delete_first += 1;
        }
        transaction.rows += 2;
        true
    }

    /// Moves a row to the history on another server.
    fn cross_move(&mut self, worker_rows: &mut WorkerRows, source: usize) -> Option<CrossMove> {
        if history_of(worker_rows, source).is_some() {
            return None;
        }
        let from = worker_rows.model.take(&mut worker_rows.random, source)?;
        let to = from.source_table.history();
        let mut report = WorkloadReport::default();
        let insert_first = worker_rows.random.random_bool(0.5);
        report.count_cross_move(insert_first);
        let literals: Vec<String> = COLUMNS.iter().map(|column| literal_of_column(column)).collect();
        let (literals, table) = (literals.join(", "), from.source_table.quoted());
        let carried =
            format!("SELECT CONCAT_WS(', ', {literals}) FROM {table} WHERE {}", where_rows(&[from]));
        let insert = format!(
            "INSERT INTO {} (uuid, {}) VALUES ({}, {CARRIED})",
            to.quoted(),
            COLUMNS.join(", "),
            to.key(from.id)
        );
        Some(CrossMove { from, to, insert_first, insert, carried: Some(carried), report })
    }

    /// Empties a table of the history. The model does not know its rows.
    fn seldom(&mut self, worker_rows: &mut WorkerRows, source: usize) -> Option<Transaction> {
        let source_table = history_of(worker_rows, source)?;
        let mut transaction = Transaction::begin(source);
        transaction.statement(&format!("TRUNCATE TABLE {}", source_table.quoted()));
        transaction.report.history_tables_truncated += 1;
        Some(transaction.end(false))
    }
}

/// Returns some table of the history, if that server has it.
fn history_of(worker_rows: &mut WorkerRows, source: usize) -> Option<SourceTable> {
    let table = worker_rows.random.random_range(0..worker_rows.topology.rule.tables);
    worker_rows
        .topology
        .tables_of(source)
        .find(|source_table| source_table.is_history() && source_table.table == table)
}

/// Exchanges the first codes of two devices of one server.
fn swap(worker_rows: &mut WorkerRows, transaction: &mut Transaction) -> bool {
    let source = transaction.source;
    let (one, other) = (
        worker_rows.model.pick(&mut worker_rows.random, source),
        worker_rows.model.pick(&mut worker_rows.random, source),
    );
    let (Some(one), Some(other)) = (one, other) else { return false };
    for (row, variable) in [(one, "@one"), (other, "@other")] {
        let (table, chosen) = (row.source_table.quoted(), where_rows(&[row]));
        transaction.statement(&format!("SELECT imei1 INTO {variable} FROM {table} WHERE {chosen}"));
    }
    for (row, variable) in [(one, "@other"), (other, "@one")] {
        let (table, chosen) = (row.source_table.quoted(), where_rows(&[row]));
        transaction.statement(&format!("UPDATE {table} SET imei1 = {variable} WHERE {chosen}"));
    }
    transaction.rows += 2;
    transaction.report.codes_swapped += 2;
    true
}
