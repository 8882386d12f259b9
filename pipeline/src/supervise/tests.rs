//! Tasks that fail, are tried again, stop and are restarted.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

fn supervisor() -> (Supervisor, TaskStates) {
    let states = TaskStates::default();
    (Supervisor::new(states.clone(), CancellationToken::new(), Duration::from_secs(60)), states)
}

/// Spawns a task whose attempts begin and then end with `code`; returns the number of its attempts.
fn failing(supervisor: &mut Supervisor, name: &str, code: Code, work: Duration) -> Arc<AtomicU32> {
    let tries = Arc::new(AtomicU32::new(0));
    let counted = tries.clone();
    supervisor.spawn(name, move |handle: TaskHandle, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            handle.begun();
            tokio::time::sleep(work).await;
            Err(Fault::new(code, "a thing", "as it is"))
        }
    });
    tries
}

#[tokio::test(start_paused = true)]
async fn a_code_stops_its_task_only_when_time_does_not_mend_it_and_a_restart_tries_it_again() {
    for code in Code::ALL {
        let (mut supervisor, states) = supervisor();
        let tries = failing(&mut supervisor, "task", *code, Duration::ZERO);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let status = states.snapshot().remove("task").unwrap();
        let tried = tries.load(Ordering::SeqCst);
        let Some(most) = code.stops_after() else {
            assert_eq!((status.state, status.lasting), (TaskState::Retrying, true), "{code}");
            assert!((60..=130).contains(&tried), "{code}: {tried} attempts in an hour");
            continue;
        };
        assert_eq!((status.state, tried), (TaskState::Stopped, most), "{code}");
        let (shown, text) = status.fault.unwrap();
        assert!(shown == *code && text.contains("anabranch restart task"), "{text}");
        assert!(supervisor.is_finished() && supervisor.are_stopped(), "{code}");
        // Each restart allows as many attempts again, and no more.
        assert!(states.restart("task") && !states.restart("another"));
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(tries.load(Ordering::SeqCst), 2 * most, "{code}");
        assert_eq!(states.restart_all(), 1);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(tries.load(Ordering::SeqCst), 3 * most, "{code}");
        assert!(supervisor.stop(tokio::time::Instant::now() + Duration::from_secs(1)).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_ends_a_pause() {
    let (mut supervisor, states) = supervisor();
    let tries = failing(&mut supervisor, "task", Code::TargetUnreachable, Duration::ZERO);
    tokio::time::sleep(Duration::from_secs(600)).await;
    let before = tries.load(Ordering::SeqCst);
    assert!(states.restart("task"));
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(tries.load(Ordering::SeqCst), before + 1);
}

#[tokio::test(start_paused = true)]
async fn what_fails_behind_the_first_answers_is_tried_ever_more_slowly_and_does_not_look_like_work() {
    let (mut supervisor, states) = supervisor();
    let tries = failing(&mut supervisor, "task", Code::TargetUnreachable, Duration::from_millis(5));
    let mut shown = Vec::new();
    for _ in 0..600 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        shown.push(states.snapshot()["task"].state);
    }
    assert!(shown.iter().all(|state| *state == TaskState::Retrying), "{shown:?}");
    assert!(states.snapshot()["task"].lasting);
    let before = tries.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(600)).await;
    let late = tries.load(Ordering::SeqCst) - before;
    assert!(before <= 30 && late <= 20, "{before} attempts, then {late} in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn a_task_that_was_well_is_tried_soon_again() {
    let (mut supervisor, states) = supervisor();
    let tries = Arc::new(AtomicU32::new(0));
    let counted = tries.clone();
    supervisor.spawn("task", move |handle: TaskHandle, _| {
        let number = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            if number == 20 {
                handle.well();
            }
            Err(Fault::new(Code::TargetUnreachable, "a target", "it went away"))
        }
    });
    while tries.load(Ordering::SeqCst) < 21 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(tries.load(Ordering::SeqCst) >= 22);
    assert!(!states.snapshot()["task"].lasting);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_event_stops_its_reader_when_it_is_met_three_times_at_one_place() {
    let (mut supervisor, states) = supervisor();
    let tries = Arc::new(AtomicU32::new(0));
    let counted = tries.clone();
    supervisor.spawn("reader", move |handle: TaskHandle, _| {
        let number = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            // Each of the first ten events is damaged on the way, at another position.
            handle.reached(Lsn::from_u64(u64::from(number.min(10) + 1)).unwrap());
            Err(Fault::new(Code::BinlogEventCorrupt, "source a", "an event"))
        }
    });
    supervisor.finished().await;
    assert_eq!(tries.load(Ordering::SeqCst), 13);
    assert_eq!(states.snapshot()["reader"].state, TaskState::Stopped);
}

#[tokio::test(start_paused = true)]
async fn a_fault_is_told_first_and_then_at_most_once_a_minute_with_a_count() {
    let mut fault_log = FaultLog::default();
    let mut lines = Vec::new();
    for second in 0..150 {
        if let Some(times) = fault_log.again(Code::TargetUnreachable) {
            lines.push((second, times));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(lines, [(0, 1), (60, 60), (120, 60)]);
    assert_eq!(fault_log.again(Code::LogFull), Some(1), "another fault has its own line");
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_bug_of_one_task_and_is_tried_again() {
    let (mut supervisor, _) = supervisor();
    let tries = Arc::new(AtomicU32::new(0));
    let counted = tries.clone();
    supervisor.spawn("panics", move |_, _| {
        let number = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            assert!(number > 0, "the first attempt panics");
            Ok(())
        }
    });
    supervisor.finished().await;
    assert_eq!(tries.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn stop_waits_for_the_tasks_but_not_beyond_the_deadline() {
    let (mut supervisor, _) = supervisor();
    supervisor.spawn("orderly", |_, cancel: CancellationToken| async move {
        cancel.cancelled().await;
        Ok(())
    });
    assert!(supervisor.stop(tokio::time::Instant::now() + Duration::from_secs(1)).await);
    let (mut supervisor, _) = self::supervisor();
    supervisor.spawn("stuck", |_, _| std::future::pending());
    assert!(!supervisor.stop(tokio::time::Instant::now() + Duration::from_secs(1)).await);
}
