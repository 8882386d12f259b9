//! Waits until the derived stores hold everything that the sources' binlogs held when the wait began.
//!
//! Heads come from the sources, positions from the progress that targets store, so a daemon that reports a wrong lag,
//! or is dead, changes nothing. A cache has everything when its mapping tables have, their outbox is empty, and the
//! recorded life is the server's present one.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::cache::CacheLayer;
use super::tables::DerivedTables as _;
use super::{Comparison, Layer, ProgressRow, Verification, documents};
use crate::endpoint::{Endpoint, SHOW_BINLOG_END};
use crate::error::Result;

/// Bounds of the pause between two looks, which lasts twice as long as a look: each look connects to every target, and
/// the machine is to do what is waited for.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Most comparisons of one verification; another one follows only while progress still moves.
const COMPARISONS_MAX: u32 = 5;
/// Mask of a position without its epoch: 20 bits of binlog file number, 32 bits of position ÷ 16.
const FILE_AND_POSITION: u64 = (1 << 52) - 1;

/// Result of a wait.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Drained {
    /// Lanes that had not passed the head of their source when the time was over; empty = drained.
    pub lagging: Vec<String>,
    pub seconds: f64,
}

impl Drained {
    pub fn is_complete(&self) -> bool {
        self.lagging.is_empty()
    }
}

/// Waits until every lane of these layers has passed the present head of its source and reads no table any more, for
/// `limit` at most.
pub async fn drain(audits: &[Verification], limit: Duration) -> Result<Drained> {
    let start = Instant::now();
    let mut heads: HashMap<&str, u64> = HashMap::new();
    for source in audits.iter().flat_map(|audit| &audit.topology.sources) {
        if heads.contains_key(source.name.as_str()) {
            continue;
        }
        let mut connection = source.connect(&[]).await?;
        let head = connection.first::<mysql_async::Row>("read the head", SHOW_BINLOG_END).await?;
        heads.insert(&source.name, head.as_ref().and_then(head_position).unwrap_or(0));
    }
    loop {
        let began = Instant::now();
        let mut lagging = Vec::new();
        for audit in audits {
            for (stores, rows) in progress(audit).await? {
                let lag =
                    |source: &Endpoint| lag_of(&stores, &source.name, heads[source.name.as_str()], &rows);
                lagging.extend(audit.topology.sources.iter().filter_map(lag));
            }
            // It is read after the progress of the mapping tables, whose flushes fill the outbox.
            if let Layer::Cache(layer) = &audit.layer {
                lagging.extend(undrained(layer).await?);
            }
        }
        if lagging.is_empty() || start.elapsed() >= limit {
            return Ok(Drained { lagging, seconds: start.elapsed().as_secs_f64() });
        }
        tokio::time::sleep((2 * began.elapsed()).clamp(PAUSE_MIN, PAUSE_MAX)).await;
    }
}

/// Drains and compares. Repeats a comparison that finds differences as long as progress moved meanwhile.
pub async fn drain_and_compare(
    audits: &[Verification],
    limit: Duration,
) -> Result<(Drained, Vec<Comparison>)> {
    let mut rounds = 0;
    loop {
        let drained = drain(audits, limit).await?;
        let before = revisions(audits).await?;
        let mut comparisons = Vec::new();
        for audit in audits {
            comparisons.push(audit.compare().await?);
        }
        rounds += 1;
        let is_quiet = before == revisions(audits).await?;
        let is_equal = comparisons.iter().all(|comparison| comparison.differences.total() == 0);
        if is_equal || is_quiet || rounds == COMPARISONS_MAX {
            return Ok((drained, comparisons));
        }
    }
}

/// Returns file number and position ÷ 16 as the low bits of an Lsn.
fn head_position(row: &mysql_async::Row) -> Option<u64> {
    let file: String = row.get(0)?;
    let position: u64 = row.get(1)?;
    let number: u64 = file.rsplit_once('.')?.1.parse().ok()?;
    Some((number << 32) | (position / 16))
}

fn lag_of(stores: &str, source: &str, head: u64, rows: &[ProgressRow]) -> Option<String> {
    let own: Vec<&ProgressRow> = rows.iter().filter(|row| row.0 == source).collect();
    let lanes = own.iter().map(|row| row.2).max().unwrap_or(0);
    if lanes == 0 || (own.len() as u32) < lanes {
        return Some(format!("{source}, {stores}: {} of {lanes} lanes have begun", own.len()));
    }
    let late: Vec<u32> = own.iter().filter(|row| row.3 & FILE_AND_POSITION < head).map(|row| row.1).collect();
    let refreshing: Vec<u32> = own.iter().filter(|row| row.5).map(|row| row.1).collect();
    match (late.is_empty(), refreshing.is_empty()) {
        (false, _) => Some(format!("{source}, {stores}: lanes {late:?} are behind")),
        (true, false) => Some(format!("{source}, {stores}: lanes {refreshing:?} read their tables")),
        (true, true) => None,
    }
}

async fn revisions(audits: &[Verification]) -> Result<Vec<u64>> {
    let mut revisions = Vec::new();
    for audit in audits {
        let rows = progress(audit).await?.into_iter().flat_map(|(_, rows)| rows);
        revisions.extend(rows.map(|row| row.4));
    }
    Ok(revisions)
}

/// Returns the number of lanes that share a layer; one before any lane has begun.
pub(super) async fn lanes(audit: &Verification) -> Result<u32> {
    let stores = progress(audit).await?;
    Ok(stores.iter().flat_map(|(_, rows)| rows).map(|row| row.2).max().unwrap_or(1).max(1))
}

/// Reads progress by store, with the store's name for people.
async fn progress(audit: &Verification) -> Result<Vec<(String, Vec<ProgressRow>)>> {
    let (projection, targets) = match &audit.layer {
        Layer::Birthday(layer) => (layer.name(), layer.targets()),
        Layer::Mapping(layer) => ("mapping", layer.targets()),
        Layer::Relations(layer) => (audit.name(), layer.targets()),
        Layer::Cache(layer) => ("mapping", layer.mapping.targets()),
        Layer::Documents(layer) => {
            let store = format!("documents at {}", layer.server.name);
            return Ok(vec![(store, documents::progress(&layer.server, "documents").await?)]);
        }
    };
    let mut stores = Vec::new();
    for target in targets {
        stores.push((format!("{projection} at {}", target.name), progress_at(target, projection).await?));
    }
    Ok(stores)
}

/// Returns the parts of the outbox that the cache has not taken yet.
async fn undrained(layer: &CacheLayer) -> Result<Vec<String>> {
    let life = layer.server.connect().await?.run_id().await?;
    let mut undrained = Vec::new();
    for target in layer.mapping.targets() {
        let state = "SELECT (SELECT COUNT(*) FROM anabranch.outbox WHERE projection = 'mapping' \
                       AND drained_at IS NULL), \
                     (SELECT incarnation FROM anabranch.cache WHERE projection = 'mapping')";
        let mut connection = target.connect(&[]).await?;
        let state = connection.first::<(u64, Option<String>)>("read the outbox", state).await?;
        let (pending, known) = state.unwrap_or_default();
        let name = &target.name;
        if pending > 0 {
            undrained.push(format!("cache of {name}: {pending} rows of the outbox wait"));
        }
        if !known.is_some_and(|known| known.contains(&life)) {
            undrained.push(format!("cache of {name}: its present life is not recorded"));
        }
    }
    Ok(undrained)
}

async fn progress_at(target: &Endpoint, projection: &str) -> Result<Vec<ProgressRow>> {
    let mut connection = target.connect(&[]).await?;
    // Before `setup` the table does not exist: no lane has begun.
    let tables = "SELECT COUNT(*) FROM information_schema.tables \
                  WHERE table_schema = 'anabranch' AND table_name = 'progress'";
    if connection.first::<u64>("look for progress", tables).await? != Some(1) {
        return Ok(Vec::new());
    }
    // The numbers of a beginning and of fields alone mean no refresh.
    let sql = format!(
        "SELECT source, lane, lanes, position, revision, \
         COALESCE(refresh, '') NOT REGEXP '^((beginning|fields):[0-9]+ ?)*$' FROM anabranch.progress \
         WHERE projection = '{projection}' ORDER BY 1, 2"
    );
    connection.rows("read progress", sql).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_that_is_behind_or_absent_is_named() {
        let row = |lane, position| ("a".to_owned(), lane, 2, position, 1, false);
        let epoch = 3 << 52;
        let at = |file: u64, position: u64| epoch | file << 32 | position;
        assert!(lag_of("t", "a", 5, &[]).is_some());
        assert!(lag_of("t", "a", at(1, 5) & FILE_AND_POSITION, &[row(0, at(1, 5))]).is_some());
        assert!(
            lag_of("t", "a", at(2, 1) & FILE_AND_POSITION, &[row(0, at(2, 1)), row(1, at(1, 9))]).is_some()
        );
        assert!(
            lag_of("t", "a", at(2, 1) & FILE_AND_POSITION, &[row(0, at(2, 1)), row(1, at(3, 0))]).is_none()
        );
        let reads = ("a".to_owned(), 1, 2, at(3, 0), 1, true);
        assert!(lag_of("t", "a", at(2, 1) & FILE_AND_POSITION, &[row(0, at(2, 1)), reads]).is_some());
    }
}
