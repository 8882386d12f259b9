//! Where a reading begins, once it is decided: `entry.rs` and `resume.rs` decide it.

use anabranch_schemas::lsn::Lsn;

use super::follows::FailOverStart;
use crate::mysql::source::decode::gtid::Gtids;
use crate::mysql::source::decode::position::Position;

/// Where a new reading stands before its first event.
#[derive(Debug)]
pub struct StreamStart {
    pub position: Position,
    /// Groups before the position; `None` = as the file's first events say.
    pub gtids: Option<Gtids>,
    /// Events not above it were sent before.
    pub sent: Lsn,
    /// GTID of a group of which a part was sent before.
    pub partial: Option<String>,
    /// The server skips groups of a GTID set, so the first group says where the reading begins.
    pub is_by_gtid: bool,
    /// The first group of this file begins here (a start by GTID set behind 4 GiB, which positions do not tell).
    pub start_position: Option<(String, u64)>,
    /// Another server was read up to here.
    pub follows: Option<FailOverStart>,
}

impl StreamStart {
    /// A reading that goes on from none.
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
