//! MariaDB's compressed events (`log_bin_compress`): a header with the length, then a zlib stream.
//!
//! `inflate` checks the claimed length before it allocates, and the stream must yield exactly that many bytes.

use std::io::Read as _;

use flate2::read::ZlibDecoder;

use super::wire::{Malformed, Reader, big};

/// Bytes of the largest event that the protocol allows.
pub const EVENT_BYTES_MAX: usize = 1 << 30;
/// Bytes that a claimed length alone makes `inflate` allocate, at most: the rest is allocated as bytes come.
const FIRST_BYTES: usize = 1 << 20;

const COMPRESSED: u8 = 0x80;
const ALGORITHM: u8 = 0x70;
const LENGTH_BYTES: u8 = 0x07;

/// Inflates the bytes after the uncompressed start of a compressed event.
pub fn inflate(bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut reader = Reader::new(bytes);
    let head = reader.u8()?;
    if head & COMPRESSED == 0 || head & ALGORITHM != 0 {
        return Err(Malformed("a compression that this build does not know"));
    }
    let length_bytes = usize::from(head & LENGTH_BYTES);
    if !(1..=4).contains(&length_bytes) {
        return Err(Malformed("impossible length of a compressed event's length"));
    }
    let length = big(reader.take(length_bytes)?) as usize;
    if length > EVENT_BYTES_MAX {
        return Err(Malformed("a compressed event that claims more than 1 GiB"));
    }
    let mut inflated = Vec::with_capacity(length.min(FIRST_BYTES));
    let mut stream = ZlibDecoder::new(reader.rest()).take(length as u64 + 1);
    stream.read_to_end(&mut inflated).map_err(|_| Malformed("a compressed event does not inflate"))?;
    if inflated.len() != length {
        return Err(Malformed("a compressed event is not as long as it claims"));
    }
    Ok(inflated)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;

    use super::*;

    fn compressed(claimed: u32, content: &[u8]) -> Vec<u8> {
        let mut bytes = vec![COMPRESSED | 4];
        bytes.extend(claimed.to_be_bytes());
        let mut encoder = ZlibEncoder::new(bytes, Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn content_comes_back() {
        let content = b"rows rows rows".repeat(1000);
        assert_eq!(inflate(&compressed(14_000, &content)).unwrap(), content);
    }

    #[test]
    fn a_false_length_is_refused() {
        let content = vec![0; 10_000];
        for claimed in [0, 9_999, 10_001, u32::MAX] {
            assert!(inflate(&compressed(claimed, &content)).is_err(), "{claimed}");
        }
        let bytes = compressed(10_000, &content);
        for length in 0..bytes.len() - 4 {
            assert!(inflate(&bytes[..length]).is_err(), "cut at {length}");
        }
        assert!(inflate(&[0x84, 0, 0, 0, 1]).is_err());
        assert!(inflate(&[0x94, 0, 0, 0, 1, 0]).is_err());
    }
}
