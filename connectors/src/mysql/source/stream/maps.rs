//! Table maps by table id: the plan of each captured table, and which ids belong to other tables.
//!
//! Servers send a table's map again in every statement, before its rows; an equal one is recognised and not parsed
//! again. So maps are a cache between statements, and a stream holds a bounded number of them: a server that opens its
//! tables again and again (`table_definition_cache`) numbers them anew each time, a million times in one file.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use anabranch_pipeline::config::{ColumnNames, Misnamed};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::shard::ShardId;

use super::alteration::{Shape, Shapes};
use crate::mysql::connection::quote_table;
use crate::mysql::source::decode::character_sets::{Collations, NEEDED, Unfit};
use crate::mysql::source::decode::column::Format;
use crate::mysql::source::decode::gtid::Flavor;
use crate::mysql::source::decode::rows::{Kind, Plan, PlanProblem};
use crate::mysql::source::decode::table_map::{Column, TableMap};
use crate::mysql::source::decode::wire::Malformed;
use crate::mysql::source::server::own_names::{ONE_NAME, ONE_NAME_REMEDY};
use crate::mysql::source::server::tables::{CapturedTable, CapturedTables, accepted_types, accepts, is_text};
use crate::mysql::source::server::unfit_tables::UnfitTable;

/// Maps kept for later statements: a captured table's takes a kilobyte or two, another's holds names only. Maps of the
/// present statement are all kept, since any of its rows may refer to any of them.
const MAPS_MAX: usize = 16_384;

/// A captured table with its present shape in the binlog.
#[derive(Debug)]
pub struct MappedTable {
    pub table: Arc<CapturedTable>,
    plan: Result<Plan, Mismatch>,
}

/// The reason why a captured table cannot be captured in its present shape.
#[derive(Debug)]
enum Mismatch {
    Plan(PlanProblem),
    Type { column: String, needed: &'static str },
    Text { column: String, unfit: Unfit, needed: &'static str },
    Versioned,
}

#[derive(Debug)]
struct Entry {
    /// Bytes by which an equal map is recognised; of tables that are not captured, only the names.
    known: Box<[u8]>,
    table: Option<Arc<MappedTable>>,
    is_retention_marker: bool,
}

/// All maps that rows events can refer to.
#[derive(Debug)]
pub struct TableMaps {
    flavor: Flavor,
    collations: Collations,
    entries: HashMap<u64, Entry, foldhash::fast::RandomState>,
    /// A map of the present statement has come, but not yet the end of its rows.
    is_in_statement: bool,
    /// Ids of captured tables of the present statement without rows so far.
    without_rows: BTreeSet<u64>,
    /// A row was updated or deleted in the present statement, as far as it was read.
    has_old_rows: bool,
    /// Shapes of captured tables, which outlive their maps.
    pub shapes: Shapes,
}

/// A map or rows event that stops the source.
#[derive(Debug)]
pub enum Problem {
    Malformed(Malformed),
    Stop(Fault),
}

impl Problem {
    pub fn into_fault(self, corrupt: impl FnOnce(&'static str) -> Fault) -> Fault {
        match self {
            Problem::Malformed(error) => corrupt(error.0),
            Problem::Stop(fault) => fault,
        }
    }
}

impl From<Malformed> for Problem {
    fn from(error: Malformed) -> Self {
        Problem::Malformed(error)
    }
}

impl TableMaps {
    /// Creates an empty cache; `collations` are those that the server knows.
    pub fn new(flavor: Flavor, collations: Collations) -> Self {
        Self {
            flavor,
            collations,
            entries: HashMap::default(),
            is_in_statement: false,
            without_rows: BTreeSet::new(),
            has_old_rows: false,
            shapes: Shapes::default(),
        }
    }

    /// Takes in the body of a TABLE_MAP event.
    pub fn read(&mut self, body: &[u8], tables: &mut CapturedTables) -> Result<(), Problem> {
        let map = TableMap::read(body)?;
        if !self.is_in_statement {
            self.is_in_statement = true;
            if self.entries.len() >= MAPS_MAX {
                self.entries.clear();
            }
        }
        let names_only = map.without_columns(body);
        let is_known = |entry: &Entry| match entry.table {
            Some(_) => *entry.known == *body,
            None => *entry.known == *names_only,
        };
        if let Some(entry) = self.entries.get(&map.table_id).filter(|entry| is_known(entry)) {
            let is_captured = entry.table.is_some();
            self.introduced(map.table_id, is_captured);
            return Ok(());
        }
        let names = (std::str::from_utf8(map.database), std::str::from_utf8(map.table));
        let captured = match names {
            (Ok(database), Ok(table)) => tables.resolve(database, table).map_err(Problem::Stop)?,
            // Names of captured tables are UTF-8.
            _ => None,
        };
        let is_retention_marker = match names {
            (Ok(database), Ok(table)) if captured.is_none() => tables.is_retention_marker(database, table),
            _ => false,
        };
        let table = match captured {
            None => None,
            Some(table) => {
                let plan = self.plan(&map, &table)?;
                let fields = 0..table.columns.len();
                let shape = plan
                    .as_ref()
                    .ok()
                    .map(|plan| Shape { formats: fields.filter_map(|field| plan.format(field)).collect() });
                self.shapes.saw(table.identity.shard, shape);
                Some(Arc::new(MappedTable { plan, table }))
            }
        };
        self.introduced(map.table_id, table.is_some());
        let known = if table.is_some() { body } else { names_only };
        self.entries.insert(map.table_id, Entry { known: known.into(), table, is_retention_marker });
        Ok(())
    }

    fn plan(&self, map: &TableMap<'_>, table: &CapturedTable) -> Result<Result<Plan, Mismatch>, Malformed> {
        let columns = map.columns(self.flavor)?;
        if self.flavor == Flavor::MariaDb && are_versioned(&columns) {
            return Ok(Err(Mismatch::Versioned));
        }
        let planned = own_names(&columns, &table.columns)
            .and_then(|names| Plan::new(&columns, &names).map(|plan| (names, plan)));
        let (names, plan) = match planned {
            Ok(planned) => planned,
            Err(problem) => return Ok(Err(Mismatch::Plan(problem))),
        };
        let entity = table.identity.entity;
        for (field, name) in names.into_iter().map(str::to_owned).enumerate() {
            let needed = accepted_types(entity, field);
            let column = plan.place(field).map(|place| columns[place]);
            let Some(column) = column.filter(|column| accepts(entity, field, column.format)) else {
                return Ok(Err(Mismatch::Type { column: name, needed }));
            };
            if !is_text(column.format) {
                continue;
            }
            let Some(collation) = column.collation else {
                return Ok(Err(Mismatch::Plan(PlanProblem::NoCharacterSet(name))));
            };
            if let Some(unfit) = self.collations.unfit(collation) {
                return Ok(Err(Mismatch::Text { column: name, unfit, needed }));
            }
        }
        Ok(Ok(plan))
    }

    fn introduced(&mut self, table_id: u64, is_captured: bool) {
        if is_captured {
            self.without_rows.insert(table_id);
        }
    }

    /// Notes that rows of this table have come in the present statement.
    pub fn has_rows(&mut self, table_id: u64, kind: Kind) {
        self.without_rows.remove(&table_id);
        self.has_old_rows |= kind != Kind::Insert;
    }

    /// Ends the present statement: the next one sends its own maps. Returns the captured tables of which a foreign key
    /// may have changed rows that the binlog does not show.
    ///
    /// MariaDB opens the children of such a key as it opens the tables that a statement names, so the binlog has their
    /// maps; it has no rows of the changes that InnoDB makes there. Only an updated or deleted row changes children.
    /// MySQL either logs the rows of children too (9.6 and later), or does not even log their maps. The child of a key
    /// of a table to itself has rows in the statement, and which rows the key changed is not seen.
    pub fn statement_ended(&mut self) -> Vec<Arc<MappedTable>> {
        self.is_in_statement = false;
        let without_rows = std::mem::take(&mut self.without_rows);
        let has_old_rows = std::mem::take(&mut self.has_old_rows);
        if !has_old_rows || self.flavor == Flavor::MySql {
            return Vec::new();
        }
        let of_id = |id| self.entries.get(&id).and_then(|entry| entry.table.clone());
        without_rows.into_iter().filter_map(of_id).collect()
    }

    /// Returns the table of a map; `None` = no such map, `Some(None)` = a table that is not captured.
    pub fn get(&self, table_id: u64) -> Option<&Option<Arc<MappedTable>>> {
        self.entries.get(&table_id).map(|entry| &entry.table)
    }

    /// Whether a map is that of the table in which retention jobs name themselves.
    pub fn is_retention_marker(&self, table_id: u64) -> bool {
        self.entries.get(&table_id).is_some_and(|entry| entry.is_retention_marker)
    }

    /// Forgets the maps of a table that was emptied: new rows come with a map again.
    pub fn emptied(&mut self, shard: ShardId) {
        self.entries.retain(|_, entry| {
            entry.table.as_ref().is_none_or(|mapped| mapped.table.identity.shard != shard)
        });
        self.shapes.emptied(shard);
    }

    pub fn clear(&mut self) {
        self.entries.clear();
        self.is_in_statement = false;
        self.without_rows.clear();
        self.has_old_rows = false;
    }
}

/// Whether columns have the names and the type that MariaDB gives to those of system versioning, unless the table's
/// definition names them otherwise.
fn are_versioned(columns: &[Column<'_>]) -> bool {
    ["row_start", "row_end"].iter().all(|name| {
        let is_called = |known: &[u8]| known.eq_ignore_ascii_case(name.as_bytes());
        let is_it = |column: &Column<'_>| {
            column.format == Format::Timestamp { decimals: 6 } && column.name.is_some_and(is_called)
        };
        columns.iter().any(is_it)
    })
}

/// Returns the names that the captured columns have in a table with these columns.
fn own_names<'n>(columns: &[Column<'_>], captured: &'n [ColumnNames]) -> Result<Vec<&'n str>, PlanProblem> {
    if columns.iter().any(|column| column.name.is_none()) {
        return Err(PlanProblem::NoNames);
    }
    let is_called = |column: &Column<'_>, name: &str| {
        column.name.is_some_and(|known| known.eq_ignore_ascii_case(name.as_bytes()))
    };
    let own = |names: &'n ColumnNames| names.own(|name| columns.iter().any(|column| is_called(column, name)));
    let problem = |error: Misnamed| match error {
        Misnamed::Absent(names) => PlanProblem::ColumnMissing(names.to_string()),
        Misnamed::Twice(one, other) => PlanProblem::ColumnTwice(one, other),
    };
    captured.iter().map(|names| own(names).map_err(problem)).collect()
}

impl MappedTable {
    pub fn name(&self) -> String {
        format!("table {}.{}", self.table.identity.database, self.table.identity.table)
    }

    /// Returns the name in SQL.
    pub fn quoted(&self) -> String {
        quote_table(&self.table.identity.database, &self.table.identity.table)
    }

    /// Returns why the table's shape does not fit; `None` if it does, or if a setting of the server is wrong, as that
    /// concerns every table.
    pub fn unfit(&self) -> Option<Fault> {
        let is_of_table =
            |fault: &Fault| matches!(fault.code(), Code::SourceSchemaChanged | Code::SourceTableVersioned);
        self.plan().err().filter(is_of_table)
    }

    /// Returns the plan, or the fault that says why there is none.
    pub fn plan(&self) -> Result<&Plan, Fault> {
        let mismatch = match &self.plan {
            Ok(plan) => return Ok(plan),
            Err(mismatch) => mismatch,
        };
        let fault = |code, found: String| Fault::new(code, self.name(), found);
        Err(match mismatch {
            Mismatch::Versioned => UnfitTable::Versioned.fault(self.name(), &self.quoted()),
            Mismatch::Plan(
                problem @ (PlanProblem::NoNames | PlanProblem::NoSigns(_) | PlanProblem::NoCharacterSet(_)),
            ) => {
                fault(Code::SourceMetadataNotFull, problem.to_string())
                    .needs("binlog_row_metadata = FULL when the rows were written")
                    .remedy("SET GLOBAL binlog_row_metadata = FULL")
            }
            Mismatch::Plan(problem @ PlanProblem::ColumnTwice(..)) => {
                fault(Code::SourceSchemaChanged, problem.to_string()).needs(ONE_NAME).remedy(format!(
                    "{ONE_NAME_REMEDY}; an account with rights on single columns may not see it, and then `check` \
                     does not name it"
                ))
            }
            Mismatch::Plan(problem) => fault(Code::SourceSchemaChanged, problem.to_string())
                .needs("every column that is captured")
                .remedy(
                    "set the column's new name in [entities.columns], beside the old one where other tables still have \
                     that, or add the column to the table again if it lacks it today",
                ),
            Mismatch::Type { column, needed } => {
                fault(Code::SourceSchemaChanged, format!("column {column} has another type"))
                    .needs(*needed)
                    .remedy("ALTER TABLE … MODIFY the column to such a type")
            }
            Mismatch::Text { column, unfit, needed } => {
                fault(Code::SourceSchemaChanged, format!("column {column} {unfit}"))
                    .needs(format!("{needed}, text in {NEEDED}"))
                    .remedy("ALTER TABLE … MODIFY the column to such a type")
            }
        })
    }
}
