//! Tests how evenly uuids spread over tables; the same test shows how badly plain layouts do.

use super::*;

/// Rates of calls: (pause between two calls in milliseconds, ids a call).
const RATES: [(u64, u64); 5] = [(1_000, 1), (60_000, 1), (1, 1), (10, 7), (1_000, 4_096)];
const DIVISORS: [u64; 4] = [5, 64, 320, 512];
const IDS: u64 = 64_000;
const BEGIN: u64 = 51_840_000_000;

/// Makes an id from machine, instant, sequence in the instant and number of the id.
type Layout = fn(u16, u64, u64, u64) -> u64;

fn mixed(machine: u16, instant: u64, sequence: u64, _number: u64) -> u64 {
    compose(machine, (instant << SEQUENCE_BITS) | sequence)
}

/// Lays an id out as `time | machine | sequence`, where the sequence begins at 0 in each instant.
fn naive(machine: u16, instant: u64, sequence: u64, _number: u64) -> u64 {
    (instant << LOW_BITS) | (u64::from(machine) << SEQUENCE_BITS) | sequence
}

/// Lays an id out as `time | machine | sequence`, where the sequence runs on over all instants.
fn running(machine: u16, instant: u64, _sequence: u64, number: u64) -> u64 {
    naive(machine, instant, number % (1 << SEQUENCE_BITS), 0)
}

/// Returns the chi-square of ids over `% divisor` per degree of freedom, and the largest share in fair shares.
fn unevenness(layout: Layout, (pause_ms, burst): (u64, u64), divisor: u64) -> (f64, f64) {
    let mut counts = vec![0_u64; divisor as usize];
    for number in 0..IDS {
        let instant = BEGIN + number / burst * pause_ms;
        counts[(layout(3, instant, number % burst, number) % divisor) as usize] += 1;
    }
    let fair = IDS as f64 / divisor as f64;
    let chi: f64 = counts.iter().map(|&count| (count as f64 - fair).powi(2) / fair).sum();
    let largest = counts.iter().max().copied().unwrap_or_default() as f64 / fair;
    (chi / (divisor - 1) as f64, largest)
}

/// Chance alone gives 1 on average; 5 degrees of freedom reach 4 once in a thousand, more degrees far more rarely.
fn is_even((chi, _): (f64, f64)) -> bool {
    chi < 4.0
}

#[test]
fn uuids_spread_evenly_over_tables_at_every_rate_and_plain_layouts_do_not() {
    let mut uneven = [0; 3];
    for rate in RATES {
        for divisor in DIVISORS {
            let all = [mixed as Layout, naive, running].map(|layout| unevenness(layout, rate, divisor));
            println!("{rate:?} % {divisor}: chi² per degree, largest share: mixed {:?}", all[0]);
            println!("    naive {:?}, running {:?}", all[1], all[2]);
            assert!(is_even(all[0]), "{rate:?} % {divisor}: {:?}", all[0]);
            for (count, found) in uneven.iter_mut().zip(all) {
                *count += u32::from(!is_even(found));
            }
        }
    }
    assert_eq!(uneven[0], 0);
    assert!(uneven[1] >= 12, "the test cannot fail: the naive layout passes");
    assert!(uneven[2] >= 1, "the test cannot fail: the running layout passes");
    let (_, largest) = unevenness(naive, (1_000, 1), 64);
    assert!((largest - 64.0).abs() < 1e-9, "one id a second, naive: all rows in one table");
}

#[test]
fn many_machines_spread_as_evenly_as_one() {
    for divisor in DIVISORS {
        let mut counts = vec![0_u64; divisor as usize];
        for number in 0..IDS {
            // One id a second on each of 100 machines, all at the same instants.
            let id = compose((number % 100) as u16, (BEGIN + number / 100 * 1_000) << SEQUENCE_BITS);
            counts[(id % divisor) as usize] += 1;
        }
        let fair = IDS as f64 / divisor as f64;
        let chi: f64 = counts.iter().map(|&count| (count as f64 - fair).powi(2) / fair).sum();
        assert!(chi / ((divisor - 1) as f64) < 4.0, "% {divisor}: {chi}");
    }
}
