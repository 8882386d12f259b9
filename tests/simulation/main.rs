//! The flow on in-memory twins and virtual time, under seeded faults: whatever happens, the store ends equal.
//!
//! Two sources, two targets, two lanes each, one log, two daemons that share the work through leases. A failing seed
//! prints itself and is written to a file; `seeds.txt` holds seeds that once failed, which run first.
//! `ANABRANCH_SIMULATION_SEEDS=N` runs N seeds, `ANABRANCH_SIMULATION_SEED=S` one and prints its steps.

mod daemon;
mod epochs;
mod feeds;
mod replay;
mod script;
mod seeds;
mod stage;
mod uuids;
mod world;

use seeds::Verdict;

/// Enough to notice each protection's absence many times over.
const SEEDS: u64 = 2_000;

#[test]
fn whatever_fails_the_store_ends_equal_to_its_sources() {
    let given = seeds::number("ANABRANCH_SIMULATION_SEED");
    let seeds = match given {
        Some(seed) => vec![seed],
        None => {
            let number = seeds::number("ANABRANCH_SIMULATION_SEEDS").unwrap_or(SEEDS);
            seeds::kept().into_iter().chain(0..number).collect()
        }
    };
    seeds::run(seeds, move |seed| world::run(seed, given.is_some()).verdict).require_success();
}

/// Else a seed that failed could not be looked at again.
#[test]
fn a_seed_runs_the_same_every_time() {
    for seed in 0..20 {
        let (one, two) = (world::run(seed, false), world::run(seed, false));
        assert_eq!(one, two, "seed {seed}");
        assert_eq!(one.verdict, Verdict::Equal, "seed {seed}");
    }
}
