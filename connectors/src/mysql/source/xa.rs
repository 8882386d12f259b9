//! XA branches that were prepared and are not decided yet.
//!
//! A branch's rows stand in the binlog in the group that prepares it; `XA COMMIT` or `XA ROLLBACK` is a later group,
//! possibly days later. Until then the branch is kept here, and reading resumes before the oldest one.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use anabranch_schemas::lsn::ResumePoint;

use super::wire::{Malformed, Reader};
use super::withheld::Withheld;

/// The global and the branch part have at most 64 bytes each.
const PART_BYTES_MAX: usize = 64;

/// Name of a branch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Xid {
    format: u32,
    global: Vec<u8>,
    branch: Vec<u8>,
}

impl Xid {
    /// As both servers write it into a statement: `X'61',X'',1`.
    pub fn from_sql(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?.trim();
        let mut parts = text.split(',').map(str::trim);
        let (global, branch, format) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        // A signed number on one server and unsigned on the other.
        let format = format.parse::<i64>().ok()? as u32;
        Some(Self { format, global: unhex(global)?, branch: unhex(branch)? })
    }

    /// From the event that prepares a branch, or commits it in one phase.
    pub fn from_prepare(body: &[u8]) -> Result<(Self, bool), Malformed> {
        let mut reader = Reader::new(body);
        let is_one_phase = reader.u8()? != 0;
        let format = reader.little(4)? as u32;
        let (global, branch) = (reader.little(4)? as usize, reader.little(4)? as usize);
        if global > PART_BYTES_MAX || branch > PART_BYTES_MAX {
            return Err(Malformed("the name of an XA branch is too long"));
        }
        let xid =
            Self { format, global: reader.take(global)?.to_vec(), branch: reader.take(branch)?.to_vec() };
        Ok((xid, is_one_phase))
    }
}

impl fmt::Display for Xid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02X}")).collect::<String>();
        write!(f, "X'{}',X'{}',{}", hex(&self.global), hex(&self.branch), self.format)
    }
}

fn unhex(literal: &str) -> Option<Vec<u8>> {
    let digits = literal.strip_prefix(['X', 'x'])?.strip_prefix('\'')?.strip_suffix('\'')?;
    if digits.len() % 2 != 0 || digits.len() > 2 * PART_BYTES_MAX || !digits.is_ascii() {
        return None;
    }
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).ok()).collect()
}

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
    /// `begins`: the start of the branch's group. The rows must be encoded.
    pub fn prepare(&mut self, xid: Xid, begins: ResumePoint, rows: Withheld) {
        // A server has one branch of a name: an older one did not survive there.
        self.decide(&xid);
        self.numbers.insert(xid.clone(), self.next);
        self.by_number.insert(self.next, Branch { xid, begins, rows });
        self.next += 1;
    }

    /// The rows of a branch that is decided; `None` when it was never read.
    pub fn decide(&mut self, xid: &Xid) -> Option<Withheld> {
        let branch = self.by_number.remove(&self.numbers.remove(xid)?)?;
        debug_assert_eq!(branch.xid, *xid);
        Some(branch.rows)
    }

    /// Where the oldest undecided branch begins.
    pub fn oldest(&self) -> Option<&ResumePoint> {
        self.by_number.values().next().map(|branch| &branch.begins)
    }

    pub fn memory_bytes(&self) -> usize {
        self.by_number.values().map(|branch| branch.rows.memory_bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_branch_has_one_name_in_the_event_and_in_the_statement() {
        let body = [0, 7, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0x61, 0x62];
        let (prepared, is_one_phase) = Xid::from_prepare(&body).unwrap();
        assert_eq!(Xid::from_sql(b" X'61',X'62',7").unwrap(), prepared);
        assert_eq!(Xid::from_sql(prepared.to_string().as_bytes()).unwrap(), prepared);
        assert!(!is_one_phase);
        let negative = [1, 255, 255, 255, 255, 1, 0, 0, 0, 0, 0, 0, 0, 0xab];
        let (committed, is_one_phase) = Xid::from_prepare(&negative).unwrap();
        assert_eq!(Xid::from_sql(b"x'Ab',X'',-1").unwrap(), committed);
        assert_eq!(Xid::from_sql(b"X'AB',X'',4294967295").unwrap(), committed);
        assert!(is_one_phase);
    }

    #[test]
    fn other_text_is_no_branch() {
        for text in
            ["", "'a'", "X'6',X'',1", "X'61',X''", "X'61',X'',1 ONE PHASE", "X'zz',X'',1", "X'61',X'',1,2"]
        {
            assert_eq!(Xid::from_sql(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn reading_resumes_before_the_oldest_branch_that_is_undecided() {
        let point =
            |position| ResumePoint { file: "binlog.000001".into(), position, ..ResumePoint::default() };
        let xid = |name: u8| Xid { format: 1, global: vec![name], branch: vec![] };
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

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(body: Vec<u8>) {
            let _ = Xid::from_prepare(&body);
            let _ = Xid::from_sql(&body);
        }
    }
}
