//! How the drain of a cache is put together: lease, one loop for each outbox.

use futures::future::try_join_all;
use tokio_util::sync::CancellationToken;

use crate::error::Fault;
use crate::lookup::{self, Drain};
use crate::ports::{CodeCache, Leases, MappingStore, Outbox};
use crate::records::TimeToLive;
use crate::supervise::{Ready, TaskHandle, under_lease};

/// A cache, the outboxes of all targets of its projection, and the mapping tables that fill it.
#[derive(Debug)]
pub struct CacheParts<'a, C, O, M> {
    pub cache: &'a C,
    pub outboxes: &'a [O],
    pub mapping: &'a M,
    pub time_to_live: TimeToLive,
}

/// Makes one attempt of the drain of a cache, under its lease.
pub async fn drain<C: CodeCache, O: Outbox, M: MappingStore>(
    leases: &impl Leases,
    name: &str,
    parts: CacheParts<'_, C, O, M>,
    handle: &TaskHandle,
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    let work = async |ready: Ready| {
        handle.waits_for(format!("cache {name} and the targets of its projection"));
        drain_all(&parts, || ready.report(), cancel).await
    };
    under_lease(leases, handle, cancel, work).await
}

/// Drains all outboxes into the cache until `cancel`, or until one of them fails. It calls `settled` whenever nothing
/// is pending in one of them.
pub async fn drain_all<C: CodeCache, O: Outbox, M: MappingStore>(
    parts: &CacheParts<'_, C, O, M>,
    settled: impl Fn(),
    cancel: &CancellationToken,
) -> Result<(), Fault> {
    let drains = parts.outboxes.iter().map(|outbox| {
        let work =
            Drain { cache: parts.cache, outbox, mapping: parts.mapping, time_to_live: parts.time_to_live };
        lookup::drain(work, |_| settled(), cancel)
    });
    try_join_all(drains).await.map(drop)
}
