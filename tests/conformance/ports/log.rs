//! The log: order, the fence, and the faults of a reader whose stream has changed.

use std::path::Path;
use std::time::Duration;

use anabranch_connectors::memory::{MemoryLog, Weather};
use anabranch_connectors::nats::NatsLog;
use anabranch_pipeline::error::{Class, Code, Fault};
use anabranch_pipeline::ports::{Log, LogEntry, LogReader, LogWriter, ReadFrom};
use anabranch_schemas::envelope::Envelope;
use anabranch_schemas::lsn::Lsn;
use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use tokio::time::sleep;

use crate::nats::{
    Nats, SOURCE, STREAM, acknowledge_all, append, blocking, envelope, number, numbers, payload, read, send,
    sources, text, until, within,
};

/// A log with one stream, and ways to damage it.
pub trait Ground {
    type Log: Log + Clone + 'static;

    async fn start() -> Self;
    fn log(&self) -> &Self::Log;
    /// The log as another process sees it.
    async fn other(&self) -> Self::Log;
    /// Keeps only the newest messages, as when the stream has reached its size.
    async fn keep_newest(&self, messages: u64);
    /// Lets all messages grow too old.
    async fn empty_by_age(&self);
    /// Deletes the stream and makes it anew.
    async fn replace(&self);
    /// Saves the present state of the disk, for [`Self::roll_back`].
    async fn save(&mut self);
    async fn roll_back(&self);
}

pub struct Twin {
    log: MemoryLog,
    saved: usize,
}

impl Ground for Twin {
    type Log = MemoryLog;

    async fn start() -> Self {
        Self { log: MemoryLog::new(Weather::calm(), 256), saved: 0 }
    }

    fn log(&self) -> &MemoryLog {
        &self.log
    }

    async fn other(&self) -> MemoryLog {
        self.log.clone()
    }

    async fn keep_newest(&self, messages: u64) {
        let kept = self.log.messages(SOURCE);
        self.log.discard(SOURCE, kept - messages as usize);
    }

    async fn empty_by_age(&self) {
        self.keep_newest(0).await;
    }

    async fn replace(&self) {
        self.log.wipe(SOURCE);
    }

    async fn save(&mut self) {
        self.saved = self.log.messages(SOURCE);
    }

    async fn roll_back(&self) {
        let newer = self.log.messages(SOURCE) - self.saved;
        self.log.roll_back(SOURCE, newer);
    }
}

pub struct Server {
    pub nats: Nats,
    log: NatsLog,
}

impl Server {
    fn folders(&self) -> [std::path::PathBuf; 2] {
        let folder = self.nats.server.folder();
        [folder.join("jetstream"), folder.join("saved")]
    }

    async fn is_back(&self) {
        until("the client is back", async || self.log.stream_state(SOURCE).await.is_ok()).await;
    }
}

impl Ground for Server {
    type Log = NatsLog;

    async fn start() -> Self {
        let nats = Nats::start();
        let log = nats.log().await;
        Self { nats, log }
    }

    fn log(&self) -> &NatsLog {
        &self.log
    }

    async fn other(&self) -> NatsLog {
        self.nats.connect().await
    }

    async fn keep_newest(&self, messages: u64) {
        let admin = self.nats.admin().await;
        let mut config = admin.get_stream(STREAM).await.unwrap().cached_info().config.clone();
        config.max_messages = messages as i64;
        admin.update_stream(config).await.unwrap();
    }

    async fn empty_by_age(&self) {
        let admin = self.nats.admin().await;
        let set_age = async |age: Duration, window: Duration| {
            let mut config = admin.get_stream(STREAM).await.unwrap().cached_info().config.clone();
            (config.max_age, config.duplicate_window) = (age, window);
            admin.update_stream(config).await.unwrap();
        };
        set_age(Duration::from_millis(100), Duration::from_millis(100)).await;
        until("stream empties", async || self.log.stream_state(SOURCE).await.unwrap().messages == 0).await;
        set_age(Duration::from_secs(3600), Duration::from_secs(2)).await;
    }

    async fn replace(&self) {
        self.nats.admin().await.delete_stream(STREAM).await.unwrap();
        self.log.setup(&sources()).await.unwrap();
    }

    async fn save(&mut self) {
        let [store, saved] = self.folders();
        blocking(|| {
            self.nats.server.stop().unwrap();
            copy_folder(&store, &saved);
            self.nats.server.restart().unwrap();
        });
        self.is_back().await;
    }

    async fn roll_back(&self) {
        let [store, saved] = self.folders();
        blocking(|| {
            self.nats.server.kill().unwrap();
            std::fs::remove_dir_all(&store).unwrap();
            copy_folder(&saved, &store);
            self.nats.server.restart().unwrap();
        });
        self.is_back().await;
    }
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

const OLDEST: ReadFrom = ReadFrom::At(Lsn::ZERO);

pub fn after(entry: &LogEntry) -> ReadFrom {
    ReadFrom::After { sequence: entry.sequence, id: entry.id.clone() }
}

async fn refusal(log: &impl Log, from: ReadFrom) -> Fault {
    match log.reader(SOURCE, from.clone()).await {
        Ok(_) => panic!("{from:?} is read"),
        Err(fault) => fault,
    }
}

/// The next message, or the next fault that is not a server's absence.
async fn settled(reader: &mut impl LogReader) -> Result<u64, Fault> {
    loop {
        match within(reader.next()).await {
            Ok(message) => return Ok(number(&message.entry.envelope)),
            Err(fault) if fault.code() == Code::LogUnreachable => {}
            Err(fault) => return Err(fault),
        }
    }
}

on_twin_and_server!(Twin, Server:
    messages_are_read_back_as_they_were_appended,
    an_empty_payload_and_empty_or_long_texts_survive,
    a_second_writer_fences_all_that_the_first_has_on_the_way,
    two_writers_behind_one_end_cannot_both_begin,
    a_stream_emptied_by_age_goes_on_counting,
    a_reader_waits_at_the_end_and_loses_nothing_when_it_is_not_awaited,
    a_reader_is_refused_where_the_stream_does_not_hold_what_it_read_last,
    a_reader_that_retention_overtakes_finds_the_gap,
    a_reader_notices_that_its_messages_were_replaced_by_others,
    a_reader_notices_a_rollback_during_an_outage,
    a_reader_that_waits_at_a_position_finds_it_in_a_stream_made_anew,
    who_asks_for_a_position_is_heard_by_every_reader_of_that_source,
);

async fn messages_are_read_back_as_they_were_appended(ground: impl Ground) {
    let log = ground.log();
    assert_eq!(log.end(SOURCE).await.unwrap(), None);

    let entries = append(log, 1..=250).await;

    assert_eq!(log.end(SOURCE).await.unwrap().as_ref(), entries.last());
    let mut reader = log.reader(SOURCE, OLDEST).await.unwrap();
    for (message, (entry, number)) in read(&mut reader, 250).await.iter().zip(entries.iter().zip(1u64..)) {
        assert_eq!(message.entry, *entry);
        assert_eq!(message.entry.sequence, number);
        assert_eq!(message.entry.envelope, envelope(number));
        assert_eq!(message.payload, payload(number));
    }
    let middle = &entries[149];
    let mut reader = log.reader(SOURCE, after(middle)).await.unwrap();
    assert_eq!(number(&read(&mut reader, 1).await[0].entry.envelope), 151);
    // At a position the reader gets the message that reaches it; if none does yet, the next one to come.
    let mut reader = log.reader(SOURCE, ReadFrom::At(middle.envelope.position)).await.unwrap();
    assert_eq!(read(&mut reader, 1).await[0].entry, *middle);
    assert_eq!(log.first_at(SOURCE, middle.envelope.position).await.unwrap().as_ref(), Some(middle));
    let mut reader = log.reader(SOURCE, ReadFrom::At(envelope(252).position)).await.unwrap();
    assert_eq!(log.first_at(SOURCE, envelope(252).position).await.unwrap(), None);
    append(log, 251..=252).await;
    assert_eq!(number(&read(&mut reader, 1).await[0].entry.envelope), 251);
}

async fn an_empty_payload_and_empty_or_long_texts_survive(ground: impl Ground) {
    let log = ground.log();
    let mut message = envelope(1);
    message.resume.gtid_set = String::new();
    let mut long = envelope(2);
    long.resume.gtid_set = "3E11FA47-71CA-11E1-9E33-C80AA9429562:1-5,".repeat(1000);
    let envelopes: [Envelope; 2] = [message, long];
    let mut writer = log.writer(SOURCE, None).await.unwrap();
    for envelope in &envelopes {
        writer.append(envelope.clone(), Bytes::new()).await.unwrap();
    }
    acknowledge_all(&mut writer).await;
    let mut reader = log.reader(SOURCE, OLDEST).await.unwrap();
    for (message, envelope) in read(&mut reader, 2).await.iter().zip(&envelopes) {
        assert_eq!(message.entry.envelope, *envelope);
        assert!(message.payload.is_empty());
    }
    assert_eq!(log.end(SOURCE).await.unwrap().unwrap().envelope, envelopes[1]);
}

/// The log refuses all pipelined messages. With predicted sequences it would refuse only the first one: the others
/// would fit again after the one message of the second writer.
async fn a_second_writer_fences_all_that_the_first_has_on_the_way(ground: impl Ground) {
    let (log, other) = (ground.log(), ground.other().await);
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
    // The message takes the first writer's connection, so it comes after all messages in flight.
    let third = append(log, [200]).await;
    assert_eq!(numbers(log).await, [1, 2, 3, 4, 200]);
    assert_eq!((second[0].sequence, third[0].sequence), (4, 5));
}

async fn two_writers_behind_one_end_cannot_both_begin(ground: impl Ground) {
    let log = ground.log();
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
    assert_eq!(numbers(log).await, (1..=50).collect::<Vec<_>>());
}

async fn a_stream_emptied_by_age_goes_on_counting(ground: impl Ground) {
    let log = ground.log();
    append(log, 1..=3).await;
    ground.empty_by_age().await;

    assert_eq!(log.end(SOURCE).await.unwrap(), None);
    let mut late = log.writer(SOURCE, None).await.unwrap();
    let entries = append(log, 4..=5).await;
    assert_eq!(entries.iter().map(|entry| entry.sequence).collect::<Vec<_>>(), [4, 5]);
    send(&mut late, 4..=5).await;
    text(&within(late.acknowledged()).await.unwrap_err(), Code::LogFenced);
    // A writer opened without an end, in spite of messages: its first append finds other writers.
    let mut blind = log.writer(SOURCE, None).await.unwrap();
    send(&mut blind, 4..=5).await;
    text(&within(blind.acknowledged()).await.unwrap_err(), Code::LogFenced);
    assert_eq!(numbers(log).await, [4, 5]);
}

async fn a_reader_waits_at_the_end_and_loses_nothing_when_it_is_not_awaited(ground: impl Ground) {
    let log = ground.log();
    let entries = append(log, 1..=1).await;
    let mut reader = log.reader(SOURCE, after(&entries[0])).await.unwrap();
    assert!(reader.next().now_or_never().is_none(), "a message that was not appended");
    append(log, 2..=50).await;
    for expected in 2..=50 {
        let message = loop {
            // Each call is polled once and dropped.
            match reader.next().now_or_never() {
                Some(message) => break message.unwrap(),
                None => sleep(Duration::from_millis(1)).await,
            }
        };
        assert_eq!(number(&message.entry.envelope), expected);
    }
}

async fn a_reader_is_refused_where_the_stream_does_not_hold_what_it_read_last(ground: impl Ground) {
    refusals(&ground).await;
}

/// Expects refusals beyond the end, at a message written anew, and before the oldest message; returns the faults.
pub async fn refusals(ground: &impl Ground) -> [Fault; 3] {
    let log = ground.log();
    let entries = append(log, 1..=10).await;
    let last = &entries[9];
    let beyond = ReadFrom::After { sequence: last.sequence + 5, id: last.id.clone() };
    let other = ReadFrom::After { sequence: last.sequence, id: "0123456789abcdef-7".to_owned() };
    let (beyond, other) = (refusal(log, beyond).await, refusal(log, other).await);
    ground.keep_newest(4).await;
    let passed = refusal(log, after(&entries[2])).await;
    let mut reader = log.reader(SOURCE, after(&entries[6])).await.unwrap();
    assert_eq!(number(&read(&mut reader, 1).await[0].entry.envelope), 8);
    let refusals = [beyond, other, passed];
    assert!(refusals.iter().all(|fault| fault.code() == Code::LogHole), "{refusals:?}");
    refusals
}

async fn a_reader_that_retention_overtakes_finds_the_gap(ground: impl Ground) {
    overtaken(&ground).await;
}

/// Expects a reader that retention has overtaken to get a fault, twice; returns the faults.
pub async fn overtaken(ground: &impl Ground) -> [Fault; 2] {
    let log = ground.log();
    let entries = append(log, 1..=10).await;
    // The reader asks for nothing before it is awaited.
    let mut reader = log.reader(SOURCE, after(&entries[1])).await.unwrap();
    ground.keep_newest(4).await;
    // A second call does not deliver a message after the gap.
    let faults = [within(reader.next()).await.unwrap_err(), within(reader.next()).await.unwrap_err()];
    assert!(faults.iter().all(|fault| fault.code() == Code::LogHole), "{faults:?}");
    faults
}

async fn a_reader_notices_that_its_messages_were_replaced_by_others(ground: impl Ground) {
    let log = ground.log();
    append(log, 1..=3).await;
    let mut reader = log.reader(SOURCE, OLDEST).await.unwrap();
    read(&mut reader, 3).await;
    ground.replace().await;
    append(log, 101..=110).await;
    text(&settled(&mut reader).await.unwrap_err(), Code::LogHole);
}

/// A power cut with a lazily synchronised disk: the server comes back without its newest messages, and uses their
/// sequences again.
async fn a_reader_notices_a_rollback_during_an_outage(mut ground: impl Ground) {
    append(ground.log(), 1..=5).await;
    ground.save().await;
    let log = ground.log();
    append(log, 6..=8).await;
    let mut ahead = log.reader(SOURCE, OLDEST).await.unwrap();
    read(&mut ahead, 8).await;
    let mut later = log.reader(SOURCE, OLDEST).await.unwrap();
    read(&mut later, 4).await;
    ground.roll_back().await;
    assert_eq!(log.end(SOURCE).await.unwrap().unwrap().sequence, 5);
    append(log, 106..=110).await;

    text(&settled(&mut ahead).await.unwrap_err(), Code::LogHole);
    // The last message of this reader still exists: it reads on, and never the lost messages that it had fetched.
    let mut rest = Vec::new();
    while rest.len() < 6 {
        rest.push(settled(&mut later).await.unwrap());
    }
    assert_eq!(rest, [5, 106, 107, 108, 109, 110]);
}

/// The new stream counts from one, so a wait for a sequence of the old one might never end.
async fn a_reader_that_waits_at_a_position_finds_it_in_a_stream_made_anew(ground: impl Ground) {
    let log = ground.log();
    append(log, 1..=20).await;
    let mut reader = log.reader(SOURCE, ReadFrom::At(envelope(30).position)).await.unwrap();
    assert!(reader.next().now_or_never().is_none());
    ground.replace().await;
    append(log, 28..=32).await;
    assert_eq!(settled(&mut reader).await.unwrap(), 30);
}

async fn who_asks_for_a_position_is_heard_by_every_reader_of_that_source(ground: impl Ground) {
    let (log, other) = (ground.log(), ground.other().await);
    log.ask_for_position(SOURCE).await;
    let mut heard = log.position_requests(SOURCE).await.unwrap();
    let mut elsewhere = log.position_requests("source-b").await.unwrap();
    assert!(heard.next().now_or_never().is_none(), "only from now on");
    // A request may be lost, so it is repeated.
    let asked = async {
        loop {
            other.ask_for_position(SOURCE).await;
            sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        () = asked => {}
        heard = within(heard.next()) => assert_eq!(heard, Some(())),
    }
    assert!(elsewhere.next().now_or_never().is_none());
    assert!(log.end(SOURCE).await.unwrap().is_none(), "questions are not kept");
}
