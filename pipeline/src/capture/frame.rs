//! Envelopes of a reading's messages, each of which links to the one before: a reader's, and those of a direct feed.

use anabranch_schemas::envelope::{CapturedFields, Envelope, ServerIdentity};
use anabranch_schemas::lsn::{Lsn, ResumePoint};

use super::batch::{Batch, BatchBuilder, Footing};
use crate::ports::Entry;

/// Makes the envelopes of one reading.
#[derive(Debug)]
pub struct Framer {
    previous: Lsn,
    origin: bool,
    footing: Footing,
    term: u64,
}

impl Framer {
    /// For a reading that entered the binlog by `entry` at `position`, with the batch that it fills.
    ///
    /// `origin`: the source's history begins with the first message. `term`: number of the writer's attempt.
    pub fn begin(
        entry: &Entry,
        position: Lsn,
        origin: bool,
        term: u64,
        batch_bytes: usize,
    ) -> (Self, BatchBuilder) {
        let (resume, told) = match entry {
            Entry::Resume { resume, server, .. } => (resume.clone(), Some((resume.clone(), server.clone()))),
            _ => (ResumePoint::default(), None),
        };
        let framer = Self { previous: position, origin, footing: Footing::new(position, told), term };
        (framer, BatchBuilder::new(batch_bytes, position, resume))
    }

    /// Position of the message before the next one.
    pub fn previous(&self) -> Lsn {
        self.previous
    }

    /// The envelope of the next message, whose batch was read from `server`.
    pub fn frame(&mut self, batch: &Batch, server: &ServerIdentity) -> Envelope {
        let (resume, server) = self.footing.of(batch, server);
        let previous = std::mem::replace(&mut self.previous, batch.position);
        Envelope {
            previous,
            origin: std::mem::take(&mut self.origin),
            continues: batch.continues,
            position: batch.position,
            resume,
            server,
            term: self.term,
            committed_at_us: batch.committed_at_us,
            changes: batch.changes,
            captured: CapturedFields::of_this_version(),
        }
    }
}
