//! Appending and reading: order, the fence, bounds, resumption after a crash of the server.

use std::time::Duration;

use anabranch_connectors::nats::{NatsLog, TailFrom};
use anabranch_pipeline::config::Limits;
use anabranch_pipeline::error::{Class, Code};
use anabranch_pipeline::ports::{Log, LogReader, LogWriter, ReadFrom};
use anabranch_schemas::envelope::Envelope;
use anabranch_schemas::lsn::Lsn;
use bytes::Bytes;
use futures::FutureExt;
use tokio::time::{Instant, sleep, timeout};

use crate::nats::{
    Nats, SOURCE, STREAM, acknowledge_all, append, blocking, envelope, limits, number, numbers, payload,
    read, send, text, within,
};

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_read_back_as_they_were_appended() {
    let nats = Nats::start();
    let log = nats.log().await;
    assert_eq!(log.end(SOURCE).await.unwrap(), None);

    let entries = append(&log, 1..=250).await;

    assert_eq!(log.end(SOURCE).await.unwrap().as_ref(), entries.last());
    let mut reader = log.reader(SOURCE, ReadFrom::At(Lsn::ZERO)).await.unwrap();
    for (message, (entry, number)) in read(&mut reader, 250).await.iter().zip(entries.iter().zip(1u64..)) {
        assert_eq!(message.entry, *entry);
        assert_eq!(message.entry.sequence, number);
        assert_eq!(message.entry.envelope, envelope(number));
        assert_eq!(message.payload, payload(number));
    }
    let middle = &entries[149];
    let from = ReadFrom::After { sequence: middle.sequence, id: middle.id.clone() };
    let mut reader = log.reader(SOURCE, from).await.unwrap();
    assert_eq!(number(&read(&mut reader, 1).await[0].entry.envelope), 151);
    // At a position: the message that reaches it; at one that no message reaches yet: the next to come.
    let mut reader = log.reader(SOURCE, ReadFrom::At(middle.envelope.position)).await.unwrap();
    assert_eq!(read(&mut reader, 1).await[0].entry, *middle);
    let mut reader = log.reader(SOURCE, ReadFrom::At(envelope(252).position)).await.unwrap();
    append(&log, 251..=252).await;
    assert_eq!(number(&read(&mut reader, 1).await[0].entry.envelope), 251);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_payload_and_empty_or_long_texts_survive() {
    let nats = Nats::start();
    let log = nats.log().await;
    let mut mark = envelope(1);
    mark.resume.gtid_set = String::new();
    let mut long = envelope(2);
    long.resume.gtid_set = "3E11FA47-71CA-11E1-9E33-C80AA9429562:1-5,".repeat(1000);
    let envelopes: [Envelope; 2] = [mark, long];
    let mut writer = log.writer(SOURCE, None).await.unwrap();
    for envelope in &envelopes {
        writer.append(envelope.clone(), Bytes::new()).await.unwrap();
    }
    acknowledge_all(&mut writer).await;
    let mut reader = log.reader(SOURCE, ReadFrom::At(Lsn::ZERO)).await.unwrap();
    for (message, envelope) in read(&mut reader, 2).await.iter().zip(&envelopes) {
        assert_eq!(message.entry.envelope, *envelope);
        assert!(message.payload.is_empty());
    }
    assert_eq!(log.end(SOURCE).await.unwrap().unwrap().envelope, envelopes[1]);
}

/// With predicted sequences only the first of the pipelined messages would be refused: the others fit again behind
/// the one message of the second writer.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_writer_fences_all_that_the_first_has_on_the_way() {
    let nats = Nats::start();
    let (log, other) = (nats.log().await, nats.connect().await);
    let mut first = log.writer(SOURCE, None).await.unwrap();
    send(&mut first, 1..=3).await;
    acknowledge_all(&mut first).await;

    let second = append(&other, [4]).await;
    send(&mut first, 5..=104).await;

    let fault = within(first.acknowledged()).await.unwrap_err();
    text(&fault, Code::LogFenced);
    assert_eq!(fault.class(), Class::Transient);
    assert!(first.append(envelope(105), payload(105)).await.is_err(), "an attempt goes on after its end");
    assert!(first.acknowledged().await.is_err(), "an attempt goes on after its end");
    // Sent on the first writer's connection, so behind all that it had on the way.
    let third = append(&log, [200]).await;
    assert_eq!(numbers(&log).await, [1, 2, 3, 4, 200]);
    assert_eq!((second[0].sequence, third[0].sequence), (4, 5));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_writers_behind_one_end_cannot_both_begin() {
    let nats = Nats::start();
    let log = nats.log().await;
    for _ in 0..5 {
        let end = log.end(SOURCE).await.unwrap();
        let next = end.as_ref().map_or(1, |end| number(&end.envelope) + 1);
        let mut one = log.writer(SOURCE, end.as_ref()).await.unwrap();
        let mut two = log.writer(SOURCE, end.as_ref()).await.unwrap();
        send(&mut one, next..next + 10).await;
        send(&mut two, next..next + 10).await;
        acknowledge_all(&mut one).await;
        text(&within(two.acknowledged()).await.unwrap_err(), Code::LogFenced);
    }
    assert_eq!(numbers(&log).await, (1..=50).collect::<Vec<_>>());
}

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
    // The largest that is accepted can be read.
    let mut writer = log.writer(SOURCE, None).await.unwrap();
    for number in 1..=5 {
        writer.append(envelope(number), Bytes::from(vec![0; 1024 * 1024 - 1000])).await.unwrap();
    }
    acknowledge_all(&mut writer).await;
    assert_eq!(numbers(&log).await, [1, 2, 3, 4, 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_emptied_by_age_goes_on_counting() {
    let nats = Nats::start();
    let log = nats.log().await;
    append(&log, 1..=3).await;
    let admin = nats.admin().await;
    let set_age = async |age: Duration, window: Duration| {
        let mut config = admin.get_stream(STREAM).await.unwrap().cached_info().config.clone();
        (config.max_age, config.duplicate_window) = (age, window);
        admin.update_stream(config).await.unwrap();
    };
    set_age(Duration::from_millis(100), Duration::from_millis(100)).await;
    crate::nats::until("stream empties", async || log.stream_state(SOURCE).await.unwrap().messages == 0)
        .await;
    set_age(Duration::from_secs(3600), Duration::from_secs(2)).await;

    assert_eq!(log.end(SOURCE).await.unwrap(), None);
    let mut late = log.writer(SOURCE, None).await.unwrap();
    let entries = append(&log, 4..=5).await;
    assert_eq!(entries.iter().map(|entry| entry.sequence).collect::<Vec<_>>(), [4, 5]);
    send(&mut late, 4..=5).await;
    text(&within(late.acknowledged()).await.unwrap_err(), Code::LogFenced);
    // Without an end, in spite of messages: whoever appended since is found out by the first append.
    let mut blind = log.writer(SOURCE, None).await.unwrap();
    send(&mut blind, 4..=5).await;
    text(&within(blind.acknowledged()).await.unwrap_err(), Code::LogFenced);
    assert_eq!(numbers(&log).await, [4, 5]);
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
    let reading = tokio::spawn({
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
    within(reading).await.unwrap();
    assert_eq!(numbers(&log).await, (1..=LAST).collect::<Vec<_>>());
    assert!(attempts > 0, "no attempt met a crash");
}

/// One attempt, with batches of random size as in life. `true` when the end is reached.
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
    blocking(|| nats.server.kill().unwrap());
    let fault = within(writer.acknowledged()).await.unwrap_err();
    assert!(text(&fault, Code::LogUnreachable).contains("the connection broke"), "{fault}");
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}

/// The client library's own answers would each wait for their time-out, one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_ends_an_attempt_after_one_time_out_for_all() {
    let nats = Nats::start();
    let log = nats.log().await;
    let mut writer = log.writer(SOURCE, None).await.unwrap();
    blocking(|| nats.server.pause().unwrap());
    send(&mut writer, 1..=20).await;
    let began = Instant::now();
    let mut next = 21;
    // More is sent all the while, and does not put the end off.
    let fault = loop {
        assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
        match timeout(Duration::from_millis(100), writer.acknowledged()).await {
            Ok(acknowledged) => break acknowledged.unwrap_err(),
            Err(_) => send(&mut writer, [next]).await,
        }
        next += 1;
    };
    assert!(text(&fault, Code::LogUnreachable).contains("no answer to a message within 5 s"), "{fault}");
    blocking(|| nats.server.resume().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_waits_at_the_end_and_loses_nothing_when_it_is_not_awaited() {
    let nats = Nats::start();
    let log = nats.log().await;
    let entries = append(&log, 1..=1).await;
    let from = ReadFrom::After { sequence: entries[0].sequence, id: entries[0].id.clone() };
    let mut reader = log.reader(SOURCE, from).await.unwrap();
    assert!(reader.next().now_or_never().is_none(), "a message that was not appended");
    append(&log, 2..=50).await;
    for expected in 2..=50 {
        let message = loop {
            // Polled once and dropped, again and again.
            match reader.next().now_or_never() {
                Some(message) => break message.unwrap(),
                None => sleep(Duration::from_millis(1)).await,
            }
        };
        assert_eq!(number(&message.entry.envelope), expected);
    }
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
