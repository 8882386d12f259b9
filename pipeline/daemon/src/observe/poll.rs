//! Asks every source, the log, every target and cache about once a second, and every index, the coupon system, the
//! leases and the history of reconciliations more rarely; records the answers.
//!
//! A server that does not answer delays its own queries only.

use std::time::{Duration, Instant};

use anabranch_connectors::nats::NatsLog;
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::lookup::DrainWatch;
use anabranch_pipeline::ports::{CodeCache, Log};
use futures::future::join_all;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::busiest::TABLES_SHOWN_MAX;
use super::dependencies::COUPON_SYSTEM;
use super::headroom::certificate_end;
use super::polling::{LOG, every_interval, kept, within};
use super::{Dependency, Observatory, certificates};
use crate::wiring::{Documents, Wiring};
use crate::{coupons, pauses, reconciliations};

/// Time between two polls, and so the resolution of lag.
pub const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two polls of an index. Most of them only reach its cluster, so that one that is gone shows soon.
const SEARCH_INTERVAL: Duration = Duration::from_secs(2);
/// Time between two polls of binlog files and streams: minutes matter, and the server examines each file to report it.
const KEPT_INTERVAL: Duration = Duration::from_secs(30);
/// Time between two reads of a programme's day, which its dispatcher updates every few seconds.
const PROGRAMME_INTERVAL: Duration = Duration::from_secs(3);
/// Time between two connections to the coupon system, which may be another company's.
const COUPON_SYSTEM_INTERVAL: Duration = Duration::from_secs(10);
/// Time without a connection to NATS after which a question counts as unanswered. The client itself would wait for
/// longer, because it keeps a request until it is connected again.
const LOG_LOST: Duration = Duration::from_secs(1);
/// Time between two reads of all leases and of the busiest tables.
const LEASES_INTERVAL: Duration = Duration::from_secs(5);

/// Polls until `cancel`; one loop for each server.
pub async fn run(wiring: Wiring, observatory: Observatory, cancel: CancellationToken) {
    let mut loops = JoinSet::new();
    for source in &wiring.config().sources {
        let own = || (wiring.clone(), observatory.clone(), source.name.clone());
        let (wiring, observatory, name) = own();
        loops.spawn(every_interval(POLL_INTERVAL, cancel.clone(), async move || {
            ask_source(&wiring, &observatory, &name).await;
            observatory.forget_passed(&name);
        }));
        let (wiring, observatory, name) = own();
        loops.spawn(every_interval(KEPT_INTERVAL, cancel.clone(), async move || {
            ask_kept(&wiring, &observatory, &name).await;
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
        let watch = DrainWatch::default();
        loops.spawn(every_interval(POLL_INTERVAL, cancel.clone(), async move || {
            ask_cache(&wiring, &observatory, &name, &watch).await;
        }));
    }
    for documents in wiring.all_documents() {
        let observatory = observatory.clone();
        loops.spawn(every_interval(SEARCH_INTERVAL, cancel.clone(), async move || {
            ask_search(&documents, &observatory).await;
        }));
    }
    for programme in observatory.programmes() {
        let (wiring, observatory) = (wiring.clone(), observatory.clone());
        loops.spawn(every_interval(PROGRAMME_INTERVAL, cancel.clone(), async move || {
            ask_programme(&wiring, &observatory, &programme).await;
        }));
    }
    if wiring.config().coupon_system.is_some() {
        let (wiring, observatory) = (wiring.clone(), observatory.clone());
        loops.spawn(every_interval(COUPON_SYSTEM_INTERVAL, cancel.clone(), async move || {
            ask_coupon_system(&wiring, &observatory).await;
        }));
    }
    let asking = (wiring.clone(), observatory.clone());
    loops.spawn(every_interval(POLL_INTERVAL, cancel.clone(), async move || {
        asking.1.unread_seen(asking.0.unread_tables());
        ask_pauses(&asking.0, &asking.1).await;
    }));
    let asking = (wiring.clone(), observatory.clone());
    loops.spawn(every_interval(LEASES_INTERVAL, cancel.clone(), async move || {
        asking.1.busiest_seen(asking.0.busiest(TABLES_SHOWN_MAX, Instant::now()));
        ask_leases(&asking.0, &asking.1).await;
    }));
    certificates::spawn(&mut loops, &wiring, &observatory, &cancel);
    let shown = (wiring.clone(), cancel.clone());
    let show_last = move || reconciliations::show_last(shown.0.clone(), shown.1.clone());
    loops.spawn(kept("the last reconciliation", cancel.clone(), show_last));
    while loops.join_next().await.is_some() {}
}

/// Asks every server once.
pub async fn once(wiring: &Wiring, observatory: &Observatory) {
    let sources = wiring.config().sources.iter().map(|source| ask_source(wiring, observatory, &source.name));
    let targets = wiring.targets().map(|target| ask_target(wiring, observatory, target));
    let watched: Vec<_> =
        wiring.config().caches.iter().map(|cache| (&cache.name, DrainWatch::default())).collect();
    let caches = watched.iter().map(|(name, watch)| ask_cache(wiring, observatory, name, watch));
    let documents: Vec<Documents> = wiring.all_documents().collect();
    let searches = documents.iter().map(|documents| ask_search(documents, observatory));
    let programmes = observatory.programmes();
    let programmes = programmes.iter().map(|programme| ask_programme(wiring, observatory, programme));
    tokio::join!(
        join_all(sources),
        join_all(targets),
        join_all(caches),
        join_all(searches),
        join_all(programmes),
        ask_pauses(wiring, observatory),
        ask_leases(wiring, observatory)
    );
}

/// Asks for the head first and for the end of the stream then, so that a pipeline that keeps up appears as current.
/// Records the end first, because it says in which epoch the head lies.
async fn ask_source(wiring: &Wiring, observatory: &Observatory, name: &str) {
    let source = PolledDependency { observatory, kind: Dependency::Source, name };
    let head = source.answer(async { wiring.source(name)?.head_and_clock().await }).await;
    let head_at = Instant::now();
    let log = PolledDependency { observatory, kind: Dependency::Log, name: LOG };
    let end = log.answer(of_log(wiring, async |log| log.end(name).await)).await;
    observatory.log_end_seen(name, &end, Instant::now());
    observatory.head_seen(name, &head, head_at);
    if observatory.lacks_sizes(name, head_at) {
        let sizes = source.answer(async { wiring.source(name)?.estimated_rows().await }).await;
        observatory.sizes_seen(name, &sizes, head_at);
    }
}

/// Asks source and log for the binlog and the stream that they still have for a late reader.
async fn ask_kept(wiring: &Wiring, observatory: &Observatory, name: &str) {
    let kept = async { wiring.source(name)?.binlog_kept().await };
    let kept = within(Dependency::Source, name, kept).await.ok();
    let stream = async { wiring.log().await?.stream_state(name).await };
    let stream = within(Dependency::Log, LOG, stream).await.ok();
    if let Some(kept) = &kept {
        let ends = kept.certificate_ends.as_deref().and_then(certificate_end);
        observatory.certificate_seen(Dependency::Source, name, ends);
    }
    observatory.kept_seen(name, kept, stream);
}

async fn ask_target(wiring: &Wiring, observatory: &Observatory, name: &str) {
    let target = PolledDependency { observatory, kind: Dependency::Target, name };
    let progress = target.answer(wiring.progress(name)).await;
    observatory.progress_seen(name, &progress, Instant::now());
}

async fn ask_cache(wiring: &Wiring, observatory: &Observatory, name: &str, watch: &DrainWatch) {
    let state = async {
        let cache = wiring.cache(name)?;
        let life = cache.redis.incarnation().await?;
        let states = watch.read(&cache.outboxes).await?;
        let delay = states.iter().map(|state| state.delay).max().unwrap_or_default();
        Ok((delay, states.iter().all(|state| state.is_believed(&life))))
    };
    let state = PolledDependency { observatory, kind: Dependency::Cache, name }.answer(state).await;
    observatory.cache_seen(name, &state, Instant::now());
}

/// Asks an index for its counts, or only for a sign of its cluster while the counts are young. Such a sign is recorded
/// only if it fails: the time of an answer is that of the counts.
async fn ask_search(documents: &Documents, observatory: &Observatory) {
    let (projection, asked) = (&documents.projection, Instant::now());
    if !observatory.lacks_counts(projection, asked) {
        if let Err(fault) = within(Dependency::Index, projection, documents.target.reach()).await {
            let failed = Err(fault);
            observatory.answered(Dependency::Index, projection, asked, &failed);
            observatory.search_seen(projection, &failed, Instant::now());
        }
        return;
    }
    let overview = documents.target.overview(projection);
    let seen =
        PolledDependency { observatory, kind: Dependency::Index, name: projection }.answer(overview).await;
    observatory.search_seen(projection, &seen, Instant::now());
}

async fn ask_programme(wiring: &Wiring, observatory: &Observatory, programme: &str) {
    let log = PolledDependency { observatory, kind: Dependency::Log, name: LOG };
    let day = log.answer(of_log(wiring, async |log| coupons::newest_day(log, programme).await)).await;
    observatory.programme_seen(programme, &day, Instant::now());
}

/// Asks whether the coupon system can be reached. Its answers to requests are the granters' matter.
async fn ask_coupon_system(wiring: &Wiring, observatory: &Observatory) {
    let system = PolledDependency { observatory, kind: Dependency::CouponSystem, name: COUPON_SYSTEM };
    // A fault is recorded; here it is no reason for anything else.
    _ = system.answer(wiring.reach_coupon_system()).await;
}

async fn ask_pauses(wiring: &Wiring, observatory: &Observatory) {
    let log = PolledDependency { observatory, kind: Dependency::Log, name: LOG };
    let pauses = log.answer(of_log(wiring, async |log| pauses::read(log).await)).await;
    observatory.pauses_seen(&pauses);
}

/// Asks for the leases. Whether the log is up does not depend on it: a bucket that is not set up yet is no outage.
async fn ask_leases(wiring: &Wiring, observatory: &Observatory) {
    let holders = async { wiring.log().await?.lease_holders().await };
    observatory.leases_seen(&within(Dependency::Log, LOG, holders).await);
}

/// Asks the log, unless NATS cannot be reached for a while.
async fn of_log<T>(
    wiring: &Wiring,
    question: impl AsyncFnOnce(&NatsLog) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let log = wiring.log().await?;
    tokio::select! {
        answer = question(log) => answer,
        fault = log.connection_lost(LOG_LOST) => Err(fault),
    }
}

/// A server that is asked; each of its answers is recorded.
struct PolledDependency<'a> {
    observatory: &'a Observatory,
    kind: Dependency,
    name: &'a str,
}

impl PolledDependency<'_> {
    async fn answer<T>(&self, question: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        let asked = Instant::now();
        let answer = within(self.kind, self.name, question).await;
        self.observatory.answered(self.kind, self.name, asked, &answer);
        answer
    }
}
