//! The number ranges that one process holds, and the identifiers that it makes of them.
//!
//! Orders of one counter wait for one another; orders of different counters do not. A range that is used up quickly is
//! followed by one of twice the size, so that ranges cost little. Numbers that a process holds when it ends are skipped
//! for ever.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anabranch_schemas::flux::counter::Counter;
use anabranch_schemas::flux::id::{FluxId, Region, SEQUENCES};
use anabranch_schemas::flux::years::Years;
use jiff::civil::Date;
use metrics::counter;
use tokio::time::Instant;

use super::known::{ATTEMPTS, SERVER, key, read};
use super::used::UsedShare;
use super::wanted::FluxOrder;
use crate::error::{Code, Fault};
use crate::failpoints;
use crate::metrics as names;
use crate::ports::{Registers, Sequence};
use crate::records::{GivenOnce, NumberRange, RangeRefusal, RangeRequest, Remembered, RequestKey};

/// Numbers of a range, at least: a restart wastes no more of a counter that is hardly used.
const RANGE_MIN: u32 = 1_000;
/// Numbers of a range, at most: a thousandth of a counter. A million identifiers a second are ten ranges a second.
const RANGE_MAX: u32 = 100_000;
/// A range that is used up before the first time is followed by a larger one, one that outlasts the second by a
/// smaller. A range costs two reads and a write of registers and a durable UPDATE, and an order waits for the range of
/// its counter: at 30,000 numbers a second, a first time of 1 s leaves 94 ranges a second of 100 counters, and one of
/// 10 s leaves 30.
const RANGE_TIME: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));

/// The parts that all identifiers of an installation share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FluxSettings {
    pub region: Region,
    pub system: u16,
}

/// The rest of an allotted range.
#[derive(Debug)]
struct LeasedRange {
    next: u32,
    end: u32,
    /// Numbers of the last range.
    size: u32,
    leased_at: Instant,
}

impl LeasedRange {
    /// Returns how many numbers the next range is to have.
    fn following(&self) -> u32 {
        let size = match self.leased_at.elapsed() {
            lasted if lasted < RANGE_TIME.0 => self.size * 2,
            lasted if lasted > RANGE_TIME.1 => self.size / 2,
            _ => self.size,
        };
        size.clamp(RANGE_MIN, RANGE_MAX)
    }
}

/// Makes identifiers of allotted numbers.
#[derive(Debug)]
pub struct FluxIssuer<S> {
    sequence: S,
    settings: FluxSettings,
    /// The strategy by year; `None` = no identifier has a year digit.
    years: Option<Years>,
    /// Numbers of a first range, at least.
    range_min: u32,
    held: Mutex<BTreeMap<Counter, Arc<tokio::sync::Mutex<Option<LeasedRange>>>>>,
    used: UsedShare,
}

impl<S: Sequence> FluxIssuer<S> {
    pub fn new(sequence: S, settings: FluxSettings) -> Self {
        let (held, used) = (Mutex::default(), UsedShare::default());
        Self { sequence, settings, years: None, range_min: RANGE_MIN, held, used }
    }

    /// Returns an issuer whose identifiers have a year digit where the strategy by year covers them.
    #[must_use]
    pub fn with_years(self, years: Option<Years>) -> Self {
        Self { years, ..self }
    }

    /// Returns an issuer for a process that ends after one order: it asks for no more numbers than it
    /// needs, and skips nothing.
    #[must_use]
    pub fn without_reserve(self) -> Self {
        Self { range_min: 1, ..self }
    }

    pub fn sequence(&self) -> &S {
        &self.sequence
    }

    pub fn settings(&self) -> FluxSettings {
        self.settings
    }

    /// Shows the share that the fullest counter has used on this day. A process that gives out nothing more calls it
    /// for the gauge: no order shows that a day is over.
    pub fn show_used(&self, today: Date) {
        self.used.refresh(today);
    }

    /// Returns the new identifiers of an order.
    pub async fn issue(
        &self,
        registers: &impl Registers,
        order: &FluxOrder,
        today: Date,
    ) -> Result<Vec<FluxId>, Fault> {
        let template = self.template(order, today)?;
        let counter = Counter::of(&template);
        let slot = self.slot(counter, today);
        let mut held = slot.lock().await;
        let ranges = self.take_numbers(registers, (counter, today), &mut held, order.count, false).await?;
        drop(held);
        let numbers = ranges.into_iter().flatten();
        let identifiers = numbers.filter_map(|number| template.with_sequence(number)).collect();
        counter!(names::FLUX_IDENTIFIERS).increment(u64::from(order.count));
        Ok(identifiers)
    }

    /// Issues as [`Self::issue`] does, but once for each key: a caller that repeats the key, to any process, gets the
    /// same identifiers. Fails with [`Code::KeyReused`] when another order came with the key before.
    pub async fn issue_once(
        &self,
        registers: &impl Registers,
        key: &RequestKey,
        order: &FluxOrder,
        today: Date,
    ) -> Result<Vec<FluxId>, Fault> {
        let given = match self.sequence.given(key).await? {
            Some(given) => given,
            None => self.remembered(registers, key, order, today).await?,
        };
        if !order.is_as_given(&given.first, given.count, self.years.as_ref()) {
            let found = "an earlier request with this key asked for other identifiers";
            return Err(Fault::new(Code::KeyReused, "idempotency-key", found)
                .needs("exactly the first request")
                .remedy("send another key, or the first request"));
        }
        given.identifiers().ok_or_else(|| {
            Fault::new(Code::Internal, "request key", "its last identifier has a sequence of nine digits")
        })
    }

    /// Takes numbers for a new key; the key is stored when it returns.
    async fn remembered(
        &self,
        registers: &impl Registers,
        key: &RequestKey,
        order: &FluxOrder,
        today: Date,
    ) -> Result<GivenOnce, Fault> {
        let template = self.template(order, today)?;
        let counter = Counter::of(&template);
        let slot = self.slot(counter, today);
        // The numbers follow one another, so that the first one and the count describe them all.
        let mut held = slot.lock().await;
        let [numbers, _] =
            self.take_numbers(registers, (counter, today), &mut held, order.count, true).await?;
        drop(held);
        let first = template.with_sequence(numbers.start).unwrap_or(template);
        failpoints::reach("sequence-before-key").await;
        let stored = self.sequence.remember(key, &GivenOnce { first, count: order.count }).await?;
        failpoints::reach("sequence-after-key").await;
        match stored {
            Remembered::Existing(given) => {
                counter!(names::FLUX_IDENTIFIERS).increment(u64::from(order.count));
                Ok(given)
            }
            Remembered::Full => Err(Fault::new(
                Code::FluxKeysFull,
                "idempotency-key",
                "flux.request_keys_max keys are stored, and none is old enough to be removed",
            )
            .needs("keys that name a payment or a batch, each used once")
            .remedy("send this request without idempotency-key, or later; raise flux.request_keys_max")),
        }
    }

    fn template(&self, order: &FluxOrder, today: Date) -> Result<FluxId, Fault> {
        let FluxSettings { region, system } = self.settings;
        let template = order.template(region, system, order.day(today)?)?;
        if order.count == 0 || order.count > RANGE_MAX {
            let found = format!("{} identifiers", order.count);
            return Err(Fault::new(Code::CountOutOfRange, "count", found).needs(format!("1 to {RANGE_MAX}")));
        }
        Ok(order.with_year(template, self.years.as_ref()))
    }

    /// Returns the slot of a counter's range; it drops ranges of days that no caller can order any more.
    fn slot(&self, counter: Counter, today: Date) -> Arc<tokio::sync::Mutex<Option<LeasedRange>>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let is_near = |date: Date| today.until(date).is_ok_and(|span| span.get_days().abs() <= 10);
        if !held.contains_key(&counter) {
            held.retain(|known, _| is_near(known.date));
            self.used.refresh(today);
        }
        Arc::clone(held.entry(counter).or_default())
    }

    /// Takes `count` numbers from the held range and the next one; with `in_a_row` all are in the first returned range.
    /// After a fault it has taken nothing.
    async fn take_numbers(
        &self,
        registers: &impl Registers,
        (counter, today): (Counter, Date),
        held: &mut Option<LeasedRange>,
        count: u32,
        in_a_row: bool,
    ) -> Result<[Range<u32>; 2], Fault> {
        let rest = held.as_ref().map_or(0..0, |held| held.next..held.end);
        let mut all = [rest.clone(), 0..0];
        if rest.len() < count as usize {
            let needed = if in_a_row { count } else { count - rest.len() as u32 };
            let size = held.as_ref().map_or(self.range_min, LeasedRange::following);
            let range = self.next_range(registers, counter, needed, size.max(needed)).await?;
            self.used.leased(counter, range.end(), today);
            all = match rest.end == range.first {
                // No other process got a range in between.
                true => [rest.start..range.end(), 0..0],
                false if in_a_row => [range.first..range.end(), 0..0],
                false => [rest, range.first..range.end()],
            };
            *held =
                Some(LeasedRange { next: range.first, end: range.end(), size, leased_at: Instant::now() });
        }
        let [first, second] = all;
        let split = first.end.min(first.start + count);
        let (taken, left) = (first.start..split, count - (split - first.start));
        let end = if left == 0 { split } else { second.start + left };
        if let Some(held) = held {
            held.next = end;
        }
        Ok([taken, second.start..second.start + left])
    }

    /// Asks for a range that no other process has; the range counts only if the ring's register did not move meanwhile.
    async fn next_range(
        &self,
        registers: &impl Registers,
        counter: Counter,
        least: u32,
        wanted: u32,
    ) -> Result<NumberRange, Fault> {
        let mut lost = None;
        for _ in 0..ATTEMPTS {
            let server = accepted_server(registers, &self.sequence).await?;
            let (register, known) = read(registers, counter.ring).await?;
            let request = RangeRequest { counter, server, known: known.of(counter.date), least, wanted };
            failpoints::reach("sequence-before-lease").await;
            let leased = self.sequence.next_range(&request).await?;
            failpoints::reach("sequence-after-lease").await;
            let range = leased.map_err(|refusal| refused(&request, refusal))?;
            let value = known.with(counter.date, range.end()).to_string();
            match registers.compare_and_set(&key(counter.ring), &register, value).await {
                Ok(_) => {
                    failpoints::reach("sequence-after-known").await;
                    counter!(names::FLUX_LEASES).increment(1);
                    return Ok(range);
                }
                // Another process got a range at the same time, or did so before a person restored the server.
                Err(fault) if fault.code() == Code::LeaseLost => lost = Some(fault),
                Err(fault) => return Err(fault),
            }
        }
        Err(lost.unwrap_or_else(|| Fault::new(Code::LeaseLost, counter.to_string(), "no range was leased")))
    }
}

/// Returns the server whose numbers count: the first one that this installation met, or the one that a person accepted.
pub(super) async fn accepted_server(
    registers: &impl Registers,
    sequence: &impl Sequence,
) -> Result<String, Fault> {
    let register = registers.read(SERVER).await?;
    if !register.value.is_empty() {
        return Ok(register.value);
    }
    let server = sequence.server().await?.name;
    match registers.compare_and_set(SERVER, &register, server.clone()).await {
        Ok(_) => Ok(server),
        // Another process has stored its server first.
        Err(fault) if fault.code() == Code::LeaseLost => Ok(registers.read(SERVER).await?.value),
        Err(fault) => Err(fault),
    }
}

/// The command that raises every counter above all numbers that may have been given out.
pub(super) const RAISE: &str = "anabranch --config FILE flux sequence raise";

/// Settings of a server whose answered commits survive a power cut.
pub const DURABLE_SETTINGS: &str =
    "innodb_flush_log_at_trx_commit = 1, and sync_binlog = 1 if it writes a binlog";
/// The statement that sets them.
pub const SET_DURABLE: &str =
    "SET GLOBAL innodb_flush_log_at_trx_commit = 1, GLOBAL sync_binlog = 1, and both in its option file";

/// Returns the fault of a refused range.
fn refused(request: &RangeRequest, refusal: RangeRefusal) -> Fault {
    let subject = format!("counter {}", request.counter);
    let fault = match refusal {
        RangeRefusal::ServerChanged { found } => {
            let found = format!("its server is {found}, and numbers were given out by {}", request.server);
            Fault::new(Code::FluxServerChanged, subject, found)
                .needs("the same server, or an operator's word that this one has every number")
                .remedy(RAISE)
        }
        RangeRefusal::Volatile { setting } => {
            let found = format!("its server has {setting}, so a power cut could take the lease back");
            Fault::new(Code::FluxServerVolatile, subject, found).needs(DURABLE_SETTINGS).remedy(SET_DURABLE)
        }
        RangeRefusal::Missing => Fault::new(Code::FluxSequenceLagging, subject, "its row does not exist")
            .needs("the rows that `setup` made")
            .remedy("anabranch --config FILE setup")
            .then(RAISE),
        RangeRefusal::Lagging { next } => {
            let found =
                format!("its next number is {next}, and numbers up to {} were given out", request.known);
            Fault::new(Code::FluxSequenceLagging, subject, found)
                .needs(format!("at least {}; the server was restored from an older copy", request.known))
                .remedy(RAISE)
        }
        RangeRefusal::OtherDay { today } => Fault::new(
            Code::FluxDateRefused,
            subject,
            format!("today is {today} for the server of the counters"),
        )
        .needs("clocks that differ by less than a day")
        .remedy("compare `date -u` on this machine with SELECT UTC_TIMESTAMP() on that server"),
        RangeRefusal::Overtaken { by } => Fault::new(
            Code::FluxDateRefused,
            subject,
            format!("its row was taken over by the counter of {by}"),
        )
        .needs("a date of the last days, and clocks that are right")
        .remedy("compare `date -u` on this machine with SELECT UTC_TIMESTAMP() on that server"),
        RangeRefusal::Exhausted { next } => {
            let found = format!(
                "{} of its {SEQUENCES} numbers are left, and {} are wanted",
                SEQUENCES - next,
                request.least
            );
            Fault::new(Code::FluxSequenceExhausted, subject, found)
                .needs("a counter with numbers left: each date, user partition and side has its own")
                .remedy("use another date; anabranch --config FILE flux sequence status shows every counter")
        }
    };
    counter!(names::FLUX_REFUSALS, "code" => fault.code().as_str()).increment(1);
    fault
}

#[cfg(test)]
mod tests;
