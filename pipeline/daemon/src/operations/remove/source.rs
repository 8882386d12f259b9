//! Removes everything under the name of a source that no configuration has any more.
//!
//! First its lanes are set back to nothing: that fences a process that was overtaken and wakes later, and makes a
//! source of the same name that comes back begin with empty tables, also after a removal that was cut off. Derived rows
//! go next, and those of retired tables after them: the entry of a retired table is the only trace of its name, so it
//! stands until the last row is gone. Then follows what is left in search targets and in the log, and the stream is
//! last. The command holds the leases of reader and lanes meanwhile, so that a daemon that starts waits, and ends when
//! it loses one.

use std::collections::BTreeSet;

use anabranch_pipeline::deliver::{Rewind, rewind};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::failpoints;
use anabranch_pipeline::ports::Registers as _;
use anabranch_pipeline::records::LaneId;
use anabranch_pipeline::retry::again;
use anabranch_pipeline::supervise::HeldLeases;
use anabranch_schemas::shard::ShardId;

use super::leases;
use super::{RemoveOutcome, RemoveRequest, StreamOutcome, remove_rows};
use crate::wiring::{Wiring, lanes};
use crate::{pauses, reconciliations};

/// Names of a pattern that are tried, at most: some seconds of work.
const LIKELY_NAMES_MAX: u64 = 10_000_000;
/// Reports of reconciliations that are asked for names of the source's tables.
const REPORTS_ASKED: usize = 20;
/// Characters of a source's name, at most.
const NAME_CHARACTERS_MAX: usize = 32;
/// Rows of a retired table that are examined in one step.
const RETIRED_STEP_ROWS: usize = 2_000;

pub(super) async fn remove(
    wiring: &Wiring,
    request: &RemoveRequest,
    name: &str,
    is_rehearsal: bool,
) -> Result<RemoveOutcome, Fault> {
    require_departed(wiring, request, name)?;
    for documents in wiring.all_documents() {
        let generations = documents.target.generations(&documents.projection).await?;
        if let Some(building) = generations.building {
            let found = format!("index {building} of projection {} is being built", documents.projection);
            return Err(request.refused(found).needs("the end of the rebuild, which `status` shows"));
        }
    }
    let log = wiring.log().await?;
    leases::require_free(request, log, name).await?;
    let former = with_former(wiring, name)?;
    let mut of_source = lanes(former.config());
    of_source.retain(|lane| lane.source == name);
    let mut leases = match is_rehearsal {
        true => HeldLeases::none(),
        false => leases::take(request, log, name, &of_source).await?,
    };
    let removing = async {
        let steps = steps((wiring, &former), request, (name, &of_source), is_rehearsal);
        let mut outcome = leases.work(steps).await?;
        reach("remove-before-stream", is_rehearsal || !request.with_log).await;
        outcome.stream = leases.work(found_stream(wiring, request, name)).await?;
        if outcome.stream.as_ref().is_some_and(|stream| stream.is_deleted) && !is_rehearsal {
            leases.require_held()?;
            log.remove_stream(name).await?;
        }
        Ok::<_, Fault>(outcome)
    };
    let removed = removing.await;
    leases.release().await;
    let outcome = removed?;
    match outcome.is_empty() {
        true => Err(request
            .refused("no target, stream or register knows it")
            .needs("the name of a source that was read before")),
        false => Ok(outcome),
    }
}

/// Refuses a source that the configuration has, and a name that no source can have.
fn require_departed(wiring: &Wiring, request: &RemoveRequest, name: &str) -> Result<(), Fault> {
    if wiring.config().sources.iter().any(|known| known.name == name) {
        return Err(request
            .refused("it is in the configuration, and a daemon with this file reads it")
            .needs("a file without it, with which each daemon was restarted"));
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if name.is_empty() || name.len() > NAME_CHARACTERS_MAX || !name.bytes().all(is_plain) {
        return Err(request.refused("it is no name of a source").needs("letters, digits, `-` and `_`"));
    }
    Ok(())
}

/// Returns connectors for the lanes of a source that the configuration has no more. No server of that source is known:
/// the one that its settings name here is another source's, and none of the steps asks it.
fn with_former(wiring: &Wiring, name: &str) -> Result<Wiring, Fault> {
    let mut config = wiring.config().clone();
    let Some(mut former) = config.sources.first().cloned() else {
        return Err(Fault::new(Code::ConfigInvalid, "configuration", "it has no source"));
    };
    name.clone_into(&mut former.name);
    former.entities = config.entities.iter().map(|known| known.entity).collect();
    former.entities.sort_unstable();
    former.entities.dedup();
    config.sources.push(former);
    Ok(Wiring::new(config))
}

async fn steps(
    (wiring, former): (&Wiring, &Wiring),
    request: &RemoveRequest,
    (name, lanes): (&str, &[LaneId]),
    is_rehearsal: bool,
) -> Result<RemoveOutcome, Fault> {
    let lanes = set_back(former, lanes, is_rehearsal).await?;
    let mut outcome = RemoveOutcome { lanes, ..RemoveOutcome::default() };
    reach("remove-lanes-set-back", is_rehearsal).await;
    let mut shards = likely_shards(wiring, name, request.generation);
    for (database, table) in reconciliations::reported_tables(wiring, name, REPORTS_ASKED).await? {
        shards.insert(ShardId::of(name, &database, &table, request.generation));
    }
    let retired = retired_shards(wiring, name).await?;
    outcome.retired_tables = retired.len() as u64;
    shards.extend(retired);
    remove_rows(wiring, &shards, &[], (&mut outcome, is_rehearsal)).await?;
    reach("remove-rows-removed", is_rehearsal).await;
    if !is_rehearsal {
        remove_retired(wiring, name, &mut outcome).await?;
    }
    reach("remove-retired-removed", is_rehearsal).await;
    for documents in wiring.all_documents() {
        let (target, projection) = (&documents.target, &documents.projection);
        let traces = target.forget_source(projection, name, is_rehearsal).await?;
        outcome.tombstones += traces.tombstones;
        outcome.dead_letters += traces.dead_letters;
    }
    let log = wiring.log().await?;
    outcome.pauses = match is_rehearsal {
        true => pauses::read(log).await?.of_source(name),
        false => pauses::forget_source(log, name).await?,
    };
    let register = format!("epochs/{name}");
    if log.read(&register).await?.revision > 0 {
        outcome.stays.push(format!(
            "register {register}, so that a source of this name never uses an epoch twice; reports of \
             reconciliations and records of operations also keep the name"
        ));
    }
    Ok(outcome)
}

async fn reach(point: &'static str, is_rehearsal: bool) {
    if !is_rehearsal {
        failpoints::reach(point).await;
    }
}

/// Sets the lanes that have progress back to nothing, which fences every process that runs one; returns their number.
async fn set_back(former: &Wiring, lanes: &[LaneId], is_rehearsal: bool) -> Result<usize, Fault> {
    let mut with_progress = 0;
    for target in former.targets() {
        let stored = former.progress(target).await?;
        for id in lanes.iter().filter(|id| id.target == target && stored.contains_key(*id)) {
            with_progress += 1;
            if !is_rehearsal {
                again(async || rewind(id, &mut former.lane(id)?, &Rewind::ToNothing, false).await).await?;
            }
        }
    }
    Ok(with_progress)
}

/// Returns the shards of all tables that the source can have had by the patterns of the configuration.
fn likely_shards(wiring: &Wiring, name: &str, generation: u32) -> BTreeSet<ShardId> {
    let mut shards = BTreeSet::new();
    for entity in &wiring.config().entities {
        let mut insert = |database: &str, table: &str| {
            shards.insert(ShardId::of(name, database, table, generation));
        };
        if !entity.tables.visit_likely_names(LIKELY_NAMES_MAX, &mut insert) {
            let pattern = entity.tables.to_string();
            tracing::warn!(pattern, "it stands for too many tables: only those of reports are known");
        }
    }
    shards
}

/// Returns the shards of the source's retired tables.
async fn retired_shards(wiring: &Wiring, name: &str) -> Result<BTreeSet<ShardId>, Fault> {
    let mut shards = BTreeSet::new();
    for projection in &wiring.config().projections {
        for store in wiring.derived(&projection.name)? {
            let retired = store.retired_tables().await?;
            shards.extend(retired.iter().filter(|table| table.source == name).map(|table| table.shard));
        }
    }
    Ok(shards)
}

/// Removes the rows of the source's retired tables, and forgets each table once it has no rows.
async fn remove_retired(wiring: &Wiring, name: &str, outcome: &mut RemoveOutcome) -> Result<(), Fault> {
    for projection in &wiring.config().projections {
        let mut removed = 0;
        for store in wiring.derived(&projection.name)? {
            let mut place = None;
            loop {
                let step = store.remove_retired_of(name, RETIRED_STEP_ROWS, place).await?;
                removed += step.rows;
                if step.is_done {
                    break;
                }
                place = step.place;
            }
        }
        if let Some(store) = outcome.stores.iter_mut().find(|store| store.store == projection.name) {
            store.rows += removed;
            store.removed += removed;
        }
    }
    Ok(())
}

/// Returns the stream, if there is one, and whether the request deletes it.
async fn found_stream(
    wiring: &Wiring,
    request: &RemoveRequest,
    name: &str,
) -> Result<Option<StreamOutcome>, Fault> {
    let state = match wiring.log().await?.stream_state(name).await {
        Ok(state) => state,
        Err(fault) if fault.code() == Code::LogStreamMissing => return Ok(None),
        Err(fault) => return Err(fault),
    };
    Ok(Some(StreamOutcome {
        stream: format!("{}_{name}", wiring.config().name),
        messages: state.messages,
        bytes: state.bytes,
        is_deleted: request.with_log,
    }))
}
