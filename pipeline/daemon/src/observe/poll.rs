//! Asks every source, the log, every target and cache about once a second, every index and the history of
//! reconciliations more rarely, and notes the answers.
//!
//! A server that does not answer holds up nothing but its own questions.

use std::time::{Duration, Instant};

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::lookup::CacheState;
use anabranch_pipeline::ports::{CodeCache, Log};
use futures::future::join_all;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Observatory;
use crate::reconciliations;
use crate::wiring::{Documents, Wiring};

/// The resolution of lag.
pub const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Counts of an index move slowly, and cost it a little.
const SEARCH_INTERVAL: Duration = Duration::from_secs(10);
/// Wait for one answer; longer than a TLS connection over a slow line, short enough for `status`.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Polls until `cancel`; one loop for each server.
pub async fn run(wiring: Wiring, observatory: Observatory, cancel: CancellationToken) {
    let mut loops = JoinSet::new();
    for source in &wiring.config().sources {
        let (wiring, observatory, name) = (wiring.clone(), observatory.clone(), source.name.clone());
        loops.spawn(every_interval(POLL_INTERVAL, cancel.clone(), async move || {
            ask_source(&wiring, &observatory, &name).await;
            observatory.forget_passed();
        }));
    }
    for target in wiring.targets() {
        let (wiring, observatory, name) = (wiring.clone(), observatory.clone(), target.to_owned());
        loops.spawn(every_interval(POLL_INTERVAL, cancel.clone(), async move || {
            ask_target(&wiring, &observatory, &name).await;
        }));
    }
    for cache in &wiring.config().caches {
        let (wiring, observatory, name) = (wiring.clone(), observatory.clone(), cache.name.clone());
        loops.spawn(every_interval(POLL_INTERVAL, cancel.clone(), async move || {
            ask_cache(&wiring, &observatory, &name).await;
        }));
    }
    for documents in wiring.all_documents() {
        let observatory = observatory.clone();
        loops.spawn(every_interval(SEARCH_INTERVAL, cancel.clone(), async move || {
            ask_search(&documents, &observatory).await;
        }));
    }
    loops.spawn(reconciliations::show_last(wiring.clone(), cancel.clone()));
    while loops.join_next().await.is_some() {}
}

/// Asks everybody once.
pub async fn once(wiring: &Wiring, observatory: &Observatory) {
    let sources = wiring.config().sources.iter().map(|source| ask_source(wiring, observatory, &source.name));
    let targets = wiring.targets().map(|target| ask_target(wiring, observatory, target));
    let caches = wiring.config().caches.iter().map(|cache| ask_cache(wiring, observatory, &cache.name));
    let documents: Vec<Documents> = wiring.all_documents().collect();
    let searches = documents.iter().map(|documents| ask_search(documents, observatory));
    tokio::join!(join_all(sources), join_all(targets), join_all(caches), join_all(searches));
}

async fn every_interval(interval: Duration, cancel: CancellationToken, work: impl AsyncFn()) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            _ = ticks.tick() => {}
        }
        tokio::select! {
            () = cancel.cancelled() => return,
            () = work() => {}
        }
    }
}

/// The head first, then the end of the stream: so a pipeline that keeps up is seen as current. The end is noted first:
/// it says in which epoch the head lies.
async fn ask_source(wiring: &Wiring, observatory: &Observatory, name: &str) {
    let head = async { wiring.source(name)?.head_and_clock().await };
    let head = answer(Code::SourceUnreachable, || format!("source {name}"), head).await;
    let head_at = Instant::now();
    let end = async { wiring.log().await?.end(name).await };
    let end = answer(Code::LogUnreachable, || "log".to_owned(), end).await;
    observatory.log_end_seen(name, &end, Instant::now());
    observatory.head_seen(name, &head, head_at);
    if observatory.lacks_sizes(name, head_at) {
        let sizes = async { wiring.source(name)?.estimated_rows().await };
        let sizes = answer(Code::SourceUnreachable, || format!("source {name}"), sizes).await;
        observatory.sizes_seen(name, &sizes, head_at);
    }
}

async fn ask_target(wiring: &Wiring, observatory: &Observatory, name: &str) {
    let progress = answer(Code::TargetUnreachable, || format!("target {name}"), wiring.progress(name)).await;
    observatory.progress_seen(name, &progress, Instant::now());
}

async fn ask_cache(wiring: &Wiring, observatory: &Observatory, name: &str) {
    let state = async {
        let cache = wiring.cache(name)?;
        let life = cache.redis.incarnation().await?;
        let (mut delay, mut is_believed) = (Duration::ZERO, true);
        for outbox in &cache.outboxes {
            let state = CacheState::read(outbox).await?;
            delay = delay.max(state.delay);
            is_believed &= state.is_believed(&life);
        }
        Ok((delay, is_believed))
    };
    let state = answer(Code::CacheUnreachable, || format!("cache {name}"), state).await;
    observatory.cache_seen(name, &state, Instant::now());
}

async fn ask_search(documents: &Documents, observatory: &Observatory) {
    let projection = &documents.projection;
    let overview = documents.target.overview(projection);
    let seen = answer(Code::TargetUnreachable, || format!("index of {projection}"), overview).await;
    observatory.search_seen(projection, &seen, Instant::now());
}

async fn answer<T>(
    code: Code,
    subject: impl Fn() -> String,
    question: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    match tokio::time::timeout(ANSWER_TIMEOUT, question).await {
        Ok(answer) => answer,
        Err(_) => {
            Err(Fault::new(code, subject(), format!("no answer within {} s", ANSWER_TIMEOUT.as_secs())))
        }
    }
}
