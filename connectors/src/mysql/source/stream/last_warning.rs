//! When a reading last warned of something that can come with every transaction: a statement that is repeated fills no
//! log.

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
