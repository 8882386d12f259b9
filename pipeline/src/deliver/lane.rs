//! What one lane works on, and what each part of its loop asks.

use anabranch_schemas::change::Entity;
use tokio_util::sync::CancellationToken;

use super::fields::FieldsRead;
use super::shared::Shared;
use super::window::LaneWindow;
use crate::config::Limits;
use crate::error::{Code, Fault};
use crate::ports::{Entry, LaneStore};
use crate::records::{LaneId, Progress};

/// What one lane works on.
#[derive(Debug)]
pub struct Lane<'a, S, L> {
    pub id: &'a LaneId,
    pub log: &'a L,
    /// Feeds the lane when the log cannot.
    pub source: &'a S,
    /// Its own among the readings of the source.
    pub replica_slot: u32,
    /// Where a lane without progress begins when the stream does not begin there.
    pub start: &'a Entry,
    /// What the projection reads, and how many of its fields.
    pub entity: Entity,
    pub fields: usize,
    /// See [`crate::projections::Projection::source_column`].
    pub source_column: usize,
    /// See [`crate::projections::Projection::flush_weight`].
    pub row_weight: usize,
    /// Derived tables of the projection, all lanes' together.
    pub tables: u32,
    /// With the other lanes of the source.
    pub shared: &'a Shared,
    pub limits: &'a Limits,
}

impl<S, L> Lane<'_, S, L> {
    pub(super) fn fields_read(&self) -> FieldsRead {
        FieldsRead { entity: self.entity, fields: self.fields }
    }
}

/// The outcome of what may take long and leaves nothing behind; `None` when cancelled meanwhile.
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

/// The stored progress, if it is still this lane's. A quiet lane commits nothing, so the fence cannot tell it that it
/// was set back.
pub(super) async fn look<S, L>(
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
