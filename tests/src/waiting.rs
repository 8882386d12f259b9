//! Waiting for a condition with a deadline; nothing in the tests sleeps for a fixed time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Longest wait for a condition, far above the time of a step on a busy machine. A task that could not reach its server
/// pauses for up to 60 s. A killed OpenSearch needs up to 60 s beside other servers that start.
pub const WAIT_MAX: Duration = Duration::from_secs(180);
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Longest pause between two looks. A look that takes long, such as a comparison of all tables, is followed by a pause
/// that is as long: it leaves the machine to the work for which the test waits.
const POLL_MAX: Duration = Duration::from_secs(1);

/// Waits until the condition holds.
///
/// # Panics
/// Panics after [`WAIT_MAX`], naming the condition that did not come.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    until_some(what, async || condition().await.then_some(())).await;
}

/// Waits until there is a value and returns it.
///
/// # Panics
/// Panics after [`WAIT_MAX`], naming the condition that did not come.
pub async fn until_some<T>(what: &str, mut value: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        let began = Instant::now();
        if let Some(value) = value().await {
            return value;
        }
        assert!(Instant::now() < deadline, "not within {} s: {what}", WAIT_MAX.as_secs());
        tokio::time::sleep(began.elapsed().clamp(POLL_INTERVAL, POLL_MAX)).await;
    }
}

/// Runs blocking work beside the test's runtime.
pub fn blocking<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

/// The seed of a random test, printed: `ANABRANCH_TEST_SEED`, or a new one.
#[expect(clippy::disallowed_methods, reason = "any number will do")]
pub fn seed(test: &str) -> u64 {
    let given = std::env::var("ANABRANCH_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_micros() as u64 % 1_000_000_007)
    });
    eprintln!("{test}: ANABRANCH_TEST_SEED={seed}");
    seed
}
