//! Leases: one holder at a time, a takeover when the holder is gone, and a notice when a lease is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anabranch_connectors::memory::MemoryLeases;
use anabranch_connectors::nats::NatsLog;
use anabranch_pipeline::error::{Class, Code};
use anabranch_pipeline::ports::{LEASE_TIME_TO_LIVE, Lease, Leases};
use futures::FutureExt;
use tokio::time::{Instant, timeout};

use crate::nats::{Nats, blocking, stall_beside, text, within};

const KEY: &str = "reader/source-a";

/// A bucket of leases, and ways to disturb it.
pub trait Ground {
    type Leases: Leases + Clone + 'static;

    async fn start() -> Self;
    /// The leases of one process.
    async fn process(&self) -> Self::Leases;
    /// Another process writes the key, whatever process holds it.
    async fn steal(&self, key: &str);
    /// Whether the key still has the value of [`Self::steal`].
    async fn is_stolen(&self, key: &str) -> bool;
    /// Takes the server away, or brings it back.
    fn set_away(&self, away: bool);
}

pub struct Twin(MemoryLeases);

impl Ground for Twin {
    type Leases = MemoryLeases;

    async fn start() -> Self {
        Self(MemoryLeases::new())
    }

    async fn process(&self) -> MemoryLeases {
        self.0.clone()
    }

    async fn steal(&self, key: &str) {
        self.0.steal(key);
    }

    async fn is_stolen(&self, key: &str) -> bool {
        self.0.is_held(key)
    }

    fn set_away(&self, away: bool) {
        self.0.set_away(away);
    }
}

pub struct Server(Nats);

impl Ground for Server {
    type Leases = NatsLog;

    async fn start() -> Self {
        let nats = Nats::start();
        nats.log().await;
        Self(nats)
    }

    async fn process(&self) -> NatsLog {
        self.0.connect().await
    }

    async fn steal(&self, key: &str) {
        let bucket = self.0.admin().await.get_key_value("demo_leases").await.unwrap();
        bucket.put(key, "another".into()).await.unwrap();
    }

    async fn is_stolen(&self, key: &str) -> bool {
        let bucket = self.0.admin().await.get_key_value("demo_leases").await.unwrap();
        bucket.entry(key).await.unwrap().is_some_and(|entry| entry.value == "another")
    }

    fn set_away(&self, away: bool) {
        let server = &self.0.server;
        blocking(|| if away { server.pause() } else { server.resume() }.unwrap());
    }
}

on_twin_and_server!(Twin, Server:
    of_sixteen_racers_exactly_one_holds_the_lease_at_any_time,
    a_holder_that_is_gone_is_followed_after_its_time_and_a_released_lease_at_once,
    an_old_holder_is_refused_and_told,
    a_release_that_comes_too_late_leaves_the_new_holder_alone,
    a_holder_without_a_server_gives_up_before_its_time_is_over,
    leases_of_different_keys_are_independent,
);

async fn of_sixteen_racers_exactly_one_holds_the_lease_at_any_time(ground: impl Ground) {
    let mut processes = Vec::new();
    for _ in 0..4 {
        processes.push(ground.process().await);
    }
    let holders = Arc::new(AtomicUsize::new(0));
    let turns = Arc::new(AtomicUsize::new(0));
    let racers: Vec<_> = (0..16)
        .map(|number| {
            let leases = processes[number % 4].clone();
            let (holders, turns) = (Arc::clone(&holders), Arc::clone(&turns));
            tokio::spawn(async move {
                let mut lease = leases.acquire(KEY).await.unwrap();
                assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                // The first process keeps it beyond its time to live, so renewal keeps the others out.
                if turns.fetch_add(1, Ordering::SeqCst) == 0 {
                    assert!(
                        timeout(LEASE_TIME_TO_LIVE * 3 / 2, lease.lost()).await.is_err(),
                        "lost while held"
                    );
                }
                holders.fetch_sub(1, Ordering::SeqCst);
                lease.release().await;
            })
        })
        .collect();
    for racer in racers {
        within(racer).await.unwrap();
    }
    assert_eq!(turns.load(Ordering::SeqCst), 16);
}

async fn a_holder_that_is_gone_is_followed_after_its_time_and_a_released_lease_at_once(ground: impl Ground) {
    let (one, two) = (ground.process().await, ground.process().await);
    let lease = one.acquire(KEY).await.unwrap();
    let began = Instant::now();
    drop(lease);
    let (lease, stall) = stall_beside(within(two.acquire(KEY))).await;
    let lease = lease.unwrap();
    // The last renewal may be a renewal interval old.
    let (earliest, latest) = (LEASE_TIME_TO_LIVE * 2 / 3, LEASE_TIME_TO_LIVE * 2 + stall);
    let elapsed = began.elapsed();
    assert!((earliest..latest).contains(&elapsed), "{elapsed:?}, and a stall of {stall:?}");

    lease.release().await;
    let began = Instant::now();
    let (lease, stall) = stall_beside(within(one.acquire(KEY))).await;
    let (_lease, elapsed) = (lease.unwrap(), began.elapsed());
    assert!(elapsed < Duration::from_secs(2) + stall, "{elapsed:?}, and a stall of {stall:?}");
}

async fn an_old_holder_is_refused_and_told(ground: impl Ground) {
    let mut lease = ground.process().await.acquire(KEY).await.unwrap();
    assert!(lease.lost().now_or_never().is_none());
    ground.steal(KEY).await;
    let fault = within(lease.lost()).await;
    assert!(text(&fault, Code::LeaseLost).contains("another process took it"), "{fault}");
    assert_eq!(fault.class(), Class::Transient);
    assert_eq!(within(lease.lost()).await.code(), Code::LeaseLost);
    // Its release must not free another process's lease.
    lease.release().await;
    assert!(ground.is_stolen(KEY).await);
}

async fn a_release_that_comes_too_late_leaves_the_new_holder_alone(ground: impl Ground) {
    let lease = ground.process().await.acquire(KEY).await.unwrap();
    ground.steal(KEY).await;
    // The release comes before the next renewal.
    lease.release().await;
    assert!(ground.is_stolen(KEY).await);
}

async fn a_holder_without_a_server_gives_up_before_its_time_is_over(ground: impl Ground) {
    let mut lease = ground.process().await.acquire(KEY).await.unwrap();
    let began = Instant::now();
    let (fault, stall) = stall_beside(async {
        ground.set_away(true);
        within(lease.lost()).await
    })
    .await;
    let elapsed = began.elapsed();
    assert!(text(&fault, Code::LeaseLost).contains("could not be renewed in time"), "{fault}");
    assert!(elapsed < LEASE_TIME_TO_LIVE + stall, "{elapsed:?}, and a stall of {stall:?}");
    ground.set_away(false);
    within(lease.release()).await;
}

async fn leases_of_different_keys_are_independent(ground: impl Ground) {
    let leases = ground.process().await;
    let _one = within(leases.acquire(KEY)).await.unwrap();
    let _two = within(leases.acquire("lane/birthday.x y/0")).await.unwrap();
}
