//! The state of all counters of a region beside what is known of them, and the skip that a person asks for.

use std::collections::BTreeMap;

use anabranch_schemas::flux::counter::{Counter, Ring};
use anabranch_schemas::flux::id::{Region, SEQUENCES};
use jiff::ToSpan;
use jiff::civil::Date;

use super::issuer::{RAISE, accepted_server};
use super::known::{self, Known, SERVER};
use super::wanted::DAYS_BACK_MAX;
use crate::error::{Code, Fault};
use crate::ports::{Registers, Sequence};
use crate::records::{SequenceServer, SequenceStanding};

/// Rings of which each is named where more of them are wrong.
const NAMED_MAX: usize = 5;

/// All counters of a region, and what is known of them.
#[derive(Debug)]
pub struct SequenceState {
    pub standing: SequenceStanding,
    /// The server that numbers come from; empty before the first one.
    pub accepted: String,
    pub known: BTreeMap<Ring, Known>,
}

/// What a raise did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raised {
    pub server: String,
    pub counters: usize,
    /// The days that identifiers can be asked for.
    pub first: Date,
    pub last: Date,
}

/// Reads counters and registers.
pub async fn state(
    registers: &impl Registers,
    sequence: &impl Sequence,
    region: Region,
) -> Result<SequenceState, Fault> {
    // What is known is read first: counters rise before it does.
    let accepted = registers.read(SERVER).await?.value;
    let mut known = BTreeMap::new();
    for ring in Ring::of_region(region) {
        known.insert(ring, known::read(registers, ring).await?.1);
    }
    Ok(SequenceState { standing: sequence.standing().await?, accepted, known })
}

impl SequenceState {
    /// How far a counter was leased: nothing before its day came.
    pub fn next(&self, counter: Counter) -> u32 {
        let row = self.standing.counters.iter().find(|(known, _)| *known == counter);
        row.map_or(0, |(_, next)| *next)
    }

    /// Counters that stand below what was given out, with their number and what is known.
    pub fn behind(&self) -> Vec<(Counter, u32, u32)> {
        let rows: BTreeMap<Counter, u32> = self.standing.counters.iter().copied().collect();
        let (first, last) = window(&self.standing.server);
        let mut behind = Vec::new();
        for (ring, known) in &self.known {
            for (date, number) in known.days().filter(|(date, _)| (first..=last).contains(date)) {
                let next = rows.get(&ring.on(date)).copied().unwrap_or(0);
                if next < number {
                    behind.push((ring.on(date), next, number));
                }
            }
        }
        behind
    }

    /// What keeps identifiers from being given out.
    pub fn faults(&self) -> Vec<Fault> {
        let found = &self.standing.server.name;
        if !self.accepted.is_empty() && self.accepted != *found {
            let found = format!("it is {found}, and numbers were given out by {}", self.accepted);
            return vec![
                Fault::new(Code::FluxServerChanged, "server of flux.sequence_url", found)
                    .needs("the same server, or the word of a person that this one has every number")
                    .remedy(RAISE),
            ];
        }
        let behind = self.behind();
        let fault = |(counter, next, number): &(Counter, u32, u32)| {
            let found = format!("it stands at {next}, and numbers up to {number} were given out");
            let needed = format!("at least {number}; somebody restored the server from a copy");
            Fault::new(Code::FluxSequenceBehind, format!("counter {counter}"), found)
                .needs(needed)
                .remedy("anabranch --config FILE setup")
                .then(RAISE)
        };
        let mut faults: Vec<Fault> = behind.iter().take(NAMED_MAX).map(fault).collect();
        if behind.len() > NAMED_MAX {
            let found = format!("{} more stand below what was given out", behind.len() - NAMED_MAX);
            faults.push(
                Fault::new(Code::FluxSequenceBehind, "counters of flux.sequence_url", found).remedy(RAISE),
            );
        }
        faults
    }
}

/// The days that identifiers can be asked for, with room for another time zone.
fn window(server: &SequenceServer) -> (Date, Date) {
    let day = |days: i32| server.today.checked_add(days.days()).unwrap_or(server.today);
    (day(-DAYS_BACK_MAX - 1), day(2))
}

/// Skips so many numbers of every counter that identifiers can be asked for, behind all that is known, and accepts the
/// server. Counters are raised before the registers, and the server is accepted last: a raise that is cut off is
/// repeated.
pub async fn raise(
    registers: &impl Registers,
    sequence: &impl Sequence,
    region: Region,
    skipped: u32,
) -> Result<Raised, Fault> {
    let state = state(registers, sequence, region).await?;
    let rows: BTreeMap<Counter, u32> = state.standing.counters.iter().copied().collect();
    let (first, last) = window(&state.standing.server);
    let raised = |ring: Ring, known: &Known, date: Date| {
        let above = known.of(date).max(rows.get(&ring.on(date)).copied().unwrap_or(0));
        (date, above.saturating_add(skipped).min(SEQUENCES))
    };
    let days: Vec<Date> = first.series(1.day()).take_while(|date| *date <= last).collect();
    let of_ring = |(ring, known): (&Ring, &Known)| {
        (*ring, days.iter().map(|date| raised(*ring, known, *date)).collect::<Vec<_>>())
    };
    let rings: Vec<(Ring, Vec<(Date, u32)>)> = state.known.iter().map(of_ring).collect();
    let of_counter = |(ring, numbers): &(Ring, Vec<(Date, u32)>)| {
        let ring = *ring;
        numbers.clone().into_iter().map(move |(date, number)| (ring.on(date), number))
    };
    let numbers: Vec<(Counter, u32)> = rings.iter().flat_map(of_counter).collect();
    sequence.raise(&numbers).await?;
    for (ring, numbers) in &rings {
        known::raise(registers, *ring, numbers).await?;
    }
    let server = state.standing.server.name;
    let register = registers.read(SERVER).await?;
    if register.value != server {
        registers.compare_and_set(SERVER, &register, server.clone()).await?;
    }
    // Nobody has accepted another one meanwhile.
    let server = accepted_server(registers, sequence).await?;
    Ok(Raised { server, counters: numbers.len(), first, last })
}
