//! The gauges of an attempt end with it.

use ::metrics::with_local_recorder;

use super::*;
use crate::metrics::recorded::Gauges;

#[test]
fn a_lane_that_leaves_the_process_leaves_no_gauge_of_a_direct_feed_behind() {
    let gauges = Gauges::default();
    let text = str::to_owned;
    let id = LaneId { projection: text("p"), target: text("t"), source: text("s"), lane: 0 };
    let meters = with_local_recorder(&gauges, || Meters::of(&id));
    meters.direct.set(1.0);
    assert_eq!(gauges.value(names::LANE_DIRECT), 1.0);
    drop(meters);
    assert_eq!(gauges.value(names::LANE_DIRECT), 0.0);
}
