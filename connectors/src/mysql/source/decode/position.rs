//! A position in the binlog: file, unwrapped offset, and the `Lsn` of both.
//!
//! An event's header has four bytes for its end position, so it wraps in files beyond 4 GiB; the true one follows from
//! the event before. The caller gives the epoch.

use anabranch_schemas::lsn::{InvalidBinlogName, Lsn, LsnOutOfRange, binlog_file_number};
use thiserror::Error;

/// Offset of a file's first event: a binlog file begins with four magic bytes.
pub const FILE_START: u64 = 4;

/// The reason why a position has no `Lsn`.
#[derive(Debug, Error)]
pub enum PositionError {
    #[error(transparent)]
    Name(#[from] InvalidBinlogName),
    #[error(transparent)]
    Range(#[from] LsnOutOfRange),
}

/// Returns the `Lsn` of an offset in a binlog file.
pub fn lsn(epoch: u16, file: &str, position: u64) -> Result<Lsn, PositionError> {
    Ok(Lsn::new(epoch, binlog_file_number(file)?, position)?)
}

/// A position in the binlog that moves forward.
#[derive(Debug, Clone)]
pub struct Position {
    pub epoch: u16,
    pub file: String,
    pub file_number: u32,
    /// End of the last event that had a position.
    pub end: u64,
    /// Bytes of the later events without a position: the true end is at least so far after `end`.
    unplaced_bytes: u64,
}

impl Position {
    pub fn new(epoch: u16, file: String, end: u64) -> Result<Self, PositionError> {
        let file_number = binlog_file_number(&file)?;
        Ok(Self { epoch, file, file_number, end, unplaced_bytes: 0 })
    }

    /// Moves to the end of an event of `size` bytes; `log_pos` has only the lower four bytes of the end.
    pub fn advance(&mut self, log_pos: u32, size: u32) {
        const WRAP: u64 = 1 << 32;
        let at_least = self.end + std::mem::take(&mut self.unplaced_bytes) + u64::from(size);
        let mut end = at_least & !(WRAP - 1) | u64::from(log_pos);
        if end < at_least {
            end += WRAP;
        }
        self.end = end;
    }

    /// Counts an event of `size` bytes without a position. It does not move: events that are not sent may be in
    /// between.
    pub fn pass(&mut self, size: u32) {
        self.unplaced_bytes += u64::from(size);
    }

    pub fn lsn(&self) -> Result<Lsn, PositionError> {
        Ok(Lsn::new(self.epoch, self.file_number, self.end)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_unwrap_beyond_four_gibibytes() {
        let mut position = Position::new(1, "binlog.000007".to_owned(), FILE_START).unwrap();
        position.advance(256, 252);
        assert_eq!(position.end, 256);
        // Events that are not sent leave gaps.
        position.advance(u32::MAX - 9, 100);
        assert_eq!(position.end, u64::from(u32::MAX) - 9);
        position.advance(90, 100);
        assert_eq!(position.end, (1 << 32) + 90);
        position.advance(190, 100);
        assert_eq!(position.end, (1 << 32) + 190);
        assert_eq!(position.lsn().unwrap().to_string(), "1:7:4294967472");
        position.advance(100, 1 << 30);
        assert_eq!(position.end, (2 << 32) + 100);
    }

    #[test]
    fn a_group_beyond_four_gibibytes_whose_events_have_no_positions_keeps_their_count() {
        let mut position = Position::new(1, "binlog.000007".to_owned(), FILE_START).unwrap();
        position.advance(256, 42);
        for _ in 0..9 {
            position.pass(1 << 30);
        }
        assert_eq!(position.end, 256, "an event without a position has that of the one before");
        // Nine GiB, and other events that were not sent.
        position.advance((1 << 30) + 5000, 31);
        assert_eq!(position.end, (9 << 30) + 5000);
        position.advance((1 << 30) + 5100, 100);
        assert_eq!(position.end, (9 << 30) + 5100, "they count once");
    }
}
