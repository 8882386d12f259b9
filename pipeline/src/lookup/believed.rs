//! A cache that lookups ask only while they can believe it, many lookups in one request.
//!
//! A *question* is one request to the cache. Lookups that come while questions are on their way form the next one
//! together. So a lone lookup waits for no other, and concurrent ones share a round trip, the dearest part of a lookup.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anabranch_schemas::serial::StoredCode;
use metrics::counter;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use super::{DrainWatch, decode_some};
use crate::metrics as names;
use crate::ports::{CodeCache, Outbox};
use crate::records::Claims;

/// Time for which a check of the cache's state counts. The owner of a reader checks several times as often.
const BELIEF_AGE_MAX: Duration = Duration::from_secs(3);
/// Questions that are on their way at once: the next one leaves while the answer to the first comes back.
const QUESTIONS: usize = 2;
/// Codes of one question. An entry has 74 KB at most, so an answer has 19 MB at most, and holds up no other for long.
pub const QUESTION_CODES_MAX: usize = 256;
/// Lookups that wait for the next question: several times as many as requests are served at once. Further ones wait for
/// room in the channel.
const QUESTIONS_WAITING: usize = 1024;

#[derive(Debug)]
pub(super) struct BelievedCache<C> {
    known: Arc<SharedBelief<C>>,
    asked: mpsc::Sender<PendingLookup>,
    watch: DrainWatch,
}

#[derive(Debug)]
struct SharedBelief<C> {
    cache: C,
    belief: Mutex<(Belief, Instant)>,
}

/// Whether the cache may be asked.
#[derive(Debug, Clone)]
enum Belief {
    /// The cache may be asked in this life of its server; the duration is how long the oldest undrained change had
    /// waited.
    In(Arc<str>, Duration),
    /// The cache may not be asked, for this reason.
    Bypassed(&'static str),
}

/// The codes of one lookup, and the channel on which it waits for their entries.
#[derive(Debug)]
struct PendingLookup {
    codes: Vec<StoredCode>,
    entries: oneshot::Sender<Vec<Option<Vec<u8>>>>,
}

impl<C: CodeCache + 'static> BelievedCache<C> {
    /// Starts the task that asks the cache; it needs a Tokio runtime. The task ends when this value is dropped.
    pub(super) fn new(cache: C) -> Self {
        let belief = Mutex::new((Belief::Bypassed("not looked at yet"), Instant::now()));
        let known = Arc::new(SharedBelief { cache, belief });
        let (asked, questions) = mpsc::channel(QUESTIONS_WAITING);
        tokio::spawn(ask_together(Arc::clone(&known), questions));
        Self { known, asked, watch: DrainWatch::default() }
    }

    pub(super) fn cache(&self) -> &C {
        &self.known.cache
    }

    /// Returns why lookups do not ask the cache; `None` while they do.
    pub(super) fn bypassed(&self) -> Option<&'static str> {
        self.known.life().err()
    }

    /// Returns how much the cache may lag the mapping tables: the delay at the last check plus the time since. `None`
    /// when that check did not believe the cache.
    pub(super) fn delay(&self) -> Option<Duration> {
        match &*self.known.lock() {
            (Belief::In(_, delay), since) => Some(*delay + since.elapsed()),
            (Belief::Bypassed(_), _) => None,
        }
    }

    /// Checks whether the cache can be believed.
    pub(super) async fn check_cache(&self, outboxes: &[impl Outbox]) {
        let belief = match self.known.cache.incarnation().await {
            Err(fault) => {
                tracing::debug!(%fault, "the cache is bypassed");
                Belief::Bypassed("it does not answer")
            }
            Ok(life) => match self.watch.read(outboxes).await {
                Err(_) => Belief::Bypassed("its outbox cannot be read"),
                Ok(states) if states.iter().all(|state| state.is_believed(&life)) => {
                    let delay = states.iter().map(|state| state.delay).max().unwrap_or_default();
                    Belief::In(life.into(), delay)
                }
                Ok(_) => Belief::Bypassed("it is behind, or began another life"),
            },
        };
        self.known.believe(belief);
    }

    /// Returns the first `limit` claims of each code, in the order of the codes. `None` stands for a code without a
    /// readable entry, and for every code while the cache is not believed.
    pub(super) async fn get(&self, codes: &[StoredCode], limit: usize) -> Vec<Option<Claims>> {
        let mut sets = Vec::with_capacity(codes.len());
        for some in codes.chunks(QUESTION_CODES_MAX) {
            match self.entries(some).await {
                Some(entries) => {
                    let set = |entry: Option<Vec<u8>>| decode_some(&entry?, limit).ok();
                    sets.extend(entries.into_iter().map(set));
                }
                None => sets.extend(some.iter().map(|_| None)),
            }
        }
        sets
    }

    /// Returns the entries of at most [`QUESTION_CODES_MAX`] codes; `None` when the cache is not believed or does not
    /// answer.
    async fn entries(&self, codes: &[StoredCode]) -> Option<Vec<Option<Vec<u8>>>> {
        if self.bypassed().is_some() {
            return None;
        }
        let (answer, entries) = oneshot::channel();
        // A send fails only when the runtime ends and the task with it; then no answer comes either.
        let _ = self.asked.send(PendingLookup { codes: codes.to_vec(), entries: answer }).await;
        entries.await.ok()
    }
}

impl<C: CodeCache> SharedBelief<C> {
    /// Returns the life in which the cache is believed, or why it is not.
    fn life(&self) -> Result<Arc<str>, &'static str> {
        match &*self.lock() {
            (Belief::In(..), since) if since.elapsed() > BELIEF_AGE_MAX => Err("not looked at for a while"),
            (Belief::In(life, _), _) => Ok(Arc::clone(life)),
            (Belief::Bypassed(why), _) => Err(why),
        }
    }

    async fn answer(&self, together: Vec<PendingLookup>) {
        let codes: Vec<StoredCode> = together.iter().flat_map(|asked| asked.codes.iter().cloned()).collect();
        // A lookup whose channel closes without an answer reads the mapping tables.
        let Some(entries) = self.entries(&codes).await else { return };
        let mut entries = entries.into_iter();
        for asked in together {
            // The lookup may have been cancelled.
            let _ = asked.entries.send(entries.by_ref().take(asked.codes.len()).collect());
        }
    }

    async fn entries(&self, codes: &[StoredCode]) -> Option<Vec<Option<Vec<u8>>>> {
        let life = self.life().ok()?;
        match self.cache.get(codes).await {
            Ok(cached) if cached.incarnation == life => Some(cached.entries),
            Ok(_) => {
                self.believe(Belief::Bypassed("it began another life"));
                None
            }
            Err(fault) => {
                counter!(names::CACHE_FAULTS, "code" => fault.code().as_str()).increment(1);
                // Other lookups need not wait for it too; the next check may find that it answers again.
                self.believe(Belief::Bypassed("it does not answer"));
                None
            }
        }
    }

    fn believe(&self, belief: Belief) {
        *self.lock() = (belief, Instant::now());
    }

    fn lock(&self) -> MutexGuard<'_, (Belief, Instant)> {
        // No code under this lock leaves it half changed.
        self.belief.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends the lookups that have gathered as one question, until their channel is closed.
async fn ask_together<C: CodeCache + 'static>(
    known: Arc<SharedBelief<C>>,
    mut asked: mpsc::Receiver<PendingLookup>,
) {
    let turns = Arc::new(Semaphore::new(QUESTIONS));
    let mut next = None;
    while let Ok(turn) = Arc::clone(&turns).acquire_owned().await {
        let first = match next.take() {
            Some(first) => Some(first),
            None => asked.recv().await,
        };
        let Some(first) = first else { return };
        let mut room = QUESTION_CODES_MAX.saturating_sub(first.codes.len());
        let mut together = vec![first];
        while let Ok(another) = asked.try_recv() {
            if another.codes.len() > room {
                next = Some(another);
                break;
            }
            room -= another.codes.len();
            together.push(another);
        }
        let known = Arc::clone(&known);
        tokio::spawn(async move {
            let _turn = turn;
            known.answer(together).await;
        });
    }
}
