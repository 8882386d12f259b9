//! Loops that ask servers at intervals, and a limit for each answer.
//!
//! A panic ends none of them: within a question it is the answer's fault, and after one elsewhere the loop asks again.
//! [`kept`] does the same for other work beside the tasks.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::metrics as names;
use futures::FutureExt;
use metrics::counter;
use tokio_util::sync::CancellationToken;

use super::Dependency;

/// Name of the one log.
pub(super) const LOG: &str = "log";
/// Wait for one answer; longer than a TLS connection over a slow line, short enough for `status`.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before work that panicked begins again.
const PANIC_PAUSE: Duration = Duration::from_secs(1);

pub(super) async fn every_interval(interval: Duration, cancel: CancellationToken, work: impl AsyncFn()) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let outcome = tokio::select! {
            () = cancel.cancelled() => return,
            outcome = AssertUnwindSafe(work()).catch_unwind() => outcome,
        };
        if outcome.is_err() {
            panicked("a poll");
        }
    }
}

/// Does work that ends only at `cancel`, and begins it again after a panic.
pub async fn kept<F: Future<Output = ()>>(name: &str, cancel: CancellationToken, work: impl Fn() -> F) {
    while AssertUnwindSafe(work()).catch_unwind().await.is_err() {
        panicked(name);
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(PANIC_PAUSE) => {}
        }
    }
}

pub(super) async fn within<T>(
    kind: Dependency,
    name: &str,
    question: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    match tokio::time::timeout(ANSWER_TIMEOUT, AssertUnwindSafe(question).catch_unwind()).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(panicked(&kind.subject(name))),
        Err(_) => {
            let found = format!("no answer within {} s", ANSWER_TIMEOUT.as_secs());
            Err(Fault::new(kind.unreachable(), kind.subject(name), found))
        }
    }
}

/// Counts and logs a panic, whose own message is in the log already; returns it as a fault.
fn panicked(subject: &str) -> Fault {
    let fault = Fault::new(Code::Internal, subject, "it panicked (see the log)");
    counter!(names::RETRIES, "code" => fault.code().as_str()).increment(1);
    tracing::error!(%fault, "it begins again");
    fault
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Poll;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_a_fault_of_its_question_and_ends_neither_a_loop_nor_kept_work() {
        let question = poll_fn(|_| -> Poll<Result<(), Fault>> { panic!("in a question") });
        let fault = within(Dependency::Source, "a", question).await.unwrap_err();
        assert_eq!((fault.code(), fault.to_string().contains("source a")), (Code::Internal, true), "{fault}");

        let count = AtomicU32::new(0);
        let cancel = CancellationToken::new();
        let work = async || match count.fetch_add(1, Ordering::SeqCst) {
            3 => cancel.cancel(),
            _ => panic!("in a poll"),
        };
        every_interval(Duration::from_secs(1), cancel.clone(), work).await;
        assert_eq!(count.load(Ordering::SeqCst), 4, "each interval asks again");

        let work = || async {
            let left = count.fetch_sub(1, Ordering::SeqCst);
            assert!(left == 1, "in kept work");
        };
        kept("work", CancellationToken::new(), work).await;
        assert_eq!(count.load(Ordering::SeqCst), 0, "it begins again until it ends by itself");
    }
}
