//! Makes the statements that read rows at a known position.

use std::num::NonZeroUsize;

use anabranch_pipeline::error::{Code, Fault};

use super::plan::show_definition;
use super::watermarks::Dialect;
use super::{RowSelection, TablePart, table_fault, value};
use crate::mysql::connection::{quote_identifier, quote_table};
use crate::mysql::keyset::after_key;

/// Returns the statements that read the tables.
pub(super) fn statements(
    dialect: Dialect,
    parts: &[TablePart<'_>],
    may_begin_anew: bool,
) -> Result<String, Fault> {
    let mut sql = format!("{}{}; ", dialect.begin(), dialect.identity());
    for (number, part) in parts.iter().enumerate() {
        if number > 0 && part.has_own_snapshot() {
            sql += &format!("COMMIT; {}", dialect.begin());
        }
        sql += &format!("{}; {}; ", select(part, may_begin_anew)?, show_definition(part.table));
    }
    Ok(sql + "COMMIT")
}

/// Returns the query for the captured columns and the key of the wanted rows.
///
/// A cursor of another primary key than the table has now means nothing in it: rows would be skipped, and a sweep would
/// remove what they claim. So a reading that `may_begin_anew` then begins with the first row. It still reads every row
/// at or above its first watermark. What rows of the former table claim is removed by the reading that the record of
/// their change asks for.
fn select(part: &TablePart<'_>, may_begin_anew: bool) -> Result<String, Fault> {
    let TablePart { table, wanted, plan } = part;
    let key: Vec<String> = plan.key.iter().map(|column| quote_identifier(&column.name)).collect();
    let order = |rows: &NonZeroUsize| format!("ORDER BY {} LIMIT {rows}", key.join(", "));
    let only = |before: &str| plan.only.as_ref().map_or(String::new(), |only| format!("{before} {only} "));
    let condition = match wanted {
        RowSelection::After(None, rows, _) => format!("{}{}", only("WHERE"), order(rows)),
        RowSelection::After(Some(after), rows, _) => match plan.values_of(after) {
            Some(values) => {
                let literals = plan.key.iter().zip(&values);
                let literals: Vec<String> =
                    literals.map(|(column, value)| value::literal(value, &column.character_set)).collect();
                format!("WHERE {} {}{}", after_key(&key, &literals), only("AND"), order(rows))
            }
            None if may_begin_anew => format!("{}{}", only("WHERE"), order(rows)),
            None => {
                let found = "its primary key is another one than when the page before was read";
                return Err(table_fault(Code::SourceUnreachable, table, found));
            }
        },
        RowSelection::Keys(keys) => {
            let (column, name) = (&plan.key[0], &key[0]);
            let literals = keys.iter().filter_map(|key| {
                let value = column.kind.of_cell(key)?;
                Some(value::exact_literal(&value, &column.character_set, &column.collation))
            });
            match literals.collect::<Vec<_>>().join(", ") {
                none if none.is_empty() => "WHERE FALSE".to_owned(),
                literals => format!("WHERE {name} IN ({literals})"),
            }
        }
    };
    Ok(format!(
        "SELECT {} FROM {} FORCE INDEX ({}) {condition}",
        plan.selected,
        quote_table(&table.database, &table.table),
        quote_identifier(&plan.index)
    ))
}
