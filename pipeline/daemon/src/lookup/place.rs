//! Waits until the mapping lanes of a source have passed a place of its binlog.
//!
//! Progress rows are read from the targets, the truth about how far a lane is, once for all who wait.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anabranch_pipeline::deliver::{LaneId, Progress};
use anabranch_pipeline::error::Fault;
use anabranch_schemas::lsn::Lsn;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use super::question::{At, Place, Refusal};
use crate::observe::lanes;
use crate::wiring::{Wiring, holds_gtids};

/// A change is findable within tens of milliseconds; who waits longer than this is told what is missing.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// Progress is read this often while somebody waits.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

type Known = Arc<BTreeMap<LaneId, Progress>>;

/// How far the mapping lanes are.
pub(super) struct Passage {
    wiring: Wiring,
    lanes: Vec<LaneId>,
    /// When the last reading began, and what it found.
    last: Mutex<Option<(Instant, Known)>>,
}

impl Passage {
    pub(super) fn new(wiring: &Wiring, projection: &str) -> Self {
        let lanes = lanes(wiring.config()).into_iter().filter(|lane| lane.projection == projection).collect();
        Self { wiring: wiring.clone(), lanes, last: Mutex::default() }
    }

    pub(super) async fn wait(&self, place: &Place) -> Result<(), Refusal> {
        let lanes: Vec<&LaneId> = self.lanes.iter().filter(|lane| lane.source == place.source).collect();
        if lanes.is_empty() {
            let found = format!("at_least names source `{}`, which no mapping lane reads", place.source);
            return Err(Refusal::Malformed(found));
        }
        let deadline = Instant::now() + WAIT_MAX;
        let mut missing = "the targets do not say how far their lanes are".to_owned();
        loop {
            let known = match tokio::time::timeout_at(deadline, self.progress()).await {
                Ok(known) => known?,
                Err(_) => return Err(Refusal::Behind(missing)),
            };
            let mut behind = None;
            for lane in &lanes {
                let progress = known.get(*lane);
                if !has_passed(progress, &place.at)? {
                    behind = Some((*lane, progress.map_or(Lsn::ZERO, |progress| progress.position)));
                }
            }
            let Some((lane, position)) = behind else { return Ok(()) };
            missing = format!("lane {lane} is at {position}");
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Of every lane that has begun; at most [`POLL_INTERVAL`] old.
    async fn progress(&self) -> Result<Known, Fault> {
        let mut last = self.last.lock().await;
        if let Some((began, known)) = &*last
            && began.elapsed() < POLL_INTERVAL
        {
            return Ok(Arc::clone(known));
        }
        let began = Instant::now();
        let mut targets: Vec<&str> = self.lanes.iter().map(|lane| lane.target.as_str()).collect();
        targets.dedup();
        let mut known = BTreeMap::new();
        for target in targets {
            known.extend(self.wiring.progress(target).await?);
        }
        let known = Arc::new(known);
        *last = Some((began, Arc::clone(&known)));
        Ok(known)
    }
}

/// Whether everything up to the place is in the lane's tables. Rows of an epoch before the lane's own are.
fn has_passed(progress: Option<&Progress>, at: &At) -> Result<bool, Refusal> {
    let malformed = |found: &str| Refusal::Malformed(format!("at_least: {found}"));
    let Some(progress) = progress.filter(|progress| progress.position != Lsn::ZERO) else { return Ok(false) };
    match at {
        At::Lsn(lsn) => Ok(progress.position >= *lsn),
        At::File { number, position } => {
            let lsn = Lsn::new(progress.position.epoch(), *number, *position);
            Ok(progress.position >= lsn.map_err(|_| malformed("a position beyond every binlog"))?)
        }
        At::Gtids(wanted) => holds_gtids(&progress.server.flavor, &progress.resume.gtid_set, wanted)
            .ok_or_else(|| malformed("not a GTID set of this source's server")),
    }
}

#[cfg(test)]
mod tests {
    use anabranch_schemas::envelope::ServerIdentity;
    use anabranch_schemas::lsn::ResumePoint;

    use super::*;

    fn at(text: &str) -> At {
        format!("a:{text}").parse::<Place>().unwrap().at
    }

    #[test]
    fn a_lane_has_passed_what_lies_not_above_its_position() {
        let progress = Progress {
            position: "2:7:4096".parse().unwrap(),
            resume: ResumePoint { gtid_set: "0-1-42".to_owned(), ..ResumePoint::default() },
            server: ServerIdentity { flavor: "mariadb".to_owned(), id: "1".to_owned() },
            ..Progress::default()
        };
        for (text, expected) in [
            ("2:7:4096", true),
            ("2:7:4112", false),
            ("1:9:4", true),
            ("3:1:4", false),
            ("binlog.000007:4096", true),
            ("binlog.000008:4", false),
            ("0-1-42", true),
            ("0-2-43", false),
        ] {
            assert_eq!(has_passed(Some(&progress), &at(text)).unwrap(), expected, "{text}");
        }
        assert!(!has_passed(None, &at("1:1:4")).unwrap(), "a lane that has not begun has passed nothing");
        assert!(has_passed(Some(&progress), &at("no-gtid-set")).is_err());
    }
}
