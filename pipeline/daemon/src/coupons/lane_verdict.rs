//! The verdict whether lanes are late, which all dispatchers and granters of a process share. One sampler finds it out.
//!
//! The verdict is the only writer of its gauge. Under one lock it is shown, or given up because no work has asked for
//! a while, so a sampler that ends can never overwrite what the next one shows.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anabranch_pipeline::metrics as names;
use metrics::gauge;
use tokio::sync::watch;
use tokio::time::Instant;

/// Time without a question from work after which sampling ends.
const IDLE_AFTER: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct LaneVerdict {
    /// `None` until the sampler has an answer, and once it gave up.
    is_late: watch::Sender<Option<bool>>,
    /// Time of the last question from work; `None` while there is no sampler.
    asked_at: Mutex<Option<Instant>>,
}

impl LaneVerdict {
    /// Makes a verdict without a sampler, and begins the gauge at 0.
    pub(super) fn new() -> Self {
        gauge!(names::COUPON_HELD).set(0.0);
        Self { is_late: watch::Sender::new(None), asked_at: Mutex::new(None) }
    }

    /// Notes a question. Returns whether there is no sampler, so that the caller must start one.
    pub(super) fn ask(&self) -> bool {
        let is_first = self.lock().replace(Instant::now()).is_none();
        if is_first {
            // A sampler that was cut off has left an answer.
            self.is_late.send_replace(None);
        }
        is_first
    }

    /// Returns the guard that a sampler holds while it runs.
    pub(super) fn sampling(&self) -> Sampling<'_> {
        Sampling { verdict: self, has_ended: false }
    }

    /// Waits for the sampler's answer.
    pub(super) async fn answer(&self) -> bool {
        let mut is_late = self.is_late.subscribe();
        is_late.wait_for(Option::is_some).await.is_ok_and(|is_late| *is_late == Some(true))
    }

    fn show(&self, is_late: bool) -> bool {
        let mut asked_at = self.lock();
        let is_recent = asked_at.is_some_and(|at| at.elapsed() < IDLE_AFTER);
        // Two samples may take longer than that, and work waits for them.
        let is_asked = is_recent || self.is_late.receiver_count() > 0;
        if !is_asked {
            *asked_at = None;
        }
        self.is_late.send_replace(is_asked.then_some(is_late));
        gauge!(names::COUPON_HELD).set(f64::from(u8::from(is_asked && is_late)));
        is_asked
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.asked_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sampler, while it is at work.
///
/// If it is dropped before it gave up, as a panic drops it, work that waits hears that no lane is late, and the next
/// question starts another sampler.
pub(super) struct Sampling<'v> {
    verdict: &'v LaneVerdict,
    has_ended: bool,
}

impl Sampling<'_> {
    /// Shows a sample and returns true; ends the sampling and returns false when no work has asked for a while.
    pub(super) fn show(&mut self, is_late: bool) -> bool {
        self.has_ended = !self.verdict.show(is_late);
        !self.has_ended
    }
}

impl Drop for Sampling<'_> {
    fn drop(&mut self) {
        // After an orderly end another sampler may run already.
        if !self.has_ended {
            let mut asked_at = self.verdict.lock();
            *asked_at = None;
            self.verdict.is_late.send_replace(Some(false));
            gauge!(names::COUPON_HELD).set(0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_question_starts_the_one_sampler_and_all_get_its_answer() {
        let verdict = LaneVerdict::new();
        assert!(verdict.ask(), "there is no sampler yet");
        assert!(!verdict.ask(), "a second one would write the same gauge");
        let (mut one, mut other) = (Box::pin(verdict.answer()), Box::pin(verdict.answer()));
        assert_eq!(((&mut one).now_or_never(), (&mut other).now_or_never()), (None, None));
        assert!(verdict.show(true));
        assert_eq!((one.await, other.await), (true, true));
        assert!(verdict.show(false));
        assert!(!verdict.answer().await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sampler_ends_once_no_work_asks_and_the_next_question_starts_another() {
        let verdict = LaneVerdict::new();
        assert!(verdict.ask());
        assert!(verdict.show(true));
        tokio::time::advance(IDLE_AFTER).await;
        assert!(!verdict.show(true), "the sampler ends");
        assert_eq!(*verdict.is_late.borrow(), None, "an old answer is none");
        assert!(verdict.ask(), "another sampler is needed");
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_waits_for_slow_samples_keeps_its_sampler() {
        let verdict = LaneVerdict::new();
        assert!(verdict.ask());
        let mut waits = Box::pin(verdict.answer());
        assert_eq!((&mut waits).now_or_never(), None);
        tokio::time::advance(IDLE_AFTER * 2).await;
        assert!(verdict.show(true));
        assert!(waits.await);
    }
    #[tokio::test(start_paused = true)]
    async fn a_sampler_that_panics_leaves_no_work_waiting_and_the_next_question_starts_another() {
        let verdict = LaneVerdict::new();
        assert!(verdict.ask());
        let sampling = verdict.sampling();
        let mut waits = Box::pin(verdict.answer());
        assert_eq!((&mut waits).now_or_never(), None);
        drop(sampling);
        assert_eq!((&mut waits).now_or_never(), Some(false), "no lane is known to be late");
        assert!(verdict.ask(), "another sampler is needed");
        let mut sampling = verdict.sampling();
        let early = Box::pin(verdict.answer()).now_or_never();
        assert_eq!(early, None, "the other sampler has no answer yet");
        assert!(sampling.show(true) && verdict.answer().await);
        tokio::time::advance(IDLE_AFTER).await;
        assert!(!sampling.show(true), "no work asks");
        assert!(verdict.ask());
        drop(sampling);
        assert!(!verdict.ask(), "the sampler that ended in order takes nothing from the next one");
    }
}
