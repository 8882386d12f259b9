//! The flow on in-memory twins and virtual time, under seeded faults: whatever happens, the store ends equal.
//!
//! Two sources, two lanes, one log, one target. Faults: readers and lanes cut off at any await, doubled (a zombie
//! beside its successor), the stream wiped or rolled back. The expectation is computed from the sources' final rows
//! alone. A failing seed prints itself; `ANABRANCH_SIMULATION_SEEDS=N` runs N seeds, `ANABRANCH_SIMULATION_SEED=S` one.

mod script;
mod world;

use world::World;

/// Enough to notice each protection's absence many times over, in seconds.
const SEEDS: u64 = 200;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number of seeds"))
}

fn run(seed: u64) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O");
    runtime.block_on(World::new(seed).run())
}

#[test]
fn whatever_fails_the_store_ends_equal_to_its_sources() {
    let seeds = match number("ANABRANCH_SIMULATION_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ANABRANCH_SIMULATION_SEEDS").unwrap_or(SEEDS),
    };
    let began = std::time::Instant::now();
    let total = seeds.end - seeds.start;
    let failed: Vec<String> =
        seeds.filter_map(|seed| run(seed).err().map(|why| format!("seed {seed}: {why}"))).collect();
    println!("{total} seeds, {:.0} a second", total as f64 / began.elapsed().as_secs_f64());
    assert!(
        failed.is_empty(),
        "{} of {total} seeds failed:\n{}",
        failed.len(),
        failed[..failed.len().min(10)].join("\n")
    );
}
