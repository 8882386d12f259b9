//! The start of a binlog stream, as `entry.rs` and `resume.rs` decide it.

use anabranch_schemas::lsn::Lsn;

use super::follows::FailOverStart;
use crate::mysql::source::decode::gtid::Gtids;
use crate::mysql::source::decode::position::Position;

/// State of a new stream before its first event.
#[derive(Debug)]
pub struct StreamStart {
    pub position: Position,
    /// Groups before the position; `None` = the file's first events list them.
    pub gtids: Option<Gtids>,
    /// Position up to which events were sent before.
    pub sent: Lsn,
    /// GTID of a group that was sent in part before.
    pub partial: Option<String>,
    /// The server skips the groups of a GTID set, so the position of the first group it sends is the start.
    pub is_by_gtid: bool,
    /// File and offset of the first group (a start by GTID set after 4 GiB, where the positions of events wrap).
    pub start_position: Option<(String, u64)>,
    /// The other server that was read up to here, if any.
    pub follows: Option<FailOverStart>,
}

impl StreamStart {
    /// Returns a start that continues no earlier stream.
    pub fn fresh(position: Position, gtids: Option<Gtids>) -> Self {
        Self {
            position,
            gtids,
            sent: Lsn::ZERO,
            partial: None,
            is_by_gtid: false,
            start_position: None,
            follows: None,
        }
    }
}
