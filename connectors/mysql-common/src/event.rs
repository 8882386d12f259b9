//! One binlog event: the bytes that came, once, and where its body lies in them.

use std::io;
use std::sync::Arc;

use original::binlog::events::{BinlogEventFooter, BinlogEventHeader, FormatDescriptionEvent};
use original::binlog::{BinlogCtx, BinlogEvent};
use original::io::ParseBuf;

const FORMAT_DESCRIPTION: u8 = 15;
const CHECKSUM_BYTES: usize = BinlogEventFooter::BINLOG_CHECKSUM_LEN;
const CHECKSUM_OFF: u8 = 0;
/// Bytes of an event's size in its header.
const SIZE: std::ops::Range<usize> = 9..13;
/// The first byte of the header's flags has the flag of a file in use, which no checksum counts.
const FLAGS: usize = 17;
const IN_USE: u8 = 1;

/// A raw binlog event. [`Event::data`] has neither header nor checksum.
#[derive(Debug, Clone)]
pub struct Event {
    /// Shared by all events of a file.
    description: Arc<FormatDescriptionEvent<'static>>,
    header: BinlogEventHeader,
    footer: BinlogEventFooter,
    /// Header, body and what stands after it.
    bytes: Box<[u8]>,
    data_end: usize,
    has_checksum: bool,
}

impl Event {
    /// Takes the event at the head of `input` and says how long it is. What it claims beyond `input` is an error.
    pub(crate) fn read(
        description: &Arc<FormatDescriptionEvent<'static>>,
        input: &[u8],
        is_checksummed: bool,
    ) -> io::Result<(Self, usize)> {
        let cut = || io::Error::new(io::ErrorKind::UnexpectedEof, "an event is longer than its packet");
        let head = input.get(..BinlogEventHeader::LEN).ok_or_else(cut)?;
        let size = u32::from_le_bytes(head[SIZE].try_into().map_err(|_| cut())?) as usize;
        let bytes = input.get(..size).ok_or_else(cut)?;
        let data = bytes
            .get(BinlogEventHeader::LEN..)
            .ok_or_else(|| invalid("an event is shorter than its header"))?;
        let header: BinlogEventHeader = ParseBuf(head).parse(())?;
        let is_description = header.event_type_raw() == FORMAT_DESCRIPTION;
        let mut footer = if is_description { read_footer(data)? } else { description.footer() };
        footer.set_checksum_enabled(is_checksummed);
        let algorithm = algorithm(&footer);
        let has_algorithm = is_description && algorithm.is_some();
        // A description always has one; events of a compressed transaction never do.
        let has_checksum =
            is_checksummed && algorithm.is_some_and(|number| is_description || number != CHECKSUM_OFF);
        let after = usize::from(has_algorithm) * BinlogEventFooter::BINLOG_CHECKSUM_ALG_DESC_LEN
            + usize::from(has_checksum) * CHECKSUM_BYTES;
        if data.len() < after {
            return Err(invalid("an event is shorter than its checksum"));
        }
        let event = Self {
            description: Arc::clone(description),
            header,
            footer,
            data_end: size - after,
            has_checksum,
            bytes: bytes.into(),
        };
        Ok((event, size))
    }

    pub fn header(&self) -> BinlogEventHeader {
        self.header
    }

    pub fn footer(&self) -> BinlogEventFooter {
        self.footer
    }

    /// The event's body.
    pub fn data(&self) -> &[u8] {
        &self.bytes[BinlogEventHeader::LEN..self.data_end]
    }

    /// All that came: header, body and what stands after it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The checksum that came with the event.
    pub fn checksum(&self) -> Option<[u8; CHECKSUM_BYTES]> {
        let (_, checksum) = self.bytes.split_last_chunk()?;
        self.has_checksum.then_some(*checksum)
    }

    /// The CRC-32 that the event must have.
    pub fn computed_checksum(&self) -> u32 {
        let after = if self.has_checksum { CHECKSUM_BYTES } else { 0 };
        let covered = &self.bytes[..self.bytes.len() - after];
        if self.header.event_type_raw() != FORMAT_DESCRIPTION {
            return crc32fast::hash(covered);
        }
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&covered[..FLAGS]);
        hasher.update(&[covered[FLAGS] & !IN_USE]);
        hasher.update(&covered[FLAGS + 1..]);
        hasher.finalize()
    }

    /// Reads the body as a structure of the library; all of it must be read.
    pub fn read_event<'a, T: BinlogEvent<'a>>(&'a self) -> io::Result<T> {
        let mut data = ParseBuf(self.data());
        let context = BinlogCtx::new(self.data_end, &self.description, self.header.event_type_raw());
        let event = data.parse(context)?;
        if data.is_empty() { Ok(event) } else { Err(invalid("an event has bytes after its end")) }
    }
}

/// The number of the algorithm of checksums, if the server knows any.
fn algorithm(footer: &BinlogEventFooter) -> Option<u8> {
    match footer.get_checksum_alg() {
        Ok(algorithm) => algorithm.map(|algorithm| algorithm as u8),
        Err(unknown) => Some(unknown.0),
    }
}

/// The original subtracts without looking at the length.
fn read_footer(data: &[u8]) -> io::Result<BinlogEventFooter> {
    if data.len() < BinlogEventFooter::BINLOG_CHECKSUM_ALG_DESC_LEN + CHECKSUM_BYTES {
        return Err(invalid("a description of the format is too short"));
    }
    BinlogEventFooter::read(data)
}

fn invalid(found: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, found)
}
