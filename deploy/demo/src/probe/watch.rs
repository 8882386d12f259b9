//! Watches the stores for changes that were not seen there yet.

use std::time::Duration;

use anabranch_schemas::celebration::Calendar;
use anabranch_schemas::shard::ShardId;
use redis::{Cmd, Value, cmd};
use reqwest::Method;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::rows::ProbeRow;
use super::{RECONNECT_INTERVAL, Shared};
use crate::endpoint::{Connection, Endpoint};
use crate::error::Result;
use crate::redis::RedisConnection;
use crate::topology::{Document, Topology};
use crate::verify::{
    BirthdayLayer, CacheLayer, DerivedLayout, DerivedTables, DocumentLayer, Layer, MappingLayer,
    RelationLayer,
};

/// Pause between two queries while a probe is outstanding: the resolution of the measurement. It is longer where a
/// query costs the server more than a read by a key.
const TABLES_POLL_INTERVAL: Duration = Duration::from_millis(1);
const CACHE_POLL_INTERVAL: Duration = Duration::from_millis(2);
const DOCUMENTS_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Probes in one query.
const QUERY_PROBES: usize = 100;
/// Limit of one query: a stalled server is not waited for until its connection is given up.
const QUERY_MAX: Duration = Duration::from_secs(5);
/// Bytes of an entry without claims: a version and a checksum.
const EMPTY_ENTRY_BYTES: usize = 5;

/// A row and the revision that is expected of it.
pub(super) type ExpectedRow = (ProbeRow, u64);

/// Queries one server of a store.
#[derive(Debug)]
pub(super) enum StoreProbe {
    Birthday { layer: BirthdayLayer, target: usize, connection: Option<Connection> },
    Mapping { layer: MappingLayer, target: usize, connection: Option<Connection> },
    Cache { layer: CacheLayer, connection: Option<RedisConnection> },
    Documents { layer: DocumentLayer, topology: Topology },
    Relations { layer: RelationLayer, target: usize, connection: Option<Connection> },
}

impl StoreProbe {
    /// Makes one for each server that has a part of the store.
    pub fn all(topology: &Topology, layer: &Layer) -> Vec<Self> {
        match layer {
            // Probes change solar birthdays only.
            Layer::Birthday(layer) if layer.calendar == Calendar::Lunar => Vec::new(),
            Layer::Birthday(layer) => (0..layer.targets.len())
                .map(|target| Self::Birthday { layer: layer.clone(), target, connection: None })
                .collect(),
            Layer::Mapping(layer) => (0..layer.targets.len())
                .map(|target| Self::Mapping { layer: layer.clone(), target, connection: None })
                .collect(),
            Layer::Cache(layer) => vec![Self::Cache { layer: layer.clone(), connection: None }],
            Layer::Documents(layer) => {
                vec![Self::Documents { layer: layer.clone(), topology: topology.clone() }]
            }
            Layer::Relations(layer) => (0..layer.targets.len())
                .map(|target| Self::Relations { layer: layer.clone(), target, connection: None })
                .collect(),
        }
    }

    /// Queries until cancelled. A server that is down is tried again.
    pub async fn watch(mut self, shared: &Shared, cancel: &CancellationToken) {
        loop {
            let arrived = shared.arrived.notified();
            let wanted = self.own(shared.oldest());
            let pause = if wanted.is_empty() {
                tokio::select! {
                    () = cancel.cancelled() => return,
                    () = arrived => continue,
                    () = tokio::time::sleep(RECONNECT_INTERVAL) => continue,
                }
            } else {
                let query = tokio::time::timeout(QUERY_MAX, self.query(&wanted));
                let answer = tokio::select! {
                    () = cancel.cancelled() => return,
                    answer = query => answer,
                };
                match answer {
                    Ok(Ok(found)) => {
                        shared.position_message_seen(&found);
                        self.poll_interval()
                    }
                    Ok(Err(_)) | Err(_) => {
                        self.disconnect();
                        RECONNECT_INTERVAL
                    }
                }
            };
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    fn poll_interval(&self) -> Duration {
        match self {
            Self::Birthday { .. } | Self::Mapping { .. } | Self::Relations { .. } => TABLES_POLL_INTERVAL,
            Self::Cache { .. } => CACHE_POLL_INTERVAL,
            Self::Documents { .. } => DOCUMENTS_POLL_INTERVAL,
        }
    }

    fn disconnect(&mut self) {
        match self {
            Self::Birthday { connection, .. }
            | Self::Mapping { connection, .. }
            | Self::Relations { connection, .. } => *connection = None,
            Self::Cache { connection, .. } => *connection = None,
            Self::Documents { .. } => {}
        }
    }

    /// Returns the rows that must become visible on this server.
    fn own(&self, wanted: Vec<ExpectedRow>) -> Vec<ExpectedRow> {
        let is_own = |(row, revision): &ExpectedRow| match self {
            Self::Birthday { layer, target, .. } => {
                layer.target_of(birthday_table(layer, *row, *revision).0) == *target
            }
            Self::Mapping { layer, target, .. } => layer.target_of(MAPPING_DATABASE) == *target,
            Self::Relations { layer, target, .. } => {
                let partition = Document::of(row.id).address.partition;
                layer.target_of(u32::from(partition / 10)) == *target
            }
            Self::Cache { .. } | Self::Documents { .. } => true,
        };
        wanted.into_iter().filter(is_own).take(QUERY_PROBES).collect()
    }

    /// Returns those of the rows that are visible.
    async fn query(&mut self, wanted: &[ExpectedRow]) -> Result<Vec<(u64, u64)>> {
        match self {
            Self::Birthday { layer, target, connection } => {
                let select = |(row, revision): &ExpectedRow| {
                    let (database, table) = birthday_table(layer, *row, *revision);
                    let (database, id) = (layer.database_name(database), row.id);
                    format!("SELECT {id}, {revision} FROM {database}.{table} WHERE user_id = {id}")
                };
                select_all(&layer.targets[*target], connection, wanted.iter().map(select)).await
            }
            Self::Mapping { layer, target, connection } => {
                let select = |(row, revision): &ExpectedRow| {
                    let (code, id) = (row.code(*revision), row.id);
                    let number = code.parse::<u64>().unwrap_or_default() % u64::from(layer.tables);
                    let database = layer.database_name(MAPPING_DATABASE);
                    format!(
                        "SELECT {id}, {revision} FROM {database}.mapping_{number:03} WHERE value = '{code}'"
                    )
                };
                select_all(&layer.targets[*target], connection, wanted.iter().map(select)).await
            }
            Self::Cache { layer, connection } => read_cache(layer, connection, wanted).await,
            Self::Documents { layer, topology } => read_documents(layer, topology, wanted).await,
            Self::Relations { layer, target, connection } => {
                let select = |(row, revision): &ExpectedRow| {
                    let (id, number) = (row.document(), row.id);
                    let table = format!("{}.flux_relation_{}", layer.database_name(0), &id[19..21]);
                    format!(
                        "SELECT {number}, {revision} FROM {table} \
                         WHERE id = '{id}' AND CAST(amount AS DECIMAL(24, 4)) = {revision}"
                    )
                };
                select_all(&layer.targets[*target], connection, wanted.iter().map(select)).await
            }
        }
    }
}

/// The first mapping database, which has codes of 15 digits.
const MAPPING_DATABASE: u32 = 0;

/// Returns database number and table in which a user's change must become visible.
fn birthday_table(layer: &BirthdayLayer, row: ProbeRow, revision: u64) -> (u32, String) {
    let table = row.day_table(revision);
    let database = match layer.layout {
        DerivedLayout::ByDay => {
            layer.tables().into_iter().find(|(_, name)| *name == table).map_or(0, |found| found.0)
        }
        DerivedLayout::ByUser => (row.id % u64::from(layer.databases.max(1))) as u32,
    };
    (database, table)
}

async fn select_all(
    endpoint: &Endpoint,
    connection: &mut Option<Connection>,
    selects: impl Iterator<Item = String>,
) -> Result<Vec<(u64, u64)>> {
    let open = match connection {
        Some(open) => open,
        None => connection.insert(endpoint.connect(&[]).await?),
    };
    open.rows("look for probes", selects.collect::<Vec<_>>().join(" UNION ALL ")).await
}

async fn read_cache(
    layer: &CacheLayer,
    connection: &mut Option<RedisConnection>,
    wanted: &[ExpectedRow],
) -> Result<Vec<(u64, u64)>> {
    let open = match connection {
        Some(open) => open,
        None => connection.insert(layer.server.connect().await?),
    };
    let get = |(row, revision): &ExpectedRow| -> Cmd {
        let mut get = cmd("GET");
        get.arg(layer.key_of(row.code(*revision).as_bytes()));
        get
    };
    let answers = open.all("look for probes", wanted.iter().map(get)).await?;
    let is_there =
        |answer: &Value| matches!(answer, Value::BulkString(entry) if entry.len() > EMPTY_ENTRY_BYTES);
    let found = wanted.iter().zip(&answers).filter(|(_, answer)| is_there(answer));
    Ok(found.map(|((row, revision), _)| (row.id, *revision)).collect())
}

async fn read_documents(
    layer: &DocumentLayer,
    topology: &Topology,
    wanted: &[ExpectedRow],
) -> Result<Vec<(u64, u64)>> {
    let id = |(row, _): &ExpectedRow| {
        let source = &topology.sources[topology.source_of(row.source_table)].name;
        let shard = ShardId::of(source, &row.source_table.database_name(), &row.source_table.table_name(), 0);
        format!("{}-{}", shard.as_u64(), crate::topology::uuid(row.id))
    };
    let ids: Vec<String> = wanted.iter().map(id).collect();
    let path = format!("{}/_mget?_source_includes=imei1", layer.index);
    let answer = layer.server.ask("look for probes", Method::POST, &path, json!({ "ids": ids })).await?;
    let documents = answer["docs"].as_array().into_iter().flatten();
    let found = wanted.iter().zip(documents).filter(|((row, revision), document)| {
        document["_source"]["imei1"].as_str().is_some_and(|code| code == row.code(*revision))
    });
    Ok(found.map(|((row, revision), _)| (row.id, *revision)).collect())
}
