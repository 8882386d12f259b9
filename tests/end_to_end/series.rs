//! The last hours as a daemon saw them, the processes that hold its leases, and its busiest tables.

use anabranch_tests::{Daemon, Installation, Plan, until, until_some};
use serde_json::Value as Json;

use crate::STANDARD;

const TOKEN: &str = "token-of-the-series";
const LANE: &str = "lane/birthday/target/source-a/0";
const TABLE: &str = "user_00.user_000";
const ROWS: u32 = 200;

async fn installation() -> Installation<'static> {
    let mut installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let with_token = installation.configuration_text_with_http(&format!("tokens = [\"{TOKEN}\"]"));
    installation.write_configuration_text(&with_token);
    installation
}

async fn answer(daemon: &Daemon, path: &str, token: Option<&str>) -> Json {
    let (status, answer) = daemon.ask("GET", path, token, "").await;
    assert_eq!(status, 200, "{answer}");
    answer
}

fn list<'j>(answer: &'j Json, name: &str) -> &'j [Json] {
    answer[name].as_array().unwrap_or_else(|| panic!("{name} is no list: {answer}"))
}

async fn insert_rows(installation: &Installation<'_>) {
    let rows: Vec<String> = (1..=ROWS).map(|id| format!("({id}, 'n{id}', '1990-01-05')")).collect();
    let insert = format!("INSERT INTO {TABLE} (user_id, user_name, birthday) VALUES {}", rows.join(", "));
    installation.execute("source-a", insert).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_hours_have_the_workload_and_a_task_that_retried() {
    let installation = installation().await;
    let mut daemon = installation.run();
    daemon.until_loaded(&["source-a", "source-b"]).await;
    insert_rows(&installation).await;
    let is_moved = |series: &Json| list(series, "rate").iter().any(|rate| rate.as_f64() > Some(0.0));
    let shown = until_some("the ring has the workload", async || {
        let shown = answer(&daemon, "/v1/series", None).await;
        let of = |thing: &str| list(&shown, "series").iter().find(|series| series["thing"] == thing);
        let is_there = of(LANE).is_some_and(is_moved) && of("source/source-a").is_some_and(is_moved);
        let mut all = list(&shown, "series").iter();
        let has_lags = all.all(|series| list(series, "lag").iter().any(Json::is_number));
        (is_there && has_lags).then_some(shown)
    })
    .await;
    assert_eq!(list(&shown, "series").len(), 2 + 4, "{shown}");
    let length = list(&shown["series"][0], "rate").len();
    for series in list(&shown, "series") {
        assert_eq!((list(series, "rate").len(), list(series, "lag").len()), (length, length), "{shown}");
    }
    let number = |name: &str| shown[name].as_u64().unwrap();
    assert_eq!(number("step_seconds"), 10);
    assert!(number("ends_at_ms") <= number("now_ms"), "{shown}");
    let one = answer(&daemon, &format!("/v1/series?thing={LANE}"), Some(TOKEN)).await;
    assert_eq!((list(&one, "series").len(), &one["series"][0]["thing"]), (1, &Json::from(LANE)), "{one}");
    let (status, problem) = daemon.ask("GET", "/v1/series?thing=lane/none", None, "").await;
    assert_eq!((status, &problem["code"]), (404, &Json::from("route-unknown")), "{problem}");

    installation.server("source-a").kill().unwrap();
    let retried = |event: &Json| {
        event["thing"] == "source/source-a"
            && event["to"] == "retrying"
            && event["code"] == "source-unreachable"
            && event["from"].is_string()
            && event["at_ms"].is_u64()
    };
    until("the events have the reader that retries", async || {
        let shown = answer(&daemon, "/v1/series", None).await;
        list(&shown, "events").iter().any(retried)
    })
    .await;
    installation.server("source-a").restart().unwrap();
    daemon.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn holders_of_leases_and_busy_tables_are_shown_only_to_a_sender_with_a_token() {
    let installation = installation().await;
    let mut daemon = installation.run();
    daemon.until_loaded(&["source-a", "source-b"]).await;
    insert_rows(&installation).await;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let holder = format!("{} {}", host.trim(), daemon.pid());
    let is_held = |shown: &Json, lease: &str, holder: &Json| {
        let mut leases = list(shown, "leases").iter();
        leases.any(|view| view["lease"] == lease && view["holder"] == *holder && view["is_here"] == true)
    };
    let known = until_some("leases and busy tables are known", async || {
        let shown = answer(&daemon, "/v1/status", Some(TOKEN)).await;
        let holder = Json::from(holder.as_str());
        let are_held = [LANE, "reader/source-b"].into_iter().all(|lease| is_held(&shown, lease, &holder));
        (are_held && shown["busiest"][0]["table"] == TABLE).then_some(shown)
    })
    .await;
    let busiest = &known["busiest"][0];
    assert!(busiest["source"] == "source-a" && list(&known, "busiest").len() <= 10, "{known}");
    let changes = busiest["changes_per_minute"].as_f64().unwrap();
    assert!(changes > 0.0 && changes <= f64::from(ROWS), "{known}");

    let open = answer(&daemon, "/v1/status", None).await;
    assert!(is_held(&open, LANE, &Json::Null) && list(&open, "busiest").is_empty(), "{open}");
    assert!(list(&open, "leases").iter().all(|view| view["holder"].is_null()), "{open}");
    for path in ["/v1/status", "/v1/series"] {
        let (status, problem) = daemon.ask("GET", path, Some("another"), "").await;
        assert_eq!((status, &problem["code"]), (401, &Json::from("token-refused")), "{problem}");
    }
    let shown = installation.command(&["status", "--json"]).await.json();
    assert!(is_held(&shown, LANE, &Json::from(holder.as_str())), "{shown}");
    daemon.kill();
}
