//! Number ranges for the identifiers of payment documents: a counter allots each range to one process, for ever.
//!
//! [`NumberRange::of`] is the whole decision. The in-memory sequence calls it for each range. The MySQL sequence
//! decides by the condition of one UPDATE; it calls [`NumberRange::of`] to find out why an UPDATE changed nothing.

use std::fmt;

use anabranch_schemas::flux::counter::Counter;
use anabranch_schemas::flux::id::{FluxId, SEQUENCES};
use jiff::civil::Date;
use sha2::{Digest, Sha256};

/// Days by which a counter's date may lie before the server's own date, at most. Requests may go back seven days, and
/// the date of a daemon in another time zone may differ by a day or two.
pub const DAYS_BEFORE_MAX: i32 = 9;
/// Days by which a counter's date may lie after the server's own date, at most.
pub const DAYS_AFTER_MAX: i32 = 2;

/// A request for a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeRequest {
    pub counter: Counter,
    /// Name of the server that must answer, see [`crate::ports::Sequence::server`]: it allotted the numbers before, or
    /// a person accepted it.
    pub server: String,
    /// All numbers below this one are allotted, as a register of the log says.
    pub known: u32,
    /// Numbers that the counter must have left; with fewer it refuses.
    pub least: u32,
    /// Numbers that are wanted, at least `least`.
    pub wanted: u32,
}

/// Numbers that belong to the process that asked for them, and never to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberRange {
    pub first: u32,
    pub count: u32,
}

/// A stored row, which counts for one day after another, see [`Counter::slot`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterRow {
    /// The day for which the row counts now.
    pub date: Date,
    /// The next number to allot; every number below it was allotted.
    pub next: u32,
}

/// The server of the counters at the moment of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SequenceServer {
    /// Name of the server, see [`crate::ports::Sequence::server`].
    pub name: String,
    /// Date of the server's own clock, in UTC.
    pub today: Date,
}

/// Why nothing was allotted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RangeRefusal {
    ServerChanged {
        found: String,
    },
    /// The server answers before a commit is on its disk, so a power cut could take the range back.
    Volatile {
        /// Name and value of the setting.
        setting: String,
    },
    /// The counter's row is gone.
    Missing,
    /// The date lies too far from the server's.
    OtherDay {
        today: Date,
    },
    /// A later day has taken the row.
    Overtaken {
        by: Date,
    },
    /// The counter's next number is below [`RangeRequest::known`]: its server was restored from an older copy.
    Lagging {
        next: u32,
    },
    /// The counter has fewer than [`RangeRequest::least`] numbers left.
    Exhausted {
        next: u32,
    },
}

impl RangeRequest {
    /// Returns the range of a counter whose next number is this one.
    pub fn range_at(&self, next: u32) -> NumberRange {
        NumberRange { first: next, count: self.wanted.min(SEQUENCES - next) }
    }
}

impl NumberRange {
    /// Returns the range that the row gives, or why it gives none. The caller then stores the request's date and
    /// [`NumberRange::end`], as next number, in the row.
    pub fn of(
        request: &RangeRequest,
        server: &SequenceServer,
        row: Option<CounterRow>,
    ) -> Result<Self, RangeRefusal> {
        if server.name != request.server {
            return Err(RangeRefusal::ServerChanged { found: server.name.clone() });
        }
        let Some(row) = row else { return Err(RangeRefusal::Missing) };
        let date = request.counter.date;
        if !is_served(date, server.today) {
            return Err(RangeRefusal::OtherDay { today: server.today });
        }
        if row.date > date {
            return Err(RangeRefusal::Overtaken { by: row.date });
        }
        let next = if row.date == date { row.next } else { 0 };
        if next < request.known {
            return Err(RangeRefusal::Lagging { next });
        }
        if u64::from(next) + u64::from(request.least) > u64::from(SEQUENCES) {
            return Err(RangeRefusal::Exhausted { next });
        }
        Ok(request.range_at(next))
    }

    /// Returns the number after the last one of the range.
    pub fn end(self) -> u32 {
        self.first + self.count
    }
}

/// Whether counters serve a date when the server's own date is `today`.
fn is_served(date: Date, today: Date) -> bool {
    let days = today.until(date).map_or(i32::MAX, |span| span.get_days());
    (-DAYS_BEFORE_MAX..=DAYS_AFTER_MAX).contains(&days)
}

/// Digest of the key that a caller sent with a request. A key may be any bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestKey([u8; 32]);

impl RequestKey {
    pub fn of(key: &[u8]) -> Self {
        Self(Sha256::digest(key).into())
    }

    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Identifiers that were given out with a request key. Their sequences are consecutive numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GivenOnce {
    pub first: FluxId,
    pub count: u32,
}

impl GivenOnce {
    /// Returns all of the identifiers. `None` when a sequence would have more than eight digits; no process stores such
    /// identifiers.
    pub fn identifiers(&self) -> Option<Vec<FluxId>> {
        let first = self.first.parts().sequence;
        (0..self.count).map(|place| self.first.with_sequence(first.checked_add(place)?)).collect()
    }
}

/// Outcome of storing a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remembered {
    /// The identifiers that are stored with the key now: those that were to be stored, or those of an earlier call.
    Existing(GivenOnce),
    /// No key was stored: there are as many as the settings allow, and the oldest are too young to be removed.
    Full,
}

/// All counters of a region at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SequenceStatus {
    pub server: SequenceServer,
    /// Each counter that was used, with its next number.
    pub counters: Vec<(Counter, u32)>,
    /// Upper bound of the number of request keys that are stored now.
    pub keys: u64,
}

/// Formats as `numbers 1000 to 1999`.
impl fmt::Display for NumberRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "numbers {} to {}", self.first, i64::from(self.end()) - 1)
    }
}

#[cfg(test)]
mod tests {
    use anabranch_schemas::flux::counter::Ring;
    use anabranch_schemas::flux::id::{Region, Side};
    use jiff::ToSpan;
    use jiff::civil::date;
    use proptest::prelude::*;

    use super::*;

    const TODAY: Date = date(2026, 11, 26);

    fn request(date: Date, known: u32, least: u32, wanted: u32) -> RangeRequest {
        let counter = Ring::new(Region::UnitedStates, Side::Main, 7).unwrap().on(date);
        RangeRequest { counter, server: "mysql:a".to_owned(), known, least, wanted }
    }

    fn server() -> SequenceServer {
        SequenceServer { name: "mysql:a".to_owned(), today: TODAY }
    }

    fn row(date: Date, next: u32) -> Option<CounterRow> {
        Some(CounterRow { date, next })
    }

    #[test]
    fn each_refusal_has_its_reason() {
        let yesterday = TODAY.yesterday().unwrap();
        let other = SequenceServer { name: "mysql:b".to_owned(), ..server() };
        let range = |request, row| NumberRange::of(&request, &server(), row);
        assert_eq!(range(request(TODAY, 0, 1, 9), row(TODAY, 41)), Ok(NumberRange { first: 41, count: 9 }));
        assert_eq!(
            range(request(TODAY, 0, 1, 9), row(yesterday, 41)),
            Ok(NumberRange { first: 0, count: 9 })
        );
        assert_eq!(
            NumberRange::of(&request(TODAY, 0, 1, 9), &other, row(TODAY, 41)),
            Err(RangeRefusal::ServerChanged { found: "mysql:b".to_owned() })
        );
        assert_eq!(range(request(TODAY, 0, 1, 9), None), Err(RangeRefusal::Missing));
        assert_eq!(
            range(request(yesterday, 0, 1, 9), row(TODAY, 41)),
            Err(RangeRefusal::Overtaken { by: TODAY })
        );
        assert_eq!(range(request(TODAY, 42, 1, 9), row(TODAY, 41)), Err(RangeRefusal::Lagging { next: 41 }));
        assert_eq!(
            range(request(TODAY, 1, 1, 9), row(yesterday, 41)),
            Err(RangeRefusal::Lagging { next: 0 }),
            "a table of yesterday"
        );
        for (days, is_right) in [(-10, false), (-9, true), (2, true), (3, false)] {
            let date = TODAY.checked_add(days.days()).unwrap();
            let leased = range(request(date, 0, 1, 9), row(jiff::civil::date(1000, 1, 1), 0));
            assert_eq!(leased.is_ok(), is_right, "{days} {leased:?}");
        }
    }

    #[test]
    fn the_last_numbers_are_leased_and_none_behind_them() {
        let range = |next, least, wanted| {
            NumberRange::of(&request(TODAY, 0, least, wanted), &server(), row(TODAY, next))
        };
        assert_eq!(range(99_999_990, 10, 1_000), Ok(NumberRange { first: 99_999_990, count: 10 }));
        assert_eq!(range(99_999_990, 11, 1_000), Err(RangeRefusal::Exhausted { next: 99_999_990 }));
        assert_eq!(range(SEQUENCES, 1, 1), Err(RangeRefusal::Exhausted { next: SEQUENCES }));
        assert_eq!(range(0, 1, u32::MAX), Ok(NumberRange { first: 0, count: SEQUENCES }));
    }

    proptest! {
        /// Whatever clocks and processes do to one ring, no number of a day is allotted twice.
        #[test]
        fn no_number_is_leased_twice(
            asked in proptest::collection::vec((-12_i32..4, 1_u32..50, 0_i32..3), 1..200)
        ) {
            let mut rows = std::collections::BTreeMap::new();
            let mut given = std::collections::BTreeSet::new();
            for (days, wanted, later) in asked {
                let today = TODAY.checked_add(later.days()).unwrap();
                let date = today.checked_add(days.days()).unwrap();
                let request = request(date, 0, 1, wanted);
                let slot = request.counter.slot();
                let found = rows.get(&slot).copied().or(row(jiff::civil::date(1000, 1, 1), 0));
                if let Ok(range) = NumberRange::of(&request, &SequenceServer { today, ..server() }, found) {
                    rows.insert(slot, CounterRow { date, next: range.end() });
                    for number in range.first..range.end() {
                        prop_assert!(given.insert((date, number)), "{date} {number}");
                    }
                }
            }
        }
    }
}
