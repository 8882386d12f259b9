//! Unsuitable servers, accounts and streams: each is refused by name, with the need.

use std::time::Duration;

use anabranch_connectors::nats::{NatsLog, SetupOutcome};
use anabranch_pipeline::config::LogConfig;
use anabranch_pipeline::error::{Class, Code, Fault};
use anabranch_pipeline::ports::{Log, LogWriter, ReadFrom};
use anabranch_pipeline::records::BatchBuilder;
use anabranch_schemas::change::{Entity, TableIdentity, Value};
use anabranch_schemas::lsn::{Lsn, ResumePoint};
use anabranch_schemas::shard::ShardId;
use anabranch_stack::ServerSpec;
use async_nats::jetstream::kv;
use async_nats::jetstream::stream::{Config, StorageType};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

use crate::nats::{
    Nats, SOURCE, STREAM, SUBJECT, acknowledge_all, append, blocking, envelope, limits, parse, read, send,
    sources, text, within,
};

async fn refusal(config: &LogConfig) -> Fault {
    match within(NatsLog::connect(config, "demo", &limits())).await {
        Ok(_) => panic!("{} is accepted", config.url),
        Err(fault) => fault,
    }
}

/// A server that claims this version.
async fn fake_server(version: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = BufReader::new(stream);
        let info = format!("INFO {{\"version\":\"{version}\",\"max_payload\":1048576,\"headers\":true}}\r\n");
        stream.write_all(info.as_bytes()).await.unwrap();
        let mut line = String::new();
        while stream.read_line(&mut line).await.is_ok_and(|bytes| bytes > 0) {
            if line.starts_with("PING") {
                stream.write_all(b"PONG\r\n").await.unwrap();
            }
            line.clear();
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_server_is_refused() {
    let port = fake_server("2.9.25").await;
    let config = parse(&format!("nats://u:p@127.0.0.1:{port}"), "/none").log;
    let config = LogConfig { ca_file: None, ..config };
    let found = text(&refusal(&config).await, Code::LogServerTooOld);
    assert!(found.contains("version 2.9.25; needed: 2.10 or newer"), "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_old_server_of_the_distribution_is_refused() {
    let nats = Nats::start_with(ServerSpec::nats_old("nats"));
    let found = text(&refusal(&nats.config()).await, Code::LogServerTooOld);
    assert!(found.contains("version 2.9."), "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_jetstream_is_refused() {
    let nats = Nats::start_with(ServerSpec::nats_without_jetstream("nats"));
    let found = text(&refusal(&nats.config()).await, Code::LogWithoutJetStream);
    assert!(found.contains("remedy: add jetstream {"), "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_an_unknown_authority_and_a_closed_port_are_told_apart() {
    let nats = Nats::start();
    let config = nats.config();
    let url = nats.server.url();

    let wrong = url.replace(nats.server.password(), "wrong");
    let denied = LogConfig { url: wrong.try_into().unwrap(), ..config.clone() };
    let fault = refusal(&denied).await;
    text(&fault, Code::LogAccessDenied);
    assert_eq!(fault.class(), Class::Definite);
    assert!(!fault.to_string().contains("wrong"), "a secret in {fault}");
    // Ten tasks ask the server less often than ten times.
    let mut is_remembered = false;
    for _ in 0..10 {
        let found = text(&refusal(&denied).await, Code::LogAccessDenied);
        is_remembered |= found.contains("a moment ago");
    }
    assert!(is_remembered);

    let unknown = LogConfig { ca_file: None, ..config.clone() };
    let found = text(&refusal(&unknown).await, Code::LogAccessDenied);
    assert!(found.contains("TLS handshake failed"), "{found}");

    let no_file = LogConfig { ca_file: Some("/none/ca.pem".into()), ..config.clone() };
    text(&refusal(&no_file).await, Code::LogAccessDenied);

    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let closed = url.replace(&format!(":{}", nats.server.port()), &format!(":{closed}"));
    let closed = LogConfig { url: closed.try_into().unwrap(), ..config };
    let fault = refusal(&closed).await;
    text(&fault, Code::LogUnreachable);
    assert_eq!(fault.class(), Class::Transient);
}

#[tokio::test(flavor = "multi_thread")]
async fn setup_refuses_registers_of_the_names_before_the_first_version() {
    let nats = Nats::start();
    let log = nats.connect().await;
    let bucket = kv::Config { bucket: "demo_uuids".into(), ..kv::Config::default() };
    nats.admin().await.create_key_value(bucket).await.unwrap();
    let faults = log.setup(&sources()).await.unwrap_err();
    let [fault] = &faults[..] else { panic!("{faults:?}") };
    text(fault, Code::LogForeign);
    assert_eq!(fault.subject(), "bucket demo_uuids");
    assert_eq!(log.check(&sources()).await.len(), 4, "nothing was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn setup_can_be_repeated_and_follows_the_configuration() {
    let nats = Nats::start();
    let log = nats.connect().await;
    let missing = log.check(&sources()).await;
    let names = ["stream demo_source-a", "bucket demo_leases", "bucket demo_registers", "bucket demo_intake"];
    assert_eq!(missing.len(), names.len());
    for (fault, name) in missing.iter().zip(names) {
        text(fault, Code::LogStreamMissing);
        assert_eq!((fault.subject(), fault.remedy_text()), (name, Some("anabranch --config FILE setup")));
    }
    let outcomes = async |log: &NatsLog| {
        let steps = log.setup(&sources()).await.unwrap();
        steps.into_iter().map(|step| step.outcome).collect::<Vec<_>>()
    };
    assert_eq!(outcomes(&log).await, [const { SetupOutcome::Created }; 4]);
    append(&log, 1..=3).await;
    assert_eq!(outcomes(&log).await, [const { SetupOutcome::Unchanged }; 4]);
    assert!(log.check(&sources()).await.is_empty());

    let config = LogConfig {
        max_age: Duration::from_secs(3600),
        max_bytes: 5_000_000.try_into().unwrap(),
        ..nats.config()
    };
    let changed = NatsLog::connect(&config, "demo", &limits()).await.unwrap();
    let found: Vec<_> = changed.check(&sources()).await.iter().map(ToString::to_string).collect();
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found[0].contains("max_age is 604800 s; needed: 3600 s"), "{found:?}");
    assert!(found[1].contains("max_bytes is 1000000000; needed: 5000000"), "{found:?}");
    assert!(found[2].contains("bucket demo_intake: max_bytes"), "{found:?}");
    let adjusted = SetupOutcome::Adjusted(vec!["max_age", "max_bytes"]);
    let of_keys = SetupOutcome::Adjusted(vec!["max_bytes"]);
    assert_eq!(
        outcomes(&changed).await,
        [adjusted, SetupOutcome::Unchanged, SetupOutcome::Unchanged, of_keys]
    );
    assert!(changed.check(&sources()).await.is_empty());
    assert_eq!(changed.stream_state(SOURCE).await.unwrap().messages, 3);

    let smaller = LogConfig { max_bytes: 100.try_into().unwrap(), ..config };
    let log = NatsLog::connect(&smaller, "demo", &limits()).await.unwrap();
    let faults = log.setup(&sources()).await.unwrap_err();
    let found: Vec<_> = faults.iter().map(|fault| text(fault, Code::LogSettingsDiffer)).collect();
    assert!(
        found.len() == 1 && found[0].contains("instead of 100; remedy: raise log.max_bytes"),
        "{found:?}"
    );
    assert_eq!(log.stream_state(SOURCE).await.unwrap().messages, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_with_other_settings_is_refused_and_left_as_it_is() {
    let nats = Nats::start();
    let log = nats.connect().await;
    let admin = nats.admin().await;
    let other = Config {
        name: STREAM.to_owned(),
        subjects: vec![SUBJECT.to_owned(), "demo.more".to_owned()],
        storage: StorageType::Memory,
        ..Config::default()
    };
    admin.create_stream(other.clone()).await.unwrap();
    let faults = log.setup(&sources()).await.unwrap_err();
    let found: Vec<_> = faults.iter().map(|fault| text(fault, Code::LogSettingsDiffer)).collect();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found[0].contains("subjects is demo.source-a.changes, demo.more; needed: demo.source-a.changes"),
        "{found:?}"
    );
    assert!(found[1].contains("storage is Memory; needed: File"), "{found:?}");
    assert_eq!(admin.get_stream(STREAM).await.unwrap().cached_info().config.storage, StorageType::Memory);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_cannot_give_is_named() {
    let nats = Nats::start();
    for (config, code) in [
        (LogConfig { replicas: 3.try_into().unwrap(), ..nats.config() }, Code::LogSettingsDiffer),
        (LogConfig { max_bytes: (1 << 50).try_into().unwrap(), ..nats.config() }, Code::LogFull),
    ] {
        let log = NatsLog::connect(&config, "demo", &limits()).await.unwrap();
        text(&log.setup(&sources()).await.unwrap_err()[0], code);
    }
}

/// The row is as wide as an operator permits; the server of the stack takes 8 MB.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_larger_than_a_message_is_named_with_what_lets_it_through_and_then_goes_through() {
    let nats = Nats::start();
    let table = TableIdentity {
        entity: Entity::User,
        shard: ShardId::of(SOURCE, "user_00", "user_007", 0),
        database: "user_00".into(),
        table: "user_007".into(),
    };
    let mut batch = BatchBuilder::new(1024, Lsn::ZERO, ResumePoint::default());
    batch.insert(envelope(1).position, &table, &[Value::UInt(1), Value::Bytes(vec![b'x'; 4 << 20].into())]);
    let payload = batch.take().payload;
    let log = nats.log().await;
    let mut writer = log.writer(SOURCE, None).await.unwrap();
    let fault = writer.append(envelope(1), payload.clone()).await.unwrap_err();
    let found = text(&fault, Code::LogSettingsDiffer);
    assert!(found.contains("user_00.user_007") && found.contains("log.max_message_bytes"), "{found}");
    assert!(!found.contains("xxx"), "a value is told");

    let config = |bytes: usize| LogConfig { max_message_bytes: bytes.try_into().unwrap(), ..nats.config() };
    let found = text(&refusal(&config(64 << 20)).await, Code::LogSettingsDiffer);
    assert!(found.contains("max_payload is 8388608 bytes; needed: at least 67108864"), "{found}");
    let log = NatsLog::connect(&config(8 << 20), "demo", &limits()).await.unwrap();
    log.setup(&sources()).await.unwrap();
    let mut writer = log.writer(SOURCE, None).await.unwrap();
    for number in 1..4 {
        writer.append(envelope(number), payload.clone()).await.unwrap();
    }
    acknowledge_all(&mut writer).await;
    let mut reader = log.reader(SOURCE, ReadFrom::At(Lsn::ZERO)).await.unwrap();
    let messages = read(&mut reader, 3).await;
    assert!(messages.iter().all(|message| message.payload == payload));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_somebody_else_made_in_place_of_ours_is_refused_while_running() {
    let nats = Nats::start();
    let log = nats.log().await;
    append(&log, [1]).await;
    let admin = nats.admin().await;
    admin.delete_stream(STREAM).await.unwrap();
    let other = Config {
        name: STREAM.to_owned(),
        subjects: vec!["orders.>".to_owned()],
        storage: StorageType::Memory,
        ..Config::default()
    };
    admin.create_stream(other).await.unwrap();
    let found = text(&log.end(SOURCE).await.unwrap_err(), Code::LogSettingsDiffer);
    assert!(found.contains("subjects is orders.>; needed: demo.source-a.changes"), "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_stream_is_named_wherever_it_is_needed() {
    let nats = Nats::start();
    let log = nats.log().await;
    let end = append(&log, [1]).await.pop();
    nats.admin().await.delete_stream(STREAM).await.unwrap();
    text(&log.end(SOURCE).await.unwrap_err(), Code::LogStreamMissing);
    let Err(fault) = log.reader(SOURCE, ReadFrom::At(Lsn::ZERO)).await else {
        panic!("a missing stream is read")
    };
    text(&fault, Code::LogStreamMissing);
    let Err(fault) = log.writer(SOURCE, None).await else { panic!("a missing stream has an end") };
    text(&fault, Code::LogStreamMissing);
    let mut writer = log.writer(SOURCE, end.as_ref()).await.unwrap();
    send(&mut writer, [2]).await;
    text(&within(writer.acknowledged()).await.unwrap_err(), Code::LogStreamMissing);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_goes_away_is_unreachable_and_comes_back() {
    let nats = Nats::start();
    let log = nats.log().await;
    append(&log, [1]).await;
    let lost = || log.connection_lost(Duration::from_millis(300));
    assert!(tokio::time::timeout(Duration::from_secs(1), lost()).await.is_err(), "it is connected");
    blocking(|| nats.server.kill().unwrap());
    text(&within(lost()).await, Code::LogUnreachable);
    text(&within(log.end(SOURCE)).await.unwrap_err(), Code::LogUnreachable);
    blocking(|| nats.server.restart().unwrap());
    crate::nats::until("the client is back", async || log.end(SOURCE).await.is_ok()).await;
    assert!(tokio::time::timeout(Duration::from_secs(1), lost()).await.is_err(), "it is connected again");
    append(&log, [2]).await;
}
