//! Registers: they rise, they stay, and only a writer with the last revision raises them.

use anabranch_connectors::memory::{MemoryRegisters, Weather};
use anabranch_connectors::nats::NatsLog;
use anabranch_pipeline::error::Code;
use anabranch_pipeline::identifiers::{EPOCH_MS, Mint};
use anabranch_pipeline::ports::{Register, Registers};

use crate::nats::{Nats, text};

const KEY: &str = "uuids/7";
const NEVER_RAISED: Register = Register { value: String::new(), revision: 0 };

/// A bucket of registers.
pub trait Ground {
    type Registers: Registers;

    async fn start() -> Self;
    /// The registers of one process.
    async fn process(&self) -> Self::Registers;
}

pub struct Twin(MemoryRegisters);

impl Ground for Twin {
    type Registers = MemoryRegisters;

    async fn start() -> Self {
        Self(MemoryRegisters::new(Weather::calm()))
    }

    async fn process(&self) -> MemoryRegisters {
        self.0.clone()
    }
}

pub struct Server(Nats);

impl Ground for Server {
    type Registers = NatsLog;

    async fn start() -> Self {
        let nats = Nats::start();
        nats.log().await;
        Self(nats)
    }

    async fn process(&self) -> NatsLog {
        self.0.connect().await
    }
}

on_twin_and_server!(Twin, Server:
    a_register_is_set_only_by_who_knows_its_last_revision,
    who_asks_with_the_same_key_again_is_given_the_same_uuids_by_anybody,
);

async fn a_register_is_set_only_by_who_knows_its_last_revision(ground: impl Ground) {
    let (one, two) = (ground.process().await, ground.process().await);
    let unknown = one.read(KEY).await.unwrap();
    assert_eq!(unknown, NEVER_RAISED);
    let raised = one.compare_and_set(KEY, &unknown, "41".to_owned()).await.unwrap();
    assert_eq!(two.read(KEY).await.unwrap(), raised);
    text(&two.compare_and_set(KEY, &unknown, "50".to_owned()).await.unwrap_err(), Code::LeaseLost);

    let by_two = two.compare_and_set(KEY, &raised, "2 mariadb:7".to_owned()).await.unwrap();
    text(&one.compare_and_set(KEY, &raised, "42".to_owned()).await.unwrap_err(), Code::LeaseLost);
    assert_eq!(one.read(KEY).await.unwrap(), by_two);
    assert_eq!(by_two.value, "2 mariadb:7");
    assert_eq!(one.read("uuids/8").await.unwrap(), NEVER_RAISED);
}

async fn who_asks_with_the_same_key_again_is_given_the_same_uuids_by_anybody(ground: impl Ground) {
    let (one, two) = (ground.process().await, ground.process().await);
    let now = EPOCH_MS + 1_000_000;
    let mut mint = Mint::open(&one, 3).await.unwrap();
    let given = mint.issue_once("a1", now, 5).await.unwrap().unwrap();
    assert_eq!(given.len(), 5);
    let between = mint.issue(now, 5).await.unwrap();
    assert_eq!(mint.issue_once("a1", now + 9_999, 5).await.unwrap(), Some(given.clone()));
    let mut other = Mint::open(&two, 4).await.unwrap();
    assert_eq!(other.issue_once("a1", now, 5).await.unwrap(), Some(given.clone()));
    assert_eq!(other.issue_once("a1", now, 6).await.unwrap(), None, "another count");
    let again = other.issue_once("a2", now, 5).await.unwrap().unwrap();
    assert!(given.iter().chain(&between).all(|uuid| !again.contains(uuid)), "another key");
}

/// The bucket is small, so that the test need not write for a day.
#[tokio::test(flavor = "multi_thread")]
async fn keys_that_fill_their_bucket_are_refused_and_nothing_else_is() {
    const ENOUGH: u32 = 2_000;
    let nats = Nats::start();
    let log = nats.log().await;
    let jetstream = nats.admin().await;
    let mut bucket = jetstream.get_stream("KV_demo_intake").await.unwrap().cached_info().config.clone();
    assert_eq!(bucket.max_age.as_secs(), 24 * 3600, "a day");
    assert!((1..100_000_000).contains(&bucket.max_bytes), "{}", bucket.max_bytes);
    bucket.max_bytes = 20_000;
    jetstream.update_stream(bucket).await.unwrap();

    let now = EPOCH_MS + 1_000_000;
    let mut mint = Mint::open(&log, 3).await.unwrap();
    let first = mint.issue_once("key-0", now, 1).await.unwrap();
    let mut refusal = None;
    for number in 1..ENOUGH {
        if let Err(fault) = mint.issue_once(&format!("key-{number}"), now, 1).await {
            refusal = Some(fault);
            break;
        }
    }
    text(&refusal.unwrap(), Code::UuidsKeysFull);
    assert_eq!(mint.issue_once("key-0", now, 1).await.unwrap(), first, "a key that is known is answered");
    assert_eq!(
        mint.issue(now + 60_000, 5).await.unwrap().len(),
        5,
        "without a key, and the register is raised for it"
    );
    log.compare_and_set(KEY, &NEVER_RAISED, "41".to_owned()).await.unwrap();
    let kept = jetstream.get_stream("KV_demo_registers").await.unwrap().cached_info().state.messages;
    assert_eq!(kept, 2, "no key of a caller is kept for ever");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_an_older_version_still_count_and_their_bucket_is_made() {
    let nats = Nats::start();
    let log = nats.log().await;
    let jetstream = nats.admin().await;
    jetstream.delete_stream("KV_demo_intake").await.unwrap();
    let older = jetstream.get_key_value("demo_registers").await.unwrap();
    older.put("intake/a1", "9 4711 1".into()).await.unwrap();
    let now = EPOCH_MS + 1_000_000;
    let mut mint = Mint::open(&log, 3).await.unwrap();
    let given = mint.issue_once("a1", now, 1).await.unwrap();
    assert_eq!(mint.issue_once("a1", now, 1).await.unwrap(), given);
    assert_eq!(mint.issue_once("a1", now, 2).await.unwrap(), None, "another count than was given");
    assert!(mint.issue_once("a2", now, 1).await.unwrap().is_some());
    assert_eq!(jetstream.get_stream("KV_demo_intake").await.unwrap().cached_info().state.messages, 1);
}
