//! Reads `/v1/status`: what is not current, and the codes that are shown.

use serde_json::Value;

/// Lag up to which a lane or source that is behind counts as current: the workload never pauses.
const LAG_MAX_SECONDS: f64 = 5.0;
/// Limit of the alert on paused lanes that lose changes.
const LOST_WITHIN_SECONDS: f64 = 6.0 * 3600.0;
/// Limit of the alert on certificates.
const CERTIFICATE_WITHIN_MS: i64 = 14 * 86_400_000;

/// Returns each thing that is not current, with its state; none = everything is.
pub fn disorder(status: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut add = |kind: &str, name: String, view: &Value, is_good: bool| {
        let code = view["code"].as_str();
        if !is_good || code.is_some() {
            let state = view["state"].as_str().unwrap_or("wrong");
            found.push(format!("{kind} {name} is {state} [{}]", code.unwrap_or("-")));
        }
    };
    for view in list(status, "sources") {
        add("source", text(view, "source"), view, is_current(view));
    }
    for view in list(status, "lanes") {
        let name = ["projection", "target", "source"].map(|part| text(view, part)).join("/");
        let is_whole = view["refreshed_rows"].is_null();
        add("lane", format!("{name}/{}", view["lane"]), view, is_current(view) && is_whole);
    }
    for view in list(status, "caches") {
        add("cache", text(view, "cache"), view, view["state"] == "believed");
    }
    for view in list(status, "searches") {
        add("index", text(view, "projection"), view, dead_letters(view) == 0);
    }
    for view in list(status, "tasks") {
        let is_good = view["state"] == "running" || view["state"] == "standby";
        add("task", text(view, "task"), view, is_good);
    }
    if list(status, "lanes").next().is_none() {
        found.push("the status has no lanes".to_owned());
    }
    found
}

/// Returns every code in a status.
pub fn codes(status: &Value) -> impl Iterator<Item = String> {
    const LISTS: [&str; 5] = ["sources", "lanes", "caches", "searches", "tasks"];
    let views = LISTS.into_iter().flat_map(|name| list(status, name));
    views.filter_map(|view| view["code"].as_str()).map(str::to_owned)
}

/// Returns the number of parked documents of all indexes.
pub fn parked(status: &Value) -> u64 {
    list(status, "searches").map(dead_letters).sum()
}

/// Returns whether this daemon works on every task itself.
pub fn has_every_task(status: &Value) -> bool {
    let mut tasks = list(status, "tasks").peekable();
    tasks.peek().is_some() && tasks.all(|view| view["state"] == "running")
}

/// Returns whether lanes are paused, and the task of each of them has ended its work.
pub fn has_paused(status: &Value) -> bool {
    let paused = |name: &str| list(status, name).filter(|view| view["state"] == "paused").count();
    paused("lanes") > 0 && paused("lanes") == paused("tasks")
}

/// Returns whether neither log nor binlog has what a paused lane needs for as long as the alert wants.
pub fn loses_changes(status: &Value) -> bool {
    let left = |view: &Value| view["paused_seconds_left"].as_f64();
    list(status, "lanes").filter_map(left).any(|left| left < LOST_WITHIN_SECONDS)
}

/// Returns whether a certificate ends as soon as the alert minds, and nothing has a code.
pub fn shows_certificate_end(status: &Value) -> bool {
    let soon = jiff::Timestamp::now().as_millisecond() + CERTIFICATE_WITHIN_MS;
    let mut ends = list(status, "certificates").filter_map(|view| view["ends_at_ms"].as_i64());
    ends.any(|end| end < soon) && codes(status).next().is_none()
}

/// Returns whether spot checks found a wrong row.
pub fn has_drift(status: &Value) -> bool {
    list(status, "drifts").next().is_some()
}

/// Returns whether the daemon has lately refused numbers of payment documents.
pub fn has_refusals(status: &Value) -> bool {
    list(status, "refusals").next().is_some()
}

/// Returns whether a lane reads tables again, or waits until it can.
pub fn is_refreshing(status: &Value) -> bool {
    list(status, "lanes").any(|view| !view["refreshed_rows"].is_null())
}

/// Returns whether the newest day of a coupon programme counts something under this name.
pub fn counts_coupons(status: &Value, count: &str) -> bool {
    list(status, "programmes").any(|view| view["day"][count].as_u64() > Some(0))
}

fn list<'v>(status: &'v Value, name: &str) -> impl Iterator<Item = &'v Value> + use<'v> {
    status[name].as_array().into_iter().flatten()
}

fn text(view: &Value, field: &str) -> String {
    view[field].as_str().unwrap_or_default().to_owned()
}

fn dead_letters(view: &Value) -> u64 {
    view["dead_letters"].as_u64().unwrap_or(0)
}

fn is_current(view: &Value) -> bool {
    let is_close = || view["lag_seconds"].as_f64().is_some_and(|lag| lag <= LAG_MAX_SECONDS);
    view["state"] == "current" || view["state"] == "lagging" && is_close()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status() -> Value {
        json!({
            "sources": [{ "source": "a", "state": "current", "code": null }],
            "lanes": [{
                "projection": "p", "target": "t", "source": "a", "lane": 0, "state": "lagging", "code": null,
                "lag_seconds": 1.5, "refreshed_rows": null
            }],
            "caches": [{ "cache": "redis", "state": "believed", "code": null }],
            "searches": [{ "projection": "documents", "code": null, "dead_letters": 0 }],
            "tasks": [{ "task": "reader/a", "state": "running", "code": null }],
        })
    }

    #[test]
    fn a_lane_that_is_a_second_behind_is_current_and_one_that_reads_tables_is_not() {
        assert_eq!(disorder(&status()), Vec::<String>::new());
        let mut refreshing = status();
        refreshing["lanes"][0]["refreshed_rows"] = json!(7);
        assert_eq!(disorder(&refreshing), ["lane p/t/a/0 is lagging [-]"]);
        let mut late = status();
        late["lanes"][0]["lag_seconds"] = json!(9.0);
        assert_eq!(disorder(&late).len(), 1);
        assert_eq!(disorder(&json!({})), ["the status has no lanes"]);
    }

    #[test]
    fn a_pause_is_seen_once_its_tasks_have_ended_their_work_and_a_reading_at_once() {
        let mut paused = status();
        assert!(!has_paused(&paused) && !is_refreshing(&paused));
        paused["lanes"][0]["state"] = json!("paused");
        assert!(!has_paused(&paused), "the task still runs");
        paused["tasks"][0]["state"] = json!("paused");
        assert!(has_paused(&paused));
        paused["lanes"][0]["refreshed_rows"] = json!(0);
        assert!(is_refreshing(&paused));
    }

    #[test]
    fn drift_a_certificate_and_a_pause_that_is_too_long_are_seen_from_the_limits_of_their_alerts() {
        let mut seen = status();
        assert!(!loses_changes(&seen) && !shows_certificate_end(&seen));
        assert!(!has_drift(&seen) && !has_refusals(&seen));
        seen["lanes"][0]["paused_seconds_left"] = json!(21_600.0);
        let later = jiff::Timestamp::now().as_millisecond() + CERTIFICATE_WITHIN_MS + 60_000;
        seen["certificates"] = json!([{ "dependency": "source", "name": "a", "ends_at_ms": later }]);
        assert!(!loses_changes(&seen) && !shows_certificate_end(&seen));
        seen["lanes"][0]["paused_seconds_left"] = json!(21_599.0);
        seen["certificates"][0]["ends_at_ms"] = json!(later - 120_000);
        seen["drifts"] = json!([{ "store": "p", "source": "a", "rows": 1 }]);
        seen["refusals"] = json!(["flux-sequence-lagging"]);
        assert!(loses_changes(&seen) && shows_certificate_end(&seen));
        assert!(has_drift(&seen) && has_refusals(&seen));
    }

    #[test]
    fn codes_parked_documents_and_the_tasks_of_another_process_are_seen() {
        let mut broken = status();
        broken["sources"][0]["code"] = json!("source-unreachable");
        broken["searches"][0]["dead_letters"] = json!(2);
        assert_eq!(codes(&broken).collect::<Vec<_>>(), ["source-unreachable"]);
        assert_eq!((parked(&broken), disorder(&broken).len()), (2, 2));
        assert!(has_every_task(&broken));
        broken["tasks"][0]["state"] = json!("standby");
        assert!(!has_every_task(&broken));
        assert_eq!(disorder(&broken).len(), 2, "a task that stands by is in order");
    }
}
