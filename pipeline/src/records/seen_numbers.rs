//! The highest numbers of payment documents in the rows that a reader meets, by counter.
//!
//! Only identifiers that this installation could have made count: those of its region and system code, with a date near
//! the commit of their row. Others belong to other counters, or to days that lease nothing more.

use std::collections::HashMap;

use anabranch_schemas::change::{TableIdentity, Value};
use anabranch_schemas::flux::counter::Counter;
use anabranch_schemas::flux::id::{FluxId, Region};
use anabranch_schemas::serial;
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Days of an identifier's date before and after the commit of its row, at most. Orders may name a day of the last week
/// or tomorrow, and time zones and clocks differ.
const DAYS_BEFORE: i32 = 9;
const DAYS_AFTER: i32 = 2;
/// Counters at once, at most: 200 for each day that an order may name, and room for odd dates.
const COUNTERS_MAX: usize = 10_000;

/// The numbers that one reader met since they were taken last.
#[derive(Debug)]
pub struct SeenNumbers {
    region: Region,
    system: u16,
    /// The number after the highest one, by counter.
    next: HashMap<Counter, u32, foldhash::fast::RandomState>,
}

impl SeenNumbers {
    pub fn new(region: Region, system: u16) -> Self {
        Self { region, system, next: HashMap::default() }
    }

    /// Notes the identifier of a new row, if it has one.
    pub fn add(&mut self, table: &TableIdentity<'_>, after: &[Value<'_>]) {
        if !table.entity.has_numbered_keys() {
            return;
        }
        let Some(text) = after.first().and_then(serial::text) else { return };
        let Ok(id) = FluxId::parse_of(&text, self.system) else { return };
        let parts = id.parts();
        if parts.region != self.region {
            return;
        }
        let (counter, next) = (Counter::of(&id), parts.sequence + 1);
        let has_room = self.next.len() < COUNTERS_MAX;
        match self.next.get_mut(&counter) {
            Some(known) => *known = next.max(*known),
            None if has_room => _ = self.next.insert(counter, next),
            None => {}
        }
    }

    /// Takes the numbers of days near a commit, and forgets all others. Without a known commit it takes none yet.
    pub fn take_near(&mut self, committed_at_us: u64) -> Vec<(Counter, u32)> {
        let commit = i64::try_from(committed_at_us).ok().filter(|at| *at > 0);
        let Some(commit) = commit.and_then(|at| Timestamp::from_microsecond(at).ok()) else {
            return Vec::new();
        };
        let day = commit.to_zoned(TimeZone::UTC).date();
        let is_near = |counter: &Counter| {
            let days = day.until(counter.date).map_or(i32::MAX, |span| span.get_days());
            (-DAYS_BEFORE..=DAYS_AFTER).contains(&days)
        };
        self.next.drain().filter(|(counter, _)| is_near(counter)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use anabranch_schemas::change::Entity;
    use anabranch_schemas::flux::id::SYSTEM;
    use anabranch_schemas::shard::ShardId;
    use jiff::civil::date;

    use super::*;

    fn table(entity: Entity) -> TableIdentity<'static> {
        let shard = ShardId::of("s", "d", "t", 0);
        TableIdentity { entity, shard, database: Cow::Borrowed("d"), table: Cow::Borrowed("t") }
    }

    fn seen(rows: &[&'static str], committed: jiff::civil::Date) -> Vec<(String, u32)> {
        let mut seen = SeenNumbers::new(Region::Singapore, SYSTEM);
        for row in rows {
            seen.add(&table(Entity::Flux), &[Value::Bytes(row.as_bytes().into()), Value::Null]);
        }
        assert!(seen.take_near(0).is_empty(), "the commit is not known yet");
        let at = committed.to_zoned(TimeZone::UTC).unwrap().timestamp().as_microsecond();
        let mut taken: Vec<_> = seen
            .take_near(u64::try_from(at).unwrap())
            .into_iter()
            .map(|(counter, next)| (counter.to_string(), next))
            .collect();
        taken.sort();
        assert!(seen.take_near(u64::try_from(at).unwrap()).is_empty(), "they were taken");
        taken
    }

    #[test]
    fn the_highest_number_of_each_counter_is_taken_once() {
        let rows = [
            "2016060611031003005052400000007",
            "2016060611031003005052400029904",
            "2016060611031003005052400000009",
            "2016060611031003105052400000003",
            "2016060711031003005052400000001",
        ];
        let expected = [
            ("2016-06-06, region 1, fail-over, partition 05".to_owned(), 4),
            ("2016-06-06, region 1, main, partition 05".to_owned(), 29_905),
            ("2016-06-07, region 1, main, partition 05".to_owned(), 2),
        ];
        assert_eq!(seen(&rows, date(2016, 6, 6)), expected);
    }

    #[test]
    fn identifiers_of_others_and_of_far_days_raise_no_counter() {
        let rows = [
            // Region, system code, form, and a date of another year.
            "2016060610031003005052400029904",
            "2016060611032003005052400029904",
            "201606061103100300505240002990x",
            "",
            "2017060611031003005052400029904",
        ];
        assert!(seen(&rows, date(2016, 6, 6)).is_empty());
        for (committed, counters) in
            [((2016, 6, 15), 1), ((2016, 6, 16), 0), ((2016, 6, 4), 1), ((2016, 6, 3), 0)]
        {
            let committed = date(committed.0, committed.1, committed.2);
            let found = seen(&["2016060611031003005052400029904"], committed);
            assert_eq!(found.len(), counters, "{committed}");
        }
        let mut users = SeenNumbers::new(Region::Singapore, SYSTEM);
        users
            .add(&table(Entity::User), &[Value::Bytes(b"2016060611031003005052400029904".as_slice().into())]);
        assert!(users.next.is_empty());
    }
}
