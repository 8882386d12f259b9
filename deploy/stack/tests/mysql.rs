//! MySQL as the stack serves it, with the product's own client: TLS, accounts, kill, flags, pause, wipe.

#![allow(clippy::unwrap_used, reason = "helpers of tests, too, fail by panicking")]

use std::time::Duration;

use anabranch_stack::{Options, Server, ServerSpec, ServerStatus, Stack};
use mysql_async::prelude::{FromRow, Queryable};
use mysql_async::{Conn, Error, Opts, OptsBuilder, SslOpts};

/// `ER_TABLEACCESS_DENIED_ERROR`, `ER_DBACCESS_DENIED_ERROR`, `ER_SPECIFIC_ACCESS_DENIED_ERROR`.
const DENIED: [u16; 3] = [1142, 1044, 1227];

async fn connect(stack: &Stack, url: &str) -> Result<Conn, Error> {
    let ssl = SslOpts::default().with_root_certs(vec![stack.ca_file().into()]);
    Conn::new(OptsBuilder::from_opts(Opts::from_url(url).unwrap()).ssl_opts(ssl)).await
}

async fn admin(stack: &Stack, server: &Server) -> Conn {
    connect(stack, &server.admin_url()).await.unwrap()
}

async fn ask<T: FromRow + Send + 'static>(connection: &mut Conn, query: &str) -> T {
    connection.query_first(query).await.unwrap().unwrap()
}

async fn assert_denied(connection: &mut Conn, statement: &str) {
    let error = connection.query_drop(statement).await.unwrap_err();
    let Error::Server(error) = error else { panic!("{statement}: {error}") };
    assert!(DENIED.contains(&error.code), "{statement}: {error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql_serves_the_products_accounts_over_verified_tls_only() {
    let servers = [ServerSpec::mysql_source("source"), ServerSpec::mysql_target("target")];
    let options = servers.into_iter().fold(Options::empty(), Options::with);
    let Some(stack) = Stack::start_if_there(options).unwrap() else { return };
    let source = stack.server("source").unwrap();
    let target = stack.server("target").unwrap();
    assert_eq!(stack.env()["ANABRANCH_SOURCE_URL"], source.url());

    let mut administrator = admin(&stack, &source).await;
    let version: String = ask(&mut administrator, "SELECT VERSION()").await;
    assert!(!version.contains("MariaDB"), "{version}");
    let captured: (String, String, String, String) = ask(
        &mut administrator,
        "SELECT @@gtid_executed, @@gtid_mode, @@binlog_row_metadata, @@log_bin_basename",
    )
    .await;
    let binlog = source.folder().join("db/binlog").display().to_string();
    assert_eq!(captured, (String::new(), "ON".to_owned(), "FULL".to_owned(), binlog));
    let accounts: Vec<String> = administrator
        .query("SELECT CONCAT(user, '@', host) FROM mysql.user WHERE NOT account_locked = 'Y' ORDER BY user")
        .await
        .unwrap();
    assert_eq!(accounts, ["anabranch_capture@127.0.0.1", "root@127.0.0.1"]);
    administrator.query_drop("CREATE DATABASE user_0; CREATE DATABASE other_0").await.unwrap();
    administrator.query_drop("CREATE TABLE user_0.user (id INT PRIMARY KEY)").await.unwrap();
    administrator.query_drop("SHOW REPLICA STATUS").await.unwrap();

    let mut capture = connect(&stack, &source.url()).await.unwrap();
    let tls: (String, String) = ask(&mut capture, "SHOW STATUS LIKE 'Ssl_version'").await;
    assert_eq!(tls.1, "TLSv1.3");
    capture.query_drop("SELECT * FROM user_0.user").await.unwrap();
    capture.query_drop("SHOW BINARY LOGS").await.unwrap();
    for refused in [
        "INSERT INTO user_0.user VALUES (1)",
        "DROP TABLE user_0.user",
        "USE other_0",
        "SET GLOBAL read_only = 1",
    ] {
        assert_denied(&mut capture, refused).await;
    }

    let plain = Conn::new(Opts::from_url(&source.url()).unwrap()).await;
    plain.expect_err("a plain connection must be refused");
    let unverified =
        OptsBuilder::from_opts(Opts::from_url(&source.url()).unwrap()).ssl_opts(SslOpts::default());
    Conn::new(unverified).await.expect_err("an unknown authority must be refused");
    let wrong = source.url().replace(source.password(), "wrong");
    connect(&stack, &wrong).await.expect_err("a wrong password must be refused");

    let mut setup = connect(&stack, &target.setup_url().unwrap()).await.unwrap();
    for allowed in
        ["CREATE DATABASE birthday_01", "CREATE DATABASE anabranch", "CREATE TABLE birthday_01.t (id INT)"]
    {
        setup.query_drop(allowed).await.unwrap();
    }
    assert_denied(&mut setup, "CREATE DATABASE other").await;
    assert_denied(&mut setup, "DROP TABLE birthday_01.t").await;
    let mut apply = connect(&stack, &target.url()).await.unwrap();
    apply.query_drop("INSERT INTO birthday_01.t VALUES (1)").await.unwrap();
    assert_denied(&mut apply, "CREATE TABLE birthday_01.u (id INT)").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql_is_killed_restarted_paused_and_wiped() {
    let servers = ["source", "second"].map(|name| ServerSpec::mysql_source(name).without_fsync());
    let options = servers.into_iter().fold(Options::empty(), Options::with);
    let Some(stack) = Stack::start_if_there(options).unwrap() else { return };
    let source = stack.server("source").unwrap();
    let port = source.port();
    let mut client = admin(&stack, &source).await;
    client
        .query_drop("CREATE DATABASE user_0; CREATE TABLE user_0.t (id INT); INSERT INTO user_0.t VALUES (7)")
        .await
        .unwrap();
    let (server, executed): (String, String) =
        ask(&mut client, "SELECT @@server_uuid, @@gtid_executed").await;
    assert_eq!(executed, format!("{server}:1-3"));
    let second = stack.server("second").unwrap();
    let other: String = ask(&mut admin(&stack, &second).await, "SELECT @@server_uuid").await;
    assert_ne!(other, server, "both are copies of one template");

    source.kill().unwrap();
    assert_eq!(source.status(), ServerStatus::Stopped);
    client.query_drop("SELECT 1").await.unwrap_err();
    source.restart_with(&["--binlog-row-image=MINIMAL"]).unwrap();
    assert_eq!(source.port(), port);
    let mut client = admin(&stack, &source).await;
    let found: (i32, String, String) =
        ask(&mut client, "SELECT id, @@binlog_row_image, @@gtid_executed FROM user_0.t").await;
    assert_eq!(found, (7, "MINIMAL".to_owned(), executed));
    source.restart().unwrap();
    let image: String = ask(&mut admin(&stack, &source).await, "SELECT @@binlog_row_image").await;
    assert_eq!(image, "FULL");

    source.pause().unwrap();
    assert_eq!(source.status(), ServerStatus::Paused);
    let url = source.admin_url();
    tokio::time::timeout(Duration::from_millis(300), connect(&stack, &url))
        .await
        .expect_err("a paused server answers nothing");
    source.resume().unwrap();

    source.restart_empty().unwrap();
    let mut client = admin(&stack, &source).await;
    let (anew, executed): (String, String) = ask(&mut client, "SELECT @@server_uuid, @@gtid_executed").await;
    assert_ne!(anew, server);
    assert_eq!(executed, "");
    client.query_drop("SELECT id FROM user_0.t").await.unwrap_err();
    connect(&stack, &source.url()).await.unwrap();
}
