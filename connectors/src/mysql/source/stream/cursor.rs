//! The position of a stream in the binlog: how events move it, and the faults that name it.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::lsn::Lsn;
use mysql_async::binlog::events::BinlogEventHeader;

use crate::mysql::source::decode::events::Class;
use crate::mysql::source::decode::position::{self, FILE_START, Position, PositionError};
use crate::mysql::source::decode::wire::Malformed;

const HEARTBEATS: [u8; 2] = [27, 41];
const ARTIFICIAL: u16 = 0x20;

/// The position of the event that was taken last.
#[derive(Debug)]
pub struct Cursor {
    source: String,
    position: Position,
    /// File and offset of the first group, until that group arrives.
    start_position: Option<(String, u64)>,
}

/// Position and time of an event; the rows of its group may get both.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    pub lsn: Lsn,
    /// Seconds since 1970.
    pub seconds: u32,
}

impl Cursor {
    pub fn new(source: &str, position: Position, start_position: Option<(String, u64)>) -> Self {
        Self { source: source.to_owned(), position, start_position }
    }

    /// The name of the source that is read.
    pub fn source(&self) -> &str {
        &self.source
    }

    pub fn file(&self) -> &str {
        &self.position.file
    }

    pub fn file_number(&self) -> u32 {
        self.position.file_number
    }

    /// Offset in the file at which the last event ends.
    pub fn end(&self) -> u64 {
        self.position.end
    }

    pub fn advance(&mut self, class: Class, header: &BinlogEventHeader) {
        let log_pos = header.log_pos();
        match class {
            // The server sends these again, with their old positions, when a stream starts in the middle of a file.
            Class::FormatDescription | Class::MariaDbGtidList | Class::MySqlPreviousGtids => {
                self.reach(u64::from(log_pos));
            }
            _ if HEARTBEATS.contains(&header.event_type_raw()) => {}
            _ if is_unplaced(header) => self.position.pass(header.event_size()),
            _ if is_artificial(header) => {}
            _ => {
                // Events at the head of the file come before it, with their own positions.
                if matches!(class, Class::MariaDbGtid | Class::Rotate)
                    && let Some((_, start_position)) = self.start_position.take()
                {
                    self.position.end = start_position;
                }
                self.position.advance(log_pos, header.event_size());
            }
        }
    }

    /// Moves to an offset of the same file, unless it is before the present one.
    pub fn reach(&mut self, end: u64) {
        self.position.end = self.position.end.max(end);
    }

    /// Moves to another file.
    pub fn enter(&mut self, file: String, end: u64) -> Result<(), Fault> {
        self.start_position.take_if(|(name, _)| *name != file);
        self.position = Position::new(self.position.epoch, file, end.max(FILE_START))
            .map_err(|error| self.no_lsn(&error))?;
        Ok(())
    }

    pub fn lsn(&self) -> Result<Lsn, Fault> {
        self.position.lsn().map_err(|error| self.no_lsn(&error))
    }

    /// Returns the position of another offset of the present file.
    pub fn lsn_at(&self, position: u64) -> Result<Lsn, Fault> {
        position::lsn(self.position.epoch, &self.position.file, position).map_err(|error| self.no_lsn(&error))
    }

    fn no_lsn(&self, error: &PositionError) -> Fault {
        self.fault(Code::BinlogEventCorrupt, error.to_string())
            .needs("binlog files with numbers up to 1048575 and positions up to 64 GiB")
    }

    /// Makes a fault at the present position.
    pub fn fault(&self, code: Code, found: impl Into<String>) -> Fault {
        let subject = format!("source {} at {}:{}", self.source, self.position.file, self.position.end);
        Fault::new(code, subject, found)
    }

    pub fn corrupt(&self, found: &str) -> Fault {
        self.fault(Code::BinlogEventCorrupt, found)
    }

    pub fn malformed(&self, error: Malformed) -> Fault {
        self.corrupt(error.0)
    }
}

/// Whether the dump thread made the event, instead of reading it from the file.
pub fn is_artificial(header: &BinlogEventHeader) -> bool {
    header.log_pos() == 0 || header.flags_raw() & ARTIFICIAL != 0
}

/// Whether the event is in the file without its position: MariaDB 11.4 and later write none within a transaction.
fn is_unplaced(header: &BinlogEventHeader) -> bool {
    header.log_pos() == 0 && header.flags_raw() & ARTIFICIAL == 0
}
