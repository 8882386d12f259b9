//! A lane whose history nobody has any more: it begins at the stream's end and reads its tables as they are.
//!
//! That is so for a lane that has not begun, when the source's beginning is neither in the stream nor in its binlog, and
//! for one that was asked to refresh all tables. What lies between its position and the stream's end is left out, so only
//! what is read at or behind that end counts: the refresh begins from its first table.

use anabranch_schemas::envelope::Envelope;
use anabranch_schemas::lsn::Lsn;
use tokio_util::sync::CancellationToken;

use super::feed::{Feed, Hole};
use super::run::unless;
use super::window::Window;
use super::{Flush, Lane, Progress, Refresh, Scope};
use crate::error::{Code, Fault};
use crate::ports::{Entry, LaneStore, Log, SourceConnector};

/// The number of a server's first binlog file.
const FIRST_FILE: u32 = 1;

/// Whether older rows than the feed's may be in the source: its first message says where the history begins.
///
/// Who configured another beginning than the earliest wants no more than what lies behind that.
pub(super) fn lacks_rows(progress: &Progress, start: &Entry, first: &Envelope) -> bool {
    let has_begun = progress.position > Lsn::ZERO || progress.highest_position > Lsn::ZERO;
    !has_begun && *start == Entry::Earliest && first.origin && first.previous.file_number() > FIRST_FILE
}

impl Progress {
    /// All tables are to be read again, from the first one on.
    fn loads(self) -> Self {
        Self { refresh: Some(Refresh::new(Scope::Source)), was_refreshed: true, ..self }
    }

    /// All tables are to be read by a lane that has just begun. Set-up found no rows of it; who asked for a refresh before
    /// may know of some all the same.
    pub(super) fn loads_first(self) -> Self {
        let vacant = (!self.was_refreshed).then_some(self.position.epoch());
        Self { refresh: Some(Refresh { vacant, ..Refresh::new(Scope::Source) }), was_refreshed: true, ..self }
    }

    /// Nothing of its own needs the binlog behind its position: it has not begun, or reads all tables.
    pub(crate) fn may_begin_anew(&self) -> bool {
        let reads_all = |refresh: &Refresh| refresh.scope == Scope::Source;
        self.position == Lsn::ZERO || self.refresh.as_ref().is_some_and(reads_all)
    }
}

impl<S: SourceConnector, L: Log> Lane<'_, S, L> {
    /// The feed of a lane, which is set to the stream's end first when its history is gone; whether it was. `None` when
    /// cancelled.
    pub(super) async fn feed_or_load(
        &self,
        window: &mut Window,
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
            if !window.progress().may_begin_anew() {
                return Err(fault.remedy(refresh_command(&self.id.projection, &self.id.source)));
            }
            let Some(end) = self.log.end(&self.id.source).await? else { return Err(fault) };
            let (position, before) = (end.envelope.position, window.progress().clone());
            if position <= before.position || position.epoch() < before.highest_position.epoch() {
                return Err(fault);
            }
            tracing::warn!(lane = %self.id, %fault, %position, "begins at the stream's end and reads all tables");
            let mut flush = Flush::new(Progress {
                revision: before.revision + 1,
                position,
                // What lies above will come.
                highest_position: position,
                // What was changed up to there is in no chunk that is older.
                highest_change: position.max(before.highest_change),
                resume: end.envelope.resume,
                server: end.envelope.server,
                message: None,
                ..before.loads()
            });
            store.commit(&flush).await?;
            *window = Window::new(std::mem::take(&mut flush.progress));
            was_set = true;
        }
    }
}

/// What brings back what no binlog holds.
pub(crate) fn refresh_command(projection: &str, source: &str) -> String {
    format!(
        "`anabranch --config FILE refresh --projection {projection} --source {source}`, then restart: it goes on from \
         the present, and reads all tables"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_new_lane_behind_the_servers_first_file_needs_rows_that_are_older() {
        let message = |origin, file| {
            let previous = Lsn::new(1, file, 16).unwrap();
            Envelope { origin, previous, position: previous, ..Envelope::default() }
        };
        let (new, begun) = (Progress::default(), Progress { position: Lsn::MAX, ..Progress::default() });
        assert!(lacks_rows(&new, &Entry::Earliest, &message(true, 2)));
        for (progress, start, first) in [
            (&new, Entry::Earliest, message(true, 1)),
            (&new, Entry::Earliest, message(false, 2)),
            (&new, Entry::Latest, message(true, 2)),
            (&begun, Entry::Earliest, message(true, 2)),
        ] {
            assert!(!lacks_rows(progress, &start, &first), "{start:?} {first:?}");
        }
    }
}
