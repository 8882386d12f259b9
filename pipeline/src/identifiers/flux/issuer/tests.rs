//! Tests of the gauge that warns before a counter is used up. Sequence and registers are in memory and never fail.

use anabranch_schemas::flux::id::SYSTEM;
use anabranch_schemas::flux::placement::Kind;
use jiff::civil::date;
use metrics::atomics::AtomicU64;
use metrics::{Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit, with_local_recorder};

use super::super::wanted::VERSION;
use super::*;
use crate::ports::Register;
use crate::records::{SequenceServer, SequenceStatus};

const TODAY: Date = date(2026, 11, 26);
const TOMORROW: Date = date(2026, 11, 27);
/// The user partition whose counter of today has few numbers left.
const FULL: u8 = 7;

/// The one gauge, and no other meter.
#[derive(Default)]
struct UsedGauge(Arc<AtomicU64>);

impl UsedGauge {
    fn share(&self) -> f64 {
        f64::from_bits(self.0.load(std::sync::atomic::Ordering::Relaxed))
    }
}

impl Recorder for UsedGauge {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> metrics::Counter {
        metrics::Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        assert_eq!(key.name(), names::FLUX_USED);
        Gauge::from_arc(Arc::clone(&self.0))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[derive(Debug, Default)]
struct Counters(Mutex<BTreeMap<Counter, u32>>);

impl Sequence for Counters {
    async fn server(&self) -> Result<SequenceServer, Fault> {
        Ok(SequenceServer { name: "memory".to_owned(), today: TODAY })
    }

    async fn next_range(&self, request: &RangeRequest) -> Result<Result<NumberRange, RangeRefusal>, Fault> {
        let counter = request.counter;
        let is_full = counter.date == TODAY && counter.ring.partition() == FULL;
        let mut counters = self.0.lock().unwrap();
        let next = counters.entry(counter).or_insert(if is_full { 95_000_000 } else { 0 });
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

#[derive(Debug, Default)]
struct KeptRegisters(Mutex<BTreeMap<String, Register>>);

impl Registers for KeptRegisters {
    async fn read(&self, key: &str) -> Result<Register, Fault> {
        Ok(self.0.lock().unwrap().get(key).cloned().unwrap_or_default())
    }

    async fn compare_and_set(&self, key: &str, known: &Register, value: String) -> Result<Register, Fault> {
        let stored = Register { value, revision: known.revision + 1 };
        self.0.lock().unwrap().insert(key.to_owned(), stored.clone());
        Ok(stored)
    }
}

fn recharge(partition: u8, date: Option<Date>) -> FluxOrder {
    FluxOrder {
        kind: Kind::Recharge,
        parent: None,
        partition: Some(partition),
        is_failed_over: false,
        date,
        version: VERSION,
        business: 1,
        reserved: 0,
        count: 1,
    }
}

#[test]
fn the_gauge_is_the_share_of_the_fullest_counter_of_today_and_later_whichever_was_leased_last() {
    let (gauge, registers) = (UsedGauge::default(), KeptRegisters::default());
    let settings = FluxSettings { region: Region::Singapore, system: SYSTEM };
    let issuer = FluxIssuer::new(Counters::default(), settings);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let share_after = |order: FluxOrder, today: Date| {
        with_local_recorder(&gauge, || runtime.block_on(issuer.issue(&registers, &order, today))).unwrap();
        gauge.share()
    };
    assert_eq!(share_after(recharge(8, None), TODAY), 0.00001);
    assert_eq!(share_after(recharge(FULL, None), TODAY), 0.95001);
    assert_eq!(share_after(recharge(9, None), TODAY), 0.95001, "a counter that is hardly used");
    assert_eq!(share_after(recharge(9, Some(TOMORROW)), TODAY), 0.95001, "a later day");
    assert_eq!(share_after(recharge(8, None), TOMORROW), 0.00001, "the day of the full counter is over");
    let late = FluxOrder { count: 5_000, ..recharge(FULL, Some(TODAY)) };
    assert_eq!(share_after(late, TOMORROW), 0.00001, "a lease for the day before");
}

#[test]
fn a_process_that_gives_out_nothing_more_shows_no_counter_of_a_day_that_is_over() {
    let (gauge, registers) = (UsedGauge::default(), KeptRegisters::default());
    let settings = FluxSettings { region: Region::Singapore, system: SYSTEM };
    let issuer = FluxIssuer::new(Counters::default(), settings);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let order = recharge(FULL, None);
    with_local_recorder(&gauge, || runtime.block_on(issuer.issue(&registers, &order, TODAY))).unwrap();
    let share_on = |today: Date| {
        with_local_recorder(&gauge, || issuer.show_used(today));
        gauge.share()
    };
    assert_eq!(share_on(TODAY), 0.95001);
    assert_eq!(share_on(TOMORROW), 0.0);
}
