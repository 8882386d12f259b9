//! Withdrawals that a lane has passed and still owes: a part of its progress.
//!
//! The commit that passes the DROP or TRUNCATE of a table stores it here. The lane then removes the table's claims
//! below that position in parts, with other changes in between. A table of that name that exists again writes claims
//! with higher versions, so they stay. Claims at the position itself stay too: they come from the statement that
//! replaced the table and filled it, all of whose events have one position. The list has a limit of its own, and no
//! more room than the other words of the progress row leave. A withdrawal that finds no room is carried out in the
//! commit that passes it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::shard::ShardId;

use super::InvalidRefresh;

/// Bytes of the list as text, at most: a quarter of what the progress row has for the text that holds it.
const TEXT_BYTES_MAX: usize = 16 * 1024;
/// A shard in hexadecimal digits, with what separates it.
const SHARD_BYTES: usize = 17;
/// Two positions, with what separates them.
const POSITIONS_BYTES: usize = 54;

/// Positions of the withdrawals of a shard that are owed, of which there may be several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Owed {
    /// No owed withdrawal of the shard is below this position.
    first: Lsn,
    /// Claims below this position are to be removed.
    last: Lsn,
}

impl Owed {
    /// Returns the position up to which claims are to be removed.
    fn up_to(self) -> Lsn {
        Lsn::from_u64(self.last.as_u64().saturating_sub(1)).expect("below an Lsn lie Lsns only")
    }
}

/// The shards of which a lane is still to remove claims.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PendingWithdrawals(BTreeMap<ShardId, Owed>);

impl PendingWithdrawals {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of shards.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn contains(&self, shard: ShardId) -> bool {
        self.0.contains_key(&shard)
    }

    /// Returns the first shard in the list.
    pub fn first(&self) -> Option<ShardId> {
        self.0.keys().next().copied()
    }

    /// Whether a withdrawal at or below this position is owed.
    pub fn are_owed_at(&self, place: Lsn) -> bool {
        self.0.values().any(|owed| owed.first <= place)
    }

    /// Returns at most so many shards, each with the position up to which its claims are to be removed. Those with the
    /// oldest withdrawals go first: most of those who wait for the lane wait for them.
    pub(crate) fn oldest(&self, shards: usize) -> Vec<(ShardId, Lsn)> {
        let mut oldest: Vec<(Owed, ShardId)> = self.0.iter().map(|(shard, owed)| (*owed, *shard)).collect();
        oldest.sort_unstable();
        oldest.into_iter().take(shards).map(|(owed, shard)| (shard, owed.up_to())).collect()
    }

    /// Adds withdrawals, and returns those for which there is no room: `room` are the bytes that the text may have.
    pub(crate) fn add(&mut self, withdrawals: Vec<(ShardId, Lsn)>, room: usize) -> Vec<(ShardId, Lsn)> {
        let room = room.min(TEXT_BYTES_MAX);
        let mut positions: BTreeSet<Owed> = self.0.values().copied().collect();
        let mut without_room = Vec::new();
        for (shard, at) in withdrawals {
            let before = self.0.get(&shard).copied();
            let Owed { first, last } = before.unwrap_or(Owed { first: at, last: at });
            let owed = Owed { first: first.min(at), last: last.max(at) };
            let shards = self.0.len() + usize::from(before.is_none());
            let pairs = positions.len() + usize::from(!positions.contains(&owed));
            if shards * SHARD_BYTES + pairs * POSITIONS_BYTES > room {
                without_room.push((shard, at));
                continue;
            }
            positions.insert(owed);
            self.0.insert(shard, owed);
        }
        without_room
    }

    /// Takes shards out of the list until its text has no more than `room` bytes; returns each with the position up to
    /// which its claims are to be removed. Others that need the room come later than the list.
    pub(crate) fn take_beyond(&mut self, room: usize) -> Vec<(ShardId, Lsn)> {
        let mut taken = Vec::new();
        while self.bytes() > room
            && let Some((shard, owed)) = self.0.pop_last()
        {
            taken.push((shard, owed.up_to()));
        }
        taken
    }

    /// Returns the bytes of the list as text, at most.
    pub(super) fn bytes(&self) -> usize {
        let positions: BTreeSet<Owed> = self.0.values().copied().collect();
        self.0.len() * SHARD_BYTES + positions.len() * POSITIONS_BYTES
    }

    /// Takes a shard out of the list; returns the position up to which its claims are to be removed.
    pub(crate) fn take(&mut self, shard: ShardId) -> Option<Lsn> {
        self.0.remove(&shard).map(Owed::up_to)
    }

    /// Notes that the claims of shards are removed, for each up to this position. A later withdrawal stays.
    pub(crate) fn settle(&mut self, removed: &[(ShardId, Lsn)]) {
        for (shard, up_to) in removed {
            let Some(owed) = self.0.get_mut(shard) else { continue };
            if owed.up_to() <= *up_to {
                self.0.remove(shard);
            } else if let Ok(next) = Lsn::from_u64(up_to.as_u64() + 2) {
                // The withdrawal that lies directly above `up_to` is carried out.
                owed.first = owed.first.max(next);
            }
        }
    }
}

/// Formats as `1:7:160=1a2b,3c;1:7:160-1:7:480=4d`: one or two positions, and the shards in hexadecimal digits.
impl fmt::Display for PendingWithdrawals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shards_at = BTreeMap::<Owed, Vec<ShardId>>::new();
        for (shard, owed) in &self.0 {
            shards_at.entry(*owed).or_default().push(*shard);
        }
        for (place, (Owed { first, last }, shards)) in shards_at.iter().enumerate() {
            f.write_str(if place == 0 { "" } else { ";" })?;
            if first != last {
                write!(f, "{first}-")?;
            }
            write!(f, "{last}")?;
            for (place, shard) in shards.iter().enumerate() {
                write!(f, "{}{:x}", if place == 0 { "=" } else { "," }, shard.as_u64())?;
            }
        }
        Ok(())
    }
}

impl FromStr for PendingWithdrawals {
    type Err = InvalidRefresh;

    fn from_str(text: &str) -> Result<Self, InvalidRefresh> {
        let position = |text: &str| text.parse::<Lsn>().map_err(|_| InvalidRefresh);
        let mut withdrawals = BTreeMap::new();
        for of_positions in text.split(';') {
            let (positions, shards) = of_positions.split_once('=').ok_or(InvalidRefresh)?;
            let (first, last) = positions.split_once('-').unwrap_or((positions, positions));
            let owed = Owed { first: position(first)?, last: position(last)? };
            for shard in shards.split(',') {
                let number = u64::from_str_radix(shard, 16).map_err(|_| InvalidRefresh)?;
                withdrawals.insert(ShardId::from_u64(number).ok_or(InvalidRefresh)?, owed);
            }
        }
        Ok(Self(withdrawals))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(number: u64) -> ShardId {
        ShardId::from_u64(number).expect("it has less than 63 bits")
    }

    fn at(slot: u64) -> Lsn {
        Lsn::new(1, 7, slot * 16).expect("it is small")
    }

    #[test]
    fn a_withdrawal_is_owed_until_all_of_it_is_removed_and_a_later_one_of_the_table_stays() {
        let mut pending = PendingWithdrawals::default();
        assert!(pending.add(vec![(numbered(1), at(10)), (numbered(2), at(10))], usize::MAX).is_empty());
        assert_eq!((pending.are_owed_at(at(9)), pending.are_owed_at(at(10))), (false, true));
        let removed = pending.oldest(2);
        let why = "a statement that withdraws its table may have filled it at the same position";
        assert_eq!(removed, [(numbered(1), at(9)), (numbered(2), at(9))], "{why}");
        // The first table exists again, and is truncated while its claims are being removed.
        assert!(pending.add(vec![(numbered(1), at(20))], usize::MAX).is_empty());
        assert!(pending.are_owed_at(at(10)));
        pending.settle(&removed);
        assert_eq!(pending.oldest(2), [(numbered(1), at(19))]);
        assert_eq!((pending.are_owed_at(at(10)), pending.are_owed_at(at(11))), (false, true));
        pending.settle(&[(numbered(1), at(19)), (numbered(3), at(19))]);
        assert!(pending.is_empty());
    }

    #[test]
    fn the_oldest_withdrawals_go_first() {
        let mut pending = PendingWithdrawals::default();
        let withdrawals = (0..9).map(|number| (numbered(number), at(90 - number))).collect();
        assert!(pending.add(withdrawals, usize::MAX).is_empty());
        assert_eq!(pending.oldest(2), [(numbered(8), at(81)), (numbered(7), at(82))]);
    }

    #[test]
    fn the_list_as_text_is_bounded_and_read_back() {
        let mut pending = PendingWithdrawals::default();
        let of_statement = (0..5_000).map(|number| (numbered(number), at(10)));
        let left = pending.add(of_statement.collect(), usize::MAX);
        assert!(pending.len() > 900 && left.len() + pending.len() == 5_000, "{}", pending.len());
        assert!(pending.to_string().len() <= TEXT_BYTES_MAX);
        let mut separate = PendingWithdrawals::default();
        let far = |number| Lsn::new(2_000, 1_000_000, (1 << 35) + number * 16).expect("it fits");
        let shard = |number| numbered((u64::MAX >> 1) - number);
        let left = separate.add((0..5_000).map(|number| (shard(number), far(number))).collect(), usize::MAX);
        assert!(separate.len() > 200 && left.len() + separate.len() == 5_000, "{}", separate.len());
        separate.add(vec![(shard(3), far(1)), (shard(4), far(9_000))], usize::MAX);
        assert!(separate.to_string().len() <= TEXT_BYTES_MAX);
        let (all, mut rest) = (separate.len(), separate.clone());
        let taken = rest.take_beyond(1_000);
        assert!(rest.to_string().len() <= 1_000 && !rest.is_empty() && rest.len() + taken.len() == all);
        assert_eq!(rest.add(taken.clone(), 1_000), taken, "there is no room for them");
        for list in [pending, separate, rest] {
            assert_eq!(list.to_string().parse(), Ok(list.clone()));
        }
        for text in ["", "1:7:160", "1:7:160=", "1:7:160=g", "160=1a"] {
            assert_eq!(text.parse::<PendingWithdrawals>(), Err(InvalidRefresh), "{text}");
        }
    }
}
