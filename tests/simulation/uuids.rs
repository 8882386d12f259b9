//! Uuids are given out once, whatever clocks and processes do.
//!
//! Three machine numbers have processes that die, freeze, wake late and are replaced while they believe that they hold
//! the number. Wall clocks stand still, and step back by years and ahead. A log server loses requests and answers.

use std::collections::BTreeSet;

use anabranch_connectors::memory::{MemoryRegisters, Weather};
use anabranch_pipeline::identifiers::{EPOCH_MS, Mint};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

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
