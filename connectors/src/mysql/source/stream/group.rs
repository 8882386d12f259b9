//! State of the group (transaction) that is being read, from its events so far.

use crate::mysql::source::decode::gtid::{Flavor, GroupStart, Gtid};

/// State of a group; the default is "between groups".
#[derive(Debug, Default)]
pub struct Group {
    gtid: Option<Gtid>,
    is_open: bool,
    /// The group ends with a commit, not with its first statement.
    is_transaction: bool,
    is_xa_branch: bool,
    /// Offset in the file at which the group's first event begins.
    start: u64,
    committed_at_us: u64,
}

impl Group {
    pub fn begin(flavor: Flavor, group: GroupStart, start: u64) -> Self {
        Self {
            gtid: Some(group.gtid),
            is_open: true,
            // MariaDB sends no BEGIN; MySQL always does.
            is_transaction: flavor == Flavor::MariaDb && !group.is_standalone,
            is_xa_branch: group.is_prepared_xa,
            start,
            committed_at_us: group.committed_at_us,
        }
    }

    /// Takes in a BEGIN statement.
    pub fn begin_transaction(&mut self) {
        self.is_open = true;
        self.is_transaction = true;
    }

    pub fn begin_xa_branch(&mut self) {
        self.begin_transaction();
        self.is_xa_branch = true;
    }

    pub fn is_open(&self) -> bool {
        self.is_open
    }

    pub fn is_transaction(&self) -> bool {
        self.is_transaction
    }

    pub fn is_xa_branch(&self) -> bool {
        self.is_xa_branch
    }

    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns the time of the group's GTID event, or of its last event if the former has none.
    pub fn committed_at_us(&self, last_event_seconds: u32) -> u64 {
        if self.committed_at_us > 0 {
            self.committed_at_us
        } else {
            u64::from(last_event_seconds) * 1_000_000
        }
    }

    pub fn into_gtid(self) -> Option<Gtid> {
        self.gtid
    }
}
