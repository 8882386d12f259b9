//! The counters of payment documents in memory, and the request keys beside them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::Sequence;
use anabranch_pipeline::records::{
    CounterRow, GivenOnce, NumberRange, RangeRefusal, RangeRequest, Remembered, RequestKey, SequenceServer,
    SequenceStatus,
};
use anabranch_schemas::flux::counter::{Counter, Ring, SLOTS};
use anabranch_schemas::flux::id::Region;
use jiff::ToSpan;
use jiff::civil::{Date, date};

use super::{Refused, Weather, lock};

/// The date of a row that no day has taken yet.
const UNUSED: CounterRow = CounterRow { date: date(1000, 1, 1), next: 0 };

/// Content of the server; a test may restore all of it from a copy.
#[derive(Debug, Clone)]
pub struct SequenceRows {
    pub server: String,
    pub today: Date,
    pub rows: BTreeMap<(Ring, u8), CounterRow>,
    /// Request keys in the order of arrival, each with its day.
    pub keys: Vec<(RequestKey, GivenOnce, Date)>,
}

/// The sequence; clones share it.
#[derive(Debug, Clone)]
pub struct MemorySequence {
    state: Arc<Mutex<SequenceRows>>,
    keys_max: usize,
    keys_kept_days: i32,
    weather: Weather,
}

impl MemorySequence {
    /// Makes all counters of a region, at 0.
    pub fn new(
        region: Region,
        today: Date,
        (keys_max, keys_kept_days): (usize, i32),
        weather: Weather,
    ) -> Self {
        let slots = |ring| (0..SLOTS).map(move |slot| ((ring, slot), UNUSED));
        let rows = Ring::of_region(region).flat_map(slots).collect();
        let state = SequenceRows { server: "memory:1".to_owned(), today, rows, keys: Vec::new() };
        Self { state: Arc::new(Mutex::new(state)), keys_max, keys_kept_days, weather }
    }

    /// Works on the server's content.
    pub fn with<T>(&self, work: impl FnOnce(&mut SequenceRows) -> T) -> T {
        work(&mut lock(&self.state))
    }

    /// Breaks the connection in one of ten calls of a storm.
    async fn connection(&self) -> Result<(), Fault> {
        self.weather.pause().await;
        self.weather.answer(Refused::Target)?;
        match self.weather.strikes_in(100) {
            true => Err(Fault::new(Code::TargetUnreachable, "sequence", "the connection broke")),
            false => Ok(()),
        }
    }
}

impl Sequence for MemorySequence {
    async fn server(&self) -> Result<SequenceServer, Fault> {
        self.connection().await?;
        Ok(self.with(|state| SequenceServer { name: state.server.clone(), today: state.today }))
    }

    async fn next_range(&self, request: &RangeRequest) -> Result<Result<NumberRange, RangeRefusal>, Fault> {
        self.connection().await?;
        let leased = self.with(|state| {
            let server = SequenceServer { name: state.server.clone(), today: state.today };
            let place = (request.counter.ring, request.counter.slot());
            let leased = NumberRange::of(request, &server, state.rows.get(&place).copied());
            if let Ok(range) = leased {
                state.rows.insert(place, CounterRow { date: request.counter.date, next: range.end() });
            }
            leased
        });
        // The numbers are allotted, and only the answer is lost.
        self.connection().await?;
        Ok(leased)
    }

    async fn given(&self, key: &RequestKey) -> Result<Option<GivenOnce>, Fault> {
        self.connection().await?;
        Ok(self.with(|state| state.keys.iter().find(|(known, ..)| known == key).map(|(_, given, _)| *given)))
    }

    async fn remember(&self, key: &RequestKey, given: &GivenOnce) -> Result<Remembered, Fault> {
        self.connection().await?;
        let remembered = self.with(|state| {
            let oldest = state.today.checked_sub(self.keys_kept_days.days()).unwrap_or(state.today);
            state.keys.retain(|(.., asked)| *asked >= oldest);
            if let Some((_, existing, _)) = state.keys.iter().find(|(known, ..)| known == key) {
                return Remembered::Existing(*existing);
            }
            if state.keys.len() >= self.keys_max {
                return Remembered::Full;
            }
            state.keys.push((*key, *given, state.today));
            Remembered::Existing(*given)
        });
        self.connection().await?;
        Ok(remembered)
    }

    async fn status(&self) -> Result<SequenceStatus, Fault> {
        let server = self.server().await?;
        Ok(self.with(|state| {
            let used = state.rows.iter().filter(|(_, row)| row.date != UNUSED.date);
            let counters = used.map(|((ring, _), row)| (ring.on(row.date), row.next)).collect();
            SequenceStatus { server, counters, keys: state.keys.len() as u64 }
        }))
    }

    async fn raise(&self, numbers: &[(Counter, u32)]) -> Result<(), Fault> {
        self.connection().await?;
        self.with(|state| {
            for (counter, number) in numbers {
                let Some(row) = state.rows.get_mut(&(counter.ring, counter.slot())) else { continue };
                if row.date <= counter.date {
                    let next = if row.date == counter.date { row.next } else { 0 };
                    *row = CounterRow { date: counter.date, next: next.max(*number) };
                }
            }
        });
        self.connection().await
    }
}
