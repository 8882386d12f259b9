//! The work queue on NATS: messages that it keeps, gives again, refuses and sets aside. `ports` has the suite that the
//! in-memory twin passes too.

use std::collections::BTreeSet;
use std::time::Duration;

use anabranch_connectors::nats::SetupOutcome;
use anabranch_connectors::nats::work_queue::{Delivery, NatsWorkQueue, WorkQueuePart};
use anabranch_coupons::ports::WorkQueue;
use anabranch_coupons::records::{Message, PARTS};
use anabranch_pipeline::error::Code;
use tokio::time::Instant;

use crate::nats::{Nats, blocking, until, within};
use crate::ports::work_queue::{STREAM, message};

/// The queue of a server, set up.
async fn queue(nats: &Nats) -> NatsWorkQueue {
    let queue = NatsWorkQueue::connect(&nats.config(), "demo").await.unwrap();
    assert_eq!(queue.check().await[0].code(), Code::LogStreamMissing);
    let made = queue.setup().await.unwrap();
    assert_eq!((made.subject.as_str(), made.outcome), ("stream demo_coupons", SetupOutcome::Created));
    assert_eq!(queue.setup().await.unwrap().outcome, SetupOutcome::Unchanged);
    assert!(queue.check().await.is_empty());
    queue
}

/// Takes the next messages of a part, however many come at once.
async fn take(part: &mut WorkQueuePart, count: usize) -> Vec<Delivery> {
    let mut taken = Vec::new();
    while taken.len() < count {
        taken.extend(within(part.next(count - taken.len())).await.unwrap());
    }
    taken
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_comes_to_its_part_until_it_is_done() {
    let nats = Nats::start();
    let queue = queue(&nats).await;
    let messages: Vec<Message> =
        (0..600).map(|number| message(number % PARTS, number..number + 100)).collect();
    queue.publish(&messages).await.unwrap();
    assert_eq!(queue.pending().await.unwrap(), 600);
    // Two granters share a part, and each message comes to one of them.
    let (mut one, mut other) = (queue.part(3).await.unwrap(), queue.part(3).await.unwrap());
    let expected: Vec<Message> =
        messages.iter().filter(|message| message.members[0].user % PARTS == 3).cloned().collect();
    let mut taken = take(&mut one, 10).await;
    taken.extend(take(&mut other, expected.len() - 10).await);
    let found: BTreeSet<u64> = taken.iter().map(|delivery| delivery.message.members[0].user).collect();
    assert_eq!(found, expected.iter().map(|message| message.members[0].user).collect());
    assert_eq!(within(one.next(5)).await.unwrap().len(), 0, "other parts have their own");
    // A message that is put off comes again, after its pause.
    let began = Instant::now();
    for (number, delivery) in taken.into_iter().enumerate() {
        match number {
            0 => delivery.later(Duration::from_millis(300)).await,
            _ => delivery.acknowledge().await,
        }
    }
    let again = take(&mut other, 1).await.remove(0);
    // A message in progress stays with its granter, and ends like any other.
    again.in_progress().await;
    assert!(within(one.next(1)).await.unwrap().is_empty());
    assert!(began.elapsed() >= Duration::from_millis(250), "{:?}", began.elapsed());
    assert_eq!(again.deliveries, 2);
    again.acknowledge().await;
    until("done messages are gone", async || queue.pending().await.unwrap() == 600 - expected.len() as u64)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_bytes_are_set_aside_and_a_queue_that_is_gone_is_made_anew() {
    let nats = Nats::start();
    let queue = queue(&nats).await;
    let mut part = queue.part(0).await.unwrap();
    let admin = nats.admin().await;
    for bytes in [vec![], vec![1], vec![9; 100], vec![1; 16 * 1024]] {
        admin.publish("demo.coupons.0", bytes.into()).await.unwrap().await.unwrap();
    }
    queue.publish(&[message(0, [7])]).await.unwrap();
    let taken = take(&mut part, 1).await.remove(0);
    assert_eq!(taken.message, message(0, [7]));
    taken.acknowledge().await;
    until("nothing is left", async || queue.pending().await.unwrap() == 0).await;
    let too_large = admin.publish("demo.coupons.0", vec![1; 17 * 1024].into()).await.unwrap().await;
    assert!(too_large.is_err(), "the stream takes no larger message");

    // The stream is lost with all messages: publishing reports it, and a reader makes it anew.
    admin.delete_stream(STREAM).await.unwrap();
    assert_eq!(queue.publish(&[message(0, [8])]).await.unwrap_err().code(), Code::LogUnreachable);
    until("the loss is seen", async || within(part.next(1)).await.is_err()).await;
    let mut part = queue.part(0).await.unwrap();
    queue.publish(&[message(0, [9])]).await.unwrap();
    assert_eq!(take(&mut part, 1).await[0].message, message(0, [9]));
    assert!(queue.check().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_refuses_and_keeps_what_it_has() {
    let nats = Nats::start();
    let queue = queue(&nats).await;
    let admin = nats.admin().await;
    let mut config = admin.get_stream(STREAM).await.unwrap().get_info().await.unwrap().config;
    config.max_messages = 2;
    admin.update_stream(config).await.unwrap();
    let messages = [message(0, [1]), message(0, [2]), message(0, [3])];
    let refused = queue.publish(&messages).await.unwrap_err();
    assert_eq!(refused.code(), Code::LogFull, "{refused}");
    assert!(refused.needed().is_some_and(|needed| needed.starts_with("granters that work")), "{refused}");
    let mut part = queue.part(0).await.unwrap();
    let users: Vec<Message> = take(&mut part, 2).await.into_iter().map(|delivery| delivery.message).collect();
    assert_eq!(users, messages[..2]);
    let fault = queue.check().await.remove(0);
    assert!(fault.to_string().contains("max_msgs is 2; needed: 50000"), "{fault}");
    assert_eq!(queue.setup().await.unwrap().outcome, SetupOutcome::Adjusted(vec!["max_msgs"]));
    // A killed server keeps the acknowledged messages, and the queue continues by itself.
    queue.publish(&[message(1, [1])]).await.unwrap();
    blocking(|| {
        nats.server.kill().unwrap();
        nats.server.restart().unwrap();
    });
    until("the queue answers again", async || queue.pending().await.is_ok_and(|pending| pending == 3)).await;
    let mut part = queue.part(1).await.unwrap();
    assert_eq!(take(&mut part, 1).await[0].message, message(1, [1]));
}
