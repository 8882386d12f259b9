//! The cache of mapping rows: tokens, complete sets, and crossing fills and writes.

use std::time::Duration;

use anabranch_connectors::memory::MemoryCache;
use anabranch_connectors::redis::RedisCache;
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::lookup::{CACHED_CLAIMS_MAX, decode, encode, fill};
use anabranch_pipeline::ports::{CacheEntry, CacheFill, CodeCache, MappingStore};
use anabranch_pipeline::records::{Claims, DeviceClaim, TimeToLive};
use anabranch_schemas::serial::{CodeKind, StoredCode};
use anabranch_schemas::shard::ShardId;

use crate::redis_ground::RedisGround;

pub trait Ground {
    type Cache: CodeCache;

    async fn start() -> Self;
    fn cache(&self) -> &Self::Cache;
    /// Plants an entry by hand; without a time to live it lives for ever.
    async fn plant(&self, code: &StoredCode, entry: Vec<u8>, time_to_live: Option<Duration>);
    /// Blocks every further fill of the code, by hand.
    async fn block(&self, code: &StoredCode);
}

pub struct Twin(MemoryCache);

impl Ground for Twin {
    type Cache = MemoryCache;

    async fn start() -> Self {
        Self(MemoryCache::default())
    }

    fn cache(&self) -> &MemoryCache {
        &self.0
    }

    async fn plant(&self, code: &StoredCode, entry: Vec<u8>, time_to_live: Option<Duration>) {
        self.0.plant(code, entry, time_to_live.unwrap_or(Duration::MAX));
    }

    async fn block(&self, code: &StoredCode) {
        self.0.block(code);
    }
}

impl Ground for RedisGround {
    type Cache = RedisCache;

    async fn start() -> Self {
        Self::shared().await
    }

    fn cache(&self) -> &RedisCache {
        &self.cache
    }

    async fn plant(&self, code: &StoredCode, entry: Vec<u8>, time_to_live: Option<Duration>) {
        let mut set = redis::cmd("SET");
        set.arg(self.key(code, 'e')).arg(entry);
        if let Some(time_to_live) = time_to_live {
            set.arg("PX").arg(time_to_live.as_millis() as u64);
        }
        set.query_async::<()>(&mut self.admin().await).await.unwrap();
    }

    async fn block(&self, code: &StoredCode) {
        let mut set = redis::cmd("SET");
        set.arg(self.key(code, 't')).arg("nobody");
        set.query_async::<()>(&mut self.admin().await).await.unwrap();
    }
}

on_twin_and_server!(Twin, RedisGround:
    a_fill_stores_a_complete_set_once_and_only_under_its_token,
    a_fill_that_crosses_a_write_in_any_order_never_leaves_what_was_before_it,
    a_freshness_key_is_left_in_its_life_only_and_goes_with_the_rest,
    a_scan_names_every_code_that_something_is_kept_for,
    any_bytes_are_a_code,
    emptying_removes_everything_of_this_cache,
    sets_too_large_to_cache_are_read_and_not_stored,
    shortening_reaches_entries_that_exist,
);

pub const LONG: Duration = Duration::from_secs(3600);

pub fn code(text: &str) -> StoredCode {
    StoredCode::exact(text.as_bytes()).unwrap()
}

/// A set whose devices carry this version of the mapping tables.
pub fn set(version: u64) -> Vec<DeviceClaim> {
    let claim = |uuid: String| DeviceClaim {
        shard: ShardId::from_u64(1).unwrap(),
        uuid: uuid.into_bytes().into(),
        kind: CodeKind::BoxNo,
    };
    vec![claim(format!("{version}-a")), claim(format!("{version}-b"))]
}

/// Mapping tables in which every code has the same set.
struct Same;

impl MappingStore for Same {
    async fn claims(&self, codes: &[StoredCode], _: usize) -> Result<Vec<Claims>, Fault> {
        Ok(vec![Claims { claims: set(0), is_cut: false }; codes.len()])
    }

    async fn page(&self, _: &StoredCode, _: Option<&DeviceClaim>, _: usize) -> Result<Claims, Fault> {
        unreachable!("it is not asked for")
    }
}

/// The cached set; `None` when there is none or it cannot be read.
pub async fn cached(cache: &impl CodeCache, code: &StoredCode) -> Option<Vec<DeviceClaim>> {
    let cached = cache.get(std::slice::from_ref(code)).await.unwrap();
    cached.entries[0].as_deref().map(|entry| decode(entry).unwrap())
}

pub async fn store(cache: &impl CodeCache, code: &StoredCode, version: u64, time_to_live: Duration) -> bool {
    let Some(token) = cache.begin(std::slice::from_ref(code)).await.unwrap()[0] else { return false };
    let fill = CacheFill { code: code.clone(), token, entry: encode(&set(version)), time_to_live };
    cache.finish(&[fill]).await.unwrap() == 1
}

async fn a_fill_stores_a_complete_set_once_and_only_under_its_token(ground: impl Ground) {
    let (cache, code) = (ground.cache(), code("BOX-1"));
    assert_eq!(cached(cache, &code).await, None);
    let token = cache.begin(std::slice::from_ref(&code)).await.unwrap()[0].expect("nobody fills it");
    assert_eq!(cache.begin(std::slice::from_ref(&code)).await.unwrap(), [None], "one fill at a time");
    let fill = CacheFill { code: code.clone(), token, entry: encode(&set(1)), time_to_live: LONG };
    assert_eq!(cache.finish(std::slice::from_ref(&fill)).await.unwrap(), 1);
    assert_eq!(cached(cache, &code).await, Some(set(1)));
    let late = CacheFill { entry: encode(&set(0)), ..fill };
    assert_eq!(cache.finish(&[late]).await.unwrap(), 0, "a token serves once");
    assert_eq!(cached(cache, &code).await, Some(set(1)));
    cache.invalidate(std::slice::from_ref(&code)).await.unwrap();
    assert_eq!(cached(cache, &code).await, None);
}

/// A step of one of two readers that miss, or of the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Begin(usize),
    Read(usize),
    Finish(usize),
    Write,
    Drain,
}

/// Every order in which these steps can follow one another, each party in its own order.
fn orders(parties: &[&[Step]]) -> Vec<Vec<Step>> {
    if parties.iter().all(|party| party.is_empty()) {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (number, party) in parties.iter().enumerate() {
        let [first, rest @ ..] = party else { continue };
        let mut left = parties.to_vec();
        left[number] = rest;
        all.extend(orders(&left).into_iter().map(|order| [vec![*first], order].concat()));
    }
    all
}

async fn a_fill_that_crosses_a_write_in_any_order_never_leaves_what_was_before_it(ground: impl Ground) {
    use Step::*;
    let cache = ground.cache();
    let orders = orders(&[
        &[Begin(0), Read(0), Finish(0)],
        &[Begin(1), Read(1), Finish(1)],
        &[Write, Drain, Write, Drain],
    ]);
    assert_eq!(orders.len(), 4200);
    for (number, order) in orders.iter().enumerate() {
        let (code, mut present, mut drained) = (code(&format!("CROSSED-{number}")), 0, 0);
        let (mut tokens, mut read) = ([None; 2], [0; 2]);
        for step in order {
            match step {
                Begin(reader) => {
                    tokens[*reader] = cache.begin(std::slice::from_ref(&code)).await.unwrap()[0];
                }
                Read(reader) => read[*reader] = present,
                Finish(reader) => {
                    let Some(token) = tokens[*reader] else { continue };
                    let entry = encode(&set(read[*reader]));
                    let fill = CacheFill { code: code.clone(), token, entry, time_to_live: LONG };
                    cache.finish(&[fill]).await.unwrap();
                }
                Write => present += 1,
                Drain => {
                    cache.invalidate(std::slice::from_ref(&code)).await.unwrap();
                    drained = present;
                }
            }
            // A version from before a drained one never follows it.
            if let Some(found) = cached(cache, &code).await {
                let is_fresh = (drained..=present).any(|version| found == set(version));
                assert!(is_fresh, "{order:?}: {found:?} after {step:?}");
            }
        }
    }
}

async fn a_freshness_key_is_left_in_its_life_only_and_goes_with_the_rest(ground: impl Ground) {
    let cache = ground.cache();
    assert!(!cache.has_freshness_key().await.unwrap());
    cache.write_freshness_key("another life").await.unwrap_err();
    assert!(!cache.has_freshness_key().await.unwrap());
    cache.write_freshness_key(&cache.incarnation().await.unwrap()).await.unwrap();
    assert!(cache.has_freshness_key().await.unwrap());
    cache.clear().await.unwrap();
    assert!(!cache.has_freshness_key().await.unwrap());
}

/// Every code that a scan names, in order.
pub async fn scanned(cache: &impl CodeCache) -> Vec<StoredCode> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let (codes, next) = cache.scan(after.as_ref()).await.unwrap();
        all.extend(codes);
        after = next;
        if after.is_none() {
            all.sort_unstable();
            all.dedup();
            return all;
        }
    }
}

async fn a_scan_names_every_code_that_something_is_kept_for(ground: impl Ground) {
    let cache = ground.cache();
    assert!(scanned(cache).await.is_empty());
    let mut codes: Vec<StoredCode> = (0..2500).map(|number| code(&format!("SCANNED-{number:04}"))).collect();
    codes.extend(
        [b"{".as_slice(), b"}e:x", b"\0\xff*", &[b'y'; 255]].map(|odd| StoredCode::exact(odd).unwrap()),
    );
    fill(cache, &Same, &codes, CACHED_CLAIMS_MAX, TimeToLive { full: LONG, empty: LONG }).await.unwrap();
    let [lasting, blocked] = ["LASTING", "BLOCKED"].map(code);
    ground.plant(&lasting, b"any".to_vec(), None).await;
    ground.block(&blocked).await;
    cache.write_freshness_key(&cache.incarnation().await.unwrap()).await.unwrap();
    codes.extend([lasting.clone(), blocked.clone()]);
    codes.sort_unstable();
    assert_eq!(scanned(cache).await, codes);

    let asked = [codes[0].clone(), lasting, code("NOTHING"), blocked];
    let entries = cache.entries(&asked).await.unwrap();
    assert_eq!(*entries.incarnation, *cache.incarnation().await.unwrap());
    let [filled, lasting, nothing, blocked] = &entries.entries[..] else { panic!("{entries:?}") };
    let (bytes, left) = filled.entry.as_ref().unwrap();
    assert_eq!(decode(bytes), Ok(set(0)));
    let left = left.unwrap();
    assert!(left <= LONG && left > LONG.mul_f64(0.9), "{left:?}");
    assert_eq!(lasting.entry, Some((b"any".to_vec(), None)));
    assert_eq!((nothing, blocked.entry.as_ref(), blocked.is_blocked), (&CacheEntry::default(), None, true));
    cache.invalidate(&asked).await.unwrap();
    assert_eq!(
        scanned(cache).await,
        codes.into_iter().filter(|code| !asked.contains(code)).collect::<Vec<_>>()
    );
}

async fn any_bytes_are_a_code(ground: impl Ground) {
    let cache = ground.cache();
    let codes: Vec<&[u8]> =
        vec![b"{", b"}", b"{}", b"a}b{c", b"*", b"a b\r\nDEL x\r\n", b"\0", b"\xff\xfe", &[b'x'; 255]];
    for (version, code) in (1..).zip(&codes) {
        let code = StoredCode::exact(code).unwrap();
        assert!(store(cache, &code, version, LONG).await, "{code:?}");
    }
    for (version, code) in (1..).zip(&codes) {
        let code = StoredCode::exact(code).unwrap();
        assert_eq!(cached(cache, &code).await, Some(set(version)), "{code:?}");
    }
}

async fn emptying_removes_everything_of_this_cache(ground: impl Ground) {
    let cache = ground.cache();
    let codes: Vec<StoredCode> = (0..3000).map(|number| code(&format!("EMPTIED-{number}"))).collect();
    fill(cache, &Same, &codes, CACHED_CLAIMS_MAX, TimeToLive { full: LONG, empty: LONG }).await.unwrap();
    assert_eq!(cached(cache, &codes[2999]).await, Some(set(0)));
    let announced = code("ANNOUNCED");
    cache.begin(std::slice::from_ref(&announced)).await.unwrap();
    cache.clear().await.unwrap();
    for code in &codes {
        assert_eq!(cached(cache, code).await, None);
    }
    assert!(cache.begin(&[announced]).await.unwrap()[0].is_some(), "tokens are removed too");
}

async fn sets_too_large_to_cache_are_read_and_not_stored(ground: impl Ground) {
    struct Crate;
    impl MappingStore for Crate {
        async fn claims(&self, codes: &[StoredCode], limit: usize) -> Result<Vec<Claims>, Fault> {
            let claims = vec![set(0)[0].clone(); limit];
            Ok(vec![Claims { claims, is_cut: true }; codes.len()])
        }

        async fn page(&self, _: &StoredCode, _: Option<&DeviceClaim>, _: usize) -> Result<Claims, Fault> {
            unreachable!("it is not asked for")
        }
    }
    let (cache, code) = (ground.cache(), code("CRATE"));
    let time = TimeToLive { full: LONG, empty: LONG };
    let read = fill(cache, &Crate, std::slice::from_ref(&code), CACHED_CLAIMS_MAX, time).await.unwrap();
    assert!(read[0].is_cut && !read[0].claims.is_empty());
    assert_eq!(cached(cache, &code).await, None);
}

async fn shortening_reaches_entries_that_exist(ground: impl Ground) {
    let (cache, code) = (ground.cache(), code("SHORTENED"));
    assert!(store(cache, &code, 1, LONG).await);
    cache.shorten(Duration::from_secs(60)).await.unwrap();
    assert_eq!(cached(cache, &code).await, Some(set(1)), "it lives on");
}
