//! The plan by which a table is read: its columns and the index to its rows; it is valid while its definition stays.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use anabranch_pipeline::config::EntityConfig;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::records::ScanCursor;
use anabranch_schemas::change::{Row as Values, TableIdentity, Value};
use anabranch_schemas::codec::{decode_values, encode_values};
use anabranch_schemas::shard::ShardId;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row};

use super::described::Described;
use super::value::Kind;
use super::watermarks::Dialect;
use super::{RowSelection, TIMEOUT, condition, table_fault};
use crate::mysql::connection::{quote_identifier, quote_table};
use crate::mysql::source::MysqlSource;
use crate::mysql::source::decode::character_sets::{NEEDED, is_refused};
use crate::mysql::source::server::own_names::misnamed;
use crate::mysql::source::server::session::literal;

/// Plans that are kept, at most; before one more, all are forgotten.
const PLANS_MAX: usize = 20_000;
/// The dialect of the server, until a query fails, and the plans of its tables, while their definitions stay: by shard,
/// for chunks and for keys.
#[derive(Default)]
pub(in super::super) struct Plans {
    plans: Mutex<HashMap<Read, Arc<Plan>>>,
    dialect: Mutex<Option<Dialect>>,
}

/// The table that a plan is for, and whether it reads by chunks.
type Read = (ShardId, bool);

impl Plans {
    pub(super) fn get(&self, read: Read) -> Option<Arc<Plan>> {
        self.plans().get(&read).cloned()
    }

    pub(super) fn store(&self, read: Read, plan: &Arc<Plan>) {
        let mut plans = self.plans();
        if plans.len() >= PLANS_MAX {
            plans.clear();
        }
        plans.insert(read, Arc::clone(plan));
    }

    pub(super) fn forget(&self, read: Read) {
        self.plans().remove(&read);
    }

    pub(super) fn dialect(&self) -> Option<Dialect> {
        *self.dialect.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_dialect(&self, dialect: Option<Dialect>) {
        *self.dialect.lock().unwrap_or_else(PoisonError::into_inner) = dialect;
    }

    pub(super) fn forget_dialect(&self) {
        self.set_dialect(None);
    }

    fn plans(&self) -> std::sync::MutexGuard<'_, HashMap<Read, Arc<Plan>>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The plan by which one table is read.
pub(super) struct Plan {
    /// Definition of the table for which the plan was made.
    pub(super) definition: String,
    /// Kinds of the captured columns, in the order of the entity's fields.
    pub(super) kinds: Vec<Kind>,
    /// SQL of the captured columns, and after them the other columns of the key.
    pub(super) selected: String,
    /// Name of the index that leads to the rows.
    pub(super) index: String,
    /// Columns of the index, as far as they are compared.
    pub(super) key: Vec<KeyColumn>,
    /// SQL of the condition for rows, if there is one.
    pub(super) only: Option<String>,
}

/// A column by which rows are found.
pub(super) struct KeyColumn {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Index among the selected columns: a captured one is not selected twice.
    place: usize,
    /// Character set of a text; empty for bytes.
    pub(super) character_set: String,
    pub(super) collation: String,
}

impl MysqlSource {
    /// Makes the plan of a table from the server's description.
    pub(super) async fn plan(
        &self,
        connection: &mut Conn,
        table: &TableIdentity<'static>,
        wanted: &RowSelection<'_>,
    ) -> Result<Plan, Fault> {
        let entity = self.entity_of(table)?;
        let known = connection.query_map(describe(table, wanted), Described::from_row);
        let known: Vec<Described> = self.snapshots.within(TIMEOUT, known).await?;
        if known.is_empty() {
            // The server does not list tables that the account may not read.
            let name = quote_table(&table.database, &table.table);
            let ask = connection.query_drop(format!("SELECT 1 FROM {name} LIMIT 0"));
            return Err(match self.snapshots.within(TIMEOUT, ask).await {
                Err(fault) if fault.code() == Code::SourceTableMissing => {
                    table_fault(Code::SourceTableMissing, table, "it does not exist")
                }
                Err(fault) => fault,
                // It was made, or a grant came, between the two questions.
                Ok(()) => table_fault(Code::SourceUnreachable, table, "the server did not list its columns"),
            });
        }
        let columns = own_columns(table, entity, &known)?;
        let kinds = columns.iter().enumerate().map(|(field, name)| {
            let found = known.iter().find(|column| column.name.eq_ignore_ascii_case(name));
            let Described { data_type, unsigned, character_set, .. } = found.ok_or_else(|| {
                table_fault(Code::SourceColumnMissing, table, format!("it has no column {name}"))
            })?;
            if is_refused(character_set) {
                let found = format!("column {name} has character set {character_set}");
                return Err(table_fault(Code::SourceColumnUnsupported, table, found).needs(NEEDED));
            }
            let kind = match entity.is_field(field) {
                true => Kind::of_field(table.entity, field, data_type, *unsigned),
                false => Kind::of_key(data_type, *unsigned),
            };
            kind.ok_or_else(|| {
                table_fault(
                    Code::SourceColumnUnsupported,
                    table,
                    format!("column {name} has type {data_type}"),
                )
            })
        });
        let kinds = kinds.collect::<Result<Vec<_>, _>>()?;
        let is_key = |column: &&Described| match wanted {
            RowSelection::After(..) => column.place.is_some(),
            RowSelection::Keys(_) => column.place.is_some() && column.name.eq_ignore_ascii_case(columns[0]),
        };
        let mut parts: Vec<&Described> = known.iter().filter(is_key).collect();
        parts.sort_unstable_by_key(|column| column.place);
        let index = parts.first().and_then(|column| column.index.clone()).unwrap_or_default();
        let key = parts.into_iter().map(Described::key);
        let key: Option<Vec<_>> = key.collect();
        let key = key.filter(|key| !key.is_empty()).ok_or_else(|| unkeyed(table, columns[0], wanted))?;
        let only = match wanted {
            RowSelection::After(.., Some(condition)) => {
                Some(condition::sql(table, (&known[..], &entity.columns[..]), condition)?)
            }
            RowSelection::After(.., None) | RowSelection::Keys(_) => None,
        };
        let ask = connection.query_first(show_definition(table));
        let definition: Option<(String, String)> = self.snapshots.within(TIMEOUT, ask).await?;
        let definition = definition.map(|(_, text)| without_counter(&text)).unwrap_or_default();
        Ok(Plan { only, ..Plan::new(definition, &columns, kinds, (index, key)) })
    }
}

impl Plan {
    fn new(
        definition: String,
        columns: &[&str],
        kinds: Vec<Kind>,
        (index, mut key): (String, Vec<KeyColumn>),
    ) -> Self {
        let mut selected: Vec<String> =
            columns.iter().zip(&kinds).map(|(name, kind)| kind.selected(&quote_identifier(name))).collect();
        for column in &mut key {
            let captured = columns.iter().position(|name| name.eq_ignore_ascii_case(&column.name));
            column.place = captured.filter(|place| kinds[*place] == column.kind).unwrap_or_else(|| {
                selected.push(column.kind.selected(&quote_identifier(&column.name)));
                selected.len() - 1
            });
        }
        Self { definition, selected: selected.join(", "), kinds, index, key, only: None }
    }

    /// Returns the cursor after this row; `None` when a value is not of its type.
    pub(super) fn cursor_at(&self, last: &Row) -> Option<ScanCursor> {
        let values = self.key.iter().map(|column| column.kind.decode(last.as_ref(column.place)?));
        Some(self.cursor_after(values.collect::<Option<_>>()?))
    }

    /// Returns the cursor after the row with these values of the key. The definition of the key stands before them.
    fn cursor_after(&self, mut values: Values<'_>) -> ScanCursor {
        values.insert(0, Value::Bytes(self.key_definition().into_bytes().into()));
        ScanCursor(encode_values(&values).into())
    }

    /// Returns the values of the key that a cursor has; `None` when it was made for another key.
    pub(super) fn values_of<'c>(&self, cursor: &'c ScanCursor) -> Option<Values<'c>> {
        let mut values = decode_values(&cursor.0).filter(|values| values.len() == self.key.len() + 1)?;
        match values.remove(0) {
            Value::Bytes(definition) if *definition == *self.key_definition().as_bytes() => Some(values),
            _ => None,
        }
    }

    /// Returns what decides the order of rows: names, kinds and collations of the key's columns. Cursors are stored
    /// with it, so another text of the same key has a reading begin anew.
    fn key_definition(&self) -> String {
        let columns = self.key.iter().map(|KeyColumn { name, kind, character_set, collation, .. }| {
            format!("{name} {kind:?} {character_set} {collation}")
        });
        columns.collect::<Vec<_>>().join(",")
    }
}

pub(super) fn show_definition(table: &TableIdentity<'_>) -> String {
    format!("SHOW CREATE TABLE {}", quote_table(&table.database, &table.table))
}

/// Returns a definition without the counter that each new row changes: it is after the columns, before all comments.
pub(super) fn without_counter(definition: &str) -> String {
    const COUNTER: &str = " AUTO_INCREMENT=";
    let options = definition.find("\n) ").unwrap_or(definition.len());
    let (columns, options) = definition.split_at(options);
    let Some((front, rest)) = options.split_once(COUNTER) else { return definition.to_owned() };
    format!("{columns}{front}{}", rest.trim_start_matches(|digit: char| digit.is_ascii_digit()))
}

/// Returns the names of the captured columns in a table that is described so.
fn own_columns<'e>(
    table: &TableIdentity<'_>,
    entity: &'e EntityConfig,
    known: &[Described],
) -> Result<Vec<&'e str>, Fault> {
    let has = |name: &str| known.iter().any(|column| column.name.eq_ignore_ascii_case(name));
    let own = entity.columns.iter().map(|names| names.own(has).map_err(|error| misnamed(table, &error)));
    own.collect()
}

fn unkeyed(table: &TableIdentity<'_>, key: &str, wanted: &RowSelection<'_>) -> Fault {
    let fault = |found: String| table_fault(Code::SourceTableUnkeyed, table, found);
    match wanted {
        RowSelection::After(..) => {
            fault("it has no primary key of integers, text, bytes or dates".to_owned())
                .needs("such a key, by which its rows are read a part at a time")
        }
        RowSelection::Keys(_) => fault(format!("no index begins with column {key}"))
            .needs("such an index, by which single rows are found"),
    }
}

impl Described {
    fn key(&self) -> Option<KeyColumn> {
        let kind = Kind::of_key(&self.data_type, self.unsigned)?;
        let (character_set, collation) = (self.character_set.clone(), self.collation.clone());
        Some(KeyColumn { name: self.name.clone(), kind, place: 0, character_set, collation })
    }
}

/// Returns the query for [`Described`].
fn describe(table: &TableIdentity<'_>, wanted: &RowSelection<'_>) -> String {
    let place = |names: [&str; 2]| {
        let [database, name] = [&table.database, &table.table].map(|name| literal(name));
        format!("{} = {database} AND {} = {name}", names[0], names[1])
    };
    let (index, only) = match wanted {
        RowSelection::After(..) => ("INDEX_NAME", "INDEX_NAME = 'PRIMARY'"),
        // Any index that begins with the column will do.
        RowSelection::Keys(_) => ("MIN(INDEX_NAME)", "SEQ_IN_INDEX = 1 AND INDEX_TYPE = 'BTREE'"),
    };
    format!(
        "SELECT c.COLUMN_NAME, LOWER(c.DATA_TYPE), LOWER(IFNULL(c.CHARACTER_SET_NAME, '')), \
         LOWER(IFNULL(c.COLLATION_NAME, '')), c.COLUMN_TYPE LIKE '%unsigned%', k.SEQ_IN_INDEX, k.INDEX_NAME \
         FROM information_schema.COLUMNS c LEFT JOIN (SELECT COLUMN_NAME, SEQ_IN_INDEX, {index} AS INDEX_NAME \
         FROM information_schema.STATISTICS WHERE {only} AND {} GROUP BY COLUMN_NAME, SEQ_IN_INDEX) k \
         ON k.COLUMN_NAME = c.COLUMN_NAME WHERE {}",
        place(["TABLE_SCHEMA", "TABLE_NAME"]),
        place(["c.TABLE_SCHEMA", "c.TABLE_NAME"]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_does_not_change_with_its_rows() {
        let define = |rest: &str| format!("CREATE TABLE `t` (\n  `id` int(11)\n) ENGINE=InnoDB{rest}");
        let text = define(" AUTO_INCREMENT=17 COMMENT=' AUTO_INCREMENT=3'");
        assert_eq!(without_counter(&text), define(" COMMENT=' AUTO_INCREMENT=3'"));
        assert_eq!(without_counter(&define("")), define(""));
    }

    #[test]
    fn a_cursor_is_of_the_key_for_which_it_was_made() {
        let plan = |columns: &[(&str, Kind, &str)]| {
            let column = |(name, kind, collation): &(&str, Kind, &str)| KeyColumn {
                name: (*name).to_owned(),
                kind: *kind,
                place: 0,
                character_set: String::new(),
                collation: (*collation).to_owned(),
            };
            let key = columns.iter().map(column).collect();
            Plan::new(String::new(), &[], Vec::new(), ("PRIMARY".to_owned(), key))
        };
        let one = plan(&[("id", Kind::Bytes, "utf8mb4_bin")]);
        let cursor = one.cursor_after(vec![Value::Bytes(b"7".as_slice().into())]);
        assert_eq!(one.values_of(&cursor), Some(vec![Value::Bytes(b"7".as_slice().into())]));
        for other in [
            plan(&[("id", Kind::Bytes, "utf8mb4_general_ci")]),
            plan(&[("uuid", Kind::Bytes, "utf8mb4_bin")]),
            plan(&[("id", Kind::Unsigned, "")]),
            plan(&[("id", Kind::Bytes, "utf8mb4_bin"), ("region", Kind::Signed, "")]),
        ] {
            assert_eq!(other.values_of(&cursor), None, "{}", other.key_definition());
        }
        // A cursor without the definition of its key.
        let bare = ScanCursor(encode_values(&[Value::Bytes(b"7".as_slice().into())]).into());
        assert_eq!(one.values_of(&bare), None);
    }

    #[test]
    fn a_key_that_is_captured_is_selected_once() {
        let column = |name: &str, kind| {
            let (character_set, collation) = (String::new(), String::new());
            KeyColumn { name: name.to_owned(), kind, place: 0, character_set, collation }
        };
        let columns = ["user_id", "birthday"];
        let key = vec![column("region", Kind::Bytes), column("USER_ID", Kind::Unsigned)];
        let kinds = vec![Kind::Unsigned, Kind::Date];
        let plan = Plan::new(String::new(), &columns, kinds, ("PRIMARY".to_owned(), key));
        assert_eq!(plan.selected, "`user_id`, `birthday`, `region`");
        assert_eq!(plan.key.iter().map(|column| column.place).collect::<Vec<_>>(), [2, 0]);
    }
}
