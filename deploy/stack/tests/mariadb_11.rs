//! MariaDB 11.8 as the stack serves it, with the product's own client: TLS, accounts, kill, flags, pause, wipe.

#![allow(clippy::unwrap_used, reason = "helpers of tests, too, fail by panicking")]

use anabranch_stack::{Options, Server, ServerSpec, Stack};
use mysql_async::prelude::{FromRow, Queryable};
use mysql_async::{Conn, Error, Opts, OptsBuilder, SslOpts};

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

#[tokio::test(flavor = "multi_thread")]
async fn mariadb_11_serves_the_products_accounts_over_tls_beside_the_common_mariadb() {
    let servers = [ServerSpec::mariadb_11_source("source"), ServerSpec::mariadb_11_target("target")];
    let options = servers.into_iter().fold(Options::empty(), Options::with);
    let Some(stack) = Stack::start_if_there(options).unwrap() else { return };
    let source = stack.server("source").unwrap();
    let target = stack.server("target").unwrap();

    let mut administrator = admin(&stack, &source).await;
    let version: String = ask(&mut administrator, "SELECT VERSION()").await;
    assert!(version.starts_with("11.8.") && version.contains("MariaDB"), "{version}");
    let captured: (String, i32, String, i32) = ask(
        &mut administrator,
        "SELECT @@gtid_binlog_pos, @@gtid_strict_mode, @@binlog_row_metadata, @@binlog_legacy_event_pos",
    )
    .await;
    assert_eq!(
        captured,
        (String::new(), 1, "FULL".to_owned(), 0),
        "positions inside a transaction are its default: none"
    );
    let accounts: Vec<String> = administrator
        .query(
            "SELECT CONCAT(User, '@', Host) FROM mysql.global_priv \
             WHERE JSON_VALUE(Priv, '$.account_locked') IS NULL ORDER BY User",
        )
        .await
        .unwrap();
    assert_eq!(accounts, ["anabranch_capture@127.0.0.1", "root@127.0.0.1"]);
    administrator.query_drop("CREATE DATABASE user_0").await.unwrap();
    // System tables that only a complete bootstrap makes.
    administrator.query_drop("SELECT * FROM mysql.gtid_slave_pos").await.unwrap();
    administrator.query_drop("SELECT CONVERT_TZ('2001-01-01', '+00:00', '+01:00')").await.unwrap();

    let mut capture = connect(&stack, &source.url()).await.unwrap();
    let tls: (String, String) = ask(&mut capture, "SHOW STATUS LIKE 'Ssl_version'").await;
    assert_eq!(tls.1, "TLSv1.3");
    capture.query_drop("SHOW BINARY LOGS").await.unwrap();
    capture.query_drop("CREATE TABLE user_0.t (id INT)").await.unwrap_err();
    let wrong = source.url().replace(source.password(), "wrong");
    connect(&stack, &wrong).await.expect_err("a wrong password must be refused");

    let mut setup = connect(&stack, &target.setup_url().unwrap()).await.unwrap();
    setup.query_drop("CREATE DATABASE birthday_01").await.unwrap();
    setup.query_drop("CREATE DATABASE other").await.unwrap_err();
    let mut apply = connect(&stack, &target.url()).await.unwrap();
    apply.query_drop("CREATE DATABASE birthday_02").await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb_11_is_killed_restarted_with_flags_and_wiped() {
    let options = Options::empty().with(ServerSpec::mariadb_11_source("source").without_fsync());
    let Some(stack) = Stack::start_if_there(options).unwrap() else { return };
    let source = stack.server("source").unwrap();
    let port = source.port();
    let mut client = admin(&stack, &source).await;
    client
        .query_drop("CREATE DATABASE user_0; CREATE TABLE user_0.t (id INT); INSERT INTO user_0.t VALUES (7)")
        .await
        .unwrap();
    let executed: String = ask(&mut client, "SELECT @@gtid_binlog_pos").await;
    assert!(executed.ends_with("-3"), "{executed}");

    source.kill().unwrap();
    client.query_drop("SELECT 1").await.unwrap_err();
    source.restart_with(&["--binlog-legacy-event-pos=ON"]).unwrap();
    assert_eq!(source.port(), port);
    let found: (i32, i32, String) = ask(
        &mut admin(&stack, &source).await,
        "SELECT id, @@binlog_legacy_event_pos, @@gtid_binlog_pos FROM user_0.t",
    )
    .await;
    assert_eq!(found, (7, 1, executed));

    source.restart_empty().unwrap();
    let mut client = admin(&stack, &source).await;
    let executed: String = ask(&mut client, "SELECT @@gtid_binlog_pos").await;
    assert_eq!(executed, "");
    client.query_drop("SELECT id FROM user_0.t").await.unwrap_err();
    connect(&stack, &source.url()).await.unwrap();
}
