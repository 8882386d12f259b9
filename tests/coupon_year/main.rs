//! A seeded year of the coupon day on twins: everything breaks, and each member gets exactly one coupon.
//!
//! `ANABRANCH_COUPON_SEEDS=FIRST..END` chooses the worlds. A world that ends wrong prints its seed. `outages` and
//! `restores` script single faults by their names, at each step of a process. `rates` lets several granters share a
//! rate.

mod books;
mod freezing;
mod life;
mod outages;
mod rates;
mod restores;
mod script;
mod twins;
mod witness;
mod world;

use std::collections::BTreeMap;
use std::ops::Range;

/// Worlds of the ordinary run, which takes some seconds in a debug build.
const SEEDS: Range<u64> = 0..14;
/// Worlds of the long run.
const MANY_SEEDS: Range<u64> = 0..1_000;
/// The variable that names the worlds.
const VARIABLE: &str = "ANABRANCH_COUPON_SEEDS";

fn seeds(otherwise: Range<u64>) -> Range<u64> {
    let Ok(text) = std::env::var(VARIABLE) else { return otherwise };
    let range = text.split_once("..").and_then(|(first, end)| Some(first.parse().ok()?..end.parse().ok()?));
    range.unwrap_or_else(|| panic!("{VARIABLE} is FIRST..END, and not `{text}`"))
}

fn run(seeds: Range<u64>) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let work = |thread: u64| {
        let mine = seeds.clone().filter(move |seed| seed % threads == thread);
        mine.map(|seed| (seed, life::year(seed))).collect::<Vec<_>>()
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        handles.into_iter().flat_map(|handle| handle.join().expect("a world does not panic")).collect()
    });
    let (mut total, mut wrong) = (BTreeMap::<&str, u64>::new(), Vec::new());
    for (seed, (faults, counts)) in results {
        for (what, count) in counts {
            *total.entry(what).or_default() += count;
        }
        wrong.extend(faults.first().map(|fault| format!("seed {seed}: {fault}")));
    }
    println!("{total:?}");
    assert!(wrong.is_empty(), "{} worlds ended wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(total.get("granted").is_some_and(|granted| *granted > 0), "nobody got a coupon");
}

#[test]
fn nobody_gets_two_coupons_and_nobody_none() {
    run(seeds(SEEDS));
}

#[test]
#[ignore = "minutes: the long run"]
fn nobody_gets_two_coupons_and_nobody_none_in_a_thousand_years() {
    run(seeds(MANY_SEEDS));
}
