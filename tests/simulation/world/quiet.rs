//! The end of a run: faults cease, and the store becomes equal to its sources and stays so.

use std::time::Duration;

use anabranch_connectors::memory::Group;
use anabranch_pipeline::records::Progress;
use anabranch_schemas::lsn::Lsn;
use rand::RngExt;
use tokio::time::Instant;

use super::{DAEMONS, World};
use crate::refresh::refresh;
use crate::replay::replay;
use crate::script::{SOURCES, TARGETS};
use crate::seeds::Verdict;
use crate::stage::{LANES, SOURCE_NAMES};

/// Time in which everything under way arrives.
const AFTERMATH: Duration = Duration::from_millis(200);
/// Virtual time after which a run that has not become equal is stuck. A take-over takes up to five seconds of it.
const WAIT_MAX: Duration = Duration::from_secs(120);
/// Pause between two empty transactions while lanes are still on direct feeds.
const CHANGE_INTERVAL: Duration = Duration::from_secs(3);

impl World {
    /// Ends all faults.
    async fn calm(&mut self) {
        self.stage.log_line(|| "quiet".to_owned());
        self.stage.weather.clear();
        self.stage.targets.iter().for_each(|target| target.set_down(false));
        SOURCE_NAMES.iter().for_each(|name| self.stage.log.set_full(name, false));
        (0..SOURCES).for_each(|source| self.restore_grants(source));
        if self.stage.is_lunar {
            // In the end all daemons have the new configuration.
            self.daemons = (0..DAEMONS).map(|_| self.start()).collect();
        }
        self.daemons.iter().for_each(|daemon| daemon.set_frozen(false));
        self.wait(1..60).await;
        if !self.lawful {
            // Without leases, two daemons would hinder each other for ever.
            self.daemons.truncate(1);
        }
    }

    /// Ends all faults: reconciliations find all drift, and the store is equal after each.
    pub(super) async fn settle_reconciliations(&mut self) -> Verdict {
        self.calm().await;
        let Some(mut reconciliations) = self.reconciliations.take() else { return Verdict::Equal };
        for plants in [true, true, false] {
            if let Some(stuck) = self.until_reached(false).await {
                return stuck;
            }
            if let Some(wrong) = reconciliations.settle(&self.stage, &mut self.random, plants).await {
                return Verdict::Wrong(wrong);
            }
            if let Some(differences) = self.differences() {
                return Verdict::Wrong(format!("after a reconciliation: {differences}"));
            }
        }
        Verdict::Equal
    }

    /// Ends all faults: within [`WAIT_MAX`] the store must be equal, and stay so.
    pub(super) async fn settle(&mut self) -> Verdict {
        self.calm().await;
        if self.stage.has_disasters {
            for (number, source) in self.stage.sources.iter().enumerate() {
                self.script.fill(number).into_iter().for_each(|group| source.commit(group));
            }
        }
        // At first without another change, which could set a stuck lane going.
        if let Some(stuck) = self.until_reached(false).await {
            return stuck;
        }
        match self.differences() {
            Some(differences) => return Verdict::Wrong(differences),
            None => tokio::time::sleep(AFTERMATH).await,
        }
        self.disturb_the_quiet().await;
        if let Some(stuck) = self.until_reached(false).await {
            return stuck;
        }
        match self.until_reached(true).await {
            Some(stuck) => stuck,
            None => self.differences().map_or(Verdict::Equal, Verdict::Wrong),
        }
    }

    /// Causes faults after the last change: no process writes any more, so none learns of them by being fenced.
    async fn disturb_the_quiet(&mut self) {
        let (source, target) = (self.random.random_range(0..SOURCES), self.random.random_range(0..TARGETS));
        // The target's lanes lack the messages that the log loses.
        self.stage.targets[target].set_down(true);
        (0..3).for_each(|_| self.change());
        tokio::time::sleep(AFTERMATH).await;
        if self.random.random() {
            self.wipe(source);
        } else {
            self.roll_back(source, 3);
        }
        self.stage.targets[target].set_down(false);
        if self.random.random() {
            self.until_reached(false).await;
            replay(&self.stage, &mut self.random).await;
        }
        if self.random.random() {
            refresh(&self.stage, &mut self.random).await;
        }
    }

    /// Waits until every lane is at the end, and `by_the_stream` also back on it; returns a verdict when one is stuck.
    async fn until_reached(&self, by_the_stream: bool) -> Option<Verdict> {
        let deadline = Instant::now() + WAIT_MAX;
        let mut next_at = Instant::now();
        loop {
            tokio::time::sleep(AFTERMATH).await;
            let stopped = self.stage.stopped.lock().expect("nothing panics in there").join("; ");
            if !stopped.is_empty() {
                return Some(Verdict::Stuck(format!("stopped: {stopped}")));
            }
            let lagging = self.lagging(by_the_stream);
            if lagging.is_empty() {
                return None;
            }
            // A lane on a direct feed returns to the stream with the next message there.
            if by_the_stream && next_at < Instant::now() {
                next_at += CHANGE_INTERVAL;
                self.stage.sources.iter().for_each(|source| source.commit(Group::Rows(Vec::new())));
            }
            if Instant::now() > deadline {
                self.log_positions();
                return Some(Verdict::Stuck(format!("behind: {}", lagging.join(", "))));
            }
        }
    }

    fn log_positions(&self) {
        for (source, name) in SOURCE_NAMES.into_iter().enumerate() {
            self.stage.log_line(|| format!("log {source} ends with {:?}", self.stage.log.last(name)));
            for (id, progress) in self.stage.progress(source) {
                self.stage.log_line(|| format!("{id}: {progress:?}"));
            }
        }
    }

    fn lagging(&self, by_the_stream: bool) -> Vec<String> {
        let mut lagging = Vec::new();
        for (number, source) in self.stage.sources.iter().enumerate() {
            let lanes = self.stage.progress(number);
            let begun = self.stage.log.last(SOURCE_NAMES[number]).map_or(0, |end| end.envelope.beginning);
            let is_late = |(_, progress): &&(_, Progress)| {
                if progress.beginning != begun {
                    return true;
                }
                let is_direct = by_the_stream && progress.message.is_none();
                progress.is_replaying() || !source.is_reached(progress) || is_direct
            };
            let refreshed = lanes.iter().filter(|(_, progress)| progress.refresh.is_some());
            lagging
                .extend(refreshed.map(|(id, progress)| format!("{id} is refreshed: {:?}", progress.refresh)));
            let owing = lanes.iter().filter(|(_, progress)| !progress.withdrawals.is_empty());
            lagging.extend(owing.map(|(id, progress)| format!("{id} owes {}", progress.withdrawals)));
            let end = source.end();
            let late = lanes.iter().filter(is_late);
            lagging.extend(late.map(|(id, progress)| format!("{id} at {} of {end}", progress.position)));
            if lanes.len() < TARGETS * LANES as usize && end > Lsn::ZERO {
                lagging.push(format!("{} of source {number} have begun", lanes.len()));
            }
        }
        lagging
    }

    pub(super) fn differences(&self) -> Option<String> {
        for (source, name) in SOURCE_NAMES.into_iter().enumerate() {
            if let Some(misplaced) = self.stage.log.misplaced(name).first() {
                return Some(format!("log {source}: {misplaced}"));
            }
        }
        let (want, found) = (self.script.claims(self.stage.layout), self.stage.found());
        let first =
            |mut claims: Box<dyn Iterator<Item = _> + '_>| claims.next().map(|claim| format!("{claim:?}"));
        let missing = first(Box::new(want.difference(&found)));
        let orphan = first(Box::new(found.difference(&want)));
        for (claim, version) in self.stage.found_with_versions() {
            if !want.contains(&claim) {
                self.stage.log_line(|| format!("{claim:?} has version {version}"));
            }
        }
        (missing.is_some() || orphan.is_some()).then(|| format!("missing {missing:?}, orphan {orphan:?}"))
    }
}
