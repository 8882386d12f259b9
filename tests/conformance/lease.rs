//! Leases on NATS: lost answers, a dying server, names. `ports/lease.rs` tests the promises of every lease.

use anabranch_connectors::nats::NatsLog;
use anabranch_pipeline::error::Code;
use anabranch_pipeline::ports::{LEASE_TIME_TO_LIVE, Lease, Leases};
use async_nats::jetstream::kv::Store;
use futures::FutureExt;
use tokio::time::Instant;

use crate::nats::{Nats, STREAM, blocking, limits, stall_beside, text, until, within};

const KEY: &str = "reader/source-a";

async fn bucket(nats: &Nats) -> Store {
    nats.admin().await.get_key_value("demo_leases").await.unwrap()
}

async fn revision(bucket: &Store) -> u64 {
    bucket.entry(KEY).await.unwrap().map_or(0, |entry| entry.revision)
}

/// The answer to a renewal is lost: the key still has the process's value, with an unknown revision.
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
async fn a_holder_whose_server_was_killed_gives_up_before_its_time_is_over() {
    let nats = Nats::start();
    let log = nats.log().await;
    let mut lease = log.acquire(KEY).await.unwrap();
    let began = Instant::now();
    let (fault, stall) = stall_beside(async {
        blocking(|| nats.server.kill().unwrap());
        within(lease.lost()).await
    })
    .await;
    let elapsed = began.elapsed();
    assert!(text(&fault, Code::LeaseLost).contains("could not be renewed in time"), "{fault}");
    assert!(elapsed < LEASE_TIME_TO_LIVE + stall, "{elapsed:?}, and a stall of {stall:?}");
    blocking(|| nats.server.restart().unwrap());
    within(lease.release()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_is_gone_is_made_anew_and_its_holder_lets_go() {
    let nats = Nats::start();
    let log = nats.log().await;
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

#[tokio::test(flavor = "multi_thread")]
async fn every_held_lease_is_listed_with_its_process_and_a_freed_one_is_not() {
    let nats = Nats::start();
    let log = nats.log().await;
    assert!(log.lease_holders().await.unwrap().is_empty());
    let odd = "lane/birthday.x y/0";
    let (one, two) = (within(log.acquire(KEY)).await.unwrap(), within(log.acquire(odd)).await.unwrap());
    let other = nats.connect().await;
    for (log, is_own) in [(&log, true), (&other, false)] {
        let holders = within(log.lease_holders()).await.unwrap();
        assert_eq!(holders.keys().collect::<Vec<_>>(), [odd, KEY]);
        for holder in holders.values() {
            assert_eq!((holder.process_id, holder.is_own), (std::process::id(), is_own), "{holder:?}");
            assert!(!holder.host.is_empty());
        }
    }
    within(two.release()).await;
    assert_eq!(within(other.lease_holders()).await.unwrap().len(), 1);
    within(one.release()).await;
    assert!(within(other.lease_holders()).await.unwrap().is_empty());
}
