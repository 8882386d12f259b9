//! Decides whether both whole images of an update are equal in the cells that count, without a visit of single cells.
//!
//! Neighbouring cells that count form a run, and so do the cells between them. The walk goes from run to run and
//! compares the runs that count as bytes. Two images hold the same values if the same compared cells are NULL and the
//! compared runs have the same bytes, since the bytes of a run say where each of its cells ends.

use super::column::Step;

/// The cells of a row, grouped into runs.
#[derive(Debug, Clone)]
pub struct Runs {
    runs: Vec<Run>,
    steps: Vec<Step>,
    /// Bits of the cells that count, laid out like the NULL bits of an image.
    counted: Vec<u8>,
    /// Bits of all cells. A server sets the bits after the last one too.
    present: Vec<u8>,
}

#[derive(Debug, Clone)]
struct Run {
    counts: bool,
    /// Index of the cell after the last one of the run.
    end: usize,
    /// Steps through the cells of the run when none is NULL.
    hops: Vec<Hop>,
}

/// Bytes of fixed cells, then the length prefix of a cell (0 bytes = none) and its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hop {
    fixed: usize,
    prefix: u8,
}

impl Runs {
    /// Groups cells, given in the order of the columns, each with its step and whether it counts.
    pub fn new(cells: impl Iterator<Item = (Step, bool)>) -> Self {
        let (mut runs, mut steps) = (Vec::<Run>::new(), Vec::new());
        let (mut counted, mut present) = (Vec::new(), Vec::new());
        for (number, (step, counts)) in cells.enumerate() {
            for (bits, is_set) in [(&mut counted, counts), (&mut present, true)] {
                if number % 8 == 0 {
                    bits.push(0);
                }
                if let Some(byte) = bits.last_mut() {
                    *byte |= u8::from(is_set) << (number % 8);
                }
            }
            let end = number + 1;
            match runs.last_mut() {
                Some(run) if run.counts == counts => {
                    run.end = end;
                    run.add(step);
                }
                _ => {
                    let mut run = Run { counts, end, hops: Vec::new() };
                    run.add(step);
                    runs.push(run);
                }
            }
            steps.push(step);
        }
        Self { runs, steps, counted, present }
    }

    /// Returns the bytes of both images at the start of `images` if the cells that count are equal in both. `None` if
    /// they differ or the bytes end too early. `ends` is scratch room.
    #[inline]
    pub fn unchanged(&self, images: &[u8], ends: &mut [Vec<usize>; 2]) -> Option<usize> {
        let [before_ends, after_ends] = ends;
        let after = self.walk(images, 0, before_ends)?;
        let nulls = |start: usize| images.get(start..start + self.counted.len());
        let differ = |((before, after), counted): ((&u8, &u8), &u8)| (before ^ after) & counted != 0;
        if nulls(0)?.iter().zip(nulls(after)?).zip(&self.counted).any(differ) {
            return None;
        }
        let end = self.walk(images, after, after_ends)?;
        let (mut before, mut after) = (self.counted.len(), after + self.counted.len());
        for ((run, before_end), after_end) in self.runs.iter().zip(before_ends).zip(after_ends) {
            if run.counts && images[before..*before_end] != images[after..*after_end] {
                return None;
            }
            (before, after) = (*before_end, *after_end);
        }
        Some(end)
    }

    /// Walks through the image at `start` and returns its end.
    #[inline]
    fn walk(&self, images: &[u8], start: usize, ends: &mut Vec<usize>) -> Option<usize> {
        ends.clear();
        let mut place = start + self.counted.len();
        let nulls = images.get(start..place)?;
        let has_nulls = nulls.iter().zip(&self.present).any(|(nulls, present)| nulls & present != 0);
        let mut cell = 0;
        for run in &self.runs {
            if has_nulls {
                for (number, step) in self.steps.iter().enumerate().take(run.end).skip(cell) {
                    if nulls[number / 8] & (1 << (number % 8)) == 0 {
                        place = Hop::from(*step).end(images, place)?;
                    }
                }
                cell = run.end;
            } else {
                for hop in &run.hops {
                    place = hop.end(images, place)?;
                }
            }
            ends.push(place);
        }
        (place <= images.len()).then_some(place)
    }
}

impl Run {
    /// Adds a cell; a fixed one lengthens the hop before it if that one ends without a content.
    fn add(&mut self, step: Step) {
        let next = Hop::from(step);
        match self.hops.last_mut() {
            Some(last) if last.prefix == 0 => {
                *last = Hop { fixed: last.fixed + next.fixed, prefix: next.prefix };
            }
            _ => self.hops.push(next),
        }
    }
}

impl From<Step> for Hop {
    fn from(step: Step) -> Self {
        match step {
            Step::Fixed(bytes) => Self { fixed: usize::from(bytes), prefix: 0 },
            Step::Prefixed(prefix) => Self { fixed: 0, prefix },
        }
    }
}

impl Hop {
    #[inline]
    fn end(self, images: &[u8], start: usize) -> Option<usize> {
        let place = start + self.fixed;
        match self.prefix {
            0 => Some(place),
            1 => Some(place + 1 + usize::from(*images.get(place)?)),
            bytes => {
                let content = place + usize::from(bytes);
                let length = images.get(place..content)?;
                content.checked_add(usize::try_from(super::wire::little(length)).ok()?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Cells = Vec<Option<Vec<u8>>>;

    fn image(steps: &[Step], cells: &Cells) -> Vec<u8> {
        let mut bytes = vec![0; steps.len().div_ceil(8)];
        // Bits after the last column are set, as servers do it.
        for number in steps.len()..bytes.len() * 8 {
            bytes[number / 8] |= 1 << (number % 8);
        }
        for (number, (step, cell)) in steps.iter().zip(cells).enumerate() {
            match (cell, step) {
                (None, _) => bytes[number / 8] |= 1 << (number % 8),
                (Some(content), Step::Fixed(length)) => bytes.extend(&content[..usize::from(*length)]),
                (Some(content), Step::Prefixed(prefix)) => {
                    bytes.extend(&content.len().to_le_bytes()[..usize::from(*prefix)]);
                    bytes.extend(content);
                }
            }
        }
        bytes
    }

    /// A cell's content is 4 bytes at most, and long enough for each fixed step.
    fn cells(columns: usize) -> impl Strategy<Value = Cells> {
        let content = prop_oneof![
            1 => Just(None),
            6 => prop::collection::vec(0..2u8, 4).prop_map(Some),
        ];
        prop::collection::vec(content, columns)
    }

    fn table() -> impl Strategy<Value = (Vec<(Step, bool)>, Cells, Cells, Vec<bool>)> {
        (1..20usize).prop_flat_map(|columns| {
            let step = prop_oneof![(0..=4u8).prop_map(Step::Fixed), (1..=4u8).prop_map(Step::Prefixed)];
            let columns_of = prop::collection::vec((step, any::<bool>()), columns);
            let changes = prop::collection::vec(prop::bool::weighted(0.2), columns);
            (columns_of, cells(columns), cells(columns), changes)
        })
    }

    proptest! {
        #[test]
        fn images_are_unchanged_when_all_cells_that_count_are_the_same(
            (columns, before, other, changes) in table(), tail in prop::collection::vec(any::<u8>(), 0..9),
        ) {
            let runs = Runs::new(columns.iter().copied());
            let steps: Vec<Step> = columns.iter().map(|(step, _)| *step).collect();
            let after: Cells = (0..steps.len())
                .map(|cell| if changes[cell] { other[cell].clone() } else { before[cell].clone() })
                .collect();
            // Content of a cell in an image: of a fixed one only its own bytes.
            let shown = |cells: &Cells, cell: usize| match (&cells[cell], steps[cell]) {
                (Some(content), Step::Fixed(length)) => Some(content[..usize::from(length)].to_vec()),
                (content, _) => content.clone(),
            };
            let is_same = (0..steps.len())
                .filter(|cell| columns[*cell].1)
                .all(|cell| shown(&before, cell) == shown(&after, cell));
            let mut images = image(&steps, &before);
            images.extend(image(&steps, &after));
            let end = images.len();
            let mut ends = <[Vec<usize>; 2]>::default();
            for cut in 0..end {
                prop_assert!(runs.unchanged(&images[..cut], &mut ends).is_none(), "cut at {cut}");
            }
            images.extend(tail);
            prop_assert_eq!(runs.unchanged(&images, &mut ends), is_same.then_some(end));
        }
    }
}
