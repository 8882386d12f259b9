//! Real servers with the product's own clients: TLS, accounts, kill, restart, pause, flags.

#![allow(clippy::unwrap_used, reason = "helpers of tests, too, fail by panicking")]

use std::time::Duration;

use anabranch_stack::{Options, Server, ServerSpec, ServerStatus, Stack, StackError};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, SslOpts};

fn secured(stack: &Stack, url: &str) -> OptsBuilder {
    let ssl = SslOpts::default().with_root_certs(vec![stack.ca_file().into()]);
    OptsBuilder::from_opts(Opts::from_url(url).unwrap()).ssl_opts(ssl)
}

async fn admin(stack: &Stack, server: &Server) -> Conn {
    Conn::new(secured(stack, &server.admin_url())).await.unwrap()
}

async fn nats(
    stack: &Stack,
    server: &Server,
    password: &str,
) -> Result<async_nats::Client, async_nats::ConnectError> {
    async_nats::ConnectOptions::with_user_and_password(server.user().to_owned(), password.to_owned())
        .add_root_certificates(stack.ca_file())
        .require_tls(true)
        .connect(format!("tls://127.0.0.1:{}", server.port()))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn standard_stack_serves_the_products_accounts_over_verified_tls_only() {
    let stack = Stack::start(Options::standard()).unwrap();
    let source = stack.server("source-a").unwrap();
    let target = stack.server("target").unwrap();

    admin(&stack, &source).await.query_drop("CREATE DATABASE user_0; CREATE DATABASE other_0").await.unwrap();
    let mut capture = Conn::new(secured(&stack, &source.url())).await.unwrap();
    let version: Option<(String, String)> =
        capture.query_first("SHOW STATUS LIKE 'Ssl_version'").await.unwrap();
    assert_eq!(version.unwrap().1, "TLSv1.3");
    capture.query_drop("USE user_0").await.unwrap();
    capture.query_drop("USE other_0").await.unwrap_err();
    capture.query_drop("CREATE TABLE user_0.user (id INT)").await.unwrap_err();
    capture.query_drop("SHOW BINARY LOGS").await.unwrap();

    Conn::new(Opts::from_url(&source.url()).unwrap()).await.expect_err("plain connection must be refused");
    let unverified =
        OptsBuilder::from_opts(Opts::from_url(&source.url()).unwrap()).ssl_opts(SslOpts::default());
    Conn::new(unverified).await.expect_err("an unknown authority must be refused");

    let mut setup = Conn::new(secured(&stack, &target.setup_url().unwrap())).await.unwrap();
    for allowed in
        ["CREATE DATABASE birthday_01", "CREATE DATABASE anabranch", "CREATE TABLE birthday_01.t (id INT)"]
    {
        setup.query_drop(allowed).await.unwrap();
    }
    setup.query_drop("CREATE DATABASE other").await.unwrap_err();
    setup.query_drop("DROP TABLE birthday_01.t").await.unwrap_err();
    let mut apply = Conn::new(secured(&stack, &target.url())).await.unwrap();
    apply.query_drop("INSERT INTO birthday_01.t VALUES (1)").await.unwrap();
    apply.query_drop("CREATE TABLE birthday_01.u (id INT)").await.unwrap_err();

    let server = stack.server("nats").unwrap();
    let client = nats(&stack, &server, server.password()).await.unwrap();
    assert!(client.server_info().version.starts_with("2."), "{}", client.server_info().version);
    async_nats::jetstream::new(client).query_account().await.unwrap();
    nats(&stack, &server, "wrong").await.unwrap_err();

    let env = stack.env();
    assert_eq!(env["ANABRANCH_SOURCE_A_URL"], source.url());
    assert_eq!(env["ANABRANCH_NATS_URL"], server.url());

    let folder = stack.folder().to_path_buf();
    drop((apply, capture));
    drop(stack);
    assert!(!folder.exists());
    assert_eq!(source.status(), ServerStatus::Stopped);
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_and_restart_keep_data_and_port() {
    let spec = ServerSpec::mariadb_source("source-a").without_fsync();
    let stack = Stack::start(Options::empty().with(spec)).unwrap();
    let source = stack.server("source-a").unwrap();
    let port = source.port();
    let mut client = admin(&stack, &source).await;
    client
        .query_drop("CREATE DATABASE user_0; CREATE TABLE user_0.t (id INT); INSERT INTO user_0.t VALUES (7)")
        .await
        .unwrap();

    source.kill().unwrap();
    assert_eq!(source.status(), ServerStatus::Stopped);
    client.query_drop("SELECT 1").await.unwrap_err();
    source.restart_with(&["--binlog-format=STATEMENT"]).unwrap();

    assert_eq!(source.port(), port);
    let mut client = admin(&stack, &source).await;
    let found: Option<(i32, String)> =
        client.query_first("SELECT id, @@binlog_format FROM user_0.t").await.unwrap();
    assert_eq!(found, Some((7, "STATEMENT".to_owned())));

    source.restart().unwrap();
    let format: Option<String> =
        admin(&stack, &source).await.query_first("SELECT @@binlog_format").await.unwrap();
    assert_eq!(format.as_deref(), Some("ROW"));

    source.pause().unwrap();
    assert_eq!(source.status(), ServerStatus::Paused);
    let connecting = Conn::new(secured(&stack, &source.admin_url()));
    tokio::time::timeout(Duration::from_millis(300), connecting)
        .await
        .expect_err("a paused server answers nothing");
    source.resume().unwrap();
    admin(&stack, &source).await.query_drop("SELECT 1").await.unwrap();
    source.pause().unwrap();
    source.stop().unwrap();
    assert!(matches!(source.pause(), Err(StackError::ServerNotRunning { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_stacks_run_side_by_side_and_take_more_servers() {
    let first = Stack::start(Options::empty().with(ServerSpec::mariadb_source("source-a"))).unwrap();
    let second = Stack::start(Options::empty().with(ServerSpec::nats_without_jetstream("nats"))).unwrap();
    assert_ne!(first.name(), second.name());

    let added = second.add(ServerSpec::mariadb_target("target-2").flag("--log-bin-compress=ON")).unwrap();
    let compressed: Option<bool> =
        admin(&second, &added).await.query_first("SELECT @@log_bin_compress").await.unwrap();
    assert_eq!(compressed, Some(true));
    let taken = second.add(ServerSpec::nats("nats"));
    assert!(matches!(taken, Err(StackError::ServerNameTaken { .. })), "{taken:?}");

    let plain = second.server("nats").unwrap();
    let client = nats(&second, &plain, plain.password()).await.unwrap();
    async_nats::jetstream::new(client).query_account().await.expect_err("no JetStream");
    let old = second.add(ServerSpec::nats_old("nats-old")).unwrap();
    let client = nats(&second, &old, old.password()).await.unwrap();
    assert!(client.server_info().version.starts_with("2.9."), "{}", client.server_info().version);

    drop(second);
    assert_eq!(first.server("source-a").unwrap().status(), ServerStatus::Running);
}

#[test]
fn server_that_cannot_start_says_why() {
    let failed =
        Stack::start(Options::empty().with(ServerSpec::mariadb_source("bad").flag("--no-such-flag")));
    let Err(StackError::ServerExited { name, log, .. }) = failed else { panic!("{failed:?}") };
    assert_eq!(name, "bad");
    assert!(log.contains("no-such-flag"), "{log}");
}
