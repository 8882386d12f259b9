//! The rules that say where a source row belongs, and the judgement about one row.
//!
//! Rows of users and devices follow a sharding rule by key. A payment document follows its own identifier, the rule of
//! its kind, and the settings of its table and source.

use std::collections::BTreeSet;
use std::sync::Arc;

use anabranch_schemas::change::{Entity, TableIdentity, Value};
use anabranch_schemas::flux::audit::{Oddity, TablePlace};
use anabranch_schemas::flux::id::{Defect, FluxId};
use anabranch_schemas::serial;
use anabranch_schemas::shard::{ShardingRule, TablePattern};

use crate::config::EntityConfig;
use crate::records::FluxPlaces;

/// Index of a row's key among its fields.
pub(super) const KEY: usize = 0;
/// Index of the parent's identifier among the fields of a payment document.
const PARENT: usize = 1;
/// The reason of a document whose parent is no identifier, as the metric of changes has it.
const PARENT_MALFORMED: &str = "flux_parent_malformed";

/// A sharding rule and the tables that it covers.
#[derive(Debug, Clone)]
pub(super) struct RuledTables {
    pattern: TablePattern,
    rule: ShardingRule,
    /// Index of the sharding column in a row that was read for a reconciliation.
    key: usize,
}

#[derive(Debug, Clone)]
enum RuleSet {
    /// A column of a row names its table, by the rule of each `[[entities]]` entry.
    ByKey(Arc<[RuledTables]>),
    /// The identifier of a payment document names its table.
    Flux(Arc<FluxPlaces>),
}

/// The rules of one entity.
#[derive(Debug, Clone)]
pub struct Rules {
    rules: RuleSet,
    pub(super) unreachable: Vec<String>,
    pub(super) not_audited: Vec<String>,
}

impl Rules {
    /// Builds the rules of an entity from its configuration; `places` are those of payment documents.
    pub fn of(entity: Entity, entities: &[EntityConfig], places: &Arc<FluxPlaces>) -> Self {
        if !entity.is_placed_by_identifier() {
            return Self::by_key(entity, entities);
        }
        Self {
            rules: RuleSet::Flux(Arc::clone(places)),
            unreachable: Vec::new(),
            not_audited: places.unaudited(),
        }
    }

    fn by_key(entity: Entity, entities: &[EntityConfig]) -> Self {
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
        Self { rules: RuleSet::ByKey(ruled.into()), unreachable, not_audited }
    }

    /// Returns the rule of a table; `None` when it has none.
    pub(super) fn of_table(&self, table: &TableIdentity<'_>) -> Option<TableRule<'_>> {
        match &self.rules {
            RuleSet::ByKey(ruled) => {
                let matching = |(number, ruled): (usize, &'_ RuledTables)| {
                    let numbers = ruled.pattern.matches(&table.database, &table.table)?;
                    Some((number, (numbers.database, numbers.table)))
                };
                let (number, at) = ruled.iter().enumerate().find_map(matching)?;
                Some(TableRule::ByKey { number, ruled: &ruled[number], at })
            }
            RuleSet::Flux(places) => Some(TableRule::Flux { places, at: places.of_table(table) }),
        }
    }
}

/// The rule of one table, with the place that the table stands for.
#[derive(Debug)]
pub(super) enum TableRule<'a> {
    ByKey {
        /// Number of the rule among those of its entity.
        number: usize,
        ruled: &'a RuledTables,
        /// Numbers of database and table.
        at: (u32, u32),
    },
    Flux {
        places: &'a FluxPlaces,
        at: TablePlace,
    },
}

/// The judgement about one row.
#[derive(Debug)]
pub(super) enum Judgement {
    InPlace,
    /// A payment document that is in place as far as it was compared: no kind says its rule.
    WithoutKind,
    /// The row's key names no table.
    Undecided,
    /// The row's key is no identifier of a payment document.
    Malformed(Defect),
    Elsewhere,
    Odd(OddRow),
}

/// A payment document that is not where its identifiers say.
#[derive(Debug)]
pub(super) struct OddRow {
    pub id: FluxId,
    pub parent: Option<FluxId>,
    /// The configuration names a kind, so that rule and parent were compared.
    pub has_kind: bool,
    malformed: Option<Defect>,
    oddities: Vec<Oddity>,
}

impl TableRule<'_> {
    /// Returns the number that separates keys of different rules: a key in tables of two rules is no double.
    pub fn number(&self) -> u64 {
        match self {
            Self::ByKey { number, .. } => *number as u64,
            // An identifier exists once, whatever its table is called.
            Self::Flux { .. } => 0,
        }
    }

    pub fn judge(&self, row: &[Value<'_>]) -> Judgement {
        match self {
            Self::ByKey { ruled, at, .. } => {
                let text = row.get(ruled.key).and_then(serial::text);
                match text.and_then(|text| ruled.rule.locate(std::str::from_utf8(&text).ok()?)) {
                    None => Judgement::Undecided,
                    Some(of_rule) if of_rule != *at => Judgement::Elsewhere,
                    Some(_) => Judgement::InPlace,
                }
            }
            Self::Flux { places, at } => judge_document(places, at, row),
        }
    }
}

fn judge_document(places: &FluxPlaces, at: &TablePlace, row: &[Value<'_>]) -> Judgement {
    let read = |value: &Value<'_>| {
        let text = serial::text(value).unwrap_or_default();
        FluxId::parse_of(&text, places.system())
    };
    let Some(key) = row.get(KEY) else { return Judgement::Undecided };
    let id = match read(key) {
        Ok(id) => id,
        Err(defect) => return Judgement::Malformed(defect),
    };
    let is_named = |parent: &&Value<'_>| match parent {
        Value::Null => false,
        Value::Bytes(text) => !text.is_empty(),
        _ => true,
    };
    let parent = row.get(PARENT).filter(is_named).map(read).transpose();
    let (parent, malformed) = match parent {
        Ok(parent) => (parent, None),
        Err(defect) => (None, Some(defect)),
    };
    let oddities = places.oddities_at(at, &id, parent.as_ref());
    let has_kind = places.kind(&id).is_some();
    match (oddities.is_empty() && malformed.is_none(), has_kind) {
        (true, true) => Judgement::InPlace,
        (true, false) => Judgement::WithoutKind,
        (false, _) => Judgement::Odd(OddRow { id, parent, has_kind, malformed, oddities }),
    }
}

impl OddRow {
    /// Returns each reason once.
    pub fn reasons(&self) -> BTreeSet<&'static str> {
        let malformed = self.malformed.map(|_| PARENT_MALFORMED);
        self.oddities.iter().map(Oddity::reason).chain(malformed).collect()
    }

    /// Returns all differences in words.
    pub fn text(&self) -> String {
        let malformed = self.malformed.map(|defect| format!("its parent is no identifier: {defect}"));
        let texts: Vec<String> = self.oddities.iter().map(Oddity::to_string).chain(malformed).collect();
        texts.join(", and ")
    }
}
