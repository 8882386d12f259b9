//! Identifiers of payment documents on one core, without any server: read, and made of leased numbers.
//!
//! **Reading** and checking stands beside a loop that sums the 31 bytes: the ratio is the cost of the rules.
//!
//! **Making** calls the issuer of the daemon for one identifier after the other, each an order of its own, and then in
//! orders of a hundred. Each round begins with counters of another user partition. Leases are made in memory and cost
//! nearly nothing, as there are some thirty a second: the figure is what an identifier costs from a leased range.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::identifiers::flux::{FluxIssuer, FluxOrder, FluxSettings, VERSION};
use anabranch_pipeline::ports::{Register, Registers, Sequence};
use anabranch_pipeline::records::{
    GivenOnce, NumberRange, RangeRefusal, RangeRequest, Remembered, RequestKey, SequenceServer,
    SequenceStatus,
};
use anabranch_schemas::flux::counter::Counter;
use anabranch_schemas::flux::id::{DIGITS, FluxId, Region, SYSTEM};
use anabranch_schemas::flux::placement::Kind;
use jiff::civil::{Date, date};
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
/// Required rate of identifiers from a leased range, each an order of its own.
const MADE_RATE_MIN: f64 = 3e6;
/// Identifiers of a large order.
const HUNDRED: u32 = 100;
/// The day of all identifiers that are made.
const TODAY: Date = date(2026, 11, 26);

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

/// Measures identifiers from leased ranges.
pub async fn measure_leased(scale: &Scale, report: &mut Report) {
    let settings = FluxSettings { region: Region::Singapore, system: SYSTEM };
    let issuer = FluxIssuer::new(Counters::default(), settings);
    let registers = KeptRegisters::default();
    let (mut single, mut hundreds) = (Vec::new(), Vec::new());
    // The first round leases small ranges, and is thrown away.
    for round in 0..=scale.rounds {
        let of = |count| FluxOrder {
            kind: Kind::Recharge,
            parent: None,
            partition: Some((round % 100) as u8),
            is_failed_over: count > 1,
            date: None,
            version: VERSION,
            business: 1,
            reserved: 0,
            count,
        };
        for (rates, order) in [(&mut single, of(1)), (&mut hundreds, of(HUNDRED))] {
            let begun = Instant::now();
            for _ in 0..scale.issued / u64::from(order.count) {
                let given = issuer.issue(&registers, black_box(&order), TODAY).await;
                assert_eq!(given.expect("the counters have numbers left").len(), order.count as usize);
            }
            if round > 0 {
                rates.push(scale.issued as f64 / begun.elapsed().as_secs_f64());
            }
        }
    }
    let (rate, in_hundreds) = (median(single), median(hundreds));
    report.add(Line {
        figure: "identifiers-leased",
        measured: format!("{:.2} M/s", rate / 1e6),
        limit: format!("in hundreds {:.1} M/s", in_hundreds / 1e6),
        ratio: format!("{:.0} %", rate / in_hundreds * 100.0),
        cpu: format!("{:.3}", 1e6 / rate),
        bar: format!("≥ {:.0} M/s", MADE_RATE_MIN / 1e6),
        passes: Some(rate >= MADE_RATE_MIN),
        detail: json!({
            "identifiers_per_second": rate, "in_hundreds_per_second": in_hundreds, "identifiers": scale.issued,
        }),
    });
}

/// Counters in memory, without the pauses that the twin of the tests has.
#[derive(Debug, Default)]
struct Counters(Mutex<BTreeMap<Counter, u32>>);

impl Sequence for Counters {
    async fn server(&self) -> Result<SequenceServer, Fault> {
        Ok(SequenceServer { name: "memory".to_owned(), today: TODAY })
    }

    async fn next_range(&self, request: &RangeRequest) -> Result<Result<NumberRange, RangeRefusal>, Fault> {
        let mut counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = counters.entry(request.counter).or_default();
        let range = request.range_at(*next);
        *next = range.end();
        Ok(Ok(range))
    }

    async fn given(&self, _key: &RequestKey) -> Result<Option<GivenOnce>, Fault> {
        Ok(None)
    }

    async fn remember(&self, _key: &RequestKey, given: &GivenOnce) -> Result<Remembered, Fault> {
        Ok(Remembered::Existing(*given))
    }

    async fn status(&self) -> Result<SequenceStatus, Fault> {
        let server = self.server().await?;
        Ok(SequenceStatus { server, counters: Vec::new(), keys: 0 })
    }

    async fn raise(&self, _numbers: &[(Counter, u32)]) -> Result<(), Fault> {
        Ok(())
    }
}

/// Registers in memory.
#[derive(Debug, Default)]
struct KeptRegisters(Mutex<BTreeMap<String, Register>>);

impl Registers for KeptRegisters {
    async fn read(&self, key: &str) -> Result<Register, Fault> {
        let registers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(registers.get(key).cloned().unwrap_or_default())
    }

    async fn compare_and_set(&self, key: &str, known: &Register, value: String) -> Result<Register, Fault> {
        let mut registers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let stored = registers.entry(key.to_owned()).or_default();
        if stored.revision != known.revision {
            return Err(Fault::new(Code::LeaseLost, format!("register {key}"), "another writer set it"));
        }
        *stored = Register { value, revision: stored.revision + 1 };
        Ok(stored.clone())
    }
}
