//! The time of the last warning about an event that can come with every transaction, so that a repeated statement does
//! not flood the log.

use std::time::{Duration, Instant};

const WARN_EACH: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct LastWarning(Option<Instant>);

impl LastWarning {
    /// Whether to warn again now; if so, the next warning is due a minute later.
    pub(super) fn is_due(&mut self) -> bool {
        let is_due = self.0.is_none_or(|warned_at| warned_at.elapsed() >= WARN_EACH);
        if is_due {
            self.0 = Some(Instant::now());
        }
        is_due
    }
}
