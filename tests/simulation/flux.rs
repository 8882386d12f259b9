//! Identifiers of payment documents are given out once, whatever processes, clocks, servers and people do.
//!
//! Processes die with the ranges that they hold and read clocks that are days apart. A server and a log lose requests
//! and answers. In half of the worlds an operator restores the server from older copies or promotes a copy, and skips
//! numbers once the fault names it. In the other half the log loses its registers.

#![expect(
    clippy::unwrap_used,
    reason = "the twins answer where the weather is calm, and dates are of this century"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use anabranch_connectors::memory::{MemoryRegisters, MemorySequence, Weather};
use anabranch_pipeline::error::{Class, Code, Fault};
use anabranch_pipeline::identifiers::flux::{FluxIssuer, FluxOrder, FluxSettings, VERSION, raise};
use anabranch_pipeline::ports::Sequence;
use anabranch_pipeline::records::{
    GivenOnce, NumberRange, RangeRefusal, RangeRequest, Remembered, RequestKey, SequenceServer,
    SequenceStatus,
};
use anabranch_schemas::flux::counter::Counter;
use anabranch_schemas::flux::id::{FluxId, Region};
use anabranch_schemas::flux::placement::Kind;
use jiff::ToSpan;
use jiff::civil::{Date, date};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const SEEDS: u64 = 60;
const STEPS: u32 = 250;
const REGION: Region = Region::Singapore;

type Issuer = FluxIssuer<MemorySequence>;

/// The identifiers that were given out so far.
#[derive(Default)]
struct Given {
    all: BTreeSet<String>,
    by_key: BTreeMap<RequestKey, Vec<FluxId>>,
    /// Identifiers ever given out with a key: an older copy of the server may know the key again.
    once: BTreeSet<(RequestKey, String)>,
    /// Number of leases that were refused because the server went back, or is another one.
    refused: usize,
}

impl Given {
    fn add(&mut self, identifiers: &[FluxId], place: &str) {
        for id in identifiers {
            assert!(self.all.insert(id.to_string()), "{place}: {id} was given out twice");
        }
    }

    fn fault(&mut self, fault: &Fault, place: &str) {
        let is_reported = matches!(fault.code(), Code::FluxSequenceLagging | Code::FluxServerChanged);
        self.refused += usize::from(is_reported);
        let is_known =
            is_reported || fault.class() == Class::Transient || fault.code() == Code::FluxDateRefused;
        assert!(is_known, "{place}: {fault}");
    }
}

fn order(random: &mut StdRng, today: Date) -> FluxOrder {
    let date =
        random.random_ratio(1, 3).then(|| today.checked_add(random.random_range(-7..=1).days()).unwrap());
    FluxOrder {
        kind: Kind::Recharge,
        parent: None,
        partition: Some(random.random_range(0..3)),
        is_failed_over: random.random_ratio(1, 4),
        date,
        version: VERSION,
        business: 1,
        reserved: 0,
        count: if random.random_ratio(1, 10) { 3_000 } else { random.random_range(1..400) },
    }
}

async fn world(seed: u64, given: &mut Given) {
    let mut random = StdRng::seed_from_u64(seed);
    let weather = Weather::stormy(seed, 5);
    let registers = MemoryRegisters::new(weather.clone());
    let sequence = MemorySequence::new(REGION, date(2027, 12, 20), (1_000, 7), weather);
    let is_restored = seed.is_multiple_of(2);
    let new = || Issuer::new(sequence.clone(), FluxSettings { region: REGION, system: 31 });
    let (mut processes, mut copy) = (vec![new(), new()], sequence.with(|rows| rows.clone()));
    given.by_key.clear();
    given.all.clear();
    given.once.clear();
    for step in 0..STEPS {
        let place = format!("seed {seed}, step {step}");
        // Keys are removed after a week, or with a restored server.
        let stands: BTreeSet<RequestKey> =
            sequence.with(|rows| rows.keys.iter().map(|(key, ..)| *key).collect());
        given.by_key.retain(|key, _| stands.contains(key));
        match random.random_range(0..100) {
            0..5 => processes[random.random_range(0..2)] = new(),
            5..10 => sequence.with(|rows| rows.today = rows.today.tomorrow().unwrap()),
            10..13 => copy = sequence.with(|rows| rows.clone()),
            13..16 if is_restored => {
                sequence.with(|rows| {
                    (rows.rows, rows.keys) = (copy.rows.clone(), copy.keys.clone());
                    if random.random_ratio(1, 3) {
                        rows.server = format!("memory:{step}");
                    }
                });
                // A key that an older copy has answers with the identifiers of that copy.
                let first: BTreeMap<RequestKey, FluxId> = sequence
                    .with(|rows| rows.keys.iter().map(|(key, given, _)| (*key, given.first)).collect());
                given.by_key.retain(|key, known| first.get(key) == known.first());
            }
            13..16 => registers.wipe(),
            16..22 => _ = raise(&registers, &sequence, REGION, random.random_range(1..100)).await,
            _ => ask(&mut random, &processes, &sequence, &registers, given, &place).await,
        }
    }
}

async fn ask(
    random: &mut StdRng,
    processes: &[Issuer],
    sequence: &MemorySequence,
    registers: &MemoryRegisters,
    given: &mut Given,
    place: &str,
) {
    let process = &processes[random.random_range(0..processes.len())];
    let days = if random.random_ratio(1, 5) { random.random_range(-3..=2) } else { 0 };
    let today = sequence.with(|rows| rows.today).checked_add(days.days()).unwrap();
    if random.random_ratio(2, 3) {
        match process.issue(registers, &order(random, today), today).await {
            Ok(identifiers) => given.add(&identifiers, place),
            Err(fault) => given.fault(&fault, place),
        }
        return;
    }
    let key = RequestKey::of(&[random.random_range(0..20)]);
    let wanted =
        FluxOrder { date: None, count: 7, partition: Some(1), is_failed_over: false, ..order(random, today) };
    match (process.issue_once(registers, &key, &wanted, today).await, given.by_key.get(&key)) {
        (Ok(identifiers), Some(before)) => assert_eq!(identifiers, *before, "{place}"),
        (Ok(identifiers), _) => {
            if given.once.insert((key, identifiers[0].to_string())) {
                given.add(&identifiers, place);
            }
            given.by_key.insert(key, identifiers);
        }
        (Err(fault), _) => given.fault(&fault, place),
    }
}

#[tokio::test(start_paused = true)]
async fn no_identifier_is_given_out_twice_whatever_processes_clocks_servers_and_people_do() {
    let begin = anabranch_tests::seed("flux");
    let (mut all, mut refused) = (0, 0);
    for seed in begin..begin + SEEDS {
        let mut given = Given::default();
        world(seed, &mut given).await;
        all += given.all.len();
        refused += given.refused;
    }
    assert!(all > 500_000 && refused > 100, "only {all} identifiers and {refused} refusals prove little");
}

/// A server at which, just before the first lease of one process, another one leases and a copy is restored.
struct Interrupted {
    inner: MemorySequence,
    registers: MemoryRegisters,
    /// The identifiers of the other process; `None` before.
    others: Mutex<Option<Vec<FluxId>>>,
}

impl Sequence for Interrupted {
    async fn server(&self) -> Result<SequenceServer, Fault> {
        self.inner.server().await
    }

    async fn next_range(&self, request: &RangeRequest) -> Result<Result<NumberRange, RangeRefusal>, Fault> {
        if self.others.lock().unwrap().is_none() {
            let copy = self.inner.with(|rows| rows.clone());
            let other = Issuer::new(self.inner.clone(), FluxSettings { region: REGION, system: 31 });
            let order = five();
            let given = other.issue(&self.registers, &order, request.counter.date).await.unwrap();
            *self.others.lock().unwrap() = Some(given);
            self.inner.with(|rows| *rows = copy);
        }
        self.inner.next_range(request).await
    }

    async fn given(&self, key: &RequestKey) -> Result<Option<GivenOnce>, Fault> {
        self.inner.given(key).await
    }

    async fn remember(&self, key: &RequestKey, given: &GivenOnce) -> Result<Remembered, Fault> {
        self.inner.remember(key, given).await
    }

    async fn status(&self) -> Result<SequenceStatus, Fault> {
        self.inner.status().await
    }

    async fn raise(&self, numbers: &[(Counter, u32)]) -> Result<(), Fault> {
        self.inner.raise(numbers).await
    }
}

fn five() -> FluxOrder {
    FluxOrder {
        kind: Kind::Recharge,
        parent: None,
        partition: Some(1),
        is_failed_over: false,
        date: None,
        version: VERSION,
        business: 1,
        reserved: 0,
        count: 5,
    }
}

/// The UPDATE begins at the register's number when it was read, and nothing of the server shows the lease in between.
#[tokio::test(start_paused = true)]
async fn a_range_beside_which_another_process_leased_before_a_restore_is_dropped() {
    let (today, registers) = (date(2026, 11, 26), MemoryRegisters::new(Weather::calm()));
    let inner = MemorySequence::new(REGION, today, (10, 7), Weather::calm());
    let others = Mutex::new(None);
    let sequence = Interrupted { inner: inner.clone(), registers: registers.clone(), others };
    let process = FluxIssuer::new(sequence, FluxSettings { region: REGION, system: 31 });
    // The dropped range has raised the counter to the end of the other process's range.
    let given = process.issue(&registers, &five(), today).await.unwrap();
    let others = process.sequence().others.lock().unwrap().take().unwrap();
    assert_eq!((others[0].parts().sequence, given[0].parts().sequence), (0, 1_000));
}
