//! Finds the devices of a code, for the HTTP API and the command `lookup`.
//!
//! A lookup asks the cache, then the mapping table. It reads inventory rows on request, and where claims of a device
//! disagree (it is being moved). Many requests may ask at once. `question.rs` parses questions, `at_least.rs` waits
//! until lanes have passed a point of the binlog, `directory.rs` knows the table of a shard id, and `view.rs` is the
//! answer. The relations of payment documents use the first three as well.

mod at_least;
mod directory;
mod question;
mod view;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::lookup::{BatchMemory, CACHED_CLAIMS_MAX, Origin, QueryBounds, Reader, Unanswered};
use anabranch_pipeline::records::{Claims, DeviceClaim};
use anabranch_schemas::change::Entity;
use anabranch_schemas::serial::{CodeKind, StoredCode};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

pub use self::at_least::PassedPositions;
pub use self::directory::Directory;
pub use self::question::{AtLeast, Cursor, LookupQuestion, PAGE_CLAIMS_MAX, Refusal, code};
pub use self::view::{AnswerOrigin, Freshness, LaneFreshness, LookupAnswer};
use crate::observe::StatusView;
use crate::wiring::{CodeStore, Mapping, Wiring};

/// Connections to each target, and so the queries at once over them.
const QUERY_BOUNDS: usize = 16;
/// Queries that wait, at most: half a second at a millisecond each. Further requests are refused as too many.
const QUEUED: usize = 512;
/// Codes of a batch that are asked at once, so that other requests have their turn in between. With two candidates each
/// they are less than one query of the cache.
const QUESTIONS_AT_ONCE: usize = 100;
/// Codes of batches that are answered at once, each with the claims that its answer shows: 8 of the largest batches,
/// with some 10 MB each. Further batches wait. Lookups of one code hold few claims in all, and never wait for batches.
const BATCH_CODES: usize = 8_000;
/// Time between two updates of the knowledge about cache, lanes and tables.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Answers lookups. Clones share everything.
#[derive(Clone)]
pub struct Lookup(Arc<LookupService>);

struct LookupService {
    wiring: Wiring,
    projection: String,
    reader: Reader<CodeStore, Mapping>,
    directory: Directory,
    passage: PassedPositions,
    freshness: Mutex<LaneFreshness>,
}

impl Lookup {
    /// Returns a lookup; `None` when no mapping tables are configured.
    pub fn new(wiring: &Wiring) -> Option<Self> {
        let projection = wiring.lookup_projection()?.name.clone();
        let mapping = wiring.mapping(&projection, QUERY_BOUNDS)?;
        let cache = wiring.cache_of(&projection);
        let cache = cache.map(|cache| (cache.redis.clone(), cache.config.time_to_live));
        Some(Self(Arc::new(LookupService {
            reader: Reader::new(
                cache,
                mapping,
                QueryBounds { at_once: QUERY_BOUNDS, queued: QUEUED, codes: BATCH_CODES },
            ),
            directory: Directory::new(Entity::SerialCode),
            passage: PassedPositions::new(wiring, &projection),
            freshness: Mutex::default(),
            wiring: wiring.clone(),
            projection,
        })))
    }

    /// Keeps the knowledge about cache, lanes and tables up to date until `cancel`. A source that does not answer must
    /// not hold up the poll of the cache, which is believed for a few polls only.
    pub async fn keep_current(self, status: impl Fn() -> StatusView, cancel: CancellationToken) {
        let cache = async {
            let mut checks = checks();
            loop {
                checks.tick().await;
                self.lanes_seen(&status());
                self.check_cache().await;
            }
        };
        let tables = async {
            let mut checks = checks();
            loop {
                checks.tick().await;
                self.0.directory.complete(&self.0.wiring).await;
            }
        };
        tokio::select! {
            () = cancel.cancelled() => {}
            () = cache => {}
            () = tables => {}
        }
    }

    /// Polls the cache once and, where tables are not known yet, the sources.
    pub async fn refresh(&self) {
        tokio::join!(self.check_cache(), self.0.directory.complete(&self.0.wiring));
    }

    async fn check_cache(&self) {
        let service = &self.0;
        if let Some(cache) = service.wiring.cache_of(&service.projection) {
            service.reader.check_cache(&cache.outboxes).await;
        }
    }

    /// Takes the freshness of the lanes from a status.
    pub fn lanes_seen(&self, status: &StatusView) {
        let freshness = LaneFreshness::of(&self.0.projection, status);
        *self.0.freshness.lock().unwrap_or_else(PoisonError::into_inner) = freshness;
    }

    /// Answers each question, after the lanes have passed `at_least`. Futures that few questions need are boxed: their
    /// state would make that of every request twenty times as large.
    pub async fn ask(
        &self,
        questions: &[LookupQuestion],
        at_least: Option<&AtLeast>,
    ) -> Result<Answers, Refusal> {
        if let Some(at_least) = at_least {
            Box::pin(self.0.passage.wait(at_least, &self.0.directory)).await?;
        }
        let room = match questions.len() {
            0 | 1 => None,
            codes => Some(Box::pin(self.0.reader.room(codes)).await?),
        };
        let mut answers = Vec::with_capacity(questions.len());
        for some in questions.chunks(QUESTIONS_AT_ONCE) {
            self.find(some, at_least.is_some(), &mut answers).await?;
        }
        self.0.directory.read_rows(&self.0.wiring, &mut answers).await;
        Ok(Answers { answers: answers.into_iter().map(|(_, answer)| answer).collect(), _room: room })
    }

    /// Adds the answers to some questions, without inventory rows.
    async fn find<'q>(
        &self,
        questions: &'q [LookupQuestion],
        is_waited: bool,
        answers: &mut Vec<(&'q LookupQuestion, LookupAnswer)>,
    ) -> Result<(), Refusal> {
        let first_pages: Vec<Option<Vec<_>>> = questions
            .iter()
            .map(|question| question.is_first_page().then(|| question.candidates()))
            .collect();
        let codes: Vec<StoredCode> =
            first_pages.iter().flatten().flatten().map(|(code, _)| code.clone()).collect();
        // Of one code the whole set is read, to fill the cache; of many codes only the claims that are shown.
        let limit = match questions {
            [_] => CACHED_CLAIMS_MAX,
            _ => questions.iter().map(|question| question.limit).max().unwrap_or_default(),
        };
        let read = match is_waited {
            true => Box::pin(self.0.reader.fresh(&codes, limit)).await?,
            false => self.0.reader.read(&codes, limit).await?,
        };
        let mut read = read.into_iter();
        for (question, candidates) in questions.iter().zip(first_pages) {
            let found = match candidates {
                Some(candidates) => FoundClaims::first(question, candidates, &mut read),
                None => Box::pin(self.next_page(question)).await?,
            };
            answers.push((question, self.answer(question, found, is_waited)));
        }
        Ok(())
    }

    /// Reads the page after the cursor from the mapping tables.
    async fn next_page(&self, question: &LookupQuestion) -> Result<FoundClaims, Refusal> {
        let mut found = FoundClaims { has_asked_tables: true, ..FoundClaims::default() };
        let (mut number, mut after) = match &question.after {
            Some(cursor) => (cursor.candidate, Some(&cursor.claim)),
            None => (0, None),
        };
        let candidates = question.candidates();
        while let Some((code, kind)) = candidates.get(number) {
            let room = question.limit - found.claims.len();
            if room == 0 {
                break;
            }
            let page = self.0.reader.page(code, after, room).await?;
            found.add_claims(number, *kind, &page.claims);
            if page.is_cut {
                found.is_cut = true;
                break;
            }
            (number, after) = (number + 1, None);
        }
        Ok(found)
    }

    /// Returns the answer with these claims, without inventory rows.
    fn answer(&self, question: &LookupQuestion, found: FoundClaims, is_waited: bool) -> LookupAnswer {
        let service = &self.0;
        let lanes = *service.freshness.lock().unwrap_or_else(PoisonError::into_inner);
        let from = found.from();
        let cache_bypassed = match is_waited {
            _ if from != AnswerOrigin::Mapping => None,
            true => Some("at_least was asked for".to_owned()),
            false => service.reader.bypassed().map(str::to_owned),
        };
        let delay = service.reader.cache_delay().filter(|_| from != AnswerOrigin::Mapping);
        let cache_delay_ms = delay.map(|delay| delay.as_millis() as u64);
        let freshness = Freshness { lanes, cache_bypassed, cache_delay_ms };
        let next = found.last.filter(|_| found.is_cut);
        let mut claims = found.claims;
        claims.retain(|claim| question.kind.is_none_or(|kind| claim.kind == kind));
        let mut answer = LookupAnswer::new(question, claims, from, freshness, next.as_ref());
        service.directory.name(&mut answer);
        answer
    }
}

fn checks() -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks
}

/// The answers to a request. Answers to a batch keep their room in memory until they are dropped, so drop them once
/// they are written out.
#[derive(Debug, Serialize)]
pub struct Answers {
    pub answers: Vec<LookupAnswer>,
    #[serde(skip)]
    _room: Option<BatchMemory>,
}

impl Answers {
    /// Returns the answer to a single question.
    pub fn only(mut self) -> Result<LookupAnswer, Refusal> {
        self.answers.pop().ok_or_else(|| Refusal::Malformed("no code was given".to_owned()))
    }
}

/// Claims of a question, with their origin.
#[derive(Debug, Default)]
struct FoundClaims {
    claims: Vec<DeviceClaim>,
    /// Cursor of the last claim that was read.
    last: Option<Cursor>,
    is_cut: bool,
    /// The cache answered for some code: with its set, or that there is none.
    has_asked_cache: bool,
    /// Mapping tables answered for some code: with its set, or that there is none.
    has_asked_tables: bool,
}

impl FoundClaims {
    /// Takes the first page out of complete sets, or of their beginnings.
    fn first(
        question: &LookupQuestion,
        candidates: Vec<(StoredCode, Option<CodeKind>)>,
        read: &mut impl Iterator<Item = (Arc<Claims>, Origin)>,
    ) -> Self {
        let mut found = Self::default();
        for ((number, (_, kind)), (claims, origin)) in candidates.into_iter().enumerate().zip(read) {
            match origin {
                Origin::Cache => found.has_asked_cache = true,
                Origin::Mapping => found.has_asked_tables = true,
            }
            let room = question.limit - found.claims.len();
            if found.is_cut || room == 0 {
                found.is_cut |= !claims.claims.is_empty();
            } else {
                found.add_claims(number, kind, &claims.claims[..claims.claims.len().min(room)]);
                found.is_cut = claims.is_cut || claims.claims.len() > room;
            }
        }
        found
    }

    /// Returns the origin of all claims. A code in small letters has two sets, its own and that of the MEID in
    /// capitals, and their origins may differ.
    fn from(&self) -> AnswerOrigin {
        match (self.has_asked_cache, self.has_asked_tables) {
            (true, true) => AnswerOrigin::CacheAndMapping,
            (_, false) => AnswerOrigin::Cache,
            (false, true) => AnswerOrigin::Mapping,
        }
    }

    fn add_claims(&mut self, candidate: usize, kind: Option<CodeKind>, claims: &[DeviceClaim]) {
        let fits = |claim: &&DeviceClaim| kind.is_none_or(|kind| claim.kind == kind);
        self.claims.extend(claims.iter().filter(fits).cloned());
        let last = claims.last().map(|claim| Cursor { candidate, claim: claim.clone() });
        self.last = last.or(self.last.take());
    }
}

impl From<Unanswered> for Refusal {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Busy => Self::Busy,
            Unanswered::Failed(fault) => Self::Failed(fault),
        }
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self::Failed(Arc::new(fault))
    }
}

#[cfg(test)]
mod tests {
    use anabranch_pipeline::config::Config;
    use futures::FutureExt;

    use super::*;

    /// A configuration whose servers do not listen once its ports are replaced: a query fails at once.
    const CONFIG: &str = include_str!("../../../../deploy/serial-codes.example.toml");

    #[tokio::test]
    async fn a_batch_waits_for_room_and_a_lookup_of_one_code_does_not() {
        let text = CONFIG.replace(":3308", ":1");
        assert_ne!(text, CONFIG);
        let lookup = Lookup::new(&Wiring::new(Config::parse(&text).unwrap())).unwrap();
        let question = LookupQuestion::new(b"7".to_vec(), None, Some(20), None, false).unwrap();
        let batch = [question.clone(), question.clone()];
        let is_failed = |asked: Result<Answers, Refusal>| matches!(asked, Err(Refusal::Failed(_)));
        let room = lookup.0.reader.room(BATCH_CODES).await.unwrap();
        let mut waiting = std::pin::pin!(lookup.ask(&batch, None));
        tokio::select! {
            biased;
            _ = &mut waiting => panic!("a batch is answered without room"),
            asked = lookup.ask(&batch[..1], None) => assert!(is_failed(asked)),
        }
        drop(room);
        assert!(is_failed(waiting.await));

        // Answers that are being written out keep their room.
        let room = Some(lookup.0.reader.room(BATCH_CODES).await.unwrap());
        let answers = Answers { answers: Vec::new(), _room: room };
        let next = lookup.0.reader.room(1);
        assert!(next.now_or_never().is_none(), "the room of answers that are still there is given away");
        drop(answers);
        assert!(lookup.0.reader.room(1).now_or_never().is_some());
    }

    /// A person who looks for a wrong entry of the cache must see that it was used.
    #[test]
    fn an_answer_says_of_both_spellings_where_they_are_from() {
        let question = LookupQuestion::new(b"item-3".to_vec(), None, None, None, false).unwrap();
        let nothing = Arc::new(Claims::default());
        for (origins, expected) in [
            ([Origin::Cache, Origin::Cache], AnswerOrigin::Cache),
            ([Origin::Cache, Origin::Mapping], AnswerOrigin::CacheAndMapping),
            ([Origin::Mapping, Origin::Cache], AnswerOrigin::CacheAndMapping),
            ([Origin::Mapping, Origin::Mapping], AnswerOrigin::Mapping),
        ] {
            let mut read = origins.into_iter().map(|origin| (Arc::clone(&nothing), origin));
            let found = FoundClaims::first(&question, question.candidates(), &mut read);
            assert_eq!(found.from(), expected, "{origins:?}");
        }
    }
}
