//! The payload of a log message: a batch of changes in commit order.
//!
//! The first byte of a payload is its version. The last four bytes are the CRC-32 (IEEE, little endian) of all bytes
//! before them. A published version is never edited; `golden/` holds bytes of each. A payload has the lowest version
//! that has all of its records, so an older reader meets a newer version only where it could not follow.

mod changes;

use thiserror::Error;

pub use self::changes::{Decoder, Encoder, decode};
use crate::change::{Row, Value};

/// The reason why a payload cannot be read. It never includes the payload's bytes: they may hold personal data.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum CodecError {
    #[error("payload of {length} bytes is shorter than a version and a checksum (5 bytes)")]
    Truncated { length: usize },
    #[error(
        "payload has codec version {found}; this build reads up to version {newest}: upgrade the reader of the log first"
    )]
    UnknownVersion { found: u8, newest: u8 },
    #[error(
        "payload checksum is {found:08x}, computed {computed:08x}: the message was damaged or tampered with"
    )]
    ChecksumMismatch { found: u32, computed: u32 },
    #[error("payload is malformed at byte {offset}: {reason}")]
    Malformed { offset: usize, reason: String },
}

/// Encodes values alone, for callers that store a position in the order of rows. The bytes are no payload: they have no
/// version and no checksum.
pub fn encode_values(values: &[Value<'_>]) -> Vec<u8> {
    postcard::to_extend(values, Vec::new()).expect("a growing buffer takes any values")
}

/// Decodes the bytes of [`encode_values`]; `None` for any others.
pub fn decode_values(bytes: &[u8]) -> Option<Row<'_>> {
    let (values, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(values)
}
