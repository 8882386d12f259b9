//! The epoch of a reader's reading and the source's beginning, and the register that keeps both from being used twice.
//!
//! Rows of an epoch may be in derived stores, or on their way there, when nothing of it is in the stream any more. So
//! the register of a source names the server that was read last and its epoch, and the reader sets it before it sends
//! anything of another reading. A reader knows the register, the stream's end, and the lanes' progress where one of
//! the two is missing. It reads the present server in the highest epoch of these, if that is this server's, else in
//! the next one. The register is set by compare-and-set: a process that woke late begins no epoch.
//!
//! The register also names the latest beginning and its place (`begin.rs`). The highest number of the three witnesses
//! counts.

use anabranch_schemas::beginning::{Beginning, Registered};
use anabranch_schemas::envelope::{Envelope, ServerIdentity};
use anabranch_schemas::timeline::{InvalidTimeline, Timeline};

use crate::error::{Code, Fault};
use crate::ports::{Register, Registers};
use crate::records::Progress;

/// What one attempt knows of a source's epochs.
#[derive(Debug)]
pub(crate) struct Epochs<'a, M> {
    registers: &'a M,
    key: String,
    register: Register,
    latest: Timeline,
    /// Number of the latest beginning that is known.
    number: u64,
    /// As the register has it.
    beginning: Option<Beginning>,
    is_claimed: bool,
}

impl<'a, M: Registers> Epochs<'a, M> {
    pub(crate) async fn read(registers: &'a M, source: &str) -> Result<Self, Fault> {
        let key = format!("epochs/{source}");
        let register = registers.read(&key).await?;
        let registered = registered(&key, &register)?;
        let (latest, beginning) = (registered.timeline(), registered.beginning);
        let number = beginning.as_ref().map_or(0, |beginning| beginning.number);
        Ok(Self { registers, key, register, latest, number, beginning, is_claimed: false })
    }

    /// Ends a reading of a beginning that is over: a reader that runs well does not learn in another way that somebody
    /// had the source begin anew. A register that does not answer says nothing.
    pub(super) async fn require_present(&self) -> Result<(), Fault> {
        let Ok(register) = self.registers.read(&self.key).await else { return Ok(()) };
        let known = registered(&self.key, &register)?.beginning.map_or(0, |beginning| beginning.number);
        if known <= self.number {
            return Ok(());
        }
        let found = format!("beginning {known} of the source, and this reading is of {}", self.number);
        Err(Fault::new(Code::LeaseLost, format!("register {}", self.key), found).needs("one beginning"))
    }

    /// Whether the register was ever set: the source was read before.
    pub(crate) fn is_registered(&self) -> bool {
        self.register.revision > 0
    }

    /// Somebody was read in an epoch.
    pub(crate) fn learn(&mut self, timeline: Timeline) {
        self.latest = std::mem::take(&mut self.latest).latest(timeline);
    }

    /// What the stream's end tells.
    pub(super) fn learn_of_stream(&mut self, end: &Envelope) {
        self.learn(Timeline::of(end.position, &end.server));
        self.number = self.number.max(end.beginning);
    }

    /// What the progress of a lane tells.
    pub(super) fn learn_of_lane(&mut self, lane: &Progress) {
        self.learn(lane.timeline());
        self.number = self.number.max(lane.beginning);
    }

    /// The latest that is known.
    pub(crate) fn latest(&self) -> &Timeline {
        &self.latest
    }

    /// Number of the latest beginning that is known; 0 = the source never began anew.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The latest beginning with its place, unless the register that had it was lost.
    pub(super) fn beginning(&self) -> Option<&Beginning> {
        self.beginning.as_ref().filter(|beginning| beginning.number == self.number)
    }

    /// To be called before anything that was read from `server` is sent. `first` is the first message: it is the place
    /// of a beginning that only the stream or a lane knew.
    pub(crate) async fn claim(&mut self, server: &ServerIdentity, first: &Envelope) -> Result<(), Fault> {
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
        self.set(Registered::new(self.latest.followed_by(server), beginning)).await?;
        self.is_claimed = true;
        Ok(())
    }

    /// Has a beginning take effect: the next reading is in its epoch, from its place.
    pub(super) async fn begin(&mut self, timeline: Timeline, beginning: Beginning) -> Result<(), Fault> {
        self.set(Registered::new(timeline, Some(beginning))).await
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
            Fault::new(Code::LogForeign, format!("register {key}"), "its value is no epoch")
                .needs("a bucket that nobody else writes")
                .caused_by(error)
        }),
    }
}
