//! Rows of a source's table as they were at one moment, and the key at which the next chunk begins.

use anabranch_schemas::envelope::ServerIdentity;
use anabranch_schemas::lsn::Lsn;
use bytes::Bytes;

/// A key in the order of a table's primary key, in the notation of the connector that returned it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanCursor(pub Box<[u8]>);

/// Rows of one table that follow one another in the order of its primary key, as they were at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// The low watermark: the rows hold every change up to here.
    pub low: Lsn,
    /// The high watermark: the rows hold no change above here. It equals the low one if the server reports the binlog
    /// position of a snapshot; otherwise it is unknown which changes between the two the rows hold.
    pub high: Lsn,
    /// The server to which these positions belong.
    pub server: ServerIdentity,
    /// Each row as an insert at the low watermark, in the format of a message's payload.
    pub payload: Bytes,
    pub rows: u64,
    /// Key of the last row, when more rows may follow.
    pub next: Option<ScanCursor>,
}
