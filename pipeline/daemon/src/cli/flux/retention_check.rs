//! `flux retention check`: proves that the index has every row of tables that a person is to drop, and prints the
//! statements. It refuses all of the tables if one of them must stay.

use anabranch_pipeline::config::Removal;
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::reconcile::{SourceTable, TableProof};
use anabranch_schemas::change::Entity;
use clap::Args;
use jiff::civil::Date;
use serde::Serialize;

use super::document_tables::{DocumentTable, document_tables, refused, today};
use crate::cli::Outcome;
use crate::exit::Exit;
use crate::output;
use crate::reconciliations::prove;
use crate::wiring::Wiring;

/// Prove that the relation index has every row of tables that are due, and print the statements that drop them
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Tables as DATABASE.TABLE; * stands for any text
    #[arg(long, value_name = "NAME", required = true, num_args = 1..)]
    tables: Vec<String>,
    /// Only tables of this source: main and fail-over databases may have equal names
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
    /// The day that ages are counted to, as YYYY-MM-DD; a later day than today counts as today. Default: today, UTC
    #[arg(long, value_name = "DATE")]
    today: Option<Date>,
    /// Print one JSON object a table
    #[arg(long)]
    json: bool,
}

/// A table that may be dropped.
#[derive(Debug, Serialize)]
struct Checked {
    source: String,
    table: String,
    month: String,
    rows: u64,
    /// Rows of the index that these rows make, in all projections: they keep standing.
    index_rows: u64,
    statement: String,
}

pub(super) async fn run(wiring: &Wiring, arguments: &Arguments) -> Outcome {
    let tables = document_tables(wiring, today(arguments.today).min(today(None)))
        .await
        .map_err(|fault| vec![fault])?;
    let months = wiring.config().flux_retention().months.get();
    let chosen = choose(&tables, arguments, months)?;
    let mut checked: Vec<Checked> = chosen.iter().map(|(table, month)| Checked::new(table, month)).collect();
    let sources: Vec<SourceTable> = chosen.iter().map(|(table, _)| source_table(table)).collect();
    let mut faults = Vec::new();
    for store in stores(wiring).map_err(|fault| vec![fault])? {
        let proven = prove(wiring, &store, &sources).await.map_err(|fault| vec![fault])?;
        for ((table, proof), checked) in chosen.iter().map(|(table, _)| table).zip(proven).zip(&mut checked) {
            match proof {
                Ok(proof) if proof.is_whole() => {
                    checked.rows = proof.rows_source;
                    checked.index_rows += proof.rows_derived;
                }
                Ok(proof) => faults.push(differs(table, &store, &proof)),
                Err(why) => faults.push(
                    refused(subject(table), format!("it cannot be compared with `{store}`: {why}"))
                        .needs("lanes that have passed everything that the source had committed"),
                ),
            }
        }
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    checked.iter().for_each(|checked| _ = output::line(&checked.text(arguments.json)));
    Ok(Exit::Success)
}

/// Returns the projections of payment documents; without any there is no index to compare with.
fn stores(wiring: &Wiring) -> Result<Vec<String>, Fault> {
    let names = wiring.config().projections.iter().map(|projection| projection.name.clone());
    let is_of_documents =
        |name: &String| wiring.projection(name).is_ok_and(|known| known.entity() == Entity::Flux);
    let stores: Vec<String> = names.filter(is_of_documents).collect();
    if stores.is_empty() {
        return Err(refused("flux retention check", "the configuration has no index of payment documents")
            .needs("a projection of kind `flux_relations`, which outlives the tables"));
    }
    Ok(stores)
}

/// Returns the named tables with their months, or a fault for each that must stay.
fn choose<'t>(
    tables: &'t [DocumentTable],
    arguments: &Arguments,
    months: u32,
) -> Result<Vec<(&'t DocumentTable, String)>, Vec<Fault>> {
    let (mut chosen, mut faults) = (Vec::<(&DocumentTable, String)>::new(), Vec::new());
    for name in &arguments.tables {
        let is_meant = |table: &&DocumentTable| {
            let is_of_source = arguments.source.as_ref().is_none_or(|source| *source == table.source);
            is_of_source && is_named(name, &table.name())
        };
        let mut named = tables.iter().filter(is_meant).peekable();
        if named.peek().is_none() {
            let source = arguments.source.as_deref().unwrap_or("no source");
            faults.push(
                refused(format!("table {name}"), format!("{source} has no captured table of this name"))
                    .needs("a table that an [[entities]] entry of `flux` captures, as DATABASE.TABLE"),
            );
        }
        for table in named {
            if chosen.iter().any(|(known, _)| std::ptr::eq(*known, table)) {
                continue;
            }
            match may_go(table, months) {
                Ok(month) => chosen.push((table, month)),
                Err(fault) => faults.push(fault),
            }
        }
    }
    if faults.is_empty() { Ok(chosen) } else { Err(faults) }
}

/// Returns the month of a table that may go, as far as configuration and age say.
fn may_go(table: &DocumentTable, months: u32) -> Result<String, Fault> {
    if table.table().removal != Removal::Retain {
        let found = "its entity has `removal = \"withdraw\"`: the index would lose its rows with the table";
        return Err(refused(subject(table), found).needs(
            "`removal = \"retain\"` of its [[entities]] entry in every daemon that reads the source",
        ));
    }
    let month = table.due(months).map_err(|why| {
        refused(subject(table), why).needs(format!("a month's table that is {months} months old"))
    })?;
    Ok(month.to_string())
}

/// Returns whether a name matches; each `*` of the pattern stands for any text.
fn is_named(pattern: &str, name: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('*') else { return pattern == name };
    let Some(rest) = name.strip_prefix(head) else { return false };
    rest.char_indices().map(|(at, _)| at).chain([rest.len()]).any(|at| is_named(tail, &rest[at..]))
}

fn subject(table: &DocumentTable) -> String {
    format!("table {} of source {}", table.name(), table.source)
}

fn source_table(table: &DocumentTable) -> SourceTable {
    SourceTable { source: table.source.clone(), identity: table.table().identity.clone() }
}

fn differs(table: &DocumentTable, store: &str, proof: &TableProof) -> Fault {
    let verdicts: Vec<String> = proof
        .verdicts
        .iter()
        .map(|(verdict, rows)| format!("{rows} {}", verdict.name().replace('_', " ")))
        .chain(proof.unread.iter().cloned())
        .collect();
    refused(
        subject(table),
        format!("`{store}` differs from its {} rows: {}", proof.rows_source, verdicts.join(", ")),
    )
    .needs("every row in the index, as the table has it")
    .remedy(format!("anabranch --config FILE reconcile --now --store {store}"))
}

impl Checked {
    fn new(table: &DocumentTable, month: &str) -> Self {
        let identity = &table.table().identity;
        let quoted = |name: &str| format!("`{}`", name.replace('`', "``"));
        Self {
            source: table.source.clone(),
            table: table.name(),
            month: month.to_owned(),
            rows: 0,
            index_rows: 0,
            statement: format!("DROP TABLE {}.{};", quoted(&identity.database), quoted(&identity.table)),
        }
    }

    /// Returns the statement with its proof as a comment, so that a client of the source reads both.
    fn text(&self, is_json: bool) -> String {
        if is_json {
            return output::json(self);
        }
        let Self { source, table, month, rows, index_rows, statement } = self;
        format!(
            "-- source {source}: {table} of {month}, {rows} rows; {index_rows} index rows hold them\n{statement}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text_and_everything_else_for_itself() {
        for (pattern, is_match) in [
            ("flux_00_0.atom_05_00", true),
            ("flux_00_*.atom_*_00", true),
            ("*", true),
            ("*_00", true),
            ("flux_00_0.atom_05_0", false),
            ("flux_00_0.atom_*_01", false),
            ("atom_05_00", false),
            ("flux_00_0.atom_05_00*", true),
            ("", false),
        ] {
            assert_eq!(is_named(pattern, "flux_00_0.atom_05_00"), is_match, "{pattern}");
        }
    }
}
