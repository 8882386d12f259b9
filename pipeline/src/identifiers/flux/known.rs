//! The numbers that are known outside of the counters' server: registers of the log, which only rise.
//!
//! The register of a ring holds, for its last days, the number below which everything may have been given out. A
//! process raises it after each lease, before it uses the first number. Readers raise it to the numbers of captured
//! rows (`seen.rs`): so a counter below such a row is refused by name, too.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use anabranch_schemas::flux::counter::{Ring, SLOTS};
use anabranch_schemas::flux::id::SEQUENCES;
use jiff::civil::Date;

use crate::error::{Code, Fault};
use crate::ports::{Register, Registers};

/// Key of the register that names the server of the numbers.
pub(super) const SERVER: &str = "flux/server";
/// Attempts to raise a register: two processes that raise the same one collide a few times at most.
pub(super) const ATTEMPTS: u32 = 16;

/// The number below which everything may have been given out, by day.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsedBounds(BTreeMap<Date, u32>);

impl UsedBounds {
    pub fn of(&self, date: Date) -> u32 {
        self.0.get(&date).copied().unwrap_or(0)
    }

    /// Returns each known day with its number.
    pub fn days(&self) -> impl Iterator<Item = (Date, u32)> {
        self.0.iter().map(|(date, number)| (*date, *number))
    }

    /// Raises the number of a day and returns the result. Days whose counters the ring has given to later days are
    /// forgotten: they lease nothing more.
    #[must_use]
    pub fn with(mut self, date: Date, number: u32) -> Self {
        let known = self.0.entry(date).or_default();
        *known = number.max(*known);
        while self.0.len() > usize::from(SLOTS) {
            self.0.pop_first();
        }
        self
    }
}

/// Writes `2026-11-26:5000 2026-11-27:9` and the like.
impl fmt::Display for UsedBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (date, number)) in self.0.iter().enumerate() {
            write!(f, "{}{date}:{number}", if place == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

/// The text is no value of a ring's register.
#[derive(Debug, PartialEq, Eq)]
pub struct InvalidKnown;

impl FromStr for UsedBounds {
    type Err = InvalidKnown;

    fn from_str(text: &str) -> Result<Self, InvalidKnown> {
        let day = |text: &str| {
            let (date, number) = text.split_once(':')?;
            let number = number.parse().ok().filter(|number| *number <= SEQUENCES)?;
            Some((date.parse::<Date>().ok()?, number))
        };
        let days = text.split(' ').filter(|day| !day.is_empty()).map(|text| day(text).ok_or(InvalidKnown));
        days.collect::<Result<_, _>>().map(Self)
    }
}

/// Returns the key of a ring's register.
pub(super) fn key(ring: Ring) -> String {
    format!("flux/{}/{}/{:02}", ring.region(), ring.side(), ring.partition())
}

/// Reads the register of a ring; returns it as stored and as parsed.
pub(super) async fn read(registers: &impl Registers, ring: Ring) -> Result<(Register, UsedBounds), Fault> {
    let key = key(ring);
    let register = registers.read(&key).await?;
    let known = register.value.parse().map_err(|InvalidKnown| {
        Fault::new(Code::LogForeign, format!("register {key}"), "its value is not a list of days and numbers")
            .needs("a bucket that only Anabranch writes")
    })?;
    Ok((register, known))
}

/// Raises the register of a ring to these numbers; higher ones stay.
pub(super) async fn raise(
    registers: &impl Registers,
    ring: Ring,
    numbers: &[(Date, u32)],
) -> Result<(), Fault> {
    for _ in 1..ATTEMPTS {
        match raise_once(registers, ring, numbers).await {
            Err(fault) if fault.code() == Code::LeaseLost => {}
            outcome => return outcome,
        }
    }
    raise_once(registers, ring, numbers).await
}

async fn raise_once(registers: &impl Registers, ring: Ring, numbers: &[(Date, u32)]) -> Result<(), Fault> {
    let (register, known) = read(registers, ring).await?;
    let raised = numbers.iter().fold(known.clone(), |known, (date, number)| known.with(*date, *number));
    if raised == known {
        return Ok(());
    }
    registers.compare_and_set(&key(ring), &register, raised.to_string()).await.map(drop)
}

#[cfg(test)]
mod tests {
    use jiff::ToSpan;
    use jiff::civil::date;

    use super::*;

    #[test]
    fn a_register_holds_the_last_days_and_never_a_lower_number() {
        let first = date(2026, 11, 26);
        let mut known = UsedBounds::default();
        assert_eq!("".parse(), Ok(UsedBounds::default()));
        for day in 0..40 {
            known = known.with(first.checked_add(day.days()).unwrap(), 5);
        }
        let newest = first.checked_add(39.days()).unwrap();
        let known = known.with(newest, 3).with(newest, 100_000_000);
        assert_eq!((known.of(newest), known.of(first), known.days().count()), (100_000_000, 0, 16));
        assert_eq!(known.to_string().parse(), Ok(known.clone()));
        assert!(known.to_string().len() < 400, "it fits a value of the bucket");
        for odd in ["2026-11-26", "2026-11-31:5", "2026-11-26:100000001", "2026-11-26:-1", "x:1"] {
            assert_eq!(odd.parse::<UsedBounds>(), Err(InvalidKnown), "{odd}");
        }
    }
}
