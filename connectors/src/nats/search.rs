//! Finds a position in a stream by a binary search over sequences: positions never go back.
//!
//! Deleted and damaged messages do no harm: a probe takes the next message that is kept and whole.

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::LogEntry;
use anabranch_schemas::lsn::Lsn;

/// Returns the first whole message whose position is not below `lsn`, if there is one. `probe` yields the first whole
/// message from a sequence on.
pub(super) async fn first_at<E>(
    lsn: Lsn,
    first: u64,
    last: u64,
    probe: &impl Fn(u64) -> E,
) -> Result<Option<LogEntry>, Fault>
where
    E: Future<Output = Result<Option<LogEntry>, Fault>>,
{
    let (mut low, mut high) = (first, last + 1);
    let mut found = None;
    while low < high {
        let middle = low + (high - low) / 2;
        match probe(middle).await? {
            Some(entry) if entry.envelope.position < lsn => low = entry.sequence + 1,
            Some(entry) => (high, found) = (middle, Some(entry)),
            None => high = middle,
        }
    }
    Ok(found)
}

/// Returns the first message that can hold a change at `lsn` or later; `last + 1` when there is none. Parts of an event
/// that spreads over several messages carry the position before it, so the search continues to the first message with
/// that position.
pub(super) async fn first_with<E>(
    lsn: Lsn,
    first: u64,
    last: u64,
    probe: &impl Fn(u64) -> E,
) -> Result<u64, Fault>
where
    E: Future<Output = Result<Option<LogEntry>, Fault>>,
{
    let Some(entry) = first_at(lsn, first, last, probe).await? else { return Ok(last + 1) };
    let part = first_at(entry.envelope.previous, first, entry.sequence, probe).await?;
    Ok(part.map_or(entry.sequence, |part| part.sequence))
}

#[cfg(test)]
mod tests {
    use anabranch_schemas::envelope::Envelope;

    use super::*;

    fn at(position: u64) -> Lsn {
        Lsn::new(1, 1, position * 16).unwrap()
    }

    /// Probes sequences 5 to 10, of which one may be deleted. The event at 40 spreads over 7, 8 and 9: the first two
    /// parts carry the position before it.
    async fn probe(deleted: u64, sequence: u64) -> Result<Option<LogEntry>, Fault> {
        let positions = [10, 20, 30, 30, 40, 50];
        let sequence = if sequence == deleted { sequence + 1 } else { sequence.max(5) };
        let place = (sequence - 5) as usize;
        Ok(positions.get(place).map(|position| {
            let previous = if place == 0 { Lsn::ZERO } else { at(positions[place - 1]) };
            let envelope = Envelope { previous, position: at(*position), ..Envelope::default() };
            LogEntry { sequence, id: format!("a-{sequence}"), envelope }
        }))
    }

    #[tokio::test]
    async fn a_position_is_found_in_the_first_message_that_can_hold_it() {
        // A message's changes lie above the position before it, up to its own; parts belong to the next position.
        for (position, expected) in [(1, 5), (10, 5), (11, 5), (20, 5), (40, 7), (35, 7), (50, 9), (51, 11)] {
            let found = first_with(at(position), 5, 10, &|sequence| probe(0, sequence)).await.unwrap();
            assert_eq!(found, expected, "from {position}");
        }
    }

    #[tokio::test]
    async fn what_follows_a_position_begins_at_the_first_message_that_reaches_it() {
        for deleted in [0, 6, 8, 9] {
            for (position, expected) in [(0, 5), (10, 5), (30, 7), (50, 10), (51, 11)] {
                let found =
                    first_at(at(position), 5, 10, &|sequence| probe(deleted, sequence)).await.unwrap();
                let expected = if expected == deleted { expected + 1 } else { expected };
                let found = found.map_or(11, |entry| entry.sequence);
                assert_eq!(found, expected, "from {position} without {deleted}");
            }
        }
    }
}
