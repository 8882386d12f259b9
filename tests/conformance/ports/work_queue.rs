//! The work queue: it holds each message that it took, by part and in order, and a full queue refuses further ones.

use std::sync::Arc;

use anabranch_connectors::memory::MemoryWorkQueue;
use anabranch_connectors::nats::work_queue::NatsWorkQueue;
use anabranch_coupons::ports::WorkQueue;
use anabranch_coupons::records::{Member, Message, PARTS, RunKey, part};
use anabranch_pipeline::error::Code;
use anabranch_schemas::celebration::Calendar;
use jiff::civil::date;

use crate::nats::{Nats, until, within};

pub const STREAM: &str = "demo_coupons";

/// A queue, and granters that work it off.
pub trait Ground {
    type Queue: WorkQueue;

    async fn start() -> Self;
    fn queue(&self) -> &Self::Queue;
    /// Lets the queue hold at most this number of messages.
    async fn set_room(&self, messages: usize);
    /// Number of messages that the queue holds.
    async fn held(&self) -> usize;
    /// Takes the next messages of a part and ends them, so that the queue no longer holds them.
    async fn work_off(&self, number: u64, count: usize) -> Vec<Message>;
}

pub struct Twin(MemoryWorkQueue);

impl Ground for Twin {
    type Queue = MemoryWorkQueue;

    async fn start() -> Self {
        Self(MemoryWorkQueue::new(50_000))
    }

    fn queue(&self) -> &MemoryWorkQueue {
        &self.0
    }

    async fn set_room(&self, messages: usize) {
        self.0.set_room(messages);
    }

    async fn held(&self) -> usize {
        self.0.held()
    }

    async fn work_off(&self, number: u64, count: usize) -> Vec<Message> {
        self.0.work_off(number, count)
    }
}

pub struct Server {
    nats: Nats,
    queue: NatsWorkQueue,
}

impl Ground for Server {
    type Queue = NatsWorkQueue;

    async fn start() -> Self {
        let nats = Nats::start();
        let queue = NatsWorkQueue::connect(&nats.config(), "demo").await.unwrap();
        queue.setup().await.unwrap();
        Self { nats, queue }
    }

    fn queue(&self) -> &NatsWorkQueue {
        &self.queue
    }

    async fn set_room(&self, messages: usize) {
        let admin = self.nats.admin().await;
        let mut config = admin.get_stream(STREAM).await.unwrap().get_info().await.unwrap().config;
        config.max_messages = i64::try_from(messages).unwrap();
        admin.update_stream(config).await.unwrap();
    }

    async fn held(&self) -> usize {
        usize::try_from(self.queue.pending().await.unwrap()).unwrap()
    }

    async fn work_off(&self, number: u64, count: usize) -> Vec<Message> {
        let before = self.held().await;
        let mut granter = self.queue.part(number).await.unwrap();
        let mut taken = Vec::new();
        while taken.len() < count {
            for delivery in within(granter.next(count - taken.len())).await.unwrap() {
                taken.push(delivery.message.clone());
                delivery.acknowledge().await;
            }
        }
        until("messages that are done are gone", async || self.held().await == before - count).await;
        taken
    }
}

on_twin_and_server!(Twin, Server:
    a_publish_returns_when_the_queue_holds_all_messages,
    a_full_queue_refuses_and_takes_messages_again_once_some_are_done,
);

/// A message about users of one part.
pub fn message(part: u64, users: impl IntoIterator<Item = u64>) -> Message {
    let members = users
        .into_iter()
        .map(|number| Member { user: number * PARTS + part, calendar: Calendar::Solar })
        .collect();
    let run = RunKey { programme: Arc::from("birthday"), day: date(2027, 2, 28) };
    Message { run, members, wave: 1 }
}

async fn a_publish_returns_when_the_queue_holds_all_messages(ground: impl Ground) {
    let queue = ground.queue();
    queue.publish(&[]).await.unwrap();
    assert_eq!(ground.held().await, 0);

    // More messages than a client sends before it waits for their acknowledgements.
    let messages: Vec<Message> =
        (0..600).map(|number| message(number % PARTS, number..number + 100)).collect();
    queue.publish(&messages).await.unwrap();
    assert_eq!(ground.held().await, messages.len());
    for number in 0..PARTS {
        let is_of_part = |message: &&Message| part(message.members[0].user) == number;
        let expected: Vec<Message> = messages.iter().filter(is_of_part).cloned().collect();
        assert_eq!(ground.work_off(number, expected.len()).await, expected, "of part {number}");
    }
    assert_eq!(ground.held().await, 0);

    // A message that was worked off may be published again.
    queue.publish(&messages[3..4]).await.unwrap();
    assert_eq!(ground.work_off(3, 1).await, messages[3..4]);
}

async fn a_full_queue_refuses_and_takes_messages_again_once_some_are_done(ground: impl Ground) {
    let queue = ground.queue();
    ground.set_room(2).await;
    let messages = [1, 2, 3].map(|number| message(0, [number]));
    queue.publish(&messages[..2]).await.unwrap();
    let refused = queue.publish(&messages[2..]).await.unwrap_err();
    assert_eq!(refused.code(), Code::LogFull, "{refused}");
    assert_eq!(ground.work_off(0, 2).await, messages[..2], "it keeps the messages that it has");

    // Messages that are refused together may be held in part.
    let refused = queue.publish(&messages).await.unwrap_err();
    assert_eq!(refused.code(), Code::LogFull, "{refused}");
    let held = ground.held().await;
    assert!(held <= 2, "it holds {held} messages");
    let kept = ground.work_off(0, held).await;
    assert!(kept.iter().all(|message| messages.contains(message)), "{kept:?}");
    queue.publish(&messages[2..]).await.unwrap();
    assert_eq!(ground.work_off(0, 1).await, messages[2..]);
}
