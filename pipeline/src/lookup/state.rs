//! Whether readers may believe the cache: the life that is recorded, and the age of what is not drained.
//!
//! The target's clock dates the rows of the outbox, and it may be set back. So the distance of a row from that clock
//! counts as its age, in either direction, and each process also ages rows by its own clock, from the moment at which
//! it knew of them. The longer age decides. A process that has just started knows the target's clock only.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::future::try_join_all;
use tokio::time::Instant;

use crate::error::Fault;
use crate::ports::{Outbox, OutboxBacklog};

/// Readers do not ask a cache that lags more than this.
const DELAY_MAX: Duration = Duration::from_secs(1);

/// Whether readers may believe the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheState {
    /// The life of the cache that the whole outbox has been drained into.
    pub incarnation: Option<String>,
    /// Time for which the oldest change has waited to be drained.
    pub delay: Duration,
    backlog: Option<OutboxBacklog>,
}

impl CacheState {
    /// Reads the state as a process that has just started.
    pub async fn read(outbox: &impl Outbox) -> Result<Self, Fault> {
        let record = outbox.record().await?;
        let backlog = outbox.backlog().await?;
        let delay = backlog.map_or(Duration::ZERO, |backlog| backlog.age);
        Ok(Self { incarnation: record.map(|record| record.incarnation), delay, backlog })
    }

    /// Returns whether answers of the cache in this life are at most [`DELAY_MAX`] old.
    pub fn is_believed(&self, incarnation: &str) -> bool {
        self.incarnation.as_deref() == Some(incarnation) && self.delay <= DELAY_MAX
    }
}

/// The memory of a process that reads the states of the same outboxes again and again, in the same order.
#[derive(Debug, Default)]
pub struct DrainWatch(Mutex<Vec<KnownRows>>);

impl DrainWatch {
    /// Reads the state of each outbox. The delay is the age by the target's clock, or by that of this process.
    pub async fn read(&self, outboxes: &[impl Outbox]) -> Result<Vec<CacheState>, Fault> {
        let mut states = try_join_all(outboxes.iter().map(CacheState::read)).await?;
        // No code under this lock leaves a list half changed.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.resize_with(states.len(), KnownRows::default);
        for (state, known) in states.iter_mut().zip(all.iter_mut()) {
            state.delay = state.delay.max(known.age(state.backlog));
        }
        Ok(states)
    }
}

/// The newest ids that a process has found in an outbox, each with the time at which it found it first; in order.
#[derive(Debug, Default)]
struct KnownRows(Vec<(u64, Instant)>);

impl KnownRows {
    /// Returns for how long this process has known of the oldest pending row, or of a later one.
    fn age(&mut self, backlog: Option<OutboxBacklog>) -> Duration {
        let Some(OutboxBacklog { oldest, newest, .. }) = backlog else {
            self.0.clear();
            return Duration::ZERO;
        };
        // A server that was restored may give out ids below the known ones again.
        self.0.retain(|(known, _)| (oldest..=newest).contains(known));
        if self.0.last().is_none_or(|(known, _)| *known < newest) {
            self.0.push((newest, Instant::now()));
        }
        // The list of a drain that stalls stays short. It keeps the first id, and one more that is too old to believe.
        while self.0.get(2).is_some_and(|(_, since)| since.elapsed() > DELAY_MAX) {
            self.0.remove(1);
        }
        self.0.first().map_or(Duration::ZERO, |(_, since)| since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const TICK: Duration = Duration::from_millis(100);

    fn backlog(oldest: u64, newest: u64) -> Option<OutboxBacklog> {
        Some(OutboxBacklog { oldest, newest, age: Duration::ZERO })
    }

    #[tokio::test(start_paused = true)]
    async fn a_row_is_as_old_as_the_knowledge_of_it_or_of_a_later_one() {
        let mut known = KnownRows::default();
        assert_eq!(known.age(backlog(1, 4)), Duration::ZERO);
        advance(TICK).await;
        assert_eq!(known.age(backlog(3, 9)), TICK, "row 4 was there, so row 3 was as well");
        advance(TICK).await;
        assert_eq!(known.age(backlog(5, 9)), TICK, "the query before the last one did not find row 5");
        assert_eq!(known.age(None), Duration::ZERO);
        assert_eq!(known.age(backlog(5, 9)), Duration::ZERO, "the row is pending again");
        advance(TICK).await;
        assert_eq!(known.age(backlog(2, 3)), Duration::ZERO, "a restored server gives out ids again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_that_stalls_makes_no_long_list_and_no_row_young() {
        let mut known = KnownRows::default();
        for newest in 1..=1000 {
            known.age(backlog(1, newest));
            advance(TICK).await;
        }
        assert_eq!(known.age(backlog(1, 1000)), 1000 * TICK);
        assert!(known.0.len() < 20, "{known:?}");
        assert!(known.age(backlog(500, 1000)) > DELAY_MAX);
    }
}
