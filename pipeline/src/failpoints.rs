//! Named places before and after each durable step, where a test stops a task to kill or freeze the process.
//!
//! A point does nothing unless the environment variable `ANABRANCH_FAILPOINT` names it. Then the task that gets there
//! writes `failpoint <name>` to standard error and waits: to be killed from outside, or for SIGCONT. So a process that
//! is frozen there and wakes later does next what it was about to do when others took its work over. From then on
//! nothing stops there.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use tokio::signal::unix::{SignalKind, signal};

/// Met by a daemon at work, in the order in which one batch meets them.
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

/// Met by a lane that is refreshed. The last one needs a table that is read to its end.
pub const REFRESHING: &[&str] = &["refresh-before-commit", "refresh-after-commit", "refresh-swept"];

/// Met by a reconciliation that finds something to repair.
pub const RECONCILING: &[&str] = &[
    "reconciliation-scanned",
    "reconciliation-rechecked",
    "reconciliation-repaired",
    "reconciliation-before-checkpoint",
    "reconciliation-after-checkpoint",
];

/// Met while the outbox is drained into a cache. The first two need a cache of which nothing is known, or that began
/// another life.
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

/// Met by a lane of documents. The first needs a shard that is withdrawn.
pub const DOCUMENTING: &[&str] = &["documents-withdrawal-sent", "documents-sent", "documents-progress-sent"];

/// Met by a dispatcher that freezes a wave and publishes it.
pub const DISPATCHING: &[&str] =
    &["coupons-before-page", "coupons-after-page", "coupons-before-publish", "coupons-after-publish"];

/// Met by a granter, in the order in which one message meets them.
pub const GRANTING: &[&str] = &[
    "coupons-before-reserve",
    "coupons-after-reserve",
    "coupons-before-issue",
    "coupons-after-issue",
    "coupons-before-call",
    "coupons-before-settle",
    "coupons-after-settle",
];

/// Met by a daemon that stops in order.
pub const STOPPING: &[&str] = &["lease-before-release", "lease-after-release"];

/// Met by a daemon that gives out uuids.
pub const MINTING: &[&str] = &["register-before-set", "register-after-set"];

/// Met by whoever gives out identifiers of payment documents. The last three need a request key.
pub const SEQUENCING: &[&str] = &[
    "sequence-before-lease",
    "sequence-lease-sent",
    "sequence-after-lease",
    "sequence-after-known",
    "sequence-before-key",
    "sequence-key-sent",
    "sequence-after-key",
];

/// Met by the command `flux sequence raise`.
pub const RAISING: &[&str] = &["sequence-raise-sent", "sequence-after-raise"];

/// Met by the command `setup`.
pub const SETTING_UP: &[&str] = &[
    "setup-before-stream",
    "setup-after-stream",
    "setup-after-databases",
    "setup-after-tables",
    "setup-progress-sent",
    "setup-after-progress",
];

/// Linux' number of SIGCONT, which the signals that the library names do not have.
const CONTINUE: i32 = 18;

/// Whether the environment asks for this point and no task has gone on from it.
fn is_armed(name: &str) -> bool {
    static ARMED: OnceLock<Option<String>> = OnceLock::new();
    debug_assert!(
        [
            WORKING,
            REFRESHING,
            RECONCILING,
            CACHING,
            DOCUMENTING,
            DISPATCHING,
            GRANTING,
            STOPPING,
            MINTING,
            SEQUENCING,
            RAISING,
            SETTING_UP,
        ]
        .concat()
        .contains(&name),
        "{name} is not listed"
    );
    let armed = ARMED.get_or_init(|| std::env::var("ANABRANCH_FAILPOINT").ok());
    armed.as_deref() == Some(name) && !PASSED.load(Ordering::Relaxed)
}

static PASSED: AtomicBool = AtomicBool::new(false);

/// Stops here when this point is armed.
pub async fn reach(name: &'static str) {
    if is_armed(name) {
        stop(name).await;
    }
}

/// Does the work; when this point is armed, stops once its request has left and before its answer is looked at.
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
    // Taken before the test is told, so that its signal cannot come too early.
    let awake = signal(SignalKind::from_raw(CONTINUE));
    eprintln!("failpoint {name}");
    match awake {
        Ok(mut awake) => _ = awake.recv().await,
        Err(_) => std::future::pending().await,
    }
    PASSED.store(true, Ordering::Relaxed);
}
