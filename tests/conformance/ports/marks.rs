//! Marks: they rise, they stay, and only who knows the last revision raises them.

use anabranch_connectors::memory::{MemoryMarks, Weather};
use anabranch_connectors::nats::NatsLog;
use anabranch_pipeline::error::Code;
use anabranch_pipeline::ports::{Mark, Marks};

use crate::nats::{Nats, text};

const KEY: &str = "uuids/7";
const NEVER_RAISED: Mark = Mark { value: String::new(), revision: 0 };

/// A bucket of marks.
pub trait Ground {
    type Marks: Marks;

    async fn start() -> Self;
    /// As one process sees it.
    async fn process(&self) -> Self::Marks;
}

pub struct Twin(MemoryMarks);

impl Ground for Twin {
    type Marks = MemoryMarks;

    async fn start() -> Self {
        Self(MemoryMarks::new(Weather::calm()))
    }

    async fn process(&self) -> MemoryMarks {
        self.0.clone()
    }
}

pub struct Server(Nats);

impl Ground for Server {
    type Marks = NatsLog;

    async fn start() -> Self {
        let nats = Nats::start();
        nats.log().await;
        Self(nats)
    }

    async fn process(&self) -> NatsLog {
        self.0.connect().await
    }
}

on_twin_and_server!(Twin, Server: a_mark_is_raised_only_by_who_knows_its_last_revision);

async fn a_mark_is_raised_only_by_who_knows_its_last_revision(ground: impl Ground) {
    let (one, two) = (ground.process().await, ground.process().await);
    let unknown = one.read(KEY).await.unwrap();
    assert_eq!(unknown, NEVER_RAISED);
    let raised = one.raise(KEY, &unknown, "41".to_owned()).await.unwrap();
    assert_eq!(two.read(KEY).await.unwrap(), raised);
    text(&two.raise(KEY, &unknown, "50".to_owned()).await.unwrap_err(), Code::LeaseLost);

    let by_two = two.raise(KEY, &raised, "2 mariadb:7".to_owned()).await.unwrap();
    text(&one.raise(KEY, &raised, "42".to_owned()).await.unwrap_err(), Code::LeaseLost);
    assert_eq!(one.read(KEY).await.unwrap(), by_two);
    assert_eq!(by_two.value, "2 mariadb:7");
    assert_eq!(one.read("uuids/8").await.unwrap(), NEVER_RAISED);
}
