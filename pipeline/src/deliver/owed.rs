//! The reasons why lanes could not read tables that they are to read again, for those who look at the status.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anabranch_schemas::shard::ShardId;

use crate::error::{Code, Fault};
use crate::records::LaneId;

/// Tables of which each lane keeps the reason, at most.
const TABLES_MAX: usize = 100;

/// A table that a lane is to read again and could not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadTable {
    pub shard: ShardId,
    /// `database.table`; `None` = only the shard id is known.
    pub table: Option<String>,
    pub code: Code,
    /// The fault as one line, with its remedy.
    pub fault: String,
}

type UnreadByLane = BTreeMap<LaneId, BTreeMap<ShardId, UnreadTable>>;

/// Unread tables of all lanes of one source in one process.
#[derive(Debug, Default)]
pub(super) struct UnreadTables(Mutex<UnreadByLane>);

impl UnreadTables {
    pub(super) fn of_lanes(&self) -> Vec<(LaneId, Vec<UnreadTable>)> {
        let all = self.lock();
        all.iter().map(|(lane, tables)| (lane.clone(), tables.values().cloned().collect())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, UnreadByLane> {
        // No code under this lock leaves it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Unread tables of one lane. They are forgotten with its attempt: the process that runs the lane next may be another
/// one.
#[derive(Debug)]
pub(super) struct UnreadOfLane<'a> {
    all: &'a UnreadTables,
    lane: &'a LaneId,
}

impl<'a> UnreadOfLane<'a> {
    pub(super) fn new(all: &'a UnreadTables, lane: &'a LaneId) -> Self {
        Self { all, lane }
    }

    /// Notes why a table could not be read.
    pub(super) fn note(&self, shard: ShardId, table: Option<String>, fault: &Fault) {
        let unread = UnreadTable { shard, table, code: fault.code(), fault: fault.to_string() };
        let mut all = self.all.lock();
        let of_lane = all.entry(self.lane.clone()).or_default();
        if of_lane.len() < TABLES_MAX || of_lane.contains_key(&shard) {
            of_lane.insert(shard, unread);
        }
    }

    /// Notes that rows of a table were read.
    pub(super) fn was_read(&self, shard: ShardId) {
        if let Some(of_lane) = self.all.lock().get_mut(self.lane) {
            of_lane.remove(&shard);
        }
    }
}

impl Drop for UnreadOfLane<'_> {
    fn drop(&mut self) {
        self.all.lock().remove(self.lane);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_keeps_some_reasons_until_the_table_is_read_or_its_attempt_ends() {
        let id = LaneId { projection: "p".into(), target: "t".into(), source: "s".into(), lane: 0 };
        let shard = |number| ShardId::from_u64(number).expect("it is small");
        let fault = |code| Fault::new(code, "table d.t", "it does not fit");
        let all = UnreadTables::default();
        let lane = UnreadOfLane::new(&all, &id);
        for number in 0..TABLES_MAX as u64 + 7 {
            lane.note(shard(number), Some("d.t".to_owned()), &fault(Code::SourceColumnMissing));
        }
        lane.note(shard(3), None, &fault(Code::SourceTableMissing));
        let of_lane = || all.of_lanes().into_iter().flat_map(|(_, tables)| tables).collect::<Vec<_>>();
        assert_eq!(of_lane().len(), TABLES_MAX);
        let newest = &of_lane()[3];
        assert_eq!((newest.code, newest.table.as_deref()), (Code::SourceTableMissing, None));
        assert!(newest.fault.contains("[source-table-missing] table d.t"), "{}", newest.fault);
        lane.was_read(shard(3));
        assert_eq!(of_lane().len(), TABLES_MAX - 1);
        drop(lane);
        assert!(all.of_lanes().is_empty());
    }
}
