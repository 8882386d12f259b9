//! Identifiers of payment documents are read and checked on one core, beside a loop that sums their 31 bytes: the ratio
//! is the cost of the rules. No server is involved.

use std::hint::black_box;
use std::time::Instant;

use anabranch_schemas::flux::id::{DIGITS, FluxId};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use crate::Scale;
use crate::meter::median;
use crate::report::{Line, Report};

/// Required rate, in identifiers a second.
const RATE_MIN: f64 = 30e6;
/// Number of identifiers that fit into the cache of a core, as those of one batch do.
const IDENTIFIERS: usize = 10_000;
/// Passes over all identifiers in a round.
const PASSES: usize = 1_000;

pub fn measure(scale: &Scale, report: &mut Report) {
    let mut random = StdRng::seed_from_u64(scale.seed);
    let all: Vec<[u8; DIGITS]> = (0..IDENTIFIERS).map(|_| identifier(&mut random)).collect();
    let (mut rates, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..scale.rounds {
        let checked = seconds(&all, |digits| u64::from(FluxId::parse(digits).is_ok()));
        let summed = seconds(&all, |digits| digits.iter().map(|digit| u64::from(*digit)).sum());
        rates.push((IDENTIFIERS * PASSES) as f64 / checked);
        ratios.push(checked / summed);
    }
    let (rate, ratio) = (median(rates), median(ratios));
    report.add(Line {
        figure: "identifiers",
        measured: format!("{:.1} M/s", rate / 1e6),
        limit: format!("sum of bytes {:.1} M/s", rate * ratio / 1e6),
        ratio: format!("{ratio:.1} ×"),
        cpu: format!("{:.4}", 1e6 / rate),
        bar: "30 M/s".to_owned(),
        passes: Some(rate >= RATE_MIN),
        detail: json!({ "identifiers_per_second": rate, "ratio": ratio }),
    });
}

fn seconds(all: &[[u8; DIGITS]], of: impl Fn(&[u8; DIGITS]) -> u64) -> f64 {
    let begun = Instant::now();
    let mut sum = 0;
    for _ in 0..PASSES {
        sum += black_box(all).iter().map(&of).sum::<u64>();
    }
    black_box(sum);
    begun.elapsed().as_secs_f64()
}

fn identifier(random: &mut StdRng) -> [u8; DIGITS] {
    let month = random.random_range(1..=12);
    let partition_month = if random.random_ratio(1, 10) { 99 } else { month - 1 };
    let text = format!(
        "{}{month:02}{:02}{}{}031{}{:02}{}{partition_month:02}{:02}00{:08}",
        random.random_range(2016..=2026),
        random.random_range(1..=28),
        random.random_range(0..=1),
        random.random_range(0..=1),
        random.random_range(0..=1),
        random.random_range(0..100),
        u8::from(random.random_ratio(1, 10)),
        random.random_range(0..100),
        random.random_range(0..100_000_000),
    );
    let id: FluxId = text.parse().expect("its parts keep every rule");
    id.digits()
}
