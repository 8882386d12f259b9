//! The epoch of a reader's reading, and the register that keeps it from being used twice.
//!
//! Rows of an epoch may be in derived stores, or on their way there, when nothing of it is in the stream any more. So
//! the register of a source names the server that was read last and its epoch, and the reader sets it before it sends
//! anything of another reading. A reader knows the register, the stream's end, and the lanes' progress where one of
//! the two is missing. It reads the present server in the highest epoch of these, if that is this server's, else in
//! the next one. The register is set by compare-and-set: a process that woke late begins no epoch.

use anabranch_schemas::envelope::ServerIdentity;
use anabranch_schemas::timeline::{InvalidTimeline, Timeline};

use crate::error::{Code, Fault};
use crate::ports::{Register, Registers};

/// What one attempt knows of a source's epochs.
#[derive(Debug)]
pub(crate) struct Epochs<'a, M> {
    registers: &'a M,
    key: String,
    register: Register,
    latest: Timeline,
    is_claimed: bool,
}

impl<'a, M: Registers> Epochs<'a, M> {
    pub(crate) async fn read(registers: &'a M, source: &str) -> Result<Self, Fault> {
        let key = format!("epochs/{source}");
        let register = registers.read(&key).await?;
        let latest = match register.value.as_str() {
            "" => Timeline::default(),
            value => value.parse().map_err(|error: InvalidTimeline| {
                Fault::new(Code::LogForeign, format!("register {key}"), "its value is no epoch")
                    .needs("a bucket that nobody else writes")
                    .caused_by(error)
            })?,
        };
        Ok(Self { registers, key, register, latest, is_claimed: false })
    }

    /// Whether the register was ever set: the source was read before.
    pub(crate) fn is_registered(&self) -> bool {
        self.register.revision > 0
    }

    /// Somebody was read in an epoch.
    pub(crate) fn learn(&mut self, timeline: Timeline) {
        self.latest = std::mem::take(&mut self.latest).latest(timeline);
    }

    /// The latest that is known.
    pub(crate) fn latest(&self) -> &Timeline {
        &self.latest
    }

    /// To be called before anything that was read from `server` is sent.
    pub(crate) async fn claim(&mut self, server: &ServerIdentity) -> Result<(), Fault> {
        if self.is_claimed {
            return Ok(());
        }
        let value = self.latest.followed_by(server).to_string();
        if value != self.register.value {
            tracing::info!(register = self.key, value, "an epoch begins");
            self.register = self.registers.compare_and_set(&self.key, &self.register, value).await?;
        }
        self.is_claimed = true;
        Ok(())
    }
}
