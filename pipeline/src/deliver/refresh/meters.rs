//! Metrics of a running refresh: rows read, tables and time left.

use metrics::{Counter, Gauge, counter, gauge};
use tokio::time::Instant;

use crate::metrics as names;
use crate::records::LaneId;

pub(super) struct Meters {
    pub(super) rows: Counter,
    /// Rows of compared tables, and those of them that differed.
    pub(super) compared: Counter,
    pub(super) differing: Counter,
    rereads: Gauge,
    tables: Gauge,
    seconds: Gauge,
    /// Number of tables that were left when this attempt began with them, and the time of that.
    began: Option<(usize, Instant)>,
}

impl Drop for Meters {
    /// Ends the gauges with the attempt: the process that runs the lane next may be another one.
    fn drop(&mut self) {
        for gauge in [&self.rereads, &self.tables, &self.seconds] {
            gauge.set(0.0);
        }
    }
}

impl Meters {
    pub(super) fn of(id: &LaneId) -> Self {
        let labels = id.labels();
        Self {
            rows: counter!(names::REFRESH_ROWS, &labels),
            compared: counter!(names::REFRESH_COMPARED, &labels),
            differing: counter!(names::REFRESH_DIFFERING, &labels),
            rereads: gauge!(names::REFRESH_REREADS, &labels),
            tables: gauge!(names::REFRESH_TABLES_LEFT, &labels),
            seconds: gauge!(names::REFRESH_SECONDS_LEFT, &labels),
            began: None,
        }
    }

    /// Sets the number of tables that wait to be read again.
    pub(super) fn rereads(&self, tables: usize) {
        self.rereads.set(tables as f64);
    }

    /// Sets the number of tables that are left, and the time left if they take as long as the tables before.
    pub(super) fn left(&mut self, tables: usize) {
        self.tables.set(tables as f64);
        let (first, began) = match self.began {
            Some(began) if began.0 >= tables => began,
            _ => *self.began.insert((tables, Instant::now())),
        };
        if first > tables {
            self.seconds.set(began.elapsed().as_secs_f64() * tables as f64 / (first - tables) as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ::metrics::with_local_recorder;

    use super::*;
    use crate::metrics::recorded::Gauges;

    #[tokio::test(start_paused = true)]
    async fn a_lane_that_leaves_the_process_leaves_no_gauge_of_its_refresh_behind() {
        let gauges = Gauges::default();
        let values = || {
            [names::REFRESH_REREADS, names::REFRESH_TABLES_LEFT, names::REFRESH_SECONDS_LEFT]
                .map(|name| gauges.value(name))
        };
        let text = str::to_owned;
        let id = LaneId { projection: text("p"), target: text("t"), source: text("s"), lane: 0 };
        let mut meters = with_local_recorder(&gauges, || Meters::of(&id));
        meters.rereads(2);
        meters.left(4);
        tokio::time::advance(Duration::from_secs(6)).await;
        meters.left(1);
        assert_eq!(values(), [2.0, 1.0, 2.0]);
        drop(meters);
        assert_eq!(values(), [0.0; 3]);
    }
}
