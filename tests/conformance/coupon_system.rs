//! The client of the coupon system against the witness: texts, faults, connections, TLS, crashes. `ports` has the suite
//! that the in-memory twin passes too.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_connectors::coupon_system::{CouponSystemSettings, HttpCouponSystem};
use anabranch_coupons::ports::{Answer, CouponSystem};
use anabranch_coupons::records::CouponKey;
use anabranch_demo::daemon::{build_binary, free_port};
use anabranch_demo::{Faults, Witness, WitnessClient, WitnessOptions};
use anabranch_pipeline::config::{Secret, ServerUrl};
use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::celebration::Occurrence;
use anabranch_stack::{Options, Stack};
use jiff::Timestamp;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use crate::nats::{blocking, until, within};

const TOKEN: &str = "a-token-of-the-test";
/// Limit of a call: a busy machine needs more than a second for many of them.
const TIMEOUT: Duration = Duration::from_secs(5);
const ANYWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn settings(url: &str, is_batched: bool) -> CouponSystemSettings {
    CouponSystemSettings {
        url: ServerUrl::try_from(url.to_owned()).unwrap(),
        token: Some(Secret::new(TOKEN)),
        ca_file: None,
        is_batched,
        timeout: TIMEOUT,
    }
}

pub fn coupon(user: u64) -> (CouponKey, Arc<str>) {
    let occurrence: Occurrence = "lunar:2027".parse().unwrap();
    (CouponKey { user, programme: Arc::from("birthday"), occurrence }, Arc::from("ten-off"))
}

pub fn coupons(users: impl IntoIterator<Item = u64>) -> Vec<(CouponKey, Arc<str>)> {
    users.into_iter().map(coupon).collect()
}

pub fn keys(users: impl IntoIterator<Item = u64>) -> Vec<CouponKey> {
    users.into_iter().map(|user| coupon(user).0).collect()
}

/// A witness in this process, and a client of it.
pub struct WitnessGround {
    witness: Witness,
    pub control: WitnessClient,
    pub system: HttpCouponSystem,
    _book: tempfile::TempDir,
}

impl WitnessGround {
    async fn start(is_batched: bool) -> Self {
        Self::start_with(is_batched, |_| {}).await
    }

    pub async fn start_with(is_batched: bool, change: impl FnOnce(&mut WitnessOptions)) -> Self {
        let book = tempfile::tempdir().unwrap();
        let mut options = WitnessOptions::new(ANYWHERE, book.path().join("book"));
        options.token = Some(TOKEN.to_owned());
        change(&mut options);
        let witness = Witness::start(&options).await.unwrap();
        let url = format!("http://{}", witness.address());
        let control = WitnessClient::new(&url, Some(TOKEN)).unwrap();
        let system = HttpCouponSystem::new(&settings(&url, is_batched)).unwrap();
        Self { witness, control, system, _book: book }
    }

    /// Makes calls over a connection of its own.
    async fn call(&self, users: impl IntoIterator<Item = u64>) -> Vec<Answer> {
        let connection = self.system.connect().await.unwrap();
        self.system.call(&connection, &coupons(users)).await.unwrap()
    }

    pub async fn switch(&self, faults: Faults) {
        self.control.set_faults(&faults).await.unwrap();
    }

    pub async fn gifts(&self) -> usize {
        self.control.gifts().await.unwrap().len()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gift_has_the_texts_of_its_call_and_a_call_may_need_several_requests() {
    let ground = WitnessGround::start(true).await;
    // More coupons than a request holds.
    assert_eq!(ground.call(0..120).await, vec![Answer::Given; 120]);
    let known = ground.system.knows(&keys(0..121)).await.unwrap();
    assert_eq!(known, [vec![true; 120], vec![false]].concat());
    let gift = ground.control.gifts().await.unwrap().remove(7);
    let found = (gift.key.as_str(), gift.user.as_str(), gift.occurrence.as_str(), gift.coupon.as_str());
    assert_eq!(found, ("birthday/lunar:2027/7", "7", "lunar:2027", "ten-off"));
    assert!(ground.control.doubles().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_answer_is_unknown_whether_the_work_was_done_or_not() {
    let ground = WitnessGround::start(true).await;
    let late = (TIMEOUT + Duration::from_secs(1)).as_millis() as u64;
    let faults = [
        (Faults { error_before: 1.0, ..Faults::default() }, Answer::Error, false),
        (Faults { error_after: 1.0, ..Faults::default() }, Answer::Error, true),
        (Faults { lost_before: 1.0, ..Faults::default() }, Answer::Unknown, false),
        (Faults { lost_after: 1.0, ..Faults::default() }, Answer::Unknown, true),
        (Faults { slow_ms: late, ..Faults::default() }, Answer::Unknown, false),
    ];
    for (number, (faults, expected, is_given)) in faults.into_iter().enumerate() {
        let user = number as u64;
        ground.switch(faults).await;
        assert_eq!(ground.call([user]).await, [expected], "fault {number}");
        ground.switch(Faults::default()).await;
        assert_eq!(ground.system.knows(&keys([user])).await.unwrap(), [is_given], "fault {number}");
    }
    // The last call was given up, and is not carried out later.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert_eq!(ground.gifts().await, 2);
    // A forgotten key gives a second coupon, which the book shows.
    assert_eq!(ground.control.forget_keys().await.unwrap(), 2);
    assert_eq!(ground.system.knows(&keys([1])).await.unwrap(), [false]);
    assert_eq!(ground.call([1]).await, [Answer::Given]);
    let doubles = ground.control.doubles().await.unwrap();
    assert_eq!(doubles.into_iter().collect::<Vec<_>>(), [("birthday/lunar:2027/1".to_owned(), 2)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_system_that_is_busy_or_refuses_is_left_alone_for_a_while() {
    let ground = WitnessGround::start(true).await;
    // Long enough that a busy machine sees it before it is over.
    ground.switch(Faults { busy: 1.0, retry_after_seconds: 5, ..Faults::default() }).await;
    assert_eq!(ground.call([1, 2]).await, [Answer::Busy; 2]);
    assert!(ground.system.pause().is_some_and(|pause| pause <= Duration::from_secs(5)));
    let fault = ground.system.connect().await.unwrap_err();
    assert_eq!(fault.code(), Code::CouponSystemUnreachable, "{fault}");
    assert!(fault.to_string().contains("it asks for a pause of 5 s"), "{fault}");
    ground.switch(Faults::default()).await;
    until("the pause is over", async || ground.system.connect().await.is_ok()).await;
    assert!(ground.system.pause().is_none());
    assert_eq!(ground.call([1]).await, [Answer::Given]);

    let url = format!("http://{}", ground.witness.address());
    let wrong = CouponSystemSettings { token: Some(Secret::new("another")), ..settings(&url, true) };
    let system = HttpCouponSystem::new(&wrong).unwrap();
    let connection = system.connect().await.unwrap();
    assert_eq!(system.call(&connection, &coupons([3])).await.unwrap(), [Answer::Busy], "it did nothing");
    let fault = system.connect().await.unwrap_err();
    assert_eq!(fault.code(), Code::CouponSystemRefused, "{fault}");
    assert!(
        fault.to_string().contains("it answered 401") && !fault.to_string().contains("another"),
        "{fault}"
    );
    assert_eq!(system.knows(&keys([3])).await.unwrap_err().code(), Code::CouponSystemRefused);
    assert_eq!(ground.gifts().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_the_system_closed_sends_nothing_and_is_not_opened_again() {
    // The client itself closes an idle connection after 5 s, and the system does before.
    let (idle, wait) = (Duration::from_secs(2), Duration::from_secs(4));
    let ground = WitnessGround::start_with(true, |options| options.idle = idle).await;
    let connection = ground.system.connect().await.unwrap();
    assert_eq!(ground.system.call(&connection, &coupons([1])).await.unwrap(), [Answer::Given]);
    let calls = ground.control.calls().await.unwrap();
    tokio::time::sleep(wait).await;
    assert_eq!(ground.system.call(&connection, &coupons([2])).await.unwrap(), [Answer::ConnectionExpired]);
    assert_eq!(ground.system.call(&connection, &coupons([2])).await.unwrap(), [Answer::ConnectionExpired]);
    assert_eq!(ground.control.calls().await.unwrap(), calls, "nothing was sent");
    // A pooled connection that the system has closed is not used again.
    drop(connection);
    assert_eq!(ground.call([2]).await, [Answer::Given]);
    tokio::time::sleep(wait).await;
    assert_eq!(ground.call([3]).await, [Answer::Given]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_no_answer_of_the_contract_is_unknown() {
    let listener = TcpListener::bind(ANYWHERE).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answers = [
        ("200 OK", r#"{"answers":[{"key":"birthday/lunar:2027/1","outcome":"given"}]}"#),
        (
            "200 OK",
            r#"{"answers":[{"key":"birthday/lunar:2027/1","outcome":"given"},{"key":"birthday/lunar:2027/1","outcome":"rejected"}]}"#,
        ),
        ("200 OK", r#"{"answers":[{"key":"birthday/lunar:2027/1","outcome":"perhaps"}]}"#),
        ("200 OK", "<html>"),
        ("202 Accepted", r#"{"answers":[{"key":"birthday/lunar:2027/1","outcome":"given"}]}"#),
        ("408 Request Timeout", ""),
        ("503 Service Unavailable", ""),
    ];
    tokio::spawn(async move {
        for (status, body) in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 64 * 1024];
            _ = stream.read(&mut request).await.unwrap();
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            tokio::io::AsyncWriteExt::write_all(&mut stream, answer.as_bytes()).await.unwrap();
        }
        // Half an answer, and then an answer that is too long.
        for head in [
            "HTTP/1.1 200 OK\r\ncontent-le".to_owned(),
            "HTTP/1.1 200 OK\r\ncontent-length: 9999999\r\n\r\n".to_owned(),
        ] {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 64 * 1024];
            _ = stream.read(&mut request).await.unwrap();
            let answer = [head.into_bytes(), vec![b' '; 300 * 1024]].concat();
            _ = tokio::io::AsyncWriteExt::write_all(&mut stream, &answer).await;
        }
    });
    let system = HttpCouponSystem::new(&settings(&url, true)).unwrap();
    let mut found = Vec::new();
    for _ in 0..9 {
        let connection = system.connect().await.unwrap();
        found.push(within(system.call(&connection, &coupons([1, 2]))).await.unwrap());
    }
    assert_eq!(found[0], [Answer::Given, Answer::Unknown], "no word of the second key");
    assert_eq!(found[1..], vec![vec![Answer::Unknown; 2]; 8]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_the_statement_is_asked_for_again_after_a_fault_that_may_pass() {
    let listener = TcpListener::bind(ANYWHERE).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answers = [
        ("503 Service Unavailable", ""),
        ("429 Too Many Requests", ""),
        ("200 OK", r#"{"gifts": []}"#),
        ("200 OK", r#"{"gifts": [], "after": 200, "next": null}"#),
        ("401 Unauthorized", ""),
    ];
    let requests = tokio::spawn(async move {
        let mut requests = Vec::new();
        for (status, body) in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 64 * 1024];
            let bytes = stream.read(&mut request).await.unwrap();
            requests.push(String::from_utf8_lossy(&request[..bytes]).contains("after=200&"));
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            tokio::io::AsyncWriteExt::write_all(&mut stream, answer.as_bytes()).await.unwrap();
        }
        requests
    });
    let system = HttpCouponSystem::new(&settings(&url, true)).unwrap();
    let began = Instant::now();
    let page = within(system.statement(Timestamp::UNIX_EPOCH, 200)).await.unwrap().unwrap();
    assert_eq!((page.gifts.len(), page.next), (0, None));
    assert!(began.elapsed() >= Duration::from_secs(1), "it asked for a pause");
    let fault = within(system.statement(Timestamp::UNIX_EPOCH, 200)).await.unwrap_err();
    assert_eq!(fault.code(), Code::CouponSystemRefused, "{fault}");
    assert_eq!(within(requests).await.unwrap(), [true; 5]);
}

fn untrusted(url: &str, ca_file: Option<&Path>) -> Result<HttpCouponSystem, Fault> {
    HttpCouponSystem::new(&CouponSystemSettings {
        ca_file: ca_file.map(Path::to_owned),
        ..settings(url, true)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_verified() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: String| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let other = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let certificate = file("certificate.pem", own.cert.pem());
    let key = file("key.pem", own.signing_key.serialize_pem());
    let ground =
        WitnessGround::start_with(true, |options| options.tls = Some((certificate.clone(), key))).await;
    let url = format!("https://{}", ground.witness.address());
    let system = untrusted(&url, Some(&certificate)).unwrap();
    let connection = system.connect().await.unwrap();
    assert_eq!(system.call(&connection, &coupons([1])).await.unwrap(), [Answer::Given]);
    for refused in [Some(file("other.pem", other.cert.pem())), None] {
        let fault = untrusted(&url, refused.as_deref()).unwrap().connect().await.unwrap_err();
        assert_eq!(fault.code(), Code::CouponSystemRefused, "{fault}");
    }
    let fault = untrusted(&url, Some(Path::new("/nowhere"))).unwrap_err();
    assert_eq!(fault.code(), Code::CouponSystemRefused, "{fault}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_witness_that_is_killed_at_any_moment_knows_all_that_it_answered() {
    let binary = blocking(|| build_binary("witness")).unwrap();
    let stack = blocking(|| Stack::start(Options::empty()).unwrap());
    let directory = tempfile::tempdir().unwrap();
    let address = format!("127.0.0.1:{}", free_port().unwrap());
    let book = directory.path().join("book").display().to_string();
    let arguments = ["--listen", &address, "--book", &book].map(str::to_owned);
    let environment = [("WITNESS_TOKEN".to_owned(), TOKEN.to_owned())];
    let log = directory.path().join("log");
    let start = || blocking(|| stack.companion_with(&binary, &arguments, &environment, &log).unwrap());
    let url = format!("http://{address}");
    let (control, system) = (
        WitnessClient::new(&url, Some(TOKEN)).unwrap(),
        Arc::new(HttpCouponSystem::new(&settings(&url, true)).unwrap()),
    );
    let mut given: Vec<u64> = Vec::new();
    for round in 0..3 {
        let mut witness = start();
        until("the witness answers", async || control.is_up().await).await;
        let calling: Vec<_> = (0..4)
            .map(|worker: u64| {
                let system = Arc::clone(&system);
                tokio::spawn(async move {
                    let mut given = Vec::new();
                    for number in 0.. {
                        let Ok(connection) = system.connect().await else { return given };
                        let first = round * 10_000_000 + worker * 1_000_000 + number * 20;
                        let answers = system.call(&connection, &coupons(first..first + 20)).await.unwrap();
                        if answers.iter().all(|answer| *answer == Answer::Given) {
                            given.extend(first..first + 20);
                        }
                    }
                    given
                })
            })
            .collect();
        // Each witness counts the calls of its own life, and a request has 20 of them.
        until("calls came", async || control.calls().await.is_ok_and(|calls| calls > 200 * (round + 1)))
            .await;
        blocking(|| witness.kill().unwrap());
        for caller in calling {
            given.extend(within(caller).await.unwrap());
        }
    }
    let _witness = start();
    until("the witness answers", async || control.is_up().await).await;
    assert!(given.len() > 300, "{} were given", given.len());
    assert!(system.knows(&keys(given.iter().copied())).await.unwrap().into_iter().all(|known| known));
    assert!(control.doubles().await.unwrap().is_empty());
}
