//! Views of an operator: `status`, `tail`, HTTP, and a true lag.

use std::time::Duration;

use anabranch_demo::{Pace, WorkloadOptions};
use anabranch_tests::{Installation, Plan, seed, until, until_some};
use serde_json::Value as Json;

use crate::STANDARD;

fn strings<'j>(list: &'j Json, field: &str) -> Vec<&'j str> {
    list.as_array().unwrap().iter().map(|item| item[field].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn status_shows_positions_states_and_rows_with_and_without_a_daemon() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let before = installation.command(&["status", "--json"]).await.json();
    assert_eq!(before["daemon"], false);
    assert_eq!(strings(&before["sources"], "source"), ["source-a", "source-b"]);
    assert_eq!(strings(&before["lanes"], "state"), ["new"; 4]);

    let mut daemon = installation.run();
    let mut workload = installation.workload(WorkloadOptions::new(seed("status")));
    workload.insert_rows(1_000).await.unwrap();
    installation.drained().await;
    daemon.until_ready().await;
    // A position message may still be on its way when the tables have all rows.
    let status = until_some("status is current", async || {
        let status = installation.command(&["status", "--json"]).await.expect_success().json();
        let states = [&status["sources"], &status["lanes"]].map(|list| strings(list, "state"));
        let is_current = states.concat().iter().all(|state| *state == "current");
        let mut sources = status["sources"].as_array().unwrap().iter();
        let lags_little = sources.all(|source| source["lag_seconds"].as_f64().is_some_and(|lag| lag < 1.0));
        let all_run = strings(&status["tasks"], "state") == ["running"; 8];
        (is_current && lags_little && all_run).then_some(status)
    })
    .await;
    assert_eq!(status["daemon"], true);
    for source in status["sources"].as_array().unwrap() {
        let (head, position) = (source["head"].as_str().unwrap(), source["position"].as_str().unwrap());
        assert!(head.split(':').count() == 3 && position.split(':').count() == 3, "{source}");
        assert!(source["sequence"].as_u64().unwrap() > 0 && source["fault"].is_null(), "{source}");
    }
    let rows: u64 =
        status["lanes"].as_array().unwrap().iter().map(|lane| lane["rows"].as_u64().unwrap()).sum();
    assert!(rows > 500, "{status}");

    let text = installation.command(&["status"]).await.expect_success().stdout;
    for wanted in ["source-a", "birthday/target/source-b/1", "current", "LAG", "BINLOG HEAD"] {
        assert!(text.contains(wanted), "{wanted} is not in:\n{text}");
    }
    daemon.kill();
    let alone = installation.command(&["status", "--json"]).await.expect_success().json();
    assert_eq!((&alone["daemon"], alone["tasks"].as_array().unwrap().len()), (&Json::Bool(false), 0));
    assert_eq!(alone["lanes"][0]["position"], status["lanes"][0]["position"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn tail_prints_the_log_and_filters_by_source_table_user_and_position() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let _daemon = installation.run();
    for (server, sql) in [
        (
            "source-a",
            "INSERT INTO user_00.user_000 (user_id, user_name, birthday) VALUES (1, 'a', '1990-01-01')",
        ),
        (
            "source-a",
            "INSERT INTO user_02.user_000 (user_id, user_name, birthday) VALUES (2, 'b', '1990-01-02x')",
        ),
        ("source-a", "UPDATE user_00.user_000 SET birthday = NULL"),
        ("source-a", "DELETE FROM user_00.user_000"),
        ("source-a", "TRUNCATE TABLE user_02.user_000"),
        (
            "source-b",
            "INSERT INTO user_06.user_000 (user_id, user_name, birthday) VALUES (1, 'c', '1990-01-01 11:12:13')",
        ),
    ] {
        installation.execute(server, sql).await;
    }
    installation.drained().await;
    let tail = async |arguments: &[&str]| {
        let arguments = [&["tail", "--no-follow"], arguments].concat();
        installation.command(&arguments).await.expect_success().json_lines()
    };
    let of_a = tail(&["--source", "source-a"]).await;
    // The creation of the tables withdrew nothing; the last withdrawal is the TRUNCATE.
    let actions: Vec<&str> = of_a.iter().map(|line| line["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["insert", "insert", "update", "delete", "withdraw"], "{of_a:?}");
    assert_eq!(of_a[0]["after"]["birthday"]["date"], "1990-01-01");
    assert_eq!(of_a[1]["after"]["birthday"], "1990-01-02x");
    assert_eq!(of_a[2]["before"]["user_id"], 1);
    assert!(of_a[2]["after"]["birthday"].is_null());
    assert_eq!(of_a[4]["table"], "user_000");

    let all = tail(&[]).await;
    assert_eq!(all.len(), of_a.len() + 1);
    let of_user = tail(&["--user-id", "1"]).await;
    assert_eq!(of_user.len(), 4, "{of_user:?}");
    let of_table = tail(&["--table", "user_06.user_000"]).await;
    assert_eq!(of_table.len(), 1);
    assert_eq!(of_table[0]["after"]["birthday"]["datetime"], "1990-01-01 11:12:13.000000");
    let position = of_a[2]["lsn"].as_str().unwrap();
    assert_eq!(tail(&["--source", "source-a", "--from", position]).await, of_a[2..]);
    assert_eq!(tail(&["--source", "source-a", "--limit", "2"]).await, of_a[..2]);
    assert!(tail(&["--source", "source-a", "--from", "latest"]).await.is_empty());
    let sequence = of_a[3]["sequence"].to_string();
    let from_sequence = tail(&["--source", "source-a", "--from", &sequence]).await;
    assert!(from_sequence.ends_with(&of_a[3..]), "{from_sequence:?}");
    assert_eq!(installation.command(&["tail", "--source", "nobody"]).await.exit_code, 2);

    // A follower sees new changes. It begins at an unknown time, and then sees the next change.
    let following = installation.command(&["tail", "--from", "latest", "--user-id", "77", "--limit", "1"]);
    let followed = tokio::select! {
        followed = following => followed,
        () = user_comes_and_goes(&installation) => unreachable!("it has no end"),
    };
    assert_eq!(followed.expect_success().json_lines().len(), 1);
}

/// Inserts and deletes user 77, without end.
async fn user_comes_and_goes(installation: &Installation<'_>) {
    let insert = "INSERT INTO user_01.user_000 (user_id, user_name, birthday) VALUES (77, 'd', NULL)";
    let delete = "DELETE FROM user_01.user_000 WHERE user_id = 77";
    loop {
        installation.execute("source-a", format!("{insert}; {delete}")).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lag_grows_while_a_target_is_frozen_and_falls_afterwards() {
    let plan = Plan { targets: 2, ..Plan::small() };
    let installation = Installation::set_up(STANDARD.turn().await, &plan).await;
    let daemon = installation.run();
    let mut workload = installation.workload(WorkloadOptions::new(seed("lag")));
    workload.insert_rows(1_000).await.unwrap();
    installation.drained().await;
    daemon.until_ready().await;
    let lag = |status: &Json, list: &str, target: &str| -> f64 {
        let views = status[list].as_array().unwrap().iter();
        let of_target = views.filter(|view| list == "sources" || view["target"] == target);
        of_target.filter_map(|view| view["lag_seconds"].as_f64()).fold(0.0, f64::max)
    };

    let target = installation.server("target");
    target.pause().unwrap();
    workload.run_for(Pace::of(200), Duration::from_millis(300)).await.unwrap();
    // Capture and the other target do not wait for the frozen one, so only its lag grows.
    let mut seen = Vec::new();
    until("only the lanes of the frozen target lag", async || {
        let Some(status) = daemon.status().await else { return false };
        let frozen = lag(&status, "lanes", "target");
        seen.push(frozen);
        frozen > 3.0 && lag(&status, "sources", "") < 2.0 && lag(&status, "lanes", "target-2") < 2.0
    })
    .await;
    // An answer from before the pause may be read a moment later.
    let while_it_stood = seen.iter().skip_while(|lag| **lag < 1.0);
    assert!(while_it_stood.is_sorted(), "lag fell while the target stood still: {seen:?}");
    until("the metric says so too", async || {
        daemon.metric("anabranch_lane_lag_seconds", &["target=\"target\"", "lane=\"0\""]).await > 2.0
    })
    .await;

    target.resume().unwrap();
    installation.expect_equal().await;
    until_some("lag is gone", async || {
        let status = daemon.status().await?;
        (lag(&status, "lanes", "target") < 0.5).then_some(())
    })
    .await;
}
