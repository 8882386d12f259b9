//! The captured tables that sources show, from reconciliation to reconciliation.
//!
//! A revoked grant, or a pattern that no longer fits, hides a table from the list. If it has no derived rows, nothing
//! on either side shows that: only the previous reconciliation knew the table. So each table that is missing from the
//! list is asked for by its name:
//! - A table that is gone is forgotten.
//! - A table that may not be read is reported in each reconciliation, until it is read again or gone.
//! - A table that may be read and is not captured is reported once, since a person may have meant it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anabranch_schemas::change::{Entity, TableIdentity};
use anabranch_schemas::lsn::FIRST_EPOCH;
use anabranch_schemas::shard::ShardId;

use crate::error::{Class, Code};
use crate::ports::RowSource;
use crate::retry::again;

/// Database and table names, by source and entity.
pub type VisibleTables = BTreeMap<String, BTreeMap<Entity, BTreeSet<(String, String)>>>;

/// A table that is no longer visible, so that a reconciliation of its entity is incomplete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HiddenTable {
    pub entity: Entity,
    pub source: String,
    /// Names of database and table.
    pub place: (String, String),
    /// A sentence that names the table and the reason.
    pub why: String,
}

/// Returns the tables that sources show, and the tables of `before` that they no longer show. Tables of entities that
/// are not in `asked` stay as they were.
pub async fn find_hidden_tables<S: RowSource>(
    sources: &BTreeMap<String, Arc<S>>,
    before: &VisibleTables,
    asked: &BTreeSet<Entity>,
) -> (VisibleTables, Vec<HiddenTable>) {
    let (mut shown, mut hidden) = (VisibleTables::new(), Vec::new());
    for (name, source) in sources {
        let known = before.get(name).cloned().unwrap_or_default();
        let Ok(tables) = again(|| source.tables()).await else {
            // Every store of this source reports the failure.
            shown.insert(name.clone(), known);
            continue;
        };
        let of_source = shown.entry(name.clone()).or_default();
        for table in tables {
            let place = (table.database.into_owned(), table.table.into_owned());
            of_source.entry(table.entity).or_default().insert(place);
        }
        for (entity, known) in known {
            let now = of_source.entry(entity).or_default();
            for place in known {
                if now.contains(&place) {
                    continue;
                }
                let (is_kept, why) = match asked.contains(&entity) {
                    true => why_hidden(&**source, entity, &place).await,
                    false => (true, None),
                };
                let (database, table) = &place;
                hidden.extend(why.map(|why| HiddenTable {
                    entity,
                    source: name.clone(),
                    place: place.clone(),
                    why: format!("table {database}.{table} of source {name} {why}"),
                }));
                if is_kept {
                    now.insert(place);
                }
            }
        }
    }
    (shown, hidden)
}

/// Returns whether to remember a table that is no longer visible, and the reason to report.
async fn why_hidden(
    source: &impl RowSource,
    entity: Entity,
    (database, table): &(String, String),
) -> (bool, Option<String>) {
    // The shard is a dummy: nothing is kept or compared under it.
    let shard = ShardId::from_u64(0).expect("63 bits");
    let table = TableIdentity { entity, shard, database: database.into(), table: table.into() }.into_owned();
    // `absence` answers less: a table that may be read and one that is hidden are both not proved absent, but only the
    // hidden one is kept, with its fault as the reason to report.
    let no_keys = [(table, Vec::new())];
    match again(|| source.rows(&no_keys, FIRST_EPOCH)).await {
        Ok(_) => {
            (false, Some("was known in the reconciliation before, and is not captured any more".to_owned()))
        }
        Err(fault) if fault.code() == Code::SourceTableMissing => (false, None),
        Err(fault) if fault.class() == Class::Transient => (true, Some(format!("is not shown: {fault}"))),
        Err(fault) => (
            true,
            Some(format!("was known in the reconciliation before, and is not shown any more: {fault}")),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use anabranch_schemas::change::Value;

    use super::*;
    use crate::error::Fault;
    use crate::ports::SourcePressure;
    use crate::records::{Cell, Chunk, Condition, ScanCursor};

    /// A source that shows these tables and answers for every other one with this code.
    struct Listing(Vec<TableIdentity<'static>>, Code);

    impl RowSource for Listing {
        async fn tables(&self) -> Result<Vec<TableIdentity<'static>>, Fault> {
            Ok(self.0.clone())
        }

        fn visit_likely_tables(&self, _: Entity, _: &mut dyn FnMut(&TableIdentity<'_>)) {
            unreachable!("it is not asked")
        }

        async fn pressure(&self) -> Result<SourcePressure, Fault> {
            unreachable!("it is not asked")
        }

        async fn chunk(
            &self,
            _: &TableIdentity<'static>,
            _: Option<&ScanCursor>,
            _: NonZeroUsize,
            _: u16,
        ) -> Result<Chunk, Fault> {
            unreachable!("it is not asked")
        }

        async fn first_rows(&self, _: &[TableIdentity<'static>], _: u16) -> Result<Chunk, Fault> {
            unreachable!("it is not asked")
        }

        async fn replication_end(&self) -> Result<String, Fault> {
            unreachable!("it is not asked")
        }

        async fn has_replicated(&self, _: &str) -> Result<bool, Fault> {
            unreachable!("it is not asked")
        }

        async fn page(
            &self,
            _: &TableIdentity<'static>,
            _: Option<&ScanCursor>,
            _: NonZeroUsize,
            _: &mut (dyn FnMut(&[Value<'_>]) + Send),
        ) -> Result<Option<ScanCursor>, Fault> {
            unreachable!("it is not asked")
        }

        async fn matching(
            &self,
            _: &TableIdentity<'static>,
            _: &Condition,
            _: Option<&ScanCursor>,
            _: NonZeroUsize,
            _: u16,
        ) -> Result<Chunk, Fault> {
            unreachable!("it is not asked")
        }

        async fn rows(&self, keys: &[(TableIdentity<'static>, Vec<Cell>)], _: u16) -> Result<Chunk, Fault> {
            Err(Fault::new(self.1, format!("table {}", keys[0].0.table), "asked for"))
        }

        async fn absence(&self, _: &TableIdentity<'static>, _: u16) -> Result<Option<Chunk>, Fault> {
            unreachable!("it is not asked")
        }
    }

    fn tables(names: &[&'static str]) -> Vec<TableIdentity<'static>> {
        let shard = ShardId::from_u64(1).unwrap();
        let table = |name: &&'static str| TableIdentity {
            entity: Entity::User,
            shard,
            database: "users".into(),
            table: (*name).into(),
        };
        names.iter().map(table).collect()
    }

    async fn find_with(
        before: &VisibleTables,
        names: &[&'static str],
        others: Code,
    ) -> (VisibleTables, Vec<HiddenTable>) {
        let sources = [("a".to_owned(), Arc::new(Listing(tables(names), others)))].into();
        find_hidden_tables(&sources, before, &[Entity::User].into()).await
    }

    #[tokio::test]
    async fn a_table_that_is_hidden_is_told_by_name_until_it_is_shown_or_gone() {
        let (both, hidden) = find_with(&VisibleTables::new(), &["one", "two"], Code::Internal).await;
        assert_eq!(hidden, []);
        let (known, hidden) = find_with(&both, &["one"], Code::SourceGrantMissing).await;
        assert_eq!(known, both);
        assert!(
            matches!(&hidden[..], [HiddenTable { why, .. }] if why.contains("users.two of source a")),
            "{hidden:?}"
        );
        let (known, hidden) = find_with(&known, &["one"], Code::SourceGrantMissing).await;
        assert_eq!((known == both, hidden.len()), (true, 1));
        let (known, hidden) = find_with(&known, &["one"], Code::SourceTableMissing).await;
        assert_eq!((known["a"][&Entity::User].len(), hidden.len()), (1, 0));
    }
}
