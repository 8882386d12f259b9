//! The chain of past reconciliations. Each is signed over the one before it, so no process without the key can
//! change, remove or insert one. The exception is the removal of the newest ones together, which their ids in other
//! places would show.
//!
//! The signature is HMAC-SHA-256 (RFC 2104) over length-prefixed parts. Without a configured key the key is empty: the
//! chain then shows accidents and no intent.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::SourceKey;
use super::foreign::shard_text;
use super::scan::SourceTable;
use crate::config::Secret;
use crate::records::{Cell, Outcome, PastReconciliation};

/// The result of checking a past reconciliation against the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seal {
    Whole,
    /// The record differs from the one that was signed, or another key signed it.
    Broken,
    /// The record before it is missing, or differs from the one at the time of signing.
    Unlinked,
}

impl Seal {
    /// Checks the signature of a reconciliation and its link to the stored one before it.
    pub fn of(
        reconciliation: &PastReconciliation,
        before: Option<&PastReconciliation>,
        key: Option<&Secret>,
    ) -> Self {
        if sign(reconciliation, key) != reconciliation.signature {
            return Self::Broken;
        }
        let is_linked = match before {
            Some(before) => {
                before.number + 1 == reconciliation.number && before.signature == reconciliation.previous
            }
            None => reconciliation.number == 1 && reconciliation.previous.is_empty(),
        };
        if is_linked { Self::Whole } else { Self::Unlinked }
    }
}

/// Returns the signed record of the reconciliation that follows `before`.
pub fn seal(
    before: Option<&PastReconciliation>,
    (id, ended_at_ms, verdict): (&str, u64, Outcome),
    report: String,
    key: Option<&Secret>,
) -> PastReconciliation {
    let mut reconciliation = PastReconciliation {
        number: before.map_or(1, |before| before.number + 1),
        id: id.to_owned(),
        ended_at_ms,
        verdict,
        report,
        previous: before.map_or(String::new(), |before| before.signature.clone()),
        signature: String::new(),
    };
    reconciliation.signature = sign(&reconciliation, key);
    reconciliation
}

fn sign(reconciliation: &PastReconciliation, key: Option<&Secret>) -> String {
    let number = reconciliation.number.to_string();
    let ended = reconciliation.ended_at_ms.to_string();
    let parts = [
        number.as_bytes(),
        reconciliation.id.as_bytes(),
        ended.as_bytes(),
        reconciliation.verdict.name().as_bytes(),
        reconciliation.previous.as_bytes(),
        reconciliation.report.as_bytes(),
    ];
    hex(&mac(key, parts))
}

/// Returns the hash that reports show instead of a key: the same in each reconciliation, and not to be guessed without
/// the installation's key.
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

/// Returns the hash of a derived row that belongs to no table of a source, from its store, the stored number of its
/// shard and its key.
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

    fn chain(key: Option<&Secret>) -> Vec<PastReconciliation> {
        let mut reconciliations: Vec<PastReconciliation> = Vec::new();
        for number in 1..=3 {
            let report = format!("{{\"rows\":{number}}}");
            reconciliations.push(seal(
                reconciliations.last(),
                (&format!("reconciliation-{number}"), number, Outcome::Clean),
                report,
                key,
            ));
        }
        reconciliations
    }

    #[test]
    fn a_reconciliation_that_was_changed_or_taken_away_shows() {
        let key = Secret::new("a key that nobody knows");
        let reconciliations = chain(Some(&key));
        let of = |reconciliations: &[PastReconciliation], place: usize, key: Option<&Secret>| {
            Seal::of(
                &reconciliations[place],
                place.checked_sub(1).map(|before| &reconciliations[before]),
                key,
            )
        };
        (0..3).for_each(|place| assert_eq!(of(&reconciliations, place, Some(&key)), Seal::Whole));
        let changes: [fn(&mut PastReconciliation); 5] = [
            |reconciliation| reconciliation.report.push(' '),
            |reconciliation| reconciliation.verdict = Outcome::Repaired,
            |reconciliation| reconciliation.id.push('1'),
            |reconciliation| reconciliation.ended_at_ms += 1,
            |reconciliation| reconciliation.previous.clear(),
        ];
        for change in changes {
            let mut changed = reconciliations.clone();
            change(&mut changed[1]);
            assert_eq!(of(&changed, 1, Some(&key)), Seal::Broken);
        }
        assert_eq!(of(&reconciliations, 1, None), Seal::Broken);
        assert_eq!(of(&chain(None), 1, Some(&key)), Seal::Broken);
        let without: Vec<_> = [&reconciliations[0], &reconciliations[2]].into_iter().cloned().collect();
        assert_eq!(of(&without, 1, Some(&key)), Seal::Unlinked);
        assert_eq!(of(&reconciliations[1..], 0, Some(&key)), Seal::Unlinked);
    }
}
