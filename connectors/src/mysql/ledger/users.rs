//! Reads and writes of a transaction about users: multi-row statements, one for each part of the users.
//!
//! New rows that differ only in their users are inserted together, so rows of several such groups are not inserted in
//! the order of their keys. Two transactions that insert the same missing rows may deadlock. The server ends one of
//! them, and `transaction.rs` repeats it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anabranch_coupons::records::{
    LedgerRow, LedgerTokens, RefusedDay, RowChange, RunKey, Unique, UserLedger, UsersLedger, part,
};
use anabranch_pipeline::error::Fault;
use anabranch_schemas::celebration::Occurrence;
use mysql_async::Row;

use super::MySqlLedger;
use super::cells::{
    Cells, LEDGER_COLUMNS, assignments, calendar_number, conditions, date_literal, ledger_values,
    number_literal, of_run_and_users, programme_literal,
};
use super::runs::RUN_COLUMNS;
use super::tables::Tables;
use crate::mysql::connection::push_number;

/// Rows from which their users are inserted as a list: fewer rows cost less than the set-up of a list.
const LISTED_ROWS_MIN: usize = 8;

/// The extent of a read of some users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// Everything, without a lock.
    Unlocked,
    /// Everything, with locks on the rows.
    Whole,
    /// Rows with locks, and the run without one; neither refusals nor claims.
    Rows,
}

/// Statements that read some users.
pub(super) struct UserQuery<'a> {
    tables: &'a Tables,
    run: &'a RunKey,
    extent: Extent,
    /// Users by part, in the order of locks.
    parts: BTreeMap<u64, BTreeSet<u64>>,
}

impl<'a> UserQuery<'a> {
    pub(super) fn of(tables: &'a Tables, run: &'a RunKey, users: &[u64], extent: Extent) -> Self {
        let mut parts: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for user in users {
            parts.entry(part(*user)).or_default().insert(*user);
        }
        Self { tables, run, extent, parts }
    }

    /// Returns the statements. After a lost attempt (`is_again`) they lock the token and wait for other issuers.
    pub(super) fn sql(&self, is_again: bool) -> String {
        let Self { tables, run, extent, parts } = self;
        let programme = programme_literal(run);
        let columns = LEDGER_COLUMNS.map(|column| format!("`{column}`")).join(",");
        let is_whole = *extent != Extent::Rows;
        let mut sql = String::new();
        for (part, users) in parts {
            let of_users = format!("`user_id` IN ({}) AND `programme` = {programme}", list(users));
            let (ledger, refusals) = (&tables.ledger[*part as usize], &tables.refusals[*part as usize]);
            let rows = format!("SELECT {columns} FROM {ledger} FORCE INDEX (PRIMARY) WHERE {of_users} ");
            sql.push_str(&rows);
            sql.push_str(match extent {
                Extent::Unlocked => "; ",
                Extent::Whole | Extent::Rows => "ORDER BY `user_id`, `occurrence` FOR UPDATE; ",
            });
            if is_whole {
                sql.push_str(&format!(
                    "SELECT `user_id`, `day`, `calendar`, `wave`, `reason` FROM {refusals} FORCE INDEX (PRIMARY) \
                     WHERE {of_users} AND `wave` IS NOT NULL; "
                ));
            }
        }
        if is_whole {
            sql.push_str(&format!(
                "SELECT `user_id`, `calendar`, `shards` FROM {} FORCE INDEX (PRIMARY) WHERE {} AND `user_id` IN ({}); ",
                tables.members,
                of_run_and_users(run),
                list(parts.values().flatten()),
            ));
        }
        let day = date_literal(run.day);
        sql.push_str(&format!(
            "SELECT {RUN_COLUMNS} FROM {} AS r WHERE r.`programme` = {programme} AND r.`day` = {day}; ",
            tables.runs,
        ));
        sql.push_str(&format!(
            "SELECT UTC_TIMESTAMP(6), `latest`, `previous` FROM {} WHERE `number` = 1{}",
            tables.tokens,
            if is_again { " FOR UPDATE" } else { "" }
        ));
        sql
    }

    /// Parses the ledger of these users.
    pub(super) fn ledger(&self, ledger: &MySqlLedger, mut sets: Vec<Vec<Row>>) -> Result<UsersLedger, Fault> {
        let row = sets.pop().and_then(|mut rows| rows.pop()).ok_or_else(|| ledger.without_tokens())?;
        let mut cells = Cells::of(row);
        let first = (cells.moment(), cells.number(), cells.optional_number());
        let (Some(now), Some(latest), Some(before)) = first else { return Err(ledger.odd("tokens")) };
        let tokens = LedgerTokens { latest: Unique(latest), before: before.map(Unique) };
        let is_whole = self.extent != Extent::Rows;
        let run = match sets.pop().unwrap_or_default().into_iter().next() {
            Some(row) => Some(Arc::new(ledger.day_run(&mut Cells::of(row))?)),
            None => None,
        };
        let user = |user: &u64| {
            let ledger = UserLedger {
                now,
                run: run.clone(),
                claims: BTreeMap::new(),
                rows: BTreeMap::new(),
                refusals: BTreeMap::new(),
            };
            (*user, ledger)
        };
        let mut users: BTreeMap<u64, UserLedger> = self.parts.values().flatten().map(user).collect();
        let claims = sets.pop_if(|_| is_whole).unwrap_or_default();
        fill(&mut users, claims, sets, is_whole).ok_or_else(|| ledger.odd("the ledger"))?;
        Ok(UsersLedger { tokens, users })
    }
}

/// Adds the answers to their users. `sets` are the rows of each part in turn, each followed by its refusals if
/// `has_refusals`.
fn fill(
    users: &mut BTreeMap<u64, UserLedger>,
    claims: Vec<Row>,
    sets: Vec<Vec<Row>>,
    has_refusals: bool,
) -> Option<()> {
    for row in claims {
        let mut cells = Cells::of(row);
        let (user, calendar) = (cells.parsed::<u64>()?, cells.calendar()?);
        users.get_mut(&user)?.claims.insert(calendar, cells.shards()?);
    }
    let mut sets = sets.into_iter();
    while let Some(rows) = sets.next() {
        let refusals = if has_refusals { sets.next()? } else { Vec::new() };
        for row in rows {
            let (user, occurrence, row) = Cells::of(row).ledger_row()?;
            users.get_mut(&user)?.rows.insert(occurrence, row);
        }
        for row in refusals {
            let mut cells = Cells::of(row);
            let (user, day, calendar) = (cells.parsed::<u64>()?, cells.parsed()?, cells.calendar()?);
            let refused = RefusedDay { wave: cells.parsed()?, reason: cells.reason()? };
            users.get_mut(&user)?.refusals.insert((day, calendar), refused);
        }
    }
    Some(())
}

/// Returns the statements that write the core's changes, the token last: its lock is held for the shortest time.
pub(super) fn changes(
    tables: &Tables,
    run: &RunKey,
    before: &UsersLedger,
    after: &UsersLedger,
) -> Vec<String> {
    let mut parts: BTreeMap<u64, PartChanges<'_>> = BTreeMap::new();
    let programme = programme_literal(run);
    for (user, after) in &after.users {
        let Some(before) = before.users.get(user) else { continue };
        parts.entry(part(*user)).or_default().add(*user, before, after, &programme);
    }
    let mut statements: Vec<String> =
        parts.iter().flat_map(|(part, changes)| changes.statements(tables, *part, &programme)).collect();
    if after.tokens != before.tokens {
        statements.push(replace_tokens(tables, before.tokens.latest, after.tokens, "UTC_TIMESTAMP(6)"));
    }
    statements
}

/// New rows of an occurrence that differ in their users only, as most new rows of a message do.
struct NewRows<'a> {
    occurrence: Occurrence,
    row: &'a LedgerRow,
    users: Vec<u64>,
}

impl NewRows<'_> {
    /// Returns the rows as a selection from the list of their users: the server parses all other values once, and not
    /// once for each row.
    fn selection(&self, programme: &str) -> String {
        format!(
            "SELECT j.`user`{} FROM JSON_TABLE('[{}]', '$[*]' COLUMNS (`user` BIGINT UNSIGNED PATH '$')) AS j",
            ledger_values(self.occurrence, self.row, programme),
            list(&self.users)
        )
    }

    /// Returns the rows as `(…),(…)`.
    fn values(&self, programme: &str) -> String {
        let (values, mut sql) = (ledger_values(self.occurrence, self.row, programme), String::new());
        for user in &self.users {
            separate(&mut sql);
            sql.push('(');
            push_number(&mut sql, *user);
            sql.push_str(&values);
            sql.push(')');
        }
        sql
    }
}

/// Changes of the rows of one part; lists of rows are SQL.
#[derive(Default)]
struct PartChanges<'a> {
    new_rows: Vec<NewRows<'a>>,
    /// Users whose row of an occurrence gets these assignments: a step changes most rows of a message alike.
    changed: BTreeMap<(Occurrence, String), Vec<u64>>,
    refusals: String,
    letters: String,
}

impl<'a> PartChanges<'a> {
    fn add(&mut self, user: u64, before: &UserLedger, after: &'a UserLedger, programme: &str) {
        for (occurrence, row) in &after.rows {
            let known = before.rows.get(occurrence);
            if known == Some(row) {
                continue;
            }
            match known {
                None => self.add_new(user, *occurrence, row),
                Some(known) => {
                    let changed = (*occurrence, assignments(known, row));
                    self.changed.entry(changed).or_default().push(user);
                }
            }
            let is_letter = row.is_letter();
            let was_letter = known.is_some_and(LedgerRow::is_letter);
            // An older version closed the entry of a letter that was sent again, so each change of state opens it anew.
            let has_moved = known.is_some_and(|known| known.state != row.state);
            if is_letter != was_letter || (is_letter && has_moved) {
                separate(&mut self.letters);
                self.letters
                    .push_str(&format!("({programme},{user},'{occurrence}',{})", u8::from(is_letter)));
            }
        }
        for ((day, calendar), refused) in &after.refusals {
            if before.refusals.get(&(*day, *calendar)) != Some(refused) {
                let (calendar, reason) = (calendar_number(*calendar), refused.reason.as_str());
                separate(&mut self.refusals);
                self.refusals.push_str(&format!(
                    "({user},{programme},'{day}',{calendar},{},'{reason}')",
                    refused.wave
                ));
            }
        }
        let withdrawn = before.refusals.iter().filter(|(key, _)| !after.refusals.contains_key(key));
        for ((day, calendar), refused) in withdrawn {
            let (calendar, reason) = (calendar_number(*calendar), refused.reason.as_str());
            separate(&mut self.refusals);
            self.refusals.push_str(&format!("({user},{programme},'{day}',{calendar},NULL,'{reason}')"));
        }
    }

    fn add_new(&mut self, user: u64, occurrence: Occurrence, row: &'a LedgerRow) {
        let mut known = self.new_rows.iter_mut().rev();
        match known.find(|new| new.occurrence == occurrence && new.row == row) {
            Some(alike) => alike.users.push(user),
            None => self.new_rows.push(NewRows { occurrence, row, users: vec![user] }),
        }
    }

    /// Returns the parts of an INSERT that name the new rows, in the order of their least users.
    fn new_rows(&self, programme: &str) -> Vec<String> {
        let is_listed = |new: &NewRows<'_>| new.users.len() >= LISTED_ROWS_MIN;
        // Users were added in their order, so the groups stand in that of their first ones.
        let inserts = self.new_rows.chunk_by(|one, next| !is_listed(one) && !is_listed(next));
        let insert = |rows: &[NewRows<'_>]| match rows {
            [new] if is_listed(new) => new.selection(programme),
            few => {
                let values: Vec<String> = few.iter().map(|new| new.values(programme)).collect();
                format!("VALUES {}", values.join(","))
            }
        };
        inserts.map(insert).collect()
    }

    fn statements(&self, tables: &Tables, part: u64, programme: &str) -> Vec<String> {
        let Self { changed, refusals, letters, .. } = self;
        let ledger = &tables.ledger[part as usize];
        let mut statements = Vec::new();
        // A row that another process has inserted meanwhile is a duplicate, and the transaction begins again.
        for rows in self.new_rows(programme) {
            let columns = LEDGER_COLUMNS.map(|column| format!("`{column}`")).join(",");
            statements.push(format!("INSERT INTO {ledger} ({columns},`programme`) {rows}"));
        }
        // The transaction holds the locks of these rows.
        for ((occurrence, set), users) in changed.iter().filter(|((_, set), _)| !set.is_empty()) {
            statements.push(format!(
                "UPDATE {ledger} FORCE INDEX (PRIMARY) SET {set} WHERE `user_id` IN ({}) \
                 AND `programme` = {programme} AND `occurrence` = '{occurrence}'",
                list(users)
            ));
        }
        if !refusals.is_empty() {
            statements.push(format!(
                "INSERT INTO {} (`user_id`,`programme`,`day`,`calendar`,`wave`,`reason`) VALUES {refusals} \
                 ON DUPLICATE KEY UPDATE `wave` = VALUES(`wave`), `reason` = VALUES(`reason`)",
                tables.refusals[part as usize]
            ));
        }
        if !letters.is_empty() {
            statements.push(format!(
                "INSERT INTO {} (`programme`,`user_id`,`occurrence`,`is_open`) VALUES {letters} \
                 ON DUPLICATE KEY UPDATE `is_open` = VALUES(`is_open`)",
                tables.letters
            ));
        }
        statements
    }
}

/// Returns the statements that change rows, each only while it has its expected content.
pub(super) fn replacements(tables: &Tables, run: &RunKey, rows: &[RowChange]) -> String {
    let programme = programme_literal(run);
    // Rows are compared and not their SQL: nearly all rows of a call change alike, and their SQL is written once.
    let mut alike: Vec<(u64, &RowChange, Vec<u64>)> = Vec::new();
    for change in rows {
        let of_part = part(change.user);
        let mut known = alike.iter_mut().rev();
        match known.find(|(part, known, _)| *part == of_part && known.is_alike(change)) {
            Some((.., users)) => users.push(change.user),
            None => alike.push((of_part, change, vec![change.user])),
        }
    }
    alike.sort_by_key(|(part, change, _)| (*part, change.occurrence));
    let statements = alike.iter().map(|(part, RowChange { occurrence, before, after, .. }, users)| {
        format!(
            "UPDATE {} FORCE INDEX (PRIMARY) SET {} WHERE `user_id` IN ({}) \
             AND `programme` = {programme} AND `occurrence` = '{occurrence}' AND {}",
            tables.ledger[*part as usize],
            assignments(before, after),
            list(users),
            conditions(before)
        )
    });
    statements.collect::<Vec<_>>().join("; ")
}

/// Changes the rows in the ledger that was read if each stands as its `before`; returns whether it did.
pub(super) fn replace(ledger: &mut UsersLedger, rows: &[RowChange]) -> bool {
    let row_of = |change: &RowChange| ledger.users.get(&change.user)?.rows.get(&change.occurrence);
    let stand = rows.iter().all(|change| row_of(change) == Some(&change.before));
    for change in rows.iter().filter(|_| stand) {
        if let Some(user) = ledger.users.get_mut(&change.user) {
            user.rows.insert(change.occurrence, change.after.clone());
        }
    }
    stand
}

/// Returns the statement that replaces the tokens and the time of the last issue; it fails when the last token is not
/// the expected one.
pub(super) fn replace_tokens(
    tables: &Tables,
    expected: Unique,
    tokens: LedgerTokens,
    issued_at: &str,
) -> String {
    let before = tokens.before.map_or("NULL".to_owned(), |before| number_literal(before.0));
    format!(
        "UPDATE {} SET `previous` = {before}, `latest` = IF(`latest` = {}, {}, NULL), \
         `issued_at` = {issued_at} WHERE `number` = 1",
        tables.tokens,
        number_literal(expected.0),
        number_literal(tokens.latest.0)
    )
}

fn separate(sql: &mut String) {
    if !sql.is_empty() {
        sql.push(',');
    }
}

/// Returns users as a list; an empty list matches no user.
fn list<'u>(users: impl IntoIterator<Item = &'u u64>) -> String {
    let mut list = String::new();
    for user in users {
        separate(&mut list);
        push_number(&mut list, *user);
    }
    if list.is_empty() { "NULL".to_owned() } else { list }
}

#[cfg(test)]
mod tests {
    use anabranch_coupons::records::{FailedOutcome, Reason, RowState};
    use anabranch_schemas::celebration::Calendar;

    use super::*;

    const OCCURRENCE: Occurrence = Occurrence { calendar: Calendar::Solar, year: 2027 };

    fn row(tries: u32) -> LedgerRow {
        LedgerRow {
            state: RowState::Settled,
            day: jiff::civil::date(2027, 5, 4),
            calendar: Calendar::Solar,
            attempt: Unique(1),
            changed_at: jiff::Timestamp::UNIX_EPOCH,
            tries,
            coupon: "cake".into(),
            version: None,
            by_hand: false,
            absent_since: None,
        }
    }

    #[test]
    fn a_letter_that_an_older_version_sent_again_is_listed_once_more_when_its_state_changes() {
        let user = |state| UserLedger {
            now: jiff::Timestamp::UNIX_EPOCH,
            run: None,
            claims: BTreeMap::new(),
            rows: BTreeMap::from([(OCCURRENCE, LedgerRow { state, by_hand: true, ..row(0) })]),
            refusals: BTreeMap::new(),
        };
        let [sent, failed, settled] = [
            RowState::Refused(Reason::OtherDay),
            RowState::Failed(FailedOutcome::NothingGiven),
            RowState::Settled,
        ]
        .map(user);
        for (before, after, expected) in [
            (&sent, &failed, "('birthday',7,'solar:2027',1)"),
            (&sent, &settled, "('birthday',7,'solar:2027',0)"),
            (&sent, &sent, ""),
        ] {
            let mut changes = PartChanges::default();
            changes.add(7, before, after, "'birthday'");
            assert_eq!(changes.letters, expected);
        }
    }

    #[test]
    fn groups_of_new_rows_are_inserted_in_the_order_of_their_least_users() {
        let (one, other, many, last) = (row(1), row(2), row(3), row(4));
        let occurrence = OCCURRENCE;
        let mut changes = PartChanges::default();
        changes.add_new(11, occurrence, &one);
        changes.add_new(12, occurrence, &other);
        for user in 20..20 + LISTED_ROWS_MIN as u64 {
            changes.add_new(user, occurrence, &many);
        }
        changes.add_new(90, occurrence, &one);
        changes.add_new(91, occurrence, &last);
        let inserts = changes.new_rows("'birthday'");
        let begins = ["VALUES (11,", "SELECT j.", "VALUES (91,"];
        assert_eq!(inserts.len(), begins.len(), "{inserts:?}");
        assert!(inserts.iter().zip(begins).all(|(insert, begin)| insert.starts_with(begin)), "{inserts:?}");
        assert!(inserts[0].contains("(12,") && inserts[0].contains("(90,"), "{inserts:?}");
    }
}
