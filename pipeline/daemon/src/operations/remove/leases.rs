//! Leases of a source that left: none may be held when a removal begins, and the removal holds them to its end.
//!
//! A lease that is lost ends the removal, because a process whose file has the source may have begun.

use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{LEASE_TIME_TO_LIVE, Lease, Leases};
use anabranch_pipeline::records::LaneId;
use futures::FutureExt as _;
use futures::future::{join_all, select_all, try_join_all};
use tokio::time::{Instant, sleep, timeout};

use super::RemoveRequest;
use crate::task_names::{lane_task, reader_task};
use crate::wiring::Log;

/// Wait for leases: those of a process that was killed are free by then.
const LEASES_WAIT: Duration = LEASE_TIME_TO_LIVE.saturating_add(Duration::from_secs(2));
const LEASES_INTERVAL: Duration = Duration::from_millis(500);

/// The leases that a removal holds; a rehearsal holds none.
pub(super) struct HeldLeases<L>(Vec<L>);

impl<L: Lease> HeldLeases<L> {
    pub(super) fn none() -> Self {
        Self(Vec::new())
    }

    /// Works while every lease is held. The fault of a lost lease ends the work at its next pause.
    pub(super) async fn work<T>(&mut self, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        tokio::select! {
            biased;
            fault = self.lost() => Err(fault),
            ended = work => ended,
        }
    }

    /// Returns the fault of a lease that is lost at this moment.
    pub(super) fn require_held(&mut self) -> Result<(), Fault> {
        self.lost().now_or_never().map_or(Ok(()), Err)
    }

    /// Resolves when a lease is lost.
    async fn lost(&mut self) -> Fault {
        if self.0.is_empty() {
            return std::future::pending().await;
        }
        select_all(self.0.iter_mut().map(|lease| Box::pin(lease.lost()))).await.0
    }

    pub(super) async fn release(self) {
        join_all(self.0.into_iter().map(L::release)).await;
    }
}

/// Takes the leases of reader and lanes.
pub(super) async fn take(
    request: &RemoveRequest,
    log: &Log,
    name: &str,
    lanes: &[LaneId],
) -> Result<HeldLeases<<Log as Leases>::Lease>, Fault> {
    let keys = std::iter::once(reader_task(name)).chain(lanes.iter().map(lane_task));
    let taking = keys.map(|key| async move {
        match timeout(LEASES_WAIT, log.acquire(&key)).await {
            Ok(lease) => lease,
            Err(_) => {
                let found = format!("another process holds the lease {key}");
                Err(request.refused(found).needs(still_held(name)))
            }
        }
    });
    Ok(HeldLeases(try_join_all(taking).await?))
}

/// Refuses while any process holds a lease of the source: its configuration has the source. The lease of a process that
/// was killed ends within the wait.
pub(super) async fn require_free(request: &RemoveRequest, log: &Log, source: &str) -> Result<(), Fault> {
    let began = Instant::now();
    loop {
        match require_free_now(request, log, source).await {
            Err(fault) if fault.code() == Code::RemoveRefused && began.elapsed() < LEASES_WAIT => {
                sleep(LEASES_INTERVAL).await;
            }
            ended => return ended,
        }
    }
}

async fn require_free_now(request: &RemoveRequest, log: &Log, source: &str) -> Result<(), Fault> {
    let reader = reader_task(source);
    let is_of_source = |lease: &str| {
        let parts: Vec<&str> = lease.split('/').collect();
        lease == reader || matches!(parts.as_slice(), ["lane", _, _, of, _] if *of == source)
    };
    let holders = log.lease_holders().await?;
    let held = holders.iter().find(|(lease, _)| is_of_source(lease.as_str()));
    let Some((lease, holder)) = held else { return Ok(()) };
    let found = format!("process {} on {} holds the lease {lease}", holder.process_id, holder.host);
    Err(request.refused(found).needs(still_held(source)))
}

fn still_held(source: &str) -> String {
    format!(
        "no process whose configuration has source {source}: take it out of every file, and restart each daemon"
    )
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

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
