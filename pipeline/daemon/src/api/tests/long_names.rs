//! Names of 64 KB, with and without HTML, in every place where a client may name a thing.

use super::*;

const OPERATOR: &str = "token-of-ann-0123";
/// 64 KB: below the limit of a body, so that the name itself is judged.
const LONG: usize = 64_000;

#[tokio::test]
async fn names_of_64_kilobytes_are_refused_where_they_come_in_and_others_are_served() {
    let api = Api::served(&[TOKEN], &[("ann", OPERATOR)], ConnectionBounds::default()).await;
    let plain = "a".repeat(LONG);
    for (path, status, code) in [
        (format!("/v1/runbook/{plain}"), 404, "code-unknown"),
        (format!("/readyz/{plain}"), 404, "route-unknown"),
        (format!("/v1/series?thing={plain}"), 404, "route-unknown"),
        (format!("/v1/{plain}"), 404, "route-unknown"),
    ] {
        expect(&api.raw(&format!("GET {path} HTTP/1.0\r\n\r\n")).await, status, code);
    }
    let head = format!("GET /v1/status HTTP/1.0\r\nAuthorization: Bearer {plain}\r\n\r\n");
    expect(&api.raw(&head).await, 401, "token-refused");

    let name = "<script>".repeat(LONG / "<script>".len());
    let authorization = format!("Bearer {OPERATOR}");
    for (path, body, code) in [
        (
            "/v1/operations",
            serde_json::json!({ "action": "restart", "task": name, "dry_run": true }),
            "config-invalid",
        ),
        ("/v1/operations", serde_json::json!({ "action": name, "dry_run": true }), "body-not-understood"),
        ("/v1/trace", serde_json::json!({ "key": "1", "projection": name }), "lookup-malformed"),
        ("/v1/trace", serde_json::json!({ "key": name }), "lookup-malformed"),
    ] {
        expect(&api.post_to(path, &authorization, &body.to_string()).await, 422, code);
    }
    assert!(get(api.address, "/healthz").await.starts_with("HTTP/1.0 200"));
}
