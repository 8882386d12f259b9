//! A fault stops or delays only the task that has it, is shown by name everywhere, and leaves all others running.

use anabranch_demo::SHOW_BINLOG_END;
use anabranch_schemas::envelope::Envelope;
use anabranch_schemas::lsn::Lsn;
use anabranch_tests::{Daemon, Installation, Plan, TestDatabase, until};
use mysql_async::Row;

use crate::STANDARD;

pub async fn insert(installation: &Installation<'_>, server: &str, table: &str, user: u64) {
    let sql =
        format!("INSERT INTO {table} (user_id, user_name, birthday) VALUES ({user}, 'n', '1990-01-01')");
    installation.execute(server, sql).await;
}

/// Waits for a user in a derived table; other sources may be stopped, so draining is no option.
pub async fn until_derived(installation: &Installation<'_>, user: u64) {
    until(&format!("user {user} is derived"), async || is_derived(installation, user).await).await;
}

/// Whether a derived table has the user.
pub async fn is_derived(installation: &Installation<'_>, user: u64) -> bool {
    let sql = format!(
        "SELECT COUNT(*) FROM (SELECT user_id FROM birthday_00.birthday_0101) AS t WHERE user_id = {user}"
    );
    let mut target = installation.admin("target").await;
    target.first::<u64>("look for a user", sql).await.unwrap() == Some(1)
}

/// Expects `source-a` alone to be stopped with this code, which is reported everywhere. Returns the fault.
pub async fn expect_stopped(
    installation: &Installation<'_>,
    daemon: &Daemon,
    code: &str,
    subject: &str,
) -> String {
    let fault = expect_down(installation, daemon, ("stopped", 3.0), code, subject).await;
    assert!(fault.contains("anabranch restart reader/source-a"), "{fault}");
    let labels = ["task=\"reader/source-a\"", &format!("code=\"{code}\"")];
    assert_eq!(daemon.metric("anabranch_faults_total", &labels).await, 1.0);
    fault
}

/// Expects `source-a` alone to be in this state with this code, which is reported everywhere. Returns the fault.
async fn expect_down(
    installation: &Installation<'_>,
    daemon: &Daemon,
    (state, number): (&str, f64),
    code: &str,
    subject: &str,
) -> String {
    let is_wanted = |view: &serde_json::Value| view["state"] == state && view["code"] == code;
    let source = daemon.until_view("sources", ("source", "source-a"), is_wanted).await;
    assert!(source["fault"].as_str().unwrap().contains(subject), "{source}");
    let (ready, reasons) = daemon.readiness().await.unwrap();
    assert!(ready == 503 && reasons.contains(code), "{reasons}");
    assert_eq!(daemon.metric("anabranch_task_state", &["task=\"reader/source-a\""]).await, number);
    let status = installation.command(&["status"]).await;
    assert_eq!(status.exit_code, 1, "{status:?}");
    assert!(status.stdout.contains(&format!("[{code}]")), "{status:?}");
    assert!(daemon.log().contains(code), "{}", daemon.log());

    // The other source continues, and so do the lanes.
    insert(installation, "source-b", "user_05.user_000", 100).await;
    until_derived(installation, 100).await;
    until("all other tasks run", async || {
        let Some(status) = daemon.status().await else { return false };
        let tasks = status["tasks"].as_array().unwrap().iter();
        tasks.filter(|task| task["state"] == "running").count() == 7
    })
    .await;
    source["fault"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_logged_as_a_statement_stops_its_source_only() {
    let mut installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    installation.stop_at_unseen_changes();
    let daemon = installation.run();
    daemon.until_loaded(&["source-a"]).await;
    insert(&installation, "source-a", "user_00.user_000", 1).await;
    until_derived(&installation, 1).await;
    let sql = "SET SESSION binlog_format = STATEMENT; UPDATE user_00.user_000 SET birthday = '1990-03-04'";
    installation.execute("source-a", sql).await;
    expect_stopped(&installation, &daemon, "binlog-statement", "source source-a").await;
    stops_again_without_a_write(&installation, &daemon, "binlog-statement").await;
    assert!(!daemon.log().contains("1990-03-04"), "a row value of the statement is in the log");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_captured_column_stops_its_source_only() {
    let mut installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    installation.stop_at_unseen_changes();
    let mut daemon = installation.run();
    daemon.until_loaded(&["source-a"]).await;
    insert(&installation, "source-a", "user_00.user_000", 1).await;
    until_derived(&installation, 1).await;
    installation.execute("source-a", "ALTER TABLE user_03.user_000 DROP COLUMN birthday").await;
    installation
        .execute("source-a", "INSERT INTO user_03.user_000 (user_id, user_name) VALUES (5, 'x')")
        .await;
    // The event names the fault first; the pre-flight of another attempt names it too, and waits for the column.
    expect_stopped(&installation, &daemon, "source-schema-changed", "user_03.user_000").await;
    daemon.hang_up();
    let is_reported =
        |view: &serde_json::Value| view["state"] == "retrying" && view["code"] == "source-column-missing";
    daemon.until_view("sources", ("source", "source-a"), is_reported).await;
    // The daemon ends by itself when every task of a role is stopped; here others run, so SIGTERM ends it in order.
    assert_eq!(daemon.terminate().and_then(|status| status.code()), Some(0), "{}", daemon.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purged_binlog_holds_up_its_source_only() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let mut daemon = installation.run();
    daemon.until_loaded(&["source-a"]).await;
    insert(&installation, "source-a", "user_00.user_000", 1).await;
    until_derived(&installation, 1).await;
    daemon.kill();
    insert(&installation, "source-a", "user_00.user_000", 2).await;
    let mut admin = installation.admin("source-a").await;
    admin.execute("begin a new binlog", "FLUSH BINARY LOGS").await.unwrap();
    let newest = admin.first::<Row>("find the newest", SHOW_BINLOG_END).await.unwrap().unwrap();
    let newest: String = newest.get(0).unwrap();
    // The server keeps files in use by a reader, and the killed daemon's connection may end a moment later.
    until("the old binlogs are purged", async || {
        admin.execute("purge", format!("PURGE BINARY LOGS TO '{newest}'")).await.unwrap();
        admin.rows::<Row>("list", "SHOW BINARY LOGS").await.unwrap().len() == 1
    })
    .await;
    installation.free_leases().await;
    let daemon = installation.run();
    expect_down(&installation, &daemon, ("retrying", 2.0), "binlog-purged", "source source-a").await;
}

/// A GTID of the server itself that it has not reached.
async fn start_that_nobody_has(installation: &Installation<'_>, server: &str) -> String {
    let mut admin = installation.admin(server).await;
    let ids = "SELECT /*M! CONCAT(@@gtid_domain_id, '-', @@server_id, '-987654321') */ \
               /*!80400 CONCAT(@@server_uuid, ':987654321') */";
    admin.first("make a GTID", ids).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_behind_gtids_that_the_server_does_not_have_stops_its_source_only() {
    let mut installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let start = start_that_nobody_has(&installation, "source-a").await;
    let text = installation.configuration_text();
    let of_a = "name = \"source-a\"\n";
    let text = text.replacen(of_a, &format!("{of_a}start = \"{start}\"\n"), 1);
    assert!(text.contains(&start));
    installation.write_configuration_text(&text);
    let daemon = installation.run();
    expect_stopped(&installation, &daemon, "binlog-gtid-unknown", "source source-a").await;
    stops_again_without_a_write(&installation, &daemon, "binlog-gtid-unknown").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_whose_tasks_have_all_stopped_ends_with_their_faults() {
    let mut installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let mut text = installation.configuration_text();
    for source in ["source-a", "source-b"] {
        let start = start_that_nobody_has(&installation, source).await;
        let named = format!("name = \"{source}\"\n");
        text = text.replacen(&named, &format!("{named}start = \"{start}\"\n"), 1);
    }
    installation.write_configuration_text(&text);
    let mut daemon = installation.run_with(&["--role", "reader"], &[]);
    let status = daemon.wait().unwrap();
    assert_eq!(status.code(), Some(1), "{}", daemon.log());
    let log = daemon.log();
    for source in ["source-a", "source-b"] {
        assert!(log.contains(&format!("error: [binlog-gtid-unknown] source {source}")), "{log}");
    }
}

/// A stopped reader that is restarted finds the same fault before it writes anything.
async fn stops_again_without_a_write(installation: &Installation<'_>, daemon: &Daemon, code: &str) {
    let before = stored_position(installation).await;
    let labels = ["task=\"reader/source-a\"", &format!("code=\"{code}\"")];
    for (arguments, faults) in [(&["restart", "reader/source-a"][..], 2.0), (&["restart", "--all"], 3.0)] {
        installation.command(arguments).await.expect_success();
        until("the restarted reader stops again", async || {
            daemon.metric("anabranch_faults_total", &labels).await == faults
        })
        .await;
        daemon.until_view("sources", ("source", "source-a"), |view| view["state"] == "stopped").await;
    }
    assert_eq!(stored_position(installation).await, before);
    let unknown = installation.command(&["restart", "reader/nobody"]).await;
    assert!(unknown.exit_code == 2 && unknown.stderr.contains("reader/source-b"), "{unknown:?}");
}

/// Position of the last message in the stream of `source-a`, if it has one; the status may be a second older.
async fn stored_position(installation: &Installation<'_>) -> Option<Lsn> {
    let stream = format!("{}_source-a", installation.configuration.name);
    let mut stream = installation.jetstream().await.get_stream(stream).await.unwrap();
    let state = stream.info().await.unwrap().state.clone();
    if state.messages == 0 {
        return None;
    }
    let message = stream.get_raw_message(state.last_sequence).await.unwrap();
    let header = |name: &str| message.headers.get(name).map(|value| value.as_str());
    Some(Envelope::from_headers(header).unwrap().position)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_a_server_refuses_for_a_while_is_waited_for() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let daemon = installation.run();
    insert(&installation, "source-a", "user_00.user_000", 1).await;
    until_derived(&installation, 1).await;
    let user = installation.server("source-a").user();
    let accounts =
        format!("SELECT CONCAT('`', user, '`@`', host, '`') FROM mysql.user WHERE user = '{user}'");
    let mut admin = installation.admin("source-a").await;
    let account: String = admin.first("find the account", accounts).await.unwrap().unwrap();
    installation.execute("source-a", format!("ALTER USER {account} IDENTIFIED BY 'another'")).await;
    let open = format!("SELECT id FROM information_schema.processlist WHERE user = '{user}'");
    for id in admin.rows::<u64>("list connections", open).await.unwrap() {
        // The connection may have ended by itself.
        let _ = admin.execute("end a connection", format!("KILL {id}")).await;
    }
    // The fault was met by several attempts.
    let labels = ["task=\"reader/source-a\"", "code=\"source-access-denied\""];
    until("the password is refused some times", async || {
        daemon.metric("anabranch_faults_total", &labels).await >= 4.0
    })
    .await;
    expect_down(&installation, &daemon, ("retrying", 2.0), "source-access-denied", "source source-a").await;
    let password = installation.server("source-a").password().to_owned();
    installation.execute("source-a", format!("ALTER USER {account} IDENTIFIED BY '{password}'")).await;
    insert(&installation, "source-a", "user_00.user_000", 2).await;
    until_derived(&installation, 2).await;
    daemon.until_ready().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_is_read_only_for_a_while_is_tried_ever_more_slowly_and_used_again() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let daemon = installation.run();
    insert(&installation, "source-a", "user_00.user_000", 1).await;
    until_derived(&installation, 1).await;
    installation.execute("target", "SET GLOBAL read_only = ON").await;
    insert(&installation, "source-a", "user_00.user_000", 2).await;
    let task = "lane/birthday/target/source-a/0";
    let down_for = |seconds: f64| {
        move |view: &serde_json::Value| {
            view["code"] == "target-read-only"
                && view["down_seconds"].as_f64().is_some_and(|down| down > seconds)
        }
    };
    daemon.until_view("tasks", ("task", task), down_for(20.0)).await;
    let faults = async || {
        let labels = [format!("task=\"{task}\""), "code=\"target-read-only\"".to_owned()];
        daemon.metric("anabranch_faults_total", &labels.each_ref().map(String::as_str)).await
    };
    // Pauses double from 0.1 s.
    let tried = faults().await;
    assert!((3.0..=10.0).contains(&tried), "{tried} attempts in 20 s");
    let log = daemon.log();
    let lines = log.lines().filter(|line| line.contains("[target-read-only]") && line.contains(task));
    assert_eq!(lines.count(), 1, "{log}");
    installation.execute("target", "SET GLOBAL read_only = OFF").await;
    until_derived(&installation, 2).await;
    daemon.until_ready().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_revoked_privilege_is_missed_by_name_and_the_rest_goes_on() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let monitor = match TestDatabase::chosen() {
        TestDatabase::MySql => "REPLICATION CLIENT",
        TestDatabase::MariaDb | TestDatabase::MariaDb11 => "BINLOG MONITOR",
    };
    let [revoke_monitor, grant_monitor] =
        ["REVOKE {} ON *.* FROM", "GRANT {} ON *.* TO"].map(|statement| statement.replace("{}", monitor));
    for (server, thing, code, names, revoke, grant) in [
        (
            "source-a",
            "source source-a",
            "source-grant-missing",
            "REPLICATION SLAVE",
            "REVOKE REPLICATION SLAVE ON *.* FROM",
            "GRANT REPLICATION SLAVE ON *.* TO",
        ),
        (
            "source-a",
            "source source-a",
            "source-grant-missing",
            monitor,
            revoke_monitor.as_str(),
            grant_monitor.as_str(),
        ),
        (
            "target",
            "target target",
            "target-grant-missing",
            "DELETE",
            "REVOKE DELETE ON `birthday\\_%`.* FROM",
            "GRANT DELETE ON `birthday\\_%`.* TO",
        ),
    ] {
        let users = format!(
            "SELECT CONCAT('`', user, '`@`', host, '`') FROM mysql.user WHERE user = '{}'",
            installation.server(server).user()
        );
        let mut admin = installation.admin(server).await;
        let user: String = admin.first("find the account", users).await.unwrap().unwrap();
        installation.execute(server, format!("{revoke} {user}")).await;
        let check = installation.command(&["check"]).await;
        installation.execute(server, format!("{grant} {user}")).await;
        assert_eq!(check.exit_code, 1, "{check:?}");
        let line = check.stderr.lines().find(|line| line.contains(&format!("[{code}]"))).unwrap_or_default();
        assert!(line.contains(names) && line.contains("GRANT "), "{revoke}: {check:?}");
        assert!(!check.stdout.contains(&format!("ok {thing}\n")), "{check:?}");
        let others = check.stdout.lines().filter(|line| line.starts_with("ok ")).count();
        assert_eq!(others, 5, "configuration, log, folder and the two other servers: {check:?}");
    }
    installation.command(&["check"]).await.expect_success();
}
