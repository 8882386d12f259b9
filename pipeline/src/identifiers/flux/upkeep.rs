//! The state of all counters of a region beside the registers, and the skip that a person orders.

use std::collections::BTreeMap;

use anabranch_schemas::flux::counter::{Counter, Ring};
use anabranch_schemas::flux::id::{Region, SEQUENCES};
use jiff::ToSpan;
use jiff::civil::Date;

use super::issuer::{RAISE, accepted_server};
use super::known::{self, SERVER, UsedBounds};
use super::wanted::DAYS_BACK_MAX;
use crate::error::{Code, Fault};
use crate::failpoints;
use crate::ports::{Registers, Sequence};
use crate::records::{SequenceServer, SequenceStatus};

/// Faulty counters that are named one by one, at most.
const NAMED_MAX: usize = 5;

/// All counters of a region, and the registers of their rings.
#[derive(Debug)]
pub struct SequenceState {
    pub status: SequenceStatus,
    /// The accepted server of the numbers; empty before the first lease.
    pub accepted: String,
    pub known: BTreeMap<Ring, UsedBounds>,
}

/// The result of a raise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaiseOutcome {
    pub server: String,
    pub counters: usize,
    /// First day that identifiers can be ordered for; `last` is the last one.
    pub first: Date,
    pub last: Date,
}

/// Reads counters and registers.
pub async fn state(
    registers: &impl Registers,
    sequence: &impl Sequence,
    region: Region,
) -> Result<SequenceState, Fault> {
    // Registers are read before counters, since counters rise before they do.
    let accepted = registers.read(SERVER).await?.value;
    let mut known = BTreeMap::new();
    for ring in Ring::of_region(region) {
        known.insert(ring, known::read(registers, ring).await?.1);
    }
    Ok(SequenceState { status: sequence.status().await?, accepted, known })
}

impl SequenceState {
    /// Returns how far a counter was leased; 0 before its day has come.
    pub fn next(&self, counter: Counter) -> u32 {
        let row = self.status.counters.iter().find(|(known, _)| *known == counter);
        row.map_or(0, |(_, next)| *next)
    }

    /// Returns the counters below numbers that were given out, each with its number and the register's.
    pub fn lagging_counters(&self) -> Vec<(Counter, u32, u32)> {
        let rows: BTreeMap<Counter, u32> = self.status.counters.iter().copied().collect();
        let (first, last) = window(&self.status.server);
        let mut lagging = Vec::new();
        for (ring, known) in &self.known {
            for (date, number) in known.days().filter(|(date, _)| (first..=last).contains(date)) {
                let next = rows.get(&ring.on(date)).copied().unwrap_or(0);
                if next < number {
                    lagging.push((ring.on(date), next, number));
                }
            }
        }
        lagging
    }

    /// Returns the faults that keep the issuer from giving out identifiers.
    pub fn faults(&self) -> Vec<Fault> {
        let found = &self.status.server.name;
        if !self.accepted.is_empty() && self.accepted != *found {
            let found = format!("it is {found}, and numbers were given out by {}", self.accepted);
            return vec![
                Fault::new(Code::FluxServerChanged, "server of flux.sequence_url", found)
                    .needs("the same server, or an operator's word that this one has every number")
                    .remedy(RAISE),
            ];
        }
        let lagging = self.lagging_counters();
        let fault = |(counter, next, number): &(Counter, u32, u32)| {
            let found = format!("its next number is {next}, and numbers up to {number} were given out");
            let needed = format!("at least {number}; the server was restored from an older copy");
            Fault::new(Code::FluxSequenceLagging, format!("counter {counter}"), found)
                .needs(needed)
                .remedy("anabranch --config FILE setup")
                .then(RAISE)
        };
        let mut faults: Vec<Fault> = lagging.iter().take(NAMED_MAX).map(fault).collect();
        if lagging.len() > NAMED_MAX {
            let found =
                format!("{} more counters are below numbers that were given out", lagging.len() - NAMED_MAX);
            faults.push(
                Fault::new(Code::FluxSequenceLagging, "counters of flux.sequence_url", found).remedy(RAISE),
            );
        }
        faults
    }
}

/// Returns the first and last day that identifiers can be ordered for, with room for another time zone.
fn window(server: &SequenceServer) -> (Date, Date) {
    let day = |days: i32| server.today.checked_add(days.days()).unwrap_or(server.today);
    (day(-DAYS_BACK_MAX - 1), day(2))
}

/// Skips `skipped` numbers of every counter that identifiers can be ordered for, past all known ones, and accepts the
/// server. Counters rise before the registers, and the server is accepted last: a person repeats a raise that was cut
/// off.
pub async fn raise(
    registers: &impl Registers,
    sequence: &impl Sequence,
    region: Region,
    skipped: u32,
) -> Result<RaiseOutcome, Fault> {
    let state = state(registers, sequence, region).await?;
    let rows: BTreeMap<Counter, u32> = state.status.counters.iter().copied().collect();
    let (first, last) = window(&state.status.server);
    let raised = |ring: Ring, known: &UsedBounds, date: Date| {
        let above = known.of(date).max(rows.get(&ring.on(date)).copied().unwrap_or(0));
        (date, above.saturating_add(skipped).min(SEQUENCES))
    };
    let days: Vec<Date> = first.series(1.day()).take_while(|date| *date <= last).collect();
    let of_ring = |(ring, known): (&Ring, &UsedBounds)| {
        (*ring, days.iter().map(|date| raised(*ring, known, *date)).collect::<Vec<_>>())
    };
    let rings: Vec<(Ring, Vec<(Date, u32)>)> = state.known.iter().map(of_ring).collect();
    let of_counter = |(ring, numbers): &(Ring, Vec<(Date, u32)>)| {
        let ring = *ring;
        numbers.clone().into_iter().map(move |(date, number)| (ring.on(date), number))
    };
    let numbers: Vec<(Counter, u32)> = rings.iter().flat_map(of_counter).collect();
    sequence.raise(&numbers).await?;
    failpoints::reach("sequence-counters-raised").await;
    for (ring, numbers) in &rings {
        known::raise(registers, *ring, numbers).await?;
    }
    failpoints::reach("sequence-registers-raised").await;
    let server = state.status.server.name;
    let register = registers.read(SERVER).await?;
    if register.value != server {
        registers.compare_and_set(SERVER, &register, server.clone()).await?;
    }
    failpoints::reach("sequence-server-accepted").await;
    // The register says which server is accepted now.
    let server = accepted_server(registers, sequence).await?;
    Ok(RaiseOutcome { server, counters: numbers.len(), first, last })
}
