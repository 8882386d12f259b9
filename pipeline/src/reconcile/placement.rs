//! The placement audit asks, in a reconciliation's own scan, whether each source row is in the one table of its rule.
//!
//! A misplaced row is in the derived stores all the same, since these follow the tables and not the rule; the
//! application does not find it. The audit looks for a key in two tables with a bounded book of key hashes. When the
//! book is full, the audit drops half of the keys, and the report says which share was compared. Keys in two tables are
//! read again at the end, as a row may move from one table to another during the scan. Tables without a rule take no
//! part. `rules.rs` judges one row.

mod rules;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anabranch_schemas::change::{TableIdentity, Value};
use anabranch_schemas::flux::id::Defect;
use anabranch_schemas::serial;
use anabranch_schemas::shard::ShardId;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub use self::rules::Rules;
use self::rules::{Judgement, KEY, OddRow, TableRule};
use super::candidates::SourceKey;
use crate::records::Cell;

/// Key hashes that the book holds, at most.
const BOOK_KEYS: usize = 1 << 20;
/// Bytes that the book takes, at most: 17 for each of twice as many slots, and half of it once more while it grows.
pub(super) const BOOK_BYTES: usize = BOOK_KEYS * 2 * 17 * 3 / 2;
/// Keys in two tables that the report lists, at most.
const DOUBLES_MAX: usize = 1_000;
/// Odd payment documents that the report lists, at most; it counts all of them.
const ODD_DOCUMENTS_MAX: usize = 100;
/// Documents with a malformed identifier that the report lists, at most; `undecided` counts all of them.
const MALFORMED_MAX: usize = 100;
/// Bytes of a malformed identifier that the report shows, at most.
const MALFORMED_BYTES_MAX: usize = 64;

/// The findings of a reconciliation about placement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// Rows whose table was compared with the one that their rule names.
    pub rows: u64,
    /// Rows whose rule names no table: their key is no number, no identifier, or NULL.
    pub undecided: u64,
    /// Source tables with rows that belong elsewhere, and how many. Every odd payment document is one of them.
    pub misplaced: BTreeMap<String, u64>,
    /// Share of all keys that was looked for in other tables, from 0 to 1.
    pub share_of_keys: f64,
    /// Keys in more than one table; each names both.
    pub doubles: Vec<DoubledKey>,
    /// Rules that cannot reach all of their tables, in words.
    pub unreachable: Vec<String>,
    /// Reasons why rows of an entity, or parts of them, were not compared.
    pub not_audited: Vec<String>,
    /// Reasons why payment documents are odd, and how many are. One document may have several reasons.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub odd_documents: BTreeMap<String, u64>,
    /// Payment documents whose business code has no kind of their level: rule and parent were not compared.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub without_kind: u64,
    /// The first odd documents by table and identifier.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub odd: Vec<OddDocument>,
    /// The first payment documents with a malformed identifier, by table and identifier.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub malformed: Vec<MalformedDocument>,
}

/// A key that is in two tables of its rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoubledKey {
    /// The hash of the key, as in [`super::Drifted`].
    pub key_hash: String,
    pub tables: [String; 2],
}

/// A payment document that is not where its identifier, its parent or its table says.
///
/// The audit is about identifiers, so the report lists them as they are. It has no other value of the document.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OddDocument {
    /// The source table: `database.table`.
    pub table: String,
    pub id: String,
    /// The parent's identifier; `None` = the document has none, or its parent is no identifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// All differences in words.
    pub what: String,
}

/// A payment document whose identifier breaks a rule of identifiers, so that it names no table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MalformedDocument {
    /// The source table: `database.table`.
    pub table: String,
    /// The key as visible ASCII: all other bytes are escaped, and a long key is cut.
    pub id: String,
    /// The broken rule in words.
    pub what: String,
}

/// The placement audit of one entity in one reconciliation. Clones share the book.
#[derive(Debug, Clone)]
pub struct PlacementAudit {
    rules: Rules,
    seed: u64,
    found: Arc<Mutex<AuditFindings>>,
}

#[derive(Debug)]
struct AuditFindings {
    placement: Placement,
    /// Hash of rule and key → the table where it was seen first.
    book: HashMap<u64, ShardId, foldhash::fast::RandomState>,
    /// Keys with a greater hash are not looked for.
    highest: u64,
    /// Keys in two tables: the key in the second table, and the shard of the first.
    doubles: Vec<(SourceKey, ShardId)>,
}

/// The audit of one table while it is read.
pub(super) struct TableAudit<'a> {
    audit: &'a PlacementAudit,
    /// The rule of the table; `None` = it has no rule.
    rule: Option<TableRule<'a>>,
    table: &'a TableIdentity<'static>,
    chunk: ChunkFindings,
}

/// The findings in a chunk that is not read to its end yet.
#[derive(Default)]
struct ChunkFindings {
    rows: u64,
    undecided: u64,
    misplaced: u64,
    without_kind: u64,
    keys: Vec<(u64, Cell)>,
    odd_documents: BTreeMap<&'static str, u64>,
    odd: Vec<OddDocument>,
    malformed: Vec<MalformedDocument>,
}

impl PlacementAudit {
    pub fn new(rules: Rules, seed: u64) -> Self {
        let (unreachable, not_audited) = (rules.unreachable.clone(), rules.not_audited.clone());
        let placement = Placement { unreachable, not_audited, share_of_keys: 1.0, ..Placement::default() };
        let found =
            AuditFindings { placement, book: HashMap::default(), highest: u64::MAX, doubles: Vec::new() };
        Self { rules, seed, found: Arc::new(Mutex::new(found)) }
    }

    pub(super) fn table_audit<'a>(&'a self, table: &'a TableIdentity<'static>) -> TableAudit<'a> {
        let rule = self.rules.of_table(table);
        TableAudit { audit: self, rule, table, chunk: ChunkFindings::default() }
    }

    fn found(&self) -> MutexGuard<'_, AuditFindings> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns keys that were seen in two tables, each with the other table's shard, for a second check.
    pub fn doubles(&self) -> Vec<(SourceKey, ShardId)> {
        self.found().doubles.clone()
    }

    /// Returns the findings without the keys in two tables.
    pub fn placement(&self) -> Placement {
        let found = self.found();
        let share_of_keys = found.highest as f64 / u64::MAX as f64;
        let mut placement = Placement { share_of_keys, ..found.placement.clone() };
        if placement.without_kind > 0 {
            placement.not_audited.push(format!(
                "flux.kinds has no kind for the business code and level of {} payment documents: they are compared \
                 neither with the rule of a kind nor with their parent",
                placement.without_kind
            ));
        }
        placement
    }
}

impl TableAudit<'_> {
    pub(super) fn row(&mut self, row: &[Value<'_>]) {
        let Some(rule) = &self.rule else { return };
        self.chunk.rows += 1;
        match rule.judge(row) {
            Judgement::InPlace => {}
            Judgement::WithoutKind => self.chunk.without_kind += 1,
            Judgement::Undecided => self.chunk.undecided += 1,
            Judgement::Elsewhere => self.chunk.misplaced += 1,
            Judgement::Odd(odd) => self.chunk.add(self.table, &odd),
            Judgement::Malformed(defect) => self.chunk.add_malformed(self.table, &row[KEY], defect),
        }
        let Some(key) = row.get(KEY).and_then(serial::text) else { return };
        let hash = xxh3_64_with_seed(&key, self.audit.seed ^ rule.number());
        let cell = match &row[KEY] {
            Value::UInt(id) => Cell::UInt(*id),
            Value::Int(id) if *id >= 0 => Cell::UInt(*id as u64),
            _ => Cell::Bytes(key.as_ref().into()),
        };
        self.chunk.keys.push((hash, cell));
    }

    /// Adds a chunk that was read to its end to the findings.
    pub(super) fn hand_over(&mut self) {
        let mut found = self.audit.found();
        let (found, chunk) = (&mut *found, &mut self.chunk);
        let placement = &mut found.placement;
        placement.rows += chunk.rows;
        placement.undecided += chunk.undecided;
        placement.without_kind += chunk.without_kind;
        if chunk.misplaced > 0 {
            *placement.misplaced.entry(name(self.table)).or_default() += chunk.misplaced;
        }
        for (reason, documents) in &chunk.odd_documents {
            *placement.odd_documents.entry((*reason).to_owned()).or_default() += documents;
        }
        if !chunk.odd.is_empty() {
            // Tables are read in an order of chance; the list is the same each time.
            placement.odd.append(&mut chunk.odd);
            placement.odd.sort();
            placement.odd.truncate(ODD_DOCUMENTS_MAX);
        }
        if !chunk.malformed.is_empty() {
            placement.malformed.append(&mut chunk.malformed);
            placement.malformed.sort();
            placement.malformed.truncate(MALFORMED_MAX);
        }
        let shard = self.table.shard;
        for (hash, key) in chunk.keys.drain(..).filter(|(hash, _)| *hash <= found.highest) {
            let first = *found.book.entry(hash).or_insert(shard);
            if first != shard && found.doubles.len() < DOUBLES_MAX {
                found.doubles.push((SourceKey { shard, key }, first));
            }
        }
        while found.book.len() > BOOK_KEYS {
            found.highest /= 2;
            let highest = found.highest;
            found.book.retain(|hash, _| *hash <= highest);
        }
        self.forget();
    }

    /// Drops a chunk that was read in part; it is read again.
    pub(super) fn forget(&mut self) {
        self.chunk.keys.clear();
        let keys = std::mem::take(&mut self.chunk.keys);
        self.chunk = ChunkFindings { keys, ..ChunkFindings::default() };
    }
}

impl ChunkFindings {
    /// Counts an odd document, and lists it if it may be among the first. A chunk comes in the order of keys.
    fn add(&mut self, table: &TableIdentity<'_>, odd: &OddRow) {
        self.misplaced += 1;
        self.without_kind += u64::from(!odd.has_kind);
        for reason in odd.reasons() {
            *self.odd_documents.entry(reason).or_default() += 1;
        }
        if self.odd.len() < ODD_DOCUMENTS_MAX {
            self.odd.push(OddDocument {
                table: name(table),
                id: odd.id.to_string(),
                parent: odd.parent.map(|parent| parent.to_string()),
                what: odd.text(),
            });
        }
    }

    /// Counts a document with a malformed identifier, and lists it if it may be among the first.
    fn add_malformed(&mut self, table: &TableIdentity<'_>, key: &Value<'_>, defect: Defect) {
        self.undecided += 1;
        if self.malformed.len() < MALFORMED_MAX {
            let text = serial::text(key).unwrap_or_default();
            self.malformed.push(MalformedDocument {
                table: name(table),
                id: visible(&text),
                what: defect.to_string(),
            });
        }
    }
}

/// Returns the beginning of a text as visible ASCII. A text that was cut is followed by the number of its bytes.
fn visible(text: &[u8]) -> String {
    match text.get(..MALFORMED_BYTES_MAX) {
        Some(begin) if text.len() > MALFORMED_BYTES_MAX => {
            format!("{}... ({} bytes)", begin.escape_ascii(), text.len())
        }
        _ => text.escape_ascii().to_string(),
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn name(table: &TableIdentity<'_>) -> String {
    format!("{}.{}", table.database, table.table)
}

#[cfg(test)]
mod tests;
