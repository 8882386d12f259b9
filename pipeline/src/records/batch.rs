//! Collects changes of consecutive binlog events into one log message.
//!
//! The message's position is that of the last event that is *complete* in it. An event larger than the limit spreads
//! over several messages that all carry the position before it; after a crash it is sent again from its first part.

use anabranch_schemas::change::{TableIdentity, Value};
use anabranch_schemas::codec::Encoder;
use anabranch_schemas::envelope::ServerIdentity;
use anabranch_schemas::flux::counter::Counter;
use anabranch_schemas::lsn::{Lsn, ResumePoint};
use bytes::Bytes;

use super::seen_numbers::SeenNumbers;
use super::table_counts::TableCounts;
use crate::error::{Code, Fault};

/// A finished message: its payload and its position in the binlog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    pub payload: Bytes,
    pub changes: u32,
    /// The batch begins in the middle of an event.
    pub continues: bool,
    /// Position of the last event that is complete in the batch.
    pub position: Lsn,
    pub resume: ResumePoint,
    pub committed_at_us: u64,
}

/// Resume point and server of the last reported position: the three belong together.
///
/// A part of an event leaves the position where it was, and that may be on the server that was read before a fail-over.
#[derive(Debug)]
pub struct ResumeContext {
    position: Lsn,
    resume_point: Option<(ResumePoint, ServerIdentity)>,
}

impl ResumeContext {
    /// `resume_point` is the resume point and server that were reported for `position` before, if any.
    pub fn new(position: Lsn, resume_point: Option<(ResumePoint, ServerIdentity)>) -> Self {
        Self { position, resume_point }
    }

    /// Returns the resume point and server to report for a batch that was read from `server`. A part of a group that
    /// was sent is reported with any position.
    pub fn of(&mut self, batch: &Batch, server: &ServerIdentity) -> (ResumePoint, ServerIdentity) {
        if batch.position == self.position
            && let Some((resume, server)) = &self.resume_point
        {
            let partial = batch.resume.partial.clone();
            return (ResumePoint { partial, ..resume.clone() }, server.clone());
        }
        let resume_point = (batch.resume.clone(), server.clone());
        (self.position, self.resume_point) = (batch.position, Some(resume_point.clone()));
        resume_point
    }
}

/// A batch being filled. Positions outlive [`BatchBuilder::take`]: they describe the whole stream, not one message.
#[derive(Debug)]
pub struct BatchBuilder {
    encoder: Encoder,
    limit_bytes: usize,
    /// Position of the newest change that was added.
    newest: Lsn,
    added: u64,
    unchanged: u64,
    unseen: u64,
    rereads: u64,
    /// Changes by table; `None` when they are not counted.
    tables: Option<TableCounts>,
    /// Numbers of payment documents in new rows; `None` = no counter needs them.
    numbers: Option<SeenNumbers>,
    /// The previous batch ended in the middle of an event.
    continues: bool,
    position: Lsn,
    resume: ResumePoint,
    committed_at_us: u64,
    /// The first change that was not above the position before it, and that position.
    violation: Option<(Lsn, Lsn)>,
}

impl BatchBuilder {
    pub fn new(limit_bytes: usize, position: Lsn, resume: ResumePoint) -> Self {
        let encoder = Encoder::default();
        Self {
            encoder,
            limit_bytes,
            newest: Lsn::ZERO,
            added: 0,
            unchanged: 0,
            unseen: 0,
            rereads: 0,
            tables: None,
            numbers: None,
            continues: false,
            position,
            resume,
            committed_at_us: 0,
            violation: None,
        }
    }

    /// Counts changes by table from now on, for [`Self::take_tables`].
    pub fn count_tables(&mut self) {
        self.tables = Some(TableCounts::default());
    }

    /// Notes the numbers of payment documents from now on, for [`Self::take_numbers`].
    pub fn note_numbers(&mut self, numbers: SeenNumbers) {
        self.numbers = Some(numbers);
    }

    pub fn insert(&mut self, lsn: Lsn, table: &TableIdentity<'static>, after: &[Value<'_>]) {
        self.raise_highest(lsn, table);
        self.note_number(table, after);
        self.encoder.insert(lsn, table, after);
    }

    pub fn update(
        &mut self,
        lsn: Lsn,
        table: &TableIdentity<'static>,
        before: &[Value<'_>],
        after: &[Value<'_>],
    ) {
        self.raise_highest(lsn, table);
        self.note_number(table, after);
        self.encoder.update(lsn, table, before, after);
    }

    pub fn delete(&mut self, lsn: Lsn, table: &TableIdentity<'static>, before: &[Value<'_>]) {
        self.raise_highest(lsn, table);
        self.encoder.delete(lsn, table, before);
    }

    pub fn withdraw(&mut self, lsn: Lsn, table: &TableIdentity<'static>) {
        self.raise_highest(lsn, table);
        self.encoder.withdraw(lsn, table);
    }

    /// Adds the record of a table that a retention rule removed: its rows keep standing.
    pub fn retire(&mut self, lsn: Lsn, table: &TableIdentity<'static>) {
        self.raise_highest(lsn, table);
        self.encoder.retire(lsn, table);
    }

    /// Adds a request to read the table again, because rows of it changed in a way that row events do not show.
    pub fn reread(&mut self, lsn: Lsn, table: &TableIdentity<'static>) {
        self.raise_highest(lsn, table);
        self.rereads += 1;
        self.encoder.reread(lsn, table);
    }

    /// Returns the number of tables to be read again that were added since the last call.
    pub fn take_rereads(&mut self) -> u64 {
        std::mem::take(&mut self.rereads)
    }

    /// Returns the changes by table that were added since the last call.
    pub fn take_tables(&mut self) -> TableCounts {
        self.tables.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns the highest numbers of new rows since the last call, each plus 1, by counter.
    pub fn take_numbers(&mut self) -> Vec<(Counter, u32)> {
        let committed_at_us = self.committed_at_us;
        self.numbers.as_mut().map(|numbers| numbers.take_near(committed_at_us)).unwrap_or_default()
    }

    fn note_number(&mut self, table: &TableIdentity<'_>, after: &[Value<'_>]) {
        if let Some(numbers) = &mut self.numbers {
            numbers.add(table, after);
        }
    }

    fn raise_highest(&mut self, lsn: Lsn, table: &TableIdentity<'_>) {
        if lsn <= self.position {
            self.violation.get_or_insert((lsn, self.position));
        }
        self.newest = lsn;
        self.added += 1;
        if let Some(tables) = &mut self.tables {
            tables.add(table);
        }
    }

    /// Refuses a batch with a change that is not above the position before it: each lane would skip the change as one
    /// that it has. The caller must call this before it hands a batch on.
    pub fn require_order(&self, source: &str) -> Result<(), Fault> {
        let Some((lsn, position)) = self.violation else { return Ok(()) };
        let found = format!("a change at {lsn} after the complete position {position}");
        Err(Fault::new(Code::LogOrderViolated, format!("source {source}"), found)
            .needs("every change above the position before it")
            .remedy("keep the binlogs, and report this defect: nothing of this batch was sent"))
    }

    /// Counts updates that were read and skipped: neither a captured value nor the key changed.
    pub fn pass_unchanged(&mut self, updates: u64) {
        self.unchanged += updates;
    }

    /// Returns the number of updates that were skipped since the last call.
    pub fn take_unchanged(&mut self) -> u64 {
        std::mem::take(&mut self.unchanged)
    }

    /// Counts captured tables that a statement was to write and of which it has no rows.
    pub fn pass_unseen(&mut self, tables: u64) {
        self.unseen += tables;
    }

    /// Returns the number of tables without their rows that were counted since the last call.
    pub fn take_unseen(&mut self) -> u64 {
        std::mem::take(&mut self.unseen)
    }

    /// Returns the number of changes that were ever added, counted independently of the encoder.
    pub fn added(&self) -> u64 {
        self.added
    }

    /// Records that all of the event at `lsn` is in this batch or an earlier one. A position that is not above the
    /// present one is ignored (events that are read again after a resume).
    pub fn event_complete(&mut self, lsn: Lsn) {
        self.position = self.position.max(lsn);
    }

    /// Records the end of a group: a reader may resume at `resume`. `committed_at_us` is 0 when the time is unknown.
    pub fn group_complete(&mut self, resume: ResumePoint, committed_at_us: u64) {
        self.resume = resume;
        if committed_at_us > 0 {
            self.committed_at_us = committed_at_us;
        }
    }

    /// Records that a part of the group with this GTID was added, and the rest was not.
    pub fn group_in_part(&mut self, gtid: &str) {
        self.resume.partial = Some(gtid.to_owned());
    }

    pub fn is_full(&self) -> bool {
        self.encoder.bytes() >= self.limit_bytes
    }

    /// Whether the batch has no change; its position may have moved all the same.
    pub fn is_empty(&self) -> bool {
        self.encoder.is_empty()
    }

    pub fn position(&self) -> Lsn {
        self.position
    }

    pub fn resume(&self) -> &ResumePoint {
        &self.resume
    }

    /// Returns the batch so far, also an empty one (a position message); the builder continues from there.
    pub fn take(&mut self) -> Batch {
        Batch {
            continues: std::mem::replace(&mut self.continues, self.newest > self.position),
            changes: self.encoder.changes(),
            payload: self.encoder.finish(),
            position: self.position,
            resume: self.resume.clone(),
            committed_at_us: self.committed_at_us,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use anabranch_schemas::change::Entity;
    use anabranch_schemas::shard::ShardId;

    use super::*;

    #[test]
    fn a_batch_says_whether_it_begins_in_the_middle_of_an_event() {
        let lsn = |position: u64| Lsn::new(1, 1, position * 16).unwrap();
        let table = TableIdentity {
            entity: Entity::User,
            shard: ShardId::of("s", "d", "t", 0),
            database: Cow::Borrowed("d"),
            table: Cow::Borrowed("t"),
        };
        let mut builder = BatchBuilder::new(1, lsn(1), ResumePoint::default());
        let mut part = |at, is_last| {
            builder.insert(lsn(at), &table, &[Value::UInt(at)]);
            if is_last {
                builder.event_complete(lsn(at));
            }
            builder.take().continues
        };
        assert_eq!([part(2, false), part(2, false), part(2, true)], [false, true, true]);
        assert_eq!([part(3, true), part(4, false)], [false, false]);
        assert!(
            builder.take().continues && builder.take().continues,
            "position messages between the parts do not change that"
        );
    }

    #[test]
    fn a_change_that_is_not_above_the_position_before_it_is_never_handed_on() {
        let lsn = |position: u64| Lsn::new(1, 1, position * 16).unwrap();
        let table = TableIdentity {
            entity: Entity::User,
            shard: ShardId::of("s", "d", "t", 0),
            database: Cow::Borrowed("d"),
            table: Cow::Borrowed("t"),
        };
        let mut builder = BatchBuilder::new(1, lsn(1), ResumePoint::default());
        for at in [2, 2, 3] {
            builder.insert(lsn(at), &table, &[Value::UInt(at)]);
            builder.take();
        }
        builder.event_complete(lsn(3));
        assert!(builder.require_order("s").is_ok());
        builder.insert(lsn(3), &table, &[Value::UInt(3)]);
        builder.insert(lsn(4), &table, &[Value::UInt(4)]);
        let fault = builder.require_order("s").unwrap_err();
        assert_eq!(fault.code(), Code::LogOrderViolated);
        builder.take();
        assert!(builder.require_order("s").is_err(), "nothing after it leaves either");
    }

    /// Otherwise a restart would look for an offset of one server in the binlog of another.
    #[test]
    fn a_position_keeps_its_resume_point_and_server_until_another_one_is_told() {
        let server = |id: &str| ServerIdentity { flavor: "mariadb".into(), id: id.into() };
        let resume = |file: &str| ResumePoint { file: file.into(), ..ResumePoint::default() };
        let lsn = |epoch| Lsn::new(epoch, 1, 160).unwrap();
        let mut builder = BatchBuilder::new(1, lsn(1), ResumePoint::default());
        let mut resume_context = ResumeContext::new(lsn(1), Some((resume("old"), server("1"))));
        builder.group_complete(resume("new"), 0);
        assert_eq!(resume_context.of(&builder.take(), &server("2")), (resume("old"), server("1")));
        builder.event_complete(lsn(2));
        assert_eq!(resume_context.of(&builder.take(), &server("2")), (resume("new"), server("2")));
        // A part of a group is sent from the present server, and the position is still the one before it.
        builder.group_in_part("0-2-7");
        let (partial, server_two) = resume_context.of(&builder.take(), &server("2"));
        assert_eq!((partial.partial.as_deref(), partial.file.as_str()), (Some("0-2-7"), "new"));
        assert_eq!(server_two, server("2"));
        builder.group_complete(resume("new"), 0);
        let mut begun = ResumeContext::new(lsn(2), None);
        assert_eq!(begun.of(&builder.take(), &server("2")), (resume("new"), server("2")));
    }
}
