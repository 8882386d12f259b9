//! Envelopes of a reading's messages, each of which links to the one before: a reader's, and those of a direct feed.

use anabranch_schemas::envelope::{CapturedFields, Envelope, ServerIdentity};
use anabranch_schemas::lsn::{Lsn, ResumePoint};

use super::batch::{Batch, BatchBuilder, ResumeContext};

/// Makes the envelopes of one reading.
#[derive(Debug)]
pub struct Framer {
    previous: Lsn,
    origin: bool,
    resume_context: ResumeContext,
    term: u64,
    captured: CapturedFields,
    beginning: u64,
}

impl Framer {
    /// For a reading that entered the binlog at `position`, with the batch that it fills.
    ///
    /// `told`: the resume point and server that the last message before told, if there was one. `origin`: the source's
    /// history begins with the first message. The numbers are those of the writer's attempt and of the source's
    /// beginning. `captured`: how many fields of each entity the reading has.
    pub fn begin(
        told: Option<(ResumePoint, ServerIdentity)>,
        position: Lsn,
        origin: bool,
        (term, beginning): (u64, u64),
        captured: CapturedFields,
        batch_bytes: usize,
    ) -> (Self, BatchBuilder) {
        let resume = told.as_ref().map_or_else(ResumePoint::default, |(resume, _)| resume.clone());
        let resume_context = ResumeContext::new(position, told);
        let framer = Self { previous: position, origin, resume_context, term, captured, beginning };
        (framer, BatchBuilder::new(batch_bytes, position, resume))
    }

    /// Position of the message before the next one.
    pub fn previous(&self) -> Lsn {
        self.previous
    }

    /// The envelope of the next message, whose batch was read from `server`.
    pub fn frame(&mut self, batch: &Batch, server: &ServerIdentity) -> Envelope {
        let (resume, server) = self.resume_context.of(batch, server);
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
            captured: self.captured.clone(),
            beginning: self.beginning,
        }
    }
}
