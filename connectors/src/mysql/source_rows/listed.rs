//! A source with the tables of users that it has listed, and with the times of its failures.
//!
//! Each source is listed on its own, so one that does not answer leaves the tables of the others known. Readers wait
//! for such a source once and not in each batch: until [`PAUSE`] is over its tables count as unread at once. Then one
//! reader asks again, and the others still go on without it. A table that a read finds missing is forgotten, and its
//! source is listed again, because the table may have been dropped since.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anabranch_pipeline::error::{Class, Fault};
use anabranch_pipeline::ports::RowSource;
use anabranch_pipeline::records::{Cell, Chunk};
use anabranch_schemas::change::{Entity, TableIdentity};
use anabranch_schemas::lsn::FIRST_EPOCH;
use anabranch_schemas::shard::ShardId;
use tokio::time::Instant;

use crate::mysql::source::MysqlSource;

/// Time before the tables are listed again for an unknown shard: a hundred thousand tables take seconds.
const LIST_AGE_MIN: Duration = Duration::from_secs(60);
/// Time for which a source that did not answer is not asked again. A connection to a host that is gone takes 10 s to
/// fail, and a message with unread users comes again after 30 s.
const PAUSE: Duration = Duration::from_secs(30);

/// A table, and the users to read in it.
pub(super) type TableKeys = (TableIdentity<'static>, Vec<Cell>);
/// The tables of users of one source.
pub(super) type SourceTables = HashMap<ShardId, TableIdentity<'static>>;

/// A source with its tables of users.
pub(super) struct ListedSource {
    pub(super) source: MysqlSource,
    /// Held while the tables are listed: one reader lists them for all that wait.
    listing: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    tables: Arc<SourceTables>,
    listed_at: Option<Instant>,
    /// `None` unless the last listing failed.
    list_again_at: Option<Instant>,
    /// `None` unless the source did not answer the last read.
    read_again_at: Option<Instant>,
}

impl State {
    fn is_listing_due(&self, now: Instant) -> bool {
        let is_young = self.listed_at.is_some_and(|at| now.duration_since(at) < LIST_AGE_MIN);
        !is_young && self.list_again_at.is_none_or(|at| at <= now)
    }

    /// Forgets a table; the source then lacks a listing. Another reader may have forgotten it, and have listed since.
    fn forget(&mut self, shard: ShardId) {
        if Arc::make_mut(&mut self.tables).remove(&shard).is_some() {
            self.listed_at = None;
        }
    }

    /// Whether a reader may ask the source. After the pause the first one may, and its read decides for the others.
    fn may_read(&mut self, now: Instant) -> bool {
        let may_read = self.read_again_at.is_none_or(|at| at <= now);
        if may_read && self.read_again_at.is_some() {
            self.read_again_at = Some(now + PAUSE);
        }
        may_read
    }
}

impl ListedSource {
    /// Makes a source without a listing. It does not connect yet.
    pub(super) fn new(source: MysqlSource) -> Self {
        Self { source, listing: tokio::sync::Mutex::default(), state: Mutex::default() }
    }

    /// Returns the tables as they were last listed.
    pub(super) fn tables(&self) -> Arc<SourceTables> {
        Arc::clone(&self.state().tables)
    }

    /// Returns whether the source may have tables that are not known because it could not be listed.
    pub(super) fn lacks_listing(&self) -> bool {
        let state = self.state();
        state.listed_at.is_none() || state.list_again_at.is_some()
    }

    /// Lists the tables, unless they were listed or could not be listed a short while ago.
    pub(super) async fn list(&self) {
        let has_failed = self.state().list_again_at.is_some();
        // No query waits for another one's listing of a source that did not answer before.
        let _listing = match self.listing.try_lock() {
            Ok(listing) => listing,
            Err(_) if has_failed => return,
            Err(_) => self.listing.lock().await,
        };
        if !self.state().is_listing_due(Instant::now()) {
            return;
        }
        match RowSource::tables(&self.source).await {
            Ok(tables) => {
                let users = tables.into_iter().filter(|table| table.entity == Entity::User);
                let tables = Arc::new(users.map(|table| (table.shard, table)).collect());
                let mut state = self.state();
                (state.tables, state.listed_at, state.list_again_at) = (tables, Some(Instant::now()), None);
            }
            Err(fault) => {
                tracing::warn!(%fault, "the source tables of users cannot be listed");
                self.state().list_again_at = Some(Instant::now() + PAUSE);
            }
        }
    }

    /// Forgets a table that the source does not have any more: its shard is then unknown, and is listed again.
    pub(super) fn forget(&self, shard: ShardId) {
        self.state().forget(shard);
    }

    /// Reads rows by key. Returns `None` if the source does not answer, and at once if it did not a short while ago.
    /// After a fault the source answers, so one of the tables is the cause.
    pub(super) async fn rows(&self, keys: &[TableKeys]) -> Result<Option<Chunk>, Fault> {
        if !self.state().may_read(Instant::now()) {
            return Ok(None);
        }
        let read = match self.source.rows(keys, FIRST_EPOCH).await {
            Err(fault) if fault.class() == Class::Transient => {
                // One table may be the cause, so a read of none decides whether the source answers.
                let probe = self.source.rows(&[], FIRST_EPOCH).await;
                if probe.is_err_and(|fault| fault.class() == Class::Transient) {
                    self.state().read_again_at = Some(Instant::now() + PAUSE);
                    tracing::warn!(%fault, "a source does not answer, so its users are unread for a while");
                    return Ok(None);
                }
                // An idle connection may have been closed meanwhile, so a transient fault is retried once: by the
                // caller where it reads the tables one by one.
                if keys.len() > 1 { Err(fault) } else { self.source.rows(keys, FIRST_EPOCH).await }
            }
            read => read,
        };
        self.state().read_again_at = None;
        read.map(Some)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_listed_again_after_a_while_and_sooner_after_a_failure() {
        let begun = Instant::now();
        let listed_at = Some(begun);
        let failed = State { list_again_at: Some(begun + PAUSE), ..State::default() };
        let listed = State { listed_at, ..State::default() };
        let failed_later = State { listed_at, list_again_at: Some(begun + 3 * PAUSE), ..State::default() };
        for (state, seconds, is_due) in [
            (&State::default(), 0, true),
            (&failed, 29, false),
            (&failed, 30, true),
            (&listed, 59, false),
            (&listed, 60, true),
            (&failed_later, 89, false),
            (&failed_later, 90, true),
        ] {
            assert_eq!(state.is_listing_due(begun + Duration::from_secs(seconds)), is_due, "{seconds} s");
        }
    }

    #[test]
    fn a_table_that_is_missing_makes_a_listing_due_once() {
        let table = |number: u32| {
            let name = format!("user_{number:03}");
            let shard = ShardId::of("source-a", "user_00", &name, 0);
            let (database, table) = ("user_00".into(), name.into());
            (shard, TableIdentity { entity: Entity::User, shard, database, table })
        };
        let tables: SourceTables = [table(0), table(1)].into();
        let now = Instant::now();
        let mut state = State { tables: Arc::new(tables), listed_at: Some(now), ..State::default() };
        let (missing, other) = (table(0).0, table(1).0);
        state.forget(missing);
        assert!(!state.tables.contains_key(&missing) && state.tables.contains_key(&other));
        assert!(state.is_listing_due(now), "the listing is young, and is not true any more");
        state.listed_at = Some(now);
        state.forget(missing);
        assert!(!state.is_listing_due(now), "the table was forgotten before the listing");
    }

    #[test]
    fn one_reader_asks_a_source_that_did_not_answer_again() {
        let begun = Instant::now();
        let mut state = State::default();
        assert!(state.may_read(begun) && state.may_read(begun));
        state.read_again_at = Some(begun + PAUSE);
        assert!(!state.may_read(begun + PAUSE / 2));
        assert!(state.may_read(begun + PAUSE));
        assert!(!state.may_read(begun + PAUSE), "another read asks already");
        assert!(state.may_read(begun + 2 * PAUSE), "a read that was cut off decides nothing");
    }
}
