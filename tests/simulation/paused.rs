//! A lane that was paused for longer than log and binlog are kept.

use std::time::Duration;

use anabranch_connectors::memory::{Group, ScriptedRow};
use anabranch_pipeline::deliver::{Shared, request_refresh};
use anabranch_pipeline::error::Code;
use anabranch_pipeline::records::Scope;
use anabranch_schemas::change::Value;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::anew::{LANE, progress, run, stage, users};
use crate::script;
use crate::stage::{SOURCE_NAMES, Stage, lane_id, lanes_of};

/// Time in which the reader sends all that there is.
const WHILE: Duration = Duration::from_secs(20);

fn write(stage: &Stage, user: u64) {
    let after = Some(vec![Value::UInt(user), Value::Date { year: 1990, month: 1, day: 1 }]);
    let row = ScriptedRow { table: script::table(0), before: None, after };
    stage.sources[0].commit(Group::Rows(vec![vec![row]]));
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_was_paused_for_too_long_stops_by_name_and_a_refresh_lets_it_go_on() {
    let stage = stage();
    write(&stage, 1);
    assert_eq!(run(&stage).await, None);
    let before = progress(&stage).await;
    let (cancel, name) = (CancellationToken::new(), SOURCE_NAMES[0]);
    for user in 2..5 {
        write(&stage, user);
        stage.sources[0].rotate();
        timeout(WHILE, stage.read(0, &cancel)).await.unwrap_err();
    }
    stage.log.discard(name, stage.log.messages(name) - 1);
    stage.sources[0].purge([]);
    let fault = stage.deliver(LANE, &Shared::new(2), &cancel).await.unwrap_err();
    assert_eq!(fault.code(), Code::BinlogPurged, "{fault}");
    assert!(fault.to_string().contains("refresh --projection birthday --source source-0"), "{fault}");
    let after = progress(&stage).await;
    assert_eq!((after.position, after.refresh), (before.position, None), "it changed nothing");

    for lane in lanes_of(0) {
        request_refresh(&lane_id(lane), &mut stage.store(lane), Scope::Source).await.unwrap();
    }
    assert_eq!(run(&stage).await, None);
    assert_eq!(users(&stage), [1, 2, 3, 4]);
}
