//! Positions in a source's binlog, and the only code that compares them.
//!
//! An [`Lsn`] orders the events of *one* source; no code compares the Lsn of two sources. It is also the version of
//! every derived row that a source claims. A [`ResumePoint`] says where reading resumes: at the start of a group
//! (transaction), which may lie below the position up to which changes were already sent.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

const EPOCH_BITS: u32 = 11;
const FILE_BITS: u32 = 20;
const SLOT_BITS: u32 = 32;
/// Bytes of a slot: an event is at least 19 bytes long, so no two events end in the same slot.
const SLOT_BYTES: u64 = 16;

/// The epoch of a source's first server; each fail-over begins the next one.
pub const FIRST_EPOCH: u16 = 1;

/// Log sequence number: epoch (11 bits), binlog file number (20), end position of the outer event ÷ 16 (32).
///
/// It has 63 bits, so it fits a signed BIGINT. All rows of one event, and all inner events of a compressed transaction,
/// share one Lsn; among them the order in the log decides.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lsn(u64);

/// A part of an Lsn does not fit its bits.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{part} {value} does not fit an Lsn (at most {limit})")]
pub struct LsnOutOfRange {
    pub part: &'static str,
    pub value: u64,
    pub limit: u64,
}

impl Lsn {
    /// The position below every position of every source.
    pub const ZERO: Lsn = Lsn(0);
    /// The position above every position of every source.
    pub const MAX: Lsn = Lsn(i64::MAX as u64);

    /// Builds an Lsn; `end_position` is the end of the event in its file, unwrapped beyond 4 GiB.
    pub fn new(epoch: u16, file_number: u32, end_position: u64) -> Result<Self, LsnOutOfRange> {
        let epoch = bounded("epoch", u64::from(epoch), EPOCH_BITS)?;
        let file = bounded("binlog file number", u64::from(file_number), FILE_BITS)?;
        let slot = bounded("binlog position / 16", end_position / SLOT_BYTES, SLOT_BITS)?;
        Ok(Self(epoch << (FILE_BITS + SLOT_BITS) | file << SLOT_BITS | slot))
    }

    /// Returns the lowest position of an epoch: below each event of its server, and above all earlier epochs.
    pub fn lowest(epoch: u16) -> Result<Self, LsnOutOfRange> {
        Self::new(epoch, 0, 0)
    }

    /// Whether it is the lowest position of its epoch, at which no event ends.
    pub fn is_lowest(self) -> bool {
        Self::lowest(self.epoch()) == Ok(self)
    }

    /// Returns the same file and offset in another epoch, for a caller that knows the epoch of its server.
    pub fn in_epoch(self, epoch: u16) -> Result<Self, LsnOutOfRange> {
        Self::new(epoch, self.file_number(), self.position())
    }

    pub fn epoch(self) -> u16 {
        (self.0 >> (FILE_BITS + SLOT_BITS)) as u16
    }

    pub fn file_number(self) -> u32 {
        ((self.0 >> SLOT_BITS) & ((1 << FILE_BITS) - 1)) as u32
    }

    /// Returns the end position of the event, rounded down to a multiple of 16 bytes.
    pub fn position(self) -> u64 {
        (self.0 & ((1 << SLOT_BITS) - 1)) * SLOT_BYTES
    }

    /// Returns the number for a version column.
    pub fn as_u64(self) -> u64 {
        self.0
    }

    /// Reads the number of a version column; refuses a value beyond 63 bits.
    pub fn from_u64(value: u64) -> Result<Self, LsnOutOfRange> {
        bounded("lsn", value, EPOCH_BITS + FILE_BITS + SLOT_BITS).map(Self)
    }
}

fn bounded(part: &'static str, value: u64, bits: u32) -> Result<u64, LsnOutOfRange> {
    let limit = (1 << bits) - 1;
    if value > limit { Err(LsnOutOfRange { part, value, limit }) } else { Ok(value) }
}

/// Writes `epoch:file:position`, for example `1:42:8192`.
impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.epoch(), self.file_number(), self.position())
    }
}

/// The text is not an Lsn.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("`{0}` is not an Lsn; expected epoch:file:position, such as 1:42:8192")]
pub struct InvalidLsn(pub String);

impl FromStr for Lsn {
    type Err = InvalidLsn;

    fn from_str(text: &str) -> Result<Self, InvalidLsn> {
        let invalid = || InvalidLsn(text.to_owned());
        let mut parts = text.split(':');
        let mut next = || parts.next().and_then(|part| part.parse::<u64>().ok()).ok_or_else(invalid);
        let (epoch, file, position) = (next()?, next()?, next()?);
        if parts.next().is_some() {
            return Err(invalid());
        }
        let epoch = u16::try_from(epoch).map_err(|_| invalid())?;
        let file = u32::try_from(file).map_err(|_| invalid())?;
        Lsn::new(epoch, file, position).map_err(|_| invalid())
    }
}

/// The point where reading a binlog resumes: always the start of a group.
///
/// `gtid_set` holds every transaction before the point and none after it, in the server's own notation (MariaDB
/// `0-1-42,1-2-7`, MySQL `uuid:1-9`).
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ResumePoint {
    pub file: String,
    pub position: u64,
    pub gtid_set: String,
    /// End of the whole groups that were read; `None` = they all lie before this point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_end: Option<ReadEnd>,
    /// GTID of a later group of which a part was sent. A server that lacks the group has lost transactions that were
    /// read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<String>,
}

impl ResumePoint {
    /// Returns the GTIDs of every whole group that was read.
    pub fn read_gtids(&self) -> &str {
        self.read_end.as_ref().map_or(&self.gtid_set, |end| &end.gtid_set)
    }
}

/// The end of the whole groups that were read, if it is after the resume point: an undecided XA branch holds that point
/// back.
///
/// A server that lacks a group before this end has lost transactions that were read, even if it has all of those before
/// the resume point.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReadEnd {
    /// The number of a binlog file of the resume point's server.
    pub file_number: u32,
    pub position: u64,
    /// GTIDs of every group before the end, in the server's own notation.
    pub gtid_set: String,
}

/// Writes `7:4096:0-1-50`: file number, position and GTID set, without blanks.
impl fmt::Display for ReadEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:", self.file_number, self.position)?;
        self.gtid_set.split_whitespace().try_for_each(|part| f.write_str(part))
    }
}

/// The text is no read end.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("expected file number, position and GTID set, such as 7:4096:0-1-50")]
pub struct InvalidReadEnd;

impl FromStr for ReadEnd {
    type Err = InvalidReadEnd;

    fn from_str(text: &str) -> Result<Self, InvalidReadEnd> {
        let mut parts = text.splitn(3, ':');
        let mut next = || parts.next().ok_or(InvalidReadEnd);
        let (file_number, position, gtid_set) = (next()?, next()?, next()?);
        if gtid_set.contains(char::is_whitespace) {
            return Err(InvalidReadEnd);
        }
        Ok(Self {
            file_number: file_number.parse().map_err(|_| InvalidReadEnd)?,
            position: position.parse().map_err(|_| InvalidReadEnd)?,
            gtid_set: gtid_set.to_owned(),
        })
    }
}

/// The binlog file name has no number after its last dot.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("`{0}` is not a binlog file name; expected a number after the last dot, such as binlog.000042")]
pub struct InvalidBinlogName(pub String);

/// Returns the number after the last dot of a binlog file name: 42 of `binlog.000042`.
pub fn binlog_file_number(file: &str) -> Result<u32, InvalidBinlogName> {
    file.rsplit_once('.')
        .and_then(|(_, number)| number.parse().ok())
        .ok_or_else(|| InvalidBinlogName(file.to_owned()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_lsn_at_each_limit_fits_63_bits() {
        let top = Lsn::new(2047, 1_048_575, u64::from(u32::MAX) * 16 + 15).unwrap();
        assert_eq!(top.as_u64(), (1 << 63) - 1);
        assert_eq!(Lsn::new(2048, 0, 0).unwrap_err().part, "epoch");
        assert_eq!(Lsn::new(0, 1_048_576, 0).unwrap_err().part, "binlog file number");
        assert_eq!(Lsn::new(0, 0, (u64::from(u32::MAX) + 1) * 16).unwrap_err().part, "binlog position / 16");
        assert!(Lsn::from_u64(1 << 63).is_err());
    }

    #[test]
    fn the_lowest_position_of_an_epoch_lies_between_the_events_of_two_epochs() {
        let (lowest, event) = (Lsn::lowest(2).unwrap(), Lsn::new(2, 0, 19).unwrap());
        assert!(Lsn::new(1, 1_048_575, u64::from(u32::MAX) * 16).unwrap() < lowest && lowest < event);
        assert!(lowest.is_lowest() && Lsn::ZERO.is_lowest() && !event.is_lowest());
    }

    #[test]
    fn file_numbers_come_from_behind_the_last_dot() {
        assert_eq!(binlog_file_number("binlog.000042"), Ok(42));
        assert_eq!(binlog_file_number("db-1.bin.1234567"), Ok(1_234_567));
        assert!(binlog_file_number("binlog").is_err());
        assert!(binlog_file_number("binlog.index").is_err());
    }

    #[test]
    fn the_end_of_what_was_read_is_read_back() {
        for gtid_set in ["0-1-50,1-7-2", "", "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:tag:1"] {
            let end = ReadEnd { file_number: 7, position: 1 << 33, gtid_set: gtid_set.to_owned() };
            assert_eq!(end.to_string().parse(), Ok(end));
        }
        let lines = ReadEnd { file_number: 1, position: 4, gtid_set: "a:1-2,\nb:3".to_owned() };
        assert_eq!(lines.to_string(), "1:4:a:1-2,b:3");
        for text in ["", "7", "7:4", "x:4:0-1-2", "7:-4:0-1-2", "7:4:0-1-2, 1-1-3"] {
            assert_eq!(text.parse::<ReadEnd>(), Err(InvalidReadEnd), "{text}");
        }
    }

    #[test]
    fn a_resume_point_between_groups_that_lies_before_no_branch_is_written_as_before() {
        let point = ResumePoint { file: "binlog.000007".into(), position: 4, ..ResumePoint::default() };
        let text = serde_json::to_string(&point).unwrap();
        assert_eq!(text, r#"{"file":"binlog.000007","position":4,"gtid_set":""}"#);
        assert_eq!(serde_json::from_str::<ResumePoint>(&text).unwrap(), point);
    }

    proptest! {
        #[test]
        fn order_is_epoch_then_file_then_position(a in parts(), b in parts()) {
            let (x, y) = (Lsn::new(a.0, a.1, a.2).unwrap(), Lsn::new(b.0, b.1, b.2).unwrap());
            prop_assert_eq!(x.cmp(&y), (a.0, a.1, a.2 / 16).cmp(&(b.0, b.1, b.2 / 16)));
        }

        #[test]
        fn text_and_number_round_trip((epoch, file, position) in parts()) {
            let lsn = Lsn::new(epoch, file, position).unwrap();
            prop_assert_eq!(lsn.to_string().parse::<Lsn>(), Ok(lsn));
            prop_assert_eq!(Lsn::from_u64(lsn.as_u64()), Ok(lsn));
        }

        #[test]
        fn any_text_is_read_or_refused_without_panic(text in ".*") {
            let _ = text.parse::<Lsn>();
            let _ = binlog_file_number(&text);
        }
    }

    fn parts() -> impl Strategy<Value = (u16, u32, u64)> {
        (0..2048u16, 0..1_048_576u32, 0..(u64::from(u32::MAX) * 16))
    }
}
