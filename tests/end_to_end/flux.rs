//! Identifiers of payment documents, through the binary: two daemons and the command, killed at each step.

use std::collections::BTreeSet;

use anabranch_pipeline::failpoints;
use anabranch_schemas::flux::id::{FluxId, Month, Side};
use anabranch_tests::{Daemon, Installation, Plan, TestDatabase, Turn, until};
use serde_json::{Value as Json, json};

use crate::reconciliations::{reconcile, store};
use crate::relations::{TOKEN, with_sites};
use crate::{STANDARD, payments};

async fn installation() -> Installation<'static> {
    with_counters(STANDARD.turn().await).await
}

/// An installation with the counters on the first target, as the documented accounts of its kind of server use them.
async fn with_counters(turn: Turn<'static>) -> Installation<'static> {
    const OF_MARIADB: &str = include_str!("../../deploy/grants/mariadb-flux-sequence.sql");
    const OF_MYSQL: &str = include_str!("../../deploy/grants/mysql-flux-sequence.sql");
    let mut installation = Installation::prepare(turn, &Plan::small()).await;
    let server = installation.server("target");
    let mut target = installation.admin("target").await;
    let version = target.first::<String>("ask for the version", "SELECT VERSION()").await.unwrap().unwrap();
    let grants = if version.contains("MariaDB") { OF_MARIADB } else { OF_MYSQL };
    let lines: Vec<&str> = grants.lines().filter(|line| !line.starts_with("--")).collect();
    let grants = lines.join("\n").replace("{client_host}", "127.0.0.1");
    let password = |grants: String, name: &str| grants.replace(name, server.password());
    let grants = password(password(grants, "{setup_password}"), "{sequence_password}");
    installation.execute("target", grants).await;
    let text = installation.configuration_text_with_http(&format!("tokens = [\"{TOKEN}\"]"));
    let account = |user: &str| format!("mysql://{user}:${{SEQUENCE_PASSWORD}}@127.0.0.1:{}", server.port());
    let flux = format!(
        "\n[flux]\nregion = \"singapore\"\nsequence_url = \"{}\"\nsequence_setup_url = \"{}\"\nsequence_ca_file = \"{}\"\n",
        account("anabranch_sequence"),
        account("anabranch_sequence_setup"),
        installation.stack().ca_file().display()
    );
    let variable = ("SEQUENCE_PASSWORD".to_owned(), server.password().to_owned());
    installation.environment_mut().push(variable);
    installation.write_configuration_text(&(text + &flux));
    installation.command(&["setup"]).await.expect_success();
    installation
}

/// Configures another port, for a second daemon beside the first.
fn use_another_port(installation: &mut Installation<'_>) {
    let file = std::fs::read_to_string(installation.configuration_file()).unwrap();
    let first = format!(":{}\"", installation.configuration.http_port);
    installation.use_another_http_port();
    let port = format!(":{}\"", installation.configuration.http_port);
    installation.write_configuration_text(&file.replace(&first, &port));
}

async fn post(daemon: &Daemon, body: &Json, key: Option<&str>) -> (u16, Json) {
    // The token is the end of its header, so another header may follow.
    let token = key.map_or(TOKEN.to_owned(), |key| format!("{TOKEN}\r\nIdempotency-Key: {key}"));
    daemon.ask("POST", "/v1/flux/identifiers", Some(&token), &body.to_string()).await
}

pub async fn given(daemon: &Daemon, body: &Json, key: Option<&str>) -> Vec<FluxId> {
    let (status, answer) = post(daemon, body, key).await;
    assert_eq!(status, 200, "{answer}");
    let identifiers = answer["identifiers"].as_array().unwrap().iter();
    identifiers.map(|id| id.as_str().unwrap().parse().unwrap()).collect()
}

pub fn recharge(count: u32) -> Json {
    json!({ "kind": "recharge", "partition": 7, "business": 1, "count": count })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_documents_gets_identifiers_that_say_where_each_is_stored() {
    let installation = installation().await;
    let daemon = installation.run_with(&["--role", "api"], &[]);
    daemon.until_ready().await;
    let body =
        json!({ "kind": "recharge", "partition": 7, "business": 1, "fail_over": true, "reserved": 24 });
    let recharge = given(&daemon, &body, None).await[0];
    let parts = recharge.parts();
    assert_eq!(
        (parts.side, parts.partition, parts.reserved, parts.region.digit()),
        (Side::FailOver, 7, 24, 1)
    );
    assert_eq!(parts.month, Month::of_date(parts.date));
    let refund = json!({ "kind": "refund", "parent": recharge.to_string(), "business": 3 });
    let refund = given(&daemon, &refund, None).await[0];
    assert_eq!((refund.parts().side, refund.parts().month), (Side::FailOver, Month::No));
    let explained = installation
        .command(&[
            "flux",
            "explain",
            &refund.to_string(),
            "--kind",
            "refund",
            "--parent",
            &recharge.to_string(),
        ])
        .await;
    assert!(explained.expect_success().stdout.contains("fail-over"));

    // The command takes numbers from the same counters.
    let parent = recharge.to_string();
    let next = ["flux", "next", "capture", "--business", "2", "--parent", &parent, "--count", "3"];
    let command = installation.command(&next).await.expect_success();
    let captures: BTreeSet<String> =
        command.stdout.lines().map(|id| id.parse::<FluxId>().unwrap().to_string()).collect();
    assert_eq!(captures.len(), 3);
    let once = [&next[..], &["--key", "capture 7", "--json"]].concat();
    let first = installation.command(&once).await.expect_success().json();
    assert_eq!(installation.command(&once).await.expect_success().json(), first);
    let by_daemon = json!({ "kind": "capture", "business": 2, "parent": parent, "count": 3 });
    assert_eq!(post(&daemon, &by_daemon, Some("capture 7")).await.1, first, "the key is known to all");

    refusals(&daemon, &parent).await;
    installation.command(&["check"]).await.expect_success();
    let status =
        installation.command(&["flux", "sequence", "status", "--json"]).await.expect_success().json();
    assert_eq!(status["server"], status["accepted_server"]);
    let counters = status["counters"].as_array().unwrap();
    assert!(counters.iter().all(|counter| counter["partition"] == 7 && counter["side"] == 1), "{status}");
    used_up(&installation, &daemon).await;
    assert!(daemon.metric("anabranch_flux_identifiers_total", &[]).await >= 2.0);
    assert!(!daemon.log().contains(installation.server("target").password()), "the password is in the log");
}

/// A counter near its end refuses an order of more numbers than it has, and then gives out its last ones.
async fn used_up(installation: &Installation<'_>, daemon: &Daemon) {
    let next = ["flux", "next", "recharge", "--partition", "8", "--business", "1"];
    let known = installation.command(&next).await.expect_success().stdout;
    let known: FluxId = known.trim().parse().unwrap();
    let date = known.parts().date;
    let near_its_end = format!(
        "UPDATE flux_sequence.flux_sequence_08 SET next = 99999995 \
         WHERE region = 1 AND side = 0 AND date = '{date}'"
    );
    installation.execute("target", near_its_end).await;
    let order = |count: u32| {
        let date = date.to_string();
        json!({ "kind": "recharge", "partition": 8, "business": 1, "count": count, "date": date })
    };
    let expect_refusal = async |count: u32, reported: &str| {
        let (status, answer) = post(daemon, &order(count), None).await;
        assert_eq!((status, answer["code"].as_str()), (507, Some("flux-sequence-exhausted")), "{answer}");
        assert!(answer["detail"].as_str().unwrap().contains(reported), "{reported}: {answer}");
        assert!(answer["remedy"].as_str().unwrap().contains("use another date"), "{answer}");
    };
    expect_refusal(10, "5 of its 100000000 numbers are left, and 10 are wanted").await;
    let last = given(daemon, &order(5), None).await;
    let numbers: Vec<u32> = last.iter().map(|id| id.parts().sequence).collect();
    assert_eq!(numbers, [99_999_995, 99_999_996, 99_999_997, 99_999_998, 99_999_999]);
    expect_refusal(1, "0 of its 100000000 numbers are left, and 1 are wanted").await;
    assert!(daemon.metric("anabranch_flux_refusals_total", &["flux-sequence-exhausted"]).await >= 2.0);
}

/// Each wrong request is refused with the expected values.
async fn refusals(daemon: &Daemon, parent: &str) {
    for (body, status, code, reported) in [
        (json!({ "kind": "recharge", "business": 1 }), 422, "flux-parent-unfit", "`partition` is missing"),
        (json!({ "kind": "capture", "business": 1 }), 422, "flux-parent-unfit", "its recharge, is missing"),
        (
            json!({ "kind": "capture", "business": 1, "parent": "1" }),
            422,
            "flux-id-malformed",
            "it has 1 digits",
        ),
        (
            json!({ "kind": "capture", "business": 1, "parent": parent, "partition": 7 }),
            422,
            "flux-parent-unfit",
            "`partition` was given beside `parent`",
        ),
        (
            json!({ "kind": "transfer", "business": 1 }),
            422,
            "body-not-understood",
            "one of recharge, capture",
        ),
        (
            json!({ "kind": "recharge", "partition": 100, "business": 1 }),
            422,
            "body-not-understood",
            "0 to 99",
        ),
        (json!({ "kind": "recharge", "partition": 7 }), 422, "body-not-understood", "`business` is missing"),
        (
            json!({ "kind": "recharge", "partition": 7, "business": 1, "date": "2016-06-06" }),
            422,
            "flux-date-refused",
            "2016-06-06; needed: ",
        ),
        (
            json!({ "kind": "recharge", "partition": 7, "business": 1, "date": "2016-02-31" }),
            422,
            "body-not-understood",
            "a day such as",
        ),
        (
            json!({ "kind": "recharge", "partition": 7, "business": 1, "version": 3 }),
            422,
            "flux-id-malformed",
            "digit 9 (data version) is 3",
        ),
        (
            json!({ "kind": "recharge", "partition": 7, "business": 1, "fail_over": 1 }),
            422,
            "body-not-understood",
            "true or false is needed",
        ),
        (recharge(10_001), 422, "count-out-of-range", "1 to 10000"),
        (recharge(0), 422, "count-out-of-range", "1 to 10000"),
    ] {
        let (found, answer) = post(daemon, &body, None).await;
        assert_eq!((found, answer["code"].as_str()), (status, Some(code)), "{answer}");
        assert!(answer["detail"].as_str().unwrap().contains(reported), "{reported}: {answer}");
        assert!(answer["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty()), "{answer}");
    }
    let reused = post(daemon, &recharge(1), Some("capture 7")).await;
    assert_eq!((reused.0, reused.1["code"].as_str()), (422, Some("key-reused")), "{reused:?}");
}

/// Every process but one is killed before or after each step, by requests with and without a key.
#[tokio::test(flavor = "multi_thread")]
async fn no_identifier_is_given_out_twice_by_daemons_that_are_killed_at_any_step() {
    let mut installation = installation().await;
    let (mut all, mut asked) = (BTreeSet::new(), 0);
    let mut keep = |identifiers: Vec<FluxId>| {
        asked += identifiers.len();
        all.extend(identifiers.iter().map(ToString::to_string));
        assert_eq!(all.len(), asked, "one was given out twice");
    };
    let mut beside = installation.run_with(&["--role", "api"], &[]);
    beside.until_ready().await;
    use_another_port(&mut installation);
    for (place, name) in failpoints::SEQUENCING.iter().enumerate() {
        let mut daemon = installation.run_with(&["--role", "api"], &[("ANABRANCH_FAILPOINT", name)]);
        daemon.until_ready().await;
        let (key, ten) = (format!("payment {place}"), recharge(10));
        tokio::select! {
            _ = post(&daemon, &ten, Some(&key)) => panic!("answered in front of {name}"),
            () = daemon.until_failpoint(name) => {}
        }
        daemon.kill();
        let after = installation.run_with(&["--role", "api"], &[]);
        after.until_ready().await;
        keep(given(&after, &recharge(1_000), None).await);
        keep(given(&beside, &recharge(1_000), None).await);
        // The request is repeated, to either daemon.
        let again = given(&after, &recharge(10), Some(&key)).await;
        assert_eq!(given(&beside, &recharge(10), Some(&key)).await, again, "{name}");
        keep(again);
    }
    let both = |daemon| async move { given(daemon, &recharge(10_000), None).await };
    let after = installation.run_with(&["--role", "api"], &[]);
    after.until_ready().await;
    for _ in 0..3 {
        let (one, two) = tokio::join!(both(&beside), both(&after));
        keep(one);
        keep(two);
    }
    beside.kill();
}

/// A server that was restored from an older copy, and another one in its place.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_went_back_is_refused_by_name_until_an_operator_skips_numbers() {
    let installation = installation().await;
    let mut daemon = installation.run_with(&["--role", "api"], &[]);
    daemon.until_ready().await;
    went_back_and_raised(&installation, &daemon).await;
    // The name of a MySQL server is its uuid, which no statement changes.
    if TestDatabase::chosen() != TestDatabase::MySql {
        another_server_is_refused(&installation).await;
    }
    daemon.kill();
    let without =
        installation.command(&["flux", "next", "recharge", "--partition", "3", "--business", "1"]).await;
    assert_eq!(without.expect_success().stdout.trim().len(), 31);
}

/// The first thousand numbers are given out, and then their counter has an older row.
pub async fn went_back_and_raised(installation: &Installation<'_>, daemon: &Daemon) {
    let first = given(daemon, &recharge(1_000), None).await;
    installation.execute("target", "UPDATE flux_sequence.flux_sequence_07 SET next = 0").await;
    let (status, answer) = post(daemon, &recharge(1), None).await;
    assert_eq!((status, answer["code"].as_str()), (500, Some("flux-sequence-lagging")), "{answer}");
    assert!(
        answer["detail"].as_str().unwrap().contains("its next number is 0, and numbers up to 1000"),
        "{answer}"
    );
    assert!(answer["remedy"].as_str().unwrap().contains("flux sequence raise"), "{answer}");
    assert!(daemon.metric("anabranch_flux_refusals_total", &["flux-sequence-lagging"]).await >= 1.0);
    for command in [&["check"][..], &["flux", "sequence", "status"]] {
        let refused = installation.command(command).await;
        assert_eq!(refused.exit_code, 1, "{refused:?}");
        let reported = format!("{}{}", refused.stdout, refused.stderr);
        assert!(
            reported.contains("[flux-sequence-lagging]") && reported.contains("partition 07"),
            "{reported}"
        );
    }

    // A raise that is killed is repeated.
    for name in failpoints::RAISING {
        let command = ["flux", "sequence", "raise", "--numbers", "5000"];
        let mut raise = installation.start(&command, &[("ANABRANCH_FAILPOINT", name)]);
        raise.until_failpoint(name).await;
        raise.kill();
    }
    let raised =
        installation.command(&["flux", "sequence", "raise", "--numbers", "5000"]).await.expect_success();
    assert!(raised.stdout.contains("skip 5000 numbers"), "{raised:?}");
    let after = given(daemon, &recharge(10), None).await;
    assert!(after[0].parts().sequence >= 6_000, "{}", after[0]);
    assert!(after.iter().all(|id| !first.contains(id)));
}

async fn another_server_is_refused(installation: &Installation<'_>) {
    installation.execute("target", "SET GLOBAL server_id = @@GLOBAL.server_id + 100").await;
    let other =
        installation.command(&["flux", "next", "recharge", "--partition", "3", "--business", "1"]).await;
    installation.execute("target", "SET GLOBAL server_id = @@GLOBAL.server_id - 100").await;
    assert_eq!(other.exit_code, 1, "{other:?}");
    assert!(other.stderr.contains("[flux-server-changed]") && other.stderr.contains("mariadb:"), "{other:?}");
}

/// Returns the next number of the counter that an identifier came from. The counter is behind no number that is known.
async fn next_number(installation: &Installation<'_>, of: FluxId) -> u64 {
    let status =
        installation.command(&["flux", "sequence", "status", "--json"]).await.expect_success().json();
    let (date, partition) = (of.parts().date.to_string(), of.parts().partition);
    let mut counters = status["counters"].as_array().unwrap().iter();
    let of_day = counters
        .find(|counter| counter["date"] == date && counter["partition"] == partition && counter["side"] == 0);
    of_day.unwrap_or_else(|| panic!("{status}"))["next"].as_u64().unwrap()
}

/// The daemon and the command give out identifiers after each kill, and again after the raise is repeated.
#[tokio::test(flavor = "multi_thread")]
async fn a_raise_that_is_killed_at_any_step_and_repeated_skips_numbers_and_repeats_none() {
    let installation = installation().await;
    let mut daemon = installation.run_with(&["--role", "api"], &[]);
    daemon.until_ready().await;
    let (mut all, mut asked) = (BTreeSet::new(), 0);
    let mut keep = |identifiers: &[FluxId]| {
        asked += identifiers.len();
        all.extend(identifiers.iter().map(ToString::to_string));
        assert_eq!(all.len(), asked, "one was given out twice");
    };
    // The first table that a raise commits has the counters of this partition.
    let order = json!({ "kind": "recharge", "partition": 0, "business": 1, "count": 1_000 });
    let next = ["flux", "next", "recharge", "--partition", "0", "--business", "1", "--count", "10"];
    let by_command = async || {
        let lines = installation.command(&next).await.expect_success().stdout;
        lines.lines().map(|id| id.parse().unwrap()).collect::<Vec<FluxId>>()
    };
    let raise = ["flux", "sequence", "raise", "--numbers", "5000"];
    for name in failpoints::RAISING {
        let given_before = given(&daemon, &order, None).await;
        keep(&given_before);
        let before = next_number(&installation, given_before[0]).await;
        let mut killed = installation.start(&raise, &[("ANABRANCH_FAILPOINT", name)]);
        killed.until_failpoint(name).await;
        killed.kill();
        let after_kill = next_number(&installation, given_before[0]).await;
        assert!(after_kill >= before, "{name}: {after_kill}");
        keep(&given(&daemon, &order, None).await);
        keep(&by_command().await);
        installation.command(&raise).await.expect_success();
        let raised = next_number(&installation, given_before[0]).await;
        assert!(raised >= after_kill + 5_000, "{name}: {raised}");
        let above = by_command().await;
        assert!(above.iter().all(|id| u64::from(id.parts().sequence) >= raised), "{name}: {above:?}");
        keep(&above);
        keep(&given(&daemon, &order, None).await);
    }
    daemon.kill();
}

/// A captured row shows a number that the counter never leased, as after a restore of counters and registers together.
#[tokio::test(flavor = "multi_thread")]
async fn a_counter_below_a_captured_row_is_refused_by_name_until_an_operator_skips_numbers() {
    let (installation, daemon) = captured(STANDARD.turn().await).await;
    let table = below_a_captured_row(&installation, &daemon).await;
    malformed_identifiers_are_listed(&installation, &table).await;
}

/// An installation with counters, the tables of the user partition 07 and the index, and the daemon that captures them.
pub async fn captured(turn: Turn<'static>) -> (Installation<'static>, Daemon) {
    let mut installation = with_counters(turn).await;
    let tables: Vec<String> = (0..12).chain([99]).map(|month| format!("composite_07_{month:02}")).collect();
    let tables: Vec<&str> = tables.iter().map(String::as_str).collect();
    payments::create_tables(&installation, &tables).await;
    let text = with_sites(std::fs::read_to_string(installation.configuration_file()).unwrap())
        + r#"
[flux.kinds]
"01" = "recharge"
"02" = "capture"
"03" = "refund"
[[entities]]
entity = "flux"
level = "composite"
tables = "flux_00_{db}.composite_{partition:02}_{month:02}"
columns = { amount = "amount", created = "created" }
[[projections]]
name = "relations"
kind = "flux_relations"
targets = ["target"]
"#;
    payments::set_up(&mut installation, &text).await;
    let daemon = installation.run();
    daemon.until_ready().await;
    daemon.until_loaded(&["source-a", "source-b"]).await;
    (installation, daemon)
}

/// The table of a document of the user partition 07, without its database.
pub fn table_of(document: FluxId) -> String {
    format!("composite_07_{:02}", document.parts().month.digits())
}

/// Writes a row with a number that no lease gave out, and raises the counter; returns the table with its database.
pub async fn below_a_captured_row(installation: &Installation<'_>, daemon: &Daemon) -> String {
    let known = given(daemon, &recharge(1), None).await[0];
    let table = format!("flux_00_0.{}", table_of(known));
    let insert = async |id: FluxId| {
        installation.execute("source-a", format!("INSERT INTO {table} (id) VALUES ('{id}')")).await;
    };
    insert(known).await;
    let leased = next_number(installation, known).await;

    insert(known.with_sequence(50_000_000).unwrap()).await;
    until("the counter is below the captured row", async || {
        let status = installation.command(&["flux", "sequence", "status"]).await;
        let reported = format!("{}{}", status.stdout, status.stderr);
        status.exit_code == 1
            && reported.contains("[flux-sequence-lagging]")
            && reported.contains("numbers up to 50000001")
    })
    .await;
    // The rest of the range that the daemon leased before is not enough for this order.
    let (status, answer) = post(daemon, &recharge(5_000), None).await;
    assert_eq!((status, answer["code"].as_str()), (500, Some("flux-sequence-lagging")), "{answer}");
    installation.command(&["flux", "sequence", "raise", "--numbers", "10"]).await.expect_success();
    let after = given(daemon, &recharge(5_000), None).await;
    let mut numbers = after.iter().map(|id| u64::from(id.parts().sequence));
    assert!(numbers.all(|number| number < leased || number > 50_000_000), "{leased}: {after:?}");
    installation.command(&["flux", "sequence", "status"]).await.expect_success();
    table
}

/// A reconciliation lists rows whose identifier names no table, and is clean all the same.
async fn malformed_identifiers_are_listed(installation: &Installation<'_>, table: &str) {
    let sql = format!("INSERT INTO {table} (id) VALUES ('31'), ('no \"id\"')");
    installation.execute("source-a", sql).await;
    let (ended, report) = reconcile(installation, &["--store", "relations"]).await;
    assert_eq!((ended.exit_code, &report["verdict"]), (0, &json!("clean")), "{report}");
    let placement = &store(&report, "relations")["placement"];
    assert_eq!((&placement["rows"], &placement["undecided"]), (&json!(4), &json!(2)), "{placement}");
    let escaped = "no \\\"id\\\"";
    let expected = [
        json!({ "table": table, "id": "31", "what": "it has 2 digits; expected: 31" }),
        json!({
            "table": table,
            "id": escaped,
            "what": "character 1, in digits 1 to 8 (date), is `n`; expected: a digit from 0 to 9"
        }),
    ];
    assert_eq!(placement["malformed"], json!(expected), "{placement}");
    let shown = installation.command(&["reconcile", "show"]).await.expect_success().stdout;
    let line = format!("document \"{escaped}\" of {table} has a malformed identifier: character 1");
    assert!(shown.contains(&line), "{shown}");
    let explained = installation.command(&["flux", "explain", "31"]).await;
    assert!(explained.stderr.contains("it has 2 digits"), "{explained:?}");
}
