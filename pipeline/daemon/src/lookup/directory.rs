//! Maps shard ids to tables of sources, and reads inventory rows there. Other lookups use the map alone.
//!
//! It reads the sources' catalogs at first, and again when it meets an unknown id, but rarely for the same one. A
//! source that is down leaves its names and rows out; it fails no lookup.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anabranch_schemas::change::Entity;
use anabranch_schemas::serial::StoredCode;
use anabranch_schemas::shard::ShardId;
use futures::StreamExt;
use serde_json::{Map, Value as Json};
use tokio::time::Instant;

use super::question::LookupQuestion;
use super::view::{AnswerOrigin, DeviceView, LookupAnswer};
use crate::change_view::bytes_json;
use crate::wiring::{CapturedTable, TextRow, Wiring};

/// Time between two lists of a catalog, which may hold thousands of tables, whatever unknown ids come.
const LIST_INTERVAL: Duration = Duration::from_secs(5);
/// Time after which an id that no table had is looked for again.
const UNKNOWN_KEPT: Duration = Duration::from_secs(300);
/// Wait for the answer of a source.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Devices of one statement, at most.
const STATEMENT_UUIDS: usize = 500;
/// Tables that one request reads at the same time.
const TABLES_AT_ONCE: usize = 8;

/// A table and its source's name.
pub type SourceTable = (String, Arc<CapturedTable>);

/// The tables of one entity on every source.
pub struct Directory {
    entity: Entity,
    tables: Mutex<HashMap<ShardId, SourceTable>>,
    listed: Mutex<BTreeSet<String>>,
    tried_at: Mutex<Option<Instant>>,
    has_met_unknown: AtomicBool,
    /// Ids that no table had, and the time since which they are remembered.
    unknown: Mutex<(Option<Instant>, HashSet<ShardId>)>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Directory {
    /// Makes the directory of the sources that have this entity; it knows no table yet.
    pub fn new(entity: Entity) -> Self {
        Self {
            entity,
            tables: Mutex::default(),
            listed: Mutex::default(),
            tried_at: Mutex::default(),
            has_met_unknown: AtomicBool::default(),
            unknown: Mutex::default(),
        }
    }

    /// Lists the tables of sources that were not listed yet, or of all sources after an unknown id was met.
    pub async fn complete(&self, wiring: &Wiring) {
        let unknown = self.has_met_unknown.load(Ordering::Relaxed);
        let wanted: Vec<&str> = {
            let listed = lock(&self.listed);
            let sources = wiring.config().sources.iter();
            sources
                .filter(|source| source.entities.contains(&self.entity))
                .map(|source| source.name.as_str())
                .filter(|name| unknown || !listed.contains(*name))
                .collect()
        };
        if wanted.is_empty() || lock(&self.tried_at).is_some_and(|at| at.elapsed() < LIST_INTERVAL) {
            return;
        }
        *lock(&self.tried_at) = Some(Instant::now());
        self.has_met_unknown.store(false, Ordering::Relaxed);
        // All are listed at once, so that a source that does not answer holds up no other.
        futures::future::join_all(wanted.into_iter().map(|name| self.list(wiring, name))).await;
    }

    async fn list(&self, wiring: &Wiring, name: &str) {
        let Ok(source) = wiring.source(name) else { return };
        match tokio::time::timeout(ANSWER_TIMEOUT, source.captured_tables()).await {
            Ok(Ok(tables)) => {
                let named = tables.into_iter().map(|table| (table.identity.shard, (name.to_owned(), table)));
                lock(&self.tables).extend(named);
                lock(&self.listed).insert(name.to_owned());
            }
            Ok(Err(fault)) => tracing::debug!(source = name, %fault, "its tables could not be listed"),
            Err(_) => tracing::debug!(source = name, "its tables could not be listed in time"),
        }
    }

    /// Returns the source and table of a shard; `None` while no source was asked that has it.
    pub fn table(&self, shard: ShardId) -> Option<SourceTable> {
        let known = lock(&self.tables).get(&shard).cloned();
        if known.is_none() && self.is_news(shard) {
            self.has_met_unknown.store(true, Ordering::Relaxed);
        }
        known
    }

    /// Returns whether this id was not met lately. An id that stays unknown belongs to a source that is not configured
    /// any more, and lookups may meet its claims at any rate.
    fn is_news(&self, shard: ShardId) -> bool {
        let mut unknown = lock(&self.unknown);
        if unknown.0.is_none_or(|since| since.elapsed() > UNKNOWN_KEPT) {
            *unknown = (Some(Instant::now()), HashSet::new());
        }
        unknown.1.insert(shard)
    }

    /// Adds the names of source, database and table to the claims.
    pub(super) fn name(&self, answer: &mut LookupAnswer) {
        for claim in answer.claims_mut() {
            if let Some((source, table)) = self.table(claim.shard) {
                claim.source = Some(source);
                claim.database = Some(table.identity.database.to_string());
                claim.table = Some(table.identity.table.to_string());
            }
        }
    }

    /// Reads the requested rows, and the rows of devices that several tables claim, since a device is in one of them.
    /// Each table is queried once for all answers, few tables at a time; rows that do not come in time are left out.
    pub(super) async fn read_rows(&self, wiring: &Wiring, answered: &mut [(&LookupQuestion, LookupAnswer)]) {
        let mut wanted: HashMap<ShardId, BTreeSet<Box<[u8]>>> = HashMap::new();
        for (question, answer) in &*answered {
            for device in &answer.devices {
                if question.with_rows || device.is_disputed() {
                    for claim in &device.claims {
                        wanted.entry(claim.shard).or_default().insert(device.uuid.clone());
                    }
                }
            }
        }
        if wanted.is_empty() {
            return;
        }
        let wanted = wanted.into_iter().flat_map(|(shard, uuids)| {
            let uuids: Vec<Box<[u8]>> = uuids.into_iter().collect();
            uuids.chunks(STATEMENT_UUIDS).map(|some| (shard, some.to_vec())).collect::<Vec<_>>()
        });
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let read = async |(shard, uuids): (ShardId, Vec<Box<[u8]>>)| {
            let (source, table) = self.table(shard)?;
            let keys: Vec<&[u8]> = uuids.iter().map(|uuid| &**uuid).collect();
            let rows = wiring.source(&source).ok()?.rows_by_key(&table, &keys);
            match tokio::time::timeout_at(deadline, rows).await {
                Ok(Ok(rows)) => {
                    let keyed = rows.into_iter().filter_map(|row| Some((row.first()?.clone()?, row)));
                    return Some((shard, uuids, keyed.collect::<HashMap<_, _>>()));
                }
                Ok(Err(fault)) => tracing::debug!(%fault, "inventory rows could not be read"),
                Err(_) => tracing::debug!("inventory rows could not be read in time"),
            }
            None
        };
        let read: Vec<_> =
            futures::stream::iter(wanted).map(read).buffer_unordered(TABLES_AT_ONCE).collect().await;
        for (shard, uuids, rows) in read.into_iter().flatten() {
            let uuids: HashSet<&[u8]> = uuids.iter().map(|uuid| &**uuid).collect();
            for (question, answer) in &mut *answered {
                confirm(question, answer, shard, &uuids, &rows);
            }
        }
    }
}

/// Sets for each claim of the shard whether its row has the code, and adds the row if the question asks for it.
fn confirm(
    question: &LookupQuestion,
    answer: &mut LookupAnswer,
    shard: ShardId,
    uuids: &HashSet<&[u8]>,
    rows: &HashMap<Vec<u8>, TextRow>,
) {
    let fields = Entity::SerialCode.field_names();
    let is_read = |device: &&mut DeviceView| {
        (question.with_rows || device.is_disputed()) && uuids.contains(&*device.uuid)
    };
    let mut has_read = false;
    for device in answer.devices.iter_mut().filter(is_read) {
        let row = rows.get(&*device.uuid);
        for claim in device.claims.iter_mut().filter(|claim| claim.shard == shard) {
            let stored = |code: &[u8]| StoredCode::new(claim.code_kind, code);
            let value = fields.iter().position(|field| *field == claim.kind).zip(row);
            let value = value.and_then(|(place, row)| row.get(place)?.as_deref());
            claim.confirmed = Some(value.is_some_and(|value| stored(value) == stored(&question.code)));
            claim.row = row.filter(|_| question.with_rows).map(|row| {
                let values = row.iter().map(|value| value.as_deref().map_or(Json::Null, bytes_json));
                Json::Object(
                    fields.iter().map(|field| (*field).to_owned()).zip(values).collect::<Map<_, _>>(),
                )
            });
            has_read = true;
        }
    }
    if has_read {
        answer.from = AnswerOrigin::Inventory;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_id_that_stays_unknown_has_the_tables_listed_rarely() {
        let (directory, shard) = (Directory::new(Entity::SerialCode), ShardId::of("gone", "d", "t", 0));
        let asks_for_a_list = || {
            assert!(directory.table(shard).is_none());
            directory.has_met_unknown.swap(false, Ordering::Relaxed)
        };
        assert_eq!([asks_for_a_list(), asks_for_a_list(), asks_for_a_list()], [true, false, false]);
        tokio::time::advance(UNKNOWN_KEPT + Duration::from_secs(1)).await;
        assert_eq!([asks_for_a_list(), asks_for_a_list()], [true, false]);
    }
}
