//! The position of a lane and everything else that its progress row holds.

use std::fmt;

use anabranch_schemas::envelope::ServerIdentity;
use anabranch_schemas::lsn::{Lsn, ResumePoint};
use anabranch_schemas::timeline::Timeline;

use super::{PendingWithdrawals, Refresh, Scope};

/// Bytes of the text in which a progress row holds the state of a refresh, owed withdrawals and some further words.
const TEXT_BYTES_MAX: usize = 65_535;
/// Bytes of that text for the further words, and for a longer key up to which a table was read.
const RESERVED_BYTES: usize = 8 * 1024;

/// (projection, target, source, lane): the owner of a set of claims.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId {
    pub projection: String,
    pub target: String,
    pub source: String,
    /// Number from 0, below the projection's number of lanes.
    pub lane: u32,
}

impl LaneId {
    /// Labels of the lane's metrics.
    pub fn labels(&self) -> [(&'static str, String); 4] {
        [
            ("projection", self.projection.clone()),
            ("target", self.target.clone()),
            ("source", self.source.clone()),
            ("lane", self.lane.to_string()),
        ]
    }
}

/// Formats as `birthday/target/source-a/0`.
impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}/{}", self.projection, self.target, self.source, self.lane)
    }
}

/// The progress row. A new lane has revision 0 and everything else empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number that rises by one with each commit: the fence.
    pub revision: u64,
    /// The derived tables hold every change up to here. A lane applies only changes above.
    pub position: Lsn,
    /// The highest position ever; while `position` is below it, the lane is replaying.
    pub highest_position: Lsn,
    /// The highest position of an applied change: above `position` while an event is applied in part, below it while
    /// nothing changes. In an epoch in which nothing was applied yet, it is the lane's first position in that epoch.
    pub highest_change: Lsn,
    pub resume: ResumePoint,
    /// The server of the position; for a lane that is set back to nothing, of the highest position, if known.
    pub server: ServerIdentity,
    /// Sequence and id of the stream message that was applied last; `None` before the first.
    pub message: Option<(u64, String)>,
    /// Commit time of the newest applied change, microseconds since the Unix epoch; 0 = unknown.
    pub committed_at_us: u64,
    /// Rows applied since the lane was made.
    pub rows: u64,
    /// The refresh that reads rows from the source beside the feed.
    pub refresh: Option<Refresh>,
    /// A refresh may have written rows, so rows may have versions that no change has.
    pub was_refreshed: bool,
    /// Fewest fields of the entity with which changes were captured since the lane last read all of its tables; `None`
    /// = the fields that each table has.
    pub captured_fields: Option<usize>,
    /// Tables that were dropped or truncated up to the position, and of which the lane is still to remove claims.
    pub withdrawals: PendingWithdrawals,
    /// Number of the source's beginning after which the lane reads; 0 = the source never began anew for it.
    pub beginning: u64,
}

impl Progress {
    /// Returns the bytes that the withdrawals may take as text, beside what is stored in the same text.
    pub fn withdrawals_room(&self) -> usize {
        TEXT_BYTES_MAX.saturating_sub(self.bytes_beside_withdrawals())
    }

    /// Whether the progress row has room for the refresh and the owed withdrawals.
    pub(crate) fn has_room(&self) -> bool {
        let is_listable = self.refresh.as_ref().is_none_or(Refresh::is_listable);
        is_listable && self.bytes_beside_withdrawals() + self.withdrawals.bytes() <= TEXT_BYTES_MAX
    }

    fn bytes_beside_withdrawals(&self) -> usize {
        let refresh = self.refresh.as_ref().map_or(0, |refresh| refresh.to_string().len());
        let read_end = self.resume.read_end.as_ref().map_or(0, |end| end.to_string().len());
        let partial = self.resume.partial.as_ref().map_or(0, String::len);
        RESERVED_BYTES + refresh + read_end + partial
    }

    /// Whether the lane applies changes that it applied before.
    pub fn is_replaying(&self) -> bool {
        self.position < self.highest_position
    }

    /// Returns the latest epoch of which the lane has rows, and its server. The server is not known while the lane is
    /// set back into an earlier epoch.
    pub fn timeline(&self) -> Timeline {
        let highest = self.highest_position.max(self.position);
        if self.position == Lsn::ZERO {
            return Timeline::of(highest, &self.server);
        }
        if highest.epoch() == self.position.epoch() {
            return Timeline::of(self.position, &self.server);
        }
        Timeline::of(highest, &ServerIdentity::default())
    }

    /// Whether the lane may have rows of a later epoch than its position's, left by a flush that was cut off. Changes
    /// that others read in an earlier epoch would count as older.
    pub fn is_in_earlier_epoch(&self) -> bool {
        self.position > Lsn::ZERO && self.position.epoch() < self.highest_position.epoch()
    }

    /// Whether a message that ends at `position` cuts a replay short: it is in a later epoch than all rows of the lane.
    ///
    /// The lane has rows from above its own position, and only its position is compared with the new server. So the
    /// server may lack what they came from. The new server's changes count as newer than all of these rows, also those
    /// that came before: they may remove a row that the lane has read from a table and that no change brings back.
    ///
    /// The same holds for a part of a transaction that the lane has and that its resume point, of a replay, does not
    /// name.
    pub fn is_cut_short_by(&self, position: Lsn) -> bool {
        let is_past = |reached: Lsn| reached > self.position && reached.epoch() < position.epoch();
        self.position > Lsn::ZERO
            && (is_past(self.highest_position) || self.has_unnamed_part() && is_past(self.highest_change))
    }

    /// Whether the lane has changes of a transaction above its position that its resume point does not name. What lies
    /// at the lowest position of an epoch is of no transaction.
    fn has_unnamed_part(&self) -> bool {
        let is_above = self.highest_change > self.position;
        is_above && self.resume.partial.is_none() && !self.highest_change.is_lowest()
    }

    /// Whether the lane was rewound to nothing: its rows are to be removed before it begins anew.
    pub fn is_emptied(&self) -> bool {
        self.position == Lsn::ZERO && self.is_replaying()
    }

    /// Returns the progress after a rewind to `position`. The lane's rows keep their versions, so the replay is
    /// harmless. When they are removed, rows of a refresh must be read again: changes would not bring them back, or not
    /// at their versions.
    pub fn rewound(&self, position: Lsn, resume: ResumePoint, server: ServerIdentity) -> Self {
        let refresh = match position {
            Lsn::ZERO => self.was_refreshed.then(|| Refresh::new(Scope::Source)),
            _ => self.refresh.clone(),
        };
        Self {
            refresh,
            revision: self.revision + 1,
            position,
            resume,
            server,
            message: None,
            committed_at_us: 0,
            ..self.clone()
        }
    }
}
