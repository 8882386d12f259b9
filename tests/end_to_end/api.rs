//! Endpoints for applications, on a running daemon: tokens, bounds, and uuids that survive every death.

use std::collections::BTreeSet;
use std::time::Duration;

use anabranch_pipeline::failpoints;
use anabranch_tests::{Daemon, Installation, Plan, until, until_some};
use serde_json::Value as Json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::STANDARD;

const TOKEN: &str = "application-token-1";

async fn installation() -> Installation<'static> {
    let mut installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let with_token = installation.configuration_text_with_http("tokens = [\"${API_TOKEN}\"]");
    installation.environment_mut().push(("API_TOKEN".to_owned(), TOKEN.to_owned()));
    installation.write_configuration_text(&with_token);
    installation
}

async fn uuids(daemon: &Daemon, count: u32) -> (u16, Vec<u64>) {
    let body = format!("{{\"count\": {count}}}");
    let (status, answer) = daemon.ask("POST", "/v1/uuids", Some(TOKEN), &body).await;
    let uuids = answer["uuids"].as_array().into_iter().flatten();
    (status, uuids.map(|uuid| uuid.as_str().unwrap().parse().unwrap()).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn applications_are_served_beside_readers_and_lanes_or_by_a_process_of_their_own() {
    let mut installation = installation().await;
    let mut daemon = installation.run_with(&["--role", "api"], &[]);
    daemon.until_ready().await;
    assert_eq!(uuids(&daemon, 10_000).await.1.len(), 10_000);
    let code = |answer: (u16, Json)| (answer.0, answer.1["code"].as_str().unwrap_or_default().to_owned());
    let refused = (401, "token-refused".to_owned());
    assert_eq!(code(daemon.ask("POST", "/v1/uuids", None, "{\"count\": 1}").await), refused);
    assert_eq!(code(daemon.ask("POST", "/v1/uuids", Some("application-token-2"), "").await), refused);
    let answer = daemon.ask("POST", "/v1/uuids", Some(TOKEN), "{\"count\" 1}").await;
    assert!(answer.1["detail"].as_str().unwrap().contains("line 1 column 10"), "{answer:?}");
    assert_eq!(code(answer).0, 400);
    every_code_is_explained(&installation, &daemon).await;
    assert!(daemon.metric("anabranch_http_request_seconds_count", &["status=\"401\""]).await >= 2.0);
    let log = daemon.log();
    assert!(!log.contains(TOKEN), "the token is in the log");
    assert!(daemon.terminate().expect("it ends").success());

    let mut whole = installation.run();
    whole.until_ready().await;
    let tasks = whole.status().await.unwrap()["tasks"].as_array().unwrap().len();
    assert_eq!((tasks, uuids(&whole, 1).await.0), (9, 200));
    whole.kill();

    installation.write_configuration();
    let without = installation.command(&["run", "--role", "api"]).await;
    assert_eq!(without.exit_code, 2);
    assert!(without.stderr.contains("http.tokens"), "{without:?}");
}

/// Checks that the binary explains each code in the API's description, and refuses an unknown one.
async fn every_code_is_explained(installation: &Installation<'_>, daemon: &Daemon) {
    let description = daemon.ask("GET", "/v1/openapi.json", None, "").await.1;
    assert_eq!(description["openapi"], "3.1.0");
    let codes = description.pointer("/components/schemas/Code/enum").unwrap().as_array().unwrap();
    assert!(codes.len() > 80, "{codes:?}");
    for code in codes {
        let code = code.as_str().unwrap();
        let explained = installation.command(&["explain", code]).await.expect_success();
        assert!(explained.stdout.starts_with(&format!("### {code}\n")), "{explained:?}");
    }
    let unknown = installation.command(&["explain", "token-refusd"]).await;
    assert_eq!(unknown.exit_code, 2, "{unknown:?}");
    assert!(
        unknown.stderr.contains("[code-unknown]") && unknown.stderr.contains("token-refused"),
        "{unknown:?}"
    );
}

const BODY: &str = "{\"count\": 5}";
const CONTINUE: &str = "HTTP/1.1 100 Continue\r\n\r\n";

/// Sends the head of a request for uuids; returns when the daemon waits for [`BODY`].
async fn half_sent(installation: &Installation<'_>) -> TcpStream {
    let address = format!("127.0.0.1:{}", installation.configuration.http_port);
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /v1/uuids HTTP/1.1\r\nHost: anabranch\r\nAuthorization: Bearer {TOKEN}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nExpect: 100-continue\r\n\r\n",
        BODY.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; CONTINUE.len()];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, CONTINUE.as_bytes());
    stream
}

/// SIGTERM comes while one request waits for the log, and while the body of another one is on its way.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_under_way_at_sigterm_get_their_time_and_their_uuids() {
    let installation = installation().await;
    let point = failpoints::MINTING[0];
    let mut daemon = installation.run_with(&["--role", "api"], &[("ANABRANCH_FAILPOINT", point)]);
    daemon.until_ready().await;
    let stop = async {
        daemon.until_failpoint(point).await;
        let mut late = half_sent(&installation).await;
        daemon.ask_to_end();
        until("HTTP accepts no further request", async || daemon.readiness().await.is_none()).await;
        late.write_all(BODY.as_bytes()).await.unwrap();
        // Longer than the mint has for its own end: the requests keep it at work.
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(daemon.is_running(), "it waits for its requests");
        daemon.resume();
        let mut answer = String::new();
        late.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let ((status, given), answer) = tokio::join!(uuids(&daemon, 10), stop);
    assert_eq!((status, given.len()), (200, 10));
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{answer}");
    let late: Json = serde_json::from_str(body).unwrap();
    assert_eq!(late["uuids"].as_array().unwrap().len(), 5, "{late}");
    assert_eq!(daemon.wait().and_then(|status| status.code()), Some(0), "{}", daemon.log());
}

/// Every process but one is killed before it sets the register, or after it has set it without an answer.
#[tokio::test(flavor = "multi_thread")]
async fn uuids_are_given_out_once_by_daemons_that_are_killed_at_any_step() {
    let mut installation = installation().await;
    let file = std::fs::read_to_string(installation.configuration_file()).unwrap();
    let (mut given, mut asked) = (BTreeSet::new(), 0);
    let mut keep = |uuids: Vec<u64>| {
        asked += uuids.len();
        given.extend(uuids);
        assert_eq!(given.len(), asked, "one was given out twice");
    };
    let mut beside = installation.run_with(&["--role", "api"], &[]);
    beside.until_ready().await;
    let first_port = format!(":{}\"", installation.configuration.http_port);
    installation.use_another_http_port();
    let port = format!(":{}\"", installation.configuration.http_port);
    installation.write_configuration_text(&file.replace(&first_port, &port));
    for name in failpoints::MINTING {
        let mut daemon = installation.run_with(&["--role", "api"], &[("ANABRANCH_FAILPOINT", name)]);
        daemon.until_ready().await;
        tokio::select! {
            _ = uuids(&daemon, 10) => panic!("answered in front of {name}"),
            () = daemon.until_failpoint(name) => {}
        }
        daemon.kill();
        let after = installation.run_with(&["--role", "api"], &[]);
        after.until_ready().await;
        keep(uuids(&after, 1_000).await.1);
        keep(uuids(&beside, 1_000).await.1);
    }
    // The daemon does not silently make lost registers anew.
    let jetstream = installation.jetstream().await;
    let bucket = format!("KV_{}_registers", installation.configuration.name);
    jetstream.delete_stream(&bucket).await.unwrap();
    let fault = until_some("the lost bucket is named", async || {
        uuids(&beside, 10_000).await;
        let (_, status) = beside.ask("GET", "/v1/status", Some(TOKEN), "").await;
        status["tasks"].as_array()?.iter().find_map(|task| task["fault"].as_str().map(str::to_owned))
    })
    .await;
    assert!(fault.contains("_registers: does not exist") && fault.contains("setup"), "{fault}");
    installation.command(&["setup"]).await.expect_success();
    until_some("uuids again", async || (uuids(&beside, 1).await.0 == 200).then_some(())).await;
    beside.kill();
}
