//! The way of mapping rows from a flush over the outbox into the cache, on real servers.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anabranch_connectors::memory::MemoryCache;
use anabranch_connectors::mysql::store::{MysqlLane, MysqlMapping, MysqlOutbox};
use anabranch_pipeline::error::{Class, Code};
use anabranch_pipeline::lookup::{CACHED_CLAIMS_MAX, CacheState, Drain, DrainWatch, decode, drain, fill};
use anabranch_pipeline::ports::{CacheRecord, CodeCache, LaneStore, MappingStore, Outbox};
use anabranch_pipeline::records::{Cell, DeviceClaim, Flush, LaneId, Progress, Replacement, TimeToLive};
use anabranch_schemas::change::Action;
use anabranch_schemas::serial::{CodeKind, STORED_BYTES_MAX, StoredCode};
use anabranch_tests::until;
use futures::FutureExt;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio_util::sync::CancellationToken;

use crate::derived::{StoreSite, lsn};
use crate::lookup::Slow;
use crate::nats::within;
use crate::ports::cache::{LONG, cached, code, store};
use crate::redis_ground::RedisGround;
use crate::store_mapping::{TABLES, apply, boxed, lane, shard};
use crate::watched::Watched;

const TIME: TimeToLive = TimeToLive { full: LONG, empty: LONG };

/// Mapping tables with an outbox, and their readers.
struct Tables {
    site: StoreSite,
    mapping: MysqlMapping,
    outbox: MysqlOutbox,
}

async fn tables() -> (Tables, MysqlLane, Progress) {
    let site = StoreSite { mapping_tables: TABLES, is_cached: true, ..StoreSite::new().await };
    site.target("target-a").setup().await.unwrap();
    let (lane, progress) = lane(&site).await;
    let mapping = MysqlMapping::new(&site.config(), "serials", 4).unwrap();
    let outbox = site.target("target-a").outbox("serials").unwrap();
    (Tables { site, mapping, outbox }, lane, progress)
}

impl Tables {
    /// Drains until no entry is pending and the cache's life is recorded.
    async fn settle(&self, cache: &impl CodeCache) {
        let done = CancellationToken::new();
        let work = Drain { cache, outbox: &self.outbox, mapping: &self.mapping, time_to_live: TIME };
        drain(
            work,
            |is_filled| {
                if is_filled {
                    done.cancel()
                }
            },
            &done,
        )
        .await
        .unwrap();
    }

    async fn state(&self) -> CacheState {
        CacheState::read(&self.outbox).await.unwrap()
    }

    /// Expects that each entry of the cache equals its mapping rows; returns how many of the codes have an entry.
    async fn equal_entries(&self, cache: &impl CodeCache, codes: &[StoredCode]) -> usize {
        let mut found = 0;
        for (code, entry) in codes.iter().zip(cache.get(codes).await.unwrap().entries) {
            let mapped = self.mapped(code).await;
            if let Some(entry) = entry {
                found += 1;
                assert_eq!(decode(&entry).unwrap(), mapped, "{code:?}");
            }
        }
        found
    }

    async fn mapped(&self, code: &StoredCode) -> Vec<DeviceClaim> {
        self.mapping.claims(std::slice::from_ref(code), 1000).await.unwrap().swap_remove(0).claims
    }
}

fn insert(position: u64, uuid: u64, text: &str) -> (u64, u32, Action<'static>) {
    (position, 0, Action::Insert { after: boxed(uuid, text.as_bytes()) })
}

fn uuids(claims: &[DeviceClaim]) -> Vec<String> {
    claims.iter().map(|claim| String::from_utf8_lossy(&claim.uuid).into_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_tells_the_outbox_of_its_target_what_it_commits() {
    let (tables, _, _) = tables().await;
    let target = tables.site.target("target-a");
    let outbox = target.outbox("serials").unwrap();
    let id = LaneId { projection: "serials".into(), ..tables.site.lane_id("source-a", 0) };
    let mut lane = target.lane(&id).unwrap();
    let progress = lane.load().await.unwrap();
    let reported = outbox.touched();
    apply(&mut lane, progress, vec![insert(1, 7, "BOX 1")]).await;
    within(reported).await;
    assert!(outbox.touched().now_or_never().is_none(), "nothing was committed since");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_flush_touches_is_removed_and_filled_as_a_complete_set() {
    let ground = RedisGround::shared().await;
    let (tables, mut lane, progress) = tables().await;
    let progress = apply(&mut lane, progress, vec![insert(5, 1, "BOX"), insert(5, 2, "BOX")]).await;
    assert_eq!(tables.outbox.pending(10).await.unwrap().len(), 1, "one row a flush");
    assert!(!tables.state().await.is_believed(&ground.cache.incarnation().await.unwrap()));
    assert!(store(&ground.cache, &code("BOX"), 0, LONG).await, "left from an earlier life of the outbox");
    tables.settle(&ground.cache).await;
    assert_eq!(uuids(&cached(&ground.cache, &code("BOX")).await.unwrap()), ["1", "2"]);
    assert!(tables.state().await.is_believed(&ground.cache.incarnation().await.unwrap()));

    // A change follows an expired entry: the cache still gets the complete set, and not the one device.
    ground.cache.invalidate(&[code("BOX")]).await.unwrap();
    apply(&mut lane, progress, vec![insert(6, 3, "BOX")]).await;
    tables.settle(&ground.cache).await;
    assert_eq!(uuids(&cached(&ground.cache, &code("BOX")).await.unwrap()), ["1", "2", "3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_waits_for_no_reading_of_mapping_tables() {
    let (tables, mut lane, progress) = tables().await;
    let cache = MemoryCache::default();
    let progress = apply(&mut lane, progress, vec![insert(5, 1, "BOX")]).await;
    tables.settle(&cache).await;
    let life = cache.incarnation().await.unwrap();
    apply(&mut lane, progress, vec![insert(6, 2, "BOX")]).await;
    let stuck = Slow::stopped();
    let work = Drain { cache: &cache, outbox: &tables.outbox, mapping: &stuck, time_to_live: TIME };
    let (is_filled, stop) = (AtomicBool::new(false), CancellationToken::new());
    let removed = async {
        until("it is removed", async || cached(&cache, &code("BOX")).await.is_none()).await;
        until("it is not pending", async || tables.state().await.is_believed(&life)).await;
        until("it is to be filled", async || stuck.streams() == 1).await;
        assert!(!is_filled.load(Ordering::SeqCst), "nothing was read");
        stuck.let_go.add_permits(1);
        until("it is filled", async || is_filled.load(Ordering::SeqCst)).await;
        stop.cancel();
    };
    let draining = drain(work, |filled| is_filled.store(filled, Ordering::SeqCst), &stop);
    let (ended, ()) = tokio::join!(draining, removed);
    ended.unwrap();
    assert!(cached(&cache, &code("BOX")).await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_cache_did_not_take_is_removed_later() {
    let (tables, mut lane, progress) = tables().await;
    let cache = MemoryCache::default();
    let progress = apply(&mut lane, progress, vec![insert(5, 1, "BOX")]).await;
    tables.settle(&cache).await;
    apply(&mut lane, progress, vec![insert(6, 2, "BOX")]).await;
    let deaf = Watched { takes_removals: false, ..Watched::new(cache.clone()) };
    let work = Drain { cache: &deaf, outbox: &tables.outbox, mapping: &tables.mapping, time_to_live: TIME };
    let fault = drain(work, |_| (), &CancellationToken::new()).await.unwrap_err();
    assert_eq!(fault.code(), Code::CacheUnreachable, "{fault}");
    assert_eq!(uuids(&cached(&cache, &code("BOX")).await.unwrap()), ["1"], "still as it was");
    tables.settle(&cache).await;
    assert_eq!(uuids(&cached(&cache, &code("BOX")).await.unwrap()), ["1", "2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_withdrawn_shard_leaves_the_cache_too() {
    let ground = RedisGround::shared().await;
    let (tables, mut lane, progress) = tables().await;
    let devices = (1..=30).map(|uuid| insert(5, uuid, &format!("BOX-{}", uuid % 10))).collect();
    let progress = apply(&mut lane, progress, devices).await;
    tables.settle(&ground.cache).await;
    assert_eq!(uuids(&cached(&ground.cache, &code("BOX-3")).await.unwrap()).len(), 3);
    apply(&mut lane, progress, vec![(6, 0, Action::Withdraw)]).await;
    let noted = tables.outbox.pending(100).await.unwrap();
    assert!(noted.len() <= 2, "a row for a thousand values of a table, and not for each: {}", noted.len());
    assert_eq!(noted.iter().map(|row| row.codes.len()).sum::<usize>(), 10);
    tables.settle(&ground.cache).await;
    for number in 0..10 {
        assert_eq!(cached(&ground.cache, &code(&format!("BOX-{number}"))).await, Some(vec![]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_refresh_of_keys_removes_leaves_the_cache_too() {
    let (tables, mut lane, progress) = tables().await;
    let progress =
        apply(&mut lane, progress, vec![insert(9, 7, "WRONG"), insert(4, 7, "BOX"), insert(9, 8, "BOX")])
            .await;
    let cache = MemoryCache::default();
    tables.settle(&cache).await;
    assert_eq!(tables.mapped(&code("WRONG")).await.len(), 1);
    let mut flush = Flush::new(progress.clone());
    flush.progress.revision += 1;
    let rows = [(shard(0).shard, Cell::Bytes(b"7".as_slice().into()))].into();
    flush.replacement = Some(Replacement { low: lsn(5), column: lane.projection().source_column(), rows });
    lane.commit(&flush).await.unwrap();
    let noted: BTreeSet<_> =
        tables.outbox.pending(10).await.unwrap().into_iter().flat_map(|row| row.codes).collect();
    assert_eq!(noted, [code("BOX"), code("WRONG")].into());
    tables.settle(&cache).await;
    assert_eq!(tables.mapped(&code("WRONG")).await, []);
    assert_eq!(uuids(&tables.mapped(&code("BOX")).await), ["8"]);
}

/// A server truncates a text that becomes too long.
#[tokio::test(flavor = "multi_thread")]
async fn the_longest_codes_of_a_withdrawn_shard_are_all_noted() {
    const DEVICES: u64 = 2_400;
    let (tables, mut lane, progress) = tables().await;
    let text = |uuid: u64| format!("{uuid:x>STORED_BYTES_MAX$}");
    let devices = (0..DEVICES).map(|uuid| insert(5, uuid + 1, &text(uuid))).collect();
    let progress = apply(&mut lane, progress, devices).await;
    tables.settle(&MemoryCache::default()).await;
    apply(&mut lane, progress, vec![(6, 0, Action::Withdraw)]).await;
    let noted = tables.outbox.pending(100).await.unwrap();
    let codes: BTreeSet<_> = noted.into_iter().flat_map(|row| row.codes).collect();
    assert_eq!(codes, (0..DEVICES).map(|uuid| code(&text(uuid))).collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cache_that_forgot_its_newest_removals_is_not_believed_until_they_are_repeated() {
    let (tables, mut lane, progress) = tables().await;
    let cache = MemoryCache::default();
    let progress = apply(&mut lane, progress, vec![insert(5, 1, "BOX")]).await;
    tables.settle(&cache).await;
    let replica = cache.copy();
    let moved = Action::Update { before: boxed(1, b"BOX"), after: boxed(1, b"CRATE") };
    apply(&mut lane, progress, vec![(6, 0, moved)]).await;
    tables.settle(&cache).await;
    assert_eq!(cached(&cache, &code("BOX")).await, Some(vec![]));

    cache.fail_over_to(&replica);
    assert_eq!(uuids(&cached(&cache, &code("BOX")).await.unwrap()), ["1"], "what it holds is stale");
    assert!(!tables.state().await.is_believed(&cache.incarnation().await.unwrap()));
    tables.settle(&cache).await;
    assert!(tables.state().await.is_believed(&cache.incarnation().await.unwrap()));
    assert_eq!(cached(&cache, &code("BOX")).await, Some(vec![]));
    assert_eq!(uuids(&cached(&cache, &code("CRATE")).await.unwrap()), ["1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_copy_of_a_cache_is_emptied_since_more_may_have_changed_than_is_remembered() {
    let (tables, mut lane, progress) = tables().await;
    let cache = MemoryCache::default();
    let progress = apply(&mut lane, progress, vec![insert(5, 1, "BOX")]).await;
    tables.settle(&cache).await;
    let old = cache.copy();
    old.grow_old();
    let moved = Action::Update { before: boxed(1, b"BOX"), after: boxed(1, b"CRATE") };
    apply(&mut lane, progress, vec![(6, 0, moved)]).await;
    tables.settle(&cache).await;
    tables.site.sql(format!("DELETE FROM anabranch_{}.outbox", tables.site.prefix)).await;

    cache.fail_over_to(&old);
    assert_eq!(uuids(&cached(&cache, &code("BOX")).await.unwrap()), ["1"], "what it holds is stale");
    tables.settle(&cache).await;
    assert!(tables.state().await.is_believed(&cache.incarnation().await.unwrap()));
    assert_eq!(cached(&cache, &code("BOX")).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_was_overtaken_while_draining_says_nothing_of_the_next_life() {
    let (tables, mut lane, progress) = tables().await;
    let cache = MemoryCache::default();
    tables.settle(&cache).await;
    let life = cache.incarnation().await.unwrap();
    apply(&mut lane, progress, vec![insert(5, 1, "BOX")]).await;
    let pending = async || -> Vec<u64> {
        tables.outbox.pending(10).await.unwrap().into_iter().map(|row| row.id).collect()
    };
    let ids = pending().await;
    assert_eq!(ids.len(), 1);
    // The process has removed the entries and then stands still; another life of the cache and another process begin.
    let round = CacheRecord { incarnation: "repeating:1".to_owned(), time_to_live: LONG };
    tables.outbox.begin(Some(&life), &round).await.unwrap();
    tables.outbox.repeat().await.unwrap();
    tables.outbox.drained(&ids, &life).await.unwrap();
    tables.outbox.settle("repeating:0", "another life").await.unwrap();
    assert_eq!(pending().await, ids, "they are to be removed from the new life too");
    assert_eq!(tables.outbox.record().await.unwrap(), Some(round.clone()));
    tables.outbox.drained(&ids, &round.incarnation).await.unwrap();
    assert!(pending().await.is_empty());
    tables.outbox.settle(&round.incarnation, "another life").await.unwrap();
    assert!(tables.state().await.is_believed("another life"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shorter_time_to_live_reaches_what_is_cached() {
    let (tables, mut lane, progress) = tables().await;
    let cache = MemoryCache::default();
    apply(&mut lane, progress, vec![insert(5, 1, "BOX")]).await;
    tables.settle(&cache).await;
    assert!(cache.time_to_live(&code("BOX")).unwrap() > LONG / 2);
    let (done, full) = (CancellationToken::new(), Duration::from_secs(60));
    let time_to_live = TimeToLive { full, empty: full };
    let work = Drain { cache: &cache, outbox: &tables.outbox, mapping: &tables.mapping, time_to_live };
    let shortened = || cache.time_to_live(&code("BOX")) == Some(full);
    let until_shortened = |_| {
        if shortened() {
            done.cancel()
        }
    };
    drain(work, until_shortened, &done).await.unwrap();
    assert!(shortened());
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_time_without_the_cache_it_begins_empty() {
    let (mut tables, mut lane_with, progress) = tables().await;
    let cache = MemoryCache::default();
    apply(&mut lane_with, progress, vec![insert(5, 1, "BOX")]).await;
    tables.settle(&cache).await;

    tables.site.is_cached = false;
    let (mut lane_without, progress) = lane(&tables.site).await;
    let progress = apply(&mut lane_without, progress, vec![insert(6, 2, "BOX")]).await;
    tables.site.is_cached = true;
    assert_eq!(uuids(&cached(&cache, &code("BOX")).await.unwrap()), ["1"], "nobody has removed it");
    assert!(!tables.state().await.is_believed(&cache.incarnation().await.unwrap()));
    tables.settle(&cache).await;
    assert_eq!(cached(&cache, &code("BOX")).await, None);

    // Lanes with and without a cache at the same time, as during a rollout: each flush that noted no code is found.
    assert!(tables.state().await.is_believed(&cache.incarnation().await.unwrap()));
    apply(&mut lane_without, progress, vec![insert(7, 3, "BOX")]).await;
    assert!(!tables.state().await.is_believed(&cache.incarnation().await.unwrap()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_delay_of_the_drain_is_told() {
    let (tables, mut lane, progress) = tables().await;
    let cache = MemoryCache::default();
    tables.settle(&cache).await;
    let life = cache.incarnation().await.unwrap();
    assert!(tables.state().await.is_believed(&life));
    apply(&mut lane, progress, vec![insert(5, 1, "BOX")]).await;
    let outbox = format!(
        "UPDATE anabranch_{}.outbox SET written_at = written_at - INTERVAL 5 SECOND",
        tables.site.prefix
    );
    tables.site.sql(outbox).await;
    assert!(tables.state().await.delay >= Duration::from_secs(5));
    assert!(!tables.state().await.is_believed(&life), "its entries may be five seconds old");
    tables.settle(&cache).await;
    assert!(tables.state().await.is_believed(&life));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_drain_is_not_believed_after_the_clock_of_its_target_was_set_back() {
    let (tables, mut lane, progress) = tables().await;
    let cache = MemoryCache::default();
    tables.settle(&cache).await;
    let (life, watch) = (cache.incarnation().await.unwrap(), DrainWatch::default());
    let is_believed = async || {
        let states = watch.read(std::slice::from_ref(&tables.outbox)).await.unwrap();
        states.iter().all(|state| state.is_believed(&life))
    };
    apply(&mut lane, progress, vec![insert(5, 1, "BOX")]).await;
    // From this query on the process knows of the row.
    is_believed().await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert!(!is_believed().await);
    for written_at in ["UTC_TIMESTAMP(6)", "UTC_TIMESTAMP(6) + INTERVAL 1 HOUR"] {
        let prefix = &tables.site.prefix;
        tables.site.sql(format!("UPDATE anabranch_{prefix}.outbox SET written_at = {written_at}")).await;
        assert!(!is_believed().await, "{written_at}");
    }
    assert!(!tables.state().await.is_believed(&life), "a process that has just started sees no more");
    tables.settle(&cache).await;
    assert!(is_believed().await);
}

/// Puts some devices into other boxes, or takes them out; `boxes` has the number of each device's code.
fn packed_anew(
    random: &mut StdRng,
    boxes: &mut [Option<usize>],
    codes: &[StoredCode],
) -> Vec<Action<'static>> {
    let mut actions = Vec::new();
    for _ in 0..random.random_range(1..6) {
        let device = random.random_range(0..boxes.len());
        let after = random.random_ratio(2, 3).then(|| random.random_range(0..codes.len()));
        let row = |site: usize| boxed(device as u64 + 1, codes[site].as_bytes());
        let action = match (boxes[device], after) {
            (None, Some(after)) => Action::Insert { after: row(after) },
            (Some(before), Some(after)) => Action::Update { before: row(before), after: row(after) },
            (Some(before), None) => Action::Delete { before: row(before) },
            (None, None) => continue,
        };
        boxes[device] = after;
        actions.push(action);
    }
    actions
}

#[tokio::test(flavor = "multi_thread")]
async fn under_writes_fills_evictions_and_lost_caches_every_entry_ends_equal_to_its_table() {
    let seed = rand::random();
    eprintln!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let ground = RedisGround::shared().await;
    let (tables, mut lane, mut progress) = tables().await;
    let (written, stop) = (CancellationToken::new(), CancellationToken::new());
    // The drain is cut off at any moment, as by a kill, and begun again.
    let draining = async {
        let mut random = StdRng::seed_from_u64(seed ^ 2);
        while !written.is_cancelled() {
            let (cache, outbox, mapping) = (&ground.cache, &tables.outbox, &tables.mapping);
            let work = Drain { cache, outbox, mapping, time_to_live: TIME };
            let life = Duration::from_micros(random.random_range(500..20_000));
            if let Ok(Err(fault)) = tokio::time::timeout(life, drain(work, |_| (), &written)).await {
                // Work under way of the drain before may collide with this one.
                assert_eq!(fault.class(), Class::Transient, "{fault}");
            }
        }
    };
    let codes: Vec<StoredCode> = (0..300).map(|number| code(&format!("BOX-{number}"))).collect();
    let writing = async {
        let mut boxes = [None::<usize>; 300];
        for position in 1..=300 {
            let actions = packed_anew(&mut random, &mut boxes, &codes);
            let mut changes: Vec<_> = actions.into_iter().map(|action| (position, 0, action)).collect();
            if random.random_ratio(1, 150) {
                changes.push((position, 0, Action::Withdraw));
                boxes = [None; 300];
            }
            progress = apply(&mut lane, progress.clone(), changes).await;
            if random.random_ratio(1, 150) {
                ground.cache.clear().await.unwrap();
            }
        }
        written.cancel();
    };
    // A slow drain may empty the cache after the last write, so the stream goes on until the cache is filled again.
    let world = async {
        tokio::join!(draining, writing);
        tables.settle(&ground.cache).await;
        while tables.equal_entries(&ground.cache, &codes).await == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        stop.cancel();
    };
    let stream = async {
        let mut random = StdRng::seed_from_u64(seed ^ 1);
        while !stop.is_cancelled() {
            let code = &codes[random.random_range(0..codes.len())];
            if random.random_ratio(1, 20) {
                ground.cache.invalidate(std::slice::from_ref(code)).await.unwrap();
            }
            if cached(&ground.cache, code).await.is_none() {
                fill(&ground.cache, &tables.mapping, std::slice::from_ref(code), CACHED_CLAIMS_MAX, TIME)
                    .await
                    .unwrap();
            }
        }
    };
    tokio::join!(world, stream);
    tables.settle(&ground.cache).await;
    tables.equal_entries(&ground.cache, &codes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_code_of_many_devices_is_read_in_pages() {
    let (tables, mut lane, progress) = tables().await;
    let devices = (1..=25)
        .flat_map(|uuid| [0, 1].map(|shard| (5, shard, Action::Insert { after: boxed(uuid, b"PALLET") })));
    apply(&mut lane, progress, devices.collect()).await;
    let pallet = code("PALLET");
    let all = tables.mapped(&pallet).await;
    assert_eq!(all.len(), 50);
    assert!(all.is_sorted(), "in the order of shard, uuid and kind");
    let shards = [shard(0).shard, shard(1).shard];
    assert!(shards.iter().all(|shard| all.iter().filter(|claim| claim.shard == *shard).count() == 25));
    let (mut paged, mut after) = (Vec::new(), None);
    loop {
        let page = tables.mapping.page(&pallet, after.as_ref(), 7).await.unwrap();
        assert!(page.claims.len() <= 7);
        paged.extend(page.claims);
        after = paged.last().cloned();
        if !page.is_cut {
            break;
        }
    }
    assert_eq!(paged, all);

    let mut found = Vec::new();
    tables.mapping.duplicates(&[CodeKind::BoxNo], |one| found.push((one.value, one.devices))).await.unwrap();
    assert_eq!(found, [(b"PALLET".to_vec(), 25)], "a device that two shards claim is one");
    tables.mapping.duplicates(&[CodeKind::Imei1], |one| panic!("{one:?}")).await.unwrap();
}
