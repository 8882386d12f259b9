//! What a worker does next: transactions as SQL, drawn from its own random numbers.
//!
//! No I/O. The model already shows a planned transaction; who runs it commits the model or rolls it back.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::model::{Model, User};
use super::report::WorkloadReport;
use super::transaction::{CrossMove, Plan, Transaction, carries, count_invalid, delete_statement, id_list};
use super::values::{self, BirthdayKind};
use crate::topology::{Place, Topology};

/// The most rows of one transaction.
pub const GIANT_ROWS: usize = 10_000;
/// Rows a statement of a large transaction.
const STATEMENT_ROWS: usize = 500;
const COLUMNS: &str = "(user_id, user_name, birthday, phone, address, lunar_birthday, birthday_type)";
/// Ids of ordinary users are below; one in a thousand users has an id near the top of BIGINT UNSIGNED instead.
const TOP_IDS: u64 = u64::MAX;

/// Draws plans for the users of one worker; no two workers share a user.
#[derive(Debug)]
pub(super) struct Planner {
    topology: Topology,
    pub random: StdRng,
    pub model: Model,
    worker: u64,
    workers: u64,
    next_user: u64,
    /// Deleted users, some of which come back.
    deleted: Vec<u64>,
    pub giants: bool,
}

impl Planner {
    pub fn new(topology: Topology, seed: u64, worker: u64, workers: u64) -> Self {
        let model = Model::new(topology.sources.len());
        let random = StdRng::seed_from_u64(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(worker));
        Self { topology, random, model, worker, workers, next_user: 0, deleted: Vec::new(), giants: false }
    }

    /// The next plan. `None` only when a drawn move found nobody to move.
    pub fn next(&mut self) -> Option<Plan> {
        let source = self.random.random_range(0..self.topology.sources.len());
        if self.topology.sources.len() > 1 && self.random.random_bool(0.08) {
            return self.cross_move(source).map(Plan::Move);
        }
        let rows = match self.random.random_range(0..10_000) {
            0..3 if self.giants => GIANT_ROWS,
            3..23 => self.random.random_range(101..=1000),
            23..200 => self.random.random_range(11..=100),
            200..1200 => self.random.random_range(2..=10),
            _ => 1,
        };
        Some(Plan::One(if rows > 10 { self.large(source, rows) } else { self.small(source, rows) }))
    }

    /// Inserts of exactly `rows` new users on one server.
    pub fn inserts(&mut self, source: usize, rows: usize) -> Transaction {
        let mut transaction = Transaction::begin(source);
        let mut users: Vec<(User, String)> = Vec::with_capacity(rows);
        for _ in 0..rows {
            let (name, place) = self.name_on(source, &mut transaction.report);
            let user = User { id: self.fresh_id(), place };
            self.model.add(source, user);
            users.push((user, name));
        }
        users.sort_unstable_by_key(|(user, _)| (user.place, user.id));
        for group in users.chunk_by(|(a, _), (b, _)| a.place == b.place) {
            for part in group.chunks(STATEMENT_ROWS) {
                let values: Vec<String> = part
                    .iter()
                    .map(|(user, name)| {
                        let birthday = self.new_birthday(user.place, &mut transaction.report);
                        self.row(user.id, name, &birthday)
                    })
                    .collect();
                transaction.statement(&format!(
                    "INSERT INTO {} {COLUMNS} VALUES {}",
                    part[0].0.place.quoted(),
                    values.join(",")
                ));
            }
        }
        transaction.rows += rows as u64;
        transaction.report.inserts += rows as u64;
        transaction.end(false)
    }

    /// One transaction that sets the birthdays of up to `rows` users, as many as there are.
    pub fn birthday_updates(&mut self, source: usize, rows: usize) -> Transaction {
        let mut transaction = Transaction::begin(source);
        let mut users = self.model.pick_many(&mut self.random, source, rows);
        users.sort_unstable_by_key(|user| (user.place, user.id));
        for group in users.chunk_by(|a, b| a.place == b.place) {
            // A few rows a statement, so that the rows go to many days.
            for part in group.chunks(20) {
                let literal =
                    self.changed_birthday(part[0].place, part.len() as u64, &mut transaction.report);
                transaction.statement(&format!(
                    "UPDATE {} SET birthday = {literal} WHERE user_id IN ({})",
                    part[0].place.quoted(),
                    id_list(part)
                ));
            }
        }
        transaction.rows += users.len() as u64;
        transaction.end(false)
    }

    fn large(&mut self, source: usize, rows: usize) -> Transaction {
        let kind = self.random.random_range(0..10);
        let have = self.model.count(source);
        let mut transaction = match kind {
            0..3 => self.inserts(source, rows),
            // Deletes are as frequent as inserts of this size, but never empty the place.
            3..5 if have > 4 * rows => self.deletes(source, rows),
            5..7 if have > 0 => self.updates_of_other_columns(source, rows),
            _ if have > 0 => self.birthday_updates(source, rows),
            _ => self.inserts(source, rows),
        };
        if self.random.random_bool(0.03) {
            transaction.turn_into_rollback();
        }
        transaction
    }

    fn deletes(&mut self, source: usize, rows: usize) -> Transaction {
        let mut transaction = Transaction::begin(source);
        let mut users = self.model.take_many(&mut self.random, source, rows);
        users.sort_unstable_by_key(|user| (user.place, user.id));
        for group in users.chunk_by(|a, b| a.place == b.place) {
            let place = group[0].place.quoted();
            transaction.statement(&format!("DELETE FROM {place} WHERE user_id IN ({})", id_list(group)));
        }
        transaction.rows += users.len() as u64;
        transaction.report.deletes += users.len() as u64;
        transaction.end(false)
    }

    fn updates_of_other_columns(&mut self, source: usize, rows: usize) -> Transaction {
        let mut transaction = Transaction::begin(source);
        let mut users = self.model.pick_many(&mut self.random, source, rows);
        users.sort_unstable_by_key(|user| (user.place, user.id));
        for group in users.chunk_by(|a, b| a.place == b.place) {
            let (phone, address) = values::contact(&mut self.random);
            transaction.statement(&format!(
                "UPDATE {} SET phone = {phone}, address = {address} WHERE user_id IN ({})",
                group[0].place.quoted(),
                id_list(group)
            ));
        }
        transaction.rows += users.len() as u64;
        transaction.report.updates_of_other_columns += users.len() as u64;
        transaction.end(false)
    }

    /// Single-row statements of mixed kinds; sometimes all on one row, sometimes partly or wholly rolled back.
    fn small(&mut self, source: usize, rows: usize) -> Transaction {
        let mut transaction = Transaction::begin(source);
        if rows > 1 && self.random.random_bool(0.1) && self.repeat_one_row(&mut transaction, rows) {
            return transaction.end(self.random.random_bool(0.05));
        }
        while transaction.rows < rows as u64 {
            self.step(&mut transaction);
        }
        if self.random.random_bool(0.02) {
            let mut undone = Transaction::begin(source);
            let savepoint = self.model.savepoint();
            self.step(&mut undone);
            self.model.roll_back_to(savepoint);
            transaction.then_undone(undone);
        }
        transaction.end(self.random.random_bool(0.03))
    }

    fn repeat_one_row(&mut self, transaction: &mut Transaction, rows: usize) -> bool {
        let Some(user) = self.model.pick(&mut self.random, transaction.source) else { return false };
        for _ in 0..rows {
            self.set_birthday(transaction, user);
        }
        transaction.report.transactions_with_repeated_row += 1;
        true
    }

    /// One change of one or two rows.
    fn step(&mut self, transaction: &mut Transaction) {
        match self.random.random_range(0..100) {
            0..22 => self.insert(transaction),
            22..34 => self.delete(transaction),
            34..42 => self.move_inside(transaction),
            42..60 => self.update_other_columns(transaction),
            _ => match self.model.pick(&mut self.random, transaction.source) {
                Some(user) => self.set_birthday(transaction, user),
                None => self.insert(transaction),
            },
        }
    }

    fn insert(&mut self, transaction: &mut Transaction) {
        let (name, place) = self.name_on(transaction.source, &mut transaction.report);
        let returning = self.random.random_bool(0.1).then(|| self.deleted.pop()).flatten();
        let user = User { id: returning.unwrap_or_else(|| self.fresh_id()), place };
        let birthday = self.new_birthday(place, &mut transaction.report);
        let row = self.row(user.id, &name, &birthday);
        transaction.statement(&format!("INSERT INTO {} {COLUMNS} VALUES {row}", place.quoted()));
        self.model.add(transaction.source, user);
        transaction.rows += 1;
        transaction.report.inserts += 1;
        transaction.report.returns += u64::from(returning.is_some());
    }

    fn delete(&mut self, transaction: &mut Transaction) {
        let Some(user) = self.model.take(&mut self.random, transaction.source) else {
            return self.insert(transaction);
        };
        transaction.statement(&delete_statement(user));
        transaction.rows += 1;
        transaction.report.deletes += 1;
        transaction.deleted.push(user.id);
    }

    fn update_other_columns(&mut self, transaction: &mut Transaction) {
        let Some(user) = self.model.pick(&mut self.random, transaction.source) else {
            return self.insert(transaction);
        };
        let (phone, address) = values::contact(&mut self.random);
        transaction.statement(&format!(
            "UPDATE {} SET phone = {phone}, address = {address} WHERE user_id = {}",
            user.place.quoted(),
            user.id
        ));
        transaction.rows += 1;
        transaction.report.updates_of_other_columns += 1;
    }

    fn set_birthday(&mut self, transaction: &mut Transaction, user: User) {
        let literal = self.changed_birthday(user.place, 1, &mut transaction.report);
        transaction.statement(&format!(
            "UPDATE {} SET birthday = {literal} WHERE user_id = {}",
            user.place.quoted(),
            user.id
        ));
        transaction.rows += 1;
    }

    /// A new name whose table lies on the same server.
    fn move_inside(&mut self, transaction: &mut Transaction) {
        let Some(user) = self.model.take(&mut self.random, transaction.source) else {
            return self.insert(transaction);
        };
        let (name, place) = self.name_on(transaction.source, &mut transaction.report);
        self.model.add(transaction.source, User { id: user.id, place });
        if place == user.place {
            let (table, name) = (place.quoted(), values::literal(&name));
            transaction
                .statement(&format!("UPDATE {table} SET user_name = {name} WHERE user_id = {}", user.id));
            transaction.rows += 1;
            transaction.report.renames_in_place += 1;
            return;
        }
        let (old, new) =
            (self.topology.birthday_type(user.place.database), self.topology.birthday_type(place.database));
        if self.random.random_bool(0.7) {
            let birthday = match carries(old, new) {
                true => "birthday".to_owned(),
                false => self.new_birthday(place, &mut transaction.report),
            };
            transaction.statement(&format!(
                "INSERT INTO {} {COLUMNS} SELECT user_id, {}, {birthday}, phone, address, lunar_birthday, \
                 birthday_type FROM {} WHERE user_id = {}",
                place.quoted(),
                values::literal(&name),
                user.place.quoted(),
                user.id
            ));
            transaction.statement(&delete_statement(user));
            transaction.report.moves_inside_server_insert_first += 1;
        } else {
            let birthday = self.new_birthday(place, &mut transaction.report);
            let row = self.row(user.id, &name, &birthday);
            transaction.statement(&delete_statement(user));
            transaction.statement(&format!("INSERT INTO {} {COLUMNS} VALUES {row}", place.quoted()));
            transaction.report.moves_inside_server_delete_first += 1;
        }
        transaction.rows += 2;
    }

    fn cross_move(&mut self, source: usize) -> Option<CrossMove> {
        let sources = self.topology.sources.len();
        let to_source = (source + self.random.random_range(1..sources)) % sources;
        let from = self.model.take(&mut self.random, source)?;
        let mut report = WorkloadReport::default();
        let (name, to) = self.name_on(to_source, &mut report);
        self.model.add(to_source, User { id: from.id, place: to });
        let insert_first = self.random.random_bool(0.5);
        match insert_first {
            true => report.moves_to_other_server_insert_first += 1,
            false => report.moves_to_other_server_delete_first += 1,
        }
        let (old, new) =
            (self.topology.birthday_type(from.place.database), self.topology.birthday_type(to.database));
        let carried = carries(old, new) && self.random.random_bool(0.7);
        let birthday = (!carried).then(|| self.new_birthday(to, &mut report));
        Some(CrossMove { from, to, name, insert_first, birthday, report })
    }

    /// The two statements of a move: insert into the new shard, delete from the old one.
    pub fn move_statements(&mut self, plan: &CrossMove, birthday: &str) -> (String, String) {
        let row = self.row(plan.from.id, &plan.name, birthday);
        (format!("INSERT INTO {} {COLUMNS} VALUES {row}", plan.to.quoted()), delete_statement(plan.from))
    }

    /// To be called after a commit: some of the deleted users come back later.
    pub fn remember_deleted(&mut self, transaction: &mut Transaction) {
        self.deleted.append(&mut transaction.deleted);
    }

    fn fresh_id(&mut self) -> u64 {
        self.next_user += 1;
        let id = self.next_user * self.workers + self.worker;
        if self.next_user.is_multiple_of(1000) { TOP_IDS - id } else { id }
    }

    /// Whether this worker made the user.
    pub fn owns(&self, id: u64) -> bool {
        id.min(TOP_IDS - id) % self.workers == self.worker
    }

    /// A name whose shard lies on that server.
    fn name_on(&mut self, source: usize, report: &mut WorkloadReport) -> (String, Place) {
        loop {
            let (name, is_odd) = values::name(&mut self.random);
            let place = self.topology.place(&name);
            if self.topology.source_of(place.database) == source {
                report.odd_names += u64::from(is_odd);
                return (name, place);
            }
        }
    }

    fn row(&mut self, id: u64, name: &str, birthday: &str) -> String {
        let (phone, address) = values::contact(&mut self.random);
        let (lunar, kind) = values::lunar(&mut self.random);
        format!("({id}, {}, {birthday}, {phone}, {address}, {lunar}, {kind})", values::literal(name))
    }

    fn new_birthday(&mut self, place: Place, report: &mut WorkloadReport) -> String {
        let kind = values::birthday_kind(&mut self.random);
        let column = self.topology.birthday_type(place.database);
        if kind == BirthdayKind::Invalid {
            count_invalid(report, column, 1);
        }
        values::birthday(&mut self.random, kind, column)
    }

    fn changed_birthday(&mut self, place: Place, rows: u64, report: &mut WorkloadReport) -> String {
        let kind = match self.random.random_range(0..100) {
            0..8 => BirthdayKind::Null,
            8..18 => BirthdayKind::Invalid,
            _ => BirthdayKind::Valid,
        };
        let column = self.topology.birthday_type(place.database);
        match kind {
            BirthdayKind::Valid => report.birthday_changes += rows,
            BirthdayKind::Null => report.birthdays_set_null += rows,
            BirthdayKind::Invalid => count_invalid(report, column, rows),
        }
        values::birthday(&mut self.random, kind, column)
    }
}
