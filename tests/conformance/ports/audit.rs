//! The cache's part of a reconciliation, for each cache: it finds every kind of wrong entry, and removes no other.

use std::collections::BTreeMap;
use std::time::Duration;

use anabranch_connectors::memory::{MemoryMapping, Weather};
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::lookup::{AuditPace, CACHED_CLAIMS_MAX, CacheAudit, encode, fill};
use anabranch_pipeline::ports::{CacheRecord, CodeCache, Outbox};
use anabranch_pipeline::records::{AuditState, Audited, EntryDrift, TimeToLive};
use anabranch_pipeline::throttle::Pace;
use anabranch_schemas::serial::StoredCode;

use super::cache::{Ground, LONG, Twin, cached, code, set};
use crate::redis_ground::RedisGround;

on_twin_and_server!(Twin, RedisGround:
    every_kind_of_wrong_entry_is_found_and_removed_and_no_other,
    more_drift_than_may_be_removed_is_told_and_stays,
    what_waits_for_its_drain_is_no_drift,
    a_cache_that_is_not_believed_is_not_judged,
    an_audit_that_is_cut_off_goes_on_where_it_was_in_the_same_life_only,
);

/// Audits of which one is to meet an entry before its drain: on a busy machine the drain may come first.
const ATTEMPTS: u64 = 20;
const TIME: TimeToLive = TimeToLive { full: LONG, empty: Duration::from_secs(60) };

/// Mapping tables with these sets, and a believed cache that holds all of them.
async fn filled(ground: &impl Ground, codes: &[StoredCode]) -> MemoryMapping {
    let mapping = MemoryMapping::new(Weather::calm());
    let flush = mapping.flush(codes.iter().map(|code| (code.clone(), set(1))).collect());
    let incarnation = ground.cache().incarnation().await.unwrap();
    let record = CacheRecord { incarnation: incarnation.clone(), time_to_live: LONG };
    mapping.begin(None, &record).await.unwrap();
    fill(ground.cache(), &mapping, codes, CACHED_CLAIMS_MAX, TIME).await.unwrap();
    fill(ground.cache(), &mapping, &[code("NOBODY")], CACHED_CLAIMS_MAX, TIME).await.unwrap();
    mapping.drained(&[flush], &incarnation).await.unwrap();
    mapping
}

async fn audit(ground: &impl Ground, mapping: &MemoryMapping, repairs_max: u64) -> (Audited, Option<Fault>) {
    let outboxes = std::slice::from_ref(mapping);
    let work = CacheAudit { cache: ground.cache(), outboxes, mapping, time_to_live: TIME, repairs_max };
    anabranch_tests::audited(&work).await
}

/// Audits the whole cache and expects a judgement.
async fn complete(ground: &impl Ground, mapping: &MemoryMapping, repairs_max: u64) -> Audited {
    let (found, fault) = audit(ground, mapping, repairs_max).await;
    assert!(fault.is_none() && found.is_judged(), "{found:?}, {fault:?}");
    found
}

fn codes(count: u32) -> Vec<StoredCode> {
    (0..count).map(|number| code(&format!("AUDITED-{number:04}"))).collect()
}

async fn every_kind_of_wrong_entry_is_found_and_removed_and_no_other(ground: impl Ground) {
    let codes = codes(2000);
    let mapping = filled(&ground, &codes).await;
    let clean = complete(&ground, &mapping, 100).await;
    assert!(clean.found() == 0, "{clean:?}");
    assert!(clean.entries > 2000, "{clean:?}");

    let [empty, part, other, swapped, lasting, longer, damaged, nobody] =
        [1, 2, 3, 4, 5, 6, 7, 8].map(|number: usize| codes[number * 100].clone());
    // A scan may name a code once for its entry and once for its token.
    let [orphan, blocked] = ["ORPHAN", "BLOCKED"].map(code);
    let left = Some(Duration::from_secs(600));
    ground.plant(&empty, encode(&[]), left).await;
    ground.plant(&part, encode(&set(1)[..1]), left).await;
    ground.plant(&other, encode(&set(2)), left).await;
    let reversed: Vec<_> = set(1).into_iter().rev().collect();
    ground.plant(&swapped, encode(&reversed), left).await;
    ground.plant(&lasting, encode(&set(1)), None).await;
    ground.plant(&longer, encode(&set(1)), Some(LONG + Duration::from_secs(60))).await;
    ground.plant(&damaged, b"damaged".to_vec(), left).await;
    ground.plant(&orphan, encode(&set(1)), left).await;
    // A set without claims has a shorter time to live.
    ground.plant(&nobody, Vec::new(), left).await;
    ground.block(&blocked).await;
    let expected = BTreeMap::from([
        (EntryDrift::Unreadable, 2),
        (EntryDrift::Stale, 4),
        (EntryDrift::Orphan, 1),
        (EntryDrift::Lasting, 2),
        (EntryDrift::Blocked, 1),
    ]);
    let found = complete(&ground, &mapping, 0).await;
    assert!(found.repaired == 0, "{found:?}");
    assert_eq!(found.drift, expected, "nothing was removed");

    let found = complete(&ground, &mapping, 100).await;
    assert!(found.repaired == 10, "{found:?}");
    assert_eq!(found.drift, expected);
    let wrong = [empty, part, other, swapped, lasting, longer, damaged, nobody, blocked, orphan];
    for code in codes.iter().chain(&wrong) {
        let left = if wrong.contains(code) { None } else { Some(set(1)) };
        assert_eq!(cached(ground.cache(), code).await, left, "{code:?}");
    }
    let clean = complete(&ground, &mapping, 100).await;
    assert!(clean.found() == 0, "{clean:?}");
}

async fn more_drift_than_may_be_removed_is_told_and_stays(ground: impl Ground) {
    let codes = codes(50);
    let mapping = filled(&ground, &codes).await;
    for code in &codes {
        ground.plant(code, encode(&set(7)), Some(Duration::from_secs(600))).await;
    }
    let found = complete(&ground, &mapping, 20).await;
    assert!(found.found() == 50 && found.repaired <= 20, "{found:?}");
    let found = complete(&ground, &mapping, 50).await;
    assert!(found.found() >= 30 && found.repaired == found.found(), "{found:?}");
}

async fn what_waits_for_its_drain_is_no_drift(ground: impl Ground) {
    let codes = codes(20);
    let mapping = filled(&ground, &codes).await;
    let incarnation = ground.cache().incarnation().await.unwrap();
    for version in 2..2 + ATTEMPTS {
        let earlier = mapping.flush(vec![(code("NOT CACHED"), set(version))]);
        let flush = mapping.flush(vec![(codes[3].clone(), set(version))]);
        // The server's clock shows neither that they are old nor which one is.
        mapping.set_clock_back(Duration::from_millis(100));
        let drain = async {
            tokio::time::sleep(Duration::from_millis(250)).await;
            mapping.drained(&[earlier], &incarnation).await.unwrap();
            tokio::time::sleep(Duration::from_millis(250)).await;
            ground.cache().invalidate(&codes[3..4]).await.unwrap();
            mapping.drained(&[flush], &incarnation).await.unwrap();
        };
        let (found, ()) = tokio::join!(complete(&ground, &mapping, 100), drain);
        assert!(found.found() == 0 && found.in_flight <= 1, "{found:?}");
        if found.in_flight == 1 {
            return;
        }
        fill(ground.cache(), &mapping, &codes[3..4], CACHED_CLAIMS_MAX, TIME).await.unwrap();
    }
    panic!("no audit has met the entry before its drain");
}

async fn a_cache_that_is_not_believed_is_not_judged(ground: impl Ground) {
    let codes = codes(20);
    let mapping = filled(&ground, &codes).await;
    ground.plant(&codes[3], encode(&set(7)), Some(LONG)).await;
    mapping.flush_without_cache(vec![(codes[5].clone(), set(2))]);
    let (found, fault) = audit(&ground, &mapping, 100).await;
    assert!(found.found() == 0 && fault.is_some(), "{found:?}");
    assert_eq!(cached(ground.cache(), &codes[3]).await, Some(set(7)));
}

async fn an_audit_that_is_cut_off_goes_on_where_it_was_in_the_same_life_only(ground: impl Ground) {
    let codes = codes(4000);
    let mapping = filled(&ground, &codes).await;
    let outboxes = std::slice::from_ref(&mapping);
    let work =
        CacheAudit { cache: ground.cache(), outboxes, mapping: &mapping, time_to_live: TIME, repairs_max: 0 };
    let mut pace = AuditPace::new(Pace::unbounded());
    let whole = complete(&ground, &mapping, 0).await.entries;
    let mut state = AuditState::default();
    let (mut pieces, mut stored) = (0, None);
    loop {
        pieces += 1;
        work.begin(&mut state).await.unwrap();
        if work.step(&mut state, &mut pace).await.unwrap() {
            break;
        }
        // Another process reads the state.
        state = serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap();
        stored = Some(state.clone());
    }
    assert!(pieces > 2, "{pieces}");
    // A scan of a server may name a code twice.
    let all = 4_001..whole + 1_000;
    assert!(all.contains(&state.audited.entries), "{} of {whole}", state.audited.entries);

    // The cursor of another life is none of this one.
    let stored = stored.expect("it was cut off at least once");
    let mut other = serde_json::to_value(&stored).unwrap();
    other["place"]["life"] = "another".into();
    let mut other: AuditState = serde_json::from_value(other).unwrap();
    work.begin(&mut other).await.unwrap();
    while !work.step(&mut other, &mut pace).await.unwrap() {}
    assert!(all.contains(&(other.audited.entries - stored.audited.entries)), "{other:?}");
}
