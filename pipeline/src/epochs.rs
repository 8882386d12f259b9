//! The epoch in which a reader reads, the source's beginning, and the register that keeps both from being used twice.
//!
//! Derived stores may hold rows of an epoch, or have them on their way, when the stream has no message of it any more.
//! So the register of a source names the server that was read last and its epoch. The reader sets it before it sends
//! anything from another server or epoch. A reader knows the register, the stream's end, and the lanes' progress where
//! one of the two is missing. It reads the present server in the highest epoch of these, if that is this server's,
//! otherwise in the next one. The register is set by compare-and-set: a process that woke late begins no epoch.
//!
//! The register also names the latest beginning and its point (`capture/begin.rs`). The highest number of the three
//! witnesses counts.

use anabranch_schemas::beginning::{Beginning, GapRecord, Registered};
use anabranch_schemas::envelope::{Envelope, ServerIdentity};
use anabranch_schemas::timeline::{InvalidTimeline, Timeline};

use crate::error::{Code, Fault};
use crate::ports::{Register, Registers};
use crate::records::Progress;

/// Knowledge of one attempt about a source's epochs.
#[derive(Debug)]
pub(crate) struct Epochs<'a, M> {
    registers: &'a M,
    key: String,
    register: Register,
    latest: Timeline,
    /// Number of the latest beginning that is known.
    number: u64,
    /// The beginning that the register names.
    beginning: Option<Beginning>,
    /// The records of beginnings that the register keeps.
    gaps: Vec<GapRecord>,
    is_claimed: bool,
}

impl<'a, M: Registers> Epochs<'a, M> {
    pub(crate) async fn read(registers: &'a M, source: &str) -> Result<Self, Fault> {
        let key = format!("epochs/{source}");
        let register = registers.read(&key).await?;
        let registered = registered(&key, &register)?;
        let latest = registered.timeline();
        let Registered { beginning, gaps, .. } = registered;
        let number = beginning.as_ref().map_or(0, |beginning| beginning.number);
        Ok(Self { registers, key, register, latest, number, beginning, gaps, is_claimed: false })
    }

    /// Fails once the source has begun anew after this attempt entered it: a reader that runs well does not learn of
    /// that in another way. A register that does not answer is no fault.
    pub(crate) async fn require_present(&self) -> Result<(), Fault> {
        let Ok(register) = self.registers.read(&self.key).await else { return Ok(()) };
        let known = registered(&self.key, &register)?.beginning.map_or(0, |beginning| beginning.number);
        if known <= self.number {
            return Ok(());
        }
        let found =
            format!("the source is at beginning {known}, and this reader at beginning {}", self.number);
        Err(Fault::new(Code::LeaseLost, format!("register {}", self.key), found)
            .needs("the same beginning in both"))
    }

    /// Whether the register was ever set: the source was read before.
    pub(crate) fn is_registered(&self) -> bool {
        self.register.revision > 0
    }

    /// Learns that a server was read in an epoch.
    pub(crate) fn learn(&mut self, timeline: Timeline) {
        self.latest = std::mem::take(&mut self.latest).latest(timeline);
    }

    /// Learns the epoch and the beginning of the stream's end.
    pub(crate) fn learn_of_stream(&mut self, end: &Envelope) {
        self.learn(Timeline::of(end.position, &end.server));
        self.number = self.number.max(end.beginning);
    }

    /// Learns the epoch and the beginning of a lane's progress.
    pub(crate) fn learn_of_lane(&mut self, lane: &Progress) {
        self.learn(lane.timeline());
        self.number = self.number.max(lane.beginning);
    }

    /// Returns the latest epoch that is known, and its server.
    pub(crate) fn latest(&self) -> &Timeline {
        &self.latest
    }

    /// Returns the number of the latest beginning that is known; 0 = the source never began anew.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the latest beginning with its point, unless the register that had it was lost.
    pub(crate) fn beginning(&self) -> Option<&Beginning> {
        self.beginning.as_ref().filter(|beginning| beginning.number == self.number)
    }

    /// Returns the records of beginnings that the register keeps.
    pub(crate) fn into_gaps(self) -> Vec<GapRecord> {
        self.gaps
    }

    /// Registers the epoch; called before anything that was read from `server` is sent. `first` is the first message:
    /// it is the point of a beginning that only the stream or a lane knew.
    pub(crate) async fn reserve(&mut self, server: &ServerIdentity, first: &Envelope) -> Result<(), Fault> {
        if self.is_claimed {
            return Ok(());
        }
        let place = || Beginning {
            number: self.number,
            request: String::new(),
            position: first.position,
            resume: first.resume.clone(),
            server: first.server.clone(),
        };
        let beginning = (self.number > 0).then(|| self.beginning().cloned().unwrap_or_else(place));
        let registered = Registered::new(self.latest.followed_by(server), beginning);
        self.set(Registered { gaps: self.gaps.clone(), ..registered }).await?;
        self.is_claimed = true;
        Ok(())
    }

    /// Registers a beginning with its record: the next reader reads in its epoch, from its point.
    pub(crate) async fn begin(
        &mut self,
        timeline: Timeline,
        beginning: Beginning,
        record: GapRecord,
    ) -> Result<(), Fault> {
        record.add_to(&mut self.gaps);
        self.set(Registered { gaps: self.gaps.clone(), ..Registered::new(timeline, Some(beginning)) }).await
    }

    async fn set(&mut self, registered: Registered) -> Result<(), Fault> {
        let value = registered.to_string();
        if value != self.register.value {
            tracing::info!(register = self.key, value, "an epoch begins");
            self.register = self.registers.compare_and_set(&self.key, &self.register, value).await?;
        }
        Ok(())
    }
}

fn registered(key: &str, register: &Register) -> Result<Registered, Fault> {
    match register.value.as_str() {
        "" => Ok(Registered::default()),
        value => value.parse().map_err(|error: InvalidTimeline| {
            Fault::new(Code::LogForeign, format!("register {key}"), "its value is not an epoch")
                .needs("a bucket that only Anabranch writes")
                .caused_by(error)
        }),
    }
}
