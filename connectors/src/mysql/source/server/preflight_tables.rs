//! Checks the captured tables in `information_schema`: one fault for each kind of problem, with the first table that
//! has it and the number of others.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use anabranch_pipeline::config::{ColumnNames, EntityConfig, MarkerTable, Misnamed};
use anabranch_pipeline::error::{Code, Fault};
use sqlx::mysql::MySqlRow;

use super::own_names::{ONE_NAME, ONE_NAME_REMEDY};
use super::session::{Session, column_text, literal};
use super::tables::{CapturedTables, accepted_types, accepts_data_type};
use super::unfit_tables::UnfitTable;
use crate::mysql::connection::{quote_identifier, quote_table};
use crate::mysql::source::decode::character_sets::{NEEDED, is_refused};

/// Actions of a foreign key that change rows of its child.
const ACTIVE: &str = "'CASCADE', 'SET NULL', 'SET DEFAULT'";

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Problem {
    Table(UnfitTable),
    ColumnMissing(usize),
    ColumnTwice(String, String),
    Unfit { field: usize, column: String, reason: Unfit },
    SelectDenied,
}

/// The reason why a column cannot be captured.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Unfit {
    Type(String),
    CharacterSet(String),
    Compressed,
}

struct Column {
    name: String,
    data_type: String,
    character_set: Option<String>,
    /// MariaDB stores its values compressed, and also logs them compressed.
    is_compressed: bool,
    may_select: bool,
}

type Name = (String, String);

/// A table's engine, and whether it keeps the history of its rows.
struct Kind {
    engine: String,
    is_versioned: bool,
}

impl Kind {
    /// Returns why row events of the table do not show every change, if there are reasons.
    fn unfit(&self, transactional: &HashSet<String>) -> impl Iterator<Item = UnfitTable> + use<> {
        let has_transactions = transactional.contains(&self.engine.to_ascii_lowercase());
        let engine = (!has_transactions).then(|| UnfitTable::Engine(self.engine.clone()));
        self.is_versioned.then_some(UnfitTable::Versioned).into_iter().chain(engine)
    }
}

/// Returns the tables of these entities' patterns, and possibly some others, whose row events do not show every change.
pub async fn unfit_tables(
    session: &mut Session,
    entities: &[EntityConfig],
) -> Result<Vec<(Name, UnfitTable)>, Fault> {
    if entities.is_empty() {
        return Ok(Vec::new());
    }
    let transactional = transactional(session).await?;
    let kinds = kinds(session, entities).await?;
    let reasons = kinds
        .into_iter()
        .flat_map(|(name, kind)| kind.unfit(&transactional).map(move |how| (name.clone(), how)));
    Ok(reasons.collect())
}

pub async fn check(
    session: &mut Session,
    mut tables: CapturedTables,
    account: &str,
    faults: &mut Vec<Fault>,
) -> Result<(), Fault> {
    let entities: Vec<EntityConfig> = tables.entities().cloned().collect();
    if entities.is_empty() {
        return Ok(());
    }
    let kinds = kinds(session, &entities).await?;
    let transactional = transactional(session).await?;
    let columns = columns(session, &entities).await?;
    // On a source one matching pattern of an entity is enough: tables of its other patterns may be on another source.
    let is_there =
        |entity: &EntityConfig| kinds.keys().any(|name| entity.tables.matches(&name.0, &name.1).is_some());
    let present: HashSet<_> = entities.iter().filter(|e| is_there(e)).map(|e| e.entity).collect();
    let databases: BTreeSet<&str> = (kinds.keys())
        .filter(|name| entities.iter().any(|entity| entity.tables.matches(&name.0, &name.1).is_some()))
        .map(|name| name.0.as_str())
        .collect();
    let marker = entities.iter().find_map(|entity| entity.retention_marker.as_ref());
    faults.extend(filter_fault(session, &databases, marker).await);
    for entity in &entities {
        let mut problems: BTreeMap<Problem, BTreeSet<&Name>> = BTreeMap::new();
        for (name, kind) in &kinds {
            if entity.tables.matches(&name.0, &name.1).is_none() {
                continue;
            }
            if let Err(fault) = tables.resolve(&name.0, &name.1) {
                faults.push(fault);
            }
            for how in kind.unfit(&transactional) {
                problems.entry(Problem::Table(how)).or_default().insert(name);
            }
            let known = columns.get(name).map_or(&[][..], Vec::as_slice);
            for (field, names) in entity.columns.iter().enumerate() {
                if let Some(problem) = column_problem(entity, field, names, known) {
                    problems.entry(problem).or_default().insert(name);
                }
            }
        }
        if !present.contains(&entity.entity) {
            faults.push(no_table(session.subject(), entity, account));
        }
        faults.extend(problems.iter().map(|(problem, names)| problem.fault(entity, names, account)));
    }
    Ok(())
}

fn column_problem(
    entity: &EntityConfig,
    field: usize,
    names: &ColumnNames,
    known: &[Column],
) -> Option<Problem> {
    let find = |name: &str| known.iter().find(|column| column.name.eq_ignore_ascii_case(name));
    let column = match names.own(|name| find(name).is_some()) {
        Ok(name) => find(name)?,
        Err(Misnamed::Absent(_)) => return Some(Problem::ColumnMissing(field)),
        Err(Misnamed::Twice(one, other)) => return Some(Problem::ColumnTwice(one, other)),
    };
    let unfit = |reason| Some(Problem::Unfit { field, column: column.name.clone(), reason });
    if !accepts_data_type(entity.entity, field, &column.data_type) {
        return unfit(Unfit::Type(column.data_type.clone()));
    }
    if let Some(name) = column.character_set.as_deref().filter(|name| is_refused(name)) {
        return unfit(Unfit::CharacterSet(name.to_owned()));
    }
    if column.is_compressed {
        return unfit(Unfit::Compressed);
    }
    (!column.may_select).then_some(Problem::SelectDenied)
}

/// Returns a condition for `information_schema` that holds for every captured table, and possibly for some others.
pub fn condition(entities: &[EntityConfig]) -> String {
    let each: Vec<_> = entities
        .iter()
        .map(|entity| {
            let (database, table) = (entity.tables.database_like(), entity.tables.table_like());
            format!("(TABLE_SCHEMA LIKE {} AND TABLE_NAME LIKE {})", literal(&database), literal(&table))
        })
        .collect();
    format!("({})", each.join(" OR "))
}

/// Returns the databases that have captured tables, and possibly some others.
pub async fn databases(session: &mut Session, entities: &[EntityConfig]) -> Result<Vec<String>, Fault> {
    if entities.is_empty() {
        return Ok(Vec::new());
    }
    let sql = format!(
        "SELECT DISTINCT TABLE_SCHEMA FROM information_schema.TABLES WHERE {} ORDER BY TABLE_SCHEMA",
        condition(entities)
    );
    Ok(session.rows(sql).await?.iter().filter_map(|row| column_text(row, 0)).collect())
}

async fn kinds(session: &mut Session, entities: &[EntityConfig]) -> Result<BTreeMap<Name, Kind>, Fault> {
    const VERSIONED: &str = "SYSTEM VERSIONED";
    let sql = format!(
        "SELECT TABLE_SCHEMA, TABLE_NAME, ENGINE, TABLE_TYPE FROM information_schema.TABLES \
         WHERE TABLE_TYPE IN ('BASE TABLE', '{VERSIONED}') AND {}",
        condition(entities)
    );
    let rows = session.rows(sql).await?;
    Ok(rows
        .iter()
        .filter_map(|row| {
            let name = (column_text(row, 0)?, column_text(row, 1)?);
            let engine = column_text(row, 2).unwrap_or_default();
            let is_versioned = column_text(row, 3).is_some_and(|kind| kind == VERSIONED);
            Some((name, Kind { engine, is_versioned }))
        })
        .collect())
}

/// Returns the engines with transactions, in lower case.
pub async fn transactional(session: &mut Session) -> Result<HashSet<String>, Fault> {
    let sql = "SELECT LOWER(ENGINE) FROM information_schema.ENGINES WHERE TRANSACTIONS = 'YES'";
    let rows = session.rows(sql.to_owned()).await?;
    Ok(rows.iter().filter_map(|row| column_text(row, 0)).collect())
}

async fn columns(
    session: &mut Session,
    entities: &[EntityConfig],
) -> Result<HashMap<Name, Vec<Column>>, Fault> {
    let names: Vec<_> =
        entities.iter().flat_map(|entity| &entity.columns).flat_map(ColumnNames::iter).map(literal).collect();
    let sql = format!(
        "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, LOWER(DATA_TYPE), LOWER(CHARACTER_SET_NAME), PRIVILEGES, \
         COLUMN_TYPE \
         FROM information_schema.COLUMNS WHERE COLUMN_NAME IN ({}) AND {}",
        names.join(", "),
        condition(entities)
    );
    let rows = session.rows(sql).await?;
    let mut columns: HashMap<Name, Vec<Column>> = HashMap::new();
    for row in &rows {
        let text = |index| column_text(row, index).unwrap_or_default();
        columns.entry((text(0), text(1))).or_default().push(Column {
            name: text(2),
            data_type: text(3),
            character_set: column_text(row, 4),
            // `varchar(20) /*M!100301 COMPRESSED*/`
            is_compressed: text(6).ends_with("COMPRESSED*/"),
            may_select: text(5).split(',').any(|privilege| privilege.trim().eq_ignore_ascii_case("select")),
        });
    }
    Ok(columns)
}

/// Finds a captured database, or that of the marker table, whose changes the server keeps out of its binlog.
async fn filter_fault(
    session: &mut Session,
    databases: &BTreeSet<&str>,
    marker: Option<&MarkerTable>,
) -> Option<Fault> {
    // Another check reports an account that may not ask.
    let (only, not) = session.binlog_filters().await.ok()?;
    let is_left_out = |is_meant: &dyn Fn(&str) -> bool| {
        let lists = |list: &[String]| list.iter().any(|name| is_meant(name));
        if only.is_empty() { lists(&not) } else { !lists(&only) }
    };
    let captured = databases.iter().find(|database| is_left_out(&|name: &str| name == **database));
    // The server may store the marker's names in lower case.
    let is_unseen =
        |marker: &&MarkerTable| is_left_out(&|name: &str| name.eq_ignore_ascii_case(&marker.database));
    let database = match captured {
        Some(database) => format!("captured database {database}"),
        None => format!("database {} of flux.retention_marker", marker.filter(is_unseen)?.database),
    };
    let setting = if only.is_empty() { "binlog_ignore_db names it" } else { "binlog_do_db does not name it" };
    let found = format!("{database} is not in the binlog: {setting}");
    let fault = Fault::new(Code::SourceBinlogOff, session.subject(), found).needs("the whole binlog");
    Some(fault.remedy(
        "remove binlog_do_db and binlog_ignore_db from its configuration, restart it, and refresh it",
    ))
}

/// Finds a foreign key that changes rows of a captured table, which it does without row events. It is no fault, since
/// the parent's rows may change rarely.
pub async fn cascade_warning(
    session: &mut Session,
    entities: &[EntityConfig],
) -> Result<Option<String>, Fault> {
    if entities.is_empty() {
        return Ok(None);
    }
    let sql = format!(
        "SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, DELETE_RULE, UPDATE_RULE \
         FROM information_schema.REFERENTIAL_CONSTRAINTS \
         WHERE (DELETE_RULE IN ({ACTIVE}) OR UPDATE_RULE IN ({ACTIVE})) AND {}",
        condition(entities).replace("TABLE_SCHEMA", "CONSTRAINT_SCHEMA")
    );
    let rows = session.rows(sql).await?;
    let text = |row: &MySqlRow, index| column_text(row, index).unwrap_or_default();
    let is_captured = |database: &str, table: &str| {
        entities.iter().any(|entity| entity.tables.matches(database, table).is_some())
    };
    let mut captured = rows.iter().filter(|row| is_captured(&text(row, 0), &text(row, 1)));
    let Some(first) = captured.next() else { return Ok(None) };
    let has_marker = |row: &MySqlRow| {
        let is_table = |entity: &EntityConfig| entity.tables.matches(&text(row, 0), &text(row, 1)).is_some();
        entities.iter().any(|entity| entity.retention_marker.is_some() && is_table(entity))
    };
    let marked = match rows.iter().any(has_marker) {
        true => {
            "; flux.retention_marker keeps no row that a key deletes: let the job delete the children first"
        }
        false => "",
    };
    Ok(Some(format!(
        "{}: foreign key {} (ON DELETE {}, ON UPDATE {}) changes rows of captured table {}.{}, and the binlog does not \
         show them; {} more such keys; MariaDB: each DELETE or UPDATE of a parent costs a reading of its children, and \
         only a reconciliation finds the changes in a table whose key leads to itself; \
         MySQL: only a reconciliation finds these changes, unless innodb_native_foreign_keys is OFF (9.6 and \
         later){marked}",
        session.subject(),
        text(first, 2),
        text(first, 3),
        text(first, 4),
        text(first, 0),
        text(first, 1),
        captured.count()
    )))
}

fn no_table(subject: &str, entity: &EntityConfig, account: &str) -> Fault {
    let database = entity.tables.database_like();
    Fault::new(Code::SourceTableMissing, subject, format!("no table matches {}", entity.tables))
        .needs("at least one such table, on which the account has SELECT")
        .remedy(format!("GRANT SELECT ON {}.* TO {account}", quote_identifier(&database)))
}

impl Problem {
    fn fault(&self, entity: &EntityConfig, names: &BTreeSet<&Name>, account: &str) -> Fault {
        let (database, table) = names.first().map_or(("", ""), |name| (name.0.as_str(), name.1.as_str()));
        let subject = match names.len() {
            1 => format!("table {database}.{table}"),
            count => format!("table {database}.{table} and {} more", count - 1),
        };
        let quoted = quote_table(database, table);
        match self {
            Problem::Table(how) => how.fault(subject, &quoted),
            Problem::ColumnMissing(field) => {
                let names = &entity.columns[*field];
                let found = format!("no column {names} that the account can see");
                Fault::new(Code::SourceColumnMissing, subject, found)
                    .needs("the column, or its name in [entities.columns]")
                    .remedy(format!(
                        "ALTER TABLE {quoted} ADD COLUMN {} {}",
                        quote_identifier(names.first()),
                        entity.entity.fields()[*field].column_type
                    ))
            }
            Problem::ColumnTwice(one, other) => {
                let found = format!("it has columns {one} and {other}, two names of one captured column");
                Fault::new(Code::SourceColumnAmbiguous, subject, found)
                    .needs(ONE_NAME)
                    .remedy(ONE_NAME_REMEDY)
            }
            Problem::Unfit { field, column, reason } => {
                let (found, needed) = match reason {
                    Unfit::Type(name) => (format!("has type {name}"), accepted_types(entity.entity, *field)),
                    Unfit::CharacterSet(name) => (format!("has character set {name}"), NEEDED),
                    Unfit::Compressed => (
                        "is COMPRESSED: its row events hold compressed bytes".to_owned(),
                        "a column that is not COMPRESSED",
                    ),
                };
                Fault::new(Code::SourceColumnUnsupported, subject, format!("column {column} {found}"))
                    .needs(needed)
                    .remedy(format!(
                        "ALTER TABLE {quoted} MODIFY {} {}",
                        quote_identifier(column),
                        entity.entity.fields()[*field].column_type
                    ))
            }
            Problem::SelectDenied => Fault::new(
                Code::SourceGrantMissing,
                subject,
                format!("{account} may not read its captured columns"),
            )
            .needs("SELECT")
            .remedy(format!(
                "GRANT SELECT ON {}.* TO {account}",
                quote_identifier(&entity.tables.database_like())
            )),
        }
    }
}
