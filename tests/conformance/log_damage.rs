//! A reader meets another log than the one it has read: rolled back, made anew, shortened, or written by others.

use anabranch_connectors::nats::NatsLogReader;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{Log, LogReader, ReadFrom};
use anabranch_schemas::lsn::Lsn;
use async_nats::HeaderMap;

use crate::nats::{Nats, SOURCE, STREAM, SUBJECT, append, envelope, read, text, within};
use crate::ports::log::{Ground, Server, overtaken, refusals};

/// Reads up to the next fault that is not a server's absence.
async fn next_definite_fault(reader: &mut NatsLogReader) -> Fault {
    loop {
        match within(reader.next()).await {
            Ok(message) => panic!("message {} is read", message.entry.sequence),
            Err(fault) if fault.code() == Code::LogUnreachable => {}
            Err(fault) => return fault,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_reader_is_told_what_the_stream_holds() {
    let [beyond, other, passed] = refusals(&Server::start().await).await.map(|fault| fault.to_string());
    assert!(
        beyond.contains("its last message is 10") && beyond.contains("needed: message 15 with id"),
        "{beyond}"
    );
    assert!(other.contains("message 10 was written anew"), "{other}");
    assert!(passed.contains("its first message is 7: retention removed message 3"), "{passed}");
    let [first, again] = overtaken(&Server::start().await).await.map(|fault| fault.to_string());
    assert!(first.contains("message 7 follows 2") && first.contains("needed: message 3"), "{first}");
    assert!(again.contains("retention removed message 2"), "{again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_notices_a_stream_that_was_made_anew_while_it_waited() {
    let nats = Nats::start();
    let log = nats.log().await;
    append(&log, 1..=3).await;
    let mut reader = log.reader(SOURCE, ReadFrom::At(Lsn::ZERO)).await.unwrap();
    read(&mut reader, 3).await;
    let next_fault = tokio::spawn(async move { next_definite_fault(&mut reader).await });
    let admin = nats.admin().await;
    admin.delete_stream(STREAM).await.unwrap();
    let missing = within(next_fault).await.unwrap();
    text(&missing, Code::LogStreamMissing);
    assert_eq!(missing.remedy_text(), Some("anabranch --config FILE setup"));
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

    for (number, term, named) in [(0, "x", "Anabranch-Term is x"), (1, "77", "Anabranch-Checksum is")] {
        let mut headers = HeaderMap::new();
        for (name, value) in envelope(4).to_headers() {
            headers.insert(name, if name == "Anabranch-Term" { term } else { &value });
        }
        headers.insert("Nats-Msg-Id", format!("0123456789abcdef-{number}"));
        admin.publish_with_headers(SUBJECT, headers, "".into()).await.unwrap().await.unwrap();
        let found = text(&log.end(SOURCE).await.unwrap_err(), Code::LogMessageCorrupt);
        assert!(found.contains(named), "{found}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_message_hides_no_other_from_a_search() {
    const DAMAGED: u64 = 4;
    let nats = Nats::start();
    let log = nats.log().await;
    let admin = nats.admin().await;
    for number in 1..=7 {
        let mut headers = HeaderMap::new();
        for (name, value) in envelope(number).to_headers() {
            let is_damaged = number == DAMAGED && name == "Anabranch-Term";
            headers.insert(name, if is_damaged { "77" } else { &value });
        }
        headers.insert("Nats-Msg-Id", format!("0123456789abcdef-{number}"));
        admin.publish_with_headers(SUBJECT, headers, "".into()).await.unwrap().await.unwrap();
    }
    for number in 1..=7 {
        let position = envelope(number).position;
        let expected = if number == DAMAGED { number + 1 } else { number };
        let mut reader = log.reader(SOURCE, ReadFrom::At(position)).await.unwrap();
        assert_eq!(read(&mut reader, 1).await[0].entry.sequence, expected);
    }
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
