//! Work under a lease: a task waits for it, works while it is held, and gives it back. Leases save work; fences
//! protect.

use std::time::Duration;

use anabranch_schemas::lsn::Lsn;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::TaskHandle;
use crate::error::Fault;
use crate::ports::{Lease, Leases};

/// Time at work after which a failed task is well again, even if it commits nothing: a failure after the first answers
/// comes sooner.
const WELL_AFTER: Duration = Duration::from_secs(5);

/// Waits for the task's lease and works while it is held. The task runs from the first position that the work reports,
/// because its servers have answered by then. On `cancel` the work itself comes to an orderly end.
pub async fn under_lease<W>(
    leases: &impl Leases,
    handle: &TaskHandle,
    cancel: &CancellationToken,
    work: W,
) -> Result<(), Fault>
where
    W: AsyncFnOnce(watch::Sender<Lsn>) -> Result<(), Fault>,
{
    handle.waits_for("its lease");
    let on_standby = || handle.standby();
    let acquired = unless_cancelled(leases.acquire_or_stand_by(handle.name(), &on_standby), cancel);
    let Some(lease) = acquired.await? else { return Ok(()) };
    running_under(lease, handle, work).await
}

/// Waits for a lease; returns `None` on `cancel`.
pub async fn acquired<L: Leases>(
    leases: &L,
    key: &str,
    cancel: &CancellationToken,
) -> Result<Option<L::Lease>, Fault> {
    unless_cancelled(leases.acquire(key), cancel).await
}

async fn unless_cancelled<L: Lease>(
    acquired: impl Future<Output = Result<L, Fault>>,
    cancel: &CancellationToken,
) -> Result<Option<L>, Fault> {
    tokio::select! {
        // Virtual time has one order of events for each seed.
        biased;
        lease = acquired => lease.map(Some),
        () = cancel.cancelled() => Ok(None),
    }
}

/// Works under a lease that is held already. The task has begun at the first position that the work reports. It is well
/// at the next one, because something was appended or committed by then.
pub async fn running_under<W>(lease: impl Lease, handle: &TaskHandle, work: W) -> Result<(), Fault>
where
    W: AsyncFnOnce(watch::Sender<Lsn>) -> Result<(), Fault>,
{
    handle.waits_for("its servers");
    let (sender, mut positions) = watch::channel(Lsn::ZERO);
    let followed = async {
        if positions.changed().await.is_ok() {
            handle.begun();
            _ = timeout(WELL_AFTER, positions.changed()).await;
            handle.well();
        }
        std::future::pending::<()>().await;
    };
    let last = sender.subscribe();
    let work = async {
        tokio::select! {
            biased;
            result = work(sender) => result,
            () = followed => unreachable!("it never ends"),
        }
    };
    let ended = while_held(lease, work).await;
    handle.reached(*last.borrow());
    ended
}

/// Works while the lease is held, and gives it back.
pub async fn while_held<T>(
    mut lease: impl Lease,
    work: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    let ended = tokio::select! {
        biased;
        ended = work => ended,
        fault = lease.lost() => Err(fault),
    };
    lease.release().await;
    ended
}
