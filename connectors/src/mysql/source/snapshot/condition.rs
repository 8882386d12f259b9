//! Writes a condition as SQL: names in the server's spelling, values as literals of their columns' types. Any name of a
//! captured column stands for the one that the table has.

use anabranch_pipeline::config::ColumnNames;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::records::{Comparison, Condition};
use anabranch_schemas::change::TableIdentity;

use super::described::Described;
use super::table_fault;
use super::value::{Kind, literal};
use crate::mysql::connection::quote_identifier;

/// Texts are UTF-8 and compared by the collations of their columns.
const CHARACTER_SET: &str = "utf8mb4";

/// Columns of a table, and the names of the captured ones.
type Columns<'c> = (&'c [Described], &'c [ColumnNames]);

pub(super) fn sql(
    table: &TableIdentity<'_>,
    columns: Columns<'_>,
    condition: &Condition,
) -> Result<String, Fault> {
    let all = condition.comparisons().iter().map(|comparison| one(table, columns, comparison));
    Ok(all.collect::<Result<Vec<_>, _>>()?.join(" AND "))
}

fn one(
    table: &TableIdentity<'_>,
    (known, captured): Columns<'_>,
    comparison: &Comparison,
) -> Result<String, Fault> {
    let Comparison { column, operator, value } = comparison;
    let names = captured.iter().find(|names| names.has(column));
    let is_meant = |known: &&Described| match names {
        Some(names) => names.has(&known.name),
        None => known.name.eq_ignore_ascii_case(column),
    };
    let found = known.iter().find(is_meant);
    let Described { name, data_type, character_set, unsigned, .. } = found
        .ok_or_else(|| table_fault(Code::SourceColumnMissing, table, format!("it has no column {column}")))?;
    let kind = Kind::compared(data_type, *unsigned).ok_or_else(|| {
        table_fault(Code::SourceColumnUnsupported, table, format!("column {column} has type {data_type}"))
            .needs("a column of integers, text, bytes, dates or times to compare with")
    })?;
    let typed = kind.typed(value).ok_or_else(|| {
        let found = format!("the value that column {column} is compared with is not of type {data_type}");
        table_fault(Code::RefreshRefused, table, found)
            .needs("a number, a text, `YYYY-MM-DD`, or `YYYY-MM-DD hh:mm:ss` in UTC")
    })?;
    let character_set = if character_set.is_empty() { "" } else { CHARACTER_SET };
    Ok(format!("{} {} {}", quote_identifier(name), operator.as_str(), literal(&typed, character_set)))
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use anabranch_schemas::change::Entity;
    use anabranch_schemas::shard::ShardId;

    use super::*;

    fn said(comparisons: &[&str]) -> Result<String, Code> {
        let described = |name: &str, data_type: &str, character_set: &str, unsigned| Described {
            name: name.to_owned(),
            data_type: data_type.to_owned(),
            character_set: character_set.to_owned(),
            collation: String::new(),
            unsigned,
            place: None,
            index: None,
        };
        let known = [
            described("User_Id", "bigint", "", true),
            described("name", "varchar", "gbk", false),
            described("birthday", "date", "", false),
            described("at", "timestamp", "", false),
            described("shape", "point", "", false),
        ];
        let (database, name) = (Cow::Borrowed("d"), Cow::Borrowed("t"));
        let shard = ShardId::of("s", "d", "t", 0);
        let table = TableIdentity { entity: Entity::User, shard, database, table: name };
        let comparisons = comparisons.iter().map(|text| text.parse().unwrap()).collect();
        let captured = [ColumnNames::from("user_id"), ColumnNames::from("birthday")];
        sql(&table, (&known[..], &captured[..]), &Condition::new(comparisons).unwrap())
            .map_err(|fault| fault.code())
    }

    #[test]
    fn a_condition_is_written_with_literals_of_the_types_of_its_columns() {
        for (comparisons, expected) in [
            (["user_id >= 7", "user_id < 0009"], "`User_Id` >= 7 AND `User_Id` < 9"),
            (
                ["name = 'x\\\" OR 1=1 -- '", "birthday <= 2000-02-29"],
                "`name` = _utf8mb4 x'785c22204f5220313d31202d2d20' AND `birthday` <= '2000-02-29'",
            ),
            (
                ["at > 2000-02-29", "at < '2000-03-01 01:02:03.5'"],
                "`at` > '2000-02-29 00:00:00.000000' AND `at` < '2000-03-01 01:02:03.500000'",
            ),
        ] {
            assert_eq!(said(&comparisons).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn what_the_table_cannot_be_asked_is_refused() {
        for (comparison, expected) in [
            ("age = 7", Code::SourceColumnMissing),
            ("shape = 7", Code::SourceColumnUnsupported),
            ("user_id = -7", Code::RefreshRefused),
            ("user_id = x", Code::RefreshRefused),
            ("user_id = 1e3", Code::RefreshRefused),
            ("birthday = 2000", Code::RefreshRefused),
            ("birthday = 2000-13-01", Code::RefreshRefused),
            ("birthday = 2000-1-1", Code::RefreshRefused),
            ("birthday = 2000-01-01-01", Code::RefreshRefused),
            ("at = '2000-01-01 25:00:00'", Code::RefreshRefused),
            ("at = '2000-01-01T00:00:00Z'", Code::RefreshRefused),
        ] {
            assert_eq!(said(&[comparison]), Err(expected), "{comparison}");
        }
    }
}
