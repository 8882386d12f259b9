//! The course of one drill: all is current, the fault, the alert and the page, the steps of the runbook, all is
//! current again and every row is equal.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{GamedayError, Result};
use crate::pictures::Pictures;
use crate::prometheus::{Alert, Timing};
use crate::report::Row;
use crate::scenario::{Condition, Expected, Scenario, Shown};
use crate::site::{CURRENT_MAX, Site, counts_coupons, has_every_task, is_refreshing, parked};
use crate::steps;

/// Time beside its `for` within which an alert fires: scrapes, evaluations, and the daemon's own polls.
const FIRES_WITHIN: Duration = Duration::from_secs(90);
/// Time for which a fault that wakes nobody is watched.
const WATCHED_FOR: Duration = Duration::from_secs(90);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time between two questions for alerts.
const ALERTS_INTERVAL: Duration = Duration::from_secs(1);
/// An alert that other drills cause by their restarts of the daemon.
const RESTARTS: &str = "AnabranchRestarts";

/// A running drill.
pub struct Drill<'a> {
    site: &'a mut Site,
    scenario: &'static Scenario,
    timing: &'a Timing,
    pictures: &'a Pictures,
    /// Names of all alerts that fired since the fault.
    fired: BTreeSet<String>,
}

/// The signs that were seen between the fault and the repair.
#[derive(Debug, Default)]
struct Seen {
    alert_after: Option<Duration>,
    shown_after: Option<Duration>,
    sentence: Option<String>,
}

impl<'a> Drill<'a> {
    pub fn new(
        site: &'a mut Site,
        scenario: &'static Scenario,
        timing: &'a Timing,
        pictures: &'a Pictures,
    ) -> Self {
        Self { site, scenario, timing, pictures, fired: BTreeSet::new() }
    }

    /// Runs the drill to its end.
    pub async fn run(mut self) -> Result<Row> {
        self.site.until_current(CURRENT_MAX).await?;
        self.until_over(CURRENT_MAX).await?;
        let before = self.firing().await?;
        self.site.take_codes();
        for action in self.scenario.inject {
            self.site.act(action).await?;
        }
        let seen = match self.scenario.alert {
            Expected::Alert { .. } => self.watch_until_fired().await?,
            Expected::Nobody(_) => self.watch(WATCHED_FOR).await?,
        };
        let mut problems = self.problems(&seen, &before);
        let repair = Instant::now();
        let taken = steps::take(self.site, self.scenario).await?;
        self.site.until_current(CURRENT_MAX).await?;
        self.until_over(self.over_within()).await?;
        let ended_after = repair.elapsed();
        for action in self.scenario.afterwards {
            self.site.act(action).await?;
        }
        self.site.until_current(CURRENT_MAX).await?;
        if let Err(error) = self.site.expect_equal().await {
            problems.push(error.to_string());
        }
        Ok(Row {
            scenario: self.scenario,
            hold: self.hold(),
            alert_after: seen.alert_after,
            shown_after: seen.shown_after,
            sentence: seen.sentence,
            codes: self.site.take_codes(),
            taken,
            ended_after,
            is_alert_left: self.lingers() && !self.timing.is_quick(),
            problems,
        })
    }

    /// Returns the `for` of the expected alert.
    fn hold(&self) -> Duration {
        match self.scenario.alert {
            Expected::Alert { name, .. } => self.timing.rule(name).map(|rule| rule.hold).unwrap_or_default(),
            Expected::Nobody(_) => Duration::ZERO,
        }
    }

    /// Returns the limit until the expected alert fires.
    fn fires_within(&self) -> Duration {
        let condition = match self.scenario.alert {
            Expected::Alert { condition: Condition::AfterSpotCheck, .. } => self.timing.spot_check_max(),
            Expected::Alert { condition: Condition::After(time), .. } => time,
            Expected::Alert { condition: Condition::AtOnce | Condition::OverRange, .. }
            | Expected::Nobody(_) => Duration::ZERO,
        };
        self.hold() + condition + FIRES_WITHIN
    }

    /// Returns whether the alert goes on for a while after the repair, as its rule looks back.
    fn lingers(&self) -> bool {
        matches!(
            self.scenario.alert,
            Expected::Alert { condition: Condition::AfterSpotCheck | Condition::OverRange, .. }
        )
    }

    /// Returns the limit until the alert is over after the repair.
    fn over_within(&self) -> Duration {
        // Quick rules look back over a few minutes.
        CURRENT_MAX * if self.lingers() { 2 } else { 1 }
    }

    /// Waits until the expected alert does not fire. With the shipped rules a range of an hour is not waited for.
    async fn until_over(&mut self, limit: Duration) -> Result<()> {
        let Expected::Alert { name, .. } = self.scenario.alert else { return Ok(()) };
        if self.lingers() && !self.timing.is_quick() {
            return Ok(());
        }
        let deadline = Instant::now() + limit;
        while self.is_expected_firing().await? {
            if Instant::now() >= deadline {
                let what = format!("the alert {name} is over");
                return Err(GamedayError::Late { what, seconds: limit.as_secs() });
            }
            tokio::time::sleep(ALERTS_INTERVAL).await;
        }
        Ok(())
    }

    async fn is_expected_firing(&mut self) -> Result<bool> {
        let alerts = self.alerts().await?;
        Ok(match self.scenario.alert {
            Expected::Alert { name, labels, .. } => alerts.iter().any(|alert| alert.is(name, labels)),
            Expected::Nobody(_) => false,
        })
    }

    /// Returns the firing alerts, and notes their names.
    async fn alerts(&mut self) -> Result<Vec<Alert>> {
        let alerts = self.site.prometheus().firing().await?;
        self.fired.extend(alerts.iter().map(|alert| alert.name.clone()));
        Ok(alerts)
    }

    async fn firing(&mut self) -> Result<BTreeSet<String>> {
        self.alerts().await?;
        Ok(std::mem::take(&mut self.fired))
    }

    /// Watches until the alert has fired and the status has shown the fault, or until the time of both is over.
    async fn watch_until_fired(&mut self) -> Result<Seen> {
        let begin = Instant::now();
        let (fires_within, shown_within) = (self.fires_within(), self.scenario.shown_within);
        let (mut seen, mut next_question) = (Seen::default(), begin);
        loop {
            self.observe(&mut seen, begin).await;
            if seen.alert_after.is_none() && Instant::now() >= next_question {
                next_question = Instant::now() + ALERTS_INTERVAL;
                let elapsed = begin.elapsed();
                seen.alert_after = self.is_expected_firing().await?.then_some(elapsed);
            }
            let is_alert_done = seen.alert_after.is_some() || begin.elapsed() > fires_within;
            let is_page_done = seen.shown_after.is_some() || begin.elapsed() > shown_within;
            if is_alert_done && is_page_done {
                return Ok(seen);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Watches for a time, in which no alert has to fire.
    async fn watch(&mut self, time: Duration) -> Result<Seen> {
        let begin = Instant::now();
        let mut seen = Seen::default();
        while begin.elapsed() < time {
            self.observe(&mut seen, begin).await;
            self.alerts().await?;
            tokio::time::sleep(ALERTS_INTERVAL).await;
        }
        Ok(seen)
    }

    /// Looks whether the status shows the fault; takes a picture of the page when it does for the first time.
    async fn observe(&self, seen: &mut Seen, begin: Instant) {
        let elapsed = begin.elapsed();
        if seen.shown_after.is_some() || !self.is_shown().await {
            return;
        }
        seen.shown_after = Some(elapsed);
        if !matches!(self.scenario.shown, Shown::NoAnswer) {
            let page = self.site.shown().page();
            seen.sentence = self.pictures.take(&page, self.scenario.name).await;
        }
    }

    async fn is_shown(&self) -> bool {
        let status = self.site.status().await;
        match self.scenario.shown {
            Shown::NoAnswer => status.is_none(),
            Shown::Code(wanted) => self.site.has_shown(wanted),
            Shown::DeadLetter => status.is_some_and(|status| parked(&status) > 0),
            Shown::Sentence { sign, .. } => status.is_some_and(|status| sign(&status)),
            Shown::Refreshing => status.is_some_and(|status| is_refreshing(&status)),
            Shown::Coupons(count) => status.is_some_and(|status| counts_coupons(&status, count)),
            Shown::TakenOver => status.is_some_and(|status| has_every_task(&status)),
            Shown::Current(_) => status.is_some(),
            Shown::Verdict(wanted) => {
                let past = self.site.shown().ask("v1/reconciliations?limit=1").await;
                past.is_some_and(|past| past["reconciliations"][0]["verdict"] == wanted)
            }
        }
    }

    /// Returns what was seen too late, not at all, or too much.
    fn problems(&self, seen: &Seen, before: &BTreeSet<String>) -> Vec<String> {
        let mut problems = Vec::new();
        let mut expect = |what: &str, after: Option<Duration>, limit: Duration| {
            if after.is_none_or(|after| after > limit) {
                problems.push(format!("{what} came {} ({} s are allowed)", said(after), limit.as_secs()));
            }
        };
        expect("the fault on the page", seen.shown_after, self.scenario.shown_within);
        if let Expected::Alert { name, .. } = self.scenario.alert {
            expect(name, seen.alert_after, self.fires_within());
        } else {
            let new = self.fired.iter().filter(|name| !before.contains(*name) && *name != RESTARTS);
            problems.extend(new.map(|name| format!("{name} fired, although nobody is to be woken")));
        }
        // Without a browser there is no sentence.
        if let Shown::Sentence { text, .. } = self.scenario.shown {
            let others = seen.sentence.iter().filter(|sentence| !sentence.contains(text));
            problems.extend(others.map(|sentence| format!("the page says {sentence:?}, and not {text:?}")));
        }
        problems
    }
}

fn said(after: Option<Duration>) -> String {
    after.map_or_else(|| "never".to_owned(), |after| format!("after {:.1} s", after.as_secs_f64()))
}
