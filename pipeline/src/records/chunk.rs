//! Rows of a source's table as they are at one moment, and how its reading goes on.

use anabranch_schemas::envelope::ServerIdentity;
use anabranch_schemas::lsn::Lsn;
use bytes::Bytes;

/// A place in the order of a table's primary key, in the notation of the connector that gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkKey(pub Box<[u8]>);

/// Rows of one table that follow one another in the order of its primary key, as they were at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// The rows hold every change up to here: the low watermark.
    pub low: Lsn,
    /// The rows hold no change above here: the high watermark. It equals the low one where the server says at which
    /// place of its binlog a snapshot stands; else nobody knows which of the changes between them the rows hold.
    pub high: Lsn,
    /// The server whose positions these are.
    pub server: ServerIdentity,
    /// Each row as an insert at the watermark, in the form of a message's payload.
    pub payload: Bytes,
    pub rows: u64,
    /// After the last row, when more may follow.
    pub next: Option<ChunkKey>,
}
