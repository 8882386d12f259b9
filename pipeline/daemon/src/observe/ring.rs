//! Rates and lags of sources and lanes over the last hours, in bounded memory.
//!
//! Time is cut into slots of equal length, and each thing has one sample a slot: the mean of its rates and the highest
//! of its lags. A slot in which a value was not known has none, which is not 0. All things have equally many samples;
//! one that came later has none for the time before.
//!
//! A sample is 8 bytes, and a thing besides that at most [`THING_BYTES`] and its name. Six hours are 2,160 samples of
//! 10 s, so about 570 things fit into 10 MB. For more things the slots become twice as long, and old samples are merged
//! in pairs. 5,000 lanes have slots of 160 s: 5,000 × (135 × 8 + about 220) bytes are less than 7 MB. Things that do
//! not fit even with the longest slots are left out.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use serde::{Serialize, Serializer};

/// Bytes of the ring, at most.
const BYTES_MAX: usize = 10_000_000;
/// Time that the ring spans.
const SPAN_SECONDS: u64 = 6 * 3_600;
const STEP_SECONDS: u64 = 10;
/// Longest slot; the span then has 33 of them.
const STEP_SECONDS_MAX: u64 = STEP_SECONDS << 6;
/// Bytes of a thing without samples and name: its entry in a map whose nodes are at least half full, and two heads of
/// the allocator.
const THING_BYTES: usize = 2 * (size_of::<String>() + size_of::<Points>()) + 32;

/// The values of one slot; `NaN` = not known.
#[derive(Debug, Clone, Copy)]
struct Sample {
    rate: f32,
    lag: f32,
}

impl Sample {
    const UNKNOWN: Self = Self { rate: f32::NAN, lag: f32::NAN };

    /// Returns the sample of two slots that become one.
    fn merge(self, other: Self) -> Self {
        let rate = match (self.rate.is_nan(), other.rate.is_nan()) {
            (true, _) => other.rate,
            (_, true) => self.rate,
            (false, false) => f32::midpoint(self.rate, other.rate),
        };
        // The maximum of a number and `NaN` is the number.
        Self { rate, lag: self.lag.max(other.lag) }
    }
}

/// The values of the slot that is not over.
#[derive(Debug, Clone, Copy)]
struct OpenSlot {
    rate_sum: f64,
    rates: u32,
    /// The highest lag; `NaN` = not known.
    lag: f32,
}

impl OpenSlot {
    const EMPTY: Self = Self { rate_sum: 0.0, rates: 0, lag: f32::NAN };

    fn add(&mut self, rate: Option<f64>, lag: Option<f64>) {
        if let Some(rate) = rate {
            self.rate_sum += rate;
            self.rates += 1;
        }
        self.lag = self.lag.max(lag.map_or(f32::NAN, |lag| lag as f32));
    }

    /// Takes in a closed slot that belongs to this one now that slots are longer.
    fn extend(&mut self, Sample { rate, lag }: Sample, seconds: u32) {
        if !rate.is_nan() {
            self.rate_sum += f64::from(rate) * f64::from(seconds);
            self.rates += seconds;
        }
        self.lag = self.lag.max(lag);
    }

    fn sample(self) -> Sample {
        let rate = if self.rates == 0 { f32::NAN } else { (self.rate_sum / f64::from(self.rates)) as f32 };
        Sample { rate, lag: self.lag }
    }
}

/// The samples of one thing.
#[derive(Debug)]
struct Points {
    closed: VecDeque<Sample>,
    open: OpenSlot,
}

impl Points {
    /// Returns the points of a thing that was not known in the closed slots.
    fn unknown(closed: usize, samples_max: usize) -> Self {
        let mut points = Self { closed: VecDeque::with_capacity(samples_max), open: OpenSlot::EMPTY };
        points.closed.extend(std::iter::repeat_n(Sample::UNKNOWN, closed));
        points
    }

    fn push(&mut self, sample: Sample, samples_max: usize) {
        if self.closed.len() >= samples_max {
            self.closed.pop_front();
        }
        self.closed.push_back(sample);
    }
}

/// The ring, see the module.
#[derive(Debug)]
pub(super) struct Ring {
    /// Begin of the first slot; `None` before the first record.
    began: Option<Instant>,
    step_seconds: u64,
    /// Number of slots that are over, whether kept or not.
    closed: u64,
    things: BTreeMap<String, Points>,
    name_bytes: usize,
}

impl Default for Ring {
    fn default() -> Self {
        let (step_seconds, things) = (STEP_SECONDS, BTreeMap::new());
        Self { began: None, step_seconds, closed: 0, things, name_bytes: 0 }
    }
}

/// Returns the bytes of a ring of so many things, with so many samples each and so many bytes of names.
fn bytes(things: usize, samples: usize, name_bytes: usize) -> usize {
    things * (THING_BYTES + samples * size_of::<Sample>()) + name_bytes
}

impl Ring {
    /// Records name, rate and lag of each thing at `now`.
    pub(super) fn record(
        &mut self,
        values: impl IntoIterator<Item = (String, Option<f64>, Option<f64>)>,
        now: Instant,
    ) {
        let began = *self.began.get_or_insert(now);
        self.close_until(now.saturating_duration_since(began).as_secs() / self.step_seconds);
        for (thing, rate, lag) in values {
            if !self.things.contains_key(&thing) && !self.admit(&thing) {
                continue;
            }
            let (kept, samples_max) = (self.kept(), self.samples_max());
            let points = self.things.entry(thing).or_insert_with(|| Points::unknown(kept, samples_max));
            points.open.add(rate, lag);
        }
    }

    /// Length of a slot.
    pub(super) fn step_seconds(&self) -> u64 {
        self.step_seconds
    }

    /// Number of slots that are over.
    pub(super) fn closed(&self) -> u64 {
        self.closed
    }

    /// Returns the time from the end of the newest sample to `now`.
    pub(super) fn age(&self, now: Instant) -> Duration {
        let Some(began) = self.began else { return Duration::ZERO };
        now.saturating_duration_since(began + Duration::from_secs(self.closed * self.step_seconds))
    }

    /// Returns the series of a thing.
    pub(super) fn series(&self, thing: &str) -> Option<Series<'_>> {
        let (thing, points) = self.things.get_key_value(thing)?;
        Some(Series::of(thing, points))
    }

    /// Returns the series of all things.
    pub(super) fn all_series(&self) -> impl Iterator<Item = Series<'_>> {
        self.things.iter().map(|(thing, points)| Series::of(thing, points))
    }

    fn samples_max(&self) -> usize {
        (SPAN_SECONDS / self.step_seconds) as usize
    }

    /// Returns the number of samples of each thing.
    fn kept(&self) -> usize {
        self.samples_max().min(usize::try_from(self.closed).unwrap_or(usize::MAX))
    }

    /// Makes room for one more thing; returns whether there is any.
    fn admit(&mut self, thing: &str) -> bool {
        let name_bytes = self.name_bytes + thing.len();
        while bytes(self.things.len() + 1, self.samples_max(), name_bytes) > BYTES_MAX {
            if self.step_seconds >= STEP_SECONDS_MAX {
                return false;
            }
            self.double();
        }
        self.name_bytes = name_bytes;
        true
    }

    /// Ends the slots before `slot`, the open one with its values and the others without.
    fn close_until(&mut self, slot: u64) {
        if slot <= self.closed {
            return;
        }
        let samples_max = self.samples_max();
        // More missing samples than the ring holds leave nothing of the time before.
        let missing = (slot - self.closed - 1).min(samples_max as u64);
        for points in self.things.values_mut() {
            let open = std::mem::replace(&mut points.open, OpenSlot::EMPTY);
            points.push(open.sample(), samples_max);
            (0..missing).for_each(|_| points.push(Sample::UNKNOWN, samples_max));
        }
        self.closed = slot;
    }

    /// Makes slots twice as long. A new slot is a slot of even number and the one after it.
    fn double(&mut self) {
        let seconds = u32::try_from(self.step_seconds).unwrap_or(u32::MAX);
        let (kept, is_cut) = (self.kept() as u64, !self.closed.is_multiple_of(2));
        let first = self.closed - kept;
        self.step_seconds *= 2;
        self.closed /= 2;
        let (kept, samples_max) = (self.kept(), self.samples_max());
        for points in self.things.values_mut() {
            let mut old = std::mem::take(&mut points.closed);
            // The newest closed slot is the first half of the open one.
            if is_cut && let Some(half) = old.pop_back() {
                points.open.extend(half, seconds);
            }
            let mut merged = VecDeque::with_capacity(samples_max + 1);
            // The oldest slot is a second half when its number is odd.
            let alone = if first.is_multiple_of(2) { None } else { old.pop_front() };
            merged.extend(alone);
            let mut rest = old.into_iter();
            while let Some(one) = rest.next() {
                merged.push_back(rest.next().map_or(one, |other| one.merge(other)));
            }
            merged.drain(..merged.len().saturating_sub(kept));
            points.closed = merged;
        }
    }
}

/// The samples of one thing as they are shown, the oldest first.
#[derive(Debug, Serialize)]
pub(super) struct Series<'r> {
    thing: &'r str,
    #[serde(serialize_with = "rates")]
    rate: &'r VecDeque<Sample>,
    #[serde(serialize_with = "lags")]
    lag: &'r VecDeque<Sample>,
}

impl<'r> Series<'r> {
    fn of(thing: &'r str, points: &'r Points) -> Self {
        Self { thing, rate: &points.closed, lag: &points.closed }
    }
}

fn rates<S: Serializer>(samples: &VecDeque<Sample>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(samples.iter().map(|sample| shown(sample.rate)))
}

fn lags<S: Serializer>(samples: &VecDeque<Sample>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(samples.iter().map(|sample| shown(sample.lag)))
}

/// Returns a value as a chart needs it: whole above 100, else with two digits after the point.
fn shown(value: f32) -> Option<f64> {
    let value = f64::from(value);
    let factor = if value.abs() < 100.0 { 100.0 } else { 1.0 };
    value.is_finite().then(|| (value * factor).round() / factor)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A ring that is fed with seconds since its begin.
    struct Fed {
        ring: Ring,
        start: Instant,
    }

    impl Fed {
        fn new() -> Self {
            Self { ring: Ring::default(), start: Instant::now() }
        }

        fn record(&mut self, second: u64, values: &[(&str, Option<f64>, Option<f64>)]) {
            let values = values.iter().map(|(thing, rate, lag)| ((*thing).to_owned(), *rate, *lag));
            self.ring.record(values, self.start + Duration::from_secs(second));
        }

        fn shown(&self, thing: &str) -> Value {
            serde_json::to_value(self.ring.series(thing).unwrap()).unwrap()
        }

        /// The bytes by the function, and by the capacities that the collections have.
        fn sizes(&self) -> (usize, usize) {
            let Ring { things, name_bytes, .. } = &self.ring;
            let held = things.values().map(|points| points.closed.capacity() * size_of::<Sample>());
            let names: usize = things.keys().map(String::capacity).sum();
            let reckoned = bytes(things.len(), self.ring.samples_max(), *name_bytes);
            (reckoned, things.len() * THING_BYTES + held.sum::<usize>() + names)
        }
    }

    #[test]
    fn a_slot_has_the_mean_of_its_rates_and_the_highest_lag_and_what_is_unknown_is_null() {
        let mut fed = Fed::new();
        fed.record(0, &[("a", Some(10.0), Some(0.5))]);
        fed.record(5, &[("a", Some(30.0), Some(0.125))]);
        fed.record(9, &[("a", None, None)]);
        assert_eq!(fed.shown("a"), json!({"thing": "a", "rate": [], "lag": []}), "no slot is over");
        fed.record(10, &[("a", None, Some(2000.4))]);
        fed.record(20, &[("a", Some(0.0), None), ("b", Some(1.0), Some(1.0))]);
        assert_eq!(fed.shown("a"), json!({"thing": "a", "rate": [20.0, null], "lag": [0.5, 2000.0]}));
        assert_eq!(fed.shown("b"), json!({"thing": "b", "rate": [null, null], "lag": [null, null]}));
        assert_eq!(fed.ring.age(fed.start + Duration::from_secs(27)), Duration::from_secs(7));
        fed.record(30, &[]);
        assert_eq!(fed.shown("a")["rate"], json!([20.0, null, 0.0]));
        assert_eq!(fed.shown("b")["lag"], json!([null, null, 1.0]));
        assert!(fed.ring.series("c").is_none());
    }

    #[test]
    fn a_gap_is_null_and_the_ring_keeps_its_span() {
        let mut fed = Fed::new();
        fed.record(0, &[("a", Some(1.0), Some(1.0))]);
        fed.record(45, &[("a", Some(2.0), Some(2.0))]);
        fed.record(50, &[("a", Some(3.0), Some(3.0))]);
        assert_eq!(fed.shown("a")["rate"], json!([1.0, null, null, null, 2.0]));
        for slot in 6..3_000 {
            fed.record(slot * 10, &[("a", Some(slot as f64), None)]);
        }
        let shown = fed.shown("a");
        let rates = shown["rate"].as_array().unwrap();
        assert_eq!((rates.len(), &rates[0], &rates[2_159]), (2_160, &json!(839.0), &json!(2_998.0)));
        fed.record(10_000_000, &[("a", Some(1.0), None)]);
        let shown = fed.shown("a");
        assert_eq!(shown["rate"], Value::from(vec![Value::Null; 2_160]), "nothing is left of before");
    }

    #[test]
    fn longer_slots_merge_old_samples_in_pairs() {
        let mut fed = Fed::new();
        for (slot, rate, lag) in
            [(0, Some(1.0), Some(9.0)), (1, Some(3.0), None), (2, None, None), (3, Some(5.0), Some(1.0))]
        {
            fed.record(slot * 10, &[("a", rate, lag)]);
        }
        // The slots of 0 to 20 s are over, and the one from 20 s is the first half of an open one.
        fed.ring.double();
        assert_eq!((fed.ring.step_seconds(), fed.ring.closed()), (20, 1));
        assert_eq!(fed.shown("a"), json!({"thing": "a", "rate": [2.0], "lag": [9.0]}));
        fed.record(40, &[("a", Some(7.0), Some(7.0))]);
        assert_eq!(fed.shown("a"), json!({"thing": "a", "rate": [2.0, 5.0], "lag": [9.0, 1.0]}));
        fed.record(60, &[]);
        fed.ring.double();
        assert_eq!(fed.shown("a"), json!({"thing": "a", "rate": [3.5], "lag": [9.0]}));
        fed.record(80, &[]);
        assert_eq!(fed.shown("a"), json!({"thing": "a", "rate": [3.5, 7.0], "lag": [9.0, 7.0]}));
    }

    #[test]
    fn a_full_ring_keeps_equal_lengths_when_slots_become_longer() {
        for slots in [2_161, 2_162, 5_000, 5_001] {
            let mut fed = Fed::new();
            for slot in 0..slots {
                fed.record(slot * 10, &[("a", Some(1.0), None)]);
            }
            fed.record(slots * 10, &[("b", Some(1.0), None)]);
            fed.ring.double();
            let lengths: Vec<usize> = fed.ring.things.values().map(|points| points.closed.len()).collect();
            assert_eq!(lengths, [1_080, 1_080], "{slots}");
            fed.record(slots * 10 + 20, &[]);
            let all = serde_json::to_value(fed.ring.all_series().collect::<Vec<_>>()).unwrap();
            for one in all.as_array().unwrap() {
                assert_eq!(one["rate"].as_array().map(Vec::len), Some(1_080), "{slots}");
                assert_eq!(one["lag"].as_array().map(Vec::len), Some(1_080), "{slots}");
            }
        }
    }

    #[test]
    fn five_thousand_lanes_fit_into_ten_megabytes_with_longer_slots() {
        let names: Vec<String> =
            (0..5_000).map(|lane| format!("lane/birthday/target-{}/source-{lane:04}/0", lane % 7)).collect();
        let all: Vec<_> = names.iter().map(|name| (name.as_str(), Some(1.0), Some(1.0))).collect();
        let mut fed = Fed::new();
        fed.record(0, &all[..500]);
        assert_eq!(fed.ring.step_seconds(), STEP_SECONDS);
        fed.record(10, &all[..500]);
        fed.record(20, &all);
        for second in (30..2_000).step_by(10) {
            fed.record(second, &all);
        }
        assert_eq!((fed.ring.things.len(), fed.ring.step_seconds()), (5_000, 160));
        let (reckoned, held) = fed.sizes();
        assert!(reckoned < BYTES_MAX && held <= reckoned + reckoned / 10, "{reckoned} {held}");
        let lengths: Vec<usize> = fed.ring.things.values().map(|points| points.closed.len()).collect();
        assert_eq!(lengths, [12; 5_000]);
    }

    #[test]
    fn what_does_not_fit_with_the_longest_slots_is_left_out() {
        let mut fed = Fed::new();
        let name = |number: u32| format!("{number:04000}");
        let values = (0..3_000).map(|number| (name(number), Some(1.0), Some(1.0)));
        fed.ring.record(values, fed.start);
        assert_eq!(fed.ring.step_seconds(), STEP_SECONDS_MAX);
        let (reckoned, _) = fed.sizes();
        assert!(reckoned <= BYTES_MAX && fed.ring.things.len() > 2_000, "{reckoned}");
        assert!(fed.ring.things.len() < 3_000 && fed.ring.series(&name(0)).is_some());
    }
}
