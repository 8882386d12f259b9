//! What the sources say: for each user the month and day, by SQL alone.
//!
//! The rule: NULL, zero, year 0, a date that no calendar has and malformed text are in no table. A text is, between
//! blanks, tabs and line ends, `YYYY-MM-DD`, or that followed by a blank or `T` and anything.

use crate::topology::{BirthdayType, Place};

/// The date as 10 characters, or NULL, for each column type. Dates are taken apart as text: date functions answer
/// differently for dates that do not exist.
fn day_sql(column: BirthdayType) -> &'static str {
    match column {
        BirthdayType::Date | BirthdayType::DateTime | BirthdayType::DateTimeMicroseconds => {
            "LEFT(CAST(birthday AS CHAR), 10)"
        }
        // `\z` and not `$`, which also matches before a last line end; the binary collation keeps `T` from matching `t`.
        BirthdayType::Text => {
            r"CASE WHEN birthday COLLATE utf8mb4_bin REGEXP
                '(?s)^[ \\t\\n\\f\\r]*[0-9]{4}-[0-9]{2}-[0-9]{2}([ T].*)?[ \\t\\n\\f\\r]*\\z'
              THEN REGEXP_SUBSTR(birthday, '[0-9]{4}-[0-9]{2}-[0-9]{2}') END"
        }
    }
}

/// Condition on `day`: year above 0 and a day that its month has in that year.
const IS_A_DATE: &str = "CAST(LEFT(day, 4) AS UNSIGNED) > 0
    AND CAST(SUBSTR(day, 6, 2) AS UNSIGNED) BETWEEN 1 AND 12
    AND CAST(SUBSTR(day, 9, 2) AS UNSIGNED) BETWEEN 1 AND
      CASE
        WHEN SUBSTR(day, 6, 2) IN ('04', '06', '09', '11') THEN 30
        WHEN SUBSTR(day, 6, 2) <> '02' THEN 31
        WHEN LEFT(day, 4) % 400 = 0 THEN 29
        WHEN LEFT(day, 4) % 100 = 0 THEN 28
        WHEN LEFT(day, 4) % 4 = 0 THEN 29
        ELSE 28
      END";

/// Rows (number, user_id, MM-DD) of the users of one table that belong into a derived table.
pub(super) fn claims_sql(number: usize, place: Place, column: BirthdayType) -> String {
    format!(
        "SELECT {number} AS number, user_id, CONCAT(SUBSTR(day, 6, 2), '-', SUBSTR(day, 9, 2)) AS birthday
         FROM (SELECT user_id, {} AS day FROM {}) AS days WHERE {IS_A_DATE}",
        day_sql(column),
        place.quoted()
    )
}

/// One row (number, users of the table, valid or not).
pub(super) fn count_sql(number: usize, place: Place) -> String {
    format!("SELECT {number} AS number, COUNT(*) AS users FROM {}", place.quoted())
}

/// The identity under which a table's rows are claimed: the first 8 bytes of
/// SHA-256(source, NUL, database, NUL, table, NUL, generation) without the top bit. The demo's generation is 0.
pub(super) fn shard_id_sql(source: &str, place: Place) -> String {
    format!(
        "CAST(CONV(LEFT(SHA2(CONCAT('{source}', x'00', '{}', x'00', '{}', x'00', '0'), 256), 16), 16, 10) \
         AS UNSIGNED) & 9223372036854775807",
        place.database_name(),
        place.table_name()
    )
}
