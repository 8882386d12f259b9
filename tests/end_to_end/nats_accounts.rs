//! The users of `deploy/grants/nats-accounts.conf` suffice for the product and may do no more, on a NATS that encrypts
//! what it stores.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anabranch_stack::{Server, ServerSpec};
use anabranch_tests::{Daemon, Installation, Plan, blocking, until, until_some};
use async_nats::ConnectOptions;
use async_nats::jetstream::Context;
use async_nats::jetstream::context::ContextBuilder;

use crate::STANDARD;
use crate::faults::{insert, until_derived};

const NATS: &str = "nats-accounts";
const VARIABLE: &str = "ANABRANCH_NATS_ACCOUNTS_URL";
const USER: &str = "anabranch";
const SETUP_USER: &str = "anabranch_setup";
const TABLE: &str = "user_00.user_000";
const TOKEN: &str = "application-token-1";
/// The server answers no request that it refuses. Other requests are repeated until the server answers in this time.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);

async fn jetstream(installation: &Installation<'_>, server: &Server, user: &str) -> Context {
    let client = ConnectOptions::new()
        .user_and_password(user.to_owned(), server.password().to_owned())
        .add_root_certificates(installation.stack().ca_file())
        .require_tls(true)
        .connect(format!("tls://127.0.0.1:{}", server.port()));
    ContextBuilder::new().timeout(ANSWER_TIME_MAX).ack_timeout(ANSWER_TIME_MAX).build(client.await.unwrap())
}

/// Takes another user from the next command or daemon on.
fn use_url(installation: &mut Installation<'_>, url: String) {
    let environment = installation.environment_mut();
    environment.retain(|(name, _)| name != VARIABLE);
    environment.push((VARIABLE.to_owned(), url));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_nats_users_suffice_and_nobody_else_can_publish() {
    let mut installation = Installation::prepare(STANDARD.turn().await, &Plan::small()).await;
    let spec = ServerSpec::nats_with_accounts(NATS, &installation.configuration.name);
    let server = blocking(|| installation.stack().add(spec)).unwrap();
    installation.configuration.log = NATS.to_owned();
    installation.configuration.tokens = vec![TOKEN.to_owned()];
    installation.write_configuration();

    use_url(&mut installation, server.setup_url().unwrap());
    for made in ["created", "as needed"] {
        let set_up = installation.command(&["setup"]).await.expect_success();
        let stream = format!("stream {}_source-a: {made}", installation.configuration.name);
        assert!(set_up.stdout.contains(&stream), "{set_up:?}");
    }
    use_url(&mut installation, server.url());
    installation.command(&["check"]).await.expect_success();

    let mut daemon = installation.run();
    insert(&installation, "source-a", TABLE, 1).await;
    until_derived(&installation, 1).await;
    daemon.until_loaded(&["source-a", "source-b"]).await;
    works(&installation, &daemon).await;

    // The next daemon takes up where this one ended, and a restart of the server needs the key.
    assert!(daemon.terminate().unwrap().success());
    insert(&installation, "source-a", TABLE, 2).await;
    blocking(|| server.restart()).unwrap();
    refuses(&installation, &server).await;
    let daemon = installation.run();
    until_derived(&installation, 2).await;
    installation.expect_equal().await;
    daemon.until_ready().await;
    assert!(!daemon.log().to_lowercase().contains("permissions violation"), "{}", daemon.log());
    drop(daemon);
    server.stop().unwrap();
}

/// Commands and requests that use the log in another way than readers and lanes do.
async fn works(installation: &Installation<'_>, daemon: &Daemon) {
    daemon.until_ready().await;
    // Registers, and the bucket of callers' keys: a second header is in the line of the token.
    let keyed = format!("{TOKEN}\r\nIdempotency-Key: batch-1");
    let mut given = Vec::new();
    for _ in 0..2 {
        let (status, answer) = daemon.ask("POST", "/v1/uuids", Some(&keyed), "{\"count\": 3}").await;
        assert_eq!(status, 200, "{answer}");
        given.push(answer["uuids"].clone());
    }
    assert_eq!(given[0], given[1], "the key was not kept");
    for command in [
        &["status"][..],
        &["tail", "--source", "source-a", "--limit", "1", "--no-follow"],
        &["reconcile", "--now"],
        &["refresh", "--projection", "birthday"],
        &["restart", "--all"],
    ] {
        installation.command(command).await.expect_success();
    }
    until("the holders of leases are shown", async || {
        daemon.status().await.unwrap()["leases"].as_array().is_some_and(|leases| !leases.is_empty())
    })
    .await;
}

/// Checks what neither user may do, while no daemon runs.
async fn refuses(installation: &Installation<'_>, server: &Server) {
    let name = &installation.configuration.name;
    let (stream, subject) = (format!("{name}_source-a"), format!("{name}.source-a.changes"));
    let mut contexts = Vec::new();
    for user in [USER, SETUP_USER] {
        contexts.push(jetstream(installation, server, user).await);
    }
    let [run, setup] = contexts.as_slice() else { unreachable!("two users") };
    let found =
        async |name: &str| until_some("the server answers", async || run.get_stream(name).await.ok()).await;
    let last = async || found(&stream).await.cached_info().state.last_sequence;
    let before = last().await;
    let forged = setup.publish(subject.clone(), "forged".into()).await.unwrap();
    assert!(forged.await.is_err(), "the user for setup can publish into a stream");
    assert_eq!(last().await, before);
    assert!(run.delete_stream(&stream).await.is_err(), "the daemon's user can delete a stream");
    assert!(run.create_stream("others").await.is_err(), "the daemon's user can make a stream");
    let purged = found(&format!("KV_{name}_registers")).await.purge().await;
    assert!(purged.is_err(), "the daemon's user can empty the registers");
    assert_eq!(last().await, before);
    let address = format!("tls://127.0.0.1:{}", server.port());
    let stranger =
        ConnectOptions::new().add_root_certificates(installation.stack().ca_file()).connect(address).await;
    assert!(stranger.is_err(), "a client without a user is let in");

    // The subject stands in front of each message that is stored.
    let blocks = blocks(&server.folder().join("jetstream"), &stream);
    assert!(!blocks.is_empty(), "no block of {stream} is found");
    for block in blocks {
        let bytes = std::fs::read(&block).unwrap();
        let is_plain = bytes.windows(subject.len()).any(|window| window == subject.as_bytes());
        assert!(!bytes.is_empty() && !is_plain, "{} is not encrypted", block.display());
    }
}

/// Returns the files with messages of a stream beneath a folder.
fn blocks(folder: &Path, stream: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let of_entry = |path: PathBuf| match path.is_dir() {
        true => blocks(&path, stream),
        false => vec![path],
    };
    let files = entries.flat_map(of_entry);
    files.filter(|path| path.extension().is_some_and(|end| end == "blk") && is_of(path, stream)).collect()
}

fn is_of(path: &Path, stream: &str) -> bool {
    path.components().any(|part| part.as_os_str() == stream)
}
