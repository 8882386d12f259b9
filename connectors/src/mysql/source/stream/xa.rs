//! XA branches that are prepared and undecided.
//!
//! The binlog has a branch's rows in the group that prepares it; `XA COMMIT` or `XA ROLLBACK` is a later group,
//! possibly days later. Until then the branch is kept here, and the resume point stays before the oldest one.

use std::collections::{BTreeMap, HashMap};

use anabranch_schemas::lsn::ResumePoint;

use super::withheld::Withheld;
use crate::mysql::source::decode::xid::Xid;

#[derive(Debug)]
struct Branch {
    xid: Xid,
    begins: ResumePoint,
    rows: Withheld,
}

/// All undecided branches, in the order in which they were prepared.
#[derive(Debug, Default)]
pub struct Branches {
    by_number: BTreeMap<u64, Branch>,
    numbers: HashMap<Xid, u64>,
    next: u64,
}

impl Branches {
    /// Keeps a branch, whose group begins at `begins`. The rows must be encoded.
    pub fn prepare(&mut self, xid: Xid, begins: ResumePoint, rows: Withheld) {
        // A server has one branch of a name: an older one does not exist there any more.
        self.decide(&xid);
        self.numbers.insert(xid.clone(), self.next);
        self.by_number.insert(self.next, Branch { xid, begins, rows });
        self.next += 1;
    }

    /// Removes a decided branch and returns its rows; `None` if its rows were not read.
    pub fn decide(&mut self, xid: &Xid) -> Option<Withheld> {
        let branch = self.by_number.remove(&self.numbers.remove(xid)?)?;
        debug_assert_eq!(branch.xid, *xid);
        Some(branch.rows)
    }

    /// Returns the start of the oldest undecided branch.
    pub fn oldest(&self) -> Option<&ResumePoint> {
        self.by_number.values().next().map(|branch| &branch.begins)
    }

    pub fn memory_bytes(&self) -> usize {
        self.by_number.values().map(|branch| branch.rows.memory_bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_resumes_before_the_oldest_branch_that_is_undecided() {
        let point =
            |position| ResumePoint { file: "binlog.000001".into(), position, ..ResumePoint::default() };
        let xid = |name: u8| Xid::from_sql(format!("X'{name:02X}',X'',1").as_bytes()).unwrap();
        let mut branches = Branches::default();
        for name in 1..=3 {
            branches.prepare(xid(name), point(u64::from(name) * 100), Withheld::default());
        }
        assert!(branches.decide(&xid(2)).is_some());
        assert_eq!(branches.oldest(), Some(&point(100)));
        assert!(branches.decide(&xid(1)).is_some());
        assert_eq!(branches.oldest(), Some(&point(300)));
        branches.prepare(xid(3), point(400), Withheld::default());
        assert_eq!(branches.oldest(), Some(&point(400)));
        assert!(branches.decide(&xid(1)).is_none());
        assert!(branches.decide(&xid(3)).is_some());
        assert_eq!(branches.oldest(), None);
    }
}
