//! Uuids are given out once, whatever clocks and processes do.
//!
//! Three machine numbers have processes that die, freeze, wake late and are replaced while they believe that they hold
//! the number. Wall clocks stand still, and step back by years and ahead. A log server loses requests and answers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anabranch_connectors::memory::{MemoryRegisters, Weather};
use anabranch_pipeline::composition;
use anabranch_pipeline::deliver::Shared;
use anabranch_pipeline::error::Code;
use anabranch_pipeline::identifiers::{EPOCH_MS, Mint, UuidOrder, UuidOrders};
use anabranch_pipeline::supervise::{Supervisor, TaskHandle, TaskState, TaskStates};
use anabranch_schemas::birthday::Layout;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::process::{Process, ProcessLeases};
use crate::stage::{DIRECT_FEEDS, Stage, limits};

const SEEDS: u64 = 100;
const STEPS: u32 = 200;

struct Clock(u64);

impl Clock {
    fn read(&mut self, random: &mut StdRng) -> u64 {
        match random.random_range(0..20) {
            0 => self.0 = self.0.saturating_sub(random.random_range(0..10_000_000_000)),
            1 => self.0 += random.random_range(0..100_000_000),
            2..12 => self.0 += random.random_range(0..3_000),
            // The clock stands still: several calls come within one millisecond.
            _ => {}
        }
        self.0
    }
}

/// Runs a world; returns the number of uuids that were given out.
async fn world(seed: u64) -> usize {
    let mut random = StdRng::seed_from_u64(seed);
    let registers = MemoryRegisters::new(Weather::stormy(seed, 5));
    let mut clock = Clock(EPOCH_MS + random.random_range(0..1_000_000_000_000));
    // A machine's last process is the rightful one; earlier ones do not know it.
    let mut machines: [Vec<Mint<'_, MemoryRegisters>>; 3] = Default::default();
    let mut given = BTreeSet::new();
    for step in 0..STEPS {
        let machine = random.random_range(0..machines.len());
        if machines[machine].is_empty() || random.random_ratio(1, 10) {
            machines[machine].extend(Mint::open(&registers, machine as u16).await);
            continue;
        }
        let process = match random.random_ratio(1, 4) {
            true => random.random_range(0..machines[machine].len()),
            false => machines[machine].len() - 1,
        };
        let count = if random.random_ratio(1, 20) { 5_000 } else { random.random_range(1..20) };
        match machines[machine][process].issue(clock.read(&mut random), count).await {
            Ok(uuids) => {
                assert!(uuids.iter().all(|uuid| i64::try_from(*uuid).is_ok()));
                for uuid in uuids {
                    assert!(given.insert(uuid), "seed {seed}, step {step}: {uuid} was given out twice");
                }
            }
            // After a failure the process begins anew, as the product's does.
            Err(_) => drop(machines[machine].remove(process)),
        }
    }
    given.len()
}

#[tokio::test(start_paused = true)]
async fn no_uuid_is_given_out_twice_whatever_clocks_and_processes_do() {
    let begin = anabranch_tests::seed("uuids");
    let mut given = 0;
    for seed in begin..begin + SEEDS {
        given += world(seed).await;
    }
    assert!(given > 100_000, "only {given} uuids prove little");
}

/// Asks the mint of a process for uuids until it gives them.
async fn asked(orders: UuidOrders, count: u32) -> Vec<u64> {
    loop {
        let (answer, given) = oneshot::channel();
        let order = UuidOrder { count, key: None, answer };
        orders.sender.send(order).await.expect("the receiver stands beside the sender");
        if let Ok(given) = given.await {
            return given.expect("nothing is refused").expect("there is no key");
        }
    }
}

/// The clock of a machine may be wrong for a while: what its task reserved before stays as it was.
#[tokio::test(start_paused = true)]
async fn a_clock_beyond_all_uuids_stops_the_task_and_a_restart_with_the_right_one_goes_on() {
    const YEAR_MS: u64 = 31_557_600_000;
    const UUIDS: u32 = 3;
    let stage = Arc::new(Stage::calm(Layout::ByDay, limits(100, 10, Duration::from_secs(3600))));
    let (clock, orders) = (Arc::new(AtomicU64::new(EPOCH_MS + 80 * YEAR_MS)), UuidOrders::default());
    let (states, cancel) = (TaskStates::default(), CancellationToken::new());
    let mut supervisor = Supervisor::new(states.clone(), cancel, Duration::from_secs(60));
    let attempts = Arc::new(AtomicU64::new(0));
    let (of_tasks, begun, read, queue) = (stage.clone(), attempts.clone(), clock.clone(), orders.clone());
    supervisor.spawn("uuids", move |handle: TaskHandle, cancel: CancellationToken| {
        begun.fetch_add(1, Ordering::Relaxed);
        let (stage, read, queue) = (of_tasks.clone(), read.clone(), queue.clone());
        async move {
            let shared = Shared::new(DIRECT_FEEDS);
            let leases = ProcessLeases::Kept(stage.leases.clone());
            let process = Process::new(&stage, stage.fields(), &shared, leases);
            let now_ms = || read.load(Ordering::Relaxed);
            composition::mint(&process, &queue, now_ms, &handle, &cancel).await
        }
    });
    let given = tokio::spawn(asked(orders, UUIDS));
    let status = || states.snapshot().remove("uuids").expect("the task was spawned");
    tokio::time::sleep(Duration::from_secs(600)).await;
    let stored = stage.stored();
    // A restart while the clock is wrong reserves nothing.
    for restarts in 0..3 {
        let stopped = status();
        assert_eq!(stopped.state, TaskState::Stopped, "{stopped:?}");
        assert_eq!(stopped.fault.map(|(code, _)| code), Some(Code::UuidsExhausted));
        assert_eq!(attempts.load(Ordering::Relaxed), restarts + 1);
        assert!(!given.is_finished(), "nothing was given out");
        assert_eq!(stage.stored(), stored);
        if restarts < 2 {
            assert!(states.restart("uuids"));
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
    }

    clock.store(EPOCH_MS + YEAR_MS, Ordering::Relaxed);
    assert!(states.restart("uuids"));
    // A task that had failed is well after some seconds at work.
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!((status().state, given.is_finished()), (TaskState::Running, true));
    assert_eq!(given.await.expect("it was given").len(), UUIDS as usize);
}
