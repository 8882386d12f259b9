//! OpenSearch as the stack serves it, with the product's own client: TLS, accounts, kill, settings, wipe.

#![allow(clippy::unwrap_used, reason = "helpers of tests, too, fail by panicking")]

use std::sync::Arc;
use std::time::Duration;

use anabranch_stack::{Options, Server, ServerSpec, Stack};
use reqwest::{Client, Method, StatusCode};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// A client that trusts the stack's certificates, or none.
fn client(trusted: Option<&Stack>) -> Client {
    let mut roots = RootCertStore::empty();
    if let Some(stack) = trusted {
        roots.add(CertificateDer::from_pem_file(stack.ca_file()).unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let tls = tls.with_root_certificates(roots).with_no_client_auth();
    Client::builder().tls_backend_preconfigured(tls).timeout(Duration::from_secs(20)).build().unwrap()
}

async fn ask(client: &Client, method: Method, url: &str, body: &'static str) -> (StatusCode, String) {
    let request = client.request(method, url).header("Content-Type", "application/json").body(body);
    let answer = request.send().await.unwrap();
    (answer.status(), answer.text().await.unwrap())
}

fn at(server: &Server, path: &str) -> String {
    format!("{}{path}", server.url())
}

#[tokio::test(flavor = "multi_thread")]
async fn opensearch_serves_its_accounts_over_verified_tls_and_is_killed_limited_and_wiped() {
    let node = ServerSpec::search("search").heap_mib(400).without_fsync();
    let stack = Stack::start(Options::empty().with(node)).unwrap();
    let server = stack.server("search").unwrap();
    assert_eq!(stack.env()["ANABRANCH_SEARCH_URL"], server.url());
    let trusting = client(Some(&stack));
    let asked = async |method, path: &str, body| ask(&trusting, method, &at(&server, path), body).await;

    let (_, about) = asked(Method::GET, "/", "").await;
    assert!(about.contains("\"number\" : \"2.19.4\""), "{about}");
    let mapping = r#"{"mappings": {"properties": {"code": {"type": "wildcard"}}}}"#;
    assert_eq!(asked(Method::PUT, "/serials-v1", mapping).await.0, StatusCode::FORBIDDEN);
    let setup = format!("{}/serials-v1", server.setup_url().unwrap());
    assert_eq!(ask(&trusting, Method::PUT, &setup, mapping).await.0, StatusCode::OK);
    assert_eq!(asked(Method::DELETE, "/serials-v1", "").await.0, StatusCode::FORBIDDEN);
    let document = "/serials-v1/_doc/1?version=7&version_type=external_gte&refresh=true";
    assert_eq!(asked(Method::PUT, document, r#"{"code": "356938035643809"}"#).await.0, StatusCode::CREATED);
    let older = "/serials-v1/_doc/1?version=6&version_type=external_gte";
    assert_eq!(asked(Method::PUT, older, r#"{"code": "1"}"#).await.0, StatusCode::CONFLICT);

    let (forbidden, text) = asked(Method::PUT, "/other", "{}").await;
    assert_eq!(forbidden, StatusCode::FORBIDDEN, "{text}");
    let (forbidden, text) = asked(Method::GET, "/_plugins/_security/api/internalusers", "").await;
    assert_eq!(forbidden, StatusCode::FORBIDDEN, "{text}");
    let wrong = server.url().replace(server.password(), "wrong");
    assert_eq!(ask(&trusting, Method::GET, &wrong, "").await.0, StatusCode::UNAUTHORIZED);
    let nobody = format!("https://127.0.0.1:{}", server.port());
    assert_eq!(ask(&trusting, Method::GET, &nobody, "").await.0, StatusCode::UNAUTHORIZED);
    let plain = server.url().replace("https:", "http:");
    trusting.get(plain).send().await.expect_err("a plain connection must be refused");
    client(None).get(server.url()).send().await.expect_err("an unknown authority must be refused");

    server.kill().unwrap();
    server.restart_with(&["thread_pool.write.queue_size=1"]).unwrap();
    let part = r#"{"query": {"wildcard": {"code": "*69380*"}}}"#;
    let (_, found) = asked(Method::POST, "/serials-v1/_search", part).await;
    assert!(found.contains("356938035643809"), "{found}");
    let admin = format!("{}/_nodes/settings", server.admin_url());
    let (_, settings) = ask(&trusting, Method::GET, &admin, "").await;
    assert!(settings.contains(r#""queue_size":"1""#), "{settings}");
    server.pause().unwrap();
    let paused = asked(Method::GET, "/", "");
    tokio::time::timeout(Duration::from_millis(300), paused)
        .await
        .expect_err("a paused server answers nothing");
    server.resume().unwrap();

    server.restart_empty().unwrap();
    assert_eq!(asked(Method::GET, "/serials-v1", "").await.0, StatusCode::NOT_FOUND);
}
