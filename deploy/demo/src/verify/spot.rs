//! A small check while everything runs: one source table against all derived rows that it claims.
//!
//! What is still on its way is no difference: a row counts only when its user did not change and it was still wrong
//! some time later. For proofs there is [`super::compare`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::DerivedLayer;
use super::source_side::{claims_sql, shard_id_sql};
use crate::error::Result;
use crate::topology::{Place, Topology};

/// How long a change may be on its way before a spot check calls it a difference.
const GRACE: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// What one check saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpotCheck {
    pub table: String,
    pub rows: u64,
    pub differences: u64,
}

/// Users of one source table with their month and day, or, derived, with all that is said of them.
type Days = BTreeMap<u64, BTreeSet<String>>;

/// Checks one source table.
pub async fn spot_check(topology: &Topology, layer: &DerivedLayer, place: Place) -> Result<SpotCheck> {
    let source = &topology.sources[topology.source_of(place.database)];
    let mut reader = source.connect(&[]).await?;
    let claims_sql = claims_sql(0, place, topology.birthday_type(place.database));
    let shard = format!("SELECT {}", shard_id_sql(&source.name, place));
    let shard: u64 = reader.first("compute a shard id", shard).await?.unwrap_or(0);
    let mut targets = Vec::new();
    for target in &layer.targets {
        targets.push(target.connect(&[]).await?);
    }
    let selects: Vec<Vec<String>> = (0..layer.targets.len())
        .map(|target| {
            let own = layer.tables().into_iter().filter(|(database, _)| layer.target_of(*database) == target);
            own.map(|(database, table)| {
                let database = DerivedLayer::database_name(database);
                format!("SELECT user_id, '{table}' FROM {database}.{table} WHERE shard_id = {shard}")
            })
            .collect()
        })
        .collect();
    let deadline = tokio::time::Instant::now() + GRACE;
    let mut suspects: Option<BTreeMap<u64, BTreeSet<String>>> = None;
    loop {
        let claims: Days = reader
            .rows::<(u32, u64, String)>("read users", &claims_sql)
            .await?
            .into_iter()
            .map(|(_, user, day)| (user, BTreeSet::from([format!("birthday_{}", day.replace('-', ""))])))
            .collect();
        let mut derived = Days::new();
        for (connection, selects) in targets.iter_mut().zip(&selects) {
            for part in selects.chunks(super::UNION_TABLES) {
                let rows = connection.rows("read derived tables", part.join(" UNION ALL ")).await?;
                for (user, table) in rows {
                    derived.entry(user).or_default().insert(table);
                }
            }
        }
        let users: BTreeSet<u64> = claims.keys().chain(derived.keys()).copied().collect();
        let wrong = |user: &u64| claims.get(user) != derived.get(user);
        let said = |user: &u64| claims.get(user).cloned().unwrap_or_default();
        suspects = Some(match suspects {
            None => users.iter().filter(|user| wrong(user)).map(|user| (*user, said(user))).collect(),
            Some(before) => {
                before.into_iter().filter(|(user, day)| wrong(user) && said(user) == *day).collect()
            }
        });
        let differences = suspects.as_ref().map_or(0, BTreeMap::len) as u64;
        if differences == 0 || tokio::time::Instant::now() >= deadline {
            let table = format!("{}.{}", place.database_name(), place.table_name());
            return Ok(SpotCheck { table, rows: claims.len() as u64, differences });
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
