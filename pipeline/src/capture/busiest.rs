//! The tables of a source with the most changes, in bounded memory.
//!
//! A window of a minute has at most [`TABLES_MAX`] counters, kept by the algorithm Space-Saving (Metwally, Agrawal, El
//! Abbadi, 2005): a table without a counter takes over the smallest one and inherits its count, as an error. The error
//! is at most a thousandth of all changes of the window. A shown rate leaves it out, so no table is shown busier than
//! it is. The last minute is the present window and the rest of it in the window before, which counts in proportion.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anabranch_schemas::shard::ShardId;

use crate::records::TableCounts;

/// Counters of one window, at most. With names of 129 characters two windows are about half a megabyte.
const TABLES_MAX: usize = 1_000;
const WINDOW: Duration = Duration::from_secs(60);

/// A table and the number of its changes in the last minute.
#[derive(Debug, Clone, PartialEq)]
pub struct BusyTable {
    /// `database.table`
    pub table: String,
    pub changes_per_minute: f64,
}

/// The busiest tables of one source, as its reader in this process counts them. Clones share the counters.
#[derive(Debug, Clone, Default)]
pub struct BusiestTables(Arc<Mutex<Windows>>);

impl BusiestTables {
    /// Adds the changes of one message, read until `now`.
    pub fn add(&self, counts: TableCounts, now: Instant) {
        let mut windows = self.lock();
        windows.turn(now);
        for (shard, table, changes) in counts.into_counts() {
            windows.present.add(shard, table, changes);
        }
    }

    /// Returns the busiest tables of the last minute, at most `count`, the busiest first.
    pub fn top(&self, count: usize, now: Instant) -> Vec<BusyTable> {
        let mut windows = self.lock();
        windows.turn(now);
        windows.top(count, now)
    }

    fn lock(&self) -> MutexGuard<'_, Windows> {
        // No code under this lock leaves it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct Windows {
    /// Begin of the present window; `None` before the first call.
    began: Option<Instant>,
    present: Window,
    before: Window,
}

impl Windows {
    /// Begins a new window when the present one is over.
    fn turn(&mut self, now: Instant) {
        let began = *self.began.get_or_insert(now);
        let passed = now.saturating_duration_since(began).as_secs() / WINDOW.as_secs();
        if passed == 0 {
            return;
        }
        let ended = std::mem::take(&mut self.present);
        self.before = if passed == 1 { ended } else { Window::default() };
        self.began = Some(began + Duration::from_secs(passed * WINDOW.as_secs()));
    }

    fn top(&self, count: usize, now: Instant) -> Vec<BusyTable> {
        let age = self.began.map_or(Duration::ZERO, |began| now.saturating_duration_since(began));
        let part_before = (1.0 - age.as_secs_f64() / WINDOW.as_secs_f64()).clamp(0.0, 1.0);
        let mut rates: HashMap<ShardId, (f64, &str)> = HashMap::new();
        for (window, part) in [(&self.before, part_before), (&self.present, 1.0)] {
            for (shard, counter) in &window.counters {
                let (rate, _) = rates.entry(*shard).or_insert((0.0, counter.table.as_str()));
                *rate += counter.certain() as f64 * part;
            }
        }
        let mut rates: Vec<(f64, &str)> = rates.into_values().filter(|(rate, _)| *rate > 0.0).collect();
        rates.sort_by(|one, other| other.0.total_cmp(&one.0).then_with(|| one.1.cmp(other.1)));
        rates.truncate(count);
        let busy = |(changes_per_minute, table): (f64, &str)| {
            let table = table.to_owned();
            BusyTable { table, changes_per_minute }
        };
        rates.into_iter().map(busy).collect()
    }
}

#[derive(Debug, Default)]
struct Window {
    counters: HashMap<ShardId, Counter>,
    /// Count and shard of each counter, the smallest count first.
    order: BTreeSet<(u64, ShardId)>,
}

#[derive(Debug)]
struct Counter {
    table: String,
    /// Changes of the table, and of the tables that had the counter before.
    count: u64,
    /// The part of `count` that may belong to tables that had the counter before.
    error: u64,
}

impl Counter {
    /// Returns the number of changes that the table has had at least.
    fn certain(&self) -> u64 {
        self.count - self.error
    }
}

impl Window {
    fn add(&mut self, shard: ShardId, table: String, changes: u64) {
        let mut counter = match self.counters.remove(&shard) {
            Some(known) => {
                self.order.remove(&(known.count, shard));
                known
            }
            None if self.counters.len() < TABLES_MAX => Counter { table, count: 0, error: 0 },
            None => {
                let smallest = self.order.pop_first();
                let inherited = smallest.map_or(0, |(count, shard)| {
                    self.counters.remove(&shard);
                    count
                });
                Counter { table, count: inherited, error: inherited }
            }
        };
        counter.count = counter.count.saturating_add(changes);
        self.order.insert((counter.count, shard));
        self.counters.insert(shard, counter);
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use anabranch_schemas::change::{Entity, TableIdentity};

    use super::*;

    fn table(number: u32) -> TableIdentity<'static> {
        TableIdentity {
            entity: Entity::User,
            shard: ShardId::of("s", "d", "t", number),
            database: Cow::Borrowed("d"),
            table: Cow::Owned(format!("t{number:05}")),
        }
    }

    fn counts(changes: impl IntoIterator<Item = (u32, u64)>) -> TableCounts {
        let mut counts = TableCounts::default();
        for (number, changes) in changes {
            (0..changes).for_each(|_| counts.add(&table(number)));
        }
        counts
    }

    fn shown(busiest: &BusiestTables, count: usize, now: Instant) -> Vec<(String, f64)> {
        busiest.top(count, now).into_iter().map(|busy| (busy.table, busy.changes_per_minute)).collect()
    }

    #[test]
    fn the_busiest_come_first_and_equal_ones_by_name() {
        let (busiest, now) = (BusiestTables::default(), Instant::now());
        assert!(busiest.top(10, now).is_empty());
        busiest.add(counts([(3, 5), (1, 7), (2, 5), (4, 1)]), now);
        busiest.add(counts([(4, 20)]), now);
        let expected = [("d.t00004", 21.0), ("d.t00001", 7.0), ("d.t00002", 5.0)];
        assert_eq!(shown(&busiest, 3, now), expected.map(|(table, rate)| (table.to_owned(), rate)));
    }

    #[test]
    fn ten_thousand_tables_have_a_thousand_counters_and_the_busy_ones_among_them() {
        let (busiest, now) = (BusiestTables::default(), Instant::now());
        for round in 0..3 {
            busiest.add(counts((0..10_000).map(|number| (number, 1))), now);
            busiest.add(counts([(7, 500), (9_000 + round, 400), (20_000, 300)]), now);
        }
        {
            let windows = busiest.lock();
            let Window { counters, order } = &windows.present;
            assert_eq!((counters.len(), order.len()), (TABLES_MAX, TABLES_MAX));
            let all: u64 = counters.values().map(|counter| counter.count).sum();
            assert_eq!(all, 3 * (10_000 + 1_200), "each change is in one counter");
        }
        let shown = shown(&busiest, 5, now);
        let tables: Vec<&str> = shown.iter().map(|(table, _)| table.as_str()).collect();
        assert_eq!(tables[..2], ["d.t00007", "d.t20000"]);
        let mut others = tables[2..].to_vec();
        others.sort_unstable();
        assert_eq!(others, ["d.t09000", "d.t09001", "d.t09002"]);
        assert!((1_400.0..=1_503.0).contains(&shown[0].1), "never more than it has: {shown:?}");
        assert!(shown[2].1 <= 403.0, "{shown:?}");
    }

    #[test]
    fn changes_fade_within_the_second_minute() {
        let (busiest, start) = (BusiestTables::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        busiest.add(counts([(1, 120)]), start);
        let rate = |now| busiest.top(1, now).first().map(|busy| busy.changes_per_minute);
        assert_eq!(rate(after(59)), Some(120.0));
        assert_eq!(rate(after(75)), Some(90.0));
        busiest.add(counts([(1, 10)]), after(90));
        assert_eq!(rate(after(90)), Some(70.0));
        assert_eq!(rate(after(150)), Some(5.0));
        assert_eq!(rate(after(181)), None);
        busiest.add(counts([(2, 3)]), after(1_000));
        assert_eq!(rate(after(1_000)), Some(3.0));
    }
}
