//! Operators change something over HTTP, as commands do, and the table `operations` says who did it.

use anabranch_tests::{Daemon, Installation, Plan, until, until_some};
use serde_json::{Value as Json, json};

use crate::STANDARD;
use crate::faults::{insert, until_derived};

const APPLICATION: &str = "token-of-an-application";
const ANN: &str = "token-of-ann-0123";
const TABLE: &str = "user_00.user_000";
const RESTART: [&str; 2] = ["restart", "--all"];

async fn installation() -> Installation<'static> {
    let mut installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let with_token = installation.configuration_text_with_http(&format!("tokens = [\"{APPLICATION}\"]"));
    let operator = format!("\n[[http.operators]]\nname = \"ann\"\ntoken = \"{ANN}\"\n");
    installation.write_configuration_text(&(with_token + &operator));
    installation
}

async fn ask(daemon: &Daemon, action: &Json, is_rehearsal: bool) -> (u16, Json) {
    let mut body = action.clone();
    body["dry_run"] = is_rehearsal.into();
    daemon.ask("POST", "/v1/operations", Some(ANN), &body.to_string()).await
}

/// Rehearses an action and carries it out; returns the first sentence of each answer, and the operation's id.
async fn act(daemon: &Daemon, action: Json) -> ([String; 2], String) {
    let (status, rehearsed) = ask(daemon, &action, true).await;
    assert_eq!(status, 200, "{rehearsed}");
    assert!(rehearsed["dry_run"] == true && rehearsed["operation"].is_null(), "{rehearsed}");
    let (status, done) = ask(daemon, &action, false).await;
    assert_eq!(status, 200, "{done}");
    assert!(done["dry_run"] == false && done["is_recorded"] == true, "{done}");
    assert_eq!(done["command"], rehearsed["command"]);
    let line = |answer: &Json| answer["lines"][0].as_str().unwrap().to_owned();
    ([line(&rehearsed), line(&done)], done["operation"].as_str().unwrap().to_owned())
}

/// The rows of an operation as HTTP shows them, the oldest first.
async fn rows(daemon: &Daemon, operation: &str) -> Vec<Json> {
    let (status, page) = daemon.ask("GET", "/v1/operations", Some(ANN), "").await;
    assert_eq!(status, 200, "{page}");
    let rows = page["operations"].as_array().unwrap().iter().rev();
    rows.filter(|row| row["operation"] == operation).cloned().collect()
}

/// Expects the two rows of an operation of ann's: the state before it, and what was done.
async fn expect_rows(daemon: &Daemon, operation: &str, command: &str, (before, after): (&str, &str)) {
    let rows = rows(daemon, operation).await;
    let phases: Vec<&str> = rows.iter().map(|row| row["phase"].as_str().unwrap()).collect();
    assert_eq!(phases, ["begun", "done"], "{rows:?}");
    for row in &rows {
        assert_eq!((&row["who"], &row["via"]), (&Json::from("ann"), &Json::from("page")), "{row}");
        assert_eq!((&row["command"], &row["version"]), (&Json::from(command), &Json::from("0.1.0")), "{row}");
        assert!(row["host"].as_str().is_some_and(|host| !host.is_empty()), "{row}");
    }
    let holds = |text: &Json, part: &str| text.as_str().is_some_and(|text| text.contains(part));
    assert!(holds(&rows[0]["before"], before) && rows[0]["after"].is_null(), "{rows:?}");
    assert!(holds(&rows[1]["after"], after) && rows[1]["before"].is_null(), "{rows:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_rehearses_and_changes_and_each_change_has_its_rows() {
    let installation = installation().await;
    let daemon = installation.run();
    daemon.until_loaded(&["source-a", "source-b"]).await;
    insert(&installation, "source-a", TABLE, 1).await;
    until_derived(&installation, 1).await;

    let of_a =
        json!({"action": "pause", "projection": "birthday", "source": "source-a", "reason": "new disks"});
    let ([would, does], pause) = act(&daemon, of_a).await;
    let lanes = "birthday/target/source-a/0, birthday/target/source-a/1";
    assert_eq!(would, format!("would pause within seconds: {lanes}"));
    assert_eq!(does, format!("paused within seconds: {lanes}"));
    let command = "anabranch pause --projection birthday --source source-a --reason 'new disks'";
    expect_rows(&daemon, &pause, command, ("no lane paused", "paused within seconds")).await;
    let task = ("task", "lane/birthday/target/source-a/0");
    daemon.until_view("tasks", task, |view| view["state"] == "paused").await;
    let status = installation.command(&["status"]).await.expect_success();
    assert!(status.stdout.contains("by ann@") && status.stdout.contains(": new disks"), "{status:?}");

    let resume = json!({"action": "resume", "projection": "birthday", "source": null});
    let ([would, does], resume) = act(&daemon, resume).await;
    assert!(would.starts_with("would resume within seconds: birthday/target/source-a/0"), "{would}");
    assert!(does.starts_with("resumed within seconds: birthday/target/source-a/0"), "{does}");
    let before = "birthday/target/source-a/0 paused by ann@";
    expect_rows(&daemon, &resume, "anabranch resume --projection birthday", (before, "resumed")).await;

    let ([would, does], restart) =
        act(&daemon, json!({"action": "restart", "task": "reader/source-a"})).await;
    assert!(would.starts_with("task reader/source-a would be tried again"), "{would}");
    assert!(does.starts_with("task reader/source-a is tried again"), "{does}");
    let command = "anabranch restart reader/source-a";
    expect_rows(&daemon, &restart, command, ("request 0 is the newest", "request 1: task reader/source-a"))
        .await;
    until("the daemon hears of the restart", async || daemon.log().contains("a restart was asked for")).await;

    let refresh = json!({
        "action": "refresh", "projection": "birthday", "source": "source-a", "table": TABLE,
    });
    let ([would, does], refresh) = act(&daemon, refresh).await;
    assert!(would.contains("would refresh user_00.user_000") && does.contains("refreshes user_00"), "{does}");
    let command = "anabranch refresh --projection birthday --source source-a --table user_00.user_000";
    let before = "birthday/target/source-a/0 at ";
    let after = "asked for a refresh: birthday/target/source-a/0, birthday/target/source-a/1";
    expect_rows(&daemon, &refresh, command, (before, after)).await;
    daemon.until_loaded(&["source-a", "source-b"]).await;

    let ([would, does], letters) = act(&daemon, json!({"action": "retry-dead-letters"})).await;
    assert_eq!([would, does], ["there are no dead letters"; 2]);
    assert_eq!(rows(&daemon, &letters).await.len(), 2);
    installation.expect_equal().await;
    reconciles_in_the_background(&installation, &daemon).await;
}

async fn reconciles_in_the_background(installation: &Installation<'_>, daemon: &Daemon) {
    let action = json!({"action": "reconcile", "stores": ["birthday"], "mode": "report"});
    let ([would, does], operation) = act(daemon, action).await;
    assert_eq!(would, "the reconciliation compares birthday, and reports what differs");
    assert_eq!(would, does);
    until_some("the reconciliation has ended", async || {
        let rows = rows(daemon, &operation).await;
        rows.get(1).map(|row| row["phase"].clone())
    })
    .await;
    let command = "anabranch reconcile --now --store birthday --mode report";
    expect_rows(daemon, &operation, command, ("no reconciliation before", ": clean")).await;
    // Its signed report says who asked for what.
    let report = installation.command(&["reconcile", "show", "--json"]).await.expect_success().json();
    assert_eq!(report["command"], "reconcile --now --store birthday --mode report", "{report}");
    assert!(report["asked_by"].as_str().is_some_and(|asker| asker.starts_with("ann@")), "{report}");
    installation.command(&["reconcile", "verify"]).await.expect_success();
    let text = installation.command(&["reconcile", "show"]).await.expect_success().stdout;
    assert!(text.contains("asked for by ann@"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_no_operator_changes_nothing_and_a_rehearsal_leaves_no_row() {
    let installation = installation().await;
    let daemon = installation.run();
    daemon.until_ready().await;
    let body = r#"{"action": "pause", "projection": "birthday", "dry_run": false}"#;
    for (token, status, code) in [
        (Some(APPLICATION), 403, "operator-refused"),
        (Some("token-of-ann-0124"), 401, "token-refused"),
        (None, 401, "token-refused"),
    ] {
        for (method, body) in [("POST", body), ("GET", "")] {
            let refused = daemon.ask(method, "/v1/operations", token, body).await;
            assert_eq!((refused.0, refused.1["code"].as_str()), (status, Some(code)), "{refused:?}");
        }
    }
    let as_application = daemon.ask("POST", "/v1/uuids", Some(ANN), r#"{"count": 1}"#).await;
    assert_eq!(as_application.0, 401, "{as_application:?}");
    for (action, status, code) in [
        (json!({"action": "restart", "task": "reader/nobody"}), 422, "config-invalid"),
        (json!({"action": "pause", "projection": "birthdya"}), 422, "config-invalid"),
        (json!({"action": "reconcile", "stores": ["nothing"]}), 409, "reconcile-refused"),
        (json!({"action": "refresh", "projection": "birthday", "table": TABLE}), 409, "refresh-refused"),
        (json!({"action": "drop", "projection": "birthday"}), 422, "body-not-understood"),
    ] {
        for is_rehearsal in [true, false] {
            let refused = ask(&daemon, &action, is_rehearsal).await;
            assert_eq!(
                (refused.0, refused.1["code"].as_str()),
                (status, Some(code)),
                "{action}: {refused:?}"
            );
        }
    }
    let rehearsed = ask(&daemon, &json!({"action": "pause", "projection": "birthday"}), true).await;
    assert_eq!(rehearsed.0, 200, "{rehearsed:?}");
    for command in [
        &["restart", "--all", "--dry-run"][..],
        &["pause", "--projection", "birthday", "--dry-run"],
        &["resume", "--projection", "birthday", "--dry-run"],
        &["refresh", "--projection", "birthday", "--dry-run"],
        &["reconcile", "--now", "--dry-run"],
    ] {
        installation.command(command).await.expect_success();
    }
    let page = daemon.ask("GET", "/v1/operations", Some(ANN), "").await.1;
    assert_eq!(
        (page["operations"].as_array().map(Vec::len), &page["next"]),
        (Some(0), &Json::Null),
        "{page}"
    );
    let pauses = ask(&daemon, &json!({"action": "resume", "projection": "birthday"}), true).await.1;
    assert!(pauses["lines"][0].as_str().unwrap().starts_with("not paused: "), "{pauses}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_command_that_changes_something_leaves_rows_without_keys() {
    const KEY: &str = "471147114711";
    let installation = installation().await;
    let restarted = ["restart", "reader/source-b"];
    let of_key =
        ["refresh", "--projection", "birthday", "--source", "source-a", "--table", TABLE, "--key", KEY];
    let condition = format!("user_id >= {KEY}");
    let of_condition =
        ["refresh", "--projection", "birthday", "--source", "source-b", "--where", condition.as_str()];
    let replay = ["replay", "--projection", "birthday", "--source", "source-a", "--from", "earliest"];
    let pause = ["pause", "--projection", "birthday", "--reason", "it's late"];
    for (arguments, exit_code) in [
        (&restarted[..], 0),
        (&of_key, 0),
        (&of_condition, 0),
        // No reader has sent anything yet.
        (&replay, 1),
        (&pause, 0),
        (&["resume", "--projection", "birthday"], 0),
    ] {
        let ended = installation.command(arguments).await;
        assert_eq!(ended.exit_code, exit_code, "{ended:?}");
    }
    let listed = installation.command(&["operations", "--json"]).await.expect_success().json_lines();
    let commands: Vec<(&str, &str)> = listed
        .iter()
        .rev()
        .map(|row| (row["phase"].as_str().unwrap(), row["command"].as_str().unwrap()))
        .filter(|(phase, _)| *phase != "begun")
        .collect();
    let refresh = "anabranch refresh --projection birthday --source";
    assert_eq!(
        commands,
        [
            ("done", "anabranch restart reader/source-b"),
            ("done", &*format!("{refresh} source-a --table user_00.user_000 --key (1 key)")),
            ("done", &*format!("{refresh} source-b --where (1 condition)")),
            ("failed", "anabranch replay --projection birthday --source source-a --from earliest"),
            ("done", "anabranch pause --projection birthday --reason 'it'\\''s late'"),
            ("done", "anabranch resume --projection birthday"),
        ]
    );
    assert_eq!(listed.len(), 12, "{listed:?}");
    assert!(listed.iter().all(|row| row["via"] == "command" && row["version"] == "0.1.0"), "{listed:?}");
    let failed = listed.iter().find(|row| row["phase"] == "failed").unwrap();
    assert!(failed["after"].as_str().unwrap().contains("[replay-refused]"), "{failed}");
    assert!(listed.iter().all(|row| !row.to_string().contains(KEY)), "a key is in the table: {listed:?}");

    let text = installation.command(&["operations", "--limit", "2"]).await.expect_success().stdout;
    assert!(text.contains("anabranch resume") && !text.contains("anabranch pause"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_table_changes_are_made_and_lanes_run_and_set_up_makes_it_again() {
    let installation = installation().await;
    installation.execute("target", "DROP TABLE anabranch.operations").await;
    let daemon = installation.run();
    daemon.until_loaded(&["source-a", "source-b"]).await;
    insert(&installation, "source-a", TABLE, 1).await;
    until_derived(&installation, 1).await;

    let restarted = installation.command(&RESTART).await.expect_success();
    assert!(restarted.stdout.starts_with("every task is tried again"), "{restarted:?}");
    assert!(restarted.stderr.contains("no record of it was written"), "{restarted:?}");
    until("the daemon hears of the restart", async || daemon.log().contains("a restart was asked for")).await;
    let (status, done) = ask(&daemon, &json!({"action": "restart", "task": null}), false).await;
    assert_eq!((status, &done["is_recorded"]), (200, &Json::Bool(false)), "{done}");
    let (_, listed) = daemon.ask("GET", "/v1/operations", Some(ANN), "").await;
    assert_eq!(listed["code"], "target-table-missing", "{listed}");

    let checked = installation.command(&["check"]).await;
    assert_eq!(checked.exit_code, 1, "{checked:?}");
    let said = format!("{}{}", checked.stdout, checked.stderr);
    assert!(said.contains("[target-table-missing]") && said.contains("`operations`"), "{checked:?}");
    installation.command(&["setup"]).await.expect_success();
    installation.command(&["check"]).await.expect_success();
    installation.command(&RESTART).await.expect_success();
    let listed = installation.command(&["operations", "--json"]).await.expect_success().json_lines();
    assert_eq!(listed.iter().map(|row| &row["phase"]).collect::<Vec<_>>(), ["done", "begun"], "{listed:?}");
    daemon.until_ready().await;
}
