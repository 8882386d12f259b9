//! Work under a lease: a task waits for it, works while it is held, and gives it back. Leases save work; fences
//! protect.

use std::time::Duration;

use anabranch_schemas::lsn::Lsn;
use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all, select_all};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::TaskHandle;
use crate::error::Fault;
use crate::ports::{Lease, Leases};

/// Time at work after which a failed task is well again, even if it commits nothing: a failure after the first answers
/// comes sooner.
const WELL_AFTER: Duration = Duration::from_secs(5);

/// The report of work to its task that it has begun.
#[derive(Debug, Clone)]
pub struct Ready(watch::Sender<Lsn>);

impl Ready {
    /// Reports work that has no positions: its servers have answered, or a part of it is done.
    pub fn report(&self) {
        self.0.send_modify(|_| {});
    }

    /// Takes the positions that the work reaches. Each one is a report.
    pub fn positions(&self) -> &watch::Sender<Lsn> {
        &self.0
    }
}

/// Waits for the task's lease and works while it is held. The task runs from the first report of the work, because its
/// servers have answered by then. On `cancel` the work itself comes to an orderly end.
pub async fn under_lease<W>(
    leases: &impl Leases,
    handle: &TaskHandle,
    cancel: &CancellationToken,
    work: W,
) -> Result<(), Fault>
where
    W: AsyncFnOnce(Ready) -> Result<(), Fault>,
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

/// Waits for a lease, for some time at most; returns `None` if another process holds it all the time.
pub async fn acquired_within<L: Leases>(
    leases: &L,
    key: &str,
    time: Duration,
) -> Result<Option<L::Lease>, Fault> {
    timeout(time, leases.acquire(key)).await.map_or(Ok(None), |acquired| acquired.map(Some))
}

/// Awaits the answer; returns `None` on `cancel`.
pub async fn unless_cancelled<T>(
    answer: impl Future<Output = Result<T, Fault>>,
    cancel: &CancellationToken,
) -> Result<Option<T>, Fault> {
    tokio::select! {
        // Virtual time has one order of events for each seed.
        biased;
        answer = answer => answer.map(Some),
        () = cancel.cancelled() => Ok(None),
    }
}

/// Works under a lease that is held already. The task has begun at the first report of the work. It is well at the next
/// one, because something was appended or committed by then.
pub async fn running_under<W>(lease: impl Lease, handle: &TaskHandle, work: W) -> Result<(), Fault>
where
    W: AsyncFnOnce(Ready) -> Result<(), Fault>,
{
    handle.waits_for("its servers");
    while_held(lease, reporting(handle, Some(WELL_AFTER), work)).await
}

/// Works without a lease. The task has begun at the first report of the work, and is well when the work says so.
pub async fn running<W>(handle: &TaskHandle, work: W) -> Result<(), Fault>
where
    W: AsyncFnOnce(Ready) -> Result<(), Fault>,
{
    reporting(handle, None, work).await
}

/// Works, and follows its reports. With a time, the task is well at the second report or after that time.
async fn reporting<W>(handle: &TaskHandle, well_after: Option<Duration>, work: W) -> Result<(), Fault>
where
    W: AsyncFnOnce(Ready) -> Result<(), Fault>,
{
    let (sender, mut positions) = watch::channel(Lsn::ZERO);
    let _reached = Reached { handle, position: sender.subscribe() };
    let followed = async {
        if positions.changed().await.is_ok() {
            handle.begun();
            if let Some(time) = well_after {
                _ = timeout(time, positions.changed()).await;
                handle.well();
            }
        }
        std::future::pending::<()>().await;
    };
    // On the heap: work is large, and each future around it would move it over the stack once more.
    let work = Box::pin(work(Ready(sender)));
    tokio::select! {
        biased;
        result = work => result,
        () = followed => unreachable!("it never ends"),
    }
}

/// Records the position that the work has reached, also when the work is cut off.
struct Reached<'h> {
    handle: &'h TaskHandle,
    position: watch::Receiver<Lsn>,
}

impl Drop for Reached<'_> {
    fn drop(&mut self) {
        self.handle.reached(*self.position.borrow());
    }
}

/// Works while the lease is held, and gives it back.
pub async fn while_held<T>(
    lease: impl Lease,
    work: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    let mut held = HeldLeases(vec![lease]);
    let ended = held.work(Box::pin(work)).await;
    held.release().await;
    ended
}

/// Leases that are held together.
#[derive(Debug)]
pub struct HeldLeases<L>(Vec<L>);

impl<L> From<Vec<L>> for HeldLeases<L> {
    fn from(leases: Vec<L>) -> Self {
        Self(leases)
    }
}

impl<L: Lease> HeldLeases<L> {
    /// Returns the leases of work that needs none.
    pub fn none() -> Self {
        Self(Vec::new())
    }

    /// Works while every lease is held. The fault of a lost lease ends the work at its next pause.
    pub async fn work<T>(&mut self, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        tokio::select! {
            biased;
            ended = work => ended,
            fault = self.lost() => Err(fault),
        }
    }

    /// Returns the fault of a lease that is lost at this moment.
    pub fn require_held(&mut self) -> Result<(), Fault> {
        self.lost().now_or_never().map_or(Ok(()), Err)
    }

    /// Resolves when a lease is lost.
    async fn lost(&mut self) -> Fault {
        if self.0.is_empty() {
            return std::future::pending().await;
        }
        let lost: Vec<BoxFuture<'_, Fault>> = self.0.iter_mut().map(|lease| lease.lost().boxed()).collect();
        select_all(lost).await.0
    }

    pub async fn release(self) {
        join_all(self.0.into_iter().map(L::release)).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::error::Code;

    struct Scripted(oneshot::Receiver<()>);

    impl Lease for Scripted {
        async fn lost(&mut self) -> Fault {
            _ = (&mut self.0).await;
            Fault::new(Code::LeaseLost, "lease", "lost")
        }

        async fn release(self) {}
    }

    #[tokio::test]
    async fn work_ends_with_the_first_lease_that_is_lost() {
        let ((_first, one), (second, other)) = (oneshot::channel(), oneshot::channel());
        let mut leases = HeldLeases(vec![Scripted(one), Scripted(other)]);
        assert_eq!(leases.work(async { Ok(1) }).await.unwrap(), 1);
        leases.require_held().unwrap();
        second.send(()).unwrap();
        let ended = leases.work(std::future::pending::<Result<(), Fault>>()).await;
        assert_eq!(ended.unwrap_err().code(), Code::LeaseLost);
    }

    #[tokio::test]
    async fn a_lost_lease_is_found_before_a_step_and_a_rehearsal_has_none_to_lose() {
        let (lost, lease) = oneshot::channel();
        let mut leases = HeldLeases(vec![Scripted(lease)]);
        lost.send(()).unwrap();
        assert_eq!(leases.require_held().unwrap_err().code(), Code::LeaseLost);
        let mut none = HeldLeases::<Scripted>::none();
        none.require_held().unwrap();
        assert_eq!(none.work(async { Ok(2) }).await.unwrap(), 2);
    }
}
