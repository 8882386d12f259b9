//! In-memory twins of the outside, for simulation only: a scripted source, a log and a lane's store.
//!
//! They keep the contracts of the ports and nothing else, on virtual time: [`Delays`] puts a seeded pause before and
//! behind each durable step, so that a cut-off lands on either side of it.

mod log;
mod source;
mod store;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

pub use log::MemoryLog;
pub use source::{MemorySource, ScriptedRow, Transaction};
pub use store::{MemoryStore, MemoryTarget, StoredRow};

/// Longest pause of one step, virtual milliseconds.
const PAUSE_MAX_MS: u64 = 5;

/// Seeded pauses; shared by all twins of one run.
#[derive(Debug, Clone)]
pub struct Delays(Arc<Mutex<StdRng>>);

impl Delays {
    pub fn seeded(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(StdRng::seed_from_u64(seed))))
    }

    async fn pause(&self) {
        let millis = lock(&self.0).random_range(0..=PAUSE_MAX_MS);
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
}

/// A twin's state outlives a task that panicked while holding it: the next one sees what was there.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
