//! What the sources held and when, for judging what a reconciliation said of them.
//!
//! A transaction that waits for a replica's acknowledgement is in the binlog and in no snapshot. So a reconciliation
//! may be shown a source as it was before its newest transactions, also of such as were there when it began.

use std::collections::{BTreeMap, BTreeSet};

use anabranch_connectors::memory::{Group, UNSEEN_GROUPS_MAX};
use anabranch_schemas::change::Value;
use tokio::time::Instant;

use crate::script::{self, Claim, Key, SOURCES};

/// Transactions of each source.
pub type Groups = [usize; SOURCES];

/// See the module's text.
#[derive(Debug, Default)]
pub struct Past {
    /// When each source committed.
    commits: [Vec<Instant>; SOURCES],
    /// When the source row of a key changed; of a transaction that changes it several times, each time.
    changes: BTreeMap<Key, Vec<Instant>>,
    /// What should stand, at the last change.
    truth: BTreeSet<Claim>,
    /// With which transaction of its source a claim ceased to be right.
    ended: BTreeMap<Claim, usize>,
}

impl Past {
    /// Notes what the sources committed, and what should stand after it.
    pub fn note(&mut self, committed: &[(usize, Group)], truth: BTreeSet<Claim>) {
        let (now, mut changed) = (Instant::now(), Vec::new());
        for (source, group) in committed {
            self.commits[*source].push(now);
            let Group::Rows(events) = group else { continue };
            let rows = events.iter().flatten().filter(|row| row.before != row.after);
            changed.extend(rows.map(|row| {
                let image = row.after.as_ref().or(row.before.as_ref()).expect("it changed");
                let Some(Value::UInt(user)) = image.first() else { panic!("a user has a number: {image:?}") };
                (script::shards()[&row.table.shard], *user)
            }));
        }
        // By a branch that was committed, or with its table that was emptied.
        let at_once = truth.symmetric_difference(&self.truth).map(key_of).collect::<BTreeSet<_>>();
        changed.extend(at_once.into_iter().filter(|key| !changed.contains(key)).collect::<Vec<_>>());
        changed.into_iter().for_each(|key| self.changes.entry(key).or_default().push(now));
        let groups = self.groups();
        let ended = self.truth.difference(&truth);
        self.ended.extend(ended.map(|claim| (claim.clone(), groups[source_of(claim)])));
        self.truth = truth;
    }

    pub fn truth(&self) -> &BTreeSet<Claim> {
        &self.truth
    }

    pub fn groups(&self) -> Groups {
        std::array::from_fn(|source| self.commits[source].len())
    }

    /// Whether a reading that was made when the sources had so many transactions, or later, may have been shown a
    /// source to which this claim was right.
    pub fn may_be_shown(&self, claim: &Claim, groups: Groups) -> bool {
        let is_late = |ended: &usize| ended + UNSEEN_GROUPS_MAX > groups[source_of(claim)];
        self.truth.contains(claim) || self.ended.get(claim).is_some_and(is_late)
    }

    /// From when on changes of a source may be hidden from a reading of this moment.
    pub fn hidden_from(&self, source: usize, at: Instant) -> Instant {
        let before = self.commits[source].iter().rev().filter(|commit| **commit <= at);
        before.take(UNSEEN_GROUPS_MAX).last().copied().unwrap_or(at)
    }

    /// How often the source row of a key changed from one moment to another.
    pub fn changes(&self, key: Key, from: Instant, to: Instant) -> usize {
        let is_between = |at: &&Instant| from <= **at && **at <= to;
        self.changes.get(&key).map_or(0, |changes| changes.iter().filter(is_between).count())
    }
}

pub fn key_of((_, _, shard, user, _): &Claim) -> Key {
    (*shard, *user)
}

fn source_of((_, _, shard, ..): &Claim) -> usize {
    script::source_of(*shard)
}
