//! Shows how many connections of the pools of this process are in use, and how many queries wait for one.
//!
//! A pool registers itself. A scrape reads the counts that the library keeps anyway, so a query costs nothing more.
//! Pools of one name are added up, such as those of two reconciliations; a pool that is gone counts no more.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use mysql_async::Metrics;

static POOLS: Mutex<Vec<Weak<ShownPool>>> = Mutex::new(Vec::new());

/// The name of a pool in metrics.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PoolName {
    /// Kind of the server: `source` or `target`.
    pub dependency: &'static str,
    /// Name of the server.
    pub name: String,
    /// The use of the connections.
    pub pool: &'static str,
}

/// Present use of all pools of one name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolUse {
    pub in_use: usize,
    /// Queries that wait because all connections are in use.
    pub waiting: usize,
    pub connections_max: usize,
}

/// A registered pool; it is shown until its last clone is dropped.
#[derive(Debug)]
pub(super) struct ShownPool {
    name: PoolName,
    connections_max: usize,
    counts: Mutex<Arc<Metrics>>,
}

impl ShownPool {
    /// Registers a pool with the counts of the library.
    pub(super) fn register(name: PoolName, connections_max: usize, counts: Arc<Metrics>) -> Arc<Self> {
        let shown = Arc::new(Self { name, connections_max, counts: Mutex::new(counts) });
        let mut pools = lock(&POOLS);
        pools.retain(|known| known.strong_count() > 0);
        pools.push(Arc::downgrade(&shown));
        shown
    }

    /// Shows other counts from now on: the pool ends its connections of before, and they count no more.
    pub(super) fn replace(&self, counts: Arc<Metrics>) {
        *lock(&self.counts) = counts;
    }
}

/// Returns the present use of every registered pool.
pub fn pool_uses() -> BTreeMap<PoolName, PoolUse> {
    let mut uses: BTreeMap<PoolName, PoolUse> = BTreeMap::new();
    for pool in lock(&POOLS).iter().filter_map(Weak::upgrade) {
        let of_name = uses.entry(pool.name.clone()).or_default();
        let counts = lock(&pool.counts);
        of_name.in_use += counts.connections_in_use.load(Ordering::Relaxed);
        of_name.waiting += counts.active_wait_requests.load(Ordering::Relaxed);
        of_name.connections_max += pool.connections_max;
    }
    uses
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_of_one_name_are_added_up_and_one_that_is_gone_counts_no_more() {
        let name = PoolName { dependency: "target", name: "of the test".to_owned(), pool: "rows" };
        let pool = |in_use: usize, waiting: usize| {
            let counts = Metrics::default();
            counts.connections_in_use.store(in_use, Ordering::Relaxed);
            counts.active_wait_requests.store(waiting, Ordering::Relaxed);
            ShownPool::register(name.clone(), 4, Arc::new(counts))
        };
        let (first, second) = (pool(4, 3), pool(1, 0));
        assert_eq!(pool_uses().get(&name), Some(&PoolUse { in_use: 5, waiting: 3, connections_max: 8 }));
        drop(first);
        assert_eq!(pool_uses().get(&name), Some(&PoolUse { in_use: 1, waiting: 0, connections_max: 4 }));
        drop(second);
        assert_eq!(pool_uses().get(&name), None);
    }
}
