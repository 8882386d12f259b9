//! The bytes of a cache entry: a complete set of claims.
//!
//! `1` (version), then for each claim: shard id (8 bytes, big endian), kind (1), length of the uuid (1), uuid; at the
//! end the CRC-32 (IEEE) of all before it, big endian. An entry that reads differently is no entry.

use anabranch_schemas::serial::{CodeKind, UUID_BYTES_MAX};
use anabranch_schemas::shard::ShardId;
use thiserror::Error;

use crate::records::{Claims, DeviceClaim};

const VERSION: u8 = 1;

/// The reason why bytes are no entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum EntryDefect {
    #[error("version {0} of the cache's entries is not known")]
    UnknownVersion(u8),
    #[error("a checksum that does not fit")]
    ChecksumMismatch,
    #[error("not an entry")]
    Malformed,
}

/// Encodes a complete set as an entry.
pub fn encode(claims: &[DeviceClaim]) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    for claim in claims {
        let length = u8::try_from(claim.uuid.len()).expect("a uuid is at most 64 bytes long");
        bytes.extend_from_slice(&claim.shard.as_u64().to_be_bytes());
        bytes.extend_from_slice(&[claim.kind.number(), length]);
        bytes.extend_from_slice(&claim.uuid);
    }
    let checksum = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&checksum.to_be_bytes());
    bytes
}

/// Decodes the set of an entry.
pub fn decode(bytes: &[u8]) -> Result<Vec<DeviceClaim>, EntryDefect> {
    Ok(decode_some(bytes, usize::MAX)?.claims)
}

/// Decodes the first `limit` claims of an entry; it checks the checksum of the whole entry.
pub fn decode_some(bytes: &[u8], limit: usize) -> Result<Claims, EntryDefect> {
    let (body, checksum) = bytes.split_last_chunk::<4>().ok_or(EntryDefect::Malformed)?;
    if crc32fast::hash(body) != u32::from_be_bytes(*checksum) {
        return Err(EntryDefect::ChecksumMismatch);
    }
    let mut rest = match body {
        [VERSION, rest @ ..] => rest,
        [version, ..] => return Err(EntryDefect::UnknownVersion(*version)),
        [] => return Err(EntryDefect::Malformed),
    };
    let mut claims = Vec::new();
    while !rest.is_empty() && claims.len() < limit {
        let (claim, tail) = claim(rest).ok_or(EntryDefect::Malformed)?;
        claims.push(claim);
        rest = tail;
    }
    Ok(Claims { claims, is_cut: !rest.is_empty() })
}

fn claim(bytes: &[u8]) -> Option<(DeviceClaim, &[u8])> {
    let (shard, rest) = bytes.split_first_chunk::<8>()?;
    let ([kind, length], rest) = rest.split_first_chunk::<2>()?;
    let (uuid, rest) = rest.split_at_checked(usize::from(*length))?;
    let claim = DeviceClaim {
        shard: ShardId::from_u64(u64::from_be_bytes(*shard))?,
        uuid: Some(uuid).filter(|uuid| !uuid.is_empty() && uuid.len() <= UUID_BYTES_MAX)?.into(),
        kind: CodeKind::from_number(*kind)?,
    };
    Some((claim, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_claim() -> impl Strategy<Value = DeviceClaim> {
        (any::<u64>(), 1..=5u8, prop::collection::vec(any::<u8>(), 1..=UUID_BYTES_MAX)).prop_map(
            |(shard, kind, uuid)| DeviceClaim {
                shard: ShardId::from_u64(shard >> 1).unwrap(),
                uuid: uuid.into(),
                kind: CodeKind::from_number(kind).unwrap(),
            },
        )
    }

    #[test]
    fn the_bytes_are_as_documented() {
        let claim = DeviceClaim {
            shard: ShardId::from_u64(258).unwrap(),
            uuid: b"7".as_slice().into(),
            kind: CodeKind::BoxNo,
        };
        let bytes = encode(&[claim]);
        assert_eq!(bytes[..12], [1, 0, 0, 0, 0, 0, 0, 1, 2, 4, 1, b'7']);
        assert_eq!(bytes[12..], crc32fast::hash(&bytes[..12]).to_be_bytes());
    }

    #[test]
    fn what_is_no_entry_is_told() {
        let mut newer = vec![2];
        newer.extend_from_slice(&crc32fast::hash(&newer).to_be_bytes());
        assert_eq!(decode(&newer), Err(EntryDefect::UnknownVersion(2)));
        assert_eq!(decode(b"abc"), Err(EntryDefect::Malformed));
        assert_eq!(decode(&crc32fast::hash(b"").to_be_bytes()), Err(EntryDefect::Malformed));
        assert_eq!(decode(&[]), Err(EntryDefect::Malformed));
    }

    proptest! {
        #[test]
        fn a_set_is_read_as_it_was_written(claims in prop::collection::vec(any_claim(), 0..20)) {
            prop_assert_eq!(decode(&encode(&claims)), Ok(claims));
        }

        #[test]
        fn the_beginning_of_a_set_says_whether_there_are_more(
            claims in prop::collection::vec(any_claim(), 0..20),
            limit in 0..25usize,
        ) {
            let begin = claims.iter().take(limit).cloned().collect();
            let expected = Claims { claims: begin, is_cut: claims.len() > limit };
            prop_assert_eq!(decode_some(&encode(&claims), limit), Ok(expected));
        }

        #[test]
        fn no_part_of_an_entry_is_one(claims in prop::collection::vec(any_claim(), 1..5), cut in 1..40usize) {
            let bytes = encode(&claims);
            prop_assert!(decode(&bytes[..bytes.len().saturating_sub(cut)]).is_err());
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = decode(&bytes);
        }
    }
}
