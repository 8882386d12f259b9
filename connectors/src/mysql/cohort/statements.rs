//! The statements on birthday tables. Names are quoted, and everything else is a number or a birthday.

use anabranch_schemas::celebration::{Birthday, Calendar};

use crate::mysql::connection::push_number;

/// Selects the next rows of a table in the order of users, each preceded by a number. `whole` is the table's calendar
/// if whole rows are selected; `None` = only columns of the index.
pub(super) fn page(
    number: usize,
    (table, whole): (&str, Option<Calendar>),
    after: Option<u64>,
    limit: usize,
) -> String {
    let further = match whole {
        None => "",
        Some(Calendar::Solar) => ", `birthday`",
        Some(Calendar::Lunar) => ", `birthday`, `birthday_type`",
    };
    let condition = after.map_or(String::new(), |after| format!(" WHERE `user_id` > {after}"));
    format!(
        "SELECT {number}, `user_id`, `shard_id`{further} FROM {table} FORCE INDEX (`user_id`){condition} \
         ORDER BY `user_id`, `shard_id` LIMIT {limit}"
    )
}

/// Selects rows of a table whose birthday differs from the table's.
pub(super) fn misplaced(table: &str, birthday: Birthday, limit: usize) -> String {
    format!(
        "SELECT `user_id`, `shard_id`, `birthday` FROM {table} WHERE `birthday` <> '{birthday}' LIMIT {limit}"
    )
}

/// Selects the claims of these users.
pub(super) fn claims(table: &str, users: &[u64]) -> String {
    format!("SELECT `user_id`, `shard_id` FROM {table} FORCE INDEX (`user_id`) WHERE {}", are(users))
}

/// Sets the columns of these users as after a grant. A row that has them keeps the time of the first write.
///
/// The statement names its index: a server that scanned a small table instead would lock rows that lanes write.
pub(super) fn follow(table: &str, users: &[u64], year: i16) -> String {
    format!(
        "UPDATE {table} FORCE INDEX (`user_id`) SET `send_time` = UTC_TIMESTAMP(6), `is_sent` = 1, \
         `sent_occurrence` = {year} WHERE {} AND NOT (`is_sent` = 1 AND `sent_occurrence` <=> {year})",
        are(users)
    )
}

fn are(users: &[u64]) -> String {
    let mut sql = "`user_id` IN (".to_owned();
    for (place, user) in users.iter().enumerate() {
        sql.push_str(if place > 0 { "," } else { "" });
        push_number(&mut sql, *user);
    }
    sql + ")"
}
