//! Envelopes of a stream's messages, each linked to the message before, for a reader and for direct feeds.

use anabranch_schemas::envelope::{CapturedFields, Envelope, ServerIdentity};
use anabranch_schemas::lsn::{Lsn, ResumePoint};

use super::batch::{Batch, BatchBuilder, ResumeContext};

/// Makes the envelopes of one reader or direct feed.
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
    /// Returns the framer and the empty batch of a reader or direct feed that entered the binlog at `position`.
    ///
    /// `resume_point` is the resume point and server of the last message before, if there was one. `origin`: the
    /// source's history begins with the first message. `term` numbers the writer's attempt, `beginning` the source's
    /// beginning. `captured` says how many fields of each entity the changes have.
    pub fn begin(
        resume_point: Option<(ResumePoint, ServerIdentity)>,
        position: Lsn,
        origin: bool,
        (term, beginning): (u64, u64),
        captured: CapturedFields,
        batch_bytes: usize,
    ) -> (Self, BatchBuilder) {
        let resume = resume_point.as_ref().map_or_else(ResumePoint::default, |(resume, _)| resume.clone());
        let resume_context = ResumeContext::new(position, resume_point);
        let framer = Self { previous: position, origin, resume_context, term, captured, beginning };
        (framer, BatchBuilder::new(batch_bytes, position, resume))
    }

    /// Returns the position of the message before the next one.
    pub fn previous(&self) -> Lsn {
        self.previous
    }

    /// Returns the envelope of the next message, whose batch was read from `server`.
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
