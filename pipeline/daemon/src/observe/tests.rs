//! Tests of the views of sources, lanes and tasks in each state.

mod owed;

use anabranch_pipeline::capture::BusyTable;
use anabranch_pipeline::records::Refresh;
use anabranch_pipeline::supervise::{TaskState, TaskStatus};
use anabranch_schemas::envelope::Envelope;

use super::exposition::Exposition;
use super::*;
use crate::task_names::{lane_task, reader_task};
use crate::wiring::LeaseHolder;

const CONFIG: &str = r#"
name = "test"
[log]
url = "nats://u:p@127.0.0.1:4222"
[[entities]]
entity = "user"
tables = "user.user"
[[sources]]
name = "a"
url = "mysql://u:p@127.0.0.1:3306"
[[targets]]
name = "t"
url = "mysql://u:p@127.0.0.1:3307"
[[projections]]
name = "birthday"
kind = "birthday"
targets = ["t"]
lanes = 1
layout = "by_day"
databases = 1
database = "birthday"
table = "birthday_{mmdd}"
"#;

/// The source's clock at every poll.
const CLOCK_US: u64 = 1_000_000_000;

struct World {
    observatory: Observatory,
    lane: LaneId,
    tasks: BTreeMap<String, TaskStatus>,
    start: Instant,
}

fn world() -> World {
    let config = Config::parse(CONFIG).unwrap();
    let lane = lanes(&config).remove(0);
    let running = TaskStatus {
        state: TaskState::Running,
        fault: None,
        down_since: None,
        lasting: false,
        waits_for: String::new(),
        work_waits_for: None,
    };
    let tasks = [(reader_task("a"), running.clone()), (lane_task(&lane), running)].into();
    World { observatory: Observatory::new(&config), lane, tasks, start: Instant::now() }
}

fn at(position: u64) -> Lsn {
    Lsn::new(1, 7, position * 16).unwrap()
}

impl World {
    fn lag_metrics(&self, second: u64) -> String {
        let mut shown = Exposition::default();
        self.observatory.show_lags(self.second(second), &mut shown);
        shown.into_text()
    }

    fn second(&self, number: u64) -> Instant {
        self.start + Duration::from_secs(number)
    }

    fn poll(&self, second: u64, head: u64, log: u64, lane: u64) {
        let now = self.second(second);
        self.observatory.head_seen("a", &Ok((at(head), CLOCK_US)), now);
        self.log_end(log, now);
        self.applied(lane, now);
    }

    fn log_end(&self, log: u64, now: Instant) {
        let envelope = Envelope { position: at(log), ..Envelope::default() };
        let end = LogEntry { sequence: log, id: String::new(), envelope };
        self.observatory.log_end_seen("a", &Ok(Some(end)), now);
    }

    fn applied(&self, lane: u64, now: Instant) {
        let progress = Progress {
            revision: 1,
            position: at(lane),
            highest_position: at(lane),
            rows: lane,
            ..Progress::default()
        };
        self.observatory.progress_seen("t", &Ok([(self.lane.clone(), progress)].into()), now);
    }

    fn view(&self, second: u64) -> StatusView {
        self.observatory.status(&self.tasks, self.second(second))
    }

    fn reasons(&self, second: u64) -> Vec<Reason> {
        self.observatory.reasons_against_ready(&self.tasks, self.second(second))
    }
}

#[test]
fn everything_current_is_ready_and_without_lag() {
    let world = world();
    assert_eq!(world.reasons(0).len(), 2, "nothing is known before the first answers");
    world.poll(0, 10, 10, 10);
    world.poll(1, 20, 20, 20);
    let view = world.view(1);
    assert_eq!((view.sources[0].state.as_str(), view.lanes[0].state.as_str()), ("current", "current"));
    assert_eq!((view.sources[0].lag_seconds, view.lanes[0].lag_seconds), (Some(0.0), Some(0.0)));
    assert_eq!(view.lanes[0].rows_per_second, Some(10.0));
    assert_eq!(view.sources[0].binlog_bytes_per_second, Some(160.0));
    assert_eq!(view.sources[0].head.as_deref(), Some("1:7:320"));
    assert!(world.reasons(1).is_empty());
}

#[test]
fn a_lane_that_stands_still_is_not_ready_and_its_source_is() {
    let world = world();
    for second in 0..60 {
        world.poll(second, 10 + second, 10 + second, 10);
    }
    let reasons = world.reasons(59);
    assert_eq!(reasons.len(), 1, "{reasons:?}");
    assert_eq!(reasons[0].thing, "lane/birthday/t/a/0");
    assert_eq!(reasons[0].reason, "no progress, and a lag of 58 s");
    assert_eq!(world.view(59).lanes[0].lag_seconds, Some(58.0));
}

#[test]
fn a_lane_that_catches_up_is_ready_however_far_behind() {
    let world = world();
    world.poll(0, 1000, 1000, 1);
    for second in 1..100 {
        world.poll(second, 1000 + second, 1000 + second, 1 + second);
    }
    assert_eq!(world.view(99).lanes[0].lag_seconds, Some(99.0));
    assert!(world.reasons(99 + 14).is_empty());
    assert_eq!(world.reasons(99 + 16)[0].thing, "lane/birthday/t/a/0");
}

#[test]
fn lag_grows_when_nobody_answers_any_more() {
    let world = world();
    world.poll(0, 10, 10, 9);
    let fault = || Fault::new(Code::TargetUnreachable, "target t", "gone");
    world.observatory.progress_seen("t", &Err(fault()), world.second(50));
    world.observatory.head_seen("a", &Err(fault()), world.second(50));
    let view = world.view(100);
    assert_eq!(view.lanes[0].lag_seconds, Some(100.0));
    assert_eq!(
        (view.lanes[0].state.as_str(), view.sources[0].state.as_str()),
        ("unreachable", "unreachable")
    );
    assert_eq!(view.lanes[0].code.as_deref(), Some("target-unreachable"));
}

#[test]
fn lag_grows_while_a_head_cannot_be_asked_though_nothing_was_owed() {
    let world = world();
    world.poll(0, 10, 10, 10);
    for second in 1..=60 {
        let fault = Fault::new(Code::SourceUnreachable, "source a", "gone");
        world.observatory.head_seen("a", &Err(fault), world.second(second));
        world.log_end(10, world.second(second));
        world.applied(10, world.second(second));
    }
    let view = world.view(60);
    assert_eq!((view.sources[0].lag_seconds, view.lanes[0].lag_seconds), (Some(60.0), Some(60.0)));
    assert!(world.reasons(60).is_empty(), "lanes are not stuck for it");
}

#[test]
fn lag_begins_with_what_was_missed_before_the_start_by_the_clock_of_the_source() {
    let world = world();
    let envelope =
        Envelope { position: at(10), committed_at_us: CLOCK_US - 40_000_000, ..Envelope::default() };
    let end = LogEntry { sequence: 10, id: String::new(), envelope };
    world.observatory.log_end_seen("a", &Ok(Some(end)), world.start);
    world.observatory.head_seen("a", &Ok((at(50), CLOCK_US)), world.start);
    assert_eq!(world.view(0).sources[0].lag_seconds, Some(40.0));
    assert_eq!(world.view(10).sources[0].lag_seconds, Some(50.0), "and grows");
    world.log_end(50, world.second(3));
    assert_eq!(world.view(3).sources[0].lag_seconds, Some(0.0), "what was missed is there");
}

#[test]
fn a_head_below_the_position_makes_lag_unknown_and_takes_its_series_away() {
    let world = world();
    world.poll(0, 10, 10, 10);
    world.poll(1, 10, 10, 10);
    assert_eq!(world.lag_metrics(1).matches("} 0").count(), 2);
    world.poll(2, 3, 10, 10);
    let view = world.view(2);
    assert_eq!(
        (view.sources[0].state.as_str(), view.lanes[0].state.as_str()),
        ("incomparable", "incomparable")
    );
    assert_eq!((view.sources[0].lag_seconds, view.lanes[0].lag_seconds), (None, None));
    let metrics = world.lag_metrics(2);
    assert!(!metrics.contains('{'), "{metrics}");
}

#[test]
fn a_position_that_passed_the_head_while_it_was_asked_is_no_reset() {
    let world = world();
    world.poll(0, 10, 10, 10);
    world.poll(1, 12, 13, 13);
    world.poll(2, 13, 14, 14);
    assert_eq!(world.view(2).sources[0].lag_seconds, Some(0.0));
}

#[test]
fn a_stopped_task_is_a_reason_with_its_code() {
    let mut world = world();
    world.poll(0, 10, 10, 10);
    let stopped = TaskStatus {
        state: TaskState::Stopped,
        fault: Some((Code::BinlogPurged, "[binlog-purged] source a: gone".to_owned())),
        down_since: Some(world.start),
        lasting: true,
        waits_for: String::new(),
        work_waits_for: None,
    };
    world.tasks.insert(reader_task("a"), stopped);
    let reasons = world.reasons(1);
    assert_eq!(reasons[0].code.as_deref(), Some("binlog-purged"));
    let view = world.view(1);
    assert_eq!(
        (view.sources[0].state.as_str(), view.sources[0].code.as_deref()),
        ("stopped", Some("binlog-purged"))
    );
    assert_eq!(view.lanes[0].state, "current");
}

#[test]
fn a_task_that_stands_by_is_no_reason_and_one_that_is_getting_ready_says_what_it_waits_for() {
    let mut world = world();
    let status = |state, waits_for: &str| TaskStatus {
        state,
        fault: None,
        down_since: Some(world.start),
        lasting: false,
        waits_for: waits_for.to_owned(),
        work_waits_for: None,
    };
    let (standby, getting_ready) = (status(TaskState::Standby, ""), status(TaskState::Waiting, "source a"));
    let lane = lane_task(&world.lane);
    world.tasks = [(reader_task("a"), standby.clone()), (lane.clone(), standby)].into();
    for second in 0..60 {
        world.poll(second, 10 + second, 10 + second, 10);
    }
    assert!(world.reasons(60).is_empty(), "the other process's matter");
    world.tasks.insert(reader_task("a"), getting_ready);
    let reasons = world.reasons(60);
    assert_eq!(reasons.len(), 1, "{reasons:?}");
    assert_eq!(reasons[0].reason, "getting ready: it waits for source a");
    let view = world.view(60);
    let shown = |task: &TaskView| (task.state.clone(), task.waits_for.clone());
    assert_eq!(shown(&view.tasks[0]), ("standby".to_owned(), None));
    assert_eq!(shown(&view.tasks[1]), ("getting-ready".to_owned(), Some("source a".to_owned())));
}

#[test]
fn a_running_task_names_what_a_part_of_its_work_waits_for_and_is_no_reason() {
    let mut world = world();
    let dispatcher = "dispatcher/birthday".to_owned();
    let waits_for = Some("a reconciliation".to_owned());
    let running = world.tasks[&reader_task("a")].clone();
    world.tasks = [(dispatcher.clone(), TaskStatus { work_waits_for: waits_for.clone(), ..running })].into();
    assert!(world.reasons(0).iter().all(|reason| reason.thing != dispatcher));
    assert_eq!(world.view(0).tasks[0].waits_for, waits_for);
}

#[test]
fn the_head_lies_in_the_epoch_that_the_stream_has_reached() {
    let world = world();
    world.poll(0, 10, 10, 10);
    let position = at(4).in_epoch(3).unwrap();
    let envelope = Envelope { position, ..Envelope::default() };
    let end = Ok(Some(LogEntry { sequence: 11, id: String::new(), envelope }));
    world.observatory.log_end_seen("a", &end, world.second(1));
    world.observatory.head_seen("a", &Ok((at(6), CLOCK_US)), world.second(1));
    world.observatory.log_end_seen("a", &end, world.second(2));
    let view = world.view(2);
    assert_eq!(view.sources[0].head.as_deref(), Some("3:7:96"));
    assert_eq!((view.sources[0].state.as_str(), view.sources[0].lag_seconds), ("lagging", Some(1.0)));
}

/// The number of the lane's position is higher than all numbers of the stream, and says nothing.
#[test]
fn a_lane_of_another_epoch_than_the_streams_is_not_called_current() {
    let world = world();
    world.poll(0, 10, 10, 10);
    for (epoch, server) in [(2, ""), (1, "7")] {
        let server = ServerIdentity { flavor: "mariadb".to_owned(), id: server.to_owned() };
        let envelope = Envelope {
            position: at(10),
            server: ServerIdentity { id: "1".to_owned(), ..server.clone() },
            ..Envelope::default()
        };
        let end = LogEntry { sequence: 10, id: String::new(), envelope };
        world.observatory.log_end_seen("a", &Ok(Some(end)), world.second(1));
        let position = at(10).in_epoch(epoch).unwrap();
        let progress =
            Progress { revision: 2, position, highest_position: position, server, ..Progress::default() };
        world.observatory.progress_seen("t", &Ok([(world.lane.clone(), progress)].into()), world.second(1));
        let view = world.view(1);
        assert_eq!((view.lanes[0].state.as_str(), view.lanes[0].lag_seconds), ("incomparable", None));
        assert_eq!(view.sources[0].state, "current");
    }
}

#[test]
fn only_own_tasks_count_for_readiness() {
    let mut world = world();
    world.tasks.remove(&reader_task("a"));
    world.observatory.head_seen("a", &Ok((at(10), CLOCK_US)), world.start);
    world.applied(10, world.start);
    assert!(world.reasons(1).is_empty());
}

#[test]
fn a_lane_below_its_highest_position_is_replaying() {
    let world = world();
    world.poll(0, 10, 10, 10);
    let progress = Progress { revision: 5, position: at(3), highest_position: at(10), ..Progress::default() };
    world.observatory.progress_seen("t", &Ok([(world.lane.clone(), progress)].into()), world.second(1));
    assert_eq!(world.view(1).lanes[0].state, "replaying");
}

#[test]
fn what_all_have_passed_is_forgotten_and_nothing_else() {
    let world = world();
    for second in 0..10 {
        world.poll(second, 10 + second, 10 + second, 12);
    }
    world.observatory.forget_passed("a");
    assert_eq!(world.view(9).lanes[0].lag_seconds, Some(6.0));
}

#[test]
fn a_refresh_shows_its_rate_and_about_how_much_is_left() {
    let world = world();
    let refreshed = |scope: Scope, rows, second| {
        let refresh = Some(Refresh { rows, ..Refresh::new(scope) });
        let progress = Progress { revision: 1, position: at(1), refresh, ..Progress::default() };
        world.observatory.progress_seen(
            "t",
            &Ok([(world.lane.clone(), progress)].into()),
            world.second(second),
        );
        world.observatory.status(&world.tasks, world.second(second)).lanes.remove(0)
    };
    world.poll(0, 1, 1, 1);
    assert!(!world.observatory.lacks_sizes("a", world.second(0)), "nobody reads");
    refreshed(Scope::Source, 0, 1);
    assert!(world.observatory.lacks_sizes("a", world.second(1)));
    let table = |entity, name: &str| TableIdentity {
        entity,
        shard: ShardId::of("a", "d", name, 0),
        database: "d".into(),
        table: name.to_owned().into(),
    };
    let sizes = [
        (table(Entity::User, "u"), 700),
        (table(Entity::User, "v"), 300),
        (table(Entity::SerialCode, "s"), 9),
    ];
    world.observatory.sizes_seen("a", &Ok(sizes.to_vec()), world.second(1));
    assert!(!world.observatory.lacks_sizes("a", world.second(2)));
    let shown = |view: LaneView| {
        let LaneView {
            refreshed_rows, refreshed_rows_per_second, refresh_rows, refresh_seconds_left, ..
        } = view;
        (refreshed_rows, refreshed_rows_per_second, refresh_rows, refresh_seconds_left)
    };
    let through = refreshed(Scope::Source, 200, 3);
    assert_eq!(shown(through), (Some(200), Some(100.0), Some(1000), Some(8.0)));
    let more_than_reckoned = refreshed(Scope::Source, 2000, 5);
    assert_eq!(shown(more_than_reckoned), (Some(2000), Some(500.0), Some(2000), Some(0.0)));
    // The figures of another refresh begin anew.
    let only = Scope::Table(ShardId::of("a", "d", "v", 0));
    assert_eq!(shown(refreshed(only, 30, 6)), (Some(30), None, Some(300), None));
    world.poll(7, 1, 1, 1);
    assert_eq!(shown(world.view(7).lanes.remove(0)), (None, None, None, None));
}

#[test]
fn the_last_hours_have_what_the_status_showed() {
    let mut world = world();
    let see = |world: &World, second: u64| {
        world.observatory.status_seen(&world.view(second), world.second(second), second * 1_000);
    };
    for second in 0..=20 {
        world.poll(second, 10 + second, 10 + second, 10 + second);
        see(&world, second);
    }
    let hours = world.observatory.recent_hours(None, world.second(25)).unwrap();
    assert_eq!((hours.step_seconds, hours.age), (10, Duration::from_secs(5)));
    let lane = lane_task(&world.lane);
    let series: serde_json::Value = serde_json::from_slice(&hours.series).unwrap();
    let expected = serde_json::json!([
        {"thing": lane, "rate": [1.0, 1.0], "lag": [0.0, 0.0]},
        {"thing": "source/a", "rate": [16.0, 16.0], "lag": [0.0, 0.0]},
    ]);
    assert_eq!(series, expected);
    assert!(hours.changes.is_empty(), "{:?}", hours.changes);

    let status = world.tasks.get_mut(&lane).unwrap();
    status.state = TaskState::Retrying;
    status.fault = Some((Code::TargetUnreachable, "[target-unreachable] x".to_owned()));
    see(&world, 21);
    let hours = world.observatory.recent_hours(Some(lane.as_str()), world.second(21)).unwrap();
    let expected = StateChange {
        at_ms: 21_000,
        thing: lane,
        from: "current".to_owned(),
        to: "retrying".to_owned(),
        code: Some("target-unreachable".to_owned()),
    };
    assert_eq!(hours.changes, [expected]);
    assert!(world.observatory.recent_hours(Some("lane/none"), world.second(21)).is_none());
}

#[test]
fn a_client_without_a_token_learns_of_leases_and_not_of_their_holders() {
    let observatory = world().observatory;
    let holder = |process_id, is_own| LeaseHolder { host: "host".to_owned(), process_id, is_own };
    let holders = [("lane/0".to_owned(), holder(7, true)), ("reader/a".to_owned(), holder(8, false))];
    observatory.leases_seen(&Ok(holders.into()));
    let busy = |number: u32| BusyTable { table: format!("d.t{number}"), changes_per_minute: number.into() };
    observatory.busiest_seen((0..20).map(|number| ("a", busy(number))));
    let mut shown = observatory.status(&BTreeMap::new(), Instant::now());
    let leases: Vec<_> = shown.leases.iter().map(|view| (view.holder.as_deref(), view.is_here)).collect();
    assert_eq!(leases, [(Some("host 7"), true), (Some("host 8"), false)]);
    let tables: Vec<&str> = shown.busiest.iter().map(|view| view.table.as_str()).collect();
    assert_eq!((tables.len(), tables[0], tables[9]), (10, "d.t19", "d.t10"));
    shown.leave_out_faults();
    assert!(shown.busiest.is_empty() && shown.leases.iter().all(|view| view.holder.is_none()));
    assert!(shown.leases[0].is_here && shown.leases[1].lease == "reader/a");
    observatory.leases_seen(&Err(Fault::new(Code::LogUnreachable, "log", "no answer")));
    assert!(observatory.status(&BTreeMap::new(), Instant::now()).leases.is_empty(), "an old holder is none");
}

#[test]
fn known_pauses_stay_while_their_register_is_damaged() {
    let observatory = world().observatory;
    let damaged = || Err(Fault::new(Code::LogForeign, "register pauses", "its value is no list of pauses"));
    observatory.pauses_seen(&damaged());
    assert!(observatory.pauses().0.borrow().is_none(), "no lane begins before the pauses were read");
    let one = r#"{"pauses":[{"projection":"birthday","source":null,"since_ms":7,"by":"a@b","reason":null}]}"#;
    let one: Pauses = serde_json::from_str(one).unwrap();
    observatory.pauses_seen(&Ok(one.clone()));
    observatory.pauses_seen(&damaged());
    assert_eq!(observatory.pauses().0.borrow().as_ref(), Some(&one));
}

#[test]
fn drift_is_shown_for_an_hour_after_the_last_wrong_row_and_a_certificate_with_its_end() {
    let world = world();
    let at_minute = |minute: u64| world.second(minute * 60);
    for minute in [0, 30] {
        world.observatory.drift_seen("birthday", "a", at_minute(minute));
    }
    let rows = |minute: u64| {
        let drifts = world.observatory.status(&world.tasks, at_minute(minute)).drifts;
        drifts.iter().map(|view| view.rows).collect::<Vec<u64>>()
    };
    assert_eq!(rows(89), [2]);
    assert_eq!(rows(90), Vec::<u64>::new());
    world.observatory.drift_seen("birthday", "a", at_minute(100));
    assert_eq!(rows(100), [1], "it is counted anew");

    world.observatory.certificate_seen(Dependency::Source, "a", Some(7));
    world.observatory.certificate_seen(Dependency::Log, "log", None);
    let certificates = world.view(0).certificates;
    let (dependency, name) = ("source".to_owned(), "a".to_owned());
    assert_eq!(certificates, [CertificateView { dependency, name, ends_at_ms: 7_000 }]);
}
