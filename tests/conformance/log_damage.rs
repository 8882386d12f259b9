//! What a reader finds when the log is not the one it has read: rolled back, made anew, shortened, written by others.

use std::path::Path;

use anabranch_connectors::nats::{NatsLog, NatsLogReader};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{Log, LogEntry, LogReader, ReadFrom};
use anabranch_schemas::lsn::Lsn;
use async_nats::HeaderMap;

use crate::nats::{
    Nats, SOURCE, STREAM, SUBJECT, append, blocking, envelope, number, read, sources, text, until, within,
};

fn after(entry: &LogEntry) -> ReadFrom {
    ReadFrom::After { sequence: entry.sequence, id: entry.id.clone() }
}

async fn refusal(log: &NatsLog, from: ReadFrom) -> Fault {
    match log.reader(SOURCE, from.clone()).await {
        Ok(_) => panic!("{from:?} is read"),
        Err(fault) => fault,
    }
}

/// The next fault that is not "the server is away".
async fn next_definite_fault(reader: &mut NatsLogReader) -> Fault {
    loop {
        match within(reader.next()).await {
            Ok(message) => panic!("message {} is read", message.entry.sequence),
            Err(fault) if fault.code() == Code::LogUnreachable => {}
            Err(fault) => return fault,
        }
    }
}

/// Only the newest `messages` stay, as when `max_bytes` is reached.
async fn shorten(nats: &Nats, messages: i64) {
    let admin = nats.admin().await;
    let mut config = admin.get_stream(STREAM).await.unwrap().cached_info().config.clone();
    config.max_messages = messages;
    admin.update_stream(config).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_is_refused_where_the_stream_does_not_hold_what_it_read_last() {
    let nats = Nats::start();
    let log = nats.log().await;
    let entries = append(&log, 1..=10).await;
    let last = &entries[9];

    let beyond = ReadFrom::After { sequence: last.sequence + 5, id: last.id.clone() };
    let found = text(&refusal(&log, beyond).await, Code::LogHole);
    assert!(
        found.contains("its last message is 10") && found.contains("needed: message 15 with id"),
        "{found}"
    );

    let other = ReadFrom::After { sequence: last.sequence, id: "0123456789abcdef-7".to_owned() };
    let found = text(&refusal(&log, other).await, Code::LogHole);
    assert!(found.contains("message 10 was written anew") && found.contains(&last.id), "{found}");

    shorten(&nats, 4).await;
    let found = text(&refusal(&log, after(&entries[2])).await, Code::LogHole);
    assert!(found.contains("its first message is 7: retention has passed 3"), "{found}");
    let mut reader = log.reader(SOURCE, after(&entries[6])).await.unwrap();
    assert_eq!(number(&read(&mut reader, 1).await[0].entry.envelope), 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_retention_overtakes_finds_the_gap() {
    let nats = Nats::start();
    let log = nats.log().await;
    let entries = append(&log, 1..=10).await;
    // It asks for nothing before it is awaited.
    let mut reader = log.reader(SOURCE, after(&entries[1])).await.unwrap();
    shorten(&nats, 4).await;
    let found = text(&within(reader.next()).await.unwrap_err(), Code::LogHole);
    assert!(found.contains("message 7 follows 2") && found.contains("needed: message 3"), "{found}");
    // Asked again it says the same in other words, and never delivers what lies behind the gap.
    let found = text(&within(reader.next()).await.unwrap_err(), Code::LogHole);
    assert!(found.contains("retention has passed 2"), "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_notices_a_stream_that_was_made_anew_while_it_waited() {
    let nats = Nats::start();
    let log = nats.log().await;
    append(&log, 1..=3).await;
    let mut reader = log.reader(SOURCE, ReadFrom::At(Lsn::ZERO)).await.unwrap();
    read(&mut reader, 3).await;
    let reading = tokio::spawn(async move { next_definite_fault(&mut reader).await });
    let admin = nats.admin().await;
    admin.delete_stream(STREAM).await.unwrap();
    let missing = within(reading).await.unwrap();
    text(&missing, Code::LogStreamMissing);
    assert_eq!(missing.remedy_text(), Some("anabranch --config FILE setup"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_notices_that_its_messages_were_replaced_by_others() {
    let nats = Nats::start();
    let log = nats.log().await;
    append(&log, 1..=3).await;
    let mut reader = log.reader(SOURCE, ReadFrom::At(Lsn::ZERO)).await.unwrap();
    read(&mut reader, 3).await;
    nats.admin().await.delete_stream(STREAM).await.unwrap();
    log.setup(&sources()).await.unwrap();
    append(&log, 101..=110).await;
    let found = text(&next_definite_fault(&mut reader).await, Code::LogHole);
    assert!(found.contains("message 3 was written anew"), "{found}");
}

/// A power cut with a lazily synchronised disk: the server comes back without its newest messages, and their
/// sequences are used again.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_notices_a_rollback_during_an_outage() {
    let nats = Nats::start();
    let log = nats.log().await;
    append(&log, 1..=5).await;
    let store = nats.server.folder().join("jetstream");
    let saved = nats.server.folder().join("saved");
    blocking(|| {
        nats.server.stop().unwrap();
        copy_folder(&store, &saved);
        nats.server.restart().unwrap();
    });
    until("the client is back", async || log.stream_state(SOURCE).await.is_ok()).await;
    append(&log, 6..=8).await;
    let mut ahead = log.reader(SOURCE, ReadFrom::At(Lsn::ZERO)).await.unwrap();
    read(&mut ahead, 8).await;
    let mut behind = log.reader(SOURCE, ReadFrom::At(Lsn::ZERO)).await.unwrap();
    read(&mut behind, 4).await;
    blocking(|| {
        nats.server.kill().unwrap();
        std::fs::remove_dir_all(&store).unwrap();
        copy_folder(&saved, &store);
        nats.server.restart().unwrap();
    });
    until("the client is back", async || log.stream_state(SOURCE).await.is_ok()).await;
    assert_eq!(log.stream_state(SOURCE).await.unwrap().last_sequence, 5);
    append(&log, 106..=110).await;

    let found = text(&next_definite_fault(&mut ahead).await, Code::LogHole);
    assert!(found.contains("message 8 was written anew"), "{found}");
    // What this one has read is still there: it reads on, and never the lost messages that it had fetched.
    let mut rest = Vec::new();
    while rest.len() < 6 {
        match within(behind.next()).await {
            Ok(message) => rest.push(number(&message.entry.envelope)),
            Err(fault) => assert_eq!(fault.code(), Code::LogUnreachable, "{fault}"),
        }
    }
    assert_eq!(rest, [5, 106, 107, 108, 109, 110]);
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_others_are_named() {
    let nats = Nats::start();
    let log = nats.log().await;
    append(&log, 1..=2).await;
    let admin = nats.admin().await;
    admin.publish(SUBJECT, "hello".into()).await.unwrap().await.unwrap();

    let found = text(&log.end(SOURCE).await.unwrap_err(), Code::LogForeign);
    assert!(found.contains("message 3 of stream demo_source-a"), "{found}");
    let mut reader = log.reader(SOURCE, ReadFrom::At(Lsn::ZERO)).await.unwrap();
    read(&mut reader, 2).await;
    text(&within(reader.next()).await.unwrap_err(), Code::LogForeign);

    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", "order-17");
    admin.publish_with_headers(SUBJECT, headers, "".into()).await.unwrap().await.unwrap();
    let found = text(&log.end(SOURCE).await.unwrap_err(), Code::LogForeign);
    assert!(found.contains("it has no header Anabranch-"), "{found}");

    let mut headers = HeaderMap::new();
    for (name, value) in envelope(4).to_headers() {
        headers.insert(name, if name == "Anabranch-Term" { "x" } else { &value });
    }
    headers.insert("Nats-Msg-Id", "0123456789abcdef-0");
    admin.publish_with_headers(SUBJECT, headers, "".into()).await.unwrap().await.unwrap();
    let found = text(&log.end(SOURCE).await.unwrap_err(), Code::LogMessageCorrupt);
    assert!(found.contains("Anabranch-Term is x"), "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_or_a_deleted_message_is_not_possible() {
    let nats = Nats::start();
    let log = nats.log().await;
    append(&log, 1..=3).await;
    let stream = nats.admin().await.get_stream(STREAM).await.unwrap();
    assert!(stream.delete_message(2).await.is_err());
    assert!(stream.purge().await.is_err());
    assert_eq!(log.stream_state(SOURCE).await.unwrap().messages, 3);
}
