//! What a refresh shows while it runs: rows read, tables and time left.

use metrics::{Counter, Gauge, counter, gauge};
use tokio::time::Instant;

use crate::metrics as names;
use crate::records::LaneId;

pub(super) struct Meters {
    pub(super) rows: Counter,
    rereads: Gauge,
    tables: Gauge,
    seconds: Gauge,
    /// Tables that were left when this attempt began with them, and when that was.
    began: Option<(usize, Instant)>,
}

impl Meters {
    pub(super) fn of(id: &LaneId) -> Self {
        let labels = id.labels();
        Self {
            rows: counter!(names::REFRESH_ROWS, &labels),
            rereads: gauge!(names::REFRESH_REREADS, &labels),
            tables: gauge!(names::REFRESH_TABLES_LEFT, &labels),
            seconds: gauge!(names::REFRESH_SECONDS_LEFT, &labels),
            began: None,
        }
    }

    /// Tables that wait to be read again.
    pub(super) fn rereads(&self, tables: usize) {
        self.rereads.set(tables as f64);
    }

    /// The tables before took as long as those that are left will.
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
