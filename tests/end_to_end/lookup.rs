//! From any code of a device to the device, over HTTP and by command: source, log, mapping tables, Redis, API.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anabranch_demo::{Connection, SHOW_BINLOG_END};
use anabranch_stack::ServerSpec;
use anabranch_tests::{Daemon, Ground, Installation, Plan, blocking, until_some};
use mysql_async::Row;
use serde_json::{Value as Json, json};

pub const TOKEN: &str = "application-token-1";
/// Time for which a request waits for its place before the answer is that the lanes are behind.
const PLACE_WAIT: Duration = Duration::from_secs(2);
/// Time within which the status names a server that was killed.
const SAID_WITHIN: Duration = Duration::from_secs(5);

static GROUND: Ground = Ground::of(|| {
    vec![
        ServerSpec::mariadb_source("source-a"),
        ServerSpec::mariadb_target("target"),
        ServerSpec::nats("nats"),
        ServerSpec::redis("redis"),
    ]
});

const TABLES: [(&str, &str); 3] = [
    ("inventory_0.serial_code_00", "BIGINT UNSIGNED"),
    ("inventory_1.serial_code_01", "VARCHAR(64)"),
    ("inventory_history.serial_code_00", "VARCHAR(64)"),
];

/// An installation with an inventory beside the users, a cache and an API.
pub async fn installation() -> Installation<'static> {
    let mut installation = Installation::prepare(GROUND.turn().await, &Plan::small()).await;
    for (name, uuid_type) in TABLES {
        let (database, table) = name.split_once('.').unwrap();
        let ddl = include_str!("../../schemas/src/sql/serial_code.sql");
        let ddl =
            ddl.replace("{database}", database).replace("{table}", table).replace("{uuid_type}", uuid_type);
        installation.execute("source-a", format!("CREATE DATABASE IF NOT EXISTS {database}; {ddl}")).await;
    }
    let (stack, redis) = (installation.stack(), installation.server("redis"));
    let text = installation.configuration_text_with_http(&format!("tokens = [\"{TOKEN}\"]"));
    let text = format!(
        r#"{text}
[[entities]]
entity = "serial_code"
tables = "inventory_{{db}}.serial_code_{{table:02}}"
[[entities]]
entity = "serial_code"
tables = "inventory_history.serial_code_{{table:02}}"
[[projections]]
name = "mapping"
kind = "serial_mapping"
targets = ["target"]
tables = 8
database = "serial_code_{{length}}"
table = "mapping_{{table:03}}"
[[caches]]
name = "redis"
url = "{}"
ca_file = "{}"
projection = "mapping"
"#,
        redis.url(),
        stack.ca_file().display()
    );
    installation.write_configuration_text(&text);
    installation.command(&["setup"]).await.expect_success();
    installation
}

pub async fn get(daemon: &Daemon, path_and_query: &str) -> (u16, Json) {
    daemon.ask("GET", &format!("/v1/serials/{path_and_query}"), Some(TOKEN), "").await
}

/// Asks until the answer is there: a busy machine may need longer than a request waits. The API answers that the lanes
/// are behind only to a request with a place, and only after that wait.
pub async fn found(daemon: &Daemon, path_and_query: &str) -> Json {
    until_some(&format!("an answer to {path_and_query}"), async || {
        let asked = Instant::now();
        let (status, answer) = get(daemon, path_and_query).await;
        if status == 200 {
            return Some(answer);
        }
        let is_lagging = answer["code"] == "lookup-lagging" && path_and_query.contains("at_least");
        assert!(is_lagging && asked.elapsed() >= PLACE_WAIT, "{path_and_query}: {answer}");
        None
    })
    .await
}

pub fn uuids(answer: &Json) -> Vec<&str> {
    answer["devices"].as_array().unwrap().iter().map(|device| device["uuid"].as_str().unwrap()).collect()
}

/// Runs the statements and returns the GTID of their changes.
pub async fn change(connection: &mut Connection, sql: &str) -> String {
    connection.execute("change devices", sql).await.unwrap();
    let gtid = "SELECT /*M! @@last_gtid */ /*!80400 REPLACE(@@GLOBAL.gtid_executed, '\n', '') */";
    let gtid: Vec<String> = connection.rows("ask for the GTID", gtid).await.unwrap();
    format!("source-a:{}", gtid[0])
}

pub async fn until_from(daemon: &Daemon, code: &str, from: &str) -> Json {
    until_some(&format!("{code} comes from {from}"), async || {
        let answer = found(daemon, code).await;
        (answer["from"] == from).then_some(answer)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn any_code_of_a_device_leads_to_the_device_and_an_answer_says_how_fresh_it_is() {
    let installation = installation().await;
    let mut daemon = installation.run();
    daemon.until_ready().await;
    let mut source = installation.admin("source-a").await;
    let boxes: String = (1..=30).map(|n| format!(",({n}, NULL, NULL, 'CRATE 7', 'item-{n}', 'w')")).collect();
    let place = change(
        &mut source,
        &format!(
            "INSERT INTO inventory_0.serial_code_00 (uuid, imei1, meid, box_no, item_code, warehouse_code) VALUES \
             (9007199254740993, '490154203237518', 'A10000009296F2', 'BOX-1', '490154203237518', 'north'){boxes}"
        ),
    )
    .await;

    // Right after the commit the request waits for the lanes and bypasses the cache.
    let answer = found(&daemon, &format!("490154203237518?at_least={place}")).await;
    assert_eq!((uuids(&answer), answer["from"].as_str()), (vec!["9007199254740993"], Some("mapping")));
    let claims = answer["devices"][0]["claims"].as_array().unwrap();
    let kinds: BTreeSet<&str> = claims.iter().map(|claim| claim["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, BTreeSet::from(["imei1", "item_code"]));
    assert!(answer["freshness"]["cache_bypassed"].as_str().unwrap().contains("at_least"), "{answer}");
    let end: Row = source.first("ask for the end", SHOW_BINLOG_END).await.unwrap().unwrap();
    let (file, position): (String, u64) = (end.get(0).unwrap(), end.get(1).unwrap());
    let place = format!("source-a:{file}:{position}");
    assert_eq!(uuids(&found(&daemon, &format!("BOX-1?at_least={place}")).await), ["9007199254740993"]);

    // A code of any kind, a MEID in any spelling; all others only in their exact spelling.
    let answer = until_from(&daemon, "490154203237518", "cache").await;
    assert_eq!(uuids(&answer), ["9007199254740993"]);
    assert!(
        answer["freshness"]["lag_ms"].is_u64() && answer["freshness"]["cache_bypassed"].is_null(),
        "{answer}"
    );
    let named = until_some("the table is named", async || {
        let answer = found(&daemon, "a10000009296f2").await;
        let claim = answer["devices"][0]["claims"][0].clone();
        claim["table"].is_string().then_some(claim)
    })
    .await;
    assert_eq!(
        (&named["source"], &named["database"], &named["table"], &named["kind"]),
        (&json!("source-a"), &json!("inventory_0"), &json!("serial_code_00"), &json!("meid"))
    );
    for (code, devices) in [
        ("490154203237518?kind=imei1", 1),
        ("490154203237518?kind=imei2", 0),
        ("a10000009296f2?kind=meid", 1),
        ("box-1", 0),
        ("BOX-1%20", 0),
        ("%FF%00%2F", 0),
        ("*?kind=box_no", 0),
        ("imei1%3A%5B*%20TO%20*%5D%22%7B%7D%27", 0),
        ("CRATE%207", 30),
    ] {
        assert_eq!(uuids(&found(&daemon, code).await).len(), devices, "{code}");
    }

    pages_and_rows(&daemon).await;
    let body = r#"{"codes": ["BOX-1", "nobody", "CRATE 7"]}"#;
    let (status, batch) = daemon.ask("POST", "/v1/serials/lookup", Some(TOKEN), body).await;
    let counts: Vec<usize> =
        batch["answers"].as_array().unwrap().iter().map(|answer| uuids(answer).len()).collect();
    assert_eq!((status, counts), (200, vec![1, 0, 20]));
    wrong_questions(&daemon).await;
    codes_that_no_path_carries(&installation, &daemon, &mut source).await;
    two_spellings(&daemon).await;
    a_lost_cache(&installation, &daemon, &mut source).await;
    moves(&installation, &mut daemon, &mut source).await;
}

/// Answers come in pages, and with the inventory's rows.
async fn pages_and_rows(daemon: &Daemon) {
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = found(daemon, &format!("CRATE%207?limit=7{after}")).await;
        seen.extend(uuids(&page).into_iter().map(|uuid| uuid.parse::<u32>().unwrap()));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, (1..=30).collect::<Vec<_>>());
    let answer = found(daemon, "BOX-1?rows=true").await;
    let claim = &answer["devices"][0]["claims"][0];
    assert_eq!((answer["from"].as_str(), &claim["confirmed"]), (Some("inventory"), &json!(true)));
    assert_eq!(
        (&claim["row"]["uuid"], &claim["row"]["warehouse_code"]),
        (&json!("9007199254740993"), &json!("north"))
    );
}

async fn wrong_questions(daemon: &Daemon) {
    for (question, named) in [
        ("BOX-1?kind=imei", "imei1, imei2"),
        ("BOX-1?limit=0", "1 to 1000"),
        ("BOX-1?limit=x", "limit"),
        ("BOX-1?after=x", "`next`"),
        ("BOX-1?colour=red", "colour"),
        ("BOX-1?at_least=source-a", "source:epoch:file:position"),
        ("BOX-1?at_least=source-z:1:2:3", "source-z"),
        ("BOX-1?at_least=source-a:a-b-c", "GTID"),
    ] {
        let (status, problem) = get(daemon, question).await;
        assert_eq!((status, problem["code"].as_str()), (422, Some("lookup-malformed")), "{question}");
        assert!(problem["detail"].as_str().unwrap().contains(named), "{question}: {problem}");
    }
    let long = "7".repeat(5000);
    assert_eq!(get(daemon, &long).await.0, 422);
    assert_eq!(daemon.ask("GET", "/v1/serials/BOX-1", None, "").await.0, 401);
    for (body, code, named) in [
        (r#"{"codes": []}"#, "lookup-malformed", "0 codes"),
        (r#"{"codes": ["a", ""]}"#, "lookup-malformed", "codes[1]: the code is empty"),
        (r#"{"codes": ["a"], "limit": 21}"#, "lookup-malformed", "limit is 21"),
        (r#"["a"]"#, "body-not-understood", "the body is a list; an object is needed, with codes, kind"),
        (r#"{"codes": ["a", 7]}"#, "body-not-understood", "`codes[1]` is a number; text is needed"),
        (r#"{"codes": "a"}"#, "body-not-understood", "`codes` is text; a list is needed"),
        (r#"{"kind": "meid"}"#, "body-not-understood", "`codes` is missing"),
    ] {
        let (status, problem) = daemon.ask("POST", "/v1/serials/lookup", Some(TOKEN), body).await;
        assert_eq!((status, problem["code"].as_str()), (422, Some(code)), "{body}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains(named), "{body}: {problem}");
    }
}

async fn codes_that_no_path_carries(
    installation: &Installation<'_>,
    daemon: &Daemon,
    source: &mut Connection,
) {
    let place = change(
        source,
        "INSERT INTO inventory_0.serial_code_00 (uuid, box_no) VALUES \
         (41, 'lookup'), (42, '.'), (43, '..'), (44, 'a+b c&d=e')",
    )
    .await;
    for (query, uuid) in [("lookup", "41"), (".", "42"), ("..", "43"), ("a%2Bb+c%26d%3De", "44")] {
        let answer = found(daemon, &format!("lookup?code={query}&at_least={place}")).await;
        assert_eq!(uuids(&answer), [uuid], "{query}");
        let answer = found(daemon, &format!("lookup?kind=box_no&code={query}&limit=1&rows=true")).await;
        assert_eq!((uuids(&answer), answer["from"].as_str()), (vec![uuid], Some("inventory")), "{query}");
    }
    assert_eq!(uuids(&found(daemon, "lookup?code=%FF%00").await), Vec::<&str>::new());
    for (path, named) in
        [("", "the code is empty"), ("lookup", "code is missing"), ("lookup?code=", "the code is empty")]
    {
        let (status, problem) = get(daemon, path).await;
        assert_eq!((status, problem["code"].as_str()), (422, Some("lookup-malformed")), "{path}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains(named), "{path}: {problem}");
    }
    let empty = installation.command(&["lookup", ""]).await;
    assert!(
        empty.stderr.contains("[lookup-malformed]") && empty.stderr.contains("the code is empty"),
        "{empty:?}"
    );
}

/// A code in small letters is two values; the cache may have only one of them.
async fn two_spellings(daemon: &Daemon) {
    // On a busy machine a freshness key may expire between two requests. Mapping tables alone answer then, and the
    // cache may have both values afterwards, so the next attempt asks for another code.
    let mut numbers = 9..=30;
    let (code, answer) = until_some("the cache has one of two values", async || {
        let number = numbers.next().expect("no code has one of its two values in the cache");
        let code = format!("item-{number}");
        until_from(daemon, &format!("{code}?kind=item_code"), "cache").await;
        let answer = found(daemon, &code).await;
        assert_eq!(uuids(&answer), [number.to_string()], "{answer}");
        let is_of_both = answer["from"] == "cache_and_mapping";
        (is_of_both && answer["freshness"]["cache_delay_ms"].is_u64()).then_some((code, answer))
    })
    .await;
    assert!(answer["freshness"]["cache_bypassed"].is_null(), "{answer}");
    until_from(daemon, &code, "cache").await;
}

/// A fault of lagging names the requested point in its notation, the lane's point, and whether the source has it.
async fn missing_position_is_named(installation: &Installation<'_>, api: &Daemon, place: &str) {
    let (_, gtid) = place.split_once(':').unwrap();
    let wanted = format!("{gtid} of source source-a was asked for");
    for (place, named) in [
        (place, [&*wanted, "is at GTID 1-", "; the source has given it out"]),
        ("source-a:1-1-999999999", ["is at GTID 1-", "has not given it out", "it is at GTID 1-"]),
        ("source-a:any.000999:4", ["any.000999:4 of source source-a was asked for", "is at any.0000", "(1:"]),
        (
            "source-a:1:999:4",
            ["1:999:4 of source source-a was asked for", "mapping/target/source-a", "is at 1:"],
        ),
    ] {
        let (status, problem) = get(api, &format!("item-3?at_least={place}")).await;
        assert_eq!((status, problem["code"].as_str()), (503, Some("lookup-lagging")));
        let detail = problem["detail"].as_str().unwrap();
        for part in named {
            assert!(detail.contains(part), "{part} is not in {detail}");
        }
    }
    let lagging = installation.command(&["lookup", "item-3", "--at-least", "source-a:1-1-999999999"]).await;
    assert_eq!(lagging.exit_code, 3, "{lagging:?}");
    for part in ["[lookup-lagging]", "1-1-999999999 of source source-a", "has not given it out"] {
        assert!(lagging.stderr.contains(part), "{part} is not in {lagging:?}");
    }
}

/// An undecided branch keeps the resume point before it. Progress names the passed GTIDs all the same, so the lookup
/// needs no source.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_after_an_undecided_branch_is_waited_for_by_its_gtid() {
    let installation = installation().await;
    let daemon = installation.run();
    daemon.until_ready().await;
    let mut source = installation.admin("source-a").await;
    let mut branch = installation.admin("source-a").await;
    let prepare = "XA START 'lookup';
         INSERT INTO inventory_0.serial_code_00 (uuid, item_code) VALUES (61, 'in-a-branch');
         XA END 'lookup'; XA PREPARE 'lookup'";
    branch.execute("prepare a branch", prepare).await.unwrap();
    let mut places = Vec::new();
    for uuid in [62, 63] {
        let insert = format!(
            "INSERT INTO inventory_0.serial_code_00 (uuid, item_code) VALUES ({uuid}, 'after-{uuid}')"
        );
        let place = change(&mut source, &insert).await;
        let answer = found(&daemon, &format!("after-{uuid}?at_least={place}")).await;
        assert_eq!(uuids(&answer), [uuid.to_string()]);
        places.push(place);
    }
    let server = installation.server("source-a");
    blocking(|| server.kill()).unwrap();
    let place = places.pop().unwrap();
    assert_eq!(uuids(&found(&daemon, &format!("after-63?at_least={place}")).await), ["63"]);
    blocking(|| server.restart()).unwrap();
    let mut source = installation.admin("source-a").await;
    source.execute("decide it", "XA COMMIT 'lookup'").await.unwrap();
    let place = change(&mut source, "DELETE FROM inventory_0.serial_code_00 WHERE uuid = 62").await;
    assert_eq!(uuids(&found(&daemon, &format!("in-a-branch?at_least={place}")).await), ["61"]);
    owed_table_is_waited_for_and_named(&daemon, &mut source).await;
}

/// A table whose rows changed by text is locked, so the lane passes the change and cannot read the table again.
async fn owed_table_is_waited_for_and_named(daemon: &Daemon, source: &mut Connection) {
    let lock = "SET SESSION binlog_format = STATEMENT; LOCK TABLES inventory_0.serial_code_00 WRITE";
    source.execute("lock the table", lock).await.unwrap();
    let by_text = "UPDATE inventory_0.serial_code_00 SET item_code = 'by-text' WHERE uuid = 63";
    let place = change(source, by_text).await;
    until_some("the lane has passed the change", async || {
        let (status, problem) = get(daemon, &format!("by-text?at_least={place}")).await;
        assert_eq!((status, problem["code"].as_str()), (503, Some("lookup-lagging")), "{problem}");
        let why = "is to read table inventory_0.serial_code_00 again";
        problem["detail"].as_str().unwrap().contains(why).then_some(())
    })
    .await;
    assert_eq!(uuids(&found(daemon, "after-63").await), ["63"], "requests without a place do not wait");
    source.execute("unlock it", "UNLOCK TABLES; SET SESSION binlog_format = ROW").await.unwrap();
    let answer = until_some("the table is read again", async || {
        let (status, answer) = get(daemon, &format!("by-text?at_least={place}")).await;
        (status == 200).then_some(answer)
    });
    assert_eq!(uuids(&answer.await), ["63"]);
}

/// Redis is killed and comes back empty: lookups are slower, and never wrong.
async fn a_lost_cache(installation: &Installation<'_>, daemon: &Daemon, source: &mut Connection) {
    let (redis, killed) = (installation.server("redis"), Instant::now());
    blocking(|| redis.kill()).unwrap();
    let is_gone = |view: &Json| view["code"] == "cache-unreachable";
    daemon.until_view("caches", ("cache", "redis"), is_gone).await;
    daemon.until_view("unanswered", ("dependency", "cache"), |view| view["name"] == "redis").await;
    assert!(killed.elapsed() < SAID_WITHIN, "it took {:?}", killed.elapsed());
    until_some("the delay of the cache is not known, and it is not believed", async || {
        let metrics = daemon.metrics().await;
        let is_believed = !metrics.contains("\nanabranch_cache_believed{cache=\"redis\"} 0\n");
        (!is_believed && !metrics.contains("\nanabranch_cache_delay_seconds{")).then_some(())
    })
    .await;
    let answer = until_from(daemon, "BOX-1", "mapping").await;
    assert_eq!(uuids(&answer), ["9007199254740993"]);
    assert!(answer["freshness"]["cache_bypassed"].is_string(), "{answer}");
    let change_box = "UPDATE inventory_0.serial_code_00 SET box_no = 'BOX-2' WHERE uuid = 9007199254740993";
    let place = change(source, change_box).await;
    assert_eq!(uuids(&found(daemon, &format!("BOX-1?at_least={place}")).await), Vec::<&str>::new());
    blocking(|| redis.restart()).unwrap();
    assert_eq!(uuids(&until_from(daemon, "BOX-2", "cache").await), ["9007199254740993"]);
    assert_eq!(uuids(&until_from(daemon, "BOX-1", "cache").await), Vec::<&str>::new());
    // The status counts what the metric counts, and codes beside the lost cache.
    let status = daemon.status().await.unwrap();
    let lookups = &status["load"]["lookups"];
    for (figure, outcome) in [("hits", "hit"), ("misses", "miss"), ("bypassed", "bypassed")] {
        let label = format!("=\"{outcome}\"");
        let counted = daemon.metric("anabranch_cache_lookups_total", &[label.as_str()]).await;
        let shown = lookups[figure].as_u64().unwrap() as f64;
        assert!(shown > 0.0 && shown <= counted, "{figure}: {lookups}, {counted}");
    }
    let mut servers = status["load"]["connections"].as_array().unwrap().iter();
    assert!(servers.any(|server| server["name"] == "target" && server["max"].as_u64() > Some(0)), "{status}");
}

/// A device moves to history while no daemon captures: both tables have it, and the inventory decides.
async fn moves(installation: &Installation<'_>, daemon: &mut Daemon, source: &mut Connection) {
    let copy = "INSERT INTO inventory_history.serial_code_00 SELECT * FROM inventory_0.serial_code_00 WHERE uuid = 3";
    let place = change(source, copy).await;
    let both = found(daemon, &format!("item-3?at_least={place}")).await;
    assert_eq!(uuids(&both), ["3"], "one device");
    let claims = both["devices"][0]["claims"].as_array().unwrap().clone();
    assert!(claims.len() == 2 && claims.iter().all(|claim| claim["confirmed"] == true), "{both}");

    assert!(daemon.terminate().is_some_and(|status| status.success()));
    let api = installation.run_with(&["--role", "api"], &[]);
    api.until_ready().await;
    let place = change(source, "DELETE FROM inventory_0.serial_code_00 WHERE uuid = 3").await;
    missing_position_is_named(installation, &api, &place).await;

    let answer = installation.command(&["lookup", "item-3", "--json"]).await.expect_success().json();
    let confirmed: BTreeSet<(&str, bool)> = answer["devices"][0]["claims"]
        .as_array()
        .unwrap()
        .iter()
        .map(|claim| (claim["database"].as_str().unwrap(), claim["confirmed"].as_bool().unwrap()))
        .collect();
    assert_eq!(confirmed, BTreeSet::from([("inventory_0", false), ("inventory_history", true)]));
    assert_eq!(answer["from"], "inventory");
    let text = installation.command(&["lookup", "item-3"]).await.expect_success().stdout;
    for wanted in ["DEVICE", "inventory_history.serial_code_00", "the row does not confirm it"] {
        assert!(text.contains(wanted), "{wanted} is not in:\n{text}");
    }
    let lagging = installation.command(&["lookup", "item-3", "--at-least", &place]).await;
    assert_eq!(lagging.exit_code, 3, "{lagging:?}");
    assert_eq!(installation.command(&["lookup", ""]).await.exit_code, 2);
    let nobody = installation.command(&["lookup", "nobody", "--kind", "box_no"]).await.expect_success();
    assert!(nobody.stdout.contains("no device has this code"), "{nobody:?}");

    drop(api);
    installation.free_leases().await;
    let mut again = installation.run();
    again.until_ready().await;
    let one = until_some("the move is through", async || {
        let answer = get(&again, &format!("item-3?at_least={place}")).await;
        (answer.0 == 200).then_some(answer.1)
    })
    .await;
    let claims = one["devices"][0]["claims"].as_array().unwrap();
    assert_eq!((claims.len(), &claims[0]["database"]), (1, &json!("inventory_history")));
    again.kill();
}
