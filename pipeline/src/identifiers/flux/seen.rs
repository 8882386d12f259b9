//! The numbers that readers of this process met in rows, on their way to the registers.
//!
//! A reader adds them as it sends a batch, and a future beside the reader raises the registers every few seconds. So a
//! counter that was restored from an older copy is below its register as soon as one later row was captured, also if
//! the registers themselves were lost. A process that is killed loses the numbers of these seconds, and later rows of
//! the same counter replace them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anabranch_schemas::flux::counter::{Counter, Ring};
use jiff::civil::Date;
use tokio_util::sync::CancellationToken;

use super::issuer::FluxSettings;
use super::known;
use crate::error::Fault;
use crate::ports::Registers;
use crate::records::SeenNumbers;

/// Time between two raises of the registers: each costs a read of every ring with new rows.
const INTERVAL: Duration = Duration::from_secs(5);
/// Time for the last raise of a reader that ends. The log may be the reason why it ends.
const LAST: Duration = Duration::from_secs(2);

/// Numbers of rows that the registers may lack. Clones share them.
#[derive(Debug, Clone)]
pub struct CapturedNumbers {
    settings: FluxSettings,
    next: Arc<Mutex<BTreeMap<Counter, u32>>>,
}

impl CapturedNumbers {
    pub fn new(settings: FluxSettings) -> Self {
        Self { settings, next: Arc::default() }
    }

    /// Returns what a reader fills with the rows of its batches.
    pub fn collector(&self) -> SeenNumbers {
        SeenNumbers::new(self.settings.region, self.settings.system)
    }

    /// Adds what a reader took from its collector.
    pub fn add(&self, numbers: Vec<(Counter, u32)>) {
        let mut next = self.lock();
        for (counter, number) in numbers {
            let known = next.entry(counter).or_default();
            *known = number.max(*known);
        }
    }

    /// Does the work of a reader, raises the registers meanwhile, and once more when the work has ended.
    pub async fn recorded_beside<T>(&self, registers: &impl Registers, work: impl Future<Output = T>) -> T {
        let done = CancellationToken::new();
        let work = async {
            let ended = work.await;
            done.cancel();
            ended
        };
        let (ended, _) = tokio::join!(work, done.run_until_cancelled(self.keep_recorded(registers)));
        if tokio::time::timeout(LAST, self.record_or_warn(registers)).await.is_err() {
            tracing::warn!(
                "the registers of flux counters do not answer: the last captured numbers are not in them"
            );
        }
        ended
    }

    async fn keep_recorded(&self, registers: &impl Registers) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            self.record_or_warn(registers).await;
        }
    }

    async fn record_or_warn(&self, registers: &impl Registers) {
        if let Err(fault) = self.record(registers).await {
            tracing::warn!(%fault, "captured numbers are not in the registers of flux counters yet");
        }
    }

    /// Raises the registers to all numbers. Those of a call that fails or is cancelled stay for the next one.
    pub async fn record(&self, registers: &impl Registers) -> Result<(), Fault> {
        let mut of_rings: BTreeMap<Ring, Vec<(Date, u32)>> = BTreeMap::new();
        for (counter, number) in self.lock().iter() {
            of_rings.entry(counter.ring).or_default().push((counter.date, *number));
        }
        for (ring, numbers) in of_rings {
            known::raise(registers, ring, &numbers).await?;
            self.forget(ring, &numbers);
        }
        Ok(())
    }

    /// Forgets numbers that their register holds, but for those that rose meanwhile.
    fn forget(&self, ring: Ring, numbers: &[(Date, u32)]) {
        let mut next = self.lock();
        for (date, number) in numbers {
            if next.get(&ring.on(*date)) == Some(number) {
                next.remove(&ring.on(*date));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Counter, u32>> {
        // No code under this lock leaves it half changed.
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
