//! What may pass is done again: how long to wait in between, and a few attempts at once.

use std::time::Duration;

use backoff::backoff::Backoff;
use backoff::{ExponentialBackoff, ExponentialBackoffBuilder};

use crate::error::{Class, Fault};

/// The first pause after a failure; doubled up to [`PAUSE_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// Short enough that a server that is back is used again at once by human measure.
pub const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Six seconds: a server that is restarted, or a connection that broke, and no more.
const ATTEMPTS: u32 = 7;

/// Pauses without end, spread by chance, so that those who failed together do not come back together.
pub fn pauses() -> ExponentialBackoff {
    ExponentialBackoffBuilder::new()
        .with_initial_interval(PAUSE_FIRST)
        .with_max_interval(PAUSE_MAX)
        .with_multiplier(2.0)
        .with_max_elapsed_time(None)
        .build()
}

/// The attempts at one piece of work. Nothing is left to chance: simulations replay it.
#[derive(Debug)]
pub struct Attempts {
    left: u32,
    pauses: ExponentialBackoff,
}

impl Default for Attempts {
    fn default() -> Self {
        Self { left: ATTEMPTS, pauses: ExponentialBackoff { randomization_factor: 0.0, ..pauses() } }
    }
}

impl Attempts {
    /// Waits for the next attempt; gives back what does not pass, or has not passed in all attempts.
    pub async fn failed(&mut self, fault: Fault) -> Result<(), Fault> {
        self.left -= 1;
        if fault.class() != Class::Transient || self.left == 0 {
            return Err(fault);
        }
        tracing::debug!(%fault, left = self.left, "it is tried again");
        tokio::time::sleep(self.pauses.next_backoff().unwrap_or(PAUSE_MAX)).await;
        Ok(())
    }
}

/// Does what a transient fault ended again, a few times.
pub async fn again<T, F: Future<Output = Result<T, Fault>>>(mut work: impl FnMut() -> F) -> Result<T, Fault> {
    let mut attempts = Attempts::default();
    loop {
        match work().await {
            Ok(done) => return Ok(done),
            Err(fault) => attempts.failed(fault).await?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    /// Attempts at what always fails so, and the tenths of seconds that they take.
    async fn at_what_fails(code: Code) -> (u32, u128) {
        let (began, mut attempts) = (tokio::time::Instant::now(), 0);
        let ended = again(|| {
            attempts += 1;
            async { Err::<(), _>(Fault::new(code, "a server", "it is away")) }
        });
        assert_eq!(ended.await.expect_err("it always fails").code(), code);
        (attempts, began.elapsed().as_millis() / 100)
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_pass_is_tried_for_some_seconds_and_what_is_definite_once() {
        assert_eq!(at_what_fails(Code::SourceUnreachable).await, (ATTEMPTS, 63));
        assert_eq!(at_what_fails(Code::ReconcileRefused).await, (1, 0));
    }
}
