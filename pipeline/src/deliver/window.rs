//! The messages between two commits of a lane, already projected.
//!
//! Two rules make replay harmless. *Link*: a message is taken only when the one before it is not above the lane's
//! position; else messages are missing. *Above*: of a message only the changes above the lane's position are
//! applied, so a log that is rebuilt or rolled back never brings old rows back.

use std::collections::BTreeSet;
use std::fmt;

use anabranch_schemas::change::Change;
use anabranch_schemas::codec::{self, CodecError};
use anabranch_schemas::envelope::Envelope;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;
use bytes::Bytes;

use super::link::{links, require_reading};
use crate::error::{Code, Fault};
use crate::ports::LogMessage;
use crate::records::{Flush, LaneId, Progress};

/// Shards with rows that one flush withdraws before it is committed. A message is taken whole, so one of 64 KiB adds a
/// thousand.
const WITHDRAWALS_MAX: usize = 256;

/// A message of the stream or of a direct feed.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) envelope: Envelope,
    pub(super) payload: Bytes,
    /// Sequence and id in the stream; `None` when it did not come from there.
    pub(super) stored: Option<(u64, String)>,
    /// It comes directly behind what the lane took last.
    pub(super) follows: bool,
    /// The next one is on its way.
    pub(super) has_next: bool,
}

impl Delivery {
    pub(super) fn stored(message: LogMessage, follows: bool) -> Self {
        let LogMessage { entry, payload, has_next } = message;
        Self {
            envelope: entry.envelope,
            payload,
            stored: Some((entry.sequence, entry.id)),
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

/// What one transaction will do, and the progress that it will store.
#[derive(Debug)]
pub(super) struct LaneWindow {
    /// As stored in the target.
    stored: Progress,
    flush: Flush,
    /// Something was taken since.
    has_moved: bool,
    /// After the message that was taken last the next one is on its way.
    has_next: bool,
    taken: Taken,
}

/// Changes of the messages that were taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Taken {
    /// What the heads of the messages say.
    pub(super) told: u64,
    /// Above the lane's position.
    pub(super) applied: u64,
    /// Not above it, of a message that ends there: it came before, or the lane entered the stream before its place.
    pub(super) behind: u64,
    /// Not above it, of a message that goes on above it.
    pub(super) overlapping: u64,
}

impl Taken {
    /// Changes that a message should have had and that nobody has seen, or that it had too much: 0 unless one is lost.
    pub(super) fn unaccounted(&self) -> i64 {
        self.told.wrapping_sub(self.applied + self.behind + self.overlapping) as i64
    }
}

impl LaneWindow {
    pub(super) fn new(stored: Progress) -> Self {
        let flush = Flush::new(stored.clone());
        Self { stored, flush, has_moved: false, has_next: false, taken: Taken::default() }
    }

    /// Where the lane is, uncommitted work included.
    pub(super) fn progress(&self) -> &Progress {
        &self.flush.progress
    }

    pub(super) fn rows(&self) -> usize {
        self.flush.rows()
    }

    /// Whether one transaction takes no more: a statement may withdraw as many tables as the configuration can name.
    pub(super) fn is_full(&self, flush_rows: usize) -> bool {
        self.flush.rows() >= flush_rows || self.has_many_withdrawals()
    }

    /// Whether the transaction takes no more because of its withdrawals, most of which may be of shards without a row.
    pub(super) fn has_many_withdrawals(&self) -> bool {
        self.flush.withdrawals.len() >= WITHDRAWALS_MAX
    }

    /// The shards that the transaction withdraws.
    pub(super) fn withdrawn(&self) -> BTreeSet<ShardId> {
        self.flush.withdrawals.iter().map(|(shard, _)| *shard).collect()
    }

    /// Leaves the withdrawals of these shards. Of the others no committed row stands, and what this transaction had for
    /// them it deletes already.
    pub(super) fn keep_withdrawals_of(&mut self, standing: &BTreeSet<ShardId>) {
        self.flush.withdrawals.retain(|(shard, _)| standing.contains(shard));
    }

    /// What was taken since the last commit.
    pub(super) fn taken(&self) -> Taken {
        self.taken
    }

    /// Whether there are rows to write.
    pub(super) fn has_rows(&self) -> bool {
        !self.flush.is_empty()
    }

    /// Whether progress differs from what is stored.
    pub(super) fn has_moved(&self) -> bool {
        self.has_moved
    }

    /// Whether more is on its way than was taken.
    pub(super) fn has_next(&self) -> bool {
        self.has_next
    }

    /// Whether an event was taken in part: the rest of it follows.
    pub(super) fn is_within_event(&self) -> bool {
        let progress = &self.flush.progress;
        progress.highest_change > progress.position
    }

    /// All tables are to be read, from the next commit on: the lane has just begun.
    pub(super) fn load(&mut self) {
        self.flush.progress = std::mem::take(&mut self.flush.progress).loads_first();
    }

    /// Takes one message: checks its link, projects what lies above the lane's position, counts all of it.
    pub(super) fn take(
        &mut self,
        lane: &LaneId,
        message: &Delivery,
        mut project: impl FnMut(&Change<'_, '_>, &mut Flush),
    ) -> Result<(), Fault> {
        let envelope = &message.envelope;
        require_reading(lane, &self.flush.progress, envelope)?;
        let position = self.flush.progress.position;
        if !links(envelope, position, message.follows) {
            let follows = if envelope.continues { "continues an event behind" } else { "follows" };
            let found =
                format!("{message} {follows} position {}, but the lane is at {position}", envelope.previous);
            return Err(Fault::new(Code::LogHole, format!("lane {lane}"), found)
                .needs("every message since the lane's position"));
        }
        let before = self.taken;
        self.taken.told += u64::from(envelope.changes);
        if let Err(fault) = self.project_changes(lane, message, &mut project) {
            // The same changes come again by another way.
            self.taken = before;
            return Err(fault);
        }
        self.require_count(lane, message)?;
        let progress = &mut self.flush.progress;
        if envelope.position >= progress.position {
            let begins_epoch = envelope.position.epoch() > progress.position.epoch();
            if begins_epoch && progress.position > Lsn::ZERO {
                // What was applied so far lies up to here in the binlog of this server too; a chunk from before need
                // not hold it, though its watermark is above the versions of then.
                progress.highest_change = progress.highest_change.max(envelope.position);
            }
            progress.position = envelope.position;
            progress.resume = envelope.resume.clone();
            progress.server = envelope.server.clone();
            progress.committed_at_us = envelope.committed_at_us;
        }
        progress.highest_position = progress.highest_position.max(progress.position);
        progress.message = message.stored.clone();
        self.has_moved = true;
        self.has_next = message.has_next;
        Ok(())
    }

    fn project_changes(
        &mut self,
        lane: &LaneId,
        message: &Delivery,
        mut project: impl FnMut(&Change<'_, '_>, &mut Flush),
    ) -> Result<(), Fault> {
        let (envelope, position) = (&message.envelope, self.flush.progress.position);
        // A position message holds nothing; what says to be one and is none is counted.
        if envelope.changes == 0 && message.payload.is_empty() {
            return Ok(());
        }
        let unreadable = |error: CodecError| {
            let code = match error {
                CodecError::UnknownVersion { .. } => Code::LogVersionUnknown,
                // With a right checksum somebody wrote it so.
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
                self.taken.applied += 1;
            } else if envelope.position <= position {
                self.taken.behind += 1;
            } else {
                self.taken.overlapping += 1;
            }
        }
        Ok(())
    }

    /// Nothing of a message is left out without a reason. What was taken before it was counted then.
    fn require_count(&self, lane: &LaneId, message: &Delivery) -> Result<(), Fault> {
        let (told, unaccounted) = (message.envelope.changes, self.taken.unaccounted());
        if unaccounted == 0 {
            return Ok(());
        }
        let found =
            format!("{message} says {told} changes, and {} were counted", i64::from(told) - unaccounted);
        Err(Fault::new(Code::LogCountViolated, format!("lane {lane}"), found)
            .needs("every change of a message, applied or passed for a reason")
            .remedy("keep the stream, and report it: nothing of this message was written"))
    }

    /// To be stored before the first rows of an epoch, where they do not come with their progress: that there are some.
    /// Else a flush that was cut off leaves rows of an epoch that nobody knows of when the log is lost too, and
    /// another server is read in it, or in an earlier one.
    pub(super) fn note_of_epoch(&self) -> Option<Flush> {
        let (stored, next) = (&self.stored, &self.flush.progress);
        if !self.has_rows() || next.highest_position.epoch() <= stored.highest_position.epoch() {
            return None;
        }
        let has_begun = stored.position > Lsn::ZERO;
        let server = if has_begun { &stored.server } else { &next.server };
        Some(Flush::new(Progress {
            revision: stored.revision + 1,
            highest_position: next.highest_position,
            server: server.clone(),
            ..stored.clone()
        }))
    }

    /// The note was committed.
    pub(super) fn noted(&mut self, stored: Progress) {
        self.stored = stored;
    }

    /// The finished flush, with the next revision.
    pub(super) fn flush(&mut self) -> &Flush {
        self.flush.progress.revision = self.stored.revision + 1;
        self.flush.progress.rows = self.stored.rows + self.flush.rows() as u64;
        &self.flush
    }

    /// The flush was committed: the window is empty again.
    pub(super) fn committed(&mut self) {
        *self = Self::new(std::mem::take(&mut self.flush.progress));
    }
}

/// Every change lies above the position before its message, also in a part of an event, a decided XA branch and the
/// first message of an epoch. One that does not would be left out by each lane that is just there.
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
mod tests {
    use std::borrow::Cow;

    use anabranch_schemas::change::{Entity, TableIdentity, Value};

    use super::*;

    fn lsn(position: u64) -> Lsn {
        Lsn::new(1, 1, position * 16).unwrap()
    }

    fn lane() -> LaneId {
        LaneId { projection: "p".into(), target: "t".into(), source: "s".into(), lane: 0 }
    }

    /// A message behind `previous` with one insert at each of `changes`, complete up to `position`.
    fn message(sequence: u64, previous: u64, changes: &[u64], position: u64) -> Delivery {
        let table = TableIdentity {
            entity: Entity::User,
            shard: ShardId::of("s", "d", "t", 0),
            database: Cow::Borrowed("d"),
            table: Cow::Borrowed("t"),
        };
        let mut encoder = codec::Encoder::default();
        for at in changes {
            encoder.insert(lsn(*at), &table, &[Value::UInt(*at)]);
        }
        let envelope = Envelope {
            previous: lsn(previous),
            position: lsn(position),
            changes: encoder.changes(),
            ..Envelope::default()
        };
        Delivery {
            envelope,
            payload: encoder.finish(),
            stored: Some((sequence, format!("a-{sequence}"))),
            follows: true,
            has_next: false,
        }
    }

    fn taken(window: &mut LaneWindow, message: &Delivery) -> Result<Vec<u64>, Code> {
        let mut seen = Vec::new();
        window
            .take(&lane(), message, |change, _| seen.push(change.lsn.position() / 16))
            .map_err(|fault| fault.code())?;
        Ok(seen)
    }

    #[test]
    fn a_message_that_does_not_link_is_a_hole() {
        let mut window = LaneWindow::new(Progress { position: lsn(10), ..Progress::default() });
        assert_eq!(taken(&mut window, &message(1, 11, &[12], 12)), Err(Code::LogHole));
        assert_eq!(taken(&mut window, &message(1, 10, &[12], 12)), Ok(vec![12]));
    }

    #[test]
    fn a_lane_without_progress_begins_only_where_the_history_begins() {
        let mut window = LaneWindow::new(Progress::default());
        let mut first = message(1, 5, &[6], 6);
        assert_eq!(taken(&mut window, &first), Err(Code::LogHole));
        first.envelope.origin = true;
        assert_eq!(taken(&mut window, &first), Ok(vec![6]));
        assert_eq!(taken(&mut window, &message(2, 7, &[8], 8)), Err(Code::LogHole));
    }

    #[test]
    fn only_what_lies_above_the_position_is_applied() {
        let mut window = LaneWindow::new(Progress { position: lsn(10), ..Progress::default() });
        assert_eq!(taken(&mut window, &message(1, 0, &[8, 9, 10], 10)), Ok(vec![]));
        assert_eq!(taken(&mut window, &message(2, 10, &[11, 12], 12)), Ok(vec![11, 12]));
        assert_eq!(taken(&mut window, &message(3, 5, &[6, 7], 7)), Ok(vec![]));
        let all = Taken { told: 7, applied: 2, behind: 5, overlapping: 0 };
        assert_eq!((window.taken(), all.unaccounted()), (all, 0));
        assert_eq!(window.progress().position, lsn(12), "a position never goes back");
        assert_eq!(taken(&mut window, &message(4, 10, &[11, 12, 13], 13)), Ok(vec![13]));
        assert_eq!(window.taken(), Taken { told: 10, applied: 3, behind: 5, overlapping: 2 });
    }

    #[test]
    fn a_change_that_is_not_above_the_position_before_its_message_stops_the_lane() {
        let mut window = LaneWindow::new(Progress { position: lsn(10), ..Progress::default() });
        assert_eq!(taken(&mut window, &message(1, 10, &[12, 10], 12)), Err(Code::LogOrderViolated));
        let mut behind = LaneWindow::new(Progress { position: lsn(20), ..Progress::default() });
        assert_eq!(taken(&mut behind, &message(1, 10, &[10], 12)), Err(Code::LogOrderViolated));
    }

    #[test]
    fn a_message_with_fewer_or_more_changes_than_its_head_says_stops_the_lane() {
        for (says, unaccounted) in [(3, 1), (1, -1), (0, -2)] {
            let mut window = LaneWindow::new(Progress { position: lsn(10), ..Progress::default() });
            assert_eq!(taken(&mut window, &message(1, 10, &[11], 11)), Ok(vec![11]));
            let mut other = message(2, 11, &[12, 13], 13);
            other.envelope.changes = says;
            assert_eq!(taken(&mut window, &other), Err(Code::LogCountViolated), "{says} in its head");
            assert_eq!(window.taken().unaccounted(), unaccounted);
            // Also where all of it came before.
            let mut behind = LaneWindow::new(Progress { position: lsn(20), ..Progress::default() });
            assert_eq!(taken(&mut behind, &other), Err(Code::LogCountViolated), "{says} in its head");
        }
    }

    #[test]
    fn the_parts_of_a_split_event_are_all_applied_also_when_sent_again() {
        let mut window = LaneWindow::new(Progress { position: lsn(10), ..Progress::default() });
        assert_eq!(taken(&mut window, &message(1, 10, &[20], 10)), Ok(vec![20]));
        assert_eq!(taken(&mut window, &message(2, 10, &[20, 20], 10)), Ok(vec![20, 20]));
        assert_eq!(taken(&mut window, &message(3, 10, &[20], 20)), Ok(vec![20]));
    }

    #[test]
    fn a_window_with_many_withdrawals_is_full_before_it_has_a_row() {
        let mut window = LaneWindow::new(Progress { position: lsn(10), ..Progress::default() });
        let withdraw =
            |change: &Change<'_, '_>, flush: &mut Flush| flush.withdraw(change.table.shard, change.lsn);
        let changes = vec![20; WITHDRAWALS_MAX - 1];
        window.take(&lane(), &message(1, 10, &changes, 10), withdraw).unwrap();
        assert!(!window.is_full(1000));
        window.take(&lane(), &message(2, 10, &[20], 10), withdraw).unwrap();
        assert!(window.is_full(1000) && window.rows() == 0);
        window.keep_withdrawals_of(&BTreeSet::new());
        assert!(!window.is_full(1000) && window.has_moved());
    }

    #[test]
    fn a_damaged_payload_is_told_and_counts_for_nothing() {
        let mut window = LaneWindow::new(Progress { position: lsn(0), ..Progress::default() });
        let mut damaged = message(1, 0, &[1], 1);
        let mut bytes = damaged.payload.to_vec();
        bytes[3] ^= 1;
        damaged.payload = bytes.into();
        assert_eq!(taken(&mut window, &damaged), Err(Code::LogMessageCorrupt));
        // Its changes come by a direct feed.
        assert_eq!(taken(&mut window, &message(1, 0, &[1], 1)), Ok(vec![1]));
        assert_eq!(window.taken().unaccounted(), 0);
    }

    #[test]
    fn an_epoch_is_noted_before_its_first_rows() {
        let (old, above) = (lsn(10), Lsn::new(2, 1, 160).unwrap());
        let stored = Progress { revision: 4, position: old, highest_position: old, ..Progress::default() };
        let mut window = LaneWindow::new(stored.clone());
        let next = |changes: &[u64]| {
            let mut next = message(1, 10, changes, 12);
            next.envelope.position = above;
            next
        };
        window.take(&lane(), &next(&[]), |_, _| ()).unwrap();
        assert!(window.note_of_epoch().is_none(), "there are no rows of it");
        let mut window = LaneWindow::new(stored);
        let withdraw =
            |change: &Change<'_, '_>, flush: &mut Flush| flush.withdraw(change.table.shard, change.lsn);
        window.take(&lane(), &next(&[11]), withdraw).unwrap();
        let note = window.note_of_epoch().expect("the first rows").progress;
        assert_eq!((note.revision, note.position, note.highest_position), (5, old, above));
        window.noted(note);
        assert!(window.note_of_epoch().is_none());
        assert_eq!(window.flush().progress.revision, 6);
    }

    #[test]
    fn what_was_applied_before_an_epoch_is_behind_no_chunk_that_is_older_than_its_first_message() {
        let begins = Lsn::new(2, 4, 160).unwrap();
        let of_epoch = |previous: u64| {
            let mut message = message(1, previous, &[], 12);
            message.envelope.position = begins;
            message
        };
        let stored = Progress { position: lsn(10), highest_change: lsn(9), ..Progress::default() };
        let mut window = LaneWindow::new(stored);
        taken(&mut window, &message(1, 10, &[11], 12)).unwrap();
        assert_eq!(window.progress().highest_change, lsn(11));
        taken(&mut window, &of_epoch(12)).unwrap();
        assert_eq!(window.progress().highest_change, begins);
        let mut behind = of_epoch(12);
        (behind.envelope.previous, behind.envelope.position) = (begins, Lsn::new(2, 4, 320).unwrap());
        taken(&mut window, &behind).unwrap();
        assert_eq!(window.progress().highest_change, begins, "a position alone changes nothing");
    }

    #[test]
    fn a_commit_raises_the_revision_by_one_and_empties_the_window() {
        let mut window = LaneWindow::new(Progress { revision: 4, position: lsn(0), ..Progress::default() });
        taken(&mut window, &message(9, 0, &[], 3)).unwrap();
        assert!(window.has_moved() && !window.has_rows());
        assert_eq!(window.flush().progress.revision, 5);
        window.committed();
        assert!(!window.has_moved());
        assert_eq!(window.flush().progress.revision, 6);
    }
}
