//! The name of an XA branch. The event that prepares the branch carries it, and so do the statements `XA COMMIT` and
//! `XA ROLLBACK`. The XID event of the binlog is something else: it commits a transaction without XA.

use std::fmt;

use super::wire::{Malformed, Reader};

/// Limit of each part of a name: `gtrid` has at most 64 bytes, and so has `bqual`.
const PART_BYTES_MAX: usize = 64;

/// The name of an XA branch: `formatID`, `gtrid` (global) and `bqual` (branch).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Xid {
    format: u32,
    global: Vec<u8>,
    branch: Vec<u8>,
}

impl Xid {
    /// Parses the form that MySQL and MariaDB write into a logged statement: `X'61',X'',1`.
    pub fn from_sql(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?.trim();
        let mut parts = text.split(',').map(str::trim);
        let (global, branch, format) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        // One server prints a signed number, the other an unsigned one.
        let format = format.parse::<i64>().ok()? as u32;
        Some(Self { format, global: unhex(global)?, branch: unhex(branch)? })
    }

    /// Reads the event that prepares a branch. The flag is true if the event commits the branch in one phase instead.
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

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(body: Vec<u8>) {
            let _ = Xid::from_prepare(&body);
            let _ = Xid::from_sql(&body);
        }
    }
}
