//! Which payment documents belong together, over HTTP and by command: two sources, log, relation index, API.

use anabranch_demo::Connection;
use anabranch_tests::{Daemon, Installation, Plan, until_some};
use serde_json::{Value as Json, json};

use crate::{STANDARD, payments};

/// The token of an application, for [`found`].
pub const TOKEN: &str = "application-token-1";

/// Tables of the tests in the database of the user partitions 00 to 09.
const TABLES: [&str; 5] =
    ["composite_05_05", "composite_05_99", "composite_06_05", "atom_05_05", "atom_05_99"];

/// A recharge in main, and what follows it: level, business code, side, month, sequence.
pub const RECHARGE: (u8, u8, u8, u8, u32) = (0, 1, 0, 5, 1);
const CAPTURE: (u8, u8, u8, u8, u32) = (0, 2, 0, 5, 2);
const SECOND_CAPTURE: (u8, u8, u8, u8, u32) = (0, 2, 0, 5, 3);
const REFUND: (u8, u8, u8, u8, u32) = (0, 3, 0, 99, 4);
const CLEARING: (u8, u8, u8, u8, u32) = (1, 1, 0, 5, 5);
const REFUND_CLEARING: (u8, u8, u8, u8, u32) = (1, 3, 0, 99, 6);
/// A clearing that failed over by itself, on the second source.
const FAILED_OVER: (u8, u8, u8, u8, u32) = (1, 1, 1, 5, 7);
/// A capture in the table of another user partition.
const MISPLACED: (u8, u8, u8, u8, u32) = (0, 2, 0, 5, 8);
const UNKNOWN: (u8, u8, u8, u8, u32) = (0, 1, 0, 5, 99);

/// The identifier of a document of Singapore's user partition 05.
pub fn id((level, business, side, month, sequence): (u8, u8, u8, u8, u32)) -> String {
    format!("2016060611031{level}{business:02}{side}{month:02}0500{sequence:08}")
}

/// Adds region and side of each source to a configuration: the first is main, and the second fail-over.
pub fn with_sites(mut text: String) -> String {
    for (source, side) in [("source-a", "main"), ("source-b", "fail_over")] {
        let heading = format!("[[sources]]\nname = \"{source}\"\n");
        assert!(text.contains(&heading), "{text}");
        let site = format!("{heading}flux = {{ region = \"singapore\", side = \"{side}\" }}\n");
        text = text.replace(&heading, &site);
    }
    text
}

/// An installation with the tables of payment documents beside the users.
pub async fn installation() -> Installation<'static> {
    let mut installation = Installation::prepare(STANDARD.turn().await, &Plan::small()).await;
    payments::create_tables(&installation, &TABLES).await;
    let text = installation.configuration_text_with_http(&format!("tokens = [\"{TOKEN}\"]"));
    let text = with_sites(text)
        + r#"
[flux.kinds]
"01" = ["recharge", "recharge-clearing"]
"02" = "capture"
"03" = ["refund", "refund-clearing"]
"04" = "cancel"
[[entities]]
entity = "flux"
level = "composite"
tables = "flux_00_{db}.composite_{partition:02}_{month:02}"
columns = { amount = "amount", created = "created" }
[[entities]]
entity = "flux"
level = "atom"
tables = "flux_00_{db}.atom_{partition:02}_{month:02}"
columns = { amount = "amount", created = "created" }
[[projections]]
name = "relations"
kind = "flux_relations"
targets = ["target"]
lanes = 2
"#;
    payments::set_up(&mut installation, &text).await;
    installation
}

/// An INSERT of a document into one of the tables.
pub fn insert(table: &str, document: &str, parent: Option<&str>) -> String {
    let parent = parent.map_or_else(|| "NULL".to_owned(), |parent| format!("'{parent}'"));
    format!(
        "INSERT INTO flux_00_0.{table} (id, parent_id, amount, created) \
         VALUES ('{document}', {parent}, 12.5, '2016-06-06 23:59:59.25');"
    )
}

/// Runs the statements and returns the GTID of their changes as a place.
pub async fn change(source: &str, connection: &mut Connection, sql: &str) -> String {
    connection.execute("change documents", sql).await.unwrap();
    let gtid = "SELECT /*M! @@last_gtid */ /*!80400 REPLACE(@@GLOBAL.gtid_executed, '\n', '') */";
    let gtid: Vec<String> = connection.rows("ask for the GTID", gtid).await.unwrap();
    format!("{source}:{}", gtid[0])
}

async fn get(daemon: &Daemon, path_and_query: &str) -> (u16, Json) {
    daemon.ask("GET", &format!("/v1/flux/{path_and_query}"), Some(TOKEN), "").await
}

/// Asks about a document; the answer is there.
pub async fn found(daemon: &Daemon, path_and_query: &str) -> Json {
    let (status, answer) = get(daemon, path_and_query).await;
    assert_eq!(status, 200, "{path_and_query}: {answer}");
    answer
}

/// Asks until the lanes have passed the place: a busy machine may need longer than a request waits.
pub async fn found_at_least(daemon: &Daemon, path: &str, place: &str) -> Json {
    until_some(&format!("{path} at least at {place}"), async || {
        let (status, answer) = get(daemon, &format!("{path}?at_least={place}")).await;
        assert!(status == 200 || answer["code"] == "lookup-lagging", "{answer}");
        (status == 200).then_some(answer)
    })
    .await
}

/// (depth, identifier) of each document of a page.
pub fn places(answer: &Json) -> Vec<(u64, String)> {
    let documents = answer["documents"].as_array().unwrap().iter();
    documents.map(|view| (view["depth"].as_u64().unwrap(), view["id"].as_str().unwrap().to_owned())).collect()
}

fn ids(list: &Json) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|view| view["id"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn all_documents_of_a_recharge_are_found_from_any_of_them_wherever_they_are() {
    let installation = installation().await;
    let daemon = installation.run();
    daemon.until_ready().await;
    daemon.until_loaded(&["source-a", "source-b"]).await;
    let mut main = installation.admin("source-a").await;
    let mut fail_over = installation.admin("source-b").await;
    let (recharge, refund, clearing) = (id(RECHARGE), id(REFUND), id(REFUND_CLEARING));

    // Children come before their parent.
    let children =
        insert("atom_05_99", &clearing, Some(&refund)) + &insert("composite_05_99", &refund, Some(&recharge));
    let place = change("source-a", &mut main, &children).await;
    let answer = found_at_least(&daemon, &clearing, &place).await;
    assert_eq!(ids(&answer["above"]), [&refund]);
    assert_eq!(answer["above_end"], json!({ "reason": "missing_parent", "parent": recharge }));
    let below = found(&daemon, &format!("{recharge}/relations")).await;
    assert_eq!(places(&below), [(1, refund.clone()), (2, clearing.clone())]);
    let missing = found(&daemon, &recharge).await;
    assert_eq!((&missing["claims"], &missing["above_end"]), (&json!([]), &json!(null)));

    let rest = [
        insert("composite_05_05", &recharge, None),
        insert("composite_05_05", &id(CAPTURE), Some(&recharge)),
        insert("composite_05_05", &id(SECOND_CAPTURE), Some(&recharge)),
        insert("atom_05_05", &id(CLEARING), Some(&recharge)),
        insert("composite_06_05", &id(MISPLACED), Some(&recharge)),
    ];
    let place = change("source-a", &mut main, &rest.concat()).await;
    let beside =
        change("source-b", &mut fail_over, &insert("atom_05_05", &id(FAILED_OVER), Some(&recharge))).await;
    found_at_least(&daemon, &recharge, &place).await;
    let whole = found_at_least(&daemon, &format!("{recharge}/relations"), &beside).await;
    let mut first_level =
        [CAPTURE, SECOND_CAPTURE, REFUND, CLEARING, FAILED_OVER, MISPLACED].map(id).map(|id| (1, id));
    first_level.sort();
    assert_eq!(places(&whole), [&first_level[..], &[(2, clearing.clone())]].concat());
    assert_eq!((&whole["is_cut"], &whole["next"]), (&json!(false), &json!(null)));
    in_pages(&daemon, &recharge, &whole).await;
    as_documents(&daemon).await;
    by_command(&installation, &recharge, &whole).await;
    refusals(&installation, &daemon, &recharge).await;

    // The parent goes, and what followed it stays.
    let delete = format!("DELETE FROM flux_00_0.composite_05_99 WHERE id = '{refund}'");
    let place = change("source-a", &mut main, &delete).await;
    let answer = found_at_least(&daemon, &clearing, &place).await;
    assert_eq!(answer["above_end"], json!({ "reason": "missing_parent", "parent": refund }));
    let left = found(&daemon, &format!("{recharge}/relations")).await;
    let expected: Vec<_> = first_level.into_iter().filter(|(_, id)| *id != refund).collect();
    assert_eq!(places(&left), expected);
    assert_eq!(places(&found(&daemon, &format!("{refund}/relations")).await), [(1, clearing.clone())]);

    // A document that is moved between tables is one document throughout.
    let copy = "INSERT INTO flux_00_0.composite_05_05 SELECT * FROM flux_00_0.composite_06_05";
    let place = change("source-a", &mut main, copy).await;
    let moved = found_at_least(&daemon, &id(MISPLACED), &place).await;
    assert_eq!(moved["claims"].as_array().unwrap().len(), 2, "{moved}");
    assert_eq!(places(&found(&daemon, &format!("{recharge}/relations")).await), expected);
    let place = change("source-a", &mut main, "DELETE FROM flux_00_0.composite_06_05").await;
    let moved = found_at_least(&daemon, &id(MISPLACED), &place).await;
    assert_eq!((moved["claims"].as_array().unwrap().len(), &moved["odd"]), (1, &json!([])), "{moved}");
}

/// Pages of two documents hold what one page holds.
async fn in_pages(daemon: &Daemon, recharge: &str, whole: &Json) {
    let (mut documents, mut after) = (Vec::new(), String::new());
    loop {
        let page = found(daemon, &format!("{recharge}/relations?limit=2{after}")).await;
        let views = page["documents"].as_array().unwrap();
        assert!((1..=2).contains(&views.len()), "{page}");
        documents.extend(views.clone());
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(Json::Array(documents), whole["documents"]);
}

/// A document is shown with its parts, its table, the way up from it and its oddities.
async fn as_documents(daemon: &Daemon) {
    let named = async |document| {
        until_some("the table is named", async || {
            let answer = found(daemon, &id(document)).await;
            answer["claims"][0]["table"].is_string().then_some(answer)
        })
        .await
    };
    let answer = named(REFUND_CLEARING).await;
    assert_eq!(ids(&answer["above"]), [id(REFUND), id(RECHARGE)]);
    assert_eq!((&answer["above_end"]["reason"], &answer["odd"]), (&json!("top"), &json!([])), "{answer}");
    assert_eq!((&answer["kind"], &answer["above"][0]["kind"]), (&json!("refund-clearing"), &json!("refund")));
    assert_eq!((&answer["parent"], &answer["amount"]), (&json!(id(REFUND)), &json!("12.5000")));
    assert_eq!(answer["created"], "2016-06-06 23:59:59.250000");
    let claim = &answer["claims"][0];
    assert_eq!(
        (&claim["source"], &claim["database"], &claim["table"]),
        (&json!("source-a"), &json!("flux_00_0"), &json!("atom_05_99"))
    );
    let parts = json!({
        "date": "2016-06-06", "version": "1", "region": "singapore", "system": "031", "level": "atom",
        "business": "03", "side": "main", "month": "99", "partition": "05", "reserved": "00", "sequence": "00000006"
    });
    assert_eq!(answer["parts"], parts);
    assert!(answer["freshness"]["lag_ms"].is_u64() && answer["freshness"]["replaying"] == false, "{answer}");

    for (document, source, texts) in [
        (MISPLACED, "source-a", &["user partition", "expected by its table: 06"][..]),
        (FAILED_OVER, "source-b", &["digit 17 says fail-over; expected: main"]),
        (RECHARGE, "source-a", &[]),
    ] {
        let answer = named(document).await;
        assert_eq!(answer["claims"][0]["source"], source, "{answer}");
        let odd = answer["odd"].to_string();
        assert!(texts.iter().all(|text| odd.contains(text)), "{texts:?} are not in {odd}");
        assert_eq!(answer["odd"].as_array().unwrap().is_empty(), texts.is_empty(), "{odd}");
    }
}

async fn by_command(installation: &Installation<'_>, recharge: &str, whole: &Json) {
    let show = async |further: &[&str]| {
        installation.command(&[&["flux", "show", recharge][..], further].concat()).await.expect_success()
    };
    let shown = show(&["--relations", "--json"]).await.json();
    assert_eq!((&shown["id"], &shown["relations"]["documents"]), (&json!(recharge), &whole["documents"]));
    assert!(show(&["--json"]).await.json()["relations"].is_null());
    let text = show(&["--relations", "--limit", "2"]).await.stdout;
    for wanted in ["recharge  12.5000", "flux_00_0.composite_05_05 of source-a", "there are more: --after 1."]
    {
        assert!(text.contains(wanted), "{wanted} is not in:\n{text}");
    }
    let next = text.lines().find_map(|line| line.strip_prefix("there are more: --after ")).unwrap();
    let text = show(&["--relations", "--after", next]).await.stdout;
    assert!(text.contains(&id(REFUND_CLEARING)) && !text.contains("there are more"), "{text}");

    let malformed = installation.command(&["flux", "show", &recharge[1..]]).await;
    assert_eq!(malformed.exit_code, 2, "{malformed:?}");
    assert!(malformed.stderr.contains("[flux-id-malformed]"), "{malformed:?}");
    let lagging = ["flux", "show", recharge, "--at-least", "source-a:1-1-999999999"];
    let lagging = installation.command(&lagging).await;
    assert_eq!(lagging.exit_code, 3, "{lagging:?}");
    assert!(lagging.stderr.contains("[lookup-lagging]"), "{lagging:?}");
    let unknown = installation.command(&["flux", "show", &id(UNKNOWN)]).await.expect_success();
    assert!(unknown.stdout.contains("no captured table has this document"), "{unknown:?}");
}

async fn refusals(installation: &Installation<'_>, daemon: &Daemon, recharge: &str) {
    let other_system = recharge.replacen("11031", "11032", 1);
    let other_month = id((0, 1, 0, 12, 1));
    for (question, status, code, named) in [
        (recharge[1..].to_owned(), 422, "flux-id-malformed", "it has 30 digits"),
        (format!("{}/relations", &recharge[1..]), 422, "flux-id-malformed", "it has 30 digits"),
        (other_system, 422, "flux-id-malformed", "digits 11 to 13 (system code)"),
        (other_month, 422, "flux-id-malformed", "digits 18 to 19 (month) are 12"),
        ("%FF".to_owned(), 422, "flux-id-malformed", "31 digits"),
        (format!("{recharge}?limit=7"), 422, "lookup-malformed", "limit"),
        (format!("{recharge}/relations?limit=0"), 422, "lookup-malformed", "1 to 1000"),
        (format!("{recharge}/relations?after={recharge}"), 422, "lookup-malformed", "`next`"),
        (format!("{recharge}?at_least=source-a"), 422, "lookup-malformed", "source:epoch:file:position"),
        (
            format!("{recharge}?at_least=source-z:1:2:3"),
            422,
            "lookup-malformed",
            "source-z`, which no lane of `relations`",
        ),
        (
            format!("{recharge}/relations?at_least=source-b:1:999:4"),
            503,
            "lookup-lagging",
            "relations/target/source-b",
        ),
    ] {
        let (found, problem) = get(daemon, &question).await;
        assert_eq!((found, problem["code"].as_str()), (status, Some(code)), "{question}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains(named), "{question}: {problem}");
    }
    let unknown = found(daemon, &id(UNKNOWN)).await;
    assert_eq!((&unknown["claims"], &unknown["kind"]), (&json!([]), &json!("recharge")));
    assert_eq!(places(&found(daemon, &format!("{}/relations", id(UNKNOWN))).await), []);
    for path in [format!("/v1/flux/{recharge}"), format!("/v1/flux/{recharge}/relations")] {
        assert_eq!(daemon.ask("GET", &path, None, "").await.0, 401, "{path}");
    }
    assert!(!daemon.log().contains(installation.server("target").password()), "the password is in the log");
}
