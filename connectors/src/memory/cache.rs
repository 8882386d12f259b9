//! A cache in memory: entries and tokens; each request is one step when it is due. It never expires an entry by itself.
//!
//! A request belongs to the life in which it was sent, as a connection does.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{CacheEntries, CacheEntry, CacheFill, Cached, CodeCache};
use anabranch_pipeline::records::{ScanCursor, Token};
use anabranch_schemas::serial::StoredCode;

use super::{Refused, Weather, lock, request};

/// Codes in a step of a scan.
const STEP_CODES: usize = 3;

#[derive(Debug, Default, Clone)]
struct State {
    /// Entries with their time to live; the longest one means for ever.
    entries: HashMap<StoredCode, (Vec<u8>, Duration)>,
    tokens: HashMap<StoredCode, Token>,
    /// Codes with a token that a manual write has made permanent.
    blocked: BTreeSet<StoredCode>,
    life: u64,
    given: u128,
    has_freshness_key: bool,
}

/// One cache server.
#[derive(Debug, Clone)]
pub struct MemoryCache {
    state: Arc<Mutex<State>>,
    weather: Weather,
}

impl Default for MemoryCache {
    fn default() -> Self {
        Self::new(Weather::calm())
    }
}

impl MemoryCache {
    pub fn new(weather: Weather) -> Self {
        Self { state: Arc::default(), weather }
    }

    /// Begins another life with the content of `earlier`, as a lagging replica that is promoted does.
    pub fn fail_over_to(&self, earlier: &MemoryCache) {
        let earlier = lock(&earlier.state).clone();
        let mut state = lock(&self.state);
        *state = State { life: state.life + 1, given: state.given, ..earlier };
    }

    /// Makes another server with the same content.
    pub fn copy(&self) -> Self {
        let content = lock(&self.state).clone();
        Self { state: Arc::new(Mutex::new(content)), weather: self.weather.clone() }
    }

    /// Loses an entry, as eviction and expiry do.
    pub fn evict(&self, code: &StoredCode) {
        lock(&self.state).entries.remove(code);
    }

    /// Stores an entry as a manual write does.
    pub fn plant(&self, code: &StoredCode, entry: Vec<u8>, time_to_live: Duration) {
        lock(&self.state).entries.insert(code.clone(), (entry, time_to_live));
    }

    /// Prevents every further fill of a code, as a manual write of its token does.
    pub fn block(&self, code: &StoredCode) {
        lock(&self.state).blocked.insert(code.clone());
    }

    /// Loses everything in the same life, as a manual FLUSHALL does.
    pub fn lose_all(&self) {
        lock(&self.state).clear();
    }

    /// Expires the freshness key: the content is then older than the key lives.
    pub fn grow_old(&self) {
        lock(&self.state).has_freshness_key = false;
    }

    pub fn time_to_live(&self, code: &StoredCode) -> Option<Duration> {
        lock(&self.state).entries.get(code).map(|(_, time_to_live)| *time_to_live)
    }

    async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut State) -> T + Send + 'static,
    ) -> Result<T, Fault> {
        self.weather.answer(Refused::Cache)?;
        let (state, life) = (self.state.clone(), lock(&self.state).life);
        let answer = request(&self.weather, move || {
            let mut state = lock(&state);
            (state.life == life).then(|| work(&mut state))
        });
        let broken = || Fault::new(Code::CacheUnreachable, "cache", "the connection broke");
        answer.await.flatten().ok_or_else(broken)
    }
}

impl State {
    fn clear(&mut self) {
        self.entries.clear();
        self.tokens.clear();
        self.blocked.clear();
        self.has_freshness_key = false;
    }

    fn begin(&mut self, code: &StoredCode) -> Option<Token> {
        if self.tokens.contains_key(code) || self.blocked.contains(code) {
            return None;
        }
        self.given += 1;
        let token = Token(self.given);
        self.tokens.insert(code.clone(), token);
        Some(token)
    }
}

impl CodeCache for MemoryCache {
    async fn get(&self, codes: &[StoredCode]) -> Result<Cached, Fault> {
        let codes = codes.to_vec();
        self.ask(move |state| {
            let entry = |code| state.entries.get(code).map(|(entry, _)| entry.clone());
            let entries = codes.iter().map(entry).collect();
            Cached { incarnation: state.life.to_string().into(), entries }
        })
        .await
    }

    async fn begin(&self, codes: &[StoredCode]) -> Result<Vec<Option<Token>>, Fault> {
        let codes = codes.to_vec();
        self.ask(move |state| codes.iter().map(|code| state.begin(code)).collect()).await
    }

    async fn finish(&self, fills: &[CacheFill]) -> Result<usize, Fault> {
        let fills = fills.to_vec();
        self.ask(move |state| {
            let mut stored = 0;
            for fill in fills {
                if state.tokens.get(&fill.code) == Some(&fill.token) {
                    state.tokens.remove(&fill.code);
                    state.entries.insert(fill.code, (fill.entry, fill.time_to_live));
                    stored += 1;
                }
            }
            stored
        })
        .await
    }

    async fn invalidate(&self, codes: &[StoredCode]) -> Result<(), Fault> {
        let codes = codes.to_vec();
        self.ask(move |state| {
            for code in &codes {
                state.entries.remove(code);
                state.tokens.remove(code);
                state.blocked.remove(code);
            }
        })
        .await
    }

    async fn incarnation(&self) -> Result<String, Fault> {
        self.ask(|state| state.life.to_string()).await
    }

    async fn clear(&self) -> Result<(), Fault> {
        self.ask(State::clear).await
    }

    async fn shorten(&self, time_to_live: Duration) -> Result<(), Fault> {
        self.ask(move |state| {
            for (_, longest) in state.entries.values_mut() {
                *longest = time_to_live.min(*longest);
            }
        })
        .await
    }

    async fn scan(&self, after: Option<&ScanCursor>) -> Result<(Vec<StoredCode>, Option<ScanCursor>), Fault> {
        let after = after.and_then(|place| StoredCode::from_stored(&place.0));
        self.ask(move |state| {
            let mut codes: Vec<StoredCode> = state
                .entries
                .keys()
                .chain(&state.blocked)
                .filter(|code| Some(*code) > after.as_ref())
                .cloned()
                .collect();
            codes.sort_unstable();
            codes.dedup();
            let has_more = codes.len() > STEP_CODES;
            codes.truncate(STEP_CODES);
            let last = codes.last().filter(|_| has_more);
            let next = last.map(|last| ScanCursor(last.as_bytes().into()));
            (codes, next)
        })
        .await
    }

    async fn entries(&self, codes: &[StoredCode]) -> Result<CacheEntries, Fault> {
        let codes = codes.to_vec();
        self.ask(move |state| {
            let entries = |code| {
                let entry = state.entries.get(code);
                let entry = entry
                    .map(|(entry, left)| (entry.clone(), Some(*left).filter(|left| *left < Duration::MAX)));
                CacheEntry { entry, is_blocked: state.blocked.contains(code) }
            };
            CacheEntries {
                incarnation: state.life.to_string().into(),
                entries: codes.iter().map(entries).collect(),
            }
        })
        .await
    }

    async fn write_freshness_key(&self, incarnation: &str) -> Result<(), Fault> {
        let incarnation = incarnation.to_owned();
        let has_freshness_key = move |state: &mut State| {
            let is_meant = state.life.to_string() == incarnation;
            state.has_freshness_key |= is_meant;
            is_meant
        };
        match self.ask(has_freshness_key).await? {
            true => Ok(()),
            false => Err(Fault::new(Code::CacheRejected, "cache", "it began another life")),
        }
    }

    async fn has_freshness_key(&self) -> Result<bool, Fault> {
        self.ask(|state| state.has_freshness_key).await
    }
}
