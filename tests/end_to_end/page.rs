//! The live page and its parts: files, headers, streams of events, and the page in a browser where there is one.

use std::collections::BTreeSet;
use std::time::Duration;

use anabranch_demo::WorkloadOptions;
use anabranch_tests::{Installation, Plan, WAIT_MAX, browser, seed, until};
use serde_json::Value as Json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;

use crate::STANDARD;

const TOKEN: &str = "token-of-the-page";
/// Part of a reason against readiness whose text is left out.
const NO_TEXT: &str = "a token shows its text";
const POLICY: &str =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:";
/// Number of streams that the daemon serves at once.
const STREAMS: usize = 100;
/// Number of streams that clients open at once, fewer than the connections that the daemon takes.
const STREAMS_OF_MANY: usize = 500;

async fn installation() -> Installation<'static> {
    let mut installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let with_token = installation.configuration_text_with_http(&format!("tokens = [\"{TOKEN}\"]"));
    installation.write_configuration_text(&with_token);
    installation
}

fn address(installation: &Installation<'_>) -> String {
    format!("127.0.0.1:{}", installation.configuration.http_port)
}

async fn asked(installation: &Installation<'_>, path: &str, token: Option<&str>) -> TcpStream {
    let mut stream = TcpStream::connect(address(installation)).await.unwrap();
    let authorization = token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: anabranch\r\nConnection: close\r\n{authorization}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Head and body of an answer.
async fn get(installation: &Installation<'_>, path: &str) -> (String, String) {
    let mut answer = String::new();
    asked(installation, path, None).await.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_lowercase(), body.to_owned())
}

/// Opens a stream of events; returns its lines.
async fn events(installation: &Installation<'_>, token: Option<&str>) -> Lines<BufReader<TcpStream>> {
    BufReader::new(asked(installation, "/v1/events", token).await).lines()
}

/// The next document of a stream.
async fn next(lines: &mut Lines<BufReader<TcpStream>>) -> Json {
    let document = async {
        loop {
            let line = lines.next_line().await.unwrap().expect("the stream goes on");
            if let Some(document) = line.strip_prefix("data: ") {
                return serde_json::from_str(document).unwrap();
            }
        }
    };
    tokio::time::timeout(WAIT_MAX, document).await.expect("an event comes")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_served_whole_with_strict_headers_and_shows_its_sentence_and_lanes() {
    let installation = installation().await;
    let mut daemon = installation.run();
    daemon.until_ready().await;
    let (head, index) = get(&installation, "/").await;
    assert!(head.contains("content-type: text/html; charset=utf-8"), "{head}");
    let files: Vec<&str> = index.split('"').filter(|part| part.starts_with("/page/")).collect();
    assert_eq!(files, ["/page/page.css", "/page/page.js"]);
    check_files(&installation, files.into_iter().chain(["/"]).map(str::to_owned).collect()).await;
    assert_eq!(daemon.ask("GET", "/page/..%2f..%2fCargo.toml", None, "").await.0, 404);
    let (head, section) = get(&installation, "/v1/runbook/source-unreachable").await;
    assert!(head.contains("text/markdown") && section.contains("### source-unreachable\n"), "{head}");
    let (_, section) = get(&installation, "/v1/runbook/what-runs-out-the-binlog").await;
    assert!(section.contains("#### What runs out: the binlog\n"), "{section}");
    assert_eq!(daemon.ask("GET", "/v1/runbook/%3Cscript%3E", None, "").await.1["code"], "code-unknown");
    let mut stream = events(&installation, None).await;
    let is_current = |document: &Json| {
        let views = ["sources", "lanes"].into_iter().flat_map(|kind| document[kind].as_array().unwrap());
        views.into_iter().all(|view| view["state"] == "current" && view["refreshed_rows"].is_null())
    };
    while !is_current(&next(&mut stream).await) {}
    check_in_browser(&installation).await;
    daemon.kill();
}

/// Checks headers and text of the page's files, and of the modules that they import.
async fn check_files(installation: &Installation<'_>, files: Vec<String>) {
    let mut left = files;
    let mut checked = BTreeSet::new();
    while let Some(path) = left.pop() {
        if !checked.insert(path.clone()) {
            continue;
        }
        let (head, text) = get(installation, &path).await;
        assert!(head.starts_with("http/1.1 200"), "{path}: {head}");
        let kind = match path.rsplit_once('.') {
            Some((_, "css")) => "text/css",
            Some((_, "js")) => "text/javascript",
            _ => "text/html",
        };
        for wanted in [
            &format!("content-type: {kind}; charset=utf-8"),
            &format!("content-security-policy: {POLICY}"),
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
        ] {
            assert!(head.contains(wanted), "{wanted} of {path}: {head}");
        }
        // The name of a vocabulary is an address that no browser requests.
        let text = text.replace("http://www.w3.org/2000/svg", "");
        assert!(!text.contains("://"), "{path} refers to an outside address");
        if kind == "text/javascript" {
            left.extend(text.split('"').filter(|part| part.starts_with("/page/")).map(str::to_owned));
        }
    }
    assert!(checked.contains("/page/stream.js"), "the modules were not found: {checked:?}");
}

/// Expects the page in a browser to have the sentence, a row for a lane, and no message on its console.
async fn check_in_browser(installation: &Installation<'_>) {
    let Some(browser) = browser().await else { return };
    browser.open(&format!("http://{}/", address(installation))).await.unwrap();
    let wanted = "All is current: 2 sources, 4 lanes";
    let is_shown = format!("document.getElementById('sentence').textContent.startsWith('{wanted}')");
    let shown = browser.until(&is_shown, WAIT_MAX).await.unwrap();
    let page = browser.script("return document.documentElement.outerHTML;").await.unwrap();
    assert!(shown.is_some(), "{wanted} is not in {page}");
    for wanted in [">birthday/target/source-a/0</th>", "<svg"] {
        assert!(page.as_str().unwrap().contains(wanted), "{wanted} is not in {page}");
    }
    // Each stream has an edge, and lanes have one on both sides of them.
    let edges = "[...document.querySelectorAll('#drawing .edge')].filter((edge) =>
        /(msg|rows)\\/s$/.test(edge.querySelector('text')?.textContent ?? '')
        && /(no lag|behind)$/.test(edge.querySelector('.lag')?.textContent ?? '')
        && edge.querySelector('title')?.textContent.startsWith('current: ')).length === 6";
    assert!(browser.until(edges, WAIT_MAX).await.unwrap().is_some(), "each edge has state, rate and lag");
    let store = "[...document.querySelectorAll('#stores tbody tr')].some((row) =>
        row.children[0].textContent === 'birthday on target' && /.s$/.test(row.children[4].textContent)
        && /^[0-9]+ of [0-9]+/.test(row.children[6].textContent))";
    assert!(browser.until(store, WAIT_MAX).await.unwrap().is_some(), "a store has its rate and connections");
    assert_eq!(browser.console().await.unwrap(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn events_come_each_second_to_a_hundred_streams_of_five_hundred_and_end_with_the_daemon() {
    let installation = installation().await;
    let mut daemon = installation.run();
    daemon.until_ready().await;
    // The stream may send its first documents before this test goes on.
    let began = std::time::Instant::now();
    let mut first = events(&installation, None).await;
    for _ in 0..3 {
        let document = next(&mut first).await;
        assert_eq!(document["lanes"].as_array().map(Vec::len), Some(4), "{document}");
    }
    assert!(began.elapsed() > Duration::from_millis(1_500), "at most one a second");

    let mut streams = vec![first];
    let mut unread = Vec::new();
    while streams.len() + unread.len() < STREAMS_OF_MANY {
        unread.push(events(&installation, None).await);
    }
    // None of them has read a byte; probes and scrapes find room beside them.
    assert_eq!(daemon.ask("GET", "/livez", None, "").await.0, 200);
    assert!(daemon.metric("anabranch_build_info", &[]).await == 1.0, "a scrape is answered");
    for mut stream in unread {
        match stream.next_line().await.unwrap().as_deref() {
            Some("HTTP/1.1 200 OK") => streams.push(stream),
            other => assert_eq!(other, Some("HTTP/1.1 503 Service Unavailable")),
        }
    }
    assert_eq!(streams.len(), STREAMS, "each place is given to one stream");
    let (status, problem) = daemon.ask("GET", "/v1/events", None, "").await;
    assert_eq!((status, &problem["code"]), (503, &Json::from("too-many-requests")), "{problem}");
    streams.pop();
    until("a place is free again", async || {
        let mut stream = events(&installation, None).await;
        stream.next_line().await.unwrap().as_deref() == Some("HTTP/1.1 200 OK")
    })
    .await;

    daemon.ask_to_end();
    let ended =
        tokio::time::timeout(WAIT_MAX, async { while streams[0].next_line().await.unwrap().is_some() {} });
    ended.await.expect("streams end with the daemon");
    assert!(daemon.wait().expect("it ends").success());
}

/// A daemon of lanes alone, one of whose sources is down since its start, in an installation that never reconciled.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_without_a_reader_and_with_a_source_down_since_its_start_shows_what_it_knows() {
    let installation = installation().await;
    installation.server("source-b").kill().unwrap();
    let daemon = installation.run_with(&["--role", "projector"], &[]);
    let is_down = |view: &Json| view["code"] == "source-unreachable";
    let source = daemon.until_view("sources", ("source", "source-b"), is_down).await;
    assert!(source["head"].is_null() && source["lag_seconds"].is_null(), "{source}");
    let status = daemon.status().await.expect("it answers");
    let tasks = status["tasks"].as_array().unwrap().iter().map(|task| task["task"].as_str().unwrap());
    assert!(tasks.clone().all(|task| task.starts_with("lane/")) && tasks.count() == 4, "{status}");
    let (answered, history) = daemon.ask("GET", "/v1/reconciliations", None, "").await;
    assert_eq!(
        (answered, &history["reconciliations"], &history["next"]),
        (200, &Json::Array(Vec::new()), &Json::Null),
        "{history}"
    );
    let down = "anabranch_dependency_up{dependency=\"source\",name=\"source-b\"} 0";
    let never = "anabranch_reconcile_ended_timestamp_seconds 0";
    until("the scrape says what is known", async || {
        let scrape = daemon.metrics().await;
        [down, never].iter().all(|wanted| scrape.lines().any(|line| line == *wanted))
    })
    .await;
    let scrape = daemon.metrics().await;
    for absent in ["anabranch_capture_lag_seconds{source=\"source-b\"}", "anabranch_log_messages_total{"] {
        assert!(!scrape.contains(absent), "{absent} is in {scrape}");
    }
    if let Some(browser) = browser().await {
        browser.open(&format!("http://{}/", address(&installation))).await.unwrap();
        let is_shown = "document.getElementById('sentence').textContent.includes('source-b')";
        assert!(browser.until(is_shown, WAIT_MAX).await.unwrap().is_some(), "the page names the source");
        let is_read = "document.getElementById('history-said').textContent !== ''";
        assert!(browser.until(is_read, WAIT_MAX).await.unwrap().is_some(), "the page says of the history");
        let is_good = "return document.getElementById('verdict').className.includes('good');";
        assert_eq!(browser.script(is_good).await.unwrap(), false);
        assert_eq!(browser.console().await.unwrap(), Vec::<String>::new());
    }
    installation.server("source-b").restart().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_sends_no_token_learns_codes_and_neither_hosts_nor_accounts() {
    let installation = installation().await;
    let mut daemon = installation.run();
    daemon.until_ready().await;
    installation.server("source-a").kill().unwrap();
    let retries = |view: &Json| view["state"] == "retrying" && view["code"] == "source-unreachable";
    daemon.until_view("tasks", ("task", "reader/source-a"), retries).await;
    let (mut open, mut known) = (events(&installation, None).await, events(&installation, Some(TOKEN)).await);
    let pause = ["pause", "--projection", "birthday", "--source", "source-b", "--reason", "of the operator"];
    installation.command(&pause).await.expect_success();
    daemon.until_view("lanes", ("source", "source-b"), |lane| lane["pause"].is_object()).await;
    let full = [unreachable(&mut known).await, daemon.ask("GET", "/v1/status", Some(TOKEN), "").await.1];
    assert!(full.iter().all(|status| status["sources"][0]["fault"].is_string()), "{full:?}");
    let (_, ready) = daemon.ask("GET", "/readyz", Some(TOKEN), "").await;
    assert!(!ready.to_string().contains(NO_TEXT), "{ready}");
    let mut answers = vec![unreachable(&mut open).await, daemon.ask("GET", "/v1/status", None, "").await.1];
    // A probe whose token was changed is answered as one without any.
    for (path, token) in [("/readyz", None), ("/readyz/reader", None), ("/readyz", Some("another"))] {
        let (status, ready) = daemon.ask("GET", path, token, "").await;
        assert!(status == 503 && ready.to_string().contains(NO_TEXT), "{path}: {ready}");
        answers.push(ready);
    }
    let texts = ["127.0.0.1", "localhost", "anabranch_", "@", "of the operator", "Connection refused"];
    for short in answers.iter().map(Json::to_string) {
        assert!(short.contains("source-unreachable"), "{short}");
        assert!(texts.iter().all(|text| !short.contains(text)), "{short}");
    }
    // The command sends a token of its own, which the configured one gives.
    let shown = installation.command(&["status", "--json"]).await.json();
    let mut tasks = shown["tasks"].as_array().unwrap().iter();
    let reader = tasks.find(|task| task["task"] == "reader/source-a").unwrap();
    assert!(reader["fault"].is_string(), "{shown}");
    let refused = daemon.ask("GET", "/v1/events", Some("another"), "").await;
    assert_eq!((refused.0, &refused.1["code"]), (401, &Json::from("token-refused")));
    installation.server("source-a").restart().unwrap();
    daemon.kill();
}

/// The next document that shows the first source as unreachable. One that was made a moment before may come first.
async fn unreachable(stream: &mut Lines<BufReader<TcpStream>>) -> Json {
    let document = async {
        loop {
            let document = next(stream).await;
            if document["sources"][0]["code"] == "source-unreachable" {
                return document;
            }
        }
    };
    tokio::time::timeout(WAIT_MAX, document).await.expect("the source is shown as unreachable")
}

#[tokio::test(flavor = "multi_thread")]
async fn past_reconciliations_are_listed_by_pages_and_a_changed_report_loses_its_seal() {
    let installation = installation().await;
    let mut daemon = installation.run();
    daemon.until_ready().await;
    installation.workload(WorkloadOptions::new(seed("page"))).insert_rows(200).await.unwrap();
    installation.expect_equal().await;
    for _ in 0..3 {
        installation.command(&["reconcile", "--now"]).await.expect_success();
    }
    let list = async |path: &str| daemon.ask("GET", path, None, "").await.1;
    let page = list("/v1/reconciliations?limit=2").await;
    assert_eq!(
        (page["reconciliations"].as_array().map(Vec::len), &page["next"]),
        (Some(2), &Json::from(2)),
        "{page}"
    );
    let newest = &page["reconciliations"][0];
    assert_eq!((&newest["verdict"], &newest["seal"]), (&Json::from("clean"), &Json::from("whole")), "{page}");
    assert!(newest["stores"][0]["rows_source"].as_u64() >= Some(200), "{page}");
    let rest = list("/v1/reconciliations?before=2").await;
    assert_eq!(
        (&rest["reconciliations"][0]["number"], &rest["next"]),
        (&Json::from(1), &Json::Null),
        "{rest}"
    );
    let refused = daemon.ask("GET", "/v1/reconciliations?limit=0", None, "").await;
    assert_eq!((refused.0, &refused.1["code"]), (422, &Json::from("count-out-of-range")));

    let changed = "UPDATE anabranch.reconciliations SET verdict = 'clean', report = CONCAT(report, ' ') WHERE number = 2";
    installation.execute("target", changed).await;
    daemon.kill();
    let again = installation.run();
    again.until_ready().await;
    let page = again.ask("GET", "/v1/reconciliations", None, "").await.1;
    let seals: Vec<_> = page["reconciliations"].as_array().unwrap().iter().map(|one| &one["seal"]).collect();
    assert_eq!(seals, ["whole", "broken", "whole"], "{page}");
    let Some(browser) = browser().await else { return };
    browser.open(&format!("http://{}/", address(&installation))).await.unwrap();
    let is_shown = "document.getElementById('sentence').textContent.includes('has a broken seal') \
        && document.getElementById('verdict').className.includes('bad')";
    assert!(browser.until(is_shown, WAIT_MAX).await.unwrap().is_some(), "a broken seal is never green");
}
