//! Many lookups at once: one query for a code, bounded, and never an answer from a cache that is not believed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anabranch_connectors::memory::{MemoryCache, MemoryMapping, Weather};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::lookup::{CACHED_CLAIMS_MAX, Origin, QueryBounds, Reader, Unanswered};
use anabranch_pipeline::ports::{CacheRecord, CodeCache, MappingStore, Outbox, OutboxBacklog, OutboxRow};
use anabranch_pipeline::records::{Claims, DeviceClaim, TimeToLive};
use anabranch_schemas::serial::StoredCode;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::ports::cache::{LONG, code, set, store};
use crate::watched::Watched;

const TIME: TimeToLive = TimeToLive { full: LONG, empty: LONG };
const BOUNDS: QueryBounds = QueryBounds { at_once: 2, queued: 3, codes: 8 };

/// Mapping tables that answer when the test lets them, and count queries.
#[derive(Debug, Clone)]
pub struct Slow {
    pub let_go: Arc<Semaphore>,
    streams: Arc<AtomicUsize>,
}

impl Slow {
    pub fn stopped() -> Self {
        Self { let_go: Arc::new(Semaphore::new(0)), streams: Arc::default() }
    }

    fn open() -> Self {
        let slow = Self::stopped();
        slow.let_go.add_permits(1_000_000);
        slow
    }

    pub fn streams(&self) -> usize {
        self.streams.load(Ordering::SeqCst)
    }
}

impl MappingStore for Slow {
    async fn claims(&self, codes: &[StoredCode], _: usize) -> Result<Vec<Claims>, Fault> {
        self.streams.fetch_add(1, Ordering::SeqCst);
        self.let_go.acquire().await.unwrap().forget();
        if codes.iter().any(|code| code.as_bytes() == b"BROKEN") {
            return Err(Fault::new(Code::TargetUnreachable, "target", "it is gone"));
        }
        Ok(vec![Claims { claims: set(1), is_cut: false }; codes.len()])
    }

    async fn page(&self, _: &StoredCode, _: Option<&DeviceClaim>, _: usize) -> Result<Claims, Fault> {
        unreachable!("it is not asked for")
    }
}

/// An outbox that is drained into this life of the cache.
pub struct Drained(pub Option<String>);

impl Outbox for Drained {
    async fn pending(&self, _: usize) -> Result<Vec<OutboxRow>, Fault> {
        Ok(Vec::new())
    }

    async fn touched(&self) {
        std::future::pending().await
    }

    async fn drained(&self, _: &[u64], _: &str) -> Result<(), Fault> {
        Ok(())
    }

    async fn repeat(&self) -> Result<(), Fault> {
        Ok(())
    }

    async fn forget(&self) -> Result<(), Fault> {
        Ok(())
    }

    async fn record(&self) -> Result<Option<CacheRecord>, Fault> {
        let record =
            |incarnation: &String| CacheRecord { incarnation: incarnation.clone(), time_to_live: LONG };
        Ok(self.0.as_ref().map(record))
    }

    async fn begin(&self, _: Option<&str>, _: &CacheRecord) -> Result<(), Fault> {
        Ok(())
    }

    async fn settle(&self, _: &str, _: &str) -> Result<(), Fault> {
        Ok(())
    }

    async fn set_time_to_live(&self, _: Duration) -> Result<(), Fault> {
        Ok(())
    }

    async fn backlog(&self) -> Result<Option<OutboxBacklog>, Fault> {
        Ok(None)
    }
}

fn reader(mapping: &Slow) -> Reader<MemoryCache, Slow> {
    Reader::new(None, mapping.clone(), BOUNDS)
}

async fn one(reader: &Reader<MemoryCache, Slow>, text: &str) -> Result<(usize, Origin), Unanswered> {
    let (claims, origin) = reader.read(&[code(text)], CACHED_CLAIMS_MAX).await?.swap_remove(0);
    Ok((claims.claims.len(), origin))
}

/// Gives every task its turn until all of them wait.
async fn settled() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn many_who_miss_one_code_wait_for_one_reading_also_when_the_first_goes_away() {
    let mapping = Slow::stopped();
    let reader = reader(&mapping);
    let first = tokio::spawn({
        let reader = reader.clone();
        async move { one(&reader, "BOX").await.map(drop) }
    });
    settled().await;
    let mut others = JoinSet::new();
    for _ in 0..500 {
        let reader = reader.clone();
        others.spawn(async move { one(&reader, "BOX").await });
    }
    settled().await;
    first.abort();
    settled().await;
    mapping.let_go.add_permits(1);
    while let Some(found) = others.join_next().await {
        assert_eq!(found.unwrap().unwrap(), (2, Origin::Mapping));
    }
    assert_eq!(mapping.streams(), 1);
    mapping.let_go.add_permits(1);
    one(&reader, "BOX").await.unwrap();
    assert_eq!(mapping.streams(), 2, "what has landed is not used again");
}

/// Otherwise the lookup would get rows from before its start, however old.
#[tokio::test(start_paused = true)]
async fn who_comes_after_all_have_gone_away_has_a_new_reading() {
    let mapping = Slow::stopped();
    let reader = reader(&mapping);
    let gone = tokio::spawn({
        let reader = reader.clone();
        async move { one(&reader, "BOX").await.map(drop) }
    });
    settled().await;
    gone.abort();
    mapping.let_go.add_permits(2);
    settled().await;
    one(&reader, "BOX").await.unwrap();
    assert_eq!(mapping.streams(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_batch_reads_what_nobody_reads_yet_in_one_reading() {
    let mapping = Slow::stopped();
    let reader = reader(&mapping);
    let box_alone = tokio::spawn({
        let reader = reader.clone();
        async move { one(&reader, "BOX").await.map(drop) }
    });
    settled().await;
    let codes = ["BOX", "A", "B", "A"].map(code);
    let batch = tokio::spawn({
        let reader = reader.clone();
        async move { reader.read(&codes, CACHED_CLAIMS_MAX).await.map(|found| found.len()) }
    });
    settled().await;
    mapping.let_go.add_permits(2);
    assert_eq!(batch.await.unwrap().unwrap(), 4);
    box_alone.await.unwrap().unwrap();
    assert_eq!(mapping.streams(), 2);
}

#[tokio::test(start_paused = true)]
async fn who_finds_the_queue_full_is_told_to_come_again_and_faults_reach_all_who_wait() {
    let mapping = Slow::stopped();
    let reader = reader(&mapping);
    let mut asked = JoinSet::new();
    for number in 0..10 {
        let reader = reader.clone();
        asked.spawn(async move { one(&reader, &format!("BOX-{number}")).await });
    }
    settled().await;
    assert_eq!(mapping.streams(), BOUNDS.at_once);
    mapping.let_go.add_permits(100);
    let mut outcomes = HashMap::new();
    while let Some(found) = asked.join_next().await {
        let outcome = match found.unwrap() {
            Ok(_) => "found",
            Err(Unanswered::Busy) => "busy",
            Err(Unanswered::Failed(_)) => "failed",
        };
        *outcomes.entry(outcome).or_insert(0) += 1;
    }
    assert_eq!(outcomes, HashMap::from([("found", 5), ("busy", 5)]));

    let both = tokio::join!(one(&reader, "BROKEN"), one(&reader, "BROKEN"));
    for found in [both.0, both.1] {
        assert!(matches!(found, Err(Unanswered::Failed(fault)) if fault.code() == Code::TargetUnreachable));
    }
    assert_eq!(one(&reader, "BOX").await.unwrap().0, 2, "it goes on");
}

#[tokio::test(start_paused = true)]
async fn a_cache_is_asked_only_in_the_life_that_everything_was_drained_into() {
    let (mapping, cache) = (Slow::open(), MemoryCache::default());
    let reader = Reader::new(Some((cache.clone(), TIME)), mapping.clone(), BOUNDS);
    assert!(store(&cache, &code("BOX"), 7, LONG).await);
    assert_eq!(one(&reader, "BOX").await.unwrap().1, Origin::Mapping, "not looked at yet");

    let life = cache.incarnation().await.unwrap();
    for (recorded, expected) in
        [(None, Origin::Mapping), (Some("another".to_owned()), Origin::Mapping), (Some(life), Origin::Cache)]
    {
        reader.check_cache(&[Drained(recorded.clone())]).await;
        assert_eq!(one(&reader, "BOX").await.unwrap().1, expected, "{recorded:?}");
        assert_eq!(reader.bypassed().is_none(), expected == Origin::Cache);
    }
    // The missed entry is filled in the cache.
    assert_eq!(one(&reader, "CRATE").await.unwrap().1, Origin::Mapping);
    assert_eq!(one(&reader, "CRATE").await.unwrap().1, Origin::Cache);
    assert_eq!(reader.fresh(&[code("CRATE")], CACHED_CLAIMS_MAX).await.unwrap()[0].1, Origin::Mapping);

    cache.fail_over_to(&cache.copy());
    assert_eq!(one(&reader, "BOX").await.unwrap().1, Origin::Mapping, "seen by the answer itself");
    assert!(reader.bypassed().is_some());
    let life = cache.incarnation().await.unwrap();
    reader.check_cache(&[Drained(Some(life.clone()))]).await;
    assert_eq!(one(&reader, "BOX").await.unwrap().1, Origin::Cache);
    reader.check_cache(&[Drained(Some(life)), Drained(None)]).await;
    assert_eq!(one(&reader, "BOX").await.unwrap().1, Origin::Mapping, "one target's outbox is not drained");
    let life = cache.incarnation().await.unwrap();
    reader.check_cache(&[Drained(Some(life))]).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(
        one(&reader, "BOX").await.unwrap().1,
        Origin::Mapping,
        "what was seen long ago is not believed"
    );
}

#[tokio::test(start_paused = true)]
async fn a_set_back_clock_of_a_target_makes_no_stalled_drain_appear_settled() {
    let (mapping, cache) = (MemoryMapping::new(Weather::calm()), MemoryCache::default());
    let life = cache.incarnation().await.unwrap();
    mapping.begin(None, &CacheRecord { incarnation: life.clone(), time_to_live: LONG }).await.unwrap();
    let start = || Reader::new(Some((cache.clone(), TIME)), mapping.clone(), BOUNDS);
    let is_believed = async |reader: &Reader<MemoryCache, MemoryMapping>| {
        reader.check_cache(std::slice::from_ref(&mapping)).await;
        reader.bypassed().is_none()
    };
    let running = start();
    let ids = ["BOX", "CRATE"].map(|text| mapping.flush(vec![(code(text), set(2))]));
    assert!(is_believed(&running).await, "the drain has a second");

    let stalled = Duration::from_secs(2);
    tokio::time::sleep(stalled).await;
    assert!(!is_believed(&running).await);
    mapping.set_clock_back(stalled);
    assert!(!is_believed(&running).await, "by the server's clock both were written just now");
    mapping.drained(&ids[..1], &life).await.unwrap();
    assert!(!is_believed(&running).await, "CRATE has waited as long as BOX has");
    mapping.set_clock_back(LONG);
    assert!(!is_believed(&start()).await, "a process that has just started finds a row of the future");
    mapping.drained(&ids[1..], &life).await.unwrap();
    assert!(is_believed(&running).await);
    assert!(is_believed(&start()).await);
}

/// Each lookup has its own answer, even when its neighbour has gone away.
#[tokio::test(start_paused = true)]
async fn lookups_that_come_while_the_cache_is_asked_share_the_next_question() {
    let cache = Watched { let_go: Arc::new(Semaphore::new(0)), ..Watched::new(MemoryCache::default()) };
    let text = |number: u64| format!("BOX-{number}");
    for number in 0..200 {
        assert!(store(&cache.cache, &code(&text(number)), number, LONG).await);
    }
    let reader = Reader::new(Some((cache.clone(), TIME)), Slow::open(), BOUNDS);
    reader.check_cache(&[Drained(Some(cache.incarnation().await.unwrap()))]).await;
    let lookup = |numbers: Vec<u64>| {
        let reader = reader.clone();
        tokio::spawn(async move {
            let codes: Vec<StoredCode> = numbers.iter().map(|number| code(&text(*number))).collect();
            let found = reader.read(&codes, CACHED_CLAIMS_MAX).await.unwrap();
            for (number, (claims, origin)) in numbers.into_iter().zip(found) {
                assert_eq!((&claims.claims, origin), (&set(number), Origin::Cache), "{number}");
            }
        })
    };
    let asked = || cache.asked.lock().unwrap().clone();
    let alone = lookup(vec![0]);
    settled().await;
    assert_eq!(asked(), [1], "it waits for nobody");
    let some = |number: u64| if number.is_multiple_of(2) { vec![number] } else { vec![number, number + 100] };
    let mut others: Vec<_> = (1..50).map(|number| lookup(some(number))).collect();
    settled().await;
    others.swap_remove(7).abort();
    cache.let_go.add_permits(1_000);
    alone.await.unwrap();
    for other in others {
        other.await.unwrap();
    }
    assert_eq!(asked().iter().sum::<usize>(), 1 + 49 + 25);
    assert!(asked().len() <= 3, "{:?}", asked());
}
