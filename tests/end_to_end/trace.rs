//! One key followed from its source rows to every store and document: equal, missing, left over, behind a paused lane,
//! gone.

use anabranch_stack::ServerSpec;
use anabranch_tests::{Daemon, Ground, Installation, Plan, Search, blocking, until, until_some};
use serde_json::{Value as Json, json};

use crate::STANDARD;
use crate::faults::{insert, is_derived, until_derived};
use crate::{documents, relations};

const APPLICATION: &str = "token-of-an-application";
const OPERATOR: &str = "token-of-an-operator";
const TABLE: &str = "user_00.user_000";
const DERIVED: &str = "birthday_00.birthday_0101";
/// A key that occurs nowhere by chance.
const USER: u64 = 770_000_000_123;
const REMEDY: &str =
    "`anabranch refresh --projection birthday --source source-a --table user_00.user_000 --key KEY`";

static CACHED: Ground = Ground::of(|| {
    vec![
        ServerSpec::mariadb_source("source-a"),
        ServerSpec::mariadb_target("target"),
        ServerSpec::nats("nats"),
        ServerSpec::redis("redis"),
    ]
});

/// Gives the configuration a token of an application and one of an operator.
fn with_tokens(mut installation: Installation<'static>) -> Installation<'static> {
    let with_token = installation.configuration_text_with_http(&format!("tokens = [\"{APPLICATION}\"]"));
    let operator = format!("\n[[http.operators]]\nname = \"ann\"\ntoken = \"{OPERATOR}\"\n");
    installation.write_configuration_text(&(with_token + &operator));
    installation
}

/// The answer of the command.
async fn traced(installation: &Installation<'_>, key: &str) -> Json {
    installation.command(&["trace", key, "--json"]).await.expect_success().json()
}

/// The answer of the daemon.
async fn asked(daemon: &Daemon, key: &str) -> Json {
    let body = json!({ "key": key }).to_string();
    let (status, answer) = daemon.ask("POST", "/v1/trace", Some(OPERATOR), &body).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

fn sentence(answer: &Json) -> &str {
    answer["sentence"].as_str().unwrap()
}

async fn until_equal(installation: &Installation<'_>, key: &str) {
    until("every store is called equal", async || {
        sentence(&traced(installation, key).await).starts_with("Equal: ")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_is_followed_and_each_difference_has_its_reason_and_its_remedy() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let installation = with_tokens(installation);
    let daemon = installation.run();
    daemon.until_loaded(&["source-a", "source-b"]).await;
    insert(&installation, "source-a", TABLE, USER).await;
    until_derived(&installation, USER).await;
    let key = USER.to_string();

    equal_in_each_way(&installation, &daemon, &key).await;
    missing_and_left_over(&installation, &key).await;

    let logged = daemon.log();
    assert!(!logged.contains(&key), "the key is in the log");
    let sql = "SELECT COUNT(*) FROM anabranch.operations WHERE command LIKE '%trace%'";
    let operations: Option<u64> =
        installation.admin("target").await.first("count operations", sql).await.unwrap();
    assert_eq!(operations, Some(0), "a trace changes nothing");
}

/// By command and by request every store is called equal, and what was read is there.
async fn equal_in_each_way(installation: &Installation<'_>, daemon: &Daemon, key: &str) {
    for answer in [traced(installation, key).await, asked(daemon, key).await] {
        assert_eq!(
            sentence(&answer),
            format!("Equal: the store has exactly what {TABLE} of source-a claims, 1 derived row."),
            "{answer}"
        );
        assert_eq!(
            (&answer["entity"], &answer["also"], &answer["cache"]),
            (&json!("user"), &json!([]), &Json::Null)
        );
        let row = &answer["source_rows"][0];
        assert_eq!((&row["source"], &row["table"]), (&json!("source-a"), &json!(TABLE)), "{answer}");
        assert_eq!(row["claims"], json!([format!("{DERIVED} of birthday/target")]), "{answer}");
        assert!(row["fields"]["birthday"].as_str().unwrap().starts_with("1990-01-01"), "{answer}");
        assert_eq!(answer["last_change"]["kind"], "insert", "{answer}");
        assert_eq!(
            (&answer["unread"], &answer["searched"]["is_whole"]),
            (&json!([]), &json!(true)),
            "{answer}"
        );
        let store = &answer["stores"][0];
        assert_eq!((&store["verdict"], &store["rows"][0]["is_claimed"]), (&json!("equal"), &json!(true)));
        assert_eq!(store["rows"][0]["source_table"], format!("source-a: {TABLE}"), "{answer}");
        assert!(store["rows"][0]["position"].as_str().unwrap().starts_with("1:"), "{answer}");
        let lanes = answer["lanes"].as_array().unwrap();
        assert_eq!((lanes.len(), &lanes[0]["lane"]), (2, &json!("birthday/target/source-a/0")), "{answer}");
    }
    let text = installation.command(&["trace", key]).await.expect_success().stdout;
    assert!(text.starts_with("Equal: ") && text.contains(&format!("  claims {DERIVED} of birthday/target")));
}

/// A row that is gone and a row that no source row claims end by the command that the sentence gives.
async fn missing_and_left_over(installation: &Installation<'_>, key: &str) {
    // A row that is gone, and the remedy that the sentence gives.
    installation.execute("target", format!("DELETE FROM {DERIVED} WHERE user_id = {USER}")).await;
    let missing = traced(installation, key).await;
    let begin = format!("birthday/target lacks a row in {DERIVED} that {TABLE} of source-a claims");
    assert!(sentence(&missing).starts_with(&begin), "{missing}");
    assert!(sentence(&missing).ends_with(&format!("{REMEDY} writes it.")), "{missing}");
    assert_eq!(missing["stores"][0]["verdict"], "missing", "{missing}");
    let refresh =
        ["refresh", "--projection", "birthday", "--source", "source-a", "--table", TABLE, "--key", key];
    installation.command(&refresh).await.expect_success();
    until_equal(installation, key).await;

    // A row that no source row claims, in the table of another day.
    let sql = "SELECT table_schema FROM information_schema.tables WHERE table_name = 'birthday_0202'";
    let database: String =
        installation.admin("target").await.first("look for a table", sql).await.unwrap().unwrap();
    let planted = format!(
        "INSERT INTO {database}.birthday_0202 (shard_id, user_id, birthday, lsn) \
         SELECT shard_id, user_id, '02-02', lsn FROM {DERIVED} WHERE user_id = {USER}"
    );
    installation.execute("target", planted).await;
    let left_over = traced(installation, key).await;
    assert!(sentence(&left_over).contains("a row left over in"), "{left_over}");
    assert!(sentence(&left_over).ends_with(&format!("{REMEDY} removes it.")), "{left_over}");
    assert_eq!(left_over["stores"][0]["verdict"], "left over", "{left_over}");
    let claimed: Vec<&Json> =
        left_over["stores"][0]["rows"].as_array().unwrap().iter().map(|row| &row["is_claimed"]).collect();
    assert_eq!(claimed, [&json!(true), &json!(false)], "{left_over}");
    installation.command(&refresh).await.expect_success();
    until_equal(installation, key).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_lane_an_odd_birthday_and_a_dead_source_are_named_and_other_keys_are_refused() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let installation = with_tokens(installation);
    let daemon = installation.run();
    daemon.until_loaded(&["source-a", "source-b"]).await;
    insert(&installation, "source-a", TABLE, 1).await;
    until_derived(&installation, 1).await;

    installation.command(&["pause", "--projection", "birthday"]).await.expect_success();
    until("every lane is paused", async || {
        let Some(status) = daemon.status().await else { return false };
        let tasks = status["tasks"].as_array().unwrap().iter();
        tasks
            .filter(|task| task["task"].as_str().unwrap().starts_with("lane/"))
            .all(|task| task["state"] == "paused")
    })
    .await;
    insert(&installation, "source-a", TABLE, USER).await;
    let key = USER.to_string();
    for answer in [traced(&installation, &key).await, asked(&daemon, &key).await] {
        assert!(sentence(&answer).starts_with("birthday/target lacks a row in "), "{answer}");
        let reason = "is paused, which `anabranch resume --projection birthday` ends.";
        assert!(sentence(&answer).ends_with(reason), "{answer}");
        assert!(answer["lanes"].as_array().unwrap().iter().all(|lane| lane["state"] == "paused"), "{answer}");
    }
    assert!(!is_derived(&installation, USER).await);
    installation.command(&["resume", "--projection", "birthday"]).await.expect_success();
    until_equal(&installation, &key).await;

    let odd = USER + 1;
    let sql = format!("INSERT INTO {TABLE} (user_id, user_name, birthday) VALUES ({odd}, 'n', NULL)");
    installation.execute("source-a", sql).await;
    let excluded = traced(&installation, &odd.to_string()).await;
    assert!(sentence(&excluded).contains("makes no derived row of birthday ("), "{excluded}");
    assert_eq!(excluded["source_rows"][0]["excluded"].as_array().unwrap().len(), 1, "{excluded}");

    unknown_and_refused(&installation, &daemon).await;

    blocking(|| installation.server("source-b").kill().unwrap());
    let unread = traced(&installation, &key).await;
    assert_eq!(unread["unread"][0]["source"], "source-b", "{unread}");
    assert!(sentence(&unread).starts_with("Source source-b could not be read as a whole"), "{unread}");
    assert_eq!(unread["source_rows"][0]["table"], TABLE, "the other source is read: {unread}");
    blocking(|| installation.server("source-b").restart().unwrap());
}

/// Keys that no row has and texts that are no key, by command and by request; tokens that are none of an operator.
async fn unknown_and_refused(installation: &Installation<'_>, daemon: &Daemon) {
    for answer in [traced(installation, "123456").await, asked(daemon, "123456").await] {
        assert!(sentence(&answer).starts_with("Nothing has this key: "), "{answer}");
        assert_eq!((&answer["source_rows"], &answer["last_change"]), (&json!([]), &Json::Null), "{answer}");
    }
    let long = "7".repeat(4096);
    for (key, found) in
        [(long.as_str(), "4096 bytes"), ("", "it is empty"), ("a b", "has the form of no key")]
    {
        let refused = installation.command(&["trace", key]).await;
        assert_eq!(refused.exit_code, 2, "{refused:?}");
        assert!(
            refused.stderr.contains("[lookup-malformed]") && refused.stderr.contains(found),
            "{refused:?}"
        );
        assert!(!refused.stderr.contains("7777"), "{refused:?}");
        let body = json!({ "key": key }).to_string();
        let (status, problem) = daemon.ask("POST", "/v1/trace", Some(OPERATOR), &body).await;
        assert_eq!((status, &problem["code"]), (422, &json!("lookup-malformed")), "{problem}");
        assert!(!problem.to_string().contains("7777"), "{problem}");
    }
    let body = r#"{"key":"123456"}"#;
    for (token, status, code) in [
        (Some(APPLICATION), 403, "operator-refused"),
        (Some("another"), 401, "token-refused"),
        (None, 401, "token-refused"),
    ] {
        let (found, problem) = daemon.ask("POST", "/v1/trace", token, body).await;
        assert_eq!((found, &problem["code"]), (status, &json!(code)), "{token:?}: {problem}");
    }
    for (body, status, code) in [
        (r#"{"key":"\ud800"}"#, 400, "body-not-json"),
        (r#"{"projection":"birthday"}"#, 422, "body-not-understood"),
        (r#"{"key":"1","projection":"none"}"#, 422, "lookup-malformed"),
    ] {
        let (found, problem) = daemon.ask("POST", "/v1/trace", Some(OPERATOR), body).await;
        assert_eq!((found, &problem["code"]), (status, &json!(code)), "{body}: {problem}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_is_followed_by_its_uuid_or_any_code_and_an_old_entry_of_the_cache_shows() {
    const CODE: &str = "490154203237518";
    let plan = Plan { has_cache: true, ..Plan::serials() };
    let installation = Installation::set_up(CACHED.turn().await, &plan).await;
    let installation = with_tokens(installation);
    let daemon = installation.run();
    daemon.until_loaded(&["source-a"]).await;
    let insert = format!(
        "INSERT INTO inventory_0.serial_code_00 SET uuid = 640, imei1 = '{CODE}', box_no = 'BOX-640'"
    );
    installation.execute("source-a", insert).await;
    let mapped = installation.mapped(CODE.as_bytes()).await;
    assert_eq!(mapped.len(), 1, "{mapped:?}");
    let from_cache = until_some("the cache answers", async || {
        let (_, answer) = daemon.ask("GET", &format!("/v1/serials/{CODE}"), Some(APPLICATION), "").await;
        (answer["from"] == "cache").then_some(answer)
    })
    .await;
    assert_eq!(from_cache["devices"][0]["uuid"], "640");

    for key in [CODE, "BOX-640", "640"] {
        for answer in [traced(&installation, key).await, asked(&daemon, key).await] {
            assert_eq!(answer["entity"], "serial_code", "{key}: {answer}");
            assert!(sentence(&answer).starts_with("Equal: "), "{key}: {answer}");
            let row = &answer["source_rows"][0];
            assert_eq!(row["claims"].as_array().unwrap().len(), 2, "{key}: {answer}");
            assert_eq!(row["fields"]["imei1"], CODE, "{key}: {answer}");
            let cache = &answer["cache"];
            assert_eq!(
                (&cache["cache"], &cache["state"]),
                (&json!("redis"), &json!("hit")),
                "{key}: {answer}"
            );
            assert_eq!((&cache["differs"], cache["age_seconds"].is_f64()), (&json!(false), true), "{answer}");
            assert_eq!(answer["last_change"]["kind"], "insert", "{key}: {answer}");
        }
    }

    // The mapping row is gone, and the cache still has it.
    let table = &mapped[0].0;
    installation.execute("target", format!("DELETE FROM {table} WHERE value = '{CODE}'")).await;
    for key in ["640", CODE] {
        let answer = traced(&installation, key).await;
        assert!(sentence(&answer).contains(&format!("lacks a row in {table}")), "{key}: {answer}");
        assert_eq!((&answer["cache"]["state"], &answer["cache"]["differs"]), (&json!("hit"), &json!(true)));
    }
    let table = "inventory_0.serial_code_00";
    let refresh =
        ["refresh", "--projection", "mapping", "--source", "source-a", "--table", table, "--key", "640"];
    installation.command(&refresh).await.expect_success();
    until_equal(&installation, "640").await;

    // A code without a device, and a device that is gone.
    let unknown = traced(&installation, "BOX-641").await;
    assert!(sentence(&unknown).starts_with("Nothing has this key: "), "{unknown}");
    installation.execute("source-a", format!("DELETE FROM {table} WHERE uuid = 640")).await;
    installation.drained().await;
    for key in ["640", CODE] {
        let gone = traced(&installation, key).await;
        let expected = "Equal: no source table has this key any more, and no store has a row of it (rows of tables that left are not \
             sought).";
        assert_eq!(
            (sentence(&gone), &gone["last_change"]["kind"]),
            (expected, &json!("delete")),
            "{key}: {gone}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_is_followed_to_its_document_and_a_damaged_document_is_named() {
    let installation = documents::with_documents().await;
    let _daemon = installation.run();
    documents::add(&installation, 640, 641).await;
    documents::equal(&installation, "one device").await;
    until_equal(&installation, "640").await;
    let document = |answer: &Json| answer["documents"][0].clone();
    let equal = traced(&installation, "640").await;
    assert_eq!(equal["entity"], "serial_code", "{equal}");
    assert_eq!(equal["documents"].as_array().map(Vec::len), Some(1), "{equal}");
    let found = document(&equal);
    assert_eq!((&found["projection"], &found["verdict"]), (&json!("documents"), &json!("equal")), "{found}");
    assert!(found["position"].as_str().is_some_and(|position| position.starts_with("1:")), "{found}");
    let id = found["id"].as_str().unwrap();
    assert!(id.ends_with("-640"), "{found}");
    let text = installation.command(&["trace", "640"]).await.expect_success().stdout;
    assert!(text.contains("DOCUMENTS") && text.contains(&format!("documents {id}: equal, at 1:")), "{text}");

    assert_eq!(documents::damage(&Search::of(installation.stack())).await, id);
    let damaged = until_some("the damaged document is named", async || {
        let answer = traced(&installation, "640").await;
        (document(&answer)["verdict"] == "stale").then_some(answer)
    })
    .await;
    assert_eq!(document(&damaged)["id"], id, "{damaged}");
    assert!(!sentence(&damaged).starts_with("Equal: "), "{damaged}");
    let table = "inventory_0.serial_code_00";
    let refresh =
        ["refresh", "--projection", "documents", "--source", "source-a", "--table", table, "--key", "640"];
    installation.command(&refresh).await.expect_success();
    until_equal(&installation, "640").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payment_document_is_followed_to_the_index_of_relations() {
    const TABLE_OF_DOCUMENT: &str = "composite_05_05";
    let installation = relations::installation().await;
    let daemon = installation.run();
    daemon.until_loaded(&["source-a", "source-b"]).await;
    let key = relations::id(relations::RECHARGE);
    let table = format!("flux_00_0.{TABLE_OF_DOCUMENT}");
    installation.execute("source-a", relations::insert(TABLE_OF_DOCUMENT, &key, None)).await;
    until_equal(&installation, &key).await;
    let found = traced(&installation, &key).await;
    assert_eq!(
        (&found["entity"], &found["last_change"]["kind"]),
        (&json!("flux"), &json!("insert")),
        "{found}"
    );
    let row = &found["source_rows"][0];
    assert_eq!((&row["source"], &row["table"]), (&json!("source-a"), &json!(table)), "{found}");
    let store = &found["stores"][0];
    assert_eq!((&store["projection"], &store["verdict"]), (&json!("relations"), &json!("equal")), "{found}");
    assert_eq!(store["rows"][0]["is_claimed"], true, "{found}");
    let lanes = found["lanes"].as_array().unwrap();
    let is_of_index = |lane: &Json| lane["lane"].as_str().unwrap().starts_with("relations/target/source-a/");
    assert!(!lanes.is_empty() && lanes.iter().all(is_of_index), "{found}");
    assert!(!daemon.log().contains(&key), "the key is in the log");

    installation.execute("source-a", format!("DELETE FROM {table} WHERE id = '{key}'")).await;
    until("nothing is left of the document", async || {
        sentence(&traced(&installation, &key).await).starts_with("Equal: no source table has this key")
    })
    .await;
}
