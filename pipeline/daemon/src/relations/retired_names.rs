//! Names of source tables that left by a retention rule, for claims whose table no source lists any more.

use std::collections::HashMap;
use std::time::Duration;

use anabranch_schemas::change::{Entity, TableIdentity};
use anabranch_schemas::shard::ShardId;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::wiring::DerivedStore;

/// Time between two lists of retired tables, whatever unknown ids come.
const LIST_INTERVAL: Duration = Duration::from_secs(5);

/// The names, as the targets of one projection store them.
pub(super) struct RetiredNames {
    stores: Vec<DerivedStore>,
    listed: Mutex<Listed>,
}

#[derive(Default)]
struct Listed {
    at: Option<Instant>,
    tables: HashMap<ShardId, (String, TableIdentity<'static>)>,
}

impl RetiredNames {
    /// Makes the names of these stores; it knows none yet.
    pub(super) fn new(stores: Vec<DerivedStore>) -> Self {
        Self { stores, listed: Mutex::default() }
    }

    /// Returns source and names of a retired table; `None` if no target that answers knows it.
    pub(super) async fn table(&self, shard: ShardId) -> Option<(String, TableIdentity<'static>)> {
        let mut listed = self.listed.lock().await;
        let is_old = listed.at.is_none_or(|at| at.elapsed() >= LIST_INTERVAL);
        if !listed.tables.contains_key(&shard) && is_old {
            listed.at = Some(Instant::now());
            for store in &self.stores {
                match store.retired_tables().await {
                    Ok(tables) => listed.tables.extend(tables.into_iter().map(|retired| {
                        let table = TableIdentity {
                            entity: Entity::Flux,
                            shard: retired.shard,
                            database: retired.database.into(),
                            table: retired.table.into(),
                        };
                        (retired.shard, (retired.source, table))
                    })),
                    Err(fault) => tracing::debug!(%fault, "retired tables could not be listed"),
                }
            }
        }
        listed.tables.get(&shard).cloned()
    }
}
