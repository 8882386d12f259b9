//! The physical tables of an entity, and the table that a row belongs into.
//!
//! [`TablePattern`] maps physical names to an entity; capture depends on it alone. [`ShardingRule`] says where an
//! application puts a row; workload and placement audit depend on it, capture never does. A [`ShardId`] is the identity
//! under which a physical table claims derived rows.

mod pattern;

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use self::pattern::{InvalidPattern, TableNumbers, TablePattern};

/// The 63-bit identity of a physical source table: the first 8 bytes of SHA-256(source ␀ database ␀ table ␀
/// generation), big endian, top bit cleared.
///
/// The owner generation rises when a table is given to another server. Collisions are refused at set-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ShardId(u64);

impl ShardId {
    pub fn of(source: &str, database: &str, table: &str, generation: u32) -> Self {
        let mut hash = Sha256::new();
        for part in [source, database, table] {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        hash.update(generation.to_string().as_bytes());
        let digest = hash.finalize();
        let head: [u8; 8] = digest[..8].try_into().expect("SHA-256 has 32 bytes");
        Self(u64::from_be_bytes(head) & (u64::MAX >> 1))
    }

    pub fn as_u64(self) -> u64 {
        self.0
    }

    /// Reads a stored id; `None` when the number has more than 63 bits.
    pub fn from_u64(number: u64) -> Option<Self> {
        (number <= u64::MAX >> 1).then_some(Self(number))
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The way from a row's sharding key to a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NameHash {
    /// CRC-32 (IEEE) of the UTF-8 bytes; equal to SQL `CRC32()`.
    Crc32,
    /// `abs(String.hashCode())` over UTF-16 units, widened to 64 bits before `abs`.
    JavaString,
    /// No hash: the key is a decimal number of any length.
    Decimal,
}

impl NameHash {
    /// Returns the key's number modulo `modulus`; `None` when the key has none.
    pub fn remainder(self, key: &str, modulus: u64) -> Option<u64> {
        match self {
            NameHash::Crc32 => Some(u64::from(crc32fast::hash(key.as_bytes())) % modulus),
            NameHash::JavaString => {
                let hash =
                    key.encode_utf16().fold(0i32, |h, unit| h.wrapping_mul(31).wrapping_add(i32::from(unit)));
                Some(i64::from(hash).unsigned_abs() % modulus)
            }
            NameHash::Decimal if key.is_empty() => None,
            NameHash::Decimal => key.bytes().try_fold(0, |number, digit| {
                let digit = digit.is_ascii_digit().then(|| u128::from(digit - b'0'))?;
                Some(((u128::from(number) * 10 + digit) % u128::from(modulus)) as u64)
            }),
        }
    }
}

/// The way from the hash to a database and a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spread {
    /// `hash % databases`, `hash % tables`: as the source documents write it.
    Literal,
    /// `hash % databases`, `hash / databases % tables`: reaches every table.
    Spread,
}

/// A sharding rule by key (a user's name, a device's uuid): where an application puts a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardingRule {
    pub hash: NameHash,
    pub spread: Spread,
    pub databases: u32,
    pub tables: u32,
}

impl ShardingRule {
    /// Returns database and table number of a key; `None` when the key has no number.
    pub fn locate(&self, key: &str) -> Option<(u32, u32)> {
        let (databases, tables) = (u64::from(self.databases.max(1)), u64::from(self.tables.max(1)));
        let number = self.hash.remainder(key, databases * tables)?;
        let table = match self.spread {
            Spread::Literal => number % tables,
            Spread::Spread => number / databases,
        };
        Some(((number % databases) as u32, table as u32))
    }

    /// Returns how many of the `databases × tables` tables some key can reach.
    ///
    /// `literal` uses one hash twice, so `hash % lcm(databases, tables)` determines the pair: with 100 and 1000 only
    /// 1,000 of 100,000 tables are ever used.
    pub fn reachable_tables(&self) -> u64 {
        let (databases, tables) = (u64::from(self.databases), u64::from(self.tables));
        match self.spread {
            Spread::Spread => databases * tables,
            Spread::Literal => databases * tables / greatest_common_divisor(databases, tables).max(1),
        }
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hashes_equal_their_originals() {
        // SELECT CRC32('alice') = 663665735; new String("alice").hashCode() = 92903040.
        let of = |hash: NameHash, key| hash.remainder(key, u64::MAX).unwrap();
        assert_eq!(of(NameHash::Crc32, "alice"), 663_665_735);
        assert_eq!(of(NameHash::JavaString, "alice"), 92_903_040);
        // The one value whose abs() overflows 32 bits: Integer.MIN_VALUE.
        assert_eq!(of(NameHash::JavaString, "polygenelubricants"), 2_147_483_648);
        // Two UTF-16 units, not one code point.
        assert_eq!(of(NameHash::JavaString, "😀"), 1_772_899);
    }

    #[test]
    fn one_hundred_divides_one_thousand_so_the_literal_rule_reaches_one_table_in_a_hundred() {
        let mut rule =
            ShardingRule { hash: NameHash::Crc32, spread: Spread::Literal, databases: 100, tables: 1000 };
        assert_eq!(rule.reachable_tables(), 1_000);
        rule.spread = Spread::Spread;
        assert_eq!(rule.reachable_tables(), 100_000);
        let coprime = ShardingRule { databases: 5, tables: 64, spread: Spread::Literal, ..rule };
        assert_eq!(coprime.reachable_tables(), 320);
    }

    #[test]
    fn a_decimal_key_of_any_length_has_its_place_and_another_has_none() {
        let rule =
            ShardingRule { hash: NameHash::Decimal, spread: Spread::Literal, databases: 5, tables: 64 };
        // Computed with Python: (10**63 + 12345) % 5 and % 64.
        let long = format!("1{}12345", "0".repeat(58));
        assert_eq!(rule.locate(&long), Some((0, 57)));
        assert_eq!(rule.locate("18446744073709551615"), Some((0, 63)));
        assert_eq!(ShardingRule { spread: Spread::Spread, ..rule }.locate("642"), Some((2, 0)));
        assert_eq!((rule.locate(""), rule.locate("12a")), (None, None));
    }

    #[test]
    fn a_shard_id_is_stable_and_each_part_counts() {
        let id = ShardId::of("a", "user_00", "user_000", 0);
        assert_eq!(id.as_u64(), 3_960_259_256_624_760_251);
        for other in [
            ShardId::of("b", "user_00", "user_000", 0),
            ShardId::of("a", "user_01", "user_000", 0),
            ShardId::of("a", "user_00", "user_001", 0),
            ShardId::of("a", "user_00", "user_000", 1),
        ] {
            assert_ne!(id, other);
        }
    }

    proptest! {
        #[test]
        fn the_literal_rule_reaches_exactly_the_tables_it_says(databases in 1..30u32, tables in 1..30u32) {
            let rule = ShardingRule { hash: NameHash::Crc32, spread: Spread::Literal, databases, tables };
            let reached: std::collections::HashSet<_> =
                (0..u64::from(databases * tables)).map(|h| (h % u64::from(databases), h % u64::from(tables))).collect();
            prop_assert_eq!(reached.len() as u64, rule.reachable_tables());
        }

        #[test]
        fn every_name_has_a_place(name in ".*", databases in 1..200u32, tables in 1..2000u32) {
            for hash in [NameHash::Crc32, NameHash::JavaString] {
                for spread in [Spread::Literal, Spread::Spread] {
                    let (db, table) = ShardingRule { hash, spread, databases, tables }.locate(&name).unwrap();
                    prop_assert!(db < databases && table < tables);
                }
            }
        }
    }
}
