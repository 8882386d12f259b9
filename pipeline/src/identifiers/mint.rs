//! Gives out the slots of one machine number, each once, whatever clocks do, also after another process held the
//! number.
//!
//! Proof. A slot, the pair of instant and sequence, is given out only below the number's *register*. The register is
//! stored before, and only a process that knows its revision raises it. A new holder begins at the register that it
//! reads and must raise it first. From then on the holder before it can raise it no more, and the slots that it still
//! gives out, however late it wakes, lie below the point where the new one began. Within one process slots only rise.
//! So uniqueness depends on no clock: when one steps back, the sequence keeps the order and carries over into instants
//! ahead of it. The lease of a machine number only keeps two processes from taking turns.

use std::fmt;

use crate::error::{Code, Fault};
use crate::ports::{Register, Registers};

use super::{EPOCH_MS, INSTANT_BITS, MACHINES, SEQUENCE_BITS, compose};

/// Milliseconds reserved ahead: at most one write to the log server a second, and a restart skips at most so many.
const AHEAD_MS: u64 = 1_000;

/// One holder of a machine number.
#[derive(Debug)]
pub struct Mint<'m, M> {
    registers: &'m M,
    key: String,
    machine: u16,
    register: Register,
    /// The register's value: the instant below which slots may be given out.
    until: u64,
    /// The slot that is given out next.
    next: u64,
}

impl<'m, M: Registers> Mint<'m, M> {
    /// Begins after everything that earlier holders of the number gave out.
    ///
    /// # Panics
    /// When `machine` is not below [`MACHINES`].
    pub async fn open(registers: &'m M, machine: u16) -> Result<Self, Fault> {
        assert!(machine < MACHINES, "machine number {machine}");
        let key = format!("uuids/{machine}");
        let register = registers.read(&key).await?;
        let until = reserved(&key, &register)?;
        Ok(Self { registers, key, machine, next: until << SEQUENCE_BITS, register, until })
    }

    /// Returns `count` new uuids, rising by instant; `now_ms` is the wall clock since the Unix epoch. After an error
    /// the caller drops the mint: the outcome of raising the register may be unknown.
    pub async fn issue(&mut self, now_ms: u64, count: u32) -> Result<Vec<u64>, Fault> {
        let first = self.reserve(now_ms, count).await?;
        Ok(IssuedRange { machine: self.machine, first, count }.uuids())
    }

    /// Issues as [`Self::issue`] does, but once for each key: a caller that repeats the key, to any mint, gets the same
    /// uuids. `None` when another count was requested with the key.
    pub async fn issue_once(
        &mut self,
        key: &str,
        now_ms: u64,
        count: u32,
    ) -> Result<Option<Vec<u64>>, Fault> {
        let key = format!("intake/{key}");
        let mut register = self.registers.read(&key).await?;
        if register.revision == 0 {
            let first = self.reserve(now_ms, count).await?;
            let given = IssuedRange { machine: self.machine, first, count };
            register = match self.registers.compare_and_set(&key, &register, given.to_string()).await {
                // Another mint got the same request at the same time.
                Err(fault) if fault.code() == Code::LeaseLost => self.registers.read(&key).await?,
                raised => raised?,
            };
        }
        let given =
            IssuedRange::parse(&register.value).ok_or_else(|| odd(&key, "its value does not name uuids"))?;
        Ok((given.count == count).then(|| given.uuids()))
    }

    /// Reserves `count` slots that no mint has given out; returns the first.
    async fn reserve(&mut self, now_ms: u64, count: u32) -> Result<u64, Fault> {
        let now = now_ms.saturating_sub(EPOCH_MS);
        let first = self.next.max(now << SEQUENCE_BITS);
        let end = first + u64::from(count);
        if end > self.until << SEQUENCE_BITS {
            let until = (end >> SEQUENCE_BITS) + AHEAD_MS;
            if until >> INSTANT_BITS != 0 {
                return Err(exhausted(&self.key));
            }
            self.register =
                self.registers.compare_and_set(&self.key, &self.register, until.to_string()).await?;
            self.until = until;
        }
        self.next = end;
        Ok(first)
    }
}

/// The uuids that were given out with a key, as its register holds them.
struct IssuedRange {
    machine: u16,
    first: u64,
    count: u32,
}

impl IssuedRange {
    fn parse(text: &str) -> Option<Self> {
        let [machine, first, count]: [&str; 3] = text.split(' ').collect::<Vec<_>>().try_into().ok()?;
        Some(Self { machine: machine.parse().ok()?, first: first.parse().ok()?, count: count.parse().ok()? })
    }

    fn uuids(&self) -> Vec<u64> {
        (self.first..).take(self.count as usize).map(|place| compose(self.machine, place)).collect()
    }
}

impl fmt::Display for IssuedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.machine, self.first, self.count)
    }
}

/// Parses the instant below which slots were given out.
fn reserved(key: &str, register: &Register) -> Result<u64, Fault> {
    if register.value.is_empty() {
        return Ok(0);
    }
    register.value.parse().map_err(|_| odd(key, "its value is not a number"))
}

fn odd(key: &str, found: &str) -> Fault {
    Fault::new(Code::LogForeign, format!("register {key}"), found)
        .needs("a bucket that only Anabranch writes")
}

fn exhausted(key: &str) -> Fault {
    Fault::new(
        Code::UuidsExhausted,
        format!("machine number {key}"),
        "its uuids are used up to the year 2094",
    )
    .needs("a clock between 2025 and 2094")
    .remedy("correct the clock; this process then takes another machine number")
}
