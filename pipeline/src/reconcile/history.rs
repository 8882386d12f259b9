//! The chain of past nights: each is signed over the one before it, so none can be changed, taken away or put between
//! without the key, except the newest ones taken away together, which their ids in other places would show.
//!
//! Signed with HMAC-SHA-256 (RFC 2104) over length-prefixed parts; without a key the same with an empty one, which
//! shows accidents and no intent.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::SourceKey;
use super::foreign::shard_text;
use super::scan::SourceTable;
use crate::config::Secret;
use crate::records::{Cell, Outcome, PastNight};

/// What a look at a past night and the one before it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seal {
    Whole,
    /// It is not what was signed, or was signed by another key.
    Broken,
    /// The one before it is another than when it was signed, or is gone.
    Unlinked,
}

impl Seal {
    /// Of a night, beside the one that stands before it.
    pub fn of(night: &PastNight, before: Option<&PastNight>, key: Option<&Secret>) -> Self {
        if sign(night, key) != night.signature {
            return Self::Broken;
        }
        let is_linked = match before {
            Some(before) => before.number + 1 == night.number && before.signature == night.previous,
            None => night.number == 1 && night.previous.is_empty(),
        };
        if is_linked { Self::Whole } else { Self::Unlinked }
    }
}

/// The night that follows `before`.
pub fn seal(
    before: Option<&PastNight>,
    (id, ended_at_ms, verdict): (&str, u64, Outcome),
    report: String,
    key: Option<&Secret>,
) -> PastNight {
    let mut night = PastNight {
        number: before.map_or(1, |before| before.number + 1),
        id: id.to_owned(),
        ended_at_ms,
        verdict,
        report,
        previous: before.map_or(String::new(), |before| before.signature.clone()),
        signature: String::new(),
    };
    night.signature = sign(&night, key);
    night
}

fn sign(night: &PastNight, key: Option<&Secret>) -> String {
    let number = night.number.to_string();
    let ended = night.ended_at_ms.to_string();
    let parts = [
        number.as_bytes(),
        night.id.as_bytes(),
        ended.as_bytes(),
        night.verdict.name().as_bytes(),
        night.previous.as_bytes(),
        night.report.as_bytes(),
    ];
    hex(&mac(key, parts))
}

/// What a report shows instead of a key: the same every night, and nobody's without the key.
pub fn hash_key(table: &SourceTable, row: &SourceKey, key: Option<&Secret>) -> String {
    let number;
    let of_row: &[u8] = match &row.key {
        Cell::Bytes(bytes) => bytes,
        Cell::UInt(value) => {
            number = value.to_string();
            number.as_bytes()
        }
        Cell::Int(value) => {
            number = value.to_string();
            number.as_bytes()
        }
        Cell::Null => &[],
    };
    let identity = &table.identity;
    let parts = [table.source.as_bytes(), identity.database.as_bytes(), identity.table.as_bytes(), of_row];
    hex(&mac(key, parts)[..8])
}

/// The same of a derived row that belongs to no table of a source: its store, the number that stands for its shard, its
/// key.
pub fn hash_foreign(store: &str, shard: Option<u64>, row: &[Cell], key: Option<&Secret>) -> String {
    let shard = shard_text(shard);
    let mut of_row = Vec::new();
    for cell in row {
        let text = match cell {
            Cell::Bytes(bytes) => bytes.to_vec(),
            Cell::UInt(value) => value.to_string().into_bytes(),
            Cell::Int(value) => value.to_string().into_bytes(),
            Cell::Null => Vec::new(),
        };
        of_row.extend_from_slice(&(text.len() as u64).to_be_bytes());
        of_row.extend(text);
    }
    hex(&mac(key, [b"foreign", store.as_bytes(), shard.as_bytes(), &of_row])[..8])
}

fn mac<const N: usize>(key: Option<&Secret>, parts: [&[u8]; N]) -> Vec<u8> {
    let key = key.map_or(&b""[..], |key| key.expose().as_bytes());
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length will do");
    for part in parts {
        mac.update(&(part.len() as u64).to_be_bytes());
        mac.update(part);
    }
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(key: Option<&Secret>) -> Vec<PastNight> {
        let mut nights: Vec<PastNight> = Vec::new();
        for number in 1..=3 {
            let report = format!("{{\"rows\":{number}}}");
            nights.push(seal(
                nights.last(),
                (&format!("night-{number}"), number, Outcome::Clean),
                report,
                key,
            ));
        }
        nights
    }

    #[test]
    fn a_night_that_was_changed_or_taken_away_shows() {
        let key = Secret::new("a key that nobody knows");
        let nights = chain(Some(&key));
        let of = |nights: &[PastNight], place: usize, key: Option<&Secret>| {
            Seal::of(&nights[place], place.checked_sub(1).map(|before| &nights[before]), key)
        };
        (0..3).for_each(|place| assert_eq!(of(&nights, place, Some(&key)), Seal::Whole));
        let changes: [fn(&mut PastNight); 5] = [
            |night| night.report.push(' '),
            |night| night.verdict = Outcome::Repaired,
            |night| night.id.push('1'),
            |night| night.ended_at_ms += 1,
            |night| night.previous.clear(),
        ];
        for change in changes {
            let mut changed = nights.clone();
            change(&mut changed[1]);
            assert_eq!(of(&changed, 1, Some(&key)), Seal::Broken);
        }
        assert_eq!(of(&nights, 1, None), Seal::Broken);
        assert_eq!(of(&chain(None), 1, Some(&key)), Seal::Broken);
        let without: Vec<_> = [&nights[0], &nights[2]].into_iter().cloned().collect();
        assert_eq!(of(&without, 1, Some(&key)), Seal::Unlinked);
        assert_eq!(of(&nights[1..], 0, Some(&key)), Seal::Unlinked);
    }
}
