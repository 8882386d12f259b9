//! The placement audit asks, in a reconciliation's own scan, whether each source row is in the one table of its rule.
//!
//! A misplaced row is in the derived stores all the same, since these follow the tables and not the rule; the
//! application does not find it. The audit looks for a key in two tables with a bounded book of key hashes. When the
//! book is full, the audit drops half of the keys, and the report says which share was compared. Keys in two tables are
//! read again at the end, as a row may move from one table to another during the scan. Tables without a rule take no
//! part.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anabranch_schemas::change::{Entity, TableIdentity, Value};
use anabranch_schemas::serial;
use anabranch_schemas::shard::{ShardId, ShardingRule, TablePattern};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::candidates::SourceKey;
use crate::config::EntityConfig;
use crate::records::Cell;

/// Key hashes that the book holds, at most.
const BOOK_KEYS: usize = 1 << 20;
/// Bytes that the book takes, at most: 17 for each of twice as many slots, and half of it once more while it grows.
pub(super) const BOOK_BYTES: usize = BOOK_KEYS * 2 * 17 * 3 / 2;
/// Keys in two tables that the report lists, at most.
const DOUBLES_MAX: usize = 1_000;
/// Index of a row's key among its fields.
const KEY: usize = 0;

/// The findings of a reconciliation about placement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// Rows whose table was compared with the one that their rule names.
    pub rows: u64,
    /// Rows whose rule names no table: their key is no number, or NULL.
    pub undecided: u64,
    /// Source tables with rows that belong elsewhere, and how many.
    pub misplaced: BTreeMap<String, u64>,
    /// Share of all keys that was looked for in other tables, from 0 to 1.
    pub share_of_keys: f64,
    /// Keys in more than one table; each names both.
    pub doubles: Vec<DoubledKey>,
    /// Rules that cannot reach all of their tables, in words.
    pub unreachable: Vec<String>,
    /// Reasons why rows of an entity were not compared.
    pub not_audited: Vec<String>,
}

/// A key that is in two tables of its rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoubledKey {
    /// The hash of the key, as in [`super::Drifted`].
    pub key_hash: String,
    pub tables: [String; 2],
}

/// A rule and the tables that it covers.
#[derive(Debug, Clone)]
struct RuledTables {
    pattern: TablePattern,
    rule: ShardingRule,
    /// Index of the sharding column in a row that was read for a reconciliation.
    key: usize,
}

/// The rules of one entity.
#[derive(Debug, Clone)]
pub struct Rules {
    ruled: Arc<[RuledTables]>,
    unreachable: Vec<String>,
    not_audited: Vec<String>,
}

impl Rules {
    /// Builds the rules of an entity from its configuration.
    pub fn of(entity: Entity, entities: &[EntityConfig]) -> Self {
        let (mut ruled, mut unreachable, mut not_audited) = (Vec::new(), Vec::new(), Vec::new());
        for config in entities.iter().filter(|config| config.entity == entity) {
            let Some(rule) = config.rule else { continue };
            let (reached, all) =
                (rule.reachable_tables(), u64::from(rule.databases) * u64::from(rule.tables));
            if reached < all {
                unreachable.push(format!("the rule of {} reaches {reached} of {all} tables", config.tables));
            }
            match config.sharding_field() {
                Some(key) => ruled.push(RuledTables { pattern: config.tables.clone(), rule, key }),
                None => not_audited.push(format!("{}: entities.sharding_column is not set", config.tables)),
            }
        }
        Self { ruled: ruled.into(), unreachable, not_audited }
    }

    /// Returns the rule of a table, with its number and the numbers of database and table; `None` when it has no rule.
    fn of_table(&self, table: &TableIdentity<'_>) -> Option<(usize, &RuledTables, (u32, u32))> {
        let matching = |(number, ruled): (usize, &'_ RuledTables)| {
            let place = ruled.pattern.matches(&table.database, &table.table)?;
            Some((number, place))
        };
        let (number, place) = self.ruled.iter().enumerate().find_map(matching)?;
        Some((number, &self.ruled[number], place))
    }
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
    rule: Option<(usize, &'a RuledTables, (u32, u32))>,
    table: &'a TableIdentity<'static>,
    rows: u64,
    undecided: u64,
    misplaced: u64,
    keys: Vec<(u64, Cell)>,
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
        TableAudit { audit: self, rule, table, rows: 0, undecided: 0, misplaced: 0, keys: Vec::new() }
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
        Placement { share_of_keys, ..found.placement.clone() }
    }
}

impl TableAudit<'_> {
    pub(super) fn row(&mut self, row: &[Value<'_>]) {
        let Some((number, ruled, place)) = &self.rule else { return };
        self.rows += 1;
        let text = row.get(ruled.key).and_then(serial::text);
        let of_rule = text.and_then(|text| ruled.rule.locate(std::str::from_utf8(&text).ok()?));
        match of_rule {
            None => self.undecided += 1,
            Some(of_rule) if of_rule != *place => self.misplaced += 1,
            Some(_) => {}
        }
        let Some(key) = row.get(KEY).and_then(serial::text) else { return };
        let hash = xxh3_64_with_seed(&key, self.audit.seed ^ *number as u64);
        let cell = match &row[KEY] {
            Value::UInt(id) => Cell::UInt(*id),
            Value::Int(id) if *id >= 0 => Cell::UInt(*id as u64),
            _ => Cell::Bytes(key.as_ref().into()),
        };
        self.keys.push((hash, cell));
    }

    /// Adds a chunk that was read to its end to the findings.
    pub(super) fn hand_over(&mut self) {
        let mut found = self.audit.found();
        let found = &mut *found;
        found.placement.rows += self.rows;
        found.placement.undecided += self.undecided;
        if self.misplaced > 0 {
            let name = format!("{}.{}", self.table.database, self.table.table);
            *found.placement.misplaced.entry(name).or_default() += self.misplaced;
        }
        let shard = self.table.shard;
        for (hash, key) in self.keys.drain(..).filter(|(hash, _)| *hash <= found.highest) {
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
        self.keys.clear();
        (self.rows, self.undecided, self.misplaced) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use anabranch_schemas::shard::{NameHash, Spread};

    use super::*;
    use crate::config::UnseenChanges;

    fn table(database: u32, number: u32) -> TableIdentity<'static> {
        let (database, table) = (format!("user_{database}"), format!("user_{number}"));
        let shard = ShardId::of("a", &database, &table, 0);
        TableIdentity { entity: Entity::User, shard, database: database.into(), table: table.into() }
    }

    fn audit(spread: Spread) -> PlacementAudit {
        let config = EntityConfig {
            entity: Entity::User,
            tables: TablePattern::parse("user_{db}.user_{table}").unwrap(),
            columns: vec!["user_id".to_owned(), "birthday".to_owned()],
            rule: Some(ShardingRule { hash: NameHash::Crc32, spread, databases: 10, tables: 100 }),
            sharding_column: Some("user_name".to_owned()),
            changed_at_column: None,
            unseen_changes: UnseenChanges::default(),
        };
        PlacementAudit::new(Rules::of(Entity::User, &[config]), 7)
    }

    fn put(audit: &PlacementAudit, table: &TableIdentity<'static>, user: u64, name: &str) {
        let mut table_audit = audit.table_audit(table);
        table_audit.row(&[Value::UInt(user), Value::Null, Value::Bytes(name.as_bytes().to_vec().into())]);
        table_audit.hand_over();
    }

    #[test]
    fn a_row_is_compared_with_the_place_that_its_rule_has_for_it() {
        let audit = audit(Spread::Spread);
        // CRC32('alice') = 663665735: database 5, table 73.
        put(&audit, &table(5, 73), 1, "alice");
        put(&audit, &table(5, 74), 2, "alice");
        let found = audit.placement();
        assert_eq!((found.rows, found.undecided, found.share_of_keys), (2, 0, 1.0));
        assert_eq!(found.misplaced, BTreeMap::from([("user_5.user_74".to_owned(), 1)]));
        assert!(audit.doubles().is_empty() && found.unreachable.is_empty());
    }

    #[test]
    fn a_key_in_two_tables_is_seen_and_a_rule_that_reaches_too_few_is_told() {
        let audit = audit(Spread::Literal);
        put(&audit, &table(5, 73), 1, "alice");
        put(&audit, &table(5, 73), 1, "alice");
        assert!(audit.doubles().is_empty(), "twice in one table is the table's matter");
        put(&audit, &table(6, 1), 1, "bob");
        let key = SourceKey { shard: table(6, 1).shard, key: Cell::UInt(1) };
        assert_eq!(audit.doubles(), [(key, table(5, 73).shard)]);
        assert_eq!(
            audit.placement().unreachable,
            ["the rule of user_{db}.user_{table} reaches 100 of 1000 tables"]
        );
    }

    #[test]
    fn a_full_book_looks_for_a_share_of_the_keys_and_says_so() {
        let audit = audit(Spread::Spread);
        let place = table(5, 73);
        let mut table_audit = audit.table_audit(&place);
        for user in 0..2 * BOOK_KEYS as u64 {
            table_audit.row(&[Value::UInt(user), Value::Null, Value::Null]);
        }
        table_audit.hand_over();
        let found = audit.placement();
        assert_eq!(found.undecided, 2 * BOOK_KEYS as u64);
        assert!((0.2..=0.5).contains(&found.share_of_keys), "{}", found.share_of_keys);
    }
}
