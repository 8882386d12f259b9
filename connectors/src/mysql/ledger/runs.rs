//! Reads and writes of transactions about a run or a programme, as SQL.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use anabranch_coupons::programme::{Programme, ProgrammeVersion};
use anabranch_coupons::records::{
    Cursor, DayRun, LedgerTokens, Member, ProgrammeLedger, RunKey, RunLedger, Unique,
};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::celebration::{Calendar, LeapDayRule};
use anabranch_schemas::shard::ShardId;
use mysql_async::Row;

use super::MySqlLedger;
use super::cells::{
    Cells, calendar_number, date_literal, name_literal, number_literal, of_run_and_users,
    optional_moment_literal, programme_literal,
};
use super::tables::Tables;
use crate::mysql::connection::{push_bytes, push_digits, push_number};

/// Rules of a run, as text and parsed.
#[derive(Debug)]
pub(super) struct KnownRules {
    text: String,
    rules: Programme,
    version: ProgrammeVersion,
}

/// Columns of a run, in the order of reads.
pub(super) const RUN_COLUMNS: &str = "r.`rules`, r.`revision`, r.`sweep`, r.`sweeps`, r.`frozen`, \
     r.`cursor_table`, r.`cursor_after`, r.`members`, r.`hash_sum`, r.`misplaced`, r.`is_after_barrier`, \
     r.`is_closed`, r.`reconciliation`, r.`reconciliation_ended_at`";

/// Bytes of a member as JSON, with one shard table.
const MEMBER_BYTES: usize = 44;

/// Hexadecimal digits of a shard table's id.
const SHARD_DIGITS: usize = 2 * size_of::<u64>();

/// Digits of one member's shard tables from which a column of utf8mb4 nears the limit of a row.
const UTF8_DIGITS_MAX: usize = 4_096;

/// Members of a cohort, with the shard tables that claim them.
pub(super) type KnownMembers = BTreeMap<Member, Vec<ShardId>>;

/// Locks and reads a run, and reads its members among the offered ones.
pub(super) fn read_run(tables: &Tables, run: &RunKey, offered: &[(Member, Vec<ShardId>)]) -> String {
    let (programme, day) = (programme_literal(run), date_literal(run.day));
    format!(
        "SELECT {RUN_COLUMNS} FROM {} AS r WHERE `programme` = {programme} AND `day` = {day} FOR UPDATE; {}; \
         SELECT UTC_TIMESTAMP(6), `latest`, `previous` FROM {} WHERE `number` = 1",
        tables.runs,
        read_members(tables, run, offered),
        tables.tokens
    )
}

/// Reads the members of a run between the first and the last user of the offered ones.
pub(super) fn read_members(tables: &Tables, run: &RunKey, offered: &[(Member, Vec<ShardId>)]) -> String {
    let users = || offered.iter().map(|(member, _)| member.user);
    // The users of a page of a table are close to each other: their range holds few others.
    let range = match (users().min(), users().max()) {
        (Some(first), Some(last)) => format!("`user_id` BETWEEN {first} AND {last}"),
        _ => "FALSE".to_owned(),
    };
    format!(
        "SELECT `user_id`, `calendar`, `shards` FROM {} FORCE INDEX (PRIMARY) WHERE {} AND {range}",
        tables.members,
        of_run_and_users(run)
    )
}

impl MySqlLedger {
    /// Parses the answer to [`read_run`].
    pub(super) fn run_ledger(
        &self,
        offered: &[(Member, Vec<ShardId>)],
        sets: Vec<Vec<Row>>,
    ) -> Result<(RunLedger, KnownMembers), Fault> {
        let Ok([runs, members, mut tokens]) = <[Vec<Row>; 3]>::try_from(sets) else {
            return Err(self.odd("the run"));
        };
        let mut known = KnownMembers::new();
        for row in members {
            let mut cells = Cells::of(row);
            let member = (cells.parsed(), cells.calendar(), cells.shards());
            let (Some(user), Some(calendar), Some(shards)) = member else {
                return Err(self.odd("the cohort"));
            };
            known.insert(Member { user, calendar }, shards);
        }
        let mut cells = Cells::of(tokens.pop().ok_or_else(|| self.without_tokens())?);
        let now = cells.moment().ok_or_else(|| self.odd("tokens"))?;
        let tokens = tokens_of(&mut cells).ok_or_else(|| self.odd("tokens"))?;
        let run = match runs.into_iter().next() {
            Some(row) => Some(self.day_run(&mut Cells::of(row))?),
            None => None,
        };
        let present = offered.iter().map(|(member, _)| *member).filter(|member| known.contains_key(member));
        Ok((RunLedger { now, run, tokens, present: present.collect(), added: Vec::new() }, known))
    }

    /// Parses the run whose columns come next.
    pub(super) fn day_run(&self, cells: &mut Cells) -> Result<DayRun, Fault> {
        let odd = || self.odd("a run");
        let (rules, version) = self.rules_of(cells.text().ok_or_else(odd)?)?;
        let read = |cells: &mut Cells| {
            Some(DayRun {
                rules,
                version: Some(version),
                revision: Unique(cells.number()?),
                sweeps: cells.sweeps()?,
                frozen: cells.parsed()?,
                cursor: Cursor { table: cells.parsed()?, after: cells.optional()? },
                count: cells.parsed()?,
                sum: cells.number()?,
                misplaced: cells.parsed()?,
                is_after_barrier: cells.flag()?,
                is_closed: cells.flag()?,
                reconciliation: cells.reconciliation()?,
            })
        };
        read(cells).ok_or_else(odd)
    }

    /// Parses rules, unless they are equal to the last ones; returns them with their version.
    fn rules_of(&self, text: String) -> Result<(Programme, ProgrammeVersion), Fault> {
        let mut known = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.as_ref().filter(|known| known.text == text) {
            return Ok((known.rules.clone(), known.version));
        }
        let (rules, version) = (Programme::from_text(&text)?, ProgrammeVersion::of(&text));
        *known = Some(KnownRules { text, rules: rules.clone(), version });
        Ok((rules, version))
    }

    pub(super) fn tokens_of(&self, sets: Vec<Vec<Row>>) -> Result<LedgerTokens, Fault> {
        let row = sets.into_iter().flatten().next().ok_or_else(|| self.without_tokens())?;
        tokens_of(&mut Cells::of(row)).ok_or_else(|| self.odd("tokens"))
    }

    /// Parses the answer to [`read_programme`].
    pub(super) fn programme_ledger(&self, sets: Vec<Vec<Row>>) -> Result<ProgrammeLedger, Fault> {
        let odd = || self.odd("a programme");
        let mut sets = sets.into_iter();
        let (Some(programme), Some(open), Some(now)) = (sets.next(), sets.next(), sets.next()) else {
            return Err(odd());
        };
        let now = now.into_iter().next().and_then(|row| Cells::of(row).moment()).ok_or_else(odd)?;
        let days = open.into_iter().map(|row| Cells::of(row).parsed());
        let open = days.collect::<Option<Vec<_>>>().ok_or_else(odd)?;
        let (mut next, mut leap_days) = (None, BTreeMap::new());
        if let Some(row) = programme.into_iter().next() {
            let mut cells = Cells::of(row);
            next = cells.optional().ok_or_else(odd)?;
            let text = cells.text().ok_or_else(odd)?;
            leap_days = serde_json::from_str::<BTreeMap<i16, LeapDayRule>>(&text)
                .map_err(|error| odd().caused_by(error))?;
        }
        Ok(ProgrammeLedger { now, next, leap_days, open, begun: Vec::new() })
    }
}

fn tokens_of(cells: &mut Cells) -> Option<LedgerTokens> {
    let (latest, before) = (cells.number()?, cells.optional_number()?);
    Some(LedgerTokens { latest: Unique(latest), before: before.map(Unique) })
}

/// Returns the statements that write the core's changes of a run.
pub(super) fn run_changes(
    tables: &Tables,
    key: &RunKey,
    before: &RunLedger,
    after: &RunLedger,
    known: &KnownMembers,
) -> Vec<String> {
    let mut statements = add_members(tables, key, &after.added, known);
    let (programme, day) = (programme_literal(key), date_literal(key.day));
    if let Some(run) = after.run.as_ref().filter(|run| before.run.as_ref() != Some(run)) {
        statements.push(format!(
            "UPDATE {} SET {} WHERE `programme` = {programme} AND `day` = {day}",
            tables.runs,
            run_columns(run).map(|(column, value)| format!("`{column}` = {value}")).join(", ")
        ));
    }
    statements
}

/// Returns the statements that add members. Without known ones, a member that another transaction has added meanwhile
/// is a duplicate key.
pub(super) fn add_members(
    tables: &Tables,
    key: &RunKey,
    added: &[(Member, Vec<ShardId>)],
    known: &KnownMembers,
) -> Vec<String> {
    let (programme, day) = (programme_literal(key), date_literal(key.day));
    let or_extend = match known.is_empty() {
        true => "",
        false => " ON DUPLICATE KEY UPDATE `shards` = VALUES(`shards`)",
    };
    let mut statements = Vec::new();
    for calendar in Calendar::ALL {
        let (rows, digits) = member_rows(added, calendar, known);
        if rows.is_empty() {
            continue;
        }
        // For the server a list of JSON costs three quarters of as many rows of `VALUES`, if its rows have no column
        // that all share and no column is wider than needed. JSON is utf8mb4, so another character set would be a
        // conversion for each row; a text instead of a date would be one too. Only a very wide column must be ASCII.
        let character_set = if digits > UTF8_DIGITS_MAX { "ascii" } else { "utf8mb4" };
        statements.push(format!(
            "INSERT INTO {} (`programme`,`day`,`user_id`,`calendar`,`shards`) \
             SELECT {programme}, DATE {day}, j.`user`, {}, UNHEX(j.`shards`) \
             FROM JSON_TABLE('[{rows}]', '$[*]' COLUMNS (`user` BIGINT UNSIGNED PATH '$[0]', \
             `shards` VARCHAR({digits}) CHARACTER SET {character_set} PATH '$[1]')) AS j{or_extend}",
            tables.members,
            calendar_number(calendar)
        ));
    }
    statements
}

/// Returns the members of a calendar that a transaction adds, or whose shard tables it extends: users and shard tables
/// as JSON, and the most digits of one member's shard tables.
///
/// A freeze writes millions of them: nothing is formatted and little is allocated for each.
fn member_rows(
    added: &[(Member, Vec<ShardId>)],
    calendar: Calendar,
    known: &KnownMembers,
) -> (String, usize) {
    let mut added: Vec<_> = added.iter().filter(|(member, _)| member.calendar == calendar).collect();
    added.sort_by_key(|(member, _)| *member);
    let mut rows = String::with_capacity(added.len() * MEMBER_BYTES);
    let (mut shards, mut digits) = (Vec::<ShardId>::new(), 0);
    for of_member in added.chunk_by(|(one, _), (other, _)| one == other) {
        let member = of_member[0].0;
        let before = known.get(&member);
        shards.clear();
        shards.extend(before.into_iter().chain(of_member.iter().map(|(_, shards)| shards)).flatten());
        shards.sort_unstable();
        shards.dedup();
        if before == Some(&shards) {
            continue;
        }
        rows.push_str(if rows.is_empty() { "[" } else { ",[" });
        push_number(&mut rows, member.user);
        rows.push_str(",\"");
        shards.iter().for_each(|shard| push_digits(&mut rows, &shard.as_u64().to_be_bytes()));
        digits = digits.max(shards.len() * SHARD_DIGITS);
        rows.push_str("\"]");
    }
    (rows, digits.max(1))
}

/// Returns the columns of a run that change, with their values.
fn run_columns(run: &DayRun) -> [(&'static str, String); 13] {
    let (newest, earlier) = sweep_literals(&run.sweeps);
    let after = run.cursor.after.map_or("NULL".to_owned(), |after| after.to_string());
    let reconciliation = run.reconciliation.as_ref();
    [
        ("revision", number_literal(run.revision.0)),
        ("sweep", newest),
        ("sweeps", earlier),
        ("frozen", run.frozen.to_string()),
        ("cursor_table", run.cursor.table.to_string()),
        ("cursor_after", after),
        ("members", run.count.to_string()),
        ("hash_sum", number_literal(run.sum)),
        ("misplaced", run.misplaced.to_string()),
        ("is_after_barrier", u8::from(run.is_after_barrier).to_string()),
        ("is_closed", u8::from(run.is_closed).to_string()),
        ("reconciliation", reconciliation.map_or("NULL".to_owned(), |relied_on| name_literal(&relied_on.id))),
        (
            "reconciliation_ended_at",
            optional_moment_literal(reconciliation.map(|relied_on| relied_on.ended_at)),
        ),
    ]
}

/// Returns the number of the newest sweep, and those of the earlier ones in one text of bytes.
fn sweep_literals(sweeps: &[Unique]) -> (String, String) {
    let Some((newest, earlier)) = sweeps.split_last() else { return (number_literal(0), "NULL".to_owned()) };
    let bytes: Vec<u8> = earlier.iter().flat_map(|number| number.0.to_be_bytes()).collect();
    let mut literal = String::new();
    push_bytes(&mut literal, &bytes);
    (number_literal(newest.0), literal)
}

pub(super) fn read_programme(tables: &Tables, programme: &Arc<str>) -> String {
    let programme = name_literal(programme);
    format!(
        "SELECT `next_day`, `leap_days` FROM {} WHERE `programme` = {programme} FOR UPDATE; \
         SELECT `day` FROM {} WHERE `programme` = {programme} AND `is_closed` = 0 ORDER BY `day`; \
         SELECT UTC_TIMESTAMP(6)",
        tables.programmes, tables.runs
    )
}

/// Returns the statements that begin runs. An existing run stays as it is.
pub(super) fn programme_changes(
    tables: &Tables,
    programme: &Arc<str>,
    before: &ProgrammeLedger,
    after: &ProgrammeLedger,
) -> Result<Vec<String>, Fault> {
    let name = name_literal(programme);
    let mut statements = Vec::new();
    for (day, run) in &after.begun {
        let mut rules = String::from("_utf8mb4 ");
        push_bytes(&mut rules, run.rules.to_text()?.as_bytes());
        let (columns, values): (Vec<String>, Vec<String>) =
            run_columns(run).into_iter().map(|(column, value)| (format!("`{column}`"), value)).unzip();
        statements.push(format!(
            "INSERT INTO {} (`programme`, `day`, `rules`, {}) VALUES ({name}, {}, {rules}, {}) \
             ON DUPLICATE KEY UPDATE `day` = VALUES(`day`)",
            tables.runs,
            columns.join(", "),
            date_literal(*day),
            values.join(", ")
        ));
    }
    let leap_days = serde_json::to_string(&after.leap_days).map_err(|error| {
        Fault::new(Code::TargetRejected, format!("programme {programme}"), "its rules cannot be written")
            .caused_by(error)
    })?;
    let (table, next) = (&tables.programmes, after.next.map_or("NULL".to_owned(), date_literal));
    let leap_days = name_literal(&leap_days);
    // The first insert decides: the second transaction reads again.
    if before.next == after.next && before.leap_days == after.leap_days {
        return Ok(statements);
    }
    if before.next.is_none() {
        statements.push(format!(
            "INSERT INTO {table} (`programme`, `next_day`, `leap_days`) VALUES ({name}, {next}, {leap_days})"
        ));
    } else {
        statements.push(format!(
            "UPDATE {table} SET `next_day` = {next}, `leap_days` = {leap_days} WHERE `programme` = {name}"
        ));
    }
    Ok(statements)
}
