//! Reads and writes of a transaction about users: multi-row statements, one for each part of the users.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anabranch_coupons::records::{
    LedgerTokens, RefusedDay, RowChange, RowState, RunKey, Unique, UserLedger, UsersLedger, part,
};
use anabranch_pipeline::error::Fault;
use anabranch_schemas::celebration::Occurrence;
use mysql_async::Row;

use super::MySqlLedger;
use super::cells::{
    Cells, LEDGER_COLUMNS, assignments, calendar_number, conditions, date_literal, number_literal,
    of_run_and_users, programme_literal, push_ledger_row,
};
use super::runs::RUN_COLUMNS;
use super::tables::Tables;
use crate::mysql::connection::push_number;

/// The extent of a read of some users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// Everything, without a lock.
    Unlocked,
    /// Everything, with locks on the rows.
    Whole,
    /// Rows only, with locks; neither refusals nor claims nor the run.
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
            let (users, day) = (parts.values().flatten(), date_literal(run.day));
            sql.push_str(&format!(
                "SELECT `user_id`, `calendar`, `shards` FROM {} FORCE INDEX (PRIMARY) WHERE {} AND `user_id` IN ({}); \
                 SELECT {RUN_COLUMNS} FROM {} AS r WHERE r.`programme` = {programme} AND r.`day` = {day}; ",
                tables.members,
                of_run_and_users(run),
                list(users),
                tables.runs,
            ));
        }
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
        let run = match sets.pop_if(|_| is_whole).unwrap_or_default().into_iter().next() {
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
    let mut parts: BTreeMap<u64, PartChanges> = BTreeMap::new();
    let programme = programme_literal(run);
    for (user, after) in &after.users {
        let Some(before) = before.users.get(user) else { continue };
        parts.entry(part(*user)).or_default().add(*user, before, after, &programme);
    }
    let mut statements: Vec<String> =
        parts.iter().flat_map(|(part, changes)| changes.statements(tables, *part, &programme)).collect();
    if after.tokens != before.tokens {
        statements.push(replace_tokens(tables, before.tokens, after.tokens));
    }
    statements
}

/// Lists of rows of one part, as SQL.
#[derive(Default)]
struct PartChanges {
    new_rows: String,
    /// Users whose row of an occurrence gets these assignments: a step changes most rows of a message alike.
    changed: BTreeMap<(Occurrence, String), Vec<u64>>,
    refusals: String,
    letters: String,
}

impl PartChanges {
    fn add(&mut self, user: u64, before: &UserLedger, after: &UserLedger, programme: &str) {
        for (occurrence, row) in &after.rows {
            let known = before.rows.get(occurrence);
            if known == Some(row) {
                continue;
            }
            match known {
                None => {
                    separate(&mut self.new_rows);
                    push_ledger_row(&mut self.new_rows, user, *occurrence, row, programme);
                }
                Some(known) => {
                    let changed = (*occurrence, assignments(known, row));
                    self.changed.entry(changed).or_default().push(user);
                }
            }
            let is_letter = matches!(row.state, RowState::Failed(_));
            let was_letter = known.is_some_and(|row| matches!(row.state, RowState::Failed(_)));
            if is_letter != was_letter {
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

    fn statements(&self, tables: &Tables, part: u64, programme: &str) -> Vec<String> {
        let Self { new_rows, changed, refusals, letters } = self;
        let ledger = &tables.ledger[part as usize];
        let mut statements = Vec::new();
        // A row that another process has inserted meanwhile is a duplicate, and the transaction begins again.
        if !new_rows.is_empty() {
            let columns = LEDGER_COLUMNS.map(|column| format!("`{column}`")).join(",");
            statements.push(format!("INSERT INTO {ledger} ({columns},`programme`) VALUES {new_rows}"));
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
    let mut alike: BTreeMap<(u64, Occurrence, String, String), Vec<u64>> = BTreeMap::new();
    for RowChange { user, occurrence, before, after } in rows {
        let change = (part(*user), *occurrence, assignments(before, after), conditions(before));
        alike.entry(change).or_default().push(*user);
    }
    let statements = alike.iter().map(|((part, occurrence, set, is_before), users)| {
        format!(
            "UPDATE {} FORCE INDEX (PRIMARY) SET {set} WHERE `user_id` IN ({}) \
             AND `programme` = {programme} AND `occurrence` = '{occurrence}' AND {is_before}",
            tables.ledger[*part as usize],
            list(users)
        )
    });
    statements.collect::<Vec<_>>().join("; ")
}

/// Returns the statement that replaces the tokens; it fails when the last token is not the expected one.
pub(super) fn replace_tokens(tables: &Tables, expected: LedgerTokens, tokens: LedgerTokens) -> String {
    let before = tokens.before.map_or("NULL".to_owned(), |before| number_literal(before.0));
    format!(
        "UPDATE {} SET `previous` = {before}, `latest` = IF(`latest` = {}, {}, NULL) WHERE `number` = 1",
        tables.tokens,
        number_literal(expected.latest.0),
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
