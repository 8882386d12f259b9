//! The payload of a log message: a batch of changes in commit order.
//!
//! One module a version; a published version is never edited, `golden/` holds its bytes. The first byte of a payload
//! is its version, the last four its CRC-32 (IEEE, little endian) over everything before them.

pub mod v1;

use thiserror::Error;

use crate::change::{Row, Value};

/// Why a payload cannot be read. The payload's bytes are not part of the error: they may hold personal data.
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

/// Values on their own, for code that keeps a place in the order of rows. Not a payload: no version, no checksum.
pub fn encode_values(values: &[Value<'_>]) -> Vec<u8> {
    postcard::to_extend(values, Vec::new()).expect("a growing buffer takes any values")
}

/// What [`encode_values`] has written; `None` when it has not.
pub fn decode_values(bytes: &[u8]) -> Option<Row<'_>> {
    let (values, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(values)
}
