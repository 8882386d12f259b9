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
    const found = window.made.sentence(
        window.made.read(JSON.stringify(status), now), window.made.readHistory(history), now);
    const { level, text, advice, problem, others } = found;
    const heading = problem ? window.made.headingOf(problem) : found.heading ?? '';
    return { level, text, advice: advice ?? '', heading, others: others.map((one) => one.text) };
";

/// The sentence about a status and reconciliations, the newest first.
async fn sentence(browser: &Browser, status: &Json, past: &[Json]) -> Json {
    browser.script_with(SENTENCE, &[status.clone(), history(past), json!(NOW_MS)]).await.unwrap()
}

/// A history that was read to its end.
fn history(past: &[Json]) -> Json {
    json!({
        "now_ms": NOW_MS, "read_at_ms": NOW_MS, "is_signed": true, "code": null, "older": 0, "unread": 0,
        "reconciliations": past, "underway": [],
    })
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
    // Without a proof the page is not green, and shows the runbook's section on it.
    let is_doubted = "document.getElementById('sentence').textContent \
        === 'All is current: 2 sources, 4 lanes. No whole reconciliation has ended yet' \
        && document.getElementById('verdict').className.includes('unsure') \
        && document.getElementById('runbook-text').textContent.startsWith('The nightly reconciliation')";
    assert!(browser.until(is_doubted, WAIT_MAX).await.unwrap().is_some(), "all is current and unproved");
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
    assert_eq!(calm["level"], "good", "{calm}");
    let unproved = sentence(&browser, &status, &[]).await;
    assert!(
        unproved["text"].as_str().unwrap().ends_with("No whole reconciliation has ended yet"),
        "{unproved}"
    );
    assert_eq!(
        (&unproved["level"], &unproved["heading"]),
        (&json!("unsure"), &json!("The nightly reconciliation"))
    );
    // A report that was not read may be whole.
    for (key, value) in [("code", json!("target-unreachable")), ("unread", json!(3)), ("older", json!(1))] {
        let mut history = history(&[]);
        history[key] = value;
        let parameters = [status.clone(), history, json!(NOW_MS)];
        let unknown = browser.script_with(SENTENCE, &parameters).await.unwrap();
        assert_eq!((&unknown["level"], &unknown["advice"]), (&json!("good"), &json!("")), "{key}: {unknown}");
    }
    check_alerts(&browser, &status, &proved).await;
    check_states(&browser, &status, &proved).await;
    check_programmes(&browser, &status, &proved).await;
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

/// Expects lag, times and refusals to be as bad as their alerts, and each to lead to a heading.
async fn check_states(browser: &Browser, status: &Json, proved: &[Json]) {
    let hour = HOUR_SECONDS;
    let pause = |for_ms: u64| json!({ "projection": "birthday", "since_ms": NOW_MS - for_ms, "by": "ann" });
    let paused = |hours: u64| pause(hours * hour * 1000 + 1000);
    let refused = json!(["flux-sequence-lagging"]);
    let cases = [
        ("/lanes/0/lag_seconds", json!(301), json!(300), "bad", "First look"),
        ("/sources/0/lag_seconds", json!(301), json!(300), "bad", "First look"),
        ("/lanes/0/direct_seconds", json!(hour), json!(hour / 2), "unsure", "Counts of changes"),
        (
            "/lanes/0/owed_seconds",
            json!(hour + 1),
            json!(hour),
            "unsure",
            "Tables that wait to be read again",
        ),
        (
            "/lanes/0/withdrawn_seconds",
            json!(hour + 1),
            json!(hour),
            "unsure",
            "Rows of dropped tables that are to be removed",
        ),
        ("/lanes/0/pause", paused(4), pause(1000), "unsure", "Paused lanes"),
        ("/refusals", refused, json!([]), "bad", "flux-sequence-lagging"),
    ];
    for (pointer, wrong, right, level, heading) in cases {
        let mut changed = status.clone();
        *changed.pointer_mut(pointer).expect("the status has it") = wrong;
        let found = sentence(browser, &changed, proved).await;
        assert_eq!(
            (&found["level"], &found["heading"]),
            (&json!(level), &json!(heading)),
            "{pointer}: {found}"
        );
        *changed.pointer_mut(pointer).expect("the status has it") = right;
        assert_eq!(sentence(browser, &changed, proved).await["level"], "good", "{pointer}");
    }

    // A server that does not answer can wait for a quarter of an hour.
    for (seconds, level) in [(899, "unsure"), (901, "bad")] {
        let mut changed = status.clone();
        let name = changed["sources"][0]["source"].clone();
        changed["sources"][0]["state"] = json!("unreachable");
        changed["sources"][0]["code"] = json!("source-unreachable");
        changed["unanswered"] = json!([{ "dependency": "source", "name": name, "seconds": seconds }]);
        let found = sentence(browser, &changed, proved).await;
        assert_eq!(
            (&found["level"], &found["heading"]),
            (&json!(level), &json!("source-unreachable")),
            "{found}"
        );
    }
}

/// Expects a coupon day to be as bad as its alerts, from their limits on.
async fn check_programmes(browser: &Browser, status: &Json, proved: &[Json]) {
    let ago = |seconds: u64| json!(NOW_MS / 1000 - seconds);
    let hour = HOUR_SECONDS;
    let day = json!({
        "day": "2027-01-15", "starts_at": ago(hour), "frozen": 2, "frozen_at": [ago(hour), ago(60)], "missed": 0,
        "granted": 0, "already_granted": 0, "refused": {}, "failed": 0, "in_flight": 0, "dead_letters": 0,
        "oldest_open_at": null, "eligible": 9,
    });
    let noon = |seconds: u64| json!({ "missed": 2, "frozen_at": [ago(9 * hour), ago(seconds)] });
    let late = "A coupon day that is late";
    let lacking = "Members who lack their coupon";
    let cases = [
        (json!({}), "good", ""),
        (json!({ "starts_at": ago(25 * hour) }), "good", ""),
        (json!({ "starts_at": ago(25 * hour + 1) }), "bad", late),
        (json!({ "starts_at": ago(3 * hour), "frozen": 0 }), "good", ""),
        (json!({ "starts_at": ago(3 * hour + 1), "frozen": 0 }), "bad", late),
        (json!({ "missed": 2, "frozen": 1 }), "good", ""),
        (noon(hour - 1), "unsure", lacking),
        (noon(hour), "bad", lacking),
        (json!({ "dead_letters": 1 }), "unsure", "Coupons that could not be granted"),
        (json!({ "oldest_open_at": ago(72 * hour) }), "good", ""),
        (json!({ "oldest_open_at": ago(72 * hour + 1) }), "unsure", "A coupon day that is not closed"),
    ];
    for (change, level, heading) in cases {
        let mut day = day.clone();
        day.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let mut changed = status.clone();
        changed["programmes"] = json!([{ "programme": "birthday", "state": "noon", "day": day }]);
        let found = sentence(browser, &changed, proved).await;
        assert_eq!(
            (&found["level"], &found["heading"]),
            (&json!(level), &json!(heading)),
            "{change}: {found}"
        );
    }
}

/// Expects the newest whole reconciliation to decide, and newer partial ones to be named until they are answered.
async fn check_reconciliations(browser: &Browser, status: &Json) {
    let (failed, clean) = ("failed", "clean");
    let whole = |verdict: &str| reconciliation("n-1", verdict, true);
    let part = |verdict: &str| reconciliation("p-1", verdict, false);
    let found = sentence(browser, status, &[part(clean), whole(failed)]).await;
    assert_eq!(found["text"], "Reconciliation n-1 left wrong rows", "{found}");
    let mut again = whole("repaired");
    again["stores"][0]["again"] = json!(2);
    let found = sentence(browser, status, &[again]).await;
    assert_eq!(found["text"], "2 rows of birthday were repaired and are wrong again", "{found}");
    assert_eq!((&found["level"], &found["heading"]), (&json!("unsure"), &json!("Alerts")));
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
