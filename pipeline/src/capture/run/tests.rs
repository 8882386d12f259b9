//! The gauges of an attempt end with it.

use ::metrics::with_local_recorder;

use super::*;
use crate::metrics::recorded::Gauges;

#[test]
fn a_reader_that_leaves_the_process_leaves_no_gauge_of_its_messages_behind() {
    let gauges = Gauges::default();
    let meters = with_local_recorder(&gauges, || Meters::of("source-a"));
    meters.in_flight.set(1.0);
    assert_eq!(gauges.value(names::LOG_IN_FLIGHT), 1.0);
    drop(meters);
    assert_eq!(gauges.value(names::LOG_IN_FLIGHT), 0.0);
}
