//! Caches and search indexes, from which applications are served: their last answers, and the gauges made of these.
//!
//! A server that does not answer has no sample of a count or a delay, so that no old one passes for the present. A
//! cache that does not answer is not believed: its readers go past it.

use std::time::{Duration, Instant};

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::metrics as names;

use super::exposition::Exposition;
use super::{LastAnswer, Observatory};
use crate::wiring::Overview;

/// Age at which an index is asked for its counts again: they move slowly, and counting costs it a little.
const COUNTS_AGE_MAX: Duration = Duration::from_secs(9);

#[derive(Debug, Clone, Default)]
pub(super) struct CacheObservation {
    /// Wait of the oldest change, and whether readers believe the cache; `None` until it has answered.
    pub(super) seen: Option<(Duration, bool)>,
    pub(super) answer: LastAnswer,
}

#[derive(Debug, Clone, Default)]
pub(super) struct SearchObservation {
    /// `None` until the cluster has answered.
    pub(super) seen: Option<Overview>,
    pub(super) answer: LastAnswer,
}

impl CacheObservation {
    fn delay_seconds(&self, now: Instant) -> Option<f64> {
        let (delay, _) = self.seen.filter(|_| self.answer.is_known(now))?;
        Some(delay.as_secs_f64())
    }

    /// Returns whether lookups are answered from the cache; `None` before it was asked, and when no poll asks it now.
    fn is_believed(&self, now: Instant) -> Option<bool> {
        if self.answer.fault.is_some() {
            return Some(false);
        }
        let (_, is_believed) = self.seen.filter(|_| self.answer.is_known(now))?;
        Some(is_believed)
    }
}

impl SearchObservation {
    fn known(&self, now: Instant) -> Option<&Overview> {
        self.seen.as_ref().filter(|_| self.answer.is_known(now))
    }
}

impl Observatory {
    /// Records the lag of a cache with its outboxes and whether readers believe it, or the failed query.
    pub fn cache_seen(&self, cache: &str, seen: &Result<(Duration, bool), Fault>, now: Instant) {
        let mut all = self.lock();
        let Some(known) = all.caches.get_mut(cache) else { return };
        match seen {
            Ok(seen) => {
                known.seen = Some(*seen);
                known.answer.good(now);
            }
            Err(fault) => {
                known.seen = known.seen.map(|(delay, _)| (delay, false));
                known.answer.bad(fault);
            }
        }
    }

    /// Records the content of a projection's index, or the failed query.
    pub fn search_seen(&self, projection: &str, seen: &Result<Overview, Fault>, now: Instant) {
        let mut all = self.lock();
        let Some(known) = all.searches.get_mut(projection) else { return };
        match seen {
            Ok(overview) => {
                known.seen = Some(overview.clone());
                known.answer.good(now);
            }
            Err(fault) => known.answer.bad(fault),
        }
    }

    /// Returns whether an index is to be asked for its counts: they are not known, or old.
    pub fn lacks_counts(&self, projection: &str, now: Instant) -> bool {
        let all = self.lock();
        let is_known = |answer: &LastAnswer| {
            let age = answer.at.map(|at| now.saturating_duration_since(at));
            answer.fault.is_none() && age.is_some_and(|age| age < COUNTS_AGE_MAX)
        };
        all.searches.get(projection).is_none_or(|known| !is_known(&known.answer))
    }

    pub(super) fn show_served(&self, now: Instant, shown: &mut Exposition) {
        let all = self.lock();
        shown.metric(names::CACHE_DELAY);
        for (name, cache) in &all.caches {
            cache.delay_seconds(now).iter().for_each(|delay| shown.sample(&[("cache", name)], *delay));
        }
        shown.metric(names::CACHE_BELIEVED);
        for (name, cache) in &all.caches {
            let believed = cache.is_believed(now).map(|is_believed| f64::from(u8::from(is_believed)));
            believed.iter().for_each(|believed| shown.sample(&[("cache", name)], *believed));
        }
        type Value = fn(&Overview) -> f64;
        let metrics: [(&'static str, Value); 4] = [
            (names::SEARCH_DOCUMENTS, |known| known.documents as f64),
            (names::SEARCH_TOMBSTONES, |known| known.tombstones as f64),
            (names::SEARCH_DEAD_LETTERS, |known| known.dead_letters as f64),
            (names::SEARCH_OLDEST_LETTER, |known| {
                known.oldest_letter_ms.map_or(0.0, |at_ms| at_ms as f64 / 1000.0)
            }),
        ];
        for (metric, value) in metrics {
            shown.metric(metric);
            for (name, search) in &all.searches {
                let value = search.known(now).map(value);
                value.iter().for_each(|value| shown.sample(&[("projection", name)], *value));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use anabranch_connectors::search::Generations;
    use anabranch_pipeline::error::Code;

    use super::*;

    fn fault(code: Code) -> Fault {
        Fault::new(code, "a server", "no answer")
    }

    fn observatory() -> Observatory {
        let observatory = Observatory { all: Arc::default(), recent: Arc::default() };
        let mut all = observatory.lock();
        all.caches.insert("redis".to_owned(), CacheObservation::default());
        all.searches.insert("documents".to_owned(), SearchObservation::default());
        drop(all);
        observatory
    }

    fn shown(observatory: &Observatory, now: Instant) -> Vec<String> {
        let mut shown = Exposition::default();
        observatory.show_served(now, &mut shown);
        shown.into_text().lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    fn overview() -> Overview {
        let generations = Generations { serving: "documents-v1".to_owned(), building: None };
        Overview { generations, documents: 5, tombstones: 4, dead_letters: 1, oldest_letter_ms: Some(1_500) }
    }

    #[test]
    fn an_index_that_does_not_answer_has_no_counts_and_is_asked_for_them_as_soon_as_it_answers() {
        let (observatory, start) = (observatory(), Instant::now());
        let second = |number| start + Duration::from_secs(number);
        let counts = [
            "anabranch_search_documents{projection=\"documents\"} 5",
            "anabranch_search_tombstones{projection=\"documents\"} 4",
            "anabranch_search_dead_letters{projection=\"documents\"} 1",
            "anabranch_search_oldest_dead_letter_timestamp_seconds{projection=\"documents\"} 1.5",
        ];
        assert!(shown(&observatory, start).is_empty() && observatory.lacks_counts("documents", start));
        observatory.search_seen("documents", &Ok(overview()), start);
        assert_eq!(shown(&observatory, start), counts);
        assert_eq!([8, 9].map(|at| observatory.lacks_counts("documents", second(at))), [false, true]);
        assert!(shown(&observatory, second(60)).is_empty(), "a poll stands still");
        observatory.search_seen("documents", &Err(fault(Code::TargetUnreachable)), second(2));
        assert!(shown(&observatory, second(2)).is_empty());
        assert!(observatory.lacks_counts("documents", second(2)));
        observatory.search_seen("documents", &Ok(overview()), second(4));
        assert_eq!(shown(&observatory, second(4)), counts);
    }

    #[test]
    fn a_cache_that_does_not_answer_is_not_believed_and_its_delay_is_not_known() {
        let (observatory, start) = (observatory(), Instant::now());
        assert!(shown(&observatory, start).is_empty());
        observatory.cache_seen("redis", &Ok((Duration::from_millis(1_500), true)), start);
        let answered = [
            "anabranch_cache_delay_seconds{cache=\"redis\"} 1.5",
            "anabranch_cache_believed{cache=\"redis\"} 1",
        ];
        assert_eq!(shown(&observatory, start), answered);
        assert!(shown(&observatory, start + Duration::from_secs(60)).is_empty(), "a poll stands still");
        observatory.cache_seen("redis", &Err(fault(Code::CacheUnreachable)), start);
        assert_eq!(shown(&observatory, start), ["anabranch_cache_believed{cache=\"redis\"} 0"]);
    }
}
