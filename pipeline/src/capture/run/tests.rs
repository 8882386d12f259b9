//! The gauges of an attempt end with it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use metrics::atomics::AtomicU64;
use metrics::{Key, KeyName, Metadata, Recorder, SharedString, Unit, with_local_recorder};

use super::*;

/// The value of [`names::LOG_IN_FLIGHT`], as bits.
#[derive(Default)]
struct InFlight(Arc<AtomicU64>);

impl Recorder for InFlight {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        match key.name() {
            names::LOG_IN_FLIGHT => Gauge::from_arc(self.0.clone()),
            _ => Gauge::noop(),
        }
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn a_reader_that_leaves_the_process_leaves_no_gauge_of_its_messages_behind() {
    let gauge = InFlight::default();
    let shown = || f64::from_bits(gauge.0.load(Ordering::Relaxed));
    let meters = with_local_recorder(&gauge, || Meters::of("source-a"));
    meters.in_flight.set(1.0);
    assert_eq!(shown(), 1.0);
    drop(meters);
    assert_eq!(shown(), 0.0);
}
