//! The gauges of an attempt end with it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use metrics::atomics::AtomicU64;
use metrics::{Key, KeyName, Metadata, Recorder, SharedString, Unit, with_local_recorder};

use super::*;

/// The value of [`names::LANE_DIRECT`], as bits.
#[derive(Default)]
struct DirectFeeds(Arc<AtomicU64>);

impl Recorder for DirectFeeds {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        match key.name() {
            names::LANE_DIRECT => Gauge::from_arc(self.0.clone()),
            _ => Gauge::noop(),
        }
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn a_lane_that_leaves_the_process_leaves_no_gauge_of_a_direct_feed_behind() {
    let gauge = DirectFeeds::default();
    let shown = || f64::from_bits(gauge.0.load(Ordering::Relaxed));
    let text = str::to_owned;
    let id = LaneId { projection: text("p"), target: text("t"), source: text("s"), lane: 0 };
    let meters = with_local_recorder(&gauge, || Meters::of(&id));
    meters.direct.set(1.0);
    assert_eq!(shown(), 1.0);
    drop(meters);
    assert_eq!(shown(), 0.0);
}
