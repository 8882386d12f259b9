//! How a lane reads its tables when the binlog does not tell their history.
//!
//! A lane that has just begun reads all tables beside its feed, whatever the binlog holds: a server may have rows that
//! its binlog never had (a restored dump, a clone, a log that was turned on late), and no binlog file says so.
//!
//! A lane that reads all tables may also skip a part of the binlog that was purged or is unreadable. It begins at the
//! stream's end then. The tables hold everything between its position and that end, so only reads at or after that end
//! count: the refresh begins from its first table.

use anabranch_schemas::change::Entity;
use anabranch_schemas::envelope::Envelope;
use anabranch_schemas::lsn::Lsn;
use tokio_util::sync::CancellationToken;

use super::feed::{Feed, Hole};
use super::fields::FieldsRead;
use super::lane::{Lane, load_own_progress, unless};
use super::window::LaneWindow;
use crate::error::{Code, Fault};
use crate::ports::{BinlogStart, LaneStore, Log, SourceConnector};
use crate::records::{Flush, Progress, Refresh, Scope, refresh_command};

/// Whether `first`, the lane's first message, begins the source's history, so that rows from before it are wanted too.
///
/// A configured beginning other than the earliest means that only rows after it are wanted.
pub(super) fn lacks_rows(progress: &Progress, start: &BinlogStart, first: &Envelope) -> bool {
    let has_begun = progress.position > Lsn::ZERO || progress.highest_position > Lsn::ZERO;
    !has_begun && *start == BinlogStart::Earliest && first.origin
}

impl Progress {
    /// Returns progress with all tables to be read again, from the first one on; repairs of single keys go first.
    pub(super) fn loads(self) -> Self {
        Self { refresh: Some(Refresh::with_every_table(self.refresh)), was_refreshed: true, ..self }
    }

    /// Returns progress with all tables to be read by a lane that has just begun. Set-up found no rows of the lane; an
    /// earlier request for a refresh may know of some all the same.
    pub(super) fn loads_first(self) -> Self {
        let empty_in_epoch = (!self.was_refreshed).then_some(self.position.epoch());
        Self {
            refresh: Some(Refresh { empty_in_epoch, ..Refresh::new(Scope::Source) }),
            was_refreshed: true,
            ..self
        }
    }

    /// Returns progress of a lane that has lost its own: it goes on at the stream's end and reads all tables. `reads`
    /// has the entity and the number of its fields that its projection reads.
    ///
    /// Nothing says which changes its derived rows have, and they keep their versions. A row from below the stream's
    /// end has a lower version than each chunk: a comparison finds it equal, a chunk replaces it, or a sweep removes
    /// it. A lane that had read the binlog itself may have rows from above that end; the feed brings the same changes
    /// again, at the same versions.
    pub fn after_loss(end: &Envelope, reads: (Entity, usize), revision: u64) -> Self {
        let (entity, fields) = reads;
        Self {
            revision,
            position: end.position,
            highest_position: end.position,
            // Chunks that other lanes read before may lack changes up to there.
            highest_change: end.position,
            resume: end.resume.clone(),
            server: end.server.clone(),
            captured_fields: FieldsRead { entity, fields }.all(),
            beginning: end.beginning,
            ..Self::default().loads()
        }
    }

    /// Whether the lane itself needs no binlog after its position: it has not begun, or reads all tables.
    pub(crate) fn may_begin_anew(&self) -> bool {
        self.position == Lsn::ZERO || self.refresh.as_ref().is_some_and(Refresh::reads_every_table)
    }
}

impl<S: SourceConnector, L: Log> Lane<'_, S, L> {
    /// Returns the feed of a lane, and whether the lane was first set to the stream's end because its history is gone.
    /// `None` when cancelled.
    pub(super) async fn feed_or_load(
        &self,
        window: &mut LaneWindow,
        hole: Option<Hole>,
        store: &mut impl LaneStore,
        cancel: &CancellationToken,
    ) -> Result<Option<(Feed<L::Reader>, bool)>, Fault> {
        let mut was_set = false;
        loop {
            let fault = match unless(cancel, self.feed(window.progress(), hole)).await {
                Ok(feed) => return Ok(feed.map(|feed| (feed, was_set))),
                Err(fault) => fault,
            };
            let is_gone = matches!(fault.code(), Code::BinlogPurged | Code::LogHole);
            if !is_gone || was_set {
                return Err(fault);
            }
            self.begin_at_end(window, fault, store).await?;
            was_set = true;
        }
    }

    /// Sets a lane that reads all tables to the stream's end, because of a fault of its feed; for another lane returns
    /// that fault. The window is discarded: the tables have its changes.
    ///
    /// A lane of an earlier beginning than the stream's takes that end without a link, and reads all tables from now
    /// on. Rows that it has applied may be in no table: the comparison or the sweep of their table removes them.
    pub(super) async fn begin_at_end(
        &self,
        window: &mut LaneWindow,
        fault: Fault,
        store: &mut impl LaneStore,
    ) -> Result<(), Fault> {
        // Since the attempt began, a refresh may have been requested, or a replay from nothing, which first removes
        // rows.
        let before = load_own_progress(self, store, window).await?;
        let end = self.log.end(&self.id.source).await?;
        let begins = end.as_ref().is_some_and(|end| end.envelope.beginning > before.beginning);
        if !begins && !before.may_begin_anew() {
            return Err(fault.then(refresh_command(&self.id.projection, &self.id.source)));
        }
        let Some(end) = end else { return Err(fault) };
        let position = end.envelope.position;
        // A lane that followed the new server by its direct feed may be at the stream's end already.
        let is_beyond = position > before.position || (begins && position == before.position);
        if !is_beyond || position.epoch() < before.highest_position.epoch() {
            return Err(fault);
        }
        tracing::warn!(lane = %self.id, %fault, %position, "the lane begins at the stream's end and reads all tables");
        let mut flush = Flush::new(Progress {
            revision: before.revision + 1,
            position,
            // The feed brings the changes above.
            highest_position: position,
            // Older chunks lack the changes up to there.
            highest_change: position.max(before.highest_change),
            resume: end.envelope.resume,
            server: end.envelope.server,
            message: None,
            captured_fields: self.fields_read().all(),
            beginning: end.envelope.beginning.max(before.beginning),
            ..before.loads()
        });
        store.commit(&flush).await?;
        *window = LaneWindow::new(std::mem::take(&mut flush.progress));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_without_its_progress_goes_on_at_the_streams_end_and_owes_every_table() {
        let position = Lsn::new(3, 7, 160).unwrap();
        let end = Envelope { position, beginning: 2, ..Envelope::default() };
        let progress = Progress::after_loss(&end, (Entity::User, Entity::User.required_fields()), 9);
        assert_eq!((progress.revision, progress.beginning, progress.captured_fields), (9, 2, None));
        assert_eq!([progress.position, progress.highest_position, progress.highest_change], [position; 3]);
        let refresh = progress.refresh.as_ref().unwrap();
        assert!(refresh.reads_every_table() && refresh.empty_in_epoch.is_none() && progress.was_refreshed);
        assert!(!progress.is_replaying());
    }

    #[test]
    fn only_a_new_lane_that_begins_with_the_source_wants_the_rows_from_before() {
        let message = |origin| {
            let previous = Lsn::new(1, 1, 16).unwrap();
            Envelope { origin, previous, position: previous, ..Envelope::default() }
        };
        let (new, begun) = (Progress::default(), Progress { position: Lsn::MAX, ..Progress::default() });
        assert!(lacks_rows(&new, &BinlogStart::Earliest, &message(true)));
        for (progress, start, first) in [
            (&new, BinlogStart::Earliest, message(false)),
            (&new, BinlogStart::Latest, message(true)),
            (&begun, BinlogStart::Earliest, message(true)),
        ] {
            assert!(!lacks_rows(progress, &start, &first), "{start:?} {first:?}");
        }
    }
}
