//! Tables that left by a retention rule, on twins without faults: their derived rows stand, whatever is read, repaired
//! or removed afterwards, and rows of the next table of that name stand beside them.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use anabranch_connectors::memory::{Group, ScriptedRow};
use anabranch_pipeline::composition::ProjectionLanes;
use anabranch_pipeline::deliver::request_refresh;
use anabranch_pipeline::error::Code;
use anabranch_pipeline::ports::{ForeignRows, RowSource};
use anabranch_pipeline::reconcile::{LaneWait, Proof, SourceTable, StoreReport};
use anabranch_pipeline::records::{Cell, Outcome, Scope};
use anabranch_schemas::change::Value;
use anabranch_schemas::shard::ShardId;

use crate::one_reconciliation::{filled, insert, settings, whole_reconciliation};
use crate::script::{self, TARGETS};
use crate::spot_checks::{minutes, sides};
use crate::stage::{SOURCE_NAMES, Stage, lane_id, lanes_of};

fn retire(stage: &Stage, shard: usize) {
    stage.sources[0].commit(Group::Retire(script::table(shard)));
}

fn delete(stage: &Stage, shard: usize, user: u64) {
    let row = vec![Value::UInt(user), Value::Date { year: 1992, month: 1, day: 1 }];
    let row = ScriptedRow { table: script::table(shard), before: Some(row), after: None };
    stage.sources[0].commit(Group::Rows(vec![vec![row]]));
}

/// Has every lane read these rows again, and waits until they have.
async fn refresh(stage: &Stage, scope: &Scope) {
    for lane in lanes_of(0) {
        loop {
            match request_refresh(&lane_id(lane), &mut stage.store(lane), scope.clone()).await {
                Ok(_) => break,
                // The lane has committed meanwhile.
                Err(fault) => assert_eq!(fault.code(), Code::TargetFenced, "{fault}"),
            }
        }
    }
    minutes(2.0).await;
}

/// Rows of users in both tables, of which the first one left: `expected` rows stand, and `retired` of them are its.
async fn expect(stage: &Arc<Stage>, expected: usize, retired: u64) -> StoreReport {
    minutes(1.0).await;
    assert_eq!(stage.found().len(), expected);
    let report = whole_reconciliation(stage, &settings()).await;
    assert_eq!((report.outcome(), report.candidates), (Outcome::Clean, 0), "{report:?}");
    assert_eq!((report.retired_tables, report.retired_rows), (1, retired), "{report:?}");
    assert_eq!(report.rows_derived + retired, expected as u64, "{report:?}");
    report
}

#[tokio::test(start_paused = true)]
async fn rows_of_a_retired_table_stand_and_the_next_table_of_its_name_has_rows_of_its_own() {
    let (stage, tasks) = filled(20).await;
    retire(&stage, 0);
    let report = expect(&stage, 40, 20).await;
    assert_eq!((report.tables, report.rows_source, report.foreign_rows), (1, 20, 0), "{report:?}");

    // No row of it is foreign, so no person has it removed as such.
    let known: BTreeSet<ShardId> =
        stage.sources[0].tables().await.unwrap().into_iter().map(|table| table.shard).collect();
    for target in sides(&stage).targets {
        for table in 0..stage.projection().tables().len() as u32 {
            let limit = NonZeroUsize::new(1_000).unwrap();
            assert_eq!(target.foreign(table, &known, None, limit).await.unwrap().0, []);
        }
    }

    // Ten users come back in a table of the same name, beside ten others.
    insert(&stage, 0, 10..30);
    expect(&stage, 50, 10).await;
    delete(&stage, 0, 15);
    expect(&stage, 49, 10).await;

    let shard = script::table(0).shard;
    refresh(&stage, &Scope::Table(shard)).await;
    expect(&stage, 49, 10).await;
    // Of these two rows the next table has only one, and the repair of the other one finds no row.
    let keys = [Cell::UInt(3), Cell::UInt(12)].into();
    refresh(&stage, &Scope::Keys([(shard, keys)].into())).await;
    expect(&stage, 49, 10).await;
    refresh(&stage, &Scope::Source).await;
    expect(&stage, 49, 10).await;

    // It leaves again: all of its rows are retired now, and none of them goes.
    retire(&stage, 0);
    expect(&stage, 49, 29).await;
    tasks.into_iter().for_each(|task| task.abort());
}

/// A drifted row of the next table is repaired; a retired row is compared with nothing.
#[tokio::test(start_paused = true)]
async fn a_reconciliation_repairs_the_next_table_and_leaves_retired_rows_alone() {
    let (stage, tasks) = filled(20).await;
    retire(&stage, 0);
    minutes(1.0).await;
    insert(&stage, 0, 20..30);
    minutes(1.0).await;
    let shard = script::table(0).shard;
    for target in 0..TARGETS {
        stage.tamper(target, |rows| {
            rows.retain(|(_, of, key), _| *of != shard || **key != [Cell::UInt(25)]);
        });
    }
    let report = whole_reconciliation(&stage, &settings()).await;
    assert_eq!((report.outcome(), report.repaired, report.retired_rows), (Outcome::Repaired, 1, 20));
    expect(&stage, 50, 20).await;
    tasks.into_iter().for_each(|task| task.abort());
}

/// A lane that stands still may lack anything, so a table is proven only after every lane has passed the source's end.
#[tokio::test(start_paused = true)]
async fn a_table_is_proven_only_when_every_lane_has_passed_the_end_of_its_source() {
    let (stage, tasks) = filled(20).await;
    let (sides, process) = (sides(&stage), stage.comparing());
    let lanes = ProjectionLanes { connectors: &process, projection: "birthday" };
    let lane_wait = LaneWait::new(Duration::from_secs(30));
    let memory = NonZeroUsize::new(1 << 20).unwrap();
    let proof = Proof { sides: &sides, lanes: &lanes, lane_wait: &lane_wait, memory };
    let table = SourceTable { source: SOURCE_NAMES[0].to_owned(), identity: script::table(0) };
    let proven = proof.of(&table, 7).await.unwrap();
    assert!(proven.is_whole() && proven.rows_source == 20 && proven.rows_derived == 20, "{proven:?}");

    stage.tamper(0, |rows| rows.clear());
    stage.tamper(1, |rows| rows.clear());
    let differs = proof.of(&table, 8).await.unwrap();
    assert!(!differs.is_whole(), "{differs:?}");
    refresh(&stage, &Scope::Source).await;
    assert!(proof.of(&table, 9).await.unwrap().is_whole());

    // The first task is the reader, and the others are lanes: the rows of the table stay equal, and nothing moves.
    tasks[1..].iter().for_each(tokio::task::JoinHandle::abort);
    minutes(1.0).await;
    insert(&stage, 1, 100..101);
    minutes(1.0).await;
    let why = proof.of(&table, 10).await.unwrap_err();
    assert!(why.contains("has not reached the position of the comparison"), "{why}");
    tasks.into_iter().for_each(|task| task.abort());
}
