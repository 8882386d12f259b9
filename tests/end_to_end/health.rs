//! Supervision of a daemon: systemd's socket and watchdog, probes over HTTP, and the command for containers.

use std::path::Path;

use anabranch_tests::{Installation, Plan, WAIT_MAX, until};
use tokio::net::UnixDatagram;

use crate::STANDARD;

/// A second, in microseconds, in which the daemon feeds the watchdog four times.
const WATCHDOG_MICROSECONDS: &str = "1000000";
/// More feeds than can have been under way.
const FEEDS: usize = 20;

/// The daemon's next message to the socket that systemd would own.
async fn reported(socket: &UnixDatagram) -> String {
    let mut message = [0; 1024];
    let length =
        tokio::time::timeout(WAIT_MAX, socket.recv(&mut message)).await.expect("it is told").unwrap();
    String::from_utf8_lossy(&message[..length]).trim().to_owned()
}

async fn until_notified(socket: &UnixDatagram, wanted: &str) {
    while reported(socket).await != wanted {}
}

fn bound(folder: &Path) -> (UnixDatagram, String) {
    let path = folder.join("notify");
    (UnixDatagram::bind(&path).unwrap(), path.display().to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn systemd_is_told_of_start_and_stop_and_the_watchdog_is_fed_while_servers_are_away() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let folder = tempfile::tempdir().unwrap();
    let (socket, path) = bound(folder.path());
    let variables = [("NOTIFY_SOCKET", &*path), ("WATCHDOG_USEC", WATCHDOG_MICROSECONDS)];
    let away = ["source-a", "target"];
    // A daemon starts even without its servers.
    away.iter().for_each(|server| installation.server(server).kill().unwrap());
    let mut daemon = installation.run_with(&[], &variables);
    until_notified(&socket, "READY=1").await;
    daemon.until_view("sources", ("source", "source-a"), |view| view["code"] == "source-unreachable").await;
    daemon.until_view("tasks", ("task", "reader/source-a"), |view| view["state"] == "retrying").await;
    for _ in 0..FEEDS {
        assert_eq!(reported(&socket).await, "WATCHDOG=1");
    }
    let answer = async |path: &str| daemon.ask("GET", path, None, "").await;
    assert_eq!(answer("/livez").await.0, 200);
    let (status, ready) = answer("/readyz/reader").await;
    assert_eq!((status, &ready["reasons"][0]["thing"]), (503, &"reader/source-a".into()), "{ready}");
    assert_eq!(installation.command(&["health"]).await.exit_code, 0);
    let refused = installation.command(&["health", "--ready"]).await;
    assert!(refused.exit_code == 1 && refused.stdout.contains("source-unreachable"), "{refused:?}");
    let max_lag = ["health", "--max-lag", "3600"];
    let unknown = installation.command(&max_lag).await;
    let line = "the lag of source source-a is not known";
    assert!(unknown.exit_code == 1 && unknown.stdout.lines().any(|found| found == line), "{unknown:?}");

    away.iter().for_each(|server| installation.server(server).restart().unwrap());
    let fed = async {
        loop {
            until_notified(&socket, "WATCHDOG=1").await
        }
    };
    tokio::select! {
        () = daemon.until_ready() => {}
        () = fed => unreachable!("it never ends"),
    }
    assert_eq!(installation.command(&["health", "--ready"]).await.exit_code, 0);
    until("no lag is longer", async || installation.command(&max_lag).await.exit_code == 0).await;
    daemon.ask_to_end();
    until_notified(&socket, "STOPPING=1").await;
    assert!(daemon.wait().expect("it ends").success());
    let unheard = installation.command(&["health"]).await;
    assert!(unheard.exit_code == 1 && unheard.stdout.contains("no daemon answers at"), "{unheard:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_has_its_own_readiness_and_a_process_without_it_says_so() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let mut daemon = installation.run_with(&["--role", "reader"], &[]);
    daemon.until_ready().await;
    let answer = async |path: &str| daemon.ask("GET", path, None, "").await;
    assert_eq!(answer("/readyz/reader").await.0, 200);
    for absent in ["/readyz/projector", "/readyz/api", "/readyz/nobody"] {
        let (status, problem) = answer(absent).await;
        assert_eq!((status, &problem["code"]), (404, &"route-unknown".into()), "{problem}");
    }
    assert_eq!(installation.command(&["health", "--ready", "reader"]).await.exit_code, 0);
    let absent = installation.command(&["health", "--ready", "projector"]).await;
    assert!(absent.exit_code == 1 && absent.stdout.contains("no role projector"), "{absent:?}");
    assert_eq!(installation.command(&["health", "--ready", "nobody"]).await.exit_code, 2);
    // A paused daemon answers no request.
    daemon.pause();
    assert_eq!(installation.command(&["health"]).await.exit_code, 1);
    daemon.resume();
    daemon.kill();
}
