//! Payment documents: recharges with everything that belongs to them, in the tables that their digits name.
//!
//! A document never moves as it is, since its digits name its table. A recharge that is moved gets another identifier:
//! of the other month, or of the other side, which is on another server. Its children keep the old one as their parent.

use std::collections::VecDeque;

use anabranch_schemas::flux::id::{Level, Month, Side};
use anabranch_schemas::flux::placement::StorageAddress;
use rand::RngExt;
use rand::rngs::StdRng;

use super::application::{Application, WorkerRows};
use super::model::Row;
use super::report::WorkloadReport;
use super::transaction::{CARRIED, CrossMove, Transaction, delete_statement, literal_of_column, where_rows};
use super::trees::{self, Leaf, is_recharge, place_of_recharge, tree};
use crate::topology::{Document, RECHARGE_DAYS, SourceTable, WITHOUT_KIND, place_of};

const COLUMNS: &str = "(id, parent_id, amount, created)";
/// Days of December; recharges from then on are of January.
const DAYS_OF_DECEMBER: u64 = 31;

/// Documents that are drawn and not yet written, by source.
#[derive(Debug, Default)]
pub(super) struct Payments {
    pending: Vec<VecDeque<Leaf>>,
}

impl Payments {
    fn next(&mut self, worker_rows: &mut WorkerRows, source: usize, report: &mut WorkloadReport) -> Leaf {
        self.pending.resize_with(worker_rows.topology.sources.len(), VecDeque::new);
        loop {
            if let Some(leaf) = self.pending[source].pop_front() {
                return leaf;
            }
            self.pending[source].extend(tree(worker_rows, source, report));
        }
    }
}

impl Application for Payments {
    fn columns(&self) -> &'static str {
        COLUMNS
    }

    fn new_row(
        &mut self,
        worker_rows: &mut WorkerRows,
        source: usize,
        report: &mut WorkloadReport,
    ) -> (Row, String) {
        // A deleted recharge comes back as it was; other documents would need their parent.
        let returning = worker_rows.returning_id().map(Document::of);
        let is_fit = |document: &Document| {
            is_recharge(document) && worker_rows.topology.source_of(document.source_table()) == source
        };
        let returning = returning.filter(is_fit);
        report.returns += u64::from(returning.is_some());
        let Leaf { document, parent } = match returning {
            Some(document) => Leaf { document, parent: None },
            None => self.next(worker_rows, source, report),
        };
        let parent = parent.map_or("NULL".to_owned(), |parent| format!("'{parent}'"));
        let (amount, created) =
            (amount(&mut worker_rows.random), created(&mut worker_rows.random, &document));
        (row_of(&document), format!("('{}', {parent}, {amount}, {created})", document.id()))
    }

    fn change(
        &mut self,
        random: &mut StdRng,
        source_table: SourceTable,
        rows: u64,
        report: &mut WorkloadReport,
    ) -> String {
        let (level, StorageAddress { month, .. }) = place_of(source_table);
        if level == Level::Composite && month == Month::No && random.random_bool(0.5) {
            report.parents_changed += rows;
            // Digits 15 and 16 are the business code; digits 20 and 21 of the parent its user partition.
            return format!(
                "parent_id = IF(SUBSTRING(id, 15, 2) = '{WITHOUT_KIND}', \
                 CONCAT(LEFT(parent_id, 19), '{:02}', SUBSTRING(parent_id, 22)), parent_id), amount = {}",
                random.random_range(0..100),
                amount(random)
            );
        }
        report.amounts_changed += rows;
        match random.random_range(0..10) {
            0 => format!("amount = {}, created = created + INTERVAL 1 SECOND", amount(random)),
            1 => "amount = NULL".to_owned(),
            _ => format!("amount = {}", amount(random)),
        }
    }

    fn change_of_other_columns(&mut self, _random: &mut StdRng) -> String {
        "state = (state + 1) % 100".to_owned()
    }

    /// Gives a recharge an identifier of the other month, in one transaction.
    fn move_inside(&mut self, worker_rows: &mut WorkerRows, transaction: &mut Transaction) -> bool {
        let source = transaction.source;
        let Some((from, old)) = take_recharge(worker_rows, source) else { return false };
        let day = worker_rows.random.random_range(match old.day < DAYS_OF_DECEMBER {
            true => DAYS_OF_DECEMBER..RECHARGE_DAYS,
            false => 0..DAYS_OF_DECEMBER,
        });
        let StorageAddress { side, partition, .. } = old.address;
        let content = (old.level, old.business);
        let address = place_of_recharge(day, partition, side);
        let new = trees::document_at(worker_rows, content, day, address);
        let row = row_of(&new);
        worker_rows.model.add(source, row);
        let (old_table, new_table) = (from.source_table.quoted(), row.source_table.quoted());
        if worker_rows.random.random_bool(0.5) {
            transaction.statement(&format!(
                "INSERT INTO {new_table} {COLUMNS} SELECT '{}', parent_id, amount, created FROM {old_table} \
                 WHERE {}",
                new.id(),
                where_rows(&[from])
            ));
            transaction.statement(&delete_statement(from));
            transaction.report.moves_inside_server_insert_first += 1;
        } else {
            let (amount, created) = (amount(&mut worker_rows.random), created(&mut worker_rows.random, &new));
            transaction.statement(&delete_statement(from));
            transaction.statement(&format!(
                "INSERT INTO {new_table} {COLUMNS} VALUES ('{}', NULL, {amount}, {created})",
                new.id()
            ));
            transaction.report.moves_inside_server_delete_first += 1;
        }
        transaction.rows += 2;
        true
    }

    /// Gives a recharge an identifier of the other side, whose databases are on another server.
    fn cross_move(&mut self, worker_rows: &mut WorkerRows, source: usize) -> Option<CrossMove> {
        let (from, old) = take_recharge(worker_rows, source)?;
        let side = match old.address.side {
            Side::Main => Side::FailOver,
            Side::FailOver => Side::Main,
        };
        let address = StorageAddress { side, ..old.address };
        let new = trees::document_at(worker_rows, (old.level, old.business), old.day, address);
        let row = row_of(&new);
        let to = row.source_table;
        worker_rows.model.add(worker_rows.topology.source_of(to), row);
        let mut report = WorkloadReport::default();
        let insert_first = worker_rows.random.random_bool(0.5);
        report.count_cross_move(insert_first);
        let carried = worker_rows.random.random_bool(0.7).then(|| {
            let (amount, created) = (literal_of_column("amount"), literal_of_column("created"));
            let (table, chosen) = (from.source_table.quoted(), where_rows(&[from]));
            format!("SELECT CONCAT_WS(', ', {amount}, {created}) FROM {table} WHERE {chosen}")
        });
        let values = match carried {
            Some(_) => CARRIED.to_owned(),
            None => {
                let random = &mut worker_rows.random;
                format!("{}, {}", amount(random), created(random, &new))
            }
        };
        let insert = format!("INSERT INTO {} {COLUMNS} VALUES ('{}', NULL, {values})", to.quoted(), new.id());
        Some(CrossMove { from, to, insert_first, insert, carried, report })
    }
}

fn row_of(document: &Document) -> Row {
    Row { id: document.number(), source_table: document.source_table() }
}

/// Takes some recharge of a server.
fn take_recharge(worker_rows: &mut WorkerRows, source: usize) -> Option<(Row, Document)> {
    let is_fit = |row: &Row| is_recharge(&Document::of(row.id));
    let row = worker_rows.model.take_fit(&mut worker_rows.random, source, is_fit)?;
    Some((row, Document::of(row.id)))
}

/// Returns an amount with up to four decimal places; some are below one, or negative.
fn amount(random: &mut StdRng) -> String {
    let ten_thousandths: i64 = match random.random_range(0..20) {
        0 => random.random_range(0..10_000),
        1 => random.random_range(-1_000_000..0),
        2..5 => random.random_range(0..100_000_000_000),
        _ => random.random_range(1..1_000_000) * 100,
    };
    let sign = if ten_thousandths < 0 { "-" } else { "" };
    let amount = ten_thousandths.unsigned_abs();
    format!("{sign}{}.{:04}", amount / 10_000, amount % 10_000)
}

/// Returns a moment of the document's day; some have no fraction of a second.
fn created(random: &mut StdRng, document: &Document) -> String {
    let second = random.random_range(0..24 * 3_600);
    let fraction = match random.random_range(0..4) {
        0 => String::new(),
        _ => format!(".{:03}", random.random_range(0..1_000)),
    };
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("'{} {hour:02}:{minute:02}:{second:02}{fraction}'", Document::date(document.day))
}
