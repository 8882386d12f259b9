//! Devices in search: from the inventory's tables to documents, through every fault of the server.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::sql::serial_code_table;
use anabranch_stack::ServerSpec;
use anabranch_tests::{Daemon, Ground, Installation, Plan, Search, blocking, until, until_some};
use reqwest::Method;
use serde_json::{Value as Json, json};

use crate::fail_over::{promote, replace, standby};
use crate::faults::{insert, until_derived};

/// One server of each kind; the dashboards' test needs Redis.
pub static GROUND: Ground = Ground::of(|| {
    vec![
        ServerSpec::mariadb_source("source-a"),
        ServerSpec::mariadb_target("target"),
        ServerSpec::nats("nats"),
        ServerSpec::redis("redis"),
        ServerSpec::search("search"),
    ]
});

pub const INDEX: &str = "serials";
const TOKEN: &str = "application-token-1";
const TABLES: u32 = 2;
/// Time within which the status names a server that was killed.
const SAID_WITHIN: Duration = Duration::from_secs(5);
/// The id of a tombstone that was written in 1970.
const OLD_TOMBSTONE: &str = "1-old";

/// An installation that writes users into tables and devices into documents.
pub async fn with_documents() -> Installation<'static> {
    let mut installation = Installation::prepare(GROUND.turn().await, &Plan::small()).await;
    installation.execute("source-a", "CREATE DATABASE inventory_0").await;
    for table in 0..TABLES {
        let name = format!("serial_code_{table:02}");
        installation.execute("source-a", serial_code_table("inventory_0", &name, "BIGINT UNSIGNED")).await;
    }
    let text = installation.configuration_text_with_http(&format!("tokens = [\"{TOKEN}\"]"))
        + &format!(
            "\n[[entities]]\nentity = \"serial_code\"\ntables = \"inventory_{{db}}.serial_code_{{table:02}}\"\n\
             [[targets]]\nname = \"search\"\nurl = \"${{ANABRANCH_SEARCH_URL}}\"\n\
             setup_url = \"${{ANABRANCH_SEARCH_SETUP_URL}}\"\nca_file = \"{}\"\n\
             [[projections]]\nname = \"documents\"\nkind = \"serial_documents\"\ntargets = [\"search\"]\n\
             lanes = 2\nindex = \"{INDEX}\"\ntombstones_kept_hours = 24\n",
            installation.stack().ca_file().display()
        );
    installation.write_configuration_text(&text);
    installation.command(&["setup"]).await.expect_success();
    installation.command(&["check"]).await.expect_success();
    installation
}

/// Inserts devices `from..to`, each into the table of its number.
pub async fn add(installation: &Installation<'_>, from: u64, to: u64) {
    let mut sql = String::new();
    for uuid in from..to {
        let table = uuid % u64::from(TABLES);
        sql += &format!(
            "INSERT INTO inventory_0.serial_code_{table:02} (uuid, imei1, box_no) \
             VALUES ({uuid}, '3569380356{uuid:05}', 'BOX {}');",
            uuid / 10
        );
    }
    installation.execute("source-a", sql).await;
}

/// Waits until the documents equal the devices of the source: table, uuid → first code, box.
pub async fn equal(installation: &Installation<'_>, what: &str) {
    let search = Search::of(installation.stack());
    let mut expected = BTreeMap::new();
    for table in 0..TABLES {
        let name = format!("serial_code_{table:02}");
        let sql = format!("SELECT CAST(uuid AS CHAR), imei1, box_no FROM inventory_0.{name}");
        let rows = installation.admin("source-a").await.rows("read devices", sql).await.unwrap();
        for (uuid, imei, box_no) in rows {
            let (uuid, imei, box_no): (String, Option<String>, Option<String>) = (uuid, imei, box_no);
            expected.insert((name.clone(), uuid), (imei, box_no));
        }
    }
    until(&format!("documents equal devices: {what}"), async || {
        let text = |document: &serde_json::Value, field: &str| document[field].as_str().map(str::to_owned);
        let device = |document: &serde_json::Value| {
            let key = (text(document, "table").unwrap(), text(document, "uuid").unwrap());
            (key, (text(document, "imei1"), text(document, "box_no")))
        };
        let found: BTreeMap<_, _> = search.documents(INDEX).await.values().map(device).collect();
        found == expected
    })
    .await;
}

/// The status names the index soon after its server was killed, and no old count passes for the present one.
async fn said_to_be_gone(daemon: &Daemon, killed: Instant) {
    let is_gone = |view: &Json| view["code"] == "target-unreachable";
    daemon.until_view("searches", ("projection", "documents"), is_gone).await;
    daemon.until_view("unanswered", ("dependency", "index"), |view| view["name"] == "documents").await;
    assert!(killed.elapsed() < SAID_WITHIN, "it took {:?}", killed.elapsed());
    let metrics = daemon.metrics().await;
    let samples: Vec<&str> =
        metrics.lines().filter(|line| line.starts_with("anabranch_search_documents{")).collect();
    assert!(!metrics.is_empty() && samples.is_empty(), "{samples:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_equal_their_devices_whatever_happens_to_search_and_other_stores_go_on() {
    let installation = with_documents().await;
    let mut daemon = installation.run();
    add(&installation, 0, 300).await;
    equal(&installation, "first devices").await;
    found(&daemon).await;
    let change = "UPDATE inventory_0.serial_code_00 SET imei1 = NULL, box_no = 'a\"*\\\\{' WHERE uuid < 100; \
                  DELETE FROM inventory_0.serial_code_01 WHERE uuid < 50; \
                  INSERT INTO inventory_0.serial_code_01 (uuid, imei1) VALUES (2, '1'); \
                  DELETE FROM inventory_0.serial_code_00 WHERE uuid = 2";
    installation.execute("source-a", change).await;
    equal(&installation, "changed, deleted and moved devices").await;

    let search = installation.server("search");
    search.pause().unwrap();
    add(&installation, 300, 400).await;
    insert(&installation, "source-a", "user_00.user_000", 1).await;
    until_derived(&installation, 1).await;
    search.resume().unwrap();
    equal(&installation, "search was frozen").await;

    let killed = Instant::now();
    blocking(|| search.kill().unwrap());
    said_to_be_gone(&daemon, killed).await;
    add(&installation, 400, 500).await;
    insert(&installation, "source-a", "user_00.user_000", 2).await;
    until_derived(&installation, 2).await;
    blocking(|| search.restart().unwrap());
    equal(&installation, "search was killed").await;

    installation.execute("source-a", "TRUNCATE inventory_0.serial_code_01").await;
    add(&installation, 500, 550).await;
    equal(&installation, "a table was emptied").await;

    daemon.kill();
    installation.free_leases().await;
    add(&installation, 550, 600).await;
    let administrator = Search::of(installation.stack());
    let old = json!({ "source": "source-a", "lsn": 5, "withdrawn": true, "withdrawn_at": 1 });
    let place = format!("{INDEX}-v1/_doc/{OLD_TOMBSTONE}?version=5&version_type=external_gte");
    administrator.ask(Method::PUT, &place, old).await;
    daemon = installation.run();
    equal(&installation, "the daemon was killed").await;
    until("the old tombstone goes, and not the young ones", async || {
        let tombstones = administrator.find(INDEX, json!({ "term": { "withdrawn": true } })).await;
        !tombstones.contains_key(OLD_TOMBSTONE) && !tombstones.is_empty()
    })
    .await;
    replayed(&installation, &daemon).await;
    rebuilt(&installation).await;
}

/// An index is built from the past while the daemon continues: documents that were damaged are right in it, and still
/// damaged in the old one.
async fn rebuilt(installation: &Installation<'_>) {
    let search = Search::of(installation.stack());
    // The history that is built from has no row event of this table's rows.
    for (from, to) in [("serial_code_00", "spare"), ("spare", "serial_code_00")] {
        installation
            .execute("source-a", format!("RENAME TABLE inventory_0.{from} TO inventory_0.{to}"))
            .await;
    }
    // Lanes pass these changes after the renames, so each has noted by then what it is to read again.
    add(installation, 900, 920).await;
    equal(installation, "a table was renamed there and back").await;
    until("the renamed table is read again", async || {
        let progress = search.find("*-progress", json!({ "exists": { "field": "position" } })).await;
        let waits = |lane: &Json| lane["refresh"].as_str().is_some_and(|text| text.contains("rereads:"));
        !progress.values().any(waits)
    })
    .await;
    let damaged = damage(&search).await;
    let rebuild = ["search", "rebuild", "documents"];
    let rehearsed = installation.command(&[&rebuild[..], &["--dry-run"]].concat()).await;
    rehearsed.expect_success();
    let adding = async {
        for number in 0..20 {
            add(installation, 600 + number * 10, 610 + number * 10).await;
        }
        installation.execute("source-a", "TRUNCATE inventory_0.serial_code_01").await;
    };
    let (done, ()) = tokio::join!(installation.command(&rebuild), adding);
    done.expect_success();
    equal(installation, "rebuilt").await;
    let old = search.documents(&format!("{INDEX}-v1")).await;
    assert_eq!(old[&damaged]["imei1"], json!("damaged"));
    installation.command(&["check"]).await.expect_success();
    let status = installation.command(&["status", "--json"]).await;
    let shown: Json = serde_json::from_str(&status.stdout).unwrap();
    let [shown] = shown["searches"].as_array().unwrap().as_slice() else { panic!("{shown}") };
    assert_eq!(
        (&shown["index"], &shown["dead_letters"]),
        (&json!(format!("{INDEX}-v1-2")), &json!(0)),
        "{shown}"
    );
    installation.command(&["dead-letters", "list"]).await.expect_success();
}

/// Devices are found by parts of their codes, page by page; impossible queries are refused by name.
async fn found(daemon: &Daemon) {
    let ask = async |query: &str| daemon.ask("GET", &format!("/v1/serials?{query}"), Some(TOKEN), "").await;
    let uuids = |answer: &Json| -> Vec<String> {
        let devices = answer["devices"].as_array().unwrap().iter();
        devices.map(|device| device["uuid"].as_str().unwrap().to_owned()).collect()
    };
    // The index is refreshed once a second.
    let answer = until_some("devices are found", async || {
        let (status, answer) = ask("part=x%2027&limit=100").await;
        (status == 200 && uuids(&answer).len() == 10).then_some(answer)
    })
    .await;
    assert_eq!(uuids(&answer)[0], "270");
    let document = &answer["devices"][0]["documents"][0];
    assert_eq!((&document["box_no"], &document["table"]), (&json!("BOX 27"), &json!("serial_code_00")));
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let (status, page) = ask(&format!("part=3569380356&limit=70{after}")).await;
        assert_eq!(status, 200, "{page}");
        seen.extend(uuids(&page));
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert_eq!(seen.len(), 300, "each device on one page");
    assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "{seen:?}");
    for (query, named) in [
        ("", "one of part, agent, warehouse, account, sku is needed"),
        ("part=ab", "part has 2 characters; it needs 3"),
        ("part=abc&limit=1000", "limit is 1000; it can be 1 to 100"),
        ("part=abc&after=x", "after is not the `next` of a page"),
        ("agnt=7", "agnt"),
    ] {
        let (status, problem) = ask(query).await;
        assert_eq!((status, &problem["code"]), (422, &json!("lookup-malformed")), "{query}");
        assert!(problem["detail"].as_str().unwrap().contains(named), "{query}: {problem}");
    }
    for syntax in ["*%3A*", "box_no%3A27", "%22%7B%7D%5C", "%00%00%00", "(((", "AND%20OR"] {
        let (status, answer) = ask(&format!("part={syntax}")).await;
        assert_eq!((status, uuids(&answer).len()), (200, 0), "{syntax}: {answer}");
    }
    assert_eq!(daemon.ask("GET", "/v1/serials?part=abc", Some("wrong-token-of-16"), "").await.0, 401);
}

/// Replays the projection from nothing: damaged documents are right again.
async fn replayed(installation: &Installation<'_>, daemon: &Daemon) {
    daemon.until_ready().await;
    damage(&Search::of(installation.stack())).await;
    installation
        .command(&["replay", "--projection", "documents", "--from", "nothing", "--confirm", "documents"])
        .await
        .expect_success();
    equal(installation, "replayed from nothing").await;
}

/// Changes a document by hand; returns its id.
pub async fn damage(search: &Search) -> String {
    let stored = search.documents(INDEX).await;
    let is_kept = |document: &Json| document["table"] == "serial_code_00";
    let (id, document) = stored.into_iter().find(|(_, document)| is_kept(document)).unwrap();
    let mut document = document;
    document["imei1"] = "damaged".into();
    let version = document["lsn"].as_u64().unwrap();
    let path = format!("{INDEX}-v1/_doc/{id}?version={version}&version_type=external_gte");
    search.ask(reqwest::Method::PUT, &path, document).await;
    id
}

/// Documents of an epoch are written one by one, and progress last. So the epoch is recorded before the first document.
#[tokio::test(flavor = "multi_thread")]
async fn a_later_epoch_is_noted_before_its_first_document() {
    let mut installation = with_documents().await;
    let standby = standby(&installation, "standby").await;
    let mut daemon = installation.run();
    add(&installation, 0, 10).await;
    equal(&installation, "first devices").await;
    daemon.kill();
    promote(&installation, "standby", "source-a").await;
    let text = std::fs::read_to_string(installation.configuration_file()).unwrap();
    replace(&mut installation, "source-a", "standby");
    let text = text.replace("${ANABRANCH_SOURCE_A_URL}", "${ANABRANCH_STANDBY_URL}");
    installation.write_configuration_text(&text);
    let devices = "INSERT INTO inventory_0.serial_code_00 (uuid, imei1) VALUES (20, '356938035600020'), \
                   (21, '356938035600021'), (22, '356938035600022'), (23, '356938035600023')";
    installation.execute("standby", devices).await;
    installation.free_leases().await;
    let mut daemon = installation.run_with(&[], &[("ANABRANCH_FAILPOINT", "documents-sent")]);
    daemon.until_failpoint("documents-sent").await;
    daemon.kill();
    let epoch = |number: &Json| Lsn::from_u64(number.as_u64().unwrap()).unwrap().epoch();
    let progress = Search::of(installation.stack())
        .find("*-progress", json!({ "exists": { "field": "position" } }))
        .await;
    let epochs = |lane: &Json| (epoch(&lane["position"]), epoch(&lane["highest_position"]));
    let epochs: Vec<_> = progress.values().map(epochs).collect();
    assert!(epochs.contains(&(1, 2)), "position and highest position of the lanes: {epochs:?}");
    blocking(|| standby.stop()).unwrap();
}

/// Returns the name of the index that serves, and how many documents are parked.
async fn serving(installation: &Installation<'_>) -> (String, u64) {
    let shown = installation.command(&["status", "--json"]).await.json();
    let [search] = shown["searches"].as_array().unwrap().as_slice() else { panic!("{shown}") };
    (search["index"].as_str().unwrap().to_owned(), search["dead_letters"].as_u64().unwrap())
}

/// A captured column is away while an index is built, so its table owes a reading, which holds up the new index. A
/// column of another table has the second of its names meanwhile, which holds up nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_is_built_while_captured_columns_are_renamed_serves_after_the_reread() {
    let mut installation = with_documents().await;
    let text = std::fs::read_to_string(installation.configuration_file()).unwrap();
    let entity = "entity = \"serial_code\"\n";
    let columns = format!("{entity}columns = {{ box_no = [\"box_no\", \"box_number\"] }}\n");
    let text = text.replace(entity, &columns);
    assert!(text.contains("box_number"), "{text}");
    installation.write_configuration_text(&text);
    let daemon = installation.run();
    add(&installation, 0, 200).await;
    equal(&installation, "first devices").await;
    let old = serving(&installation).await;

    let armed = [("ANABRANCH_FAILPOINT", "lane-before-commit")];
    let mut rebuild = installation.start(&["search", "rebuild", "documents"], &armed);
    rebuild.until_failpoint("lane-before-commit").await;
    let renamed = "ALTER TABLE inventory_0.serial_code_00 RENAME COLUMN imei1 TO code; \
                   INSERT INTO inventory_0.serial_code_00 (uuid, code) VALUES (1000, '356938035601000'); \
                   UPDATE inventory_0.serial_code_00 SET code = '356938035601001' WHERE uuid < 50; \
                   ALTER TABLE inventory_0.serial_code_01 RENAME COLUMN box_no TO box_number; \
                   UPDATE inventory_0.serial_code_01 SET box_number = 'BOX X' WHERE uuid < 50";
    installation.execute("source-a", renamed).await;
    rebuild.resume();
    until("the rebuild waits for the table", async || {
        rebuild.log().contains("rebuilding: the lane still reads tables")
    })
    .await;
    assert!(rebuild.is_running(), "{}", rebuild.log());
    assert_eq!(serving(&installation).await, old, "the new index waits for the table");
    assert!(daemon.metric("anabranch_source_rereads_total", &[]).await > 0.0, "the table owes a reading");

    let renamed_back = "ALTER TABLE inventory_0.serial_code_00 RENAME COLUMN code TO imei1; \
                        ALTER TABLE inventory_0.serial_code_01 RENAME COLUMN box_number TO box_no";
    installation.execute("source-a", renamed_back).await;
    let ended = rebuild.wait();
    assert_eq!(ended.and_then(|status| status.code()), Some(0), "{}", rebuild.log());
    equal(&installation, "an index was built around renamed columns").await;
    assert_eq!(serving(&installation).await, (format!("{INDEX}-v1-2"), 0));
}
