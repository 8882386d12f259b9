//! The messages between two commits of a lane, already projected.
//!
//! Two rules make replay harmless. *Link*: a message is taken only when the one before it is not above the lane's
//! position; otherwise messages are missing. *Above*: only the changes of a message above the lane's position are
//! applied, so a log that is rebuilt or rolled back never brings old rows back.

use std::collections::BTreeSet;
use std::fmt;

use anabranch_schemas::change::Change;
use anabranch_schemas::codec::{self, CodecError};
use anabranch_schemas::envelope::Envelope;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use bytes::Bytes;

use super::fields::FieldsTaken;
use super::link::{keeps_part, links, require_history};
use crate::error::{Code, Fault};
use crate::ports::LogMessage;
use crate::records::{Flush, LaneId, Progress, Reread};

/// Withdrawals of shards with rows, or retirements, that fill a flush.
///
/// A message is taken whole, so one of 64 KiB adds a thousand.
const WITHDRAWALS_MAX: usize = 256;

/// A message of the stream or of a direct feed.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) envelope: Envelope,
    pub(super) payload: Bytes,
    /// Sequence and id in the stream; `None` when it did not come from there.
    pub(super) stored: Option<(u64, String)>,
    /// The time at which the log stored it, or the direct feed read it, in microseconds since the Unix epoch; 0 = not
    /// known.
    pub(super) read_at_us: u64,
    /// The message comes directly after the one that the lane took last.
    pub(super) follows: bool,
    /// The next message is on its way.
    pub(super) has_next: bool,
}

impl Delivery {
    pub(super) fn stored(message: LogMessage, follows: bool) -> Self {
        let LogMessage { entry, payload, stored_at_us, has_next } = message;
        Self {
            envelope: entry.envelope,
            payload,
            stored: Some((entry.sequence, entry.id)),
            read_at_us: stored_at_us,
            follows,
            has_next,
        }
    }
}

impl fmt::Display for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.stored {
            Some((sequence, _)) => write!(f, "message {sequence}"),
            None => f.write_str("a batch of the direct feed"),
        }
    }
}

/// The work of one transaction, and the progress that it will store.
#[derive(Debug)]
pub(super) struct LaneWindow {
    /// Progress as the target stores it.
    stored: Progress,
    flush: Flush,
    /// A message was taken since the last commit.
    has_moved: bool,
    /// The next message after the one that was taken last is on its way.
    has_next: bool,
    /// The part of a group that the last taken message reported.
    announced_part: Option<String>,
    counts: ChangeCounts,
    /// The time at which the newest message with an applied change was read ([`Delivery::read_at_us`]); 0 = not known.
    read_at_us: u64,
}

/// Counts of the changes of taken messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ChangeCounts {
    /// Changes according to the heads of the messages.
    pub(super) announced: u64,
    /// Changes above the lane's position.
    pub(super) applied: u64,
    /// Changes not above the lane's position, of a message that ends there: they came before, or the lane entered the
    /// stream before its position.
    pub(super) passed: u64,
    /// Changes not above the lane's position, of a message that continues above it.
    pub(super) overlapping: u64,
}

impl ChangeCounts {
    /// Returns the changes that messages should have had and that were not counted, or that they had too much
    /// (negative): 0 unless one is lost.
    pub(super) fn unaccounted(&self) -> i64 {
        self.announced.wrapping_sub(self.applied + self.passed + self.overlapping) as i64
    }
}

impl LaneWindow {
    pub(super) fn new(stored: Progress) -> Self {
        let flush = Flush::new(stored.clone());
        Self {
            stored,
            flush,
            has_moved: false,
            has_next: false,
            announced_part: None,
            counts: ChangeCounts::default(),
            read_at_us: 0,
        }
    }

    /// Returns the lane's progress, uncommitted work included.
    pub(super) fn progress(&self) -> &Progress {
        &self.flush.progress
    }

    pub(super) fn rows(&self) -> usize {
        self.flush.rows()
    }

    /// Whether one transaction takes no more: a statement may withdraw as many tables as the configuration can name.
    pub(super) fn is_full(&self, flush_rows: usize) -> bool {
        let has_many_retirements = self.flush.retirements.len() >= WITHDRAWALS_MAX;
        self.flush.rows() >= flush_rows || self.has_many_withdrawals() || has_many_retirements
    }

    /// Whether the transaction takes no more because of its withdrawals, most of which may be of shards without a row.
    pub(super) fn has_many_withdrawals(&self) -> bool {
        self.flush.withdrawals.len() >= WITHDRAWALS_MAX
    }

    /// Returns the shards that the transaction withdraws.
    pub(super) fn withdrawn(&self) -> BTreeSet<ShardId> {
        self.flush.withdrawals.iter().map(|(shard, _)| *shard).collect()
    }

    /// Keeps only the withdrawals of these shards. The others have no committed row, and the transaction already
    /// deletes the rows that it had for them.
    pub(super) fn keep_withdrawals_of(&mut self, with_rows: &BTreeSet<ShardId>) {
        self.flush.withdrawals.retain(|(shard, _)| with_rows.contains(shard));
    }

    /// Leaves withdrawals to later transactions, as far as progress has room for them.
    pub(super) fn defer_withdrawals(&mut self) {
        self.flush.defer_withdrawals();
    }

    /// Returns the counts since the last commit.
    pub(super) fn counts(&self) -> ChangeCounts {
        self.counts
    }

    /// Returns when the newest applied change since the last commit was read, in microseconds since the Unix epoch; 0 =
    /// not known.
    pub(super) fn read_at_us(&self) -> u64 {
        self.read_at_us
    }

    /// Whether there are rows to write.
    pub(super) fn has_rows(&self) -> bool {
        !self.flush.is_empty()
    }

    /// Whether progress differs from what is stored.
    pub(super) fn has_moved(&self) -> bool {
        self.has_moved
    }

    /// Whether another message is on its way.
    pub(super) fn has_next(&self) -> bool {
        self.has_next
    }

    /// Whether an event was taken in part: the rest of it follows.
    pub(super) fn is_within_event(&self) -> bool {
        let progress = &self.flush.progress;
        progress.highest_change > progress.position
    }

    /// Begins to read all tables, from the next commit on: the lane has just begun.
    pub(super) fn load(&mut self) {
        self.flush.progress = std::mem::take(&mut self.flush.progress).loads_first();
    }

    /// Notes the fields of the message that was taken last. Returns whether all tables are to be read, from the next
    /// commit on: only reads at or after the lane's position count, and none from before.
    pub(super) fn note_fields(&mut self, taken: FieldsTaken) -> bool {
        let is_empty = self.stored.rows == 0 && self.flush.rows() == 0;
        let progress = &mut self.flush.progress;
        progress.captured_fields = taken.noted;
        if taken.ends_lack {
            progress.highest_change = progress.highest_change.max(progress.position);
            let progress = std::mem::take(progress);
            self.flush.progress = if is_empty { progress.loads_first() } else { progress.loads() };
            self.flush.rereads.push(Reread::Every);
        }
        taken.ends_lack
    }

    /// Takes one message: checks its link, projects its changes above the lane's position, counts all of them.
    pub(super) fn add_message(
        &mut self,
        lane: &LaneId,
        message: &Delivery,
        mut project: impl FnMut(&Change<'_, '_>, &mut Flush),
    ) -> Result<(), Fault> {
        let envelope = &message.envelope;
        require_history(lane, &self.flush.progress, envelope)?;
        let position = self.flush.progress.position;
        if !links(envelope, position, message.follows) {
            let follows = if envelope.continues { "continues an event after" } else { "follows" };
            let found =
                format!("{message} {follows} position {}, but the lane is at {position}", envelope.previous);
            return Err(Fault::new(Code::LogHole, format!("lane {lane}"), found)
                .needs("every message since the lane's position"));
        }
        let announced = self.announced_part.as_deref().filter(|_| message.follows);
        if message.stored.is_some() && !keeps_part(&self.flush.progress, announced, envelope) {
            let found =
                format!("{message} was read from another server, and the lane has a part of a transaction");
            return Err(Fault::new(Code::LogHole, format!("lane {lane}"), found)
                .needs("a server that has the transaction"));
        }
        // Changes of the message count as the highest ones of the lane afterwards.
        let is_cut_short = self.flush.progress.is_cut_short_by(envelope.position);
        let before = self.counts;
        self.counts.announced += u64::from(envelope.changes);
        if let Err(fault) = self.project_changes(lane, message, &mut project) {
            // The same changes come again by another feed.
            self.counts = before;
            return Err(fault);
        }
        self.require_count(lane, message)?;
        if self.counts.applied > before.applied {
            self.read_at_us = message.read_at_us;
        }
        let progress = &mut self.flush.progress;
        if envelope.position >= progress.position {
            let begins_epoch = envelope.position.epoch() > progress.position.epoch();
            if begins_epoch && progress.position > Lsn::ZERO {
                // The binlog of this server holds the changes applied so far too, up to here. A chunk from before need
                // not hold them, though its watermark is above their versions.
                progress.highest_change = progress.highest_change.max(envelope.position);
            }
            // A stream that was rolled back may not know of a part that the lane has.
            let part = progress.resume.partial.take().filter(|_| envelope.position == progress.position);
            progress.position = envelope.position;
            progress.resume = envelope.resume.clone();
            progress.resume.partial = progress.resume.partial.take().or(part);
            progress.server = envelope.server.clone();
            progress.committed_at_us = envelope.committed_at_us;
        }
        progress.highest_position = progress.highest_position.max(progress.position);
        progress.message = message.stored.clone();
        self.has_moved = true;
        self.has_next = message.has_next;
        self.announced_part.clone_from(&envelope.resume.partial);
        if is_cut_short {
            tracing::info!(
                %lane, position = %envelope.position,
                "a fail-over cuts a replay short: the lane reads all tables"
            );
            self.read_anew();
        }
        Ok(())
    }

    /// Begins to read all tables anew, from the next commit on; no chunk from before counts.
    fn read_anew(&mut self) {
        self.flush.progress = std::mem::take(&mut self.flush.progress).loads();
        self.flush.rereads.push(Reread::Every);
    }

    fn project_changes(
        &mut self,
        lane: &LaneId,
        message: &Delivery,
        mut project: impl FnMut(&Change<'_, '_>, &mut Flush),
    ) -> Result<(), Fault> {
        let (envelope, position) = (&message.envelope, self.flush.progress.position);
        // A position message holds nothing. A message that only claims to be one is counted.
        if envelope.changes == 0 && message.payload.is_empty() {
            return Ok(());
        }
        let unreadable = |error: CodecError| {
            let code = match error {
                CodecError::UnknownVersion { .. } => Code::LogVersionUnknown,
                // The checksum is right, so another writer wrote the message.
                CodecError::Malformed { .. } => Code::LogForeign,
                CodecError::Truncated { .. } | CodecError::ChecksumMismatch { .. } => Code::LogMessageCorrupt,
            };
            Fault::new(code, format!("lane {lane}"), format!("{message} cannot be read")).caused_by(error)
        };
        let mut changes = codec::decode(&message.payload).map_err(unreadable)?;
        while let Some(change) = changes.next().map_err(unreadable)? {
            require_order(lane, message, change.lsn)?;
            if change.lsn > position {
                let highest = &mut self.flush.progress.highest_change;
                *highest = change.lsn.max(*highest);
                project(&change, &mut self.flush);
                self.counts.applied += 1;
            } else if envelope.position <= position {
                self.counts.passed += 1;
            } else {
                self.counts.overlapping += 1;
            }
        }
        Ok(())
    }

    /// Requires that every change of a message was counted. The messages before were checked when they were taken.
    fn require_count(&self, lane: &LaneId, message: &Delivery) -> Result<(), Fault> {
        let (announced, unaccounted) = (message.envelope.changes, self.counts.unaccounted());
        if unaccounted == 0 {
            return Ok(());
        }
        let found = format!(
            "{message} announces {announced} changes, and {} were counted",
            i64::from(announced) - unaccounted
        );
        Err(Fault::new(Code::LogCountViolated, format!("lane {lane}"), found)
            .needs("every change of a message, applied or passed for a reason")
            .remedy("keep the stream, and report this defect: nothing of this message was written"))
    }

    /// Returns a note to store before the first rows of an epoch, for a store that does not write rows with their
    /// progress. The note says that the epoch has rows. Otherwise a flush that was cut off leaves rows of an epoch that
    /// nothing reports when the log is lost too, and another server is read in it, or in an earlier one.
    pub(super) fn epoch_record(&self) -> Option<Flush> {
        let (stored, next) = (&self.stored, &self.flush.progress);
        if !self.has_rows() || next.highest_position.epoch() <= stored.highest_position.epoch() {
            return None;
        }
        let has_begun = stored.position > Lsn::ZERO;
        let server = if has_begun { &stored.server } else { &next.server };
        let note = Progress {
            revision: stored.revision + 1,
            highest_position: next.highest_position,
            server: server.clone(),
            ..stored.clone()
        };
        // After the note, progress no longer says how far the lane was on the server before.
        let is_cut_short = stored.is_cut_short_by(next.highest_position);
        Some(Flush::new(if is_cut_short { note.loads() } else { note }))
    }

    /// Takes the note as stored, once it was committed.
    pub(super) fn epoch_recorded(&mut self, stored: Progress) {
        self.stored = stored;
    }

    /// Returns the finished flush, with the next revision.
    pub(super) fn flush(&mut self) -> &Flush {
        self.flush.progress.revision = self.stored.revision + 1;
        self.flush.progress.rows = self.stored.rows + self.flush.rows() as u64;
        &self.flush
    }

    /// Empties the window once its flush was committed.
    pub(super) fn committed(&mut self) {
        let announced_part = self.announced_part.take();
        *self = Self { announced_part, ..Self::new(std::mem::take(&mut self.flush.progress)) };
    }
}

/// Requires that a change lies above the position before its message, also in a part of an event, a decided XA branch
/// and the first message of an epoch. Each lane that is exactly there would skip any other change.
fn require_order(lane: &LaneId, message: &Delivery, lsn: Lsn) -> Result<(), Fault> {
    let previous = message.envelope.previous;
    if lsn > previous {
        return Ok(());
    }
    let found = format!("{message} follows position {previous}, and has a change at {lsn}");
    Err(Fault::new(Code::LogOrderViolated, format!("lane {lane}"), found)
        .needs("every change above the position before its message")
        .remedy(
            "if an older build wrote it: delete the source's stream (`nats stream rm`), `anabranch --config FILE setup`, \
             restart, refresh every projection of the source",
        ))
}

#[cfg(test)]
mod tests;
