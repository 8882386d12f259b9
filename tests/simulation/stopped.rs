//! Every code that stops tasks, while its cause stands: a stopped task is restarted, stops by the same code again, and
//! has written nothing in between. `codes.rs` shows that the tasks work again once the cause is gone.

use std::time::Duration;

use anabranch_connectors::memory::{Refused, StoreKind};
use anabranch_pipeline::error::Code;
use anabranch_pipeline::supervise::TaskState;
use tokio::time::sleep;

use crate::codes::{Tasks, in_virtual_time, kinds, servers};

/// Time in which a task makes the attempts after which it stops, also when it does other work first.
const STOPPED_WITHIN: Duration = Duration::from_secs(300);

/// One refusal that lasts, and two restarts beside it: of the stopped tasks by their names, and of all tasks.
async fn stops_again(kind: StoreKind, server: Refused, code: Code) {
    let what = format!("{code} of {server:?}, {kind:?}");
    let process = Tasks::start(kind);
    process.insert(1);
    process.equal(1, &what).await;
    process.stage.weather.refuse(Some((server, code)));
    // Each attempt has something to write.
    process.insert(2);
    process.mapping.flush(Vec::new());
    sleep(STOPPED_WITHIN).await;
    let stopped = process.in_state(TaskState::Stopped);
    assert!(!stopped.is_empty(), "{what}: no task has stopped");
    let stored = process.stage.stored();
    let by_name = || stopped.iter().filter(|task| process.states.restart(task)).count();
    let all = || process.states.restart_all();
    for restart in [&by_name as &dyn Fn() -> usize, &all] {
        let before = process.attempts();
        assert!(restart() >= stopped.len(), "{what}: {stopped:?}");
        sleep(STOPPED_WITHIN).await;
        let (attempts, states) = (process.attempts(), process.states.snapshot());
        for task in &stopped {
            assert!(attempts[task] > before[task], "{what}: {task} was not tried again");
            let status = &states[task];
            let found = (status.state, status.fault.as_ref().map(|(code, _)| *code));
            assert_eq!(found, (TaskState::Stopped, Some(code)), "{what}: {task}");
        }
        assert_eq!(process.stage.stored(), stored, "{what}: an attempt wrote before it knew its fault");
    }
}

#[test]
fn a_stopped_task_that_is_restarted_too_early_stops_by_the_same_code_and_writes_nothing() {
    // No server's answer stops the mint, only a wrong clock: `uuids.rs` restarts it while its clock is wrong.
    let by_servers = |code: &Code| code.stops() && *code != Code::UuidsExhausted;
    for code in Code::ALL.iter().copied().filter(by_servers) {
        let servers = servers(code);
        assert!(!servers.is_empty(), "no twin can answer {code}");
        for server in servers {
            for kind in kinds(*server) {
                in_virtual_time(stops_again(*kind, *server, code));
            }
        }
    }
}
