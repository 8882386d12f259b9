//! A cache in memory that counts questions, and can be held up or made to refuse.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_connectors::memory::MemoryCache;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{CacheEntries, CacheFill, Cached, CodeCache};
use anabranch_pipeline::records::{ScanCursor, Token};
use anabranch_schemas::serial::StoredCode;
use tokio::sync::Semaphore;

#[derive(Debug, Clone)]
pub struct Watched {
    pub cache: MemoryCache,
    /// Whether the cache answers removals; otherwise it is unreachable for them.
    pub takes_removals: bool,
    /// One permit for each question that may be answered.
    pub let_go: Arc<Semaphore>,
    /// Number of codes of each question.
    pub asked: Arc<Mutex<Vec<usize>>>,
}

impl Watched {
    pub fn new(cache: MemoryCache) -> Self {
        Self {
            cache,
            takes_removals: true,
            let_go: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
            asked: Arc::default(),
        }
    }
}

impl CodeCache for Watched {
    async fn get(&self, codes: &[StoredCode]) -> Result<Cached, Fault> {
        self.asked.lock().unwrap().push(codes.len());
        self.let_go.acquire().await.unwrap().forget();
        self.cache.get(codes).await
    }

    async fn begin(&self, codes: &[StoredCode]) -> Result<Vec<Option<Token>>, Fault> {
        self.cache.begin(codes).await
    }

    async fn finish(&self, fills: &[CacheFill]) -> Result<usize, Fault> {
        self.cache.finish(fills).await
    }

    async fn invalidate(&self, codes: &[StoredCode]) -> Result<(), Fault> {
        if self.takes_removals {
            return self.cache.invalidate(codes).await;
        }
        Err(Fault::new(Code::CacheUnreachable, "cache", "it does not answer"))
    }

    async fn incarnation(&self) -> Result<String, Fault> {
        self.cache.incarnation().await
    }

    async fn clear(&self) -> Result<(), Fault> {
        self.cache.clear().await
    }

    async fn shorten(&self, time_to_live: Duration) -> Result<(), Fault> {
        self.cache.shorten(time_to_live).await
    }

    async fn scan(&self, after: Option<&ScanCursor>) -> Result<(Vec<StoredCode>, Option<ScanCursor>), Fault> {
        self.cache.scan(after).await
    }

    async fn entries(&self, codes: &[StoredCode]) -> Result<CacheEntries, Fault> {
        self.cache.entries(codes).await
    }

    async fn write_freshness_key(&self, incarnation: &str) -> Result<(), Fault> {
        self.cache.write_freshness_key(incarnation).await
    }

    async fn has_freshness_key(&self) -> Result<bool, Fault> {
        self.cache.has_freshness_key().await
    }
}
