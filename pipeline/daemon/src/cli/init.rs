//! `init`: surveys sources and writes a configuration that fits them.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anabranch_pipeline::config::{ColumnNames, ServerUrl, is_name};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::change::Entity;
use clap::Args;

use super::new_file::{create, unwritable};
use super::{Outcome, block_on};
use crate::exit::Exit;
use crate::output;
use crate::proposal::families::{Family, ListedTable, families};
use crate::proposal::placement::{self, Sample};
use crate::proposal::recognised::{Recognised, recognise};
use crate::proposal::{Addresses, FoundSource, Placement, Proposal, Proposed};
use crate::wiring::{Survey, SurveyedColumn};

/// Tables of a family, at most, whose rows are read to find its rule.
const SAMPLED_TABLES: usize = 16;
const ROWS_A_TABLE: usize = 40;
/// Rights of the file: a configuration holds names of variables in place of secrets.
const MODE: u32 = 0o644;
/// Columns of text that a rule may read beside the key, at most.
const RULE_COLUMNS_MAX: usize = 8;

/// Ask sources what they have, and write a commented configuration; changes nothing on any server
///
/// Addresses are given as names of environment variables, because each account of the machine sees a command line: the
/// file says `url = "${NAME}"`. To find the rule by which rows are shared out, 40 rows of 16 tables are read; none of
/// their values is printed or kept.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Environment variable with the address of a source (mysql://user:password@host:port), with a name before it if
    /// you like: source-a=SOURCE_A_URL; once for each source
    #[arg(long = "source", value_name = "[NAME=]VARIABLE", required = true)]
    sources: Vec<String>,
    /// Environment variable with the address of the target; it is not connected to
    #[arg(long, value_name = "VARIABLE", default_value = "ANABRANCH_TARGET_URL")]
    target: String,
    /// Environment variable with the address of NATS; it is not connected to
    #[arg(long, value_name = "VARIABLE", default_value = "ANABRANCH_NATS_URL")]
    log: String,
    /// CA certificate of all these servers, for TLS
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// The file to write; an existing one is not overwritten. Default: standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn run(arguments: &Arguments) -> Outcome {
    let sources = named_sources(&arguments.sources)?;
    for variable in [&arguments.target, &arguments.log] {
        variable_name(variable)?;
    }
    let ca_file = match &arguments.ca_file {
        Some(file) => Some(absolute(file)?),
        None => None,
    };
    let addresses =
        Addresses { log: arguments.log.clone(), target: arguments.target.clone(), ca_file: ca_file.clone() };
    let proposal = block_on(async { survey(addresses, sources, ca_file.map(PathBuf::from)).await })??;
    let text = proposal.text();
    match &arguments.output {
        None => _ = output::line(text.trim_end()),
        Some(file) => {
            let written = create(file, MODE).and_then(|mut opened| {
                opened.write_all(text.as_bytes()).map_err(|error| unwritable(file, error))
            });
            written.map_err(|fault| vec![fault])?;
            print_proposal(&proposal, file);
        }
    }
    if proposal.is_complete() {
        return Ok(Exit::Success);
    }
    let asked: Vec<&str> = proposal.sources.iter().map(|source| source.name.as_str()).collect();
    let found =
        "no table was found that can be captured whole; the configuration has comments in place of tables";
    Err(vec![
        Fault::new(Code::SourceTableMissing, format!("source {}", asked.join(", ")), found)
            .needs("a table of users (a key of one column and a birthday) or of devices (uuid and codes)")
            .remedy("name the tables by hand; an account sees only those that it may read (GRANT SELECT)"),
    ])
}

/// Returns the name and the variable of each source.
fn named_sources(given: &[String]) -> Result<Vec<(String, String)>, Vec<Fault>> {
    let mut seen = BTreeSet::new();
    given
        .iter()
        .map(|text| {
            let (name, variable) = match text.split_once('=') {
                Some((name, variable)) => (name.to_owned(), variable),
                None => (name_of(text), text.as_str()),
            };
            variable_name(variable)?;
            let is_sound = is_name(&name);
            if !is_sound || !seen.insert(name.clone()) {
                let found = if is_sound { "two sources with one name" } else { "not a name of a source" };
                let needed = "1 to 32 letters, digits, `-` and `_`, once for each source";
                return Err(vec![
                    Fault::new(Code::ConfigInvalid, format!("--source {name}"), found).needs(needed),
                ]);
            }
            Ok((name, variable.to_owned()))
        })
        .collect()
}

/// Returns `source-a` for `ANABRANCH_SOURCE_A_URL`.
fn name_of(variable: &str) -> String {
    let bare = variable.strip_prefix("ANABRANCH_").unwrap_or(variable);
    bare.strip_suffix("_URL").unwrap_or(bare).to_ascii_lowercase().replace('_', "-")
}

/// Refuses a text that is no name of a variable without repeating it: it may be an address with its password.
fn variable_name(text: &str) -> Result<(), Vec<Fault>> {
    let is_sound = !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !text.starts_with(|first: char| first.is_ascii_digit());
    if is_sound {
        return Ok(());
    }
    let fault =
        Fault::new(Code::ConfigInvalid, "an address of `init`", "not a name of an environment variable");
    Err(vec![
        fault
            .needs("the name of a variable that holds the address, so that no password is on a command line")
            .remedy("export SOURCE_URL='mysql://user:password@host:3306', then --source SOURCE_URL"),
    ])
}

fn absolute(file: &Path) -> Result<String, Vec<Fault>> {
    let path = std::path::absolute(file).ok().and_then(|path| path.into_os_string().into_string().ok());
    path.ok_or_else(|| {
        let subject = format!("--ca-file {}", file.display());
        vec![Fault::new(Code::ConfigInvalid, subject, "no path in UTF-8").needs("a PEM file of the CA")]
    })
}

/// Asks each server for its tables, and one table of each family for its columns.
async fn survey(
    addresses: Addresses,
    named: Vec<(String, String)>,
    ca_file: Option<PathBuf>,
) -> Result<Proposal, Vec<Fault>> {
    let (mut sources, mut servers, mut listed) = (Vec::new(), Vec::new(), Vec::new());
    for (place, (name, variable)) in named.into_iter().enumerate() {
        let url = ServerUrl::try_from(format!("${{{variable}}}")).map_err(|found| {
            vec![Fault::new(Code::ConfigInvalid, format!("address of source {name}"), found)]
        })?;
        if url.scheme() != "mysql" {
            let found = format!("scheme `{}`", url.scheme());
            let subject = format!("address of source {name}");
            return Err(vec![Fault::new(Code::ConfigInvalid, subject, found).needs("mysql://")]);
        }
        let mut server = Survey::open(&name, url, ca_file.clone()).await.map_err(|fault| vec![fault])?;
        let tables = server.tables().await.map_err(|fault| vec![fault])?;
        listed.extend(tables.into_iter().map(|(database, table)| ListedTable {
            server: place,
            database,
            table,
        }));
        let settings = server.settings().await.map_err(|fault| vec![fault])?;
        sources.push(FoundSource { name, variable, server: server.server(), settings });
        servers.push(server);
    }
    let (mut proposed, mut others) = (Vec::new(), Vec::new());
    for family in families(listed) {
        match recognise_family(&mut servers, &family).await.map_err(|fault| vec![fault])? {
            Some((recognised, placement)) => proposed.push(Proposed { family, recognised, placement }),
            None => others.push(family),
        }
    }
    Ok(Proposal { addresses, sources, proposed, others })
}

/// Returns the entity of a family and the rule that shares out its rows; `None` = neither users nor devices.
async fn recognise_family(
    servers: &mut [Survey],
    family: &Family,
) -> Result<Option<(Recognised, Option<Placement>)>, Fault> {
    let Some(first) = family.tables.first() else { return Ok(None) };
    let (database, table) = (&first.listed.database, &first.listed.table);
    let columns = servers[first.listed.server].columns(database, table).await?;
    let Some(mut recognised) = recognise(&columns) else { return Ok(None) };
    let read = rule_columns(&recognised, &columns);
    let mut samples = Vec::new();
    let step = family.tables.len().div_ceil(SAMPLED_TABLES).max(1);
    for member in family.tables.iter().step_by(step) {
        let server = &mut servers[member.listed.server];
        let (database, table) = (&member.listed.database, &member.listed.table);
        // A rename that is being rolled out has reached some of the tables.
        let own = recognise(&server.columns(database, table).await?);
        let Some(own) = own.filter(|own| own.entity == recognised.entity) else { continue };
        recognised.add_names(&own);
        let own_key = own.columns.first().map(|(_, names)| names.first().to_owned());
        let read: Vec<String> = own_key.into_iter().chain(read.iter().skip(1).cloned()).collect();
        let rows = server.values(database, table, &read, ROWS_A_TABLE).await?;
        samples.extend(rows.into_iter().map(|values| Sample {
            database: member.database,
            table: member.table,
            values,
        }));
    }
    let (databases, tables) = family.extent();
    let placement = placement::find(&samples, read.len(), databases, tables)
        .map(|found| Placement { column: rule_column(&recognised, &read[found.column]), found });
    Ok(Some((recognised, placement)))
}

/// Returns the columns that a rule may read: the key, and for users the columns that may hold a name.
fn rule_columns(recognised: &Recognised, columns: &[SurveyedColumn]) -> Vec<String> {
    let key = recognised.columns.first().map(|(_, names)| names.first().to_owned());
    let is_captured = |name: &str| recognised.columns.iter().any(|(_, names)| names.has(name));
    let names = columns.iter().filter(|column| {
        recognised.entity == Entity::User
            && matches!(column.data_type.as_str(), "char" | "varchar")
            && !is_captured(&column.name)
    });
    key.into_iter().chain(names.map(|column| column.name.clone()).take(RULE_COLUMNS_MAX)).collect()
}

/// Returns the names of the column that a rule reads: all of them for a captured column.
fn rule_column(recognised: &Recognised, name: &str) -> ColumnNames {
    let captured = recognised.columns.iter().map(|(_, names)| names).find(|names| names.has(name));
    captured.cloned().unwrap_or_else(|| name.into())
}

fn print_proposal(proposal: &Proposal, file: &Path) {
    for proposed in &proposal.proposed {
        let (pattern, entity) = (&proposed.family.pattern, proposed.recognised.entity.name());
        _ = output::line(&format!("{pattern}: {} tables of entity {entity}", proposed.family.tables.len()));
    }
    let file = file.display();
    _ = output::line(&format!("written: {file}. Check it, then: anabranch --config {file} check"));
}
