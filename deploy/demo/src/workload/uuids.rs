//! Uuids of new devices: the product's own generator, with a clock that the seed repeats.
//!
//! Each worker acts as a machine. Applications ask the product's API for uuids; the workload must run without it.

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::identifiers::{EPOCH_MS, Mint};
use anabranch_pipeline::ports::{Register, Registers};
use futures::FutureExt;

/// First time, in 2026; each uuid is a millisecond later.
const FIRST_MS: u64 = EPOCH_MS + 365 * 24 * 3600 * 1000;

/// Registers of a workload: no other process holds its machine numbers, and none is used again after its end.
#[derive(Debug)]
struct Alone;

impl Registers for Alone {
    async fn read(&self, _key: &str) -> Result<Register, Fault> {
        Ok(Register::default())
    }

    async fn compare_and_set(&self, _key: &str, known: &Register, value: String) -> Result<Register, Fault> {
        Ok(Register { value, revision: known.revision + 1 })
    }
}

/// One worker's generator.
#[derive(Debug)]
pub(super) struct Uuids {
    mint: Mint<'static, Alone>,
    now_ms: u64,
}

impl Uuids {
    pub fn of(worker: u64) -> Self {
        let machine =
            u16::try_from(worker).expect("a workload has fewer workers than there are machine numbers");
        let mint = Mint::open(&Alone, machine).now_or_never().expect("registers in memory answer at once");
        Self { mint: mint.expect("registers in memory cannot fail"), now_ms: FIRST_MS }
    }

    pub fn next(&mut self) -> u64 {
        self.now_ms += 1;
        let issued =
            self.mint.issue(self.now_ms, 1).now_or_never().expect("registers in memory answer at once");
        issued.expect("the instants reach until 2094")[0]
    }
}
