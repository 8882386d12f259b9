//! The cache layer: compares every key of Redis with the claims of the sources.
//!
//! Rules:
//! - Key `<prefix>:{<CRC-32 of the code, 8 hexadecimal digits>}e:<code>` holds the complete set of the code's claims: a
//!   byte 1; for each claim shard (8 bytes, big endian), kind (1), length of the uuid (1) and uuid; the CRC-32 of it,
//!   big endian.
//! - A missing key is no difference: a lookup reads the tables. A set without claims lives for a short time, any other
//!   for a long one, none for ever.
//! - `…t:<code>` is the token of an interrupted fill, which lives for half a minute. `<prefix>:{<number>}m:` is a
//!   freshness key, which lives for half an hour: it proves that no server holds an old copy.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use redis::{Cmd, Value, cmd};

use super::comparison::Comparison;
use super::mapping::MappingLayer;
use super::sources;
use super::tables::{DerivedTables as _, shard_id_sql};
use crate::error::Result;
use crate::redis::RedisServer;
use crate::topology::Topology;

/// The cache of mapping tables.
#[derive(Debug, Clone)]
pub struct CacheLayer {
    /// The layer that it caches.
    pub mapping: MappingLayer,
    pub server: RedisServer,
    /// Prefix of every key.
    pub prefix: String,
    /// Longest life of a set, and of a set without claims.
    pub time_to_live: (Duration, Duration),
}

const TOKEN_TIME_TO_LIVE: Duration = Duration::from_secs(30);
const FRESHNESS_KEY_TIME_TO_LIVE: Duration = Duration::from_secs(1800);
/// Keys in one round trip.
const STEP_KEYS: usize = 1_000;
/// Bytes of a key that an example shows.
const KEY_BYTES_SHOWN: usize = 60;

/// A claim: shard, uuid, kind.
pub(crate) type CachedClaim = (u64, Vec<u8>, u8);

/// The meaning of a key.
enum Role<'k> {
    Entry(&'k [u8]),
    Token,
    Freshness,
}

pub(super) async fn compare(topology: &Topology, layer: &CacheLayer) -> Result<Comparison> {
    let expected = expected(topology, &layer.mapping).await?;
    let mut comparison = Comparison {
        source_rows: sources::count(topology).await?,
        claims: expected.values().map(|set| set.len() as u64).sum(),
        ..Comparison::default()
    };
    let mut connection = layer.server.connect().await?;
    let mut cursor = 0u64;
    // A scan may return a key twice.
    let mut keys: HashSet<Vec<u8>> = HashSet::new();
    loop {
        let step = connection.one("list keys", cmd("SCAN").arg(cursor).arg("COUNT").arg(STEP_KEYS)).await;
        let (next, found): (u64, Vec<Vec<u8>>) = step?;
        keys.extend(found);
        if next == 0 {
            break;
        }
        cursor = next;
    }
    let keys: Vec<Vec<u8>> = keys.into_iter().collect();
    for some in keys.chunks(STEP_KEYS) {
        let ask = |word: &'static str| {
            move |key: &Vec<u8>| {
                let mut ask: Cmd = cmd(word);
                ask.arg(key.as_slice());
                ask
            }
        };
        let values = connection.all("read keys", some.iter().map(ask("GET"))).await?;
        let left = connection.all("read times to live", some.iter().map(ask("PTTL"))).await?;
        for ((key, value), left) in some.iter().zip(values).zip(left) {
            layer.judge(key, value, left, &expected, &mut comparison);
        }
    }
    comparison.rows_by_database = BTreeMap::from([(layer.server.name.clone(), comparison.derived_rows)]);
    Ok(comparison)
}

/// Counts the present keys of the cache.
pub(super) async fn count(layer: &CacheLayer) -> Result<u64> {
    layer.server.connect().await?.one("count keys", &cmd("DBSIZE")).await
}

/// Returns the complete set of each code that any source has.
pub(crate) async fn expected(
    topology: &Topology,
    mapping: &MappingLayer,
) -> Result<HashMap<Vec<u8>, BTreeSet<CachedClaim>>> {
    let rows =
        sources::rows::<(Vec<u8>, u64, Vec<u8>, u8)>(topology, "read claims", |source, source_table| {
            let (shard, claims) = (shard_id_sql(source, source_table), mapping.claims(source_table));
            format!("SELECT value, {shard}, uuid, kind FROM ({claims}) AS c")
        });
    let mut expected: HashMap<Vec<u8>, BTreeSet<CachedClaim>> = HashMap::new();
    for (value, shard, uuid, kind) in rows.await? {
        expected.entry(value).or_default().insert((shard, uuid, kind));
    }
    Ok(expected)
}

impl CacheLayer {
    /// Returns the key of a code's set.
    pub(crate) fn key_of(&self, code: &[u8]) -> Vec<u8> {
        let mut key = format!("{}:{{{:08x}}}e:", self.prefix, crc32fast::hash(code)).into_bytes();
        key.extend_from_slice(code);
        key
    }

    fn judge(
        &self,
        key: &[u8],
        value: Value,
        left: Value,
        expected: &HashMap<Vec<u8>, BTreeSet<CachedClaim>>,
        comparison: &mut Comparison,
    ) {
        let Value::Int(left) = left else {
            return comparison.differs("unreadable", shown(key), &self.server.name);
        };
        // −2 = the key is gone since the scan.
        if left == -2 {
            return;
        }
        let role = self.role(key);
        if !matches!(role, Some(Role::Token | Role::Freshness)) {
            comparison.derived_rows += 1;
        }
        // −1 = the key lives for ever.
        let lives_at_most = |most: Duration| left >= 0 && left as u128 <= most.as_millis();
        let kind = match role {
            None => Some("orphan"),
            Some(Role::Token) => (!lives_at_most(TOKEN_TIME_TO_LIVE)).then_some("wrong_expiry"),
            Some(Role::Freshness) => (!lives_at_most(FRESHNESS_KEY_TIME_TO_LIVE)).then_some("wrong_expiry"),
            Some(Role::Entry(code)) => {
                let set = match value {
                    Value::BulkString(bytes) => decode(&bytes),
                    Value::Nil => return,
                    _ => None,
                };
                let (full, empty) = self.time_to_live;
                let most = if set.as_ref().is_some_and(Vec::is_empty) { empty } else { full };
                match (&set, expected.get(code)) {
                    (None, _) => Some("unreadable"),
                    (Some(set), None) if !set.is_empty() => Some("orphan"),
                    (Some(set), Some(wanted)) if !set.iter().eq(wanted) => Some("wrong_set"),
                    _ => (!lives_at_most(most)).then_some("wrong_expiry"),
                }
            }
        };
        if let Some(kind) = kind {
            comparison.differs(kind, shown(key), &self.server.name);
        }
    }

    fn role<'k>(&self, key: &'k [u8]) -> Option<Role<'k>> {
        let rest = key.strip_prefix(self.prefix.as_bytes())?.strip_prefix(b":{")?;
        let (tag, rest) = rest.split_at_checked(8)?;
        let (role, code) = rest.strip_prefix(b"}")?.split_at_checked(2)?;
        let is_right = tag == format!("{:08x}", crc32fast::hash(code)).as_bytes() && !code.is_empty();
        match role {
            b"e:" if is_right => Some(Role::Entry(code)),
            b"t:" if is_right => Some(Role::Token),
            b"m:" if code.is_empty() => Some(Role::Freshness),
            _ => None,
        }
    }
}

fn shown(key: &[u8]) -> String {
    format!("key {}", key[..key.len().min(KEY_BYTES_SHOWN)].escape_ascii())
}

/// Encodes the entry of a set.
pub(crate) fn encode<'c>(claims: impl IntoIterator<Item = &'c CachedClaim>) -> Vec<u8> {
    let mut entry = vec![1];
    for (shard, uuid, kind) in claims {
        entry.extend_from_slice(&shard.to_be_bytes());
        entry.extend_from_slice(&[*kind, u8::try_from(uuid.len()).expect("a uuid has at most 64 bytes")]);
        entry.extend_from_slice(uuid);
    }
    let checksum = crc32fast::hash(&entry);
    entry.extend_from_slice(&checksum.to_be_bytes());
    entry
}

/// Decodes the claims of an entry, in its order: shard, uuid and kind.
fn decode(entry: &[u8]) -> Option<Vec<CachedClaim>> {
    let (body, checksum) = entry.split_last_chunk::<4>()?;
    if crc32fast::hash(body) != u32::from_be_bytes(*checksum) {
        return None;
    }
    let mut rest = body.strip_prefix(&[1])?;
    let mut claims = Vec::new();
    while !rest.is_empty() {
        let (shard, tail) = rest.split_first_chunk::<8>()?;
        let ([kind, length], tail) = tail.split_first_chunk::<2>()?;
        let (uuid, tail) = tail.split_at_checked(usize::from(*length))?;
        claims.push((u64::from_be_bytes(*shard), uuid.to_vec(), *kind));
        rest = tail;
    }
    Some(claims)
}
