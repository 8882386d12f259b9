//! Leases: one holder, taken over when it is gone, noticed when it is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anabranch_connectors::nats::NatsLog;
use anabranch_pipeline::error::{Class, Code};
use anabranch_pipeline::ports::{LEASE_TIME_TO_LIVE, Lease, Leases};
use async_nats::jetstream::kv::Store;
use futures::FutureExt;
use tokio::time::{Instant, timeout};

use crate::nats::{Nats, STREAM, blocking, limits, text, until, within};

const KEY: &str = "reader/source-a";

async fn bucket(nats: &Nats) -> Store {
    nats.admin().await.get_key_value("demo_leases").await.unwrap()
}

async fn revision(bucket: &Store) -> u64 {
    bucket.entry(KEY).await.unwrap().map_or(0, |entry| entry.revision)
}

#[tokio::test(flavor = "multi_thread")]
async fn of_sixteen_racers_exactly_one_holds_the_lease_at_any_time() {
    let nats = Nats::start();
    let mut logs = vec![nats.log().await];
    for _ in 1..4 {
        logs.push(nats.connect().await);
    }
    let holders = Arc::new(AtomicUsize::new(0));
    let turns = Arc::new(AtomicUsize::new(0));
    let racers: Vec<_> = (0..16)
        .map(|number| {
            let (log, holders, turns) = (logs[number % 4].clone(), Arc::clone(&holders), Arc::clone(&turns));
            tokio::spawn(async move {
                let mut lease = log.acquire(KEY).await.unwrap();
                assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                // The first keeps it beyond its time to live, so renewal is what keeps the others out.
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

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_is_gone_is_followed_after_its_time_and_a_released_lease_at_once() {
    let nats = Nats::start();
    let (one, two) = (nats.log().await, nats.connect().await);
    let lease = one.acquire(KEY).await.unwrap();
    let began = Instant::now();
    drop(lease);
    let lease = within(two.acquire(KEY)).await.unwrap();
    // The last renewal may be a renewal interval old.
    let (earliest, latest) = (LEASE_TIME_TO_LIVE * 2 / 3, LEASE_TIME_TO_LIVE * 2);
    assert!((earliest..latest).contains(&began.elapsed()), "{:?}", began.elapsed());

    lease.release().await;
    let began = Instant::now();
    let _lease = within(one.acquire(KEY)).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_holder_is_refused_and_told() {
    let nats = Nats::start();
    let log = nats.log().await;
    let mut lease = log.acquire(KEY).await.unwrap();
    assert!(lease.lost().now_or_never().is_none());
    let bucket = bucket(&nats).await;
    bucket.put(KEY, "another".into()).await.unwrap();
    let fault = within(lease.lost()).await;
    assert!(text(&fault, Code::LeaseLost).contains("another process took it"), "{fault}");
    assert_eq!(fault.class(), Class::Transient);
    assert_eq!(within(lease.lost()).await.code(), Code::LeaseLost);
    // Its release must not free what another one holds.
    lease.release().await;
    assert_eq!(bucket.entry(KEY).await.unwrap().unwrap().value, "another");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_comes_too_late_leaves_the_new_holder_alone() {
    let nats = Nats::start();
    let log = nats.log().await;
    let lease = log.acquire(KEY).await.unwrap();
    let bucket = bucket(&nats).await;
    bucket.put(KEY, "another".into()).await.unwrap();
    // Before the next renewal could tell.
    lease.release().await;
    assert_eq!(bucket.entry(KEY).await.unwrap().unwrap().value, "another");
}

/// The answer to a renewal was lost: the key still holds our value, with a revision that we do not know.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_whose_renewal_was_stored_unheard_is_kept() {
    let nats = Nats::start();
    let log = nats.log().await;
    let mut lease = log.acquire(KEY).await.unwrap();
    let bucket = bucket(&nats).await;
    let ours = bucket.entry(KEY).await.unwrap().unwrap().value;
    let unheard = bucket.put(KEY, ours).await.unwrap();
    until("the lease is renewed", async || revision(&bucket).await > unheard + 1).await;
    assert!(lease.lost().now_or_never().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_without_a_server_gives_up_before_its_time_is_over() {
    let nats = Nats::start();
    let log = nats.log().await;
    for pause in [true, false] {
        let mut lease = log.acquire(KEY).await.unwrap();
        let began = Instant::now();
        blocking(|| if pause { nats.server.pause() } else { nats.server.kill() }.unwrap());
        let fault = within(lease.lost()).await;
        assert!(text(&fault, Code::LeaseLost).contains("could not be renewed in time"), "{fault}");
        assert!(began.elapsed() < LEASE_TIME_TO_LIVE, "{:?}", began.elapsed());
        blocking(|| if pause { nats.server.resume() } else { nats.server.restart() }.unwrap());
        within(lease.release()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_is_gone_is_made_anew_and_its_holder_lets_go() {
    let nats = Nats::start();
    let log = nats.connect().await;
    let mut lease = within(log.acquire(KEY)).await.unwrap();
    nats.admin().await.delete_key_value("demo_leases").await.unwrap();
    text(&within(lease.lost()).await, Code::LeaseLost);
    let _lease = within(log.acquire(KEY)).await.unwrap();
    assert!(log.check(&[]).await.is_empty(), "the bucket is not as set-up makes it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_whose_keys_never_grow_old_is_refused() {
    let nats = Nats::start();
    let log = nats.connect().await;
    let config = async_nats::jetstream::kv::Config { bucket: "demo_leases".to_owned(), ..Default::default() };
    nats.admin().await.create_key_value(config).await.unwrap();
    let fault = within(log.acquire(KEY)).await.err().unwrap();
    text(&fault, Code::LogSettingsDiffer);
    assert_eq!(fault.subject(), "bucket demo_leases");
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_of_different_keys_and_installations_are_independent() {
    let nats = Nats::start();
    let log = nats.log().await;
    let other = NatsLog::connect(&nats.config(), "other", &limits()).await.unwrap();
    other.setup(&[]).await.unwrap();
    let _one = within(log.acquire(KEY)).await.unwrap();
    let _two = within(log.acquire("lane/birthday.x y/0")).await.unwrap();
    let _three = within(other.acquire(KEY)).await.unwrap();
    assert!(nats.admin().await.get_stream(STREAM).await.is_ok());
}
