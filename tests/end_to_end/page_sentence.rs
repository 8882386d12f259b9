//! The sentence at the top of the live page in a real browser: it names what the alerts watch. The page's own modules
//! get documents of a daemon with one value changed, so that nothing has to run out. A machine that can have no browser
//! prints `skipped:`.

use anabranch_demo::browser::Browser;
use anabranch_tests::{Installation, Plan, WAIT_MAX, browser};
use serde_json::{Value as Json, json};

use crate::STANDARD;

const HOUR_SECONDS: u64 = 3_600;
const DAY_MS: u64 = 86_400_000;
/// The daemon's time in the documents.
const NOW_MS: u64 = 1_800_000_000_000;
const LOAD: &str = "
    Promise.all([import('/page/model.js'), import('/page/sentence.js')])
        .then(([model, made]) => { window.made = { ...model, ...made }; });
";
const SENTENCE: &str = "
    const [status, history, now] = arguments;
    const { level, text, advice, others } = window.made.sentence(
        window.made.read(JSON.stringify(status)), window.made.readHistory(history), now);
    return { level, text, advice: advice ?? '', others: others.map((one) => one.text) };
";

/// The sentence about a status and reconciliations, the newest first.
async fn sentence(browser: &Browser, status: &Json, past: &[Json]) -> Json {
    let history =
        json!({ "now_ms": NOW_MS, "is_signed": true, "code": null, "reconciliations": past, "underway": [] });
    browser.script_with(SENTENCE, &[status.clone(), history, json!(NOW_MS)]).await.unwrap()
}

/// A reconciliation of one store that has just ended.
fn reconciliation(id: &str, verdict: &str, is_whole: bool) -> Json {
    json!({
        "number": 1, "id": id, "ended_at_ms": NOW_MS, "verdict": verdict, "seal": "whole", "is_whole": is_whole,
        "stores": [{ "store": "birthday", "verdict": verdict }],
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sentence_names_what_alerts_watch_and_the_newest_whole_reconciliation_decides() {
    let Some(browser) = browser().await else { return };
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let daemon = installation.run();
    daemon.until_ready().await;
    browser.open(&format!("http://127.0.0.1:{}/", installation.configuration.http_port)).await.unwrap();
    let is_current =
        "document.getElementById('sentence').textContent === 'All is current: 2 sources, 4 lanes'";
    assert!(browser.until(is_current, WAIT_MAX).await.unwrap().is_some(), "all is current");
    // The daemon itself fills the cell of the stream.
    let is_filled = "/\\d %/.test(document.getElementById('sources').innerText)";
    assert!(browser.until(is_filled, WAIT_MAX).await.unwrap().is_some(), "a stream has a size");
    browser.script(LOAD).await.unwrap();
    assert!(browser.until("window.made", WAIT_MAX).await.unwrap().is_some(), "the modules are served");

    let status = daemon.status().await.expect("it answers");
    assert_eq!(status["drifts"], json!([]), "{status}");
    let proved = [reconciliation("n-1", "clean", true)];
    let calm = sentence(&browser, &status, &proved).await;
    assert_eq!(calm["text"], "All is current: 2 sources, 4 lanes", "{calm}");
    let unproved = sentence(&browser, &status, &[]).await;
    assert!(unproved["advice"].as_str().unwrap().contains("No whole reconciliation"), "{unproved}");
    // A report that was not read may be whole.
    for (key, value) in [("code", json!("target-unreachable")), ("unread", json!(3)), ("older", json!(1))] {
        let mut history =
            json!({ "now_ms": NOW_MS, "is_signed": true, "reconciliations": [], "underway": [] });
        history[key] = value;
        let parameters = [status.clone(), history, json!(NOW_MS)];
        let unknown = browser.script_with(SENTENCE, &parameters).await.unwrap();
        assert_eq!(unknown["advice"], "", "{key}: {unknown}");
    }
    check_alerts(&browser, &status, &proved).await;
    check_reconciliations(&browser, &status).await;
    assert_eq!(browser.console().await.unwrap(), Vec::<String>::new());
}

/// Expects the sentence to name each thing that an alert watches, from the alert's limit on.
async fn check_alerts(browser: &Browser, status: &Json, proved: &[Json]) {
    let certificate =
        |left_ms: u64| json!([{ "dependency": "log", "name": "log", "ends_at_ms": NOW_MS + left_ms }]);
    let limit = 6 * HOUR_SECONDS;
    let cases = [
        (
            "/lanes/0/paused_seconds_left",
            json!(limit - 1),
            json!(limit),
            "bad",
            "Paused lane ",
            "Paused lanes that",
        ),
        (
            "/sources/0/binlog_purge_seconds",
            json!(limit - 1),
            json!(limit),
            "bad",
            "Source ",
            "What runs out",
        ),
        (
            "/certificates",
            certificate(14 * DAY_MS - 1),
            certificate(14 * DAY_MS),
            "unsure",
            "The certificate of log log ends in 14 days",
            "Servers and certificates",
        ),
        (
            "/drifts",
            json!([{ "store": "birthday", "source": "source-a", "rows": 2 }]),
            json!([]),
            "unsure",
            "Spot checks found 2 wrong rows of birthday after changes in source-a",
            "Between two nightly",
        ),
        (
            "/lanes/0/withdrawn_tables",
            json!(1),
            json!(0),
            "busy",
            "1 lane of 4 remove",
            "Rows of dropped tables",
        ),
    ];
    for (pointer, wrong, right, level, text, heading) in cases {
        let mut changed = status.clone();
        *changed.pointer_mut(pointer).expect("the status has it") = wrong;
        let found = sentence(browser, &changed, proved).await;
        assert_eq!(found["level"], level, "{pointer}: {found}");
        assert!(found["text"].as_str().unwrap().starts_with(text), "{pointer}: {found}");
        assert!(
            found["advice"].as_str().unwrap().contains(&format!("Runbook: {heading}")),
            "{pointer}: {found}"
        );
        *changed.pointer_mut(pointer).expect("the status has it") = right;
        assert_eq!(sentence(browser, &changed, proved).await["level"], "good", "{pointer}");
    }
    let mut old = reconciliation("n-1", "clean", true);
    old["ended_at_ms"] = json!(NOW_MS - 26 * HOUR_SECONDS * 1000 - 1);
    // A partial one proves nothing of the other stores.
    let found = sentence(browser, status, &[reconciliation("p-1", "clean", false), old]).await;
    assert_eq!(found["text"], "The last whole reconciliation ended 26 h ago", "{found}");
}

/// Expects the newest whole reconciliation to decide, and newer partial ones to be named until they are answered.
async fn check_reconciliations(browser: &Browser, status: &Json) {
    let (failed, clean) = ("failed", "clean");
    let whole = |verdict: &str| reconciliation("n-1", verdict, true);
    let part = |verdict: &str| reconciliation("p-1", verdict, false);
    let found = sentence(browser, status, &[part(clean), whole(failed)]).await;
    assert_eq!(found["text"], "Reconciliation n-1 left wrong rows", "{found}");
    let found = sentence(browser, status, &[part(failed), whole(clean)]).await;
    assert_eq!(found["text"], "Partial reconciliation p-1 left wrong rows", "{found}");
    let found = sentence(browser, status, &[part(failed), whole(failed)]).await;
    assert_eq!(found["others"], json!(["Reconciliation n-1 left wrong rows"]), "{found}");
    for past in
        [vec![part(clean), part(failed), whole(clean)], vec![whole(clean), part(failed), whole(failed)]]
    {
        let found = sentence(browser, status, &past).await;
        assert_eq!(found["level"], "good", "{found}");
    }
}
