//! The flow on in-memory twins and virtual time, under seeded faults: whatever happens, the store ends equal.
//!
//! Two sources, two targets, two lanes each, one log, two daemons that share the work through leases. The cache of
//! mapping rows (`drain.rs`), the codes of servers (`codes.rs`), uuids and identifiers of payment documents (`flux.rs`)
//! have worlds of their own. A failing seed is printed and written to a file; `seeds.txt` has seeds that once failed,
//! which run first. `ANABRANCH_SIMULATION_SEEDS=N` runs N seeds, `ANABRANCH_SIMULATION_SEED=S` one with its steps.

mod anew;
mod cascades;
mod codes;
mod daemon;
mod drain;
mod drift;
mod empty_tables;
mod epochs;
mod feeds;
mod fields;
mod flux;
mod half_way;
mod hidden;
mod loads;
mod one_lane;
mod one_reconciliation;
mod pages;
mod past;
mod paused;
mod process;
mod reconciliations;
mod refresh;
mod replay;
mod rereads;
mod retired;
mod script;
mod seeds;
mod spot_checks;
mod stage;
mod stopped;
mod touched;
mod uuids;
mod withdrawals;
mod world;

use anabranch_connectors::memory::StoreKind;
use seeds::Verdict;
use world::Kind;

/// Number of worlds, enough to notice each protection's absence many times over.
const SEEDS: u64 = 1_000;

/// Worlds whose targets keep documents: there a step lies between documents and progress.
const DOCUMENT_SEEDS: u64 = SEEDS / 2;

/// Worlds with reconciliations, of rows and of documents. Each has three reconciliations in the quiet, and more beside
/// them in the storm.
const RECONCILE_SEEDS: u64 = SEEDS / 8;

/// Worlds in which the readers begin to capture lunar birthdays.
const LUNAR_SEEDS: u64 = SEEDS / 8;

/// Worlds whose sources lose grants and get them back.
const HIDDEN_SEEDS: u64 = SEEDS / 4;

/// Worlds of the cache's drain.
const CACHE_SEEDS: u64 = SEEDS;

/// Runs the kept seeds and `seeds` others, or those of the environment; `world` learns whether its seed runs alone.
fn run(kept: Vec<u64>, seeds: u64, world: impl Fn(u64, bool) -> Verdict + Send + Sync + 'static) {
    let given = seeds::number("ANABRANCH_SIMULATION_SEED");
    let asked = || seeds::number("ANABRANCH_SIMULATION_SEEDS").map_or(seeds, |asked| asked * seeds / SEEDS);
    let seeds = given.map_or_else(|| kept.into_iter().chain(0..asked()).collect(), |seed| vec![seed]);
    seeds::run(seeds, move |seed| world(seed, given.is_some())).require_success();
}

#[test]
fn whatever_fails_the_store_ends_equal_to_its_sources() {
    run(seeds::kept(), SEEDS, |seed, is_logged| {
        world::run(seed, StoreKind::Rows, Kind::Plain, is_logged).verdict
    });
}

#[test]
fn whatever_fails_documents_end_equal_to_their_sources() {
    run(seeds::kept(), DOCUMENT_SEEDS, |seed, is_logged| {
        world::run(seed, StoreKind::Documents, Kind::Plain, is_logged).verdict
    });
}

#[test]
fn whatever_fails_reconciliations_find_all_drift_and_take_nothing_else_for_it() {
    run(Vec::new(), RECONCILE_SEEDS, |seed, is_logged| {
        world::run(seed, StoreKind::Rows, Kind::Reconciled, is_logged).verdict
    });
}

#[test]
fn whatever_fails_reconciliations_of_documents_find_all_drift_and_take_nothing_else_for_it() {
    run(Vec::new(), RECONCILE_SEEDS, |seed, is_logged| {
        world::run(seed, StoreKind::Documents, Kind::Reconciled, is_logged).verdict
    });
}

#[test]
fn whatever_fails_a_lane_that_reads_more_fields_than_messages_have_ends_equal() {
    run(Vec::new(), LUNAR_SEEDS, |seed, is_logged| {
        world::run(seed, StoreKind::Rows, Kind::Lunar, is_logged).verdict
    });
}

#[test]
fn whatever_fails_tables_that_lost_their_grants_are_read_once_they_have_them_again() {
    run(Vec::new(), HIDDEN_SEEDS, |seed, is_logged| {
        world::run(seed, StoreKind::Rows, Kind::Hidden, is_logged).verdict
    });
}

#[test]
fn whatever_fails_the_cache_answers_nothing_older_than_what_was_drained() {
    run(Vec::new(), CACHE_SEEDS, |seed, _| drain::run(seed));
}

/// Otherwise a failed seed could not be examined again.
#[test]
fn a_seed_runs_the_same_every_time() {
    for seed in 0..8 {
        for store_kind in [StoreKind::Rows, StoreKind::Documents] {
            let (one, two) = (
                world::run(seed, store_kind, Kind::Plain, false),
                world::run(seed, store_kind, Kind::Plain, false),
            );
            assert_eq!(one, two, "seed {seed}");
            assert_eq!(one.verdict, Verdict::Equal, "seed {seed}");
        }
    }
}
