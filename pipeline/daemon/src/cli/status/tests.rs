//! Tests of the text for people, of what a daemon's answer adds, and of the exit code.

use super::*;
use crate::observe::OwedTableView;

fn status() -> StatusView {
    StatusView {
        sources: vec![SourceView {
            source: "a".to_owned(),
            state: "current".to_owned(),
            head: Some("1:7:320".to_owned()),
            lag_seconds: Some(0.25),
            committed_at_us: Some(1_000_000),
            binlog_bytes_per_second: Some(1_500_000.0),
            ..SourceView::default()
        }],
        lanes: vec![LaneView {
            projection: "birthday".to_owned(),
            target: "t".to_owned(),
            source: "a".to_owned(),
            lane: 1,
            state: "current".to_owned(),
            rows: 12,
            ..LaneView::default()
        }],
        caches: vec![CacheView {
            cache: "redis".to_owned(),
            state: "believed".to_owned(),
            delay_seconds: Some(0.0),
            ..CacheView::default()
        }],
        searches: vec![SearchView {
            projection: "documents".to_owned(),
            index: Some("serials-v1".to_owned()),
            documents: Some(3),
            dead_letters: Some(1),
            ..SearchView::default()
        }],
        ..StatusView::default()
    }
}

#[test]
fn the_text_shows_each_source_and_lane() {
    let text = text(&status(), true, 61_000_000);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[0],
        "SOURCE  STATE    LAG    BINLOG HEAD  STREAM END  NEWEST CHANGE  BINLOG/S  MESSAGES/S"
    );
    assert_eq!(lines[1], "a       current  0.2 s  1:7:320      -           60 s ago       1.5 MB    -");
    assert!(lines[4].starts_with("birthday/t/a/1  current  -"), "{text}");
    assert_eq!(lines[6..8], ["CACHE  STATE     DELAY", "redis  believed  0.0 s"]);
    assert_eq!(lines[9], "SEARCH     INDEX       BUILDING  DOCUMENTS  TOMBSTONES  DEAD LETTERS");
    assert_eq!(lines[10], "documents  serials-v1  -         3          -           1");
}

#[test]
fn a_refresh_shows_as_much_as_is_known_of_it() {
    let mut lane = LaneView { refreshed_rows: Some(12_000), ..LaneView::default() };
    assert_eq!(refresh(&lane), "12000 rows");
    lane.refreshed_rows_per_second = Some(9_800.4);
    assert_eq!(refresh(&lane), "12000 rows, 9800/s");
    lane.refresh_rows = Some(300_000);
    lane.refresh_seconds_left = Some(29.4);
    assert_eq!(refresh(&lane), "12000 of about 300000 rows, 9800/s, 29 s left");
    lane = LaneView { withdrawn_tables: 2, refreshed_rows: Some(7), ..LaneView::default() };
    assert_eq!(refresh(&lane), "removes 2 tables, 7 rows");
    assert_eq!(refresh(&LaneView { refreshed_rows: None, ..lane }), "removes 2 tables");
    assert_eq!(refresh(&LaneView::default()), "-");
}

#[test]
fn a_lane_says_which_tables_wait_to_be_read_again_and_why_as_far_as_the_daemon_knows() {
    let mut shown = status();
    shown.lanes[0].owed_tables = 2;
    let mut daemon = shown.clone();
    let fault = "[source-column-missing] table d.u: it has no column birthday".to_owned();
    let code = "source-column-missing".to_owned();
    daemon.lanes[0].owed =
        vec![OwedTableView { table: Some("d.u".to_owned()), code, fault, ..OwedTableView::default() }];
    merge(&mut shown, daemon);
    let waits = "birthday/t/a/1: 2 tables wait to be read again; derived rows stand until then\n  ";
    let said = text(&shown, true, 0);
    assert!(said.contains(&format!("{waits}[source-column-missing] table d.u: it has")), "{said}");
    shown.leave_out_faults();
    let said = text(&shown, true, 0);
    assert!(said.contains(&format!("{waits}[source-column-missing]")) && !said.contains("d.u"), "{said}");
    assert_eq!(exit(&shown), Exit::Success, "its lane works");
}

#[test]
fn every_stopped_task_is_shown_and_counted_also_one_of_nothing_else_that_is_shown() {
    for task in ["reconciliation", "spot-checks/a", "sweep/documents", "uuids"] {
        let mut shown = status();
        let stopped = TaskView {
            task: task.to_owned(),
            state: "stopped".to_owned(),
            // This code may pass by itself, but a stopped task does not.
            code: Some("target-unreachable".to_owned()),
            fault: Some("[target-unreachable] x".to_owned()),
            ..TaskView::default()
        };
        let running =
            TaskView { task: "reader/a".to_owned(), state: "running".to_owned(), ..TaskView::default() };
        merge(&mut shown, StatusView { tasks: vec![running, stopped], ..status() });
        assert_eq!(exit(&shown), Exit::Definite, "{task}");
        let text = text(&shown, true, 0);
        assert!(text.contains(&format!("{task}: [target-unreachable] x")), "{text}");
        assert!(text.ends_with("1 of 2 tasks of the daemon stopped"), "{text}");
    }
}

#[test]
fn a_cluster_that_cannot_be_asked_decides_the_exit_code() {
    let mut shown = status();
    shown.searches[0].code = Some("target-unreachable".to_owned());
    assert_eq!(exit(&shown), Exit::Transient);
}

#[test]
fn a_stopped_task_of_the_daemon_outranks_what_was_seen_and_decides_the_exit_code() {
    let mut shown = status();
    assert_eq!(exit(&shown), Exit::Success);
    let mut daemon = status();
    daemon.lanes[0].lag_seconds = Some(77.0);
    daemon.lanes[0].rows_per_second = Some(5.0);
    daemon.sources[0].messages_per_second = Some(3.0);
    daemon.tasks = vec![
        TaskView { task: "reader/a".to_owned(), state: "running".to_owned(), ..TaskView::default() },
        TaskView {
            task: "lane/birthday/t/a/1".to_owned(),
            state: "stopped".to_owned(),
            code: Some("target-table-shape".to_owned()),
            fault: Some("[target-table-shape] x".to_owned()),
            ..TaskView::default()
        },
    ];
    merge(&mut shown, daemon);
    assert_eq!(shown.sources[0].state, "current");
    assert_eq!(
        (shown.sources[0].messages_per_second, shown.lanes[0].rows_per_second),
        (Some(3.0), Some(5.0))
    );
    assert_eq!((shown.lanes[0].state.as_str(), shown.lanes[0].lag_seconds), ("stopped", Some(77.0)));
    assert_eq!(exit(&shown), Exit::Definite);
    assert!(text(&shown, true, 0).contains("birthday/t/a/1: [target-table-shape] x"));
}

#[test]
fn the_daemon_knows_that_a_server_was_reset_and_one_answer_of_the_server_does_not_show_it() {
    let (mut shown, mut daemon) = (status(), status());
    daemon.sources[0].state = "incomparable".to_owned();
    daemon.lanes[0].state = "incomparable".to_owned();
    merge(&mut shown, daemon.clone());
    assert_eq!((shown.sources[0].state.as_str(), shown.sources[0].lag_seconds), ("incomparable", None));
    assert_eq!(shown.lanes[0].state, "incomparable");
    let mut silent = status();
    silent.sources[0].state = "unreachable".to_owned();
    silent.sources[0].code = Some("source-unreachable".to_owned());
    merge(&mut silent, daemon);
    assert_eq!(silent.sources[0].state, "unreachable");
}

#[test]
fn held_leases_are_counted_by_process_and_the_daemon_says_which_are_its_own() {
    let view = |lease: &str, holder: Option<&str>, is_here| LeaseView {
        lease: lease.to_owned(),
        holder: holder.map(str::to_owned),
        is_here,
    };
    let mut shown = status();
    assert!(!text(&shown, true, 0).contains("leases"));
    shown.leases = vec![
        view("lane/0", Some("host 7"), false),
        view("lane/1", Some("host 8"), false),
        view("reader/a", Some("host 7"), false),
    ];
    let of_daemon = vec![view("lane/0", None, true), view("reader/a", None, false)];
    merge(&mut shown, StatusView { leases: of_daemon.clone(), ..status() });
    assert!(text(&shown, true, 0).contains("\nleases: 2 of host 7, 1 of host 8"));
    assert_eq!(shown.leases[0], view("lane/0", Some("host 7"), true));
    assert!(!shown.leases[1].is_here && !shown.leases[2].is_here);
    let mut without_log = status();
    merge(&mut without_log, StatusView { leases: of_daemon, ..status() });
    assert!(text(&without_log, true, 0).contains("\nleases: 2 of unknown processes"));
}
