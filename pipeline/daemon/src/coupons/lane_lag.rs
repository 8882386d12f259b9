//! Measures whether the lanes of birthday tables lag, so that a coupon day leaves them the servers that both share.
//!
//! A granter and a freeze write to the lanes' target as fast as it takes rows. A coupon can wait for a second; a change
//! of a user should not. So while the lanes lag, granters carry one batch at a time, and granters, freezes and sweeps
//! pause after each batch or page for as long as it took, or for longer (`pace.rs`). A day goes on beside lanes that
//! lag for hours, since no work stops.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::lag::HeadSamples;
use anabranch_pipeline::ports::SourceConnector;
use anabranch_schemas::lsn::Lsn;
use tokio::time::{sleep, timeout};

use super::lane_verdict::LaneVerdict;
use crate::wiring::Wiring;

/// Pause between two samples: shorter than the lag that they must notice, and a hundredth of a core at most.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);
/// Pause before the first answer, at most: a dispatcher and its granters do not stand still for a minute because a lag
/// of a minute counts. A longer lag is seen once it has lasted.
const FIRST_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Time for an answer; a server that takes longer says nothing about the lanes.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

/// The lag of the lanes that write birthday tables. Clones share the samples: a process has one, for all of its
/// dispatchers and its granter.
#[derive(Clone)]
pub struct LaneLag(Arc<Sampler>);

struct Sampler {
    wiring: Wiring,
    projections: Vec<String>,
    lag_max: Duration,
    verdict: LaneVerdict,
}

impl LaneLag {
    /// Makes the one of a process; nothing is asked yet.
    pub fn new(wiring: &Wiring) -> Result<Self, Fault> {
        let system = wiring.coupon_system()?;
        let (projections, lag_max) = (system.projections.clone(), system.lane_lag);
        let verdict = LaneVerdict::new();
        Ok(Self(Arc::new(Sampler { wiring: wiring.clone(), projections, lag_max, verdict })))
    }

    /// Returns whether a lane lags by more than configured. The first call starts sampling, and waits for two samples.
    pub async fn is_late(&self) -> bool {
        if self.0.verdict.ask() {
            let sampler = self.0.clone();
            // In a task of its own: work that is cut off while it waits must not end the sampling of others.
            tokio::spawn(async move { sampler.sample_while_asked().await });
        }
        self.0.verdict.answer().await
    }
}

/// Returns the pause between the first two samples: by then a lag that counts has lasted, unless it is a long one.
fn first_pause(lag_max: Duration) -> Duration {
    lag_max.clamp(SAMPLE_INTERVAL, FIRST_PAUSE_MAX)
}

impl Sampler {
    async fn sample_while_asked(&self) {
        let (mut heads, mut sampling) = (BTreeMap::new(), self.verdict.sampling());
        // One sample knows no time at which a change was written.
        self.is_late(&mut heads).await;
        sleep(first_pause(self.lag_max)).await;
        while sampling.show(self.is_late(&mut heads).await) {
            sleep(SAMPLE_INTERVAL).await;
        }
    }

    /// Takes a sample.
    async fn is_late(&self, heads: &mut BTreeMap<String, HeadSamples>) -> bool {
        match timeout(ANSWER_WAIT, self.lag(heads)).await {
            Ok(Ok(lag)) => lag > self.lag_max,
            // The servers' own tasks report the fault.
            Ok(Err(_)) | Err(_) => false,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lag_of_a_minute_holds_up_no_day_at_its_beginning() {
        let pauses =
            [1, 20, 300, 60_000].map(|lag_max| first_pause(Duration::from_millis(lag_max)).as_millis());
        assert_eq!(pauses, [20, 20, 300, 1_000]);
    }
}
