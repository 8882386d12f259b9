//! A whole audit of a cache, without a rate and without backpressure.

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::lookup::{AuditPace, CacheAudit};
use anabranch_pipeline::ports::{CodeCache, MappingStore, Outbox};
use anabranch_pipeline::records::{AuditState, Audited};
use anabranch_pipeline::throttle::Pace;

/// Runs the whole audit; returns its findings, and the fault that ended it before the cache's end, if any.
pub async fn audited<C, O, M>(work: &CacheAudit<'_, C, O, M>) -> (Audited, Option<Fault>)
where
    C: CodeCache,
    O: Outbox,
    M: MappingStore,
{
    let (mut state, mut pace) = (AuditState::default(), AuditPace::new(Pace::unbounded()));
    let ended = async {
        work.begin(&mut state).await?;
        while !work.step(&mut state, &mut pace).await? {}
        Ok(())
    };
    let ended: Result<(), Fault> = ended.await;
    (state.audited, ended.err())
}
