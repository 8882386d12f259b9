//! The accounts of the documented grants suffice for the product and allow no more: all tests run with them.

use anabranch_stack::Server;
use anabranch_tests::{Installation, Plan, until};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder};

use crate::STANDARD;

/// The servers' error numbers of a missing privilege on a database or table.
const DENIED: [u16; 2] = [1044, 1142];

async fn connect(installation: &Installation<'_>, server: &Server, url: &str) -> Conn {
    let tls = mysql_async::SslOpts::default()
        .with_root_certs(vec![installation.stack().ca_file().into()])
        .with_disable_built_in_roots(true);
    let options = OptsBuilder::from_opts(mysql_async::Opts::from_url(url).unwrap()).ssl_opts(tls);
    Conn::new(options).await.unwrap_or_else(|error| panic!("{}: {error}", server.name()))
}

async fn assert_denied(account: &mut Conn, statements: &[&str]) {
    for statement in statements {
        match account.query_drop(*statement).await {
            Err(mysql_async::Error::Server(error)) => {
                assert!(DENIED.contains(&error.code), "{statement}: {error}");
            }
            other => panic!("{statement}: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_can_neither_drop_nor_alter_a_table_nor_change_the_history_and_runs_all_the_same() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let daemon = installation.run();
    let rows = "INSERT INTO user_00.user_000 (user_id, user_name, birthday)
        SELECT seq, CONCAT('name-', seq), DATE '1970-01-01' + INTERVAL seq DAY FROM user_00.seq_1_to_1000";
    installation.execute("source-a", rows).await;
    installation.expect_equal().await;
    installation.command(&["check"]).await.expect_success();
    installation.command(&["reconcile", "--now"]).await.expect_success();

    let server = installation.server("target");
    let mut apply = connect(&installation, &server, &server.url()).await;
    assert_denied(
        &mut apply,
        &[
            "DROP TABLE birthday_00.birthday_0101",
            "TRUNCATE birthday_00.birthday_0101",
            "ALTER TABLE birthday_00.birthday_0101 ADD x INT",
            "CREATE INDEX x ON birthday_00.birthday_0101 (lsn)",
            "CREATE TABLE birthday_00.other (x INT)",
            "DROP DATABASE birthday_00",
            "UPDATE anabranch.reconciliations SET verdict = 'clean'",
            "DELETE FROM anabranch.reconciliations",
            "REPLACE INTO anabranch.reconciliations SELECT * FROM anabranch.reconciliations",
            "DROP TABLE anabranch.reconciliations",
            "ALTER TABLE anabranch.reconciliations ADD x INT",
            "UPDATE anabranch.operations SET who = 'bob'",
            "DELETE FROM anabranch.operations",
            "REPLACE INTO anabranch.operations SELECT * FROM anabranch.operations",
            "INSERT INTO anabranch.progress SELECT * FROM anabranch.progress",
            "DELETE FROM anabranch.progress",
            "DELETE FROM anabranch.enrolled",
            "SELECT * FROM mysql.user",
        ],
    )
    .await;
    let mut setup = connect(&installation, &server, &server.setup_url().unwrap()).await;
    assert_denied(
        &mut setup,
        &[
            "DROP TABLE birthday_00.birthday_0101",
            "DELETE FROM birthday_00.birthday_0101",
            "ALTER TABLE anabranch.progress ADD x INT",
            "INSERT INTO anabranch.reconciliations SELECT * FROM anabranch.reconciliations",
            "CREATE DATABASE other",
        ],
    )
    .await;

    // Differences are found, reported and repaired; a refresh and a replay bring rows too.
    let target = "DELETE FROM birthday_00.birthday_0103; UPDATE birthday_00.birthday_0105 SET lsn = 1";
    installation.execute("target", target).await;
    let reconciliation = installation.command(&["reconcile", "--now", "--open-gate", "--json"]).await;
    assert_eq!(reconciliation.expect_success().json()["verdict"], "repaired");
    for command in [
        &["refresh", "--projection", "birthday"][..],
        &["replay", "--projection", "birthday", "--from", "nothing", "--confirm", "birthday"],
        &["setup"],
        &["check"],
        &["reconcile", "verify"],
    ] {
        installation.command(command).await.expect_success();
    }
    installation.expect_equal().await;
    until("the daemon goes on", async || daemon.readiness().await.is_some_and(|(code, _)| code == 200)).await;
}
