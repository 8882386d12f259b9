//! An invertible Bloom lookup table: elements that are added on one side and subtracted on the other cancel out, and
//! the remaining ones can be listed, whatever the order in which the rows came.
//!
//! Each element lies in [`HASHES`] cells, one in each part of the table. A cell holds the sums of counts, checks and
//! words. They are added, never XORed, so that the same change in two rows does not cancel. A cell with a single
//! element gives it back; removing it from its other cells may leave further ones single. With three hashes this lists
//! everything up to 0.81 differences a cell (measured; theory: Goodrich and Mitzenmacher 2011, 0.818); beyond that
//! [`Sketch::list`] returns `None`. An element must not be twice on one side: a double is never single.
//!
//! `sketch/element.rs` turns derived rows into elements.

mod element;

use xxhash_rust::xxh3::xxh3_64_with_seed;

pub use self::element::{ElementShape, Elements, RowKey, are_of_one_row, assemble, order, sum_place};

const HASHES: usize = 3;
/// Differences a cell, in hundredths: a margin below the threshold of 0.81.
#[cfg(test)]
const LOAD_PERCENT: usize = 75;
/// The two words of every cell in front of the element's words: how many elements, and the sum of their checks.
const COUNT: usize = 0;
const CHECK: usize = 1;
const HEAD: usize = 2;
const PRIME: u64 = 0x9E37_79B9_7F4A_7C15;

/// The lookup table of the module's head.
#[derive(Debug)]
pub struct Sketch {
    /// Number of words of an element.
    words: usize,
    seed: u64,
    cells_a_part: usize,
    /// `HASHES * cells_a_part` cells, each of `HEAD + words`.
    cells: Vec<u64>,
}

/// Elements that only one side has, one after the other, each of `words` words.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Difference {
    words: usize,
    /// Elements that were added and not subtracted, or the other way round.
    elements: Vec<u64>,
    is_added: Vec<bool>,
}

impl Difference {
    pub fn element(&self, number: usize) -> &[u64] {
        &self.elements[number * self.words..][..self.words]
    }

    /// Returns every element and whether it was added.
    pub fn iter(&self) -> impl Iterator<Item = (&[u64], bool)> {
        self.elements.chunks_exact(self.words.max(1)).zip(self.is_added.iter().copied())
    }

    pub fn len(&self) -> usize {
        self.is_added.len()
    }
}

impl Sketch {
    /// Returns an empty table for elements of `words` words, in at most `bytes` bytes. Below a few thousand cells two
    /// elements may by chance share all of theirs, and are not listed then.
    pub fn within(bytes: usize, words: usize, seed: u64) -> Self {
        let cells_a_part = (bytes / Self::cell_bytes(words) / HASHES).max(1);
        Self { words, seed, cells_a_part, cells: vec![0; HASHES * cells_a_part * (HEAD + words)] }
    }

    fn cell_bytes(words: usize) -> usize {
        (HEAD + words) * size_of::<u64>()
    }

    /// Returns the bytes with which so many differences are certainly listed.
    #[cfg(test)]
    fn bytes_for(differences: usize, words: usize) -> usize {
        differences.saturating_mul(100).div_ceil(LOAD_PERCENT).saturating_mul(Self::cell_bytes(words))
    }

    pub fn add(&mut self, element: &[u64]) {
        let check = self.check(element);
        self.put(element, check, 1);
    }

    pub fn subtract(&mut self, element: &[u64]) {
        let check = self.check(element);
        self.put(element, check, u64::MAX);
    }

    /// Returns an element's check; its seed differs from that of the fingerprint in the words, so it tells chance sums
    /// apart.
    fn check(&self, element: &[u64]) -> u64 {
        let mut bytes = [0; 64];
        let mut hash = self.seed;
        for words in element.chunks(bytes.len() / size_of::<u64>()) {
            for (place, word) in bytes.chunks_exact_mut(size_of::<u64>()).zip(words) {
                place.copy_from_slice(&word.to_le_bytes());
            }
            hash = xxh3_64_with_seed(&bytes[..size_of_val(words)], hash);
        }
        hash
    }

    /// Returns the indexes in `cells` where the cells of an element begin: one in each part.
    fn places(&self, check: u64) -> [usize; HASHES] {
        let mut hash = check;
        std::array::from_fn(|part| {
            hash = (hash ^ (hash >> 32)).wrapping_mul(PRIME);
            let cell = ((u128::from(hash) * self.cells_a_part as u128) >> 64) as usize;
            (part * self.cells_a_part + cell) * (HEAD + self.words)
        })
    }

    /// Adds `sign` (1 or −1) times the element.
    fn put(&mut self, element: &[u64], check: u64, sign: u64) {
        for place in self.places(check) {
            let cell = &mut self.cells[place..place + HEAD + self.words];
            cell[COUNT] = cell[COUNT].wrapping_add(sign);
            cell[CHECK] = cell[CHECK].wrapping_add(check.wrapping_mul(sign));
            for (sum, word) in cell[HEAD..].iter_mut().zip(element) {
                *sum = sum.wrapping_add(word.wrapping_mul(sign));
            }
        }
    }

    /// Consumes the table and lists the remaining elements; `None` when there are more than it can list.
    pub fn list(mut self) -> Option<Difference> {
        let stride = HEAD + self.words;
        let mut found = Difference { words: self.words, ..Difference::default() };
        let mut pending: Vec<usize> = (0..self.cells.len()).step_by(stride).collect();
        let mut element = vec![0; self.words];
        while let Some(place) = pending.pop() {
            let Some((check, sign)) = self.single(place, &mut element) else { continue };
            found.elements.extend_from_slice(&element);
            found.is_added.push(sign == 1);
            self.put(&element, check, sign.wrapping_neg());
            pending.extend(self.places(check).into_iter().filter(|other| *other != place));
        }
        self.cells.iter().all(|word| *word == 0).then_some(found)
    }

    /// Returns the check and sign of the only element of a cell and writes it to `element`; `None` for any other cell.
    fn single(&self, place: usize, element: &mut [u64]) -> Option<(u64, u64)> {
        let cell = &self.cells[place..place + HEAD + self.words];
        let sign = cell[COUNT];
        if sign != 1 && sign != u64::MAX {
            return None;
        }
        for (word, sum) in element.iter_mut().zip(&cell[HEAD..]) {
            *word = sum.wrapping_mul(sign);
        }
        let check = cell[CHECK].wrapping_mul(sign);
        (self.check(element) == check && self.places(check).contains(&place)).then_some((check, sign))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const WORDS: usize = 3;

    fn element(number: u64) -> [u64; WORDS] {
        [number, number.wrapping_mul(PRIME), !number]
    }

    fn numbers(found: &Difference, added: bool) -> BTreeSet<u64> {
        found.iter().filter(|(_, is_added)| *is_added == added).map(|(words, _)| words[0]).collect()
    }

    #[test]
    fn everything_is_listed_up_to_the_load_that_is_promised_and_nothing_is_invented_beyond() {
        for (seed, differences) in [(1, 1_000), (2, 10_000), (3, 50_000)] {
            let mut sketch = Sketch::within(Sketch::bytes_for(differences, WORDS), WORDS, seed);
            (0..differences as u64).for_each(|number| match number % 2 {
                0 => sketch.add(&element(number)),
                _ => sketch.subtract(&element(number)),
            });
            assert_eq!(sketch.list().map(|found| found.len()), Some(differences), "seed {seed}");
            let mut crowded = Sketch::within(Sketch::bytes_for(differences, WORDS) * 2 / 3, WORDS, seed);
            (0..differences as u64).for_each(|number| crowded.add(&element(number)));
            assert_eq!(crowded.list(), None, "seed {seed}");
        }
    }

    #[test]
    fn a_double_is_never_single() {
        let mut sketch = Sketch::within(10_000, WORDS, 1);
        (0..2).for_each(|_| sketch.add(&element(7)));
        assert_eq!(sketch.list(), None);
    }

    #[test]
    fn what_is_changed_in_the_same_way_does_not_cancel() {
        // Two users swap their birthdays: with XOR of linear hashes as checks nothing would remain.
        let mut sketch = Sketch::within(10_000, WORDS, 1);
        let row = |user: u64, day: u64| [user, day, 0];
        [row(1, 100), row(2, 200)].iter().for_each(|row| sketch.add(row));
        [row(1, 200), row(2, 100)].iter().for_each(|row| sketch.subtract(row));
        assert_eq!(sketch.list().map(|found| found.len()), Some(4));
    }

    proptest! {
        #[test]
        fn the_two_sides_are_told_apart_in_any_order(
            source in prop::collection::btree_set(0..500u64, 0..200),
            derived in prop::collection::btree_set(0..500u64, 0..200),
            seed in any::<u64>(),
        ) {
            let mut sketch = Sketch::within(Sketch::bytes_for(20_000, WORDS), WORDS, seed);
            derived.iter().for_each(|number| sketch.subtract(&element(*number)));
            source.iter().rev().for_each(|number| sketch.add(&element(*number)));
            let found = sketch.list().expect("below its load");
            prop_assert_eq!(numbers(&found, true), &source - &derived);
            prop_assert_eq!(numbers(&found, false), &derived - &source);
        }
    }
}
