//! Named points before and after each durable step, at which a test stops a task to kill or freeze the process.
//!
//! A point does nothing unless the environment variable `ANABRANCH_FAILPOINT` names it and the variable
//! `ANABRANCH_FAILPOINT_ALLOWED` is `in-tests-only`. Without the second one the daemon warns and goes on. The task that
//! reaches an armed point writes `failpoint <name>` to standard error and waits until the process is killed or gets
//! SIGCONT. A process that was frozen there and wakes later takes its next step although other processes took over its
//! work. After that the point stops no task.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use tokio::signal::unix::{SignalKind, signal};

/// Variable with the name of the point to stop at.
pub const VARIABLE: &str = "ANABRANCH_FAILPOINT";
/// Variable without which the first one has no effect: no person sets both by accident.
pub const PERMISSION: &str = "ANABRANCH_FAILPOINT_ALLOWED";
/// The value of [`PERMISSION`] that allows it.
pub const PERMITTED: &str = "in-tests-only";

/// Points that a working daemon reaches, in the order in which one batch reaches them.
pub const WORKING: &[&str] = &[
    "lease-before-take",
    "lease-after-take",
    "lease-before-renewal",
    "lease-after-renewal",
    "capture-before-append",
    "capture-after-append",
    "capture-after-ack",
    "lane-before-commit",
    "lane-withdrawal-sent",
    "lane-rows-sent",
    "lane-commit-sent",
    "lane-after-commit",
    "lane-direct-opened",
    "lane-direct-joined",
];

/// Points that a refreshing lane reaches. The last one needs a table that is read to its end.
pub const REFRESHING: &[&str] = &["refresh-before-commit", "refresh-after-commit", "refresh-swept"];

/// Points that a reconciliation reaches when it finds something to repair.
pub const RECONCILING: &[&str] = &[
    "reconciliation-scanned",
    "reconciliation-rechecked",
    "reconciliation-repaired",
    "reconciliation-before-checkpoint",
    "reconciliation-after-checkpoint",
];

/// Points that the drain of an outbox into a cache reaches. The first two need a cache whose content is unknown, or
/// that began another life.
pub const CACHING: &[&str] = &[
    "cache-after-clear",
    "cache-after-repeat",
    "cache-before-removal",
    "cache-after-removal",
    "cache-token-taken",
    "cache-after-fill",
    "cache-after-drained",
    "cache-before-record",
    "cache-after-record",
];

/// Points that a lane of documents reaches. The first one needs a shard that is withdrawn.
pub const DOCUMENTING: &[&str] = &["documents-withdrawal-sent", "documents-sent", "documents-progress-sent"];

/// Points that a dispatcher reaches in each pass, before and after it begins the days that have come.
pub const BEGINNING: &[&str] = &["coupons-before-begin", "coupons-after-begin"];

/// Points that a dispatcher reaches when it freezes a wave, in their order.
pub const FREEZING: &[&str] = &[
    "coupons-before-take-over",
    "coupons-after-take-over",
    "coupons-before-page",
    "coupons-after-page",
    "coupons-before-wave-end",
    "coupons-after-wave-end",
];

/// Points that a dispatcher reaches after it has frozen noon, when it sweeps, publishes members and stores a report.
pub const DISPATCHING: &[&str] = &[
    "coupons-before-sweep",
    "coupons-after-sweep",
    "coupons-before-publish",
    "coupons-after-publish",
    "coupons-before-report",
    "coupons-after-report",
];

/// Points that a dispatcher reaches when it closes a day. It stores the last report between the second and the third.
pub const CLOSING: &[&str] =
    &["coupons-before-confirm", "coupons-after-confirm", "coupons-before-close", "coupons-after-close"];

/// Points that a granter reaches, in the order in which one message reaches them.
pub const GRANTING: &[&str] = &[
    "coupons-before-reserve",
    "coupons-after-reserve",
    "coupons-before-issue",
    "coupons-after-issue",
    "coupons-after-swap",
    "coupons-before-call",
    "coupons-before-settle",
    "coupons-after-settle",
];

/// Points that a granter reaches, in their order, when it takes over users whose earlier call has no known outcome.
pub const LEARNING: &[&str] = &["coupons-before-ask", "coupons-after-ask", "coupons-after-learned"];

/// Points before and after columns of birthday tables follow the ledger. A granter reaches the first two, when it has
/// given coupons. A dispatcher that has frozen a wave reaches the others, when the day has coupons.
pub const FOLLOWING: &[&str] = &[
    "coupons-before-columns",
    "coupons-after-columns",
    "coupons-before-day-columns",
    "coupons-after-day-columns",
];

/// Points that the command `dispatch take-in` reaches, in their order.
pub const TAKING_IN: &[&str] = &[
    "coupons-before-take-in",
    "coupons-after-first-settled",
    "coupons-before-register",
    "coupons-after-register",
    "coupons-after-take-in",
];

/// Points that the command `dispatch letters requeue` reaches, before and after it publishes a letter.
pub const REQUEUEING: &[&str] = &["coupons-before-requeued", "coupons-after-requeued"];

/// Points that a daemon reaches when it stops in order.
pub const STOPPING: &[&str] = &["lease-before-release", "lease-after-release"];

/// Points that a daemon reaches when it gives out uuids.
pub const MINTING: &[&str] = &["register-before-set", "register-after-set"];

/// Points that the issuer of identifiers of payment documents reaches. The last three need a request key.
pub const SEQUENCING: &[&str] = &[
    "sequence-before-lease",
    "sequence-lease-sent",
    "sequence-after-lease",
    "sequence-after-known",
    "sequence-before-key",
    "sequence-key-sent",
    "sequence-after-key",
];

/// Points that the command `flux sequence raise` reaches, in their order. The first three are about the first table of
/// counters, the others about all counters, the registers and the accepted server.
pub const RAISING: &[&str] = &[
    "sequence-before-raise",
    "sequence-raise-sent",
    "sequence-after-raise",
    "sequence-counters-raised",
    "sequence-registers-raised",
    "sequence-server-accepted",
];

/// Points that the command `plan --measure` reaches, between its two reads of the counters of each source.
pub const MEASURING: &[&str] = &["measure-counters-read"];

/// Points that the command `setup` reaches.
pub const SETTING_UP: &[&str] = &[
    "setup-before-stream",
    "setup-after-stream",
    "setup-after-databases",
    "setup-after-tables",
    "setup-progress-sent",
    "setup-after-progress",
];

/// Points that the command `begin-anew` reaches, in their order. The last one needs a daemon that runs the reader.
pub const BEGINNING_ANEW: &[&str] = &[
    "begin-anew-before-register",
    "begin-anew-after-register",
    "begin-anew-before-wake",
    "begin-anew-reader-woken",
    "begin-anew-before-lanes",
];

/// Points that the command `remove` reaches for a source, in their order. The last one needs `--with-log`.
pub const REMOVING: &[&str] =
    &["remove-lanes-set-back", "remove-rows-removed", "remove-retired-removed", "remove-before-stream"];

/// Points that the removal of rows that have outlived their retired table reaches, in their order. A daemon and the
/// command `remove` make that removal.
pub const OUTLIVED: &[&str] =
    &["outlived-before-removal", "outlived-after-removal", "outlived-before-forget", "outlived-after-forget"];

/// Linux' number of SIGCONT, which the signals that the library names do not have.
const CONTINUE: i32 = 18;

/// Whether the environment names this point and no task has passed it.
fn is_armed(name: &str) -> bool {
    static ARMED: OnceLock<Option<String>> = OnceLock::new();
    debug_assert!(
        [
            WORKING,
            REFRESHING,
            RECONCILING,
            CACHING,
            DOCUMENTING,
            BEGINNING,
            FREEZING,
            DISPATCHING,
            CLOSING,
            GRANTING,
            LEARNING,
            FOLLOWING,
            TAKING_IN,
            REQUEUEING,
            STOPPING,
            MINTING,
            SEQUENCING,
            RAISING,
            MEASURING,
            SETTING_UP,
            BEGINNING_ANEW,
            REMOVING,
            OUTLIVED,
        ]
        .concat()
        .contains(&name),
        "{name} is not listed"
    );
    let armed = ARMED
        .get_or_init(|| allowed(std::env::var(VARIABLE).ok(), std::env::var(PERMISSION).ok().as_deref()));
    armed.as_deref() == Some(name) && !PASSED.load(Ordering::Relaxed)
}

/// Returns the point to stop at, if the permission stands beside its name.
fn allowed(name: Option<String>, permission: Option<&str>) -> Option<String> {
    if name.is_some() && permission != Some(PERMITTED) {
        tracing::warn!("{VARIABLE} is ignored: it is for tests, which set {PERMISSION} too");
        return None;
    }
    name
}

static PASSED: AtomicBool = AtomicBool::new(false);

/// Waits here if this point is armed.
pub async fn reach(name: &'static str) {
    if is_armed(name) {
        stop(name).await;
    }
}

/// Runs the work. If this point is armed, stops after the work has sent its request and before it reads the answer.
pub async fn reach_unanswered<T>(name: &'static str, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    if is_armed(name) {
        // The first poll writes the request and finds no answer yet.
        if let Poll::Ready(output) = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await {
            return output;
        }
        stop(name).await;
    }
    work.await
}

async fn stop(name: &'static str) {
    // Registered before the test reads the line, so that the test's signal cannot come too early.
    let awake = signal(SignalKind::from_raw(CONTINUE));
    eprintln!("failpoint {name}");
    match awake {
        Ok(mut awake) => _ = awake.recv().await,
        Err(_) => std::future::pending().await,
    }
    PASSED.store(true, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_without_the_permission_of_tests_stops_nothing() {
        let point = || Some("lane-before-commit".to_owned());
        assert_eq!(allowed(point(), Some(PERMITTED)), point());
        for permission in [None, Some(""), Some("1"), Some("lane-before-commit")] {
            assert_eq!(allowed(point(), permission), None, "{permission:?}");
        }
        assert_eq!(allowed(None, Some(PERMITTED)), None);
    }
}
