//! Spot checks between reconciliations: they report a row that is wrong after a minute, and no row that is only late.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_connectors::memory::{Group, MemoryRows, MemorySource, ScriptedRow};
use anabranch_pipeline::composition::ProjectionLanes;
use anabranch_pipeline::config::SpotCheckConfig;
use anabranch_pipeline::deliver::Shared;
use anabranch_pipeline::error::Code;
use anabranch_pipeline::reconcile::{CheckedStore, LaneWait, Sides, SpotCheckEvent, SpotChecks, Verdict};
use anabranch_pipeline::records::Cell;
use anabranch_schemas::birthday::Layout;
use anabranch_schemas::change::Value;
use anabranch_schemas::lsn::Lsn;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::script;
use crate::stage::{LaneAt, SOURCE_NAMES, Stage, lane_id, lanes_of, limits};

/// Number of verdicts on changed keys, by seconds after the change and verdict.
type Seen = Arc<Mutex<BTreeMap<(u64, Verdict), usize>>>;

const MINUTE: Duration = Duration::from_secs(60);

pub fn stage() -> Arc<Stage> {
    Arc::new(Stage::calm(Layout::ByDay, limits(100, 10, Duration::from_secs(3600))))
}

/// Inserts users of the first shard who are born on the first of January.
fn insert(stage: &Stage, users: std::ops::Range<u64>) {
    let row = |user| vec![Value::UInt(user), Value::Date { year: 1992, month: 1, day: 1 }];
    let rows =
        users.map(|user| ScriptedRow { table: script::table(0), before: None, after: Some(row(user)) });
    stage.sources[0].commit(Group::Rows(vec![rows.collect()]));
}

/// Starts a reader, all lanes of the first source but `without`, and its spot checks.
fn start(stage: &Arc<Stage>, without: Option<LaneAt>, seen: &Seen) -> Vec<JoinHandle<()>> {
    let mut tasks = run(stage, without);
    tasks.push(tokio::spawn(watch(stage.clone(), seen.clone())));
    tasks
}

/// Starts a reader and all lanes of the first source but `without`.
pub fn run(stage: &Arc<Stage>, without: Option<LaneAt>) -> Vec<JoinHandle<()>> {
    let mut tasks = Vec::new();
    let of_reader = stage.clone();
    tasks.push(tokio::spawn(async move {
        let ended = of_reader.read(0, &CancellationToken::new()).await;
        panic!("the reader ended: {ended:?}");
    }));
    for lane in lanes_of(0).filter(|lane| Some(*lane) != without) {
        let stage = stage.clone();
        tasks.push(tokio::spawn(async move {
            let shared = Shared::new(2);
            loop {
                let ended = stage.deliver(lane, &shared, &CancellationToken::new()).await;
                // A reconciliation has asked it for a refresh.
                let is_asked = matches!(&ended, Err(fault) if fault.code() == Code::TargetFenced);
                assert!(is_asked, "lane {} ended: {ended:?}", lane_id(lane));
            }
        }));
    }
    tasks
}

/// The first source, and the derived rows of all targets.
pub fn sides(stage: &Stage) -> Sides<MemorySource, MemoryRows> {
    let projection = stage.projection();
    let sources = BTreeMap::from([(SOURCE_NAMES[0].to_owned(), Arc::new(stage.sources[0].clone()))]);
    Sides {
        replicated: Default::default(),
        projection: projection.clone(),
        audit: None,
        primaries: sources.clone(),
        sources,
        targets: stage.targets.iter().map(|target| Arc::new(target.derived(projection))).collect(),
    }
}

async fn watch(stage: Arc<Stage>, seen: Seen) {
    let sides = sides(&stage);
    let config =
        SpotCheckConfig { keys_a_second: 20, after: [1, 5, 10].map(|minutes| MINUTE * minutes).into() };
    let process = stage.comparing();
    let lanes = ProjectionLanes { connectors: &process, projection: "birthday" };
    let stores = [CheckedStore { name: "birthday".to_owned(), sides, lanes }];
    let on_event = |event: SpotCheckEvent<'_>| match event {
        SpotCheckEvent::Checked { after, verdict, .. } => {
            *seen.lock().expect("nothing panics in there").entry((after.as_secs(), verdict)).or_default() +=
                1;
        }
        SpotCheckEvent::Skipped(changes) => panic!("{changes} changes were skipped"),
    };
    let watch = SpotChecks {
        source: SOURCE_NAMES[0],
        log: &stage.log,
        stores: &stores,
        config: &config,
        lane_wait: LaneWait::short(Duration::from_secs(10)),
        on_event: &on_event,
    };
    let ended = watch.run().await;
    panic!("the watch ended: {ended:?}");
}

fn taken(seen: &Seen) -> Vec<((u64, Verdict), usize)> {
    std::mem::take(&mut *seen.lock().expect("nothing panics in there")).into_iter().collect()
}

pub async fn minutes(number: f64) {
    tokio::time::sleep(MINUTE.mul_f64(number)).await;
}

/// The lane that owns the table of the first of January.
pub fn owner(stage: &Stage) -> LaneAt {
    let tables = stage.projection().tables();
    let place = tables.iter().position(|table| table.derived.table == "birthday_0101").expect("it is there");
    (0, tables[place].target as usize, tables[place].lane)
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_a_minute_after_its_change_is_seen_until_it_is_right() {
    let (stage, seen) = (stage(), Seen::default());
    let tasks = start(&stage, None, &seen);
    minutes(0.1).await;
    insert(&stage, 0..10);
    minutes(0.5).await;
    // By hand: two rows are deleted, and one has another day.
    stage.tamper(owner(&stage).1, |rows| {
        let mut keys = rows.keys().cloned().collect::<Vec<_>>().into_iter();
        keys.by_ref().take(2).for_each(|key| _ = rows.remove(&key));
        let changed = keys.next().expect("ten users");
        let day: Box<[_]> = Box::new([Cell::Bytes(b"12-31"[..].into())]);
        rows.insert(changed, (Lsn::from_u64(3).unwrap(), day));
    });
    let found = |after| {
        vec![((after, Verdict::Missing), 2), ((after, Verdict::Stale), 1), ((after, Verdict::InFlight), 7)]
    };
    minutes(1.0).await;
    assert_eq!(taken(&seen), found(60));
    minutes(4.0).await;
    assert_eq!(taken(&seen), found(300));
    // The insert repairs the rows, as a reconciliation does.
    insert(&stage, 0..10);
    minutes(5.0).await;
    assert_eq!(taken(&seen), [((60, Verdict::InFlight), 10), ((600, Verdict::InFlight), 10)]);
    tasks.into_iter().for_each(|task| task.abort());
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_is_late_is_no_drift_and_a_lost_stream_ends_no_watch() {
    let (stage, seen) = (stage(), Seen::default());
    let late = owner(&stage);
    let tasks = start(&stage, Some(late), &seen);
    minutes(0.1).await;
    insert(&stage, 0..10);
    minutes(2.0).await;
    assert_eq!(taken(&seen), [((60, Verdict::Unreadable), 10)]);
    let of_lane = stage.clone();
    let lane = tokio::spawn(async move {
        let shared = Shared::new(2);
        of_lane.deliver(late, &shared, &CancellationToken::new()).await.unwrap();
    });
    minutes(4.0).await;
    assert_eq!(taken(&seen), [((300, Verdict::InFlight), 10)]);
    tasks[0].abort();
    stage.log.wipe(SOURCE_NAMES[0]);
    let of_reader = stage.clone();
    let reader = tokio::spawn(async move { of_reader.read(0, &CancellationToken::new()).await.unwrap() });
    minutes(0.1).await;
    insert(&stage, 20..25);
    minutes(2.0).await;
    assert_eq!(taken(&seen), [((60, Verdict::InFlight), 5)]);
    tasks.into_iter().chain([lane, reader]).for_each(|task| task.abort());
}
