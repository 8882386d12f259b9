//! How far a lane is: what its progress row holds.

use std::fmt;

use anabranch_schemas::envelope::ServerIdentity;
use anabranch_schemas::lsn::{Lsn, ResumePoint};
use anabranch_schemas::timeline::Timeline;

use super::{Refresh, Scope};

/// (projection, target, source, lane): the owner of a set of claims.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId {
    pub projection: String,
    pub target: String,
    pub source: String,
    /// From 0, below the projection's number of lanes.
    pub lane: u32,
}

impl LaneId {
    /// Labels of the lane's metrics.
    pub(crate) fn labels(&self) -> [(&'static str, String); 4] {
        [
            ("projection", self.projection.clone()),
            ("target", self.target.clone()),
            ("source", self.source.clone()),
            ("lane", self.lane.to_string()),
        ]
    }
}

/// `birthday/target/source-a/0`.
impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}/{}", self.projection, self.target, self.source, self.lane)
    }
}

/// The progress row. A new lane has revision 0 and everything else empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Rises by one with each commit; the fence.
    pub revision: u64,
    /// Everything up to here is in the derived tables. A lane applies only what lies above.
    pub position: Lsn,
    /// The highest position ever; while `position` is below, the lane is replaying.
    pub highest_position: Lsn,
    /// The highest position of a change that was applied: above `position` while an event is applied in part, below it
    /// while nothing changes. Of an epoch in which nothing was applied yet, where the lane first stood in it.
    pub highest_change: Lsn,
    pub resume: ResumePoint,
    /// The server of the position; of a lane that is set back to nothing, that of the highest position, if it is known.
    pub server: ServerIdentity,
    /// The stream message that was applied last: its sequence and id. `None` before the first.
    pub message: Option<(u64, String)>,
    /// Commit time of the newest applied change, microseconds since the Unix epoch; 0 = unknown.
    pub committed_at_us: u64,
    /// Rows applied since the lane was made.
    pub rows: u64,
    /// Rows are being read from the source beside the feed.
    pub refresh: Option<Refresh>,
    /// Rows may have come by a refresh, and so have versions that no change has.
    pub was_refreshed: bool,
    /// How many fields of the entity the changes were captured with since the lane read all of its tables last, at
    /// least; `None` = those that each table has.
    pub captured_fields: Option<usize>,
    /// Number of the source's beginning that the lane reads after; 0 = the source never began anew for it.
    pub beginning: u64,
}

impl Progress {
    /// What was applied once is being applied again.
    pub fn is_replaying(&self) -> bool {
        self.position < self.highest_position
    }

    /// The latest epoch that the lane has rows of. Whose it was is not known while the lane is set back into one
    /// before.
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

    /// It may have rows of a later epoch than its position's, which a flush that was cut off has left. What others read
    /// in an earlier one would count as older.
    pub fn is_apart(&self) -> bool {
        self.position > Lsn::ZERO && self.position.epoch() < self.highest_position.epoch()
    }

    /// Rewound to nothing: the lane's rows are to be removed before it begins anew.
    pub fn is_emptied(&self) -> bool {
        self.position == Lsn::ZERO && self.is_replaying()
    }

    /// Where the lane goes on after it was rewound. Its rows keep their versions, so the replay is harmless. When they
    /// are removed, those of a refresh must be read again: changes would not bring them back, or not at their versions.
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
