//! Lookups of many codes are bounded by codes and by claims in answers: at the tables, at the cache, in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anabranch_connectors::memory::{MemoryCache, MemoryMapping, Weather};
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::lookup::{CACHED_CLAIMS_MAX, Origin, QUESTION_CODES_MAX, QueryBounds, Reader};
use anabranch_pipeline::ports::{CodeCache, MappingStore};
use anabranch_pipeline::records::{Claims, DeviceClaim, TimeToLive};
use anabranch_schemas::serial::StoredCode;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::lookup::Drained;
use crate::ports::cache::{LONG, cached, code, set, store};
use crate::watched::Watched;

const TIME: TimeToLive = TimeToLive { full: LONG, empty: LONG };
const BOUNDS: QueryBounds = QueryBounds { at_once: 100, queued: 1_000, codes: 1_000 };
/// Codes of a batch.
const BATCH: u64 = 200;
/// Claims of a code in a batch's answer.
const SHOWN: usize = 20;

/// Mapping tables with a thousand claims of each code, which count queried rows and codes.
#[derive(Debug, Clone, Default)]
struct Crates {
    rows: Arc<AtomicUsize>,
    codes: Arc<AtomicUsize>,
}

fn many(count: usize) -> Vec<DeviceClaim> {
    let mut claims: Vec<DeviceClaim> = (0..count as u64).flat_map(set).collect();
    claims.sort_unstable();
    claims.truncate(count);
    claims
}

impl MappingStore for Crates {
    async fn claims(&self, codes: &[StoredCode], limit: usize) -> Result<Vec<Claims>, Fault> {
        self.codes.fetch_add(codes.len(), Ordering::SeqCst);
        self.rows.fetch_add(codes.len() * limit.min(CACHED_CLAIMS_MAX), Ordering::SeqCst);
        let claims = many(limit.min(CACHED_CLAIMS_MAX));
        Ok(vec![Claims { claims, is_cut: limit < CACHED_CLAIMS_MAX }; codes.len()])
    }

    async fn page(&self, _: &StoredCode, _: Option<&DeviceClaim>, _: usize) -> Result<Claims, Fault> {
        unreachable!("it is not asked for")
    }
}

fn codes(count: u64) -> Vec<StoredCode> {
    (0..count).map(|number| code(&format!("BOX-{number}"))).collect()
}

async fn believed<C: CodeCache + Clone + 'static, M: MappingStore + 'static>(
    cache: &C,
    mapping: M,
) -> Reader<C, M> {
    let reader = Reader::new(Some((cache.clone(), TIME)), mapping, BOUNDS);
    reader.check_cache(&[Drained(Some(cache.incarnation().await.unwrap()))]).await;
    reader
}

#[tokio::test(start_paused = true)]
async fn a_batch_reads_no_more_claims_of_a_code_than_it_shows() {
    let mapping = Crates::default();
    let reader: Reader<MemoryCache, _> = Reader::new(None, mapping.clone(), BOUNDS);
    for number in 1..=2 {
        let read = match number {
            1 => reader.read(&codes(BATCH), SHOWN).await.unwrap(),
            _ => reader.fresh(&codes(BATCH), SHOWN).await.unwrap(),
        };
        assert!(read.iter().all(|(claims, _)| claims.is_cut && claims.claims.len() == SHOWN));
        assert_eq!(mapping.rows.load(Ordering::SeqCst), number * BATCH as usize * SHOWN);
    }
    // A lookup of more claims does not wait for a query of fewer; the other way round they share one.
    let one = codes(1);
    let both = tokio::join!(reader.read(&one, CACHED_CLAIMS_MAX), reader.read(&one, SHOWN));
    assert_eq!(both.0.unwrap()[0].0.claims.len(), CACHED_CLAIMS_MAX);
    assert!(both.1.unwrap()[0].0.claims.len() >= SHOWN);
    assert_eq!(mapping.codes.load(Ordering::SeqCst), 2 * BATCH as usize + 1, "one reading for both");
}

#[tokio::test(start_paused = true)]
async fn what_a_batch_read_in_part_is_not_left_in_the_cache_and_a_cached_set_is_shown_in_part() {
    let (cache, mapping) = (MemoryCache::default(), MemoryMapping::new(Weather::calm()));
    let (large, small) = (code("CRATE"), code("BOX"));
    mapping.flush(vec![(large.clone(), many(SHOWN + 1)), (small.clone(), many(SHOWN))]);
    let reader = believed(&cache, mapping).await;
    let both = [large.clone(), small.clone()];
    let shape = |read: Vec<(Arc<Claims>, Origin)>| -> Vec<(usize, bool, Origin)> {
        read.iter().map(|(claims, origin)| (claims.claims.len(), claims.is_cut, *origin)).collect()
    };
    let read = shape(reader.read(&both, SHOWN).await.unwrap());
    assert_eq!(read, [(SHOWN, true, Origin::Mapping), (SHOWN, false, Origin::Mapping)]);
    assert_eq!(cached(&cache, &large).await, None, "a part is no complete set");
    assert_eq!(cached(&cache, &small).await, Some(many(SHOWN)));

    let read = shape(reader.read(&both[..1], CACHED_CLAIMS_MAX).await.unwrap());
    assert_eq!(read, [(SHOWN + 1, false, Origin::Mapping)]);
    let read = shape(reader.read(&both, SHOWN).await.unwrap());
    assert_eq!(read, [(SHOWN, true, Origin::Cache), (SHOWN, false, Origin::Cache)]);
}

/// Each batch has its own answer.
#[tokio::test(start_paused = true)]
async fn a_question_to_the_cache_has_few_codes_however_many_batches_wait() {
    let cache = Watched { let_go: Arc::new(Semaphore::new(0)), ..Watched::new(MemoryCache::default()) };
    for (number, code) in codes(1_100).iter().enumerate() {
        assert!(store(&cache.cache, code, number as u64, LONG).await);
    }
    let reader = believed(&cache, Crates::default()).await;
    let mut batches = JoinSet::new();
    for batch in 0..64 {
        let reader = reader.clone();
        // The last batch alone has more codes than one question.
        let asked = if batch < 63 { codes(batch + BATCH).split_off(batch as usize) } else { codes(1_100) };
        batches.spawn(async move {
            let found = reader.read(&asked, SHOWN).await.unwrap();
            assert_eq!(found.len(), asked.len());
            for (code, (claims, origin)) in asked.iter().zip(found) {
                let number: u64 = std::str::from_utf8(&code.as_bytes()[4..]).unwrap().parse().unwrap();
                assert_eq!((&claims.claims, origin), (&set(number), Origin::Cache), "{number}");
            }
        });
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    cache.let_go.add_permits(1_000);
    while let Some(ended) = batches.join_next().await {
        ended.unwrap();
    }
    let asked = cache.asked.lock().unwrap().clone();
    assert_eq!(asked.iter().sum::<usize>(), 63 * BATCH as usize + 1_100);
    assert!(asked.iter().all(|codes| *codes <= QUESTION_CODES_MAX), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn batches_are_let_in_by_their_codes_and_each_has_its_turn() {
    let reader: Reader<MemoryCache, _> = Reader::new(None, Crates::default(), BOUNDS);
    let (held, most, done) =
        (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
    let mut batches = JoinSet::new();
    for number in 0..100 {
        // One batch has more codes than there is room for: it is let in alone.
        let size = if number == 50 { 5_000 } else { 300 };
        let (reader, held, most) = (reader.clone(), held.clone(), most.clone());
        batches.spawn(async move {
            let room = reader.room(size).await.unwrap();
            let now = held.fetch_add(size.min(BOUNDS.codes), Ordering::SeqCst) + size.min(BOUNDS.codes);
            most.fetch_max(now, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(10)).await;
            held.fetch_sub(size.min(BOUNDS.codes), Ordering::SeqCst);
            drop(room);
        });
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(reader.read(&codes(1), SHOWN).await.unwrap().len(), 1, "a lookup of one code waits for none");
    while let Some(ended) = batches.join_next().await {
        ended.unwrap();
        done.fetch_add(1, Ordering::SeqCst);
    }
    assert_eq!(done.into_inner(), 100);
    let most = most.load(Ordering::SeqCst);
    assert!((900..=BOUNDS.codes).contains(&most), "{most} codes at once");
}
