//! Appending and reading on NATS: bounds, resumption after a crash of the server, faults of a server in trouble.
//!
//! `ports/log.rs` tests the promises of every log.

use std::time::Duration;

use anabranch_connectors::nats::{NatsLog, TailFrom};
use anabranch_pipeline::config::Limits;
use anabranch_pipeline::error::{Class, Code};
use anabranch_pipeline::ports::{Log, LogReader, LogWriter, ReadFrom};
use anabranch_schemas::lsn::Lsn;
use bytes::Bytes;
use tokio::time::{Instant, timeout};

use crate::nats::{
    Nats, SOURCE, STREAM, acknowledge_all, append, blocking, envelope, limits, number, numbers, payload,
    read, send, stall_beside, text, within,
};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_flight_is_bounded_by_number_and_by_bytes() {
    let nats = Nats::start();
    nats.log().await;
    for (messages, bytes, expected) in [(4, 1_000_000, 4), (100, 2_500, 2)] {
        let limits = Limits {
            in_flight_messages: messages.try_into().unwrap(),
            in_flight_bytes: bytes.try_into().unwrap(),
            ..limits()
        };
        let log = NatsLog::connect(&nats.config(), "demo", &limits).await.unwrap();
        let end = log.end(SOURCE).await.unwrap();
        let mut writer = log.writer(SOURCE, end.as_ref()).await.unwrap();
        let mut next = end.map_or(0, |end| number(&end.envelope));
        while writer.has_room() {
            next += 1;
            writer.append(envelope(next), Bytes::from(vec![0; 1000])).await.unwrap();
        }
        assert_eq!(writer.in_flight(), expected);
        within(writer.acknowledged()).await.unwrap();
        assert!(writer.has_room());
        acknowledge_all(&mut writer).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_too_large_is_refused_and_nothing_is_stored() {
    let nats = Nats::start();
    let log = nats.log().await;
    let mut writer = log.writer(SOURCE, None).await.unwrap();
    let fault = writer.append(envelope(1), Bytes::from(vec![0; 1024 * 1024])).await.unwrap_err();
    assert!(text(&fault, Code::LogSettingsDiffer).contains("needed: at most 1048576"), "{fault}");
    assert_eq!(log.end(SOURCE).await.unwrap(), None);
    // The largest accepted message can be read.
    let mut writer = log.writer(SOURCE, None).await.unwrap();
    for number in 1..=5 {
        writer.append(envelope(number), Bytes::from(vec![0; 1024 * 1024 - 1000])).await.unwrap();
    }
    acknowledge_all(&mut writer).await;
    assert_eq!(numbers(&log).await, [1, 2, 3, 4, 5]);
}

/// One source counts to `last` across the server's crashes, as capture does; one reader follows.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_again_and_again_leaves_no_gap_and_no_overlap() {
    const LAST: u64 = 6_000;
    const KILLS: u64 = 5;
    let nats = Nats::start();
    let log = nats.log().await;
    let writing = tokio::spawn({
        let log = log.clone();
        async move {
            let mut attempts = 0;
            while !count_to(&log, LAST).await {
                attempts += 1;
            }
            attempts
        }
    });
    let reads = tokio::spawn({
        let log = log.clone();
        async move {
            let mut reader = log.reader(SOURCE, ReadFrom::At(Lsn::ZERO)).await.unwrap();
            for expected in 1..=LAST {
                let message = loop {
                    match reader.next().await {
                        Ok(message) => break message,
                        Err(fault) => assert_eq!(fault.class(), Class::Transient, "{fault}"),
                    }
                };
                assert_eq!(number(&message.entry.envelope), expected);
            }
        }
    });
    for kill in 1..=KILLS {
        crate::nats::until("the source counts on", async || {
            let state = log.stream_state(SOURCE).await;
            state.is_ok_and(|state| state.last_sequence >= LAST * kill / (KILLS + 1))
        })
        .await;
        blocking(|| {
            nats.server.kill().unwrap();
            nats.server.restart().unwrap();
        });
    }
    let attempts = within(writing).await.unwrap();
    within(reads).await.unwrap();
    assert_eq!(numbers(&log).await, (1..=LAST).collect::<Vec<_>>());
    assert!(attempts > 0, "no attempt met a crash");
}

/// Runs one attempt, with batches of random size; returns whether it reached the end.
async fn count_to(log: &NatsLog, last: u64) -> bool {
    let Ok(end) = log.end(SOURCE).await else { return false };
    let mut next = end.as_ref().map_or(1, |end| number(&end.envelope) + 1);
    let Ok(mut writer) = log.writer(SOURCE, end.as_ref()).await else { return false };
    while next <= last || writer.in_flight() > 0 {
        if next <= last && writer.has_room() {
            if writer.append(envelope(next), payload(rand::random_range(0..50))).await.is_err() {
                return false;
            }
            next += 1;
        } else {
            match writer.acknowledged().await {
                Ok(_) => {}
                Err(fault) => {
                    assert_eq!(fault.class(), Class::Transient, "{fault}");
                    return false;
                }
            }
        }
    }
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_ends_an_attempt_at_once() {
    let nats = Nats::start();
    let log = nats.log().await;
    let mut writer = log.writer(SOURCE, None).await.unwrap();
    blocking(|| nats.server.pause().unwrap());
    send(&mut writer, 1..=20).await;
    let began = Instant::now();
    let (fault, stall) = stall_beside(async {
        blocking(|| nats.server.kill().unwrap());
        within(writer.acknowledged()).await.unwrap_err()
    })
    .await;
    let elapsed = began.elapsed();
    assert!(text(&fault, Code::LogUnreachable).contains("the connection broke"), "{fault}");
    assert!(elapsed < Duration::from_secs(4) + stall, "{elapsed:?}, and a stall of {stall:?}");
}

/// Otherwise the pending answers of the client library would each wait for their time-out, one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_ends_an_attempt_after_one_time_out_for_all() {
    let nats = Nats::start();
    let log = nats.log().await;
    let mut writer = log.writer(SOURCE, None).await.unwrap();
    blocking(|| nats.server.pause().unwrap());
    send(&mut writer, 1..=20).await;
    let began = Instant::now();
    let mut next = 21;
    // Further messages are sent all the while, and do not delay the end.
    let sending = async {
        loop {
            match timeout(Duration::from_millis(100), writer.acknowledged()).await {
                Ok(acknowledged) => return acknowledged.unwrap_err(),
                Err(_) => send(&mut writer, [next]).await,
            }
            next += 1;
        }
    };
    let (fault, stall) = stall_beside(within(sending)).await;
    let elapsed = began.elapsed();
    assert!(elapsed < Duration::from_secs(8) + stall, "{elapsed:?}, and a stall of {stall:?}");
    assert!(text(&fault, Code::LogUnreachable).contains("no answer to a message within 5 s"), "{fault}");
    blocking(|| nats.server.resume().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn many_readers_share_connections_and_their_consumers_end_by_themselves() {
    let nats = Nats::start();
    let log = nats.log().await;
    append(&log, 1..=3).await;
    let mut readers = Vec::new();
    for _ in 0..20 {
        readers.push(log.reader(SOURCE, ReadFrom::At(Lsn::ZERO)).await.unwrap());
    }
    for reader in &mut readers {
        assert_eq!(read(reader, 3).await.len(), 3);
    }
    let stream = nats.admin().await.get_stream(STREAM).await.unwrap();
    let consumers: Vec<_> = futures::StreamExt::collect(stream.consumers()).await;
    assert_eq!(consumers.len(), 20);
    for consumer in consumers {
        let config = consumer.unwrap().config;
        assert_eq!(config.durable_name, None);
        assert_eq!(config.inactive_threshold, Duration::from_secs(60));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tail_begins_at_a_sequence_a_time_or_the_end() {
    let nats = Nats::start();
    let log = nats.log().await;
    append(&log, 1..=2).await;
    let state = log.stream_state(SOURCE).await.unwrap();
    let stream = nats.admin().await.get_stream(STREAM).await.unwrap();
    let stored_at_us = async |sequence| {
        let message = stream.get_raw_message(sequence).await.unwrap();
        (message.time.unix_timestamp_nanos() / 1000) as u64
    };
    assert_eq!((state.messages, state.first_sequence, state.last_sequence), (2, 1, 2));
    assert_eq!(state.first_at_us, Some(stored_at_us(1).await));
    assert!(state.bytes > 0);

    let mut latest = log.tail(SOURCE, TailFrom::Latest).await.unwrap();
    append(&log, 3..=4).await;
    let third_at_us = stored_at_us(3).await;
    let first_number = async |from| {
        let mut reader = log.tail(SOURCE, from).await.unwrap();
        number(&read(&mut reader, 1).await[0].entry.envelope)
    };
    assert_eq!(first_number(TailFrom::First).await, 1);
    assert_eq!(first_number(TailFrom::Sequence(0)).await, 1);
    assert_eq!(first_number(TailFrom::Sequence(2)).await, 2);
    assert_eq!(first_number(TailFrom::Time { at_us: third_at_us }).await, 3);
    assert_eq!(number(&read(&mut latest, 1).await[0].entry.envelope), 3);
}
