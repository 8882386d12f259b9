//! The flow on in-memory twins and virtual time, under seeded faults: whatever happens, the store ends equal.
//!
//! Two sources, two targets, two lanes each, one log, two daemons that share the work through leases. A failing seed
//! prints itself and is written to a file; `seeds.txt` holds seeds that once failed, which run first.
//! `ANABRANCH_SIMULATION_SEEDS=N` runs N seeds, `ANABRANCH_SIMULATION_SEED=S` one and prints its steps.

mod daemon;
mod epochs;
mod feeds;
mod refresh;
mod replay;
mod script;
mod seeds;
mod stage;
mod uuids;
mod world;

use anabranch_connectors::memory::Keeping;
use seeds::Verdict;

/// Enough to notice each protection's absence many times over.
const SEEDS: u64 = 2_000;

/// Of targets that keep documents: what differs is the step between documents and progress.
const DOCUMENT_SEEDS: u64 = SEEDS / 4;

/// The kept seeds and so many more, or those that the environment asks for.
fn run(keeping: Keeping, kept: Vec<u64>, seeds: u64) {
    let given = seeds::number("ANABRANCH_SIMULATION_SEED");
    let asked = || seeds::number("ANABRANCH_SIMULATION_SEEDS").map_or(seeds, |asked| asked * seeds / SEEDS);
    let seeds = given.map_or_else(|| kept.into_iter().chain(0..asked()).collect(), |seed| vec![seed]);
    seeds::run(seeds, move |seed| world::run(seed, keeping, given.is_some()).verdict).require_success();
}

#[test]
fn whatever_fails_the_store_ends_equal_to_its_sources() {
    run(Keeping::Rows, seeds::kept(), SEEDS);
}

#[test]
fn whatever_fails_documents_end_equal_to_their_sources() {
    run(Keeping::Documents, seeds::kept(), DOCUMENT_SEEDS);
}

/// Else a seed that failed could not be looked at again.
#[test]
fn a_seed_runs_the_same_every_time() {
    for seed in 0..20 {
        for keeping in [Keeping::Rows, Keeping::Documents] {
            let (one, two) = (world::run(seed, keeping, false), world::run(seed, keeping, false));
            assert_eq!(one, two, "seed {seed}");
            assert_eq!(one.verdict, Verdict::Equal, "seed {seed}");
        }
    }
}
