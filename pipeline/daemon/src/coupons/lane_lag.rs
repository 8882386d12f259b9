//! Measures whether the lanes of birthday tables lag, so that a coupon day leaves them the servers that both share.
//!
//! A granter and a freeze write to the lanes' target as fast as it takes rows. A coupon can wait for a second; a change
//! of a user should not. So while the lanes lag, granters carry one batch at a time, and granters and freezes pause
//! after each batch or page for as long as it took. A day goes on beside lanes that lag for hours, since no work stops.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::lag::HeadSamples;
use anabranch_pipeline::metrics as names;
use anabranch_pipeline::ports::SourceConnector;
use anabranch_schemas::lsn::Lsn;
use metrics::gauge;
use tokio::time::{Instant, sleep, timeout};

use crate::wiring::Wiring;

/// Pause between two samples of a source: long enough that the source does not feel them.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// Time without a question from work after which sampling ends.
const IDLE_AFTER: Duration = Duration::from_secs(5);
/// Time for an answer; a server that takes longer says nothing about the lanes.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

/// The lag of the lanes that write birthday tables. Clones share the samples.
#[derive(Clone)]
pub struct LaneLag(Arc<Sampler>);

struct Sampler {
    wiring: Wiring,
    projections: Vec<String>,
    lag_max: Duration,
    is_late: AtomicBool,
    /// Time of the last question from work; `None` while no samples are taken.
    asked_at: Mutex<Option<Instant>>,
}

impl LaneLag {
    pub(super) fn new(wiring: &Wiring, projections: Vec<String>, lag_max: Duration) -> Self {
        let (is_late, asked_at) = (AtomicBool::new(false), Mutex::new(None));
        Self(Arc::new(Sampler { wiring: wiring.clone(), projections, lag_max, is_late, asked_at }))
    }

    /// Returns whether a lane lags by more than configured. The first call takes two samples and starts sampling: one
    /// sample knows no time at which a change was written.
    pub async fn is_late(&self) -> bool {
        let is_first = {
            let mut asked_at = self.0.asked_at.lock().unwrap_or_else(PoisonError::into_inner);
            asked_at.replace(Instant::now()).is_none()
        };
        if is_first {
            let mut heads = BTreeMap::new();
            self.0.sample(&mut heads).await;
            sleep(SAMPLE_INTERVAL.max(self.0.lag_max)).await;
            self.0.sample(&mut heads).await;
            let sampler = self.0.clone();
            tokio::spawn(async move { sampler.sample_while_asked(heads).await });
        }
        self.0.is_late.load(Ordering::Relaxed)
    }
}

impl Sampler {
    async fn sample_while_asked(&self, mut heads: BTreeMap<String, HeadSamples>) {
        while self.is_asked() {
            sleep(SAMPLE_INTERVAL).await;
            self.sample(&mut heads).await;
        }
        self.show(false);
    }

    async fn sample(&self, heads: &mut BTreeMap<String, HeadSamples>) {
        let is_late = match timeout(ANSWER_WAIT, self.lag(heads)).await {
            Ok(Ok(lag)) => lag > self.lag_max,
            // The servers' own tasks report the fault.
            Ok(Err(_)) | Err(_) => false,
        };
        self.show(is_late);
    }

    /// Returns whether work has asked within [`IDLE_AFTER`]; ends the sampling otherwise.
    fn is_asked(&self) -> bool {
        let mut asked_at = self.asked_at.lock().unwrap_or_else(PoisonError::into_inner);
        let is_asked = asked_at.is_some_and(|at| at.elapsed() < IDLE_AFTER);
        if !is_asked {
            *asked_at = None;
        }
        is_asked
    }

    fn show(&self, is_late: bool) {
        self.is_late.store(is_late, Ordering::Relaxed);
        gauge!(names::COUPON_HELD).set(f64::from(u8::from(is_late)));
    }

    /// Returns the longest lag of a lane. A lane that has not begun, or follows another server, counts as zero.
    async fn lag(&self, heads: &mut BTreeMap<String, HeadSamples>) -> Result<Duration, Fault> {
        let mut slowest: BTreeMap<String, Lsn> = BTreeMap::new();
        let projections = self.wiring.config().projections.iter();
        let projections = projections.filter(|known| self.projections.contains(&known.name));
        let targets: BTreeSet<&String> = projections.flat_map(|known| &known.targets).collect();
        for target in targets {
            for (id, progress) in self.wiring.progress(target).await? {
                if self.projections.contains(&id.projection) && progress.position > Lsn::ZERO {
                    let position = slowest.entry(id.source).or_insert(progress.position);
                    *position = (*position).min(progress.position);
                }
            }
        }
        let mut longest = Duration::ZERO;
        for (source, position) in slowest {
            let now = std::time::Instant::now();
            let Ok(head) = self.wiring.source(&source)?.head().await?.in_epoch(position.epoch()) else {
                continue;
            };
            let heads = heads.entry(source).or_default();
            heads.observe(head, now);
            heads.forget(position);
            longest = longest.max(heads.lag(position, now));
        }
        Ok(longest)
    }
}
