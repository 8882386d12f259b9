//! The inputs of one lane, and checks that the parts of its loop share.

use anabranch_schemas::change::Entity;
use tokio_util::sync::CancellationToken;

use super::fields::FieldsRead;
use super::shared::Shared;
use super::window::LaneWindow;
use crate::config::Limits;
use crate::error::{Code, Fault};
use crate::ports::{BinlogStart, LaneStore};
use crate::records::{LaneId, Progress};

/// The inputs of one lane.
#[derive(Debug)]
pub struct Lane<'a, S, L> {
    pub id: &'a LaneId,
    pub log: &'a L,
    /// The source that feeds the lane when the log cannot.
    pub source: &'a S,
    /// Replica slot of the lane's direct feed.
    pub replica_slot: u32,
    /// Entry of a lane without progress when the stream does not begin there.
    pub start: &'a BinlogStart,
    /// Entity that the projection reads; `fields` says how many of its fields.
    pub entity: Entity,
    pub fields: usize,
    /// See [`crate::projections::Projection::source_column`].
    pub source_column: usize,
    /// See [`crate::projections::Projection::flush_weight`].
    pub row_weight: usize,
    /// Number of the projection's derived tables, those of all lanes together.
    pub tables: u32,
    /// State that the lane shares with the other lanes of the source.
    pub shared: &'a Shared,
    pub limits: &'a Limits,
}

impl<S, L> Lane<'_, S, L> {
    pub(super) fn fields_read(&self) -> FieldsRead {
        FieldsRead { entity: self.entity, fields: self.fields }
    }
}

/// Returns the outcome of work that may take long and leaves nothing behind; `None` when it is cancelled meanwhile.
pub(super) async fn unless<T>(
    cancel: &CancellationToken,
    work: impl Future<Output = Result<T, Fault>>,
) -> Result<Option<T>, Fault> {
    tokio::select! {
        biased;
        () = cancel.cancelled() => Ok(None),
        outcome = work => outcome.map(Some),
    }
}

/// Returns the stored progress, if it is still this lane's. A quiet lane commits nothing, so the fence cannot tell it
/// that it was set back.
pub(super) async fn load_own_progress<S, L>(
    lane: &Lane<'_, S, L>,
    store: &mut impl LaneStore,
    window: &LaneWindow,
) -> Result<Progress, Fault> {
    let progress = store.load().await?;
    let (stored, own) = (progress.revision, window.progress().revision);
    if stored == own {
        return Ok(progress);
    }
    let found = format!("its stored progress has revision {stored}, not {own}");
    Err(Fault::new(Code::TargetFenced, format!("lane {}", lane.id), found))
}
