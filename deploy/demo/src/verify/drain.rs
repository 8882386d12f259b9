//! Waits until the derived tables hold everything that the sources' binlogs held when the wait began.
//!
//! Heads come from the sources, positions from the progress tables of the targets, so a daemon that lies about its
//! lag, or is dead, changes nothing.

use std::time::Duration;

use tokio::time::Instant;

use super::{Comparison, DerivedLayer, compare};
use crate::error::Result;
use crate::topology::Topology;

const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Comparisons of one verification, at most; another is made only while progress still moves.
const COMPARISONS_MAX: u32 = 5;
/// Behind the epoch: 20 bits of binlog file number, 32 bits of position ÷ 16.
const FILE_AND_POSITION: u64 = (1 << 52) - 1;

/// How a wait ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Drained {
    /// Lanes that had not passed the head of their source when the time was over; empty = drained.
    pub behind: Vec<String>,
    pub seconds: f64,
}

impl Drained {
    pub fn is_complete(&self) -> bool {
        self.behind.is_empty()
    }
}

/// A progress row: source, lane, lanes, position, revision.
type ProgressRow = (String, u32, u32, u64, u64);

/// Waits until every lane has passed the present head of its source, at most `limit`.
pub async fn drain(topology: &Topology, layer: &DerivedLayer, limit: Duration) -> Result<Drained> {
    let start = Instant::now();
    let mut heads = Vec::new();
    for source in &topology.sources {
        let mut connection = source.connect(&[]).await?;
        let head = connection.first::<mysql_async::Row>("read the head", "SHOW MASTER STATUS").await?;
        let head = head.as_ref().and_then(head_position).unwrap_or(0);
        heads.push((source.name.clone(), head));
    }
    loop {
        let mut behind = Vec::new();
        for target in &layer.targets {
            let rows = progress(target).await?;
            behind
                .extend(heads.iter().filter_map(|(source, head)| lag_of(&target.name, source, *head, &rows)));
        }
        if behind.is_empty() || start.elapsed() >= limit {
            return Ok(Drained { behind, seconds: start.elapsed().as_secs_f64() });
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Drains and compares. A comparison that finds differences is made again as long as progress moved meanwhile.
pub async fn drain_and_compare(
    topology: &Topology,
    layer: &DerivedLayer,
    limit: Duration,
) -> Result<(Drained, Comparison)> {
    let mut comparisons = 0;
    loop {
        let drained = drain(topology, layer, limit).await?;
        let before = revisions(layer).await?;
        let comparison = compare(topology, layer).await?;
        comparisons += 1;
        let is_quiet = before == revisions(layer).await?;
        if comparison.differences.total() == 0 || is_quiet || comparisons == COMPARISONS_MAX {
            return Ok((drained, comparison));
        }
    }
}

/// File number and position ÷ 16 as the low bits of an Lsn.
fn head_position(row: &mysql_async::Row) -> Option<u64> {
    let file: String = row.get(0)?;
    let position: u64 = row.get(1)?;
    let number: u64 = file.rsplit_once('.')?.1.parse().ok()?;
    Some((number << 32) | (position / 16))
}

fn lag_of(target: &str, source: &str, head: u64, rows: &[ProgressRow]) -> Option<String> {
    let own: Vec<&ProgressRow> = rows.iter().filter(|row| row.0 == source).collect();
    let lanes = own.iter().map(|row| row.2).max().unwrap_or(0);
    if lanes == 0 || (own.len() as u32) < lanes {
        return Some(format!("{source} at {target}: {} of {lanes} lanes have begun", own.len()));
    }
    let late: Vec<u32> = own.iter().filter(|row| row.3 & FILE_AND_POSITION < head).map(|row| row.1).collect();
    (!late.is_empty()).then(|| format!("{source} at {target}: lanes {late:?} are behind"))
}

async fn revisions(layer: &DerivedLayer) -> Result<Vec<u64>> {
    let mut revisions = Vec::new();
    for target in &layer.targets {
        revisions.extend(progress(target).await?.iter().map(|row| row.4));
    }
    Ok(revisions)
}

async fn progress(target: &crate::endpoint::Endpoint) -> Result<Vec<ProgressRow>> {
    let mut connection = target.connect(&[]).await?;
    // Before `setup` there is no table: nothing has begun.
    let tables = "SELECT COUNT(*) FROM information_schema.tables \
                  WHERE table_schema = 'anabranch' AND table_name = 'progress'";
    if connection.first::<u64>("look for progress", tables).await? != Some(1) {
        return Ok(Vec::new());
    }
    let sql = "SELECT source, lane, lanes, position, revision FROM anabranch.progress ORDER BY 1, 2";
    connection.rows("read progress", sql).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_that_is_behind_or_absent_is_named() {
        let row = |lane, position| ("a".to_owned(), lane, 2, position, 1);
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
    }
}
