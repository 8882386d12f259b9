//! Removes the derived rows of one table that is gone from its source, and ends the wait of lanes that are to read it
//! again. Rows of a retained table stand on purpose: only the wait ends.
//!
//! The configuration has the source, and its lanes may run: no lane writes rows of a table that does not exist, and a
//! row that a lane writes over one that was read has another version, and stays. A captured table that comes back
//! meanwhile is seen before each step. Another file may have a source that this one lacks, so no table of such a source
//! is removed.

use std::collections::BTreeSet;

use anabranch_pipeline::config::{EntityConfig, Removal, SourceConfig};
use anabranch_pipeline::deliver::forget_rereads;
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::{RowSource, TableVisibility};
use anabranch_pipeline::retry::again;
use anabranch_schemas::shard::ShardId;

use super::{Departed, RemoveOutcome, RemoveRequest, remove_rows};
use crate::wiring::{Wiring, lanes};

pub(super) async fn remove(
    wiring: &Wiring,
    request: &RemoveRequest,
    is_rehearsal: bool,
) -> Result<RemoveOutcome, Fault> {
    let Departed::Table { database, table, source } = &request.departed else {
        return Err(request.refused("it is no table"));
    };
    let name = (database.as_str(), table.as_str());
    let (mut shards, mut asked) = (BTreeSet::new(), Vec::new());
    for known in meant_sources(wiring, request, name, source.as_deref())? {
        require_gone(wiring, request, known, name).await?;
        shards.insert(ShardId::of(&known.name, database, table, known.generation));
        asked.push(known.name.clone());
    }
    let retained = why_retained(wiring, name, &asked, &shards).await?;
    let mut outcome = RemoveOutcome::default();
    if retained.is_none() {
        remove_rows(wiring, &shards, &asked, (&mut outcome, is_rehearsal)).await?;
        if outcome.rows() == 0 {
            outcome.notes.push(format!(
                "no derived rows are known under {database}.{table} of source {}: they are gone, or the name is another",
                asked.join(", ")
            ));
        }
    }
    end_waits(wiring, &shards, &asked, (&mut outcome, is_rehearsal)).await?;
    let Some(found) = retained else { return Ok(outcome) };
    if outcome.notes.is_empty() {
        return Err(request
            .refused(found)
            .needs("a table without `removal = \"retain\"`, or the removal of its whole source")
            .remedy(BY_SHARD));
    }
    outcome.notes.push(format!("no derived row is removed: {found}"));
    Ok(outcome)
}

/// Takes the tables off the lists of those that lanes of these sources are to read again: no reading could come.
async fn end_waits(
    wiring: &Wiring,
    shards: &BTreeSet<ShardId>,
    sources: &[String],
    (outcome, is_rehearsal): (&mut RemoveOutcome, bool),
) -> Result<(), Fault> {
    for lane in lanes(wiring.config()).into_iter().filter(|lane| sources.contains(&lane.source)) {
        let ask = async || forget_rereads(&mut wiring.lane(&lane)?, shards, is_rehearsal).await;
        if again(ask).await? {
            let waits = if is_rehearsal { "would no longer wait" } else { "no longer waits" };
            outcome.notes.push(format!("lane {lane} {waits} for a reading of the table"));
        }
    }
    Ok(())
}

/// Returns the sources that may have had the table: the one that the request names, or else those whose patterns its
/// name fits.
fn meant_sources<'w>(
    wiring: &'w Wiring,
    request: &RemoveRequest,
    (database, table): (&str, &str),
    named: Option<&str>,
) -> Result<Vec<&'w SourceConfig>, Fault> {
    let mut meant = Vec::new();
    for source in &wiring.config().sources {
        let entity = entity_of(wiring, source, (database, table));
        if !named.map_or(entity.is_some(), |named| named == source.name) {
            continue;
        }
        meant.push(source);
    }
    match (meant.is_empty(), named) {
        (false, _) => Ok(meant),
        (true, Some(named)) => Err(request
            .refused(format!("source {named} is not in this configuration, and another file may have it"))
            .needs("a file that has the source")
            .remedy(format!(
                "for a source that left every file, `anabranch --config FILE remove --source {named}` removes all of \
                 its tables"
            ))),
        (true, None) => Err(request
            .refused("no pattern of a source captures a table of this name")
            .needs("--source NAME for a table of a former pattern, or the right name")),
    }
}

/// Returns the entity of the source whose pattern the name fits.
fn entity_of<'w>(
    wiring: &'w Wiring,
    source: &SourceConfig,
    (database, table): (&str, &str),
) -> Option<&'w EntityConfig> {
    source.entities.iter().find_map(|entity| wiring.config().entity_of(*entity, database, table))
}

/// Refuses a table that a source of the configuration has, or that it may hide.
async fn require_gone(
    wiring: &Wiring,
    request: &RemoveRequest,
    source: &SourceConfig,
    (database, table): (&str, &str),
) -> Result<(), Fault> {
    let connector = wiring.source_connector(&source.name)?;
    match again(|| connector.visibility(database, table)).await? {
        TableVisibility::Gone => return Ok(()),
        TableVisibility::Readable => {}
        TableVisibility::Hidden(fault) => {
            return Err(request
                .refused(format!("source {} does not say whether it has the table", source.name))
                .needs("SELECT on its database for the capture account")
                .caused_by(fault));
        }
    }
    let has_it = format!("source {} has it", source.name);
    if entity_of(wiring, source, (database, table)).is_none() {
        return Err(request
            .refused(format!("{has_it}, and no pattern captures it"))
            .needs("a table that is gone")
            .remedy(BY_SHARD));
    }
    Err(request
        .refused(format!("{has_it}, and it is captured"))
        .needs("a table that was dropped or renamed; a source that has it keeps its derived rows current")
        .remedy("if another source had it too, `--source NAME` removes the rows of its table alone"))
}

/// The way to remove rows that this command leaves.
const BY_SHARD: &str = "to drop its rows nevertheless, `anabranch --config FILE reconcile remove-foreign --store NAME \
                        --shard ID`";

/// Returns why derived rows of the table stand on purpose; `None` if they do not.
async fn why_retained(
    wiring: &Wiring,
    name: (&str, &str),
    sources: &[String],
    shards: &BTreeSet<ShardId>,
) -> Result<Option<String>, Fault> {
    let of_request = wiring.config().sources.iter().filter(|source| sources.contains(&source.name));
    let mut entities = of_request.filter_map(|source| entity_of(wiring, source, name));
    if entities.any(|entity| entity.removal == Removal::Retain) {
        let found = "its entity has `removal = \"retain\"`, so its derived rows stand on purpose";
        return Ok(Some(found.to_owned()));
    }
    for projection in &wiring.config().projections {
        for store in wiring.derived(&projection.name)? {
            if store.retired_tables().await?.iter().any(|table| shards.contains(&table.shard)) {
                let name = &projection.name;
                return Ok(Some(format!(
                    "it left by a retention rule, and projection {name} retains its rows"
                )));
            }
        }
    }
    Ok(None)
}
