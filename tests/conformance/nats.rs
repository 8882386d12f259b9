//! A NATS server of its own for each test, and short ways to write, read and damage a stream.

use std::sync::Arc;
use std::time::Duration;

use anabranch_connectors::nats::NatsLog;
use anabranch_pipeline::config::{Config, Limits, LogConfig};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{Log, LogEntry, LogMessage, LogReader, LogWriter, ReadFrom};
use anabranch_schemas::change::Entity;
use anabranch_schemas::envelope::{CapturedFields, Envelope, ServerIdentity};
use anabranch_schemas::lsn::{Lsn, ReadEnd, ResumePoint};
use anabranch_stack::{Options, Server, ServerSpec, Stack};
use async_nats::jetstream;
use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

pub const SOURCE: &str = "source-a";
pub const STREAM: &str = "demo_source-a";
pub const SUBJECT: &str = "demo.source-a.changes";
/// Longest wait for a condition, far above the time of a step on a busy machine.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

pub struct Nats {
    stack: Stack,
    pub server: Arc<Server>,
}

impl Nats {
    pub fn start() -> Self {
        Self::start_with(ServerSpec::nats("nats"))
    }

    pub fn start_with(spec: ServerSpec) -> Self {
        blocking(|| {
            let stack = Stack::start(Options::empty().with(spec)).unwrap();
            let server = stack.server("nats").unwrap();
            Self { stack, server }
        })
    }

    pub fn config(&self) -> LogConfig {
        parse(&self.server.url(), &self.stack.ca_file().display().to_string()).log
    }

    pub async fn connect(&self) -> NatsLog {
        NatsLog::connect(&self.config(), "demo", &limits()).await.unwrap()
    }

    /// A log with its streams and bucket.
    pub async fn log(&self) -> NatsLog {
        let log = self.connect().await;
        log.setup(&sources()).await.unwrap();
        log
    }

    /// JetStream itself, to inspect and to damage.
    pub async fn admin(&self) -> jetstream::Context {
        let client = async_nats::ConnectOptions::new()
            .user_and_password(self.server.user().to_owned(), self.server.password().to_owned())
            .add_root_certificates(self.stack.ca_file())
            .require_tls(true)
            .connect(format!("tls://127.0.0.1:{}", self.server.port()))
            .await
            .unwrap();
        jetstream::new(client)
    }
}

/// Runs blocking work beside the test's runtime.
pub fn blocking<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

/// A configuration of this log; the rest only makes it valid. A CA may be configured only beside a scheme with TLS.
pub fn parse(url: &str, ca_file: &str) -> Config {
    let ca_file = if url.starts_with("tls:") { format!("ca_file = \"{ca_file}\"") } else { String::new() };
    Config::parse(&format!(
        r#"
        name = "demo"
        [log]
        url = "{url}"
        {ca_file}
        max_bytes = 1000000000
        [[entities]]
        entity = "user"
        tables = "user_{{db:02}}.user_{{table:03}}"
        [[sources]]
        name = "{SOURCE}"
        url = "mysql://capture:x@127.0.0.1:3306"
        [[targets]]
        name = "target"
        url = "mysql://apply:x@127.0.0.1:3307"
        [[projections]]
        name = "birthday"
        kind = "birthday"
        targets = ["target"]
        layout = "by_day"
        databases = 1
        database = "birthday_{{db:02}}"
        table = "birthday_{{mmdd}}"
        "#
    ))
    .unwrap()
}

pub fn limits() -> Limits {
    parse("nats://x:x@127.0.0.1:1", "/none").limits
}

pub fn sources() -> Vec<String> {
    vec![SOURCE.to_owned()]
}

/// The envelope of message `number` of a source that counts.
pub fn envelope(number: u64) -> Envelope {
    let position = |number: u64| Lsn::new(1, 7, number * 16).unwrap();
    Envelope {
        origin: false,
        continues: false,
        previous: position(number - 1),
        position: position(number),
        resume: ResumePoint {
            file: "binlog.000007".to_owned(),
            position: number * 16,
            gtid_set: format!("1-1-{number}"),
            // Every second message has one.
            read_end: number.is_multiple_of(2).then(|| ReadEnd {
                file_number: 7,
                position: number * 16 + 64,
                gtid_set: format!("1-1-{}", number + 4),
            }),
            partial: number.is_multiple_of(3).then(|| format!("1-1-{}", number + 5)),
        },
        server: ServerIdentity { flavor: "mariadb".to_owned(), id: "1".to_owned() },
        term: 1,
        committed_at_us: 1_700_000_000_000_000 + number,
        changes: 1,
        captured: CapturedFields::new([(Entity::User, 4)]),
        // The first message has none.
        beginning: number - 1,
    }
}

/// The number of a message made by [`envelope`].
pub fn number(envelope: &Envelope) -> u64 {
    envelope.position.position() / 16
}

pub fn payload(number: u64) -> Bytes {
    Bytes::from(format!("payload {number} {}", "x".repeat((number % 7) as usize * 1000)))
}

/// Appends the messages of these numbers, all of them in flight at once.
pub async fn send(writer: &mut impl LogWriter, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        writer.append(envelope(number), payload(number)).await.unwrap();
    }
}

pub async fn acknowledge_all(writer: &mut impl LogWriter) -> Vec<LogEntry> {
    let mut entries = Vec::new();
    while writer.in_flight() > 0 {
        entries.push(within(writer.acknowledged()).await.unwrap());
    }
    entries
}

/// Begins a new attempt after the present end, and appends these messages.
pub async fn append(log: &impl Log, numbers: impl IntoIterator<Item = u64>) -> Vec<LogEntry> {
    let end = log.end(SOURCE).await.unwrap();
    let mut writer = log.writer(SOURCE, end.as_ref()).await.unwrap();
    send(&mut writer, numbers).await;
    acknowledge_all(&mut writer).await
}

pub async fn read(reader: &mut impl LogReader, messages: usize) -> Vec<LogMessage> {
    let mut read = Vec::new();
    while read.len() < messages {
        read.push(within(reader.next()).await.unwrap());
    }
    read
}

/// Numbers of all messages of the stream, from the first to the present end.
pub async fn numbers(log: &impl Log) -> Vec<u64> {
    let end = log.end(SOURCE).await.unwrap().map(|end| end.id);
    let mut reader = log.reader(SOURCE, ReadFrom::At(Lsn::ZERO)).await.unwrap();
    let (mut numbers, mut last) = (Vec::new(), None);
    while last != end {
        let entry = within(reader.next()).await.unwrap().entry;
        numbers.push(number(&entry.envelope));
        last = Some(entry.id);
    }
    numbers
}

pub async fn within<T>(work: impl Future<Output = T>) -> T {
    timeout(WAIT_MAX, work).await.expect("nothing happened in time")
}

/// Runs the work. Returns its result, and the longest time for which this process stood still meanwhile: a short sleep
/// of its own took so much longer than it should. A stall of the machine is no fault of the work.
pub async fn stall_beside<T>(work: impl Future<Output = T>) -> (T, Duration) {
    const NAP: Duration = Duration::from_millis(10);
    let is_over = CancellationToken::new();
    let napping = tokio::spawn({
        let is_over = is_over.clone();
        async move {
            let mut longest = Duration::ZERO;
            while !is_over.is_cancelled() {
                let began = Instant::now();
                sleep(NAP).await;
                longest = longest.max(began.elapsed().saturating_sub(NAP));
            }
            longest
        }
    });
    let result = work.await;
    is_over.cancel();
    (result, napping.await.unwrap())
}

/// Polls until the condition holds.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + WAIT_MAX;
    while !holds().await {
        assert!(Instant::now() < deadline, "{what}: not in time");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Checks the fault's code and returns its text.
pub fn text(fault: &Fault, code: Code) -> String {
    assert_eq!(fault.code(), code, "{fault}");
    fault.to_string()
}
