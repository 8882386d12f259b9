//! Lanes that operators have paused: a register in the log's bucket, which every process reads each second.
//!
//! A paused lane commits what it has, gives its lease back and waits; no process takes it. A pause outlives daemons. It
//! ends with the bucket, so a log that is begun anew has no paused lane.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::Registers;
use anabranch_pipeline::records::LaneId;
use anabranch_pipeline::retry::again;
use anabranch_pipeline::supervise::TaskHandle;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::wall_clock;

/// The key of the register.
const KEY: &str = "pauses";

/// Paused lanes of a projection, and the operator who paused them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    pub projection: String,
    /// Source of the lanes; `None` = every source.
    pub source: Option<String>,
    pub since_ms: u64,
    /// The operator as `user@host`.
    pub by: String,
    pub reason: Option<String>,
}

/// Every pause that has not ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pauses {
    pauses: Vec<Pause>,
}

impl Pause {
    fn holds(&self, lane: &LaneId) -> bool {
        self.projection == lane.projection && self.source.as_ref().is_none_or(|source| *source == lane.source)
    }

    fn is_of(&self, projection: &str, source: Option<&str>) -> bool {
        self.projection == projection && self.source.as_deref() == source
    }
}

impl Pauses {
    /// Parses the value of the register. A value that cannot be read is a fault: lanes that are paused for a restore of
    /// their target would begin in the middle of it.
    fn of(text: &str) -> Result<Self, Fault> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        serde_json::from_str(text).map_err(|error| {
            Fault::new(Code::LogForeign, format!("register {KEY}"), "its value is no list of pauses")
                .needs("a bucket that only Anabranch writes")
                .remedy(
                    "see log-foreign in the runbook; until then paused lanes stay paused, and no lane begins",
                )
                .caused_by(error)
        })
    }

    /// Returns the pause of a lane.
    pub fn of_lane(&self, lane: &LaneId) -> Option<&Pause> {
        self.pauses.iter().find(|pause| pause.holds(lane))
    }

    /// Returns whether the same lanes have a pause.
    pub fn has(&self, projection: &str, source: Option<&str>) -> bool {
        self.pauses.iter().any(|known| known.is_of(projection, source))
    }

    /// Returns the number of pauses that a resume of the projection and source would end.
    ///
    /// Refuses by name to resume a source alone that is paused with all others.
    pub fn ended_by(&self, projection: &str, source: Option<&str>) -> Result<usize, Fault> {
        if let Some(source) = source.filter(|_| self.has(projection, None)) {
            let subject = format!("projection {projection} of source {source}");
            return Err(Fault::new(
                Code::ConfigInvalid,
                subject,
                "it is paused together with all other sources",
            )
            .needs("a resume of the whole projection")
            .remedy(format!(
                "anabranch resume --projection {projection}; then pause the other sources by name"
            )));
        }
        Ok(self.clone().end(projection, source))
    }

    /// Returns the number of pauses of this source alone, of every projection.
    pub fn of_source(&self, source: &str) -> usize {
        self.pauses.iter().filter(|pause| pause.source.as_deref() == Some(source)).count()
    }

    /// Adds a pause, unless the same lanes have one; returns whether it did.
    fn add(&mut self, pause: Pause) -> bool {
        let is_new = !self.has(&pause.projection, pause.source.as_deref());
        if is_new {
            self.pauses.push(pause);
        }
        is_new
    }

    /// Ends the pauses of a projection and source, or of every source when none is named; returns their number.
    fn end(&mut self, projection: &str, source: Option<&str>) -> usize {
        let before = self.pauses.len();
        self.pauses.retain(|pause| {
            let is_meant = source.is_none() || pause.source.as_deref() == source;
            !(pause.projection == projection && is_meant)
        });
        before - self.pauses.len()
    }
}

/// Reads the pauses of an installation.
pub async fn read(registers: &impl Registers) -> Result<Pauses, Fault> {
    Pauses::of(&registers.read(KEY).await?.value)
}

/// Pauses the lanes of a projection; returns whether they were not paused in the same way before.
pub async fn pause(registers: &impl Registers, pause: &Pause) -> Result<bool, Fault> {
    change(registers, |pauses| pauses.add(pause.clone())).await
}

/// Resumes the lanes of a projection and source; returns the number of pauses that this ended.
///
/// Refuses by name to resume a source alone that is paused with all others.
pub async fn resume(
    registers: &impl Registers,
    projection: &str,
    source: Option<&str>,
) -> Result<usize, Fault> {
    read(registers).await?.ended_by(projection, source)?;
    change(registers, |pauses| pauses.end(projection, source)).await
}

/// Ends the pauses of a source that left for good; returns their number.
pub async fn forget_source(registers: &impl Registers, source: &str) -> Result<usize, Fault> {
    if read(registers).await?.of_source(source) == 0 {
        return Ok(0);
    }
    change(registers, |pauses| {
        let ended = pauses.of_source(source);
        pauses.pauses.retain(|pause| pause.source.as_deref() != Some(source));
        ended
    })
    .await
}

async fn change<T>(registers: &impl Registers, change: impl Fn(&mut Pauses) -> T) -> Result<T, Fault> {
    again(async || {
        let known = registers.read(KEY).await?;
        let mut pauses = Pauses::of(&known.value)?;
        let changed = change(&mut pauses);
        let text = serde_json::to_string(&pauses).expect("numbers and texts are always JSON");
        registers.compare_and_set(KEY, &known, text).await?;
        Ok(changed)
    })
    .await
}

/// The pauses as this process last read them; `None` until it has read them once.
#[derive(Debug, Clone)]
pub struct KnownPauses(pub watch::Receiver<Option<Pauses>>);

impl KnownPauses {
    /// Waits until the lane is not paused, and shows meanwhile that it is; returns early on `cancel`.
    pub async fn resumed(&self, lane: &LaneId, handle: &TaskHandle, cancel: &CancellationToken) {
        let mut known = self.0.clone();
        let resumed = known.wait_for(|pauses| {
            let is_paused = pauses.as_ref().is_some_and(|pauses| pauses.of_lane(lane).is_some());
            if is_paused {
                handle.paused();
            }
            pauses.is_some() && !is_paused
        });
        tokio::select! {
            _ = resumed => {}
            () = cancel.cancelled() => {}
        }
    }

    /// Resolves with the pause when the lane is paused.
    pub async fn paused(&self, lane: &LaneId) -> Pause {
        let mut known = self.0.clone();
        let paused =
            |pauses: &Option<Pauses>| pauses.as_ref().and_then(|pauses| pauses.of_lane(lane)).cloned();
        if let Ok(pauses) = known.wait_for(|pauses| paused(pauses).is_some()).await
            && let Some(pause) = paused(&pauses)
        {
            return pause;
        }
        // The process ends.
        std::future::pending().await
    }
}

/// Returns a pause from now on, by this operator.
pub fn new(projection: &str, source: Option<&str>, reason: Option<&str>, by: String) -> Pause {
    Pause {
        projection: projection.to_owned(),
        source: source.map(str::to_owned),
        since_ms: wall_clock::now_ms(),
        by,
        reason: reason.map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anabranch_pipeline::ports::Register;
    use anabranch_pipeline::supervise::{Supervisor, TaskState, TaskStates};

    use super::*;

    fn lane(projection: &str, source: &str) -> LaneId {
        LaneId { projection: projection.into(), target: "t".into(), source: source.into(), lane: 0 }
    }

    fn pause(projection: &str, source: Option<&str>) -> Pause {
        let (projection, source) = (projection.to_owned(), source.map(str::to_owned));
        Pause { projection, source, since_ms: 7, by: "a@b".to_owned(), reason: None }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lane_waits_until_the_pauses_were_read_and_until_it_is_resumed() {
        let (sender, receiver) = watch::channel(None);
        let (known, states) = (KnownPauses(receiver), TaskStates::default());
        let mut supervisor =
            Supervisor::new(states.clone(), CancellationToken::new(), Duration::from_secs(60));
        supervisor.spawn("lane/x", move |handle: TaskHandle, cancel: CancellationToken| {
            let known = known.clone();
            async move {
                known.resumed(&lane("birthday", "a"), &handle, &cancel).await;
                Ok(())
            }
        });
        let works = async || {
            tokio::time::sleep(Duration::from_secs(1)).await;
            supervisor.is_finished()
        };
        assert!(!works().await, "nobody knows yet whether it is paused");
        let mut pauses = Pauses::default();
        pauses.add(pause("birthday", None));
        sender.send(Some(pauses)).unwrap();
        assert!(!works().await);
        assert_eq!(states.snapshot()["lane/x"].state, TaskState::Paused);
        sender.send(Some(Pauses::default())).unwrap();
        assert!(works().await);
    }

    #[test]
    fn a_pause_holds_the_lanes_of_its_projection_and_source_until_it_ends() {
        let mut pauses = Pauses::default();
        assert!(pauses.add(pause("birthday", Some("a"))));
        assert!(!pauses.add(Pause { since_ms: 8, ..pause("birthday", Some("a")) }), "the first one counts");
        assert_eq!(pauses.of_lane(&lane("birthday", "a")).unwrap().since_ms, 7);
        assert_eq!(pauses.of_lane(&lane("birthday", "b")), None);
        assert_eq!(pauses.of_lane(&lane("mapping", "a")), None);
        assert!(pauses.add(pause("birthday", None)));
        assert!(pauses.of_lane(&lane("birthday", "b")).is_some());
        assert_eq!(pauses.end("birthday", Some("a")), 1);
        assert!(pauses.of_lane(&lane("birthday", "a")).is_some(), "it is held with all sources");
        assert_eq!(pauses.end("birthday", None), 1);
        assert_eq!(pauses.of_lane(&lane("birthday", "a")), None);
        let written = serde_json::to_string(&pauses).unwrap();
        assert_eq!(Pauses::of(&written).unwrap(), pauses);
        assert_eq!(Pauses::of("").unwrap(), Pauses::default(), "no lane was ever paused");
    }

    /// A bucket in which the register is damaged.
    struct Damaged;

    impl Registers for Damaged {
        async fn read(&self, _: &str) -> Result<Register, Fault> {
            Ok(Register { value: "{\"pauses\":[{\"projectio".to_owned(), revision: 7 })
        }

        async fn compare_and_set(&self, key: &str, _: &Register, _: String) -> Result<Register, Fault> {
            panic!("register {key} is written over")
        }
    }

    #[tokio::test]
    async fn a_damaged_register_of_pauses_is_a_fault_and_no_command_writes_over_it() {
        let faults = [
            read(&Damaged).await.unwrap_err(),
            super::pause(&Damaged, &pause("mapping", None)).await.unwrap_err(),
            resume(&Damaged, "birthday", None).await.unwrap_err(),
            forget_source(&Damaged, "a").await.unwrap_err(),
        ];
        for fault in faults {
            assert_eq!(fault.code(), Code::LogForeign, "{fault}");
            assert!(fault.to_string().contains("register pauses"), "{fault}");
        }
    }
}
