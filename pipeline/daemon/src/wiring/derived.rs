//! Derived rows as a reconciliation reads them, from a MySQL or MariaDB target or from OpenSearch. Lanes write them
//! through `LaneStore`.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;

use anabranch_connectors::mysql::store::{MysqlRows, Outlived};
pub use anabranch_connectors::mysql::store::{Newest, RetiredDocument, RetiredTable, SweepPlace};
use anabranch_connectors::search::SearchRows;
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::{DerivedRowQuery, DerivedRows, ForeignRow, ForeignRows};
use anabranch_pipeline::records::{Claimed, DerivedRow, ScanCursor};
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;

/// A projection's derived rows on one target. A reconciliation only reads them; foreign rows, which belong to no known
/// shard table, can also be removed here.
#[derive(Debug)]
pub enum DerivedStore {
    Mysql(MysqlRows),
    Search(SearchRows),
}

impl DerivedStore {
    /// Visits each row that the sought source rows claim, with its version. The visited rows have no values.
    pub async fn versions(
        &self,
        sought: &[DerivedRowQuery],
        visit: &mut (dyn FnMut(Claimed<'_>, Lsn) + Send),
    ) -> Result<(), Fault> {
        match self {
            Self::Mysql(rows) => rows.versions(sought, visit).await,
            Self::Search(rows) => rows.versions(sought, visit).await,
        }
    }
}

impl DerivedStore {
    /// Returns the source tables that left by a retention rule and that still have derived rows here. No index has any.
    pub async fn retired_tables(&self) -> Result<Vec<RetiredTable>, Fault> {
        match self {
            Self::Mysql(rows) => rows.retired_tables().await,
            Self::Search(_) => Ok(Vec::new()),
        }
    }

    /// Returns the newest document of each table that was retired in the last `days` days, or at any time, as
    /// [`MysqlRows::newest_retired`] does.
    pub async fn newest_retired(&self, days: Option<u32>) -> Result<Vec<RetiredDocument>, Fault> {
        match self {
            Self::Mysql(rows) => rows.newest_retired(days).await,
            Self::Search(_) => Ok(Vec::new()),
        }
    }

    /// Looks for the newest document of a retirement behind rows of the next table, as [`MysqlRows::newest_hidden`]
    /// does.
    pub async fn newest_hidden(&self, retired: &RetiredDocument) -> Result<Newest, Fault> {
        match self {
            Self::Mysql(rows) => rows.newest_hidden(retired).await,
            Self::Search(_) => Ok(Newest::Missing),
        }
    }

    /// Removes at most `rows` derived rows of a retired source table of this source, and forgets a table without rows.
    pub async fn remove_retired_of(
        &self,
        source: &str,
        rows: usize,
        place: Option<SweepPlace>,
    ) -> Result<Outlived, Fault> {
        match self {
            Self::Mysql(derived) => derived.remove_retired_of(source, rows, place).await,
            Self::Search(_) => Ok(Outlived { is_done: true, ..Outlived::default() }),
        }
    }

    /// Removes at most `rows` derived rows of a source table that was retired `months` months ago or earlier.
    pub async fn remove_outlived(
        &self,
        months: u32,
        rows: usize,
        place: Option<SweepPlace>,
    ) -> Result<Outlived, Fault> {
        match self {
            Self::Mysql(derived) => derived.remove_outlived(months, rows, place).await,
            Self::Search(_) => Ok(Outlived { is_done: true, ..Outlived::default() }),
        }
    }
}

impl DerivedRows for DerivedStore {
    async fn page(
        &self,
        table: u32,
        shards: RangeInclusive<ShardId>,
        after: Option<&ScanCursor>,
        limit: NonZeroUsize,
        visit: &mut (dyn FnMut(DerivedRow<'_>) + Send),
    ) -> Result<Option<ScanCursor>, Fault> {
        match self {
            Self::Mysql(rows) => rows.page(table, shards, after, limit, visit).await,
            Self::Search(rows) => rows.page(table, shards, after, limit, visit).await,
        }
    }

    async fn rows(
        &self,
        sought: &[DerivedRowQuery],
        visit: &mut (dyn FnMut(Claimed<'_>) + Send),
    ) -> Result<(), Fault> {
        match self {
            Self::Mysql(rows) => rows.rows(sought, visit).await,
            Self::Search(rows) => rows.rows(sought, visit).await,
        }
    }
}

impl ForeignRows for DerivedStore {
    async fn foreign(
        &self,
        table: u32,
        known: &BTreeSet<ShardId>,
        after: Option<&ScanCursor>,
        limit: NonZeroUsize,
    ) -> Result<(Vec<ForeignRow>, Option<ScanCursor>), Fault> {
        match self {
            Self::Mysql(rows) => rows.foreign(table, known, after, limit).await,
            Self::Search(rows) => rows.foreign(table, known, after, limit).await,
        }
    }

    async fn remove(&self, foreign: &[ForeignRow]) -> Result<u64, Fault> {
        match self {
            Self::Mysql(rows) => rows.remove(foreign).await,
            Self::Search(rows) => rows.remove(foreign).await,
        }
    }
}
