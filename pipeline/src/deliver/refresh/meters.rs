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
    /// Ends the metric of an alert with the attempt: the process that runs the lane next may be another one.
    fn drop(&mut self) {
        self.rereads.set(0.0);
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
