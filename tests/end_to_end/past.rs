//! The past: lost messages of the log come from the binlog, and a projection is set back to apply it once more.

use std::time::Duration;

use anabranch_demo::{Pace, WorkloadOptions};
use anabranch_tests::{Installation, Plan, seed, until};

use crate::STANDARD;

/// Size of the log below the seeded users' need, so that retention removes the beginning.
const SMALL_LOG_BYTES: &str = "100000";

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_that_retention_has_passed_is_fed_from_the_binlog_until_the_stream_links() {
    let mut installation = Installation::prepare(STANDARD.turn().await, &Plan::small()).await;
    let text = installation.configuration_text();
    installation.write_configuration_text(
        &text.replace("max_bytes = 500000000", &format!("max_bytes = {SMALL_LOG_BYTES}")),
    );
    installation.command(&["setup"]).await.expect_success();
    let mut workload = installation.workload(WorkloadOptions::new(seed("retention")));
    let reader = installation.run_with(&["--role", "reader"], &[]);
    workload.insert_rows(20_000).await.unwrap();
    let jetstream = installation.jetstream().await;
    for source in &installation.configuration.sources {
        let stream = format!("{}_{source}", installation.configuration.name);
        let mut stream = jetstream.get_stream(stream).await.unwrap();
        until("retention has cut off the beginning", async || {
            stream.info().await.unwrap().state.first_sequence > 1
        })
        .await;
    }
    drop(reader);

    let daemon = installation.run();
    installation.expect_equal().await;
    workload.run_for(Pace::of(300), Duration::from_secs(1)).await.unwrap();
    until("every lane is back at its stream", async || {
        daemon.metric("anabranch_lane_direct_feeds", &[]).await == 0.0
    })
    .await;
    installation.expect_equal().await;
    let log = daemon.log();
    assert!(log.contains("fed from the binlog") && log.contains("reads the stream again"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_projection_is_replayed_from_any_place_and_others_are_not_touched() {
    let plan = Plan { targets: 2, ..Plan::small() };
    let installation = Installation::set_up(STANDARD.turn().await, &plan).await;
    let daemon = installation.run();
    daemon.until_loaded(&["source-a", "source-b"]).await;
    let mut workload = installation.workload(WorkloadOptions::new(seed("replay")));
    workload.insert_rows(2_000).await.unwrap();
    installation.expect_equal().await;
    let other = async || {
        let mut admin = installation.admin("target-2").await;
        let sql = "SELECT revision FROM anabranch.progress ORDER BY source, lane";
        admin.rows::<u64>("look at progress", sql).await.unwrap()
    };
    let untouched = other().await;

    // A replay from any point restores missing rows; only one from nothing removes rows that no source row claims.
    for from in ["earliest", "2026-01-01T00:00:00Z", "1:1:256", "nothing"] {
        installation
            .execute("target", "DELETE FROM birthday_00.birthday_0101; DELETE FROM birthday_00.birthday_0103")
            .await;
        if from == "nothing" {
            installation
                .execute(
                    "target",
                    "UPDATE birthday_00.birthday_0105 SET user_id = user_id + 1000000 ORDER BY user_id LIMIT 1",
                )
                .await;
        }
        let base = ["replay", "--projection", "birthday", "--target", "target", "--from", from];
        if from.contains("Z") {
            // No binlog is so old: the command refuses and changes nothing.
            let refused = installation.command(&base).await;
            assert!(refused.stderr.contains("binlog-purged") && refused.exit_code != 0, "{refused:?}");
            continue;
        }
        if from.contains(':') {
            let refused = installation.command(&base).await;
            assert!(refused.stderr.contains("belong to one source"), "{refused:?}");
            for source in ["source-a", "source-b"] {
                let arguments = [&base[..], &["--source", source]].concat();
                installation.command(&arguments).await.expect_success();
            }
        } else {
            let rehearsal = installation.command(&[&base[..], &["--dry-run", "--json"]].concat()).await;
            assert_eq!(rehearsal.expect_success().json_lines().len(), 4, "two sources and two lanes");
            if from == "nothing" {
                let refused = installation.command(&[&base[..], &["--confirm", "documents"]].concat()).await;
                assert!(refused.stderr.contains("its name was not confirmed"), "{refused:?}");
                assert_eq!(refused.exit_code, 1, "{refused:?}");
            }
            let confirmed = [&base[..], &["--confirm", "birthday"]].concat();
            let done = installation.command(&confirmed).await.expect_success();
            assert!(done.stdout.contains("goes back from"), "{done:?}");
        }
        until(&format!("equal after a replay from {from}"), async || {
            installation.compare().await.differences.total() == 0
        })
        .await;
    }
    assert_eq!(other().await, untouched, "lanes of the other target were touched");
    let forward = installation.command(&[
        "replay",
        "--projection",
        "birthday",
        "--source",
        "source-a",
        "--from",
        "1:9:4",
    ]);
    let forward = forward.await;
    assert!(forward.exit_code != 0 && forward.stderr.contains("binlog-purged"), "{forward:?}");
    assert!(daemon.is_running());
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_that_was_changed_by_hand_stops_its_lanes_by_name_and_others_go_on() {
    let installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let mut workload = installation.workload(WorkloadOptions::new(seed("progress by hand")));
    let daemon = installation.run();
    workload.insert_rows(1_000).await.unwrap();
    installation.expect_equal().await;
    drop(daemon);
    installation
        .execute(
            "target",
            "UPDATE anabranch.progress SET position = position + 100000, highest_position = position
             WHERE source = 'source-a' AND lane = 0",
        )
        .await;
    let daemon = installation.run();
    let stopped = |view: &serde_json::Value| view["code"] == "target-progress-corrupt";
    daemon.until_view("tasks", ("task", "lane/birthday/target/source-a/0"), stopped).await;
    workload.run_for(Pace::of(300), Duration::from_secs(1)).await.unwrap();
    for lane in ["source-a/1", "source-b/0", "source-b/1"] {
        let task = format!("lane/birthday/target/{lane}");
        daemon.until_view("tasks", ("task", &task), |view| view["state"] == "running").await;
    }
    drop(daemon);

    // The fault's remedy is followed.
    installation
        .execute(
            "target",
            "UPDATE anabranch.progress SET checksum = NULL WHERE source = 'source-a' AND lane = 0",
        )
        .await;
    installation
        .command(&["replay", "--projection", "birthday", "--source", "source-a", "--from", "earliest"])
        .await
        .expect_success();
    let _daemon = installation.run();
    until("equal again", async || installation.compare().await.differences.total() == 0).await;
}
