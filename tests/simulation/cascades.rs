//! A foreign key changes rows of a table all the time, and the binlog does not show which: each reading of the table
//! comes to its end all the same, and the last one leaves nothing wrong.

use std::time::Duration;

use anabranch_connectors::memory::{Group, ScriptedRow};
use anabranch_schemas::change::Value;
use tokio::time::{sleep, timeout};

use crate::one_reconciliation::filled;
use crate::script;
use crate::spot_checks::minutes;
use crate::stage::Stage;

/// Time between two unseen changes: shorter than any reading of a table takes with its wait for the watermark.
const BETWEEN: Duration = Duration::from_millis(50);
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Changes a user of the first table without a row event; the birthday is a day of January, and `None` is no row.
fn change_unseen(stage: &Stage, user: u64, before: Option<u8>, after: Option<u8>) {
    let row = |day| vec![Value::UInt(user), Value::Date { year: 1992, month: 1, day }];
    let row = ScriptedRow { table: script::table(0), before: before.map(row), after: after.map(row) };
    stage.sources[0].commit(Group::Unseen(vec![vec![row]]));
}

/// The number of derived rows of a user of the first table.
fn rows_of(stage: &Stage, user: u64) -> usize {
    stage.found().iter().filter(|(_, _, shard, of, _)| (*shard, *of) == (0, user)).count()
}

#[tokio::test(start_paused = true)]
async fn a_table_that_changes_unseen_all_the_time_is_read_to_its_end() {
    let (stage, tasks) = filled(20).await;
    change_unseen(&stage, 5, Some(1), None);
    let mut day = 1;
    let deleted = async {
        while rows_of(&stage, 5) > 0 {
            let next = if day == 1 { 3 } else { 1 };
            change_unseen(&stage, 6, Some(day), Some(next));
            day = next;
            sleep(BETWEEN).await;
        }
    };
    timeout(WAIT_MAX, deleted).await.expect("no reading of the table has ended");
    minutes(1.0).await;
    assert!(stage.progress(0).iter().all(|(_, progress)| progress.refresh.is_none()), "a lane owes a table");
    assert_eq!((rows_of(&stage, 5), rows_of(&stage, 6), stage.found().len()), (0, 1, 39));
    tasks.into_iter().for_each(|task| task.abort());
}
