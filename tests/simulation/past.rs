//! Contents of the sources and their times, to judge the report of a reconciliation.
//!
//! A transaction that waits for a replica's acknowledgement is in the binlog and in no snapshot. So a reconciliation
//! may see a source without its newest transactions, even ones from before its beginning.

use std::collections::{BTreeMap, BTreeSet};

use anabranch_connectors::memory::{Group, UNSEEN_GROUPS_MAX};
use anabranch_schemas::change::Value;
use tokio::time::Instant;

use crate::script::{self, Claim, Key, SOURCES};

/// Number of transactions of each source.
pub type Groups = [usize; SOURCES];

/// Contents of the sources over time, see the text of this module.
#[derive(Debug, Default)]
pub struct Past {
    /// Times at which each source committed.
    commits: [Vec<Instant>; SOURCES],
    /// Times at which the source row of a key changed; a transaction that changes it several times counts each time.
    changes: BTreeMap<Key, Vec<Instant>>,
    /// The claims that are right since the last change.
    truth: BTreeSet<Claim>,
    /// The number of its source's transaction with which a claim ceased to be right.
    ended: BTreeMap<Claim, usize>,
}

impl Past {
    /// Records the sources' commits, and the claims that are right after them.
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
        // Keys that changed by the commit of a branch, or with their emptied table.
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

    /// Whether a read that was made at these numbers of transactions, or later, may see a source in which this claim
    /// was right.
    pub fn may_be_shown(&self, claim: &Claim, groups: Groups) -> bool {
        let is_late = |ended: &usize| ended + UNSEEN_GROUPS_MAX > groups[source_of(claim)];
        self.truth.contains(claim) || self.ended.get(claim).is_some_and(is_late)
    }

    /// The earliest change of a source that a read at this moment may miss.
    pub fn hidden_from(&self, source: usize, at: Instant) -> Instant {
        let before = self.commits[source].iter().rev().filter(|commit| **commit <= at);
        before.take(UNSEEN_GROUPS_MAX).last().copied().unwrap_or(at)
    }

    /// Number of changes of a key's source row between two moments.
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
