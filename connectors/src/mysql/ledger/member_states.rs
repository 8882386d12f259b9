//! Pages for sweeps and operators: members with their ledger rows, and dead letters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anabranch_coupons::records::{
    CouponKey, LedgerRow, Member, MemberState, PARTS, RefusedDay, RunKey, part,
};
use anabranch_schemas::celebration::{Calendar, Occurrence};
use anabranch_schemas::shard::ShardId;
use jiff::Timestamp;
use mysql_async::Row;

use super::cells::{
    Cells, LEDGER_COLUMNS, calendar_number, date_literal, members_after, name_literal, of_run_and_users,
    programme_literal,
};
use super::tables::Tables;

/// Members of a page, with the shard tables in the cohort; `None` = the cohort does not have the user.
pub(super) type Page = BTreeMap<Member, Option<Vec<ShardId>>>;

/// Selects the next members of the cohort, and the users between them that have a row of the day but no membership.
///
/// There are few of the latter, so a limit would never end their scan; the last member of a full page ends it.
pub(super) fn read_members(tables: &Tables, run: &RunKey, after: Option<Member>, limit: usize) -> String {
    let (programme, day) = (programme_literal(run), date_literal(run.day));
    let after = members_after(after);
    let calendar = "(l.`occurrence` LIKE 'lunar%')";
    let strangers = tables.ledger.iter().map(|ledger| {
        let from = after.replace("`calendar`", calendar).replace("`user_id`", "l.`user_id`");
        format!(
            "(SELECT l.`user_id`, {calendar} AS `calendar` FROM {ledger} AS l FORCE INDEX (`of_day`) LEFT JOIN {} AS m \
             ON m.`programme` = {programme} AND m.`day` = {day} AND m.`user_id` = l.`user_id` \
             AND m.`calendar` = {calendar} WHERE {} AND l.`user_id` <= @anabranch_last{from} AND m.`user_id` IS NULL \
             ORDER BY l.`user_id`, `calendar` LIMIT {limit})",
            tables.members,
            of_run_and_users(run).replace("`programme`", "l.`programme`").replace("`day`", "l.`day`")
        )
    });
    let strangers: Vec<String> = strangers.collect();
    let members = format!(
        "FROM {} WHERE `programme` = {programme} AND `day` = {day}{after} ORDER BY `user_id`, `calendar`",
        tables.members
    );
    format!(
        "SELECT UTC_TIMESTAMP(6); SELECT `user_id`, `calendar`, `shards` {members} LIMIT {limit}; \
         SET @anabranch_last = IFNULL((SELECT `user_id` {members} LIMIT {}, 1), {}); {}",
        limit.saturating_sub(1),
        u64::MAX,
        strangers.join(" UNION ALL ")
    )
}

/// Parses the page of [`read_members`], with the server's clock.
pub(super) fn members(sets: Vec<Vec<Row>>, limit: usize) -> Option<(Timestamp, Page)> {
    let [clock, members, strangers] = <[Vec<Row>; 3]>::try_from(sets).ok()?;
    let now = Cells::of(clock.into_iter().next()?).moment()?;
    let mut page = Page::new();
    for (rows, is_member) in [(members, true), (strangers, false)] {
        for row in rows {
            let mut cells = Cells::of(row);
            let member = Member { user: cells.parsed()?, calendar: cells.calendar()? };
            let shards = if is_member { Some(cells.shards()?) } else { None };
            page.entry(member).or_insert(shards);
        }
    }
    // Both lists continue after the last member of a full page.
    if let Some(next) = page.keys().nth(limit).copied() {
        page.split_off(&next);
    }
    Some((now, page))
}

/// Selects ledger rows and refusals of a page of members.
pub(super) fn read(tables: &Tables, run: &RunKey, page: &Page) -> String {
    let (programme, day) = (programme_literal(run), date_literal(run.day));
    let columns = LEDGER_COLUMNS.map(|column| format!("`{column}`")).join(",");
    let occurrences: BTreeSet<String> = [Calendar::Solar, Calendar::Lunar]
        .into_iter()
        .filter_map(|calendar| Occurrence::of(calendar, run.day))
        .map(|occurrence| format!("'{occurrence}'"))
        .collect();
    let occurrences = occurrences.into_iter().collect::<Vec<_>>().join(",");
    let mut parts: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for member in page.keys() {
        parts.entry(part(member.user)).or_default().push(member.user.to_string());
    }
    let mut statements = Vec::new();
    for (part, users) in parts {
        let of_users = format!("`user_id` IN ({}) AND `programme` = {programme}", users.join(","));
        statements.push(format!(
            "SELECT {columns} FROM {} FORCE INDEX (PRIMARY) WHERE {of_users} AND `occurrence` IN ({occurrences}); \
             SELECT `user_id`, `calendar`, `wave`, `reason` FROM {} \
             WHERE {of_users} AND `day` = {day} AND `wave` IS NOT NULL",
            tables.ledger[part as usize], tables.refusals[part as usize]
        ));
    }
    if statements.is_empty() { "DO 0".to_owned() } else { statements.join("; ") }
}

/// Joins the members of a page with their rows and refusals.
pub(super) fn member_states(run: &RunKey, page: &Page, sets: Vec<Vec<Row>>) -> Option<Vec<MemberState>> {
    let (mut rows, mut refusals) = (BTreeMap::new(), BTreeMap::new());
    let mut sets = sets.into_iter();
    while let (Some(ledger), Some(refused)) = (sets.next(), sets.next()) {
        for row in ledger {
            let (user, occurrence, row) = Cells::of(row).ledger_row()?;
            rows.insert((user, occurrence), row);
        }
        for row in refused {
            let mut cells = Cells::of(row);
            let member = Member { user: cells.parsed()?, calendar: cells.calendar()? };
            refusals.insert(member, RefusedDay { wave: cells.parsed()?, reason: cells.reason()? });
        }
    }
    let member_state = |(member, shards): (&Member, &Option<Vec<ShardId>>)| {
        let occurrence = Occurrence::of(member.calendar, run.day)?;
        Some(MemberState {
            member: *member,
            is_member: shards.is_some(),
            shards: shards.clone().unwrap_or_default(),
            row: rows.remove(&(member.user, occurrence)),
            refused: refusals.remove(member),
        })
    };
    page.iter().map(member_state).collect()
}

/// Selects the next open letters: joins those of each part with the part's ledger table.
///
/// The user of the last letter of a full page ends the scan of each part.
pub(super) fn read_letters(
    tables: &Tables,
    programme: &Arc<str>,
    after: Option<&CouponKey>,
    limit: usize,
) -> String {
    let programme = name_literal(programme);
    let after = after.map_or(String::new(), |after| {
        // In the order of keys solar precedes lunar.
        let (user, calendar) = (after.user, calendar_number(after.occurrence.calendar));
        let occurrence = after.occurrence;
        format!(
            " AND k.`user_id` >= {user} AND (k.`user_id` > {user} OR (k.`occurrence` LIKE 'lunar%') > {calendar} \
             OR ((k.`occurrence` LIKE 'lunar%') = {calendar} AND k.`occurrence` > '{occurrence}'))"
        )
    });
    let columns = LEDGER_COLUMNS.map(|column| format!("l.`{column}`")).join(",");
    let is_next = format!("k.`programme` = {programme} AND k.`is_open` = 1{after}");
    let last = format!(
        "IFNULL((SELECT k.`user_id` FROM {} AS k WHERE {is_next} ORDER BY k.`user_id` LIMIT {}, 1), {})",
        tables.letters,
        limit.saturating_sub(1),
        u64::MAX
    );
    let of_part = |(part, ledger): (usize, &String)| {
        format!(
            "(SELECT {columns} FROM {} AS k JOIN {ledger} AS l ON l.`user_id` = k.`user_id` \
             AND l.`programme` = k.`programme` AND l.`occurrence` = k.`occurrence` \
             WHERE {is_next} AND k.`user_id` <= {last} AND k.`user_id` % {PARTS} = {part} \
             ORDER BY k.`user_id`, k.`occurrence` LIKE 'lunar%', k.`occurrence` LIMIT {limit})",
            tables.letters
        )
    };
    tables.ledger.iter().enumerate().map(of_part).collect::<Vec<_>>().join(" UNION ALL ")
}

pub(super) fn dead_letters(
    programme: &Arc<str>,
    sets: Vec<Vec<Row>>,
    limit: usize,
) -> Option<Vec<(CouponKey, LedgerRow)>> {
    let letter = |row: Row| {
        let (user, occurrence, row) = Cells::of(row).ledger_row()?;
        Some((CouponKey { user, programme: programme.clone(), occurrence }, row))
    };
    let mut letters: Vec<_> = sets.into_iter().flatten().map(letter).collect::<Option<_>>()?;
    letters.sort_by(|(one, _), (other, _)| one.cmp(other));
    letters.truncate(limit);
    Some(letters)
}
