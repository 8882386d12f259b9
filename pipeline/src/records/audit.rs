//! The findings of a cache's audit, and how far it has come.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The kind of drift of one code's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryDrift {
    /// The value is no entry, or of another type.
    Unreadable,
    /// The entry is not the complete set of its mapping rows.
    Stale,
    /// The entry has a set although no mapping row has the code.
    Orphan,
    /// The entry lives for ever, or longer than is configured.
    Lasting,
    /// No process can fill the code any more.
    Blocked,
}

impl EntryDrift {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::Stale => "stale",
            Self::Orphan => "orphan",
            Self::Lasting => "lasting",
            Self::Blocked => "blocked",
        }
    }
}

/// The findings of an audit. A code that the scan named twice is counted twice.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audited {
    pub entries: u64,
    /// Entries that disagreed at first and agree now.
    pub in_flight: u64,
    pub drift: BTreeMap<EntryDrift, u64>,
    /// Drifted entries that were removed, and were right or gone at the next check.
    pub repaired: u64,
    /// Entries that changed at each check, or waited for a drain that did not come.
    pub unverified: u64,
}

/// How far the audit of a cache has come. The counts belong to one reconciliation; the next one resumes at `place`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditState {
    pub audited: Audited,
    pub place: AuditCursor,
}

/// The point where the next step begins, in one life of the cache.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditCursor {
    pub(crate) life: String,
    /// The point in the cache's notation; empty = the beginning.
    pub(crate) after: Vec<u8>,
}

impl AuditState {
    /// Returns the state of a reconciliation's audit that begins where the one before it stopped.
    pub fn after(place: AuditCursor) -> Self {
        Self { audited: Audited::default(), place }
    }
}

impl Audited {
    pub fn found(&self) -> u64 {
        self.drift.values().sum()
    }

    /// Returns whether every entry that was read was judged.
    pub fn is_judged(&self) -> bool {
        self.unverified == 0
    }

    pub(crate) fn add(&mut self, part: Self) {
        self.entries += part.entries;
        self.in_flight += part.in_flight;
        self.repaired += part.repaired;
        self.unverified += part.unverified;
        part.drift.into_iter().for_each(|(drift, entries)| *self.drift.entry(drift).or_default() += entries);
    }
}
