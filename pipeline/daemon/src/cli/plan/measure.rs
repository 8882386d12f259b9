//! Fills the fields of a plan with figures of the configured servers, and says which figures those are.
//!
//! Sizes come from the statistics of the sources, rates from two looks at their counters, and the numbers of sources,
//! targets and lanes from the configuration. A field that neither of them tells keeps the figure of the file.

use std::collections::BTreeSet;
use std::time::Duration;

use anabranch_pipeline::config::Config;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::wall_clock;
use anabranch_schemas::capacity::fields::{Fields, Setting};
use anabranch_schemas::capacity::term::Amount;
use anabranch_schemas::change::Entity;
use futures::future::join_all;
use jiff::Timestamp;
use serde::Serialize;

use crate::cli::{Cli, block_on};
use crate::wiring::{SourceMeasure, TableSize, Wiring};

/// The sections of a plan, one for each entity.
static SECTIONS: [Section; 3] = [
    Section {
        name: "birthdays",
        entity: Entity::User,
        databases: "source_databases",
        tables: "source_tables",
        size: Size::Rows("users"),
        growth: Growth::RowsPerYear("new_users_per_year"),
    },
    Section {
        name: "serial_codes",
        entity: Entity::SerialCode,
        databases: "inventory_databases",
        tables: "inventory_tables",
        size: Size::RowBytes("inventory_row_bytes"),
        growth: Growth::RowsPerYear("devices_per_year"),
    },
    Section {
        name: "flux",
        entity: Entity::Flux,
        databases: "databases",
        tables: "tables_per_database",
        size: Size::RowBytes("row_bytes"),
        growth: Growth::RechargesPerDay("recharges_per_day"),
    },
];
const SECONDS_A_DAY: f64 = 86_400.0;
const DAYS_A_YEAR: f64 = 365.0;

/// A section of a plan: the entity that its source tables hold, and the fields that are filled.
#[derive(Debug)]
struct Section {
    name: &'static str,
    entity: Entity,
    /// The field with the number of databases.
    databases: &'static str,
    /// The field with the number of tables of a database.
    tables: &'static str,
    size: Size,
    growth: Growth,
}

/// The field of a section that the sizes of tables fill.
#[derive(Debug, Clone, Copy)]
enum Size {
    /// The rows of all tables.
    Rows(&'static str),
    /// The bytes of one row.
    RowBytes(&'static str),
}

/// The field of a section that the rate of inserted rows fills.
#[derive(Debug, Clone, Copy)]
enum Growth {
    RowsPerYear(&'static str),
    /// Recharges of a day, each of which brings several documents.
    RechargesPerDay(&'static str),
}

/// The measured servers, and the fields that were filled.
#[derive(Debug, Serialize)]
pub struct MeasuredView {
    /// The beginning of the measurement, in UTC.
    pub at: String,
    /// Seconds between the two looks at each server.
    pub seconds: u64,
    pub servers: Vec<ServerView>,
    pub fields: Vec<FieldView>,
    /// Sentences about fields that keep the figure of the file.
    pub kept: Vec<String>,
}

/// A measured source with its captured tables.
#[derive(Debug, Serialize)]
pub struct ServerView {
    pub source: String,
    pub tables: usize,
    pub rows: u64,
    pub bytes: u64,
    /// Rows that the server inserted between the two looks, and the time between them.
    pub inserted_rows: u64,
    pub window_seconds: f64,
    pub inserted_rows_per_second: f64,
    pub binlog_bytes_per_second: Option<f64>,
}

/// A field whose figure is not the file's.
#[derive(Debug, Serialize)]
pub struct FieldView {
    /// Section and field, such as `[flux] row_bytes`.
    pub field: String,
    pub value: f64,
    /// The figure of the file; `None` = the file has none.
    pub file: Option<String>,
    /// `measured` on servers or `configured`.
    pub origin: &'static str,
    pub how: String,
}

/// A source with its measured figures.
struct MeasuredSource {
    name: String,
    /// Whether its tables hold one entity only.
    has_one_entity: bool,
    measure: SourceMeasure,
}

/// Measures all sources that have tables for a section of the plan, at the same time, and fills the plan's fields.
pub fn fill_in(
    cli: &Cli,
    subject: &str,
    file: &mut Fields,
    time: Duration,
) -> Result<MeasuredView, Vec<Fault>> {
    let wiring = Wiring::new(cli.configuration()?);
    let config = wiring.config();
    let planned = |entity: &Entity| {
        SECTIONS.iter().any(|section| section.entity == *entity && file.contains_key(section.name))
    };
    let sources: Vec<_> =
        config.sources.iter().filter(|source| source.entities.iter().any(planned)).collect();
    if sources.is_empty() {
        let found = "--measure was given, and no configured source has tables for a section of it";
        return Err(vec![
            Fault::new(Code::PlanInvalid, subject, found)
                .needs(
                    "[birthdays] with a source of users, [serial_codes] with one of devices, or [flux] with one of \
                     payment documents",
                )
                .remedy("name the configuration of those servers with --config, or leave --measure out"),
        ]);
    }
    let at = i64::try_from(wall_clock::now().as_secs()).ok().and_then(|now| Timestamp::from_second(now).ok());
    let looked = block_on(join_all(sources.iter().map(async |source| {
        let measure = wiring.source(&source.name)?.measure(time).await?;
        let has_one_entity = source.entities.len() == 1;
        Ok::<_, Fault>(MeasuredSource { name: source.name.clone(), has_one_entity, measure })
    })))?;
    let (mut measured, mut faults) = (Vec::new(), Vec::new());
    for one in looked {
        match one {
            Ok(source) => measured.push(source),
            Err(fault) => faults.push(fault),
        }
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let (fields, kept) = fill(file, config, &measured);
    Ok(MeasuredView {
        at: at.unwrap_or_default().to_string(),
        seconds: time.as_secs(),
        servers: measured.iter().map(ServerView::of).collect(),
        fields,
        kept,
    })
}

/// Fills every section of the file that has an entity here. Returns the filled fields and sentences about others.
fn fill(file: &mut Fields, config: &Config, measured: &[MeasuredSource]) -> (Vec<FieldView>, Vec<String>) {
    let (mut filled, mut kept) = (Vec::new(), Vec::new());
    for section in &SECTIONS {
        let Some(Setting::Table(fields)) = file.get_mut(section.name) else { continue };
        let mut filling = Filling { section, fields, filled: Vec::new(), kept: Vec::new() };
        if config.sources.iter().any(|source| source.entities.contains(&section.entity)) {
            filling.configured(config);
            filling.sizes(config, measured);
            filling.rate(measured);
        } else {
            let entity = section.entity.name();
            filling.kept.push(format!("[{}]: no configured source has the entity {entity}", section.name));
        }
        filled.extend(filling.filled);
        kept.extend(filling.kept);
    }
    (filled, kept)
}

/// One section of a plan while it is filled.
struct Filling<'f> {
    section: &'static Section,
    fields: &'f mut Fields,
    filled: Vec<FieldView>,
    kept: Vec<String>,
}

impl Filling<'_> {
    /// Sets a field to a whole number; every such field is 1 at least.
    fn set(&mut self, field: &str, value: f64, origin: &'static str, how: String) {
        let value = value.round().max(1.0);
        let before = self.fields.insert(field.to_owned(), Setting::Integer(value as i64));
        self.filled.push(FieldView {
            field: format!("[{}] {field}", self.section.name),
            value,
            file: before.map(|setting| match amount(&setting) {
                Some(amount) => amount.to_string(),
                None => "no number".to_owned(),
            }),
            origin,
            how,
        });
    }

    fn keep(&mut self, field: &str, why: &str) {
        let section = self.section.name;
        self.kept.push(format!("[{section}] {field}: the figure of the file stands, because {why}"));
    }

    fn configured(&mut self, config: &Config) {
        let entity = self.section.entity;
        let sources = config.sources.iter().filter(|source| source.entities.contains(&entity)).count();
        let how = format!("sources with the entity {}", entity.name());
        self.set("sources", sources as f64, "configured", how);
        let Some(projection) = config.projections.iter().find(|known| known.kind.entity() == entity) else {
            self.keep("targets and lanes", "no projection has this entity");
            return;
        };
        let how = format!("projection {}", projection.name);
        self.set("targets", projection.targets.len() as f64, "configured", how.clone());
        self.set("lanes", f64::from(projection.lanes.get()), "configured", how);
    }

    /// Fills databases, tables, rows and bytes of a row from the sizes of the entity's tables.
    fn sizes(&mut self, config: &Config, measured: &[MeasuredSource]) {
        let section = self.section;
        let tables: Vec<(&str, &TableSize)> = measured
            .iter()
            .flat_map(|source| source.measure.tables.iter().map(move |table| (source.name.as_str(), table)))
            .filter(|(_, size)| size.table.entity == section.entity)
            .collect();
        if tables.is_empty() {
            self.keep("databases and tables", "the sources have no such table yet");
            return;
        }
        let is_by_identifier = section.entity.is_placed_by_identifier();
        // The number in a name is a digit of the identifier, so a fail-over source repeats the names of the main one.
        let databases: BTreeSet<(&str, &str)> = tables
            .iter()
            .map(|&(source, size)| (if is_by_identifier { "" } else { source }, &*size.table.database))
            .collect();
        let each = if is_by_identifier {
            let partition = |size: &TableSize| config.flux_places.of_table(&size.table).partition;
            let pairs: BTreeSet<_> =
                tables.iter().map(|&(_, size)| (&*size.table.database, partition(size))).collect();
            pairs.len()
        } else {
            tables.len()
        };
        let how = format!("{} captured tables that exist", Amount::of(tables.len() as f64));
        self.set(section.databases, databases.len() as f64, "measured", how.clone());
        self.set(section.tables, each.div_ceil(databases.len()) as f64, "measured", how);
        let rows: u64 = tables.iter().map(|(_, size)| size.rows).sum();
        let bytes: u64 = tables.iter().map(|(_, size)| size.bytes).sum();
        self.rows(rows as f64, bytes as f64);
    }

    fn rows(&mut self, rows: f64, bytes: f64) {
        let (Size::Rows(field) | Size::RowBytes(field)) = self.section.size;
        if rows == 0.0 {
            self.keep(field, "the tables are empty, by the statistics of the sources");
            return;
        }
        let (rows_text, bytes_text) = (Amount::of(rows), Amount::of(bytes));
        match self.section.size {
            Size::Rows(field) => {
                self.set(field, rows, "measured", "rows, by the statistics of the sources".to_owned());
            }
            Size::RowBytes(field) => {
                let how = format!(
                    "{bytes_text} bytes of rows and indexes ÷ {rows_text} rows, by the statistics of the sources"
                );
                self.set(field, bytes / rows, "measured", how);
            }
        }
    }

    /// Fills the growth from the rows that the sources inserted, if all of those may be the entity's.
    fn rate(&mut self, measured: &[MeasuredSource]) {
        let Section { entity, growth, .. } = self.section;
        let (Growth::RowsPerYear(field) | Growth::RechargesPerDay(field)) = *growth;
        let holds =
            |source: &&MeasuredSource| source.measure.tables.iter().any(|size| size.table.entity == *entity);
        let sources: Vec<_> = measured.iter().filter(holds).collect();
        if let Some(shared) = sources.iter().find(|source| !source.has_one_entity) {
            let why =
                format!("source {} has several entities, and its counter does not say which", shared.name);
            self.keep(field, &why);
            return;
        }
        let rate: f64 = sources.iter().map(|source| source.measure.inserted_rows_per_second()).sum();
        if rate == 0.0 {
            self.keep(field, "no row was inserted meanwhile");
            return;
        }
        let text = format!("{} rows inserted a second, of all tables of the servers", Amount::of(rate));
        let a_day = rate * SECONDS_A_DAY;
        match (growth, self.documents_per_recharge()) {
            (Growth::RowsPerYear(field), _) => {
                self.set(field, a_day * DAYS_A_YEAR, "measured", text);
            }
            (Growth::RechargesPerDay(field), Some(documents)) => {
                let how = format!("{text}, ÷ {} documents of a recharge by the file", Amount::of(documents));
                self.set(field, a_day / documents, "measured", how);
            }
            (Growth::RechargesPerDay(field), None) => {
                self.keep(field, "atoms_per_recharge, refund_percent or atoms_per_refund is no number");
            }
        }
    }

    /// Returns the documents that a recharge brings with its atoms and its share of refunds.
    fn documents_per_recharge(&self) -> Option<f64> {
        let of = |field: &str| {
            let amount = amount(self.fields.get(field)?)?;
            Some(f64::midpoint(amount.low, amount.high))
        };
        let (atoms, refunds, refund_atoms) =
            (of("atoms_per_recharge")?, of("refund_percent")?, of("atoms_per_refund")?);
        let documents = 1.0 + atoms + refunds / 100.0 * (1.0 + refund_atoms);
        (documents.is_finite() && documents >= 1.0).then_some(documents)
    }
}

/// Returns the number of a field, or its two.
fn amount(setting: &Setting) -> Option<Amount> {
    match setting {
        Setting::Integer(number) => Some(Amount::of(*number as f64)),
        Setting::Decimal(number) => Some(Amount::of(*number)),
        Setting::List(two) => match two.as_slice() {
            [low, high] => Some(Amount { low: amount(low)?.low, high: amount(high)?.high }),
            _ => None,
        },
        Setting::Flag(_) | Setting::Text(_) | Setting::Table(_) => None,
    }
}

impl ServerView {
    fn of(source: &MeasuredSource) -> Self {
        let measure = &source.measure;
        let SourceMeasure { tables, inserted_rows, seconds, binlog_bytes_per_second } = measure;
        Self {
            source: source.name.clone(),
            tables: tables.len(),
            rows: tables.iter().map(|size| size.rows).sum(),
            bytes: tables.iter().map(|size| size.bytes).sum(),
            inserted_rows: *inserted_rows,
            window_seconds: *seconds,
            inserted_rows_per_second: measure.inserted_rows_per_second(),
            binlog_bytes_per_second: *binlog_bytes_per_second,
        }
    }

    /// Returns one line for a person.
    pub fn text(&self) -> String {
        let number = |number: f64| Amount::of(number).to_string();
        let bytes = |bytes: f64| anabranch_schemas::capacity::term::bytes(Amount::of(bytes));
        let binlog = match self.binlog_bytes_per_second {
            Some(rate) => format!("{} of binlog a second", bytes(rate)),
            None => "an unknown rate of binlog".to_owned(),
        };
        format!(
            "source {}: {} captured tables, {} rows, {}; {} rows inserted a second, {binlog}",
            self.source,
            number(self.tables as f64),
            number(self.rows as f64),
            bytes(self.bytes as f64),
            number(self.inserted_rows_per_second)
        )
    }
}

impl FieldView {
    /// Returns one line for a person.
    pub fn text(&self) -> String {
        let file = self.file.as_deref().unwrap_or("none");
        let Self { field, value, origin, how, .. } = self;
        format!("{field} = {} (file: {file}), {origin}: {how}", Amount::of(*value))
    }
}

impl MeasuredView {
    /// Returns the heading and all lines for a person.
    pub fn text(&self) -> (String, Vec<String>) {
        let heading = format!("Measured at {}, rates over {} s", self.at, self.seconds);
        let servers = self.servers.iter().map(ServerView::text);
        let fields = self.fields.iter().map(FieldView::text);
        (heading, servers.chain(fields).chain(self.kept.iter().cloned()).collect())
    }
}

#[cfg(test)]
mod tests;
