//! Plants drift in cached sets.

use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, Instant};

use redis::{Cmd, Value, cmd};

use super::{Drift, Hand, Kinds, drift};
use crate::error::{DemoError, Result};
use crate::redis::RedisConnection;
use crate::topology::{Topology, uuid};
use crate::verify::{CacheLayer, CachedClaim, MappingLayer, encode_cached, expected_in_cache};
use crate::workload::SetAside;

/// Number of the kind of box numbers.
const BOX_NO: u8 = 4;
/// Limit of filling the cache after the changes, on a busy machine.
const FILLED_WITHIN: Duration = Duration::from_secs(60);
const FILLED_POLL_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, Copy)]
enum Kind {
    /// A set in which another device replaces one.
    WrongSet,
    /// A set without any claim.
    Emptied,
    /// A set for a code that no device has.
    Nobodys,
    /// A set that never expires.
    ForEver,
    /// A set that lives longer than allowed.
    TooLong,
    /// Bytes that form no set.
    Unreadable,
}

const KINDS: [Drift<Kind>; 6] = [
    drift(Kind::WrongSet, "wrong_set", 1),
    drift(Kind::Emptied, "emptied", 1),
    drift(Kind::Nobodys, "of_nobody", 1),
    drift(Kind::ForEver, "for_ever", 1),
    drift(Kind::TooLong, "too_long", 1),
    drift(Kind::Unreadable, "unreadable", 1),
];

pub(super) async fn plant(
    topology: &Topology,
    layer: &CacheLayer,
    aside: &[SetAside],
    drifts: u64,
    hand: &mut Hand<'_>,
) -> Result<Kinds> {
    let mut connection = layer.server.connect().await?;
    let sets = private_sets(topology, &layer.mapping, aside).await?;
    let mut sets = cached(layer, sets, &mut connection).await?;
    let mut commands: Vec<Cmd> = Vec::new();
    let drawn = hand.draw(&KINDS, drifts, |hand, drift| {
        if sets.is_empty() {
            return false;
        }
        let (code, set) = sets.swap_remove(hand.below(sets.len()));
        commands.push(command(layer, drift.kind, code, set, hand));
        true
    });
    let refused =
        connection.all("plant drift", commands).await?.into_iter().find_map(|answer| match answer {
            Value::ServerError(error) => Some(error),
            _ => None,
        });
    if let Some(source) = refused {
        let server = layer.server.name.clone();
        return Err(DemoError::Redis { server, action: "plant drift", source: source.into() });
    }
    Ok(drawn)
}

/// Returns codes that no other device has or will have, in order. Box numbers are left out: a box may get another
/// device at any time, and that change would repair the set, or make a drift of the mapping tables a part of it.
pub(super) async fn private_sets(
    topology: &Topology,
    mapping: &MappingLayer,
    aside: &[SetAside],
) -> Result<Vec<(Vec<u8>, BTreeSet<CachedClaim>)>> {
    let own: HashSet<Vec<u8>> = aside.iter().map(|row| uuid(row.number).into_bytes()).collect();
    let is_private =
        |set: &BTreeSet<CachedClaim>| set.iter().all(|(_, uuid, kind)| *kind != BOX_NO && own.contains(uuid));
    let sets = expected_in_cache(topology, mapping).await?.into_iter().filter(|(_, set)| is_private(set));
    let mut sets: Vec<_> = sets.collect();
    sets.sort();
    Ok(sets)
}

/// Waits until the sets are in the cache, since no workload changes them any more; returns those that are. A set that
/// was removed and not filled again would be repaired by its filling.
async fn cached(
    layer: &CacheLayer,
    sets: Vec<(Vec<u8>, BTreeSet<CachedClaim>)>,
    connection: &mut RedisConnection,
) -> Result<Vec<(Vec<u8>, BTreeSet<CachedClaim>)>> {
    let deadline = Instant::now() + FILLED_WITHIN;
    loop {
        let gets = sets.iter().map(|(code, _)| cmd("GET").arg(layer.key_of(code)).take());
        let entries = connection.all("read the entries", gets).await?;
        let is_left =
            |set: &BTreeSet<CachedClaim>, entry: &Value| *entry == Value::BulkString(encode_cached(set));
        let remaining = sets.iter().zip(&entries).filter(|((_, set), entry)| is_left(set, entry));
        let remaining: Vec<_> = remaining.map(|(set, _)| set.clone()).collect();
        if remaining.len() == sets.len() || Instant::now() >= deadline {
            return Ok(remaining);
        }
        tokio::time::sleep(FILLED_POLL_INTERVAL).await;
    }
}

fn command(
    layer: &CacheLayer,
    kind: Kind,
    code: Vec<u8>,
    set: BTreeSet<CachedClaim>,
    hand: &mut Hand<'_>,
) -> Cmd {
    let (full, empty) = layer.time_to_live;
    let whole = encode_cached(&set);
    let other_device = |hand: &mut Hand<'_>| {
        let mut set = set.clone();
        let (shard, _, kind) = set.pop_last().expect("a code in the source has a device");
        set.insert((shard, hand.nobody().to_string().into_bytes(), kind));
        encode_cached(&set)
    };
    match kind {
        Kind::WrongSet => store(layer, &code, &other_device(hand), Some(full)),
        Kind::Emptied => store(layer, &code, &encode_cached([]), Some(empty)),
        Kind::Nobodys => {
            let entry = other_device(hand);
            store(layer, format!("NOBODY-{}", hand.nobody()).as_bytes(), &entry, Some(full))
        }
        Kind::ForEver => store(layer, &code, &whole, None),
        Kind::TooLong => store(layer, &code, &whole, Some(full * 2)),
        Kind::Unreadable => store(layer, &code, &whole[..whole.len() - 1], Some(full)),
    }
}

fn store(layer: &CacheLayer, code: &[u8], entry: &[u8], time_to_live: Option<Duration>) -> Cmd {
    let mut command = cmd("SET");
    command.arg(layer.key_of(code)).arg(entry);
    if let Some(time) = time_to_live {
        command.arg("EX").arg(time.as_secs());
    }
    command
}
