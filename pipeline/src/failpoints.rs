//! Named places before and after each durable step, where a test stops the process to kill it.
//!
//! A point does nothing unless the environment variable `ANABRANCH_FAILPOINT` names it. Then the process writes
//! `failpoint <name>` to standard error when it gets there and waits for ever; the test kills it from outside.

use std::sync::OnceLock;

/// Every point, in the order in which one batch meets them.
pub const ALL: &[&str] = &[
    "capture-before-append",
    "capture-after-append",
    "capture-after-ack",
    "lane-before-commit",
    "lane-after-commit",
    "lane-direct-opened",
    "lane-direct-joined",
];

/// The point that the environment asks for.
fn armed() -> Option<&'static str> {
    static ARMED: OnceLock<Option<String>> = OnceLock::new();
    ARMED.get_or_init(|| std::env::var("ANABRANCH_FAILPOINT").ok()).as_deref()
}

/// Stops here for ever when this point is armed.
pub async fn reach(name: &'static str) {
    debug_assert!(ALL.contains(&name), "{name} is not listed");
    if armed() == Some(name) {
        eprintln!("failpoint {name}");
        std::future::pending::<()>().await;
    }
}
