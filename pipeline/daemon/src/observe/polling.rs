//! Loops that ask servers at intervals, and a limit for each answer.

use std::time::Duration;

use anabranch_pipeline::error::Fault;
use tokio_util::sync::CancellationToken;

use super::Dependency;

/// Name of the one log.
pub(super) const LOG: &str = "log";
/// Wait for one answer; longer than a TLS connection over a slow line, short enough for `status`.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) async fn every_interval(interval: Duration, cancel: CancellationToken, work: impl AsyncFn()) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            _ = ticks.tick() => {}
        }
        tokio::select! {
            () = cancel.cancelled() => return,
            () = work() => {}
        }
    }
}

pub(super) async fn within<T>(
    kind: Dependency,
    name: &str,
    question: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    match tokio::time::timeout(ANSWER_TIMEOUT, question).await {
        Ok(answer) => answer,
        Err(_) => {
            let found = format!("no answer within {} s", ANSWER_TIMEOUT.as_secs());
            Err(Fault::new(kind.unreachable(), kind.subject(name), found))
        }
    }
}
