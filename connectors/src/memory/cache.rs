//! A cache in memory: entries and tokens, each step at once. It never expires anything by itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::lookup::Token;
use anabranch_pipeline::ports::{Cached, CodeCache, Fill};
use anabranch_schemas::serial::StoredCode;

use super::lock;

#[derive(Debug, Default, Clone)]
struct State {
    entries: HashMap<StoredCode, (Vec<u8>, Duration)>,
    tokens: HashMap<StoredCode, Token>,
    life: u64,
    given: u128,
    is_marked: bool,
}

/// One cache server.
#[derive(Debug, Clone, Default)]
pub struct MemoryCache(Arc<Mutex<State>>);

impl MemoryCache {
    /// Begins another life with what `earlier` held, as a replica that lags does.
    pub fn fail_over_to(&self, earlier: &MemoryCache) {
        let earlier = lock(&earlier.0).clone();
        let mut state = lock(&self.0);
        *state = State { life: state.life + 1, given: state.given, ..earlier };
    }

    /// Another server with the same content.
    pub fn copy(&self) -> Self {
        Self(Arc::new(Mutex::new(lock(&self.0).clone())))
    }

    /// Loses an entry, as eviction and expiry do.
    pub fn evict(&self, code: &StoredCode) {
        lock(&self.0).entries.remove(code);
    }

    /// What it holds is older than a mark lives.
    pub fn grow_old(&self) {
        lock(&self.0).is_marked = false;
    }

    pub fn time_to_live(&self, code: &StoredCode) -> Option<Duration> {
        lock(&self.0).entries.get(code).map(|(_, time_to_live)| *time_to_live)
    }
}

impl CodeCache for MemoryCache {
    async fn get(&self, codes: &[StoredCode]) -> Result<Cached, Fault> {
        let state = lock(&self.0);
        let entry = |code| state.entries.get(code).map(|(entry, _)| entry.clone());
        Ok(Cached { incarnation: state.life.to_string().into(), entries: codes.iter().map(entry).collect() })
    }

    async fn begin(&self, codes: &[StoredCode]) -> Result<Vec<Option<Token>>, Fault> {
        let mut state = lock(&self.0);
        let mut begin = |code: &StoredCode| {
            if state.tokens.contains_key(code) {
                return None;
            }
            state.given += 1;
            let token = Token(state.given);
            state.tokens.insert(code.clone(), token);
            Some(token)
        };
        Ok(codes.iter().map(&mut begin).collect())
    }

    async fn finish(&self, fills: &[Fill]) -> Result<usize, Fault> {
        let mut state = lock(&self.0);
        let mut stored = 0;
        for fill in fills {
            if state.tokens.get(&fill.code) == Some(&fill.token) {
                state.tokens.remove(&fill.code);
                state.entries.insert(fill.code.clone(), (fill.entry.clone(), fill.time_to_live));
                stored += 1;
            }
        }
        Ok(stored)
    }

    async fn invalidate(&self, codes: &[StoredCode]) -> Result<(), Fault> {
        let mut state = lock(&self.0);
        for code in codes {
            state.entries.remove(code);
            state.tokens.remove(code);
        }
        Ok(())
    }

    async fn incarnation(&self) -> Result<String, Fault> {
        Ok(lock(&self.0).life.to_string())
    }

    async fn clear(&self) -> Result<(), Fault> {
        let mut state = lock(&self.0);
        state.entries.clear();
        state.tokens.clear();
        state.is_marked = false;
        Ok(())
    }

    async fn shorten(&self, time_to_live: Duration) -> Result<(), Fault> {
        for (_, longest) in lock(&self.0).entries.values_mut() {
            *longest = time_to_live.min(*longest);
        }
        Ok(())
    }

    async fn mark(&self, incarnation: &str) -> Result<(), Fault> {
        let mut state = lock(&self.0);
        if state.life.to_string() != incarnation {
            return Err(Fault::new(Code::CacheRejected, "cache", "it began another life"));
        }
        state.is_marked = true;
        Ok(())
    }

    async fn is_marked(&self) -> Result<bool, Fault> {
        Ok(lock(&self.0).is_marked)
    }
}
