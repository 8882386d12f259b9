//! The captured tables as `information_schema` shows them: one fault for each kind of problem, with the first table
//! that has it and how many more do.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use anabranch_pipeline::config::EntityConfig;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::change::Entity;

use super::session::{Session, column_text, literal};
use super::tables::{CapturedTables, accepted_types, accepts_data_type};
use crate::mysql::connection::{quote_identifier, quote_table};

/// Text in these does not begin with ASCII bytes for ASCII letters.
const WIDE_CHARACTER_SETS: &[&str] = &["ucs2", "utf16", "utf16le", "utf32"];

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Problem {
    Engine(String),
    ColumnMissing(usize),
    Type { field: usize, data_type: String },
    CharacterSet { field: usize, name: String },
    SelectDenied,
}

struct Column {
    name: String,
    data_type: String,
    character_set: Option<String>,
    may_select: bool,
}

type Name = (String, String);

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
    let engines = engines(session, &entities).await?;
    let transactional = transactional(session).await?;
    let columns = columns(session, &entities).await?;
    // One pattern of an entity is enough on a source: its history may lie on another.
    let is_there =
        |entity: &EntityConfig| engines.keys().any(|name| entity.tables.matches(&name.0, &name.1).is_some());
    let present: HashSet<_> = entities.iter().filter(|e| is_there(e)).map(|e| e.entity).collect();
    for entity in &entities {
        let mut problems: BTreeMap<Problem, BTreeSet<&Name>> = BTreeMap::new();
        for (name, engine) in &engines {
            if entity.tables.matches(&name.0, &name.1).is_none() {
                continue;
            }
            if let Err(fault) = tables.resolve(&name.0, &name.1) {
                faults.push(fault);
            }
            if !transactional.contains(&engine.to_ascii_lowercase()) {
                problems.entry(Problem::Engine(engine.clone())).or_default().insert(name);
            }
            let known = columns.get(name).map_or(&[][..], Vec::as_slice);
            for (field, column) in entity.columns.iter().enumerate() {
                if let Some(problem) = column_problem(entity, field, column, known) {
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

fn column_problem(entity: &EntityConfig, field: usize, name: &str, known: &[Column]) -> Option<Problem> {
    let Some(column) = known.iter().find(|column| column.name.eq_ignore_ascii_case(name)) else {
        return Some(Problem::ColumnMissing(field));
    };
    if !accepts_data_type(entity.entity, field, &column.data_type) {
        return Some(Problem::Type { field, data_type: column.data_type.clone() });
    }
    if let Some(name) = column.character_set.as_deref().filter(|name| WIDE_CHARACTER_SETS.contains(name)) {
        return Some(Problem::CharacterSet { field, name: name.to_owned() });
    }
    (!column.may_select).then_some(Problem::SelectDenied)
}

/// A condition for `information_schema` that holds for every captured table, and for some more.
fn condition(entities: &[EntityConfig]) -> String {
    let each: Vec<_> = entities
        .iter()
        .map(|entity| {
            let (database, table) = (entity.tables.database_like(), entity.tables.table_like());
            format!("(TABLE_SCHEMA LIKE {} AND TABLE_NAME LIKE {})", literal(&database), literal(&table))
        })
        .collect();
    format!("({})", each.join(" OR "))
}

async fn engines(session: &mut Session, entities: &[EntityConfig]) -> Result<BTreeMap<Name, String>, Fault> {
    let sql = format!(
        "SELECT TABLE_SCHEMA, TABLE_NAME, ENGINE FROM information_schema.TABLES \
         WHERE TABLE_TYPE = 'BASE TABLE' AND {}",
        condition(entities)
    );
    let rows = session.rows(sql).await?;
    Ok(rows
        .iter()
        .filter_map(|row| {
            let name = (column_text(row, 0)?, column_text(row, 1)?);
            Some((name, column_text(row, 2).unwrap_or_default()))
        })
        .collect())
}

async fn transactional(session: &mut Session) -> Result<HashSet<String>, Fault> {
    let sql = "SELECT LOWER(ENGINE) FROM information_schema.ENGINES WHERE TRANSACTIONS = 'YES'";
    let rows = session.rows(sql.to_owned()).await?;
    Ok(rows.iter().filter_map(|row| column_text(row, 0)).collect())
}

async fn columns(
    session: &mut Session,
    entities: &[EntityConfig],
) -> Result<HashMap<Name, Vec<Column>>, Fault> {
    let names: Vec<_> =
        entities.iter().flat_map(|entity| &entity.columns).map(|column| literal(column)).collect();
    let sql = format!(
        "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, LOWER(DATA_TYPE), LOWER(CHARACTER_SET_NAME), PRIVILEGES \
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
            may_select: text(5).split(',').any(|privilege| privilege.trim().eq_ignore_ascii_case("select")),
        });
    }
    Ok(columns)
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
        let column = |field: &usize| entity.columns.get(*field).map_or("", String::as_str);
        let usual = |field: &usize| match (entity.entity, *field) {
            (_, 0) => "BIGINT UNSIGNED",
            (Entity::User, _) => "DATE",
            (Entity::SerialCode, _) => "VARCHAR(255)",
        };
        let modify = |field: &usize| {
            format!("ALTER TABLE {quoted} MODIFY {} {}", quote_identifier(column(field)), usual(field))
        };
        match self {
            Problem::Engine(engine) => Fault::new(
                Code::SourceTableNotTransactional,
                subject,
                format!("its engine is {engine}: changes that are rolled back stay"),
            )
            .needs("an engine with transactions")
            .remedy(format!("ALTER TABLE {quoted} ENGINE = InnoDB")),
            Problem::ColumnMissing(field) => Fault::new(
                Code::SourceColumnMissing,
                subject,
                format!("no column {} that the account can see", column(field)),
            )
            .needs("the column, or its name in [entities.columns]")
            .remedy(format!(
                "ALTER TABLE {quoted} ADD COLUMN {} {}",
                quote_identifier(column(field)),
                usual(field)
            )),
            Problem::Type { field, data_type } => Fault::new(
                Code::SourceColumnUnsupported,
                subject,
                format!("column {} has type {data_type}", column(field)),
            )
            .needs(accepted_types(entity.entity, *field))
            .remedy(modify(field)),
            Problem::CharacterSet { field, name } => Fault::new(
                Code::SourceColumnUnsupported,
                subject,
                format!("column {} has character set {name}", column(field)),
            )
            .needs("a character set in which digits are ASCII bytes")
            .remedy(modify(field)),
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
