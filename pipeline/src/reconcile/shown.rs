//! The captured tables that sources show, from reconciliation to reconciliation.
//!
//! A grant that was taken away, or a pattern that fits no more, hides a table from the list. Where it has
//! no derived rows, nothing on either side would tell: only that the reconciliation before knew it. So what is not
//! shown any more is asked for by its name. A table that is gone is forgotten; one that may not be read is told in
//! each reconciliation until it is read again or gone; one that may be read and is not captured is told once, since a
//! person may have meant it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anabranch_schemas::change::{Entity, TableIdentity};
use anabranch_schemas::lsn::FIRST_EPOCH;
use anabranch_schemas::shard::ShardId;

use crate::error::{Class, Code};
use crate::ports::RowSource;
use crate::retry::again;

/// Database and table, by source and what they hold.
pub type VisibleTables = BTreeMap<String, BTreeMap<Entity, BTreeSet<(String, String)>>>;

/// A table that is not shown any more, so a reconciliation of its entity is incomplete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HiddenTable {
    pub entity: Entity,
    pub source: String,
    /// Database and table.
    pub place: (String, String),
    /// A sentence that names the table.
    pub why: String,
}

/// What sources show, and what of `before` they do not show any more. Tables of other entities than `asked` stay as
/// they were known.
pub async fn look<S: RowSource>(
    sources: &BTreeMap<String, Arc<S>>,
    before: &VisibleTables,
    asked: &BTreeSet<Entity>,
) -> (VisibleTables, Vec<HiddenTable>) {
    let (mut shown, mut hidden) = (VisibleTables::new(), Vec::new());
    for (name, source) in sources {
        let known = before.get(name).cloned().unwrap_or_default();
        let Ok(tables) = again(|| source.tables()).await else {
            // Every store of it says so.
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

/// Whether a table that is not shown is still to be known, and what is to be said of it.
async fn why_hidden(
    source: &impl RowSource,
    entity: Entity,
    (database, table): &(String, String),
) -> (bool, Option<String>) {
    // Nothing is kept or compared under its shard.
    let shard = ShardId::from_u64(0).expect("63 bits");
    let table = TableIdentity { entity, shard, database: database.into(), table: table.into() }.into_owned();
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
    use crate::ports::Pressure;
    use crate::records::{Cell, Chunk, ChunkKey, Condition};

    /// Shows these tables, and says this of all others.
    struct Listing(Vec<TableIdentity<'static>>, Code);

    impl RowSource for Listing {
        async fn tables(&self) -> Result<Vec<TableIdentity<'static>>, Fault> {
            Ok(self.0.clone())
        }

        async fn pressure(&self) -> Result<Pressure, Fault> {
            unreachable!("nobody asks")
        }

        async fn chunk(
            &self,
            _: &TableIdentity<'static>,
            _: Option<&ChunkKey>,
            _: NonZeroUsize,
            _: u16,
        ) -> Result<Chunk, Fault> {
            unreachable!("nobody asks")
        }

        async fn replication_end(&self) -> Result<String, Fault> {
            unreachable!("nobody asks")
        }

        async fn has_replicated(&self, _: &str) -> Result<bool, Fault> {
            unreachable!("nobody asks")
        }

        async fn page(
            &self,
            _: &TableIdentity<'static>,
            _: Option<&ChunkKey>,
            _: NonZeroUsize,
            _: &mut (dyn FnMut(&[Value<'_>]) + Send),
        ) -> Result<Option<ChunkKey>, Fault> {
            unreachable!("nobody asks")
        }

        async fn matching(
            &self,
            _: &TableIdentity<'static>,
            _: &Condition,
            _: Option<&ChunkKey>,
            _: NonZeroUsize,
            _: u16,
        ) -> Result<Chunk, Fault> {
            unreachable!("nobody asks")
        }

        async fn rows(&self, keys: &[(TableIdentity<'static>, Vec<Cell>)], _: u16) -> Result<Chunk, Fault> {
            Err(Fault::new(self.1, format!("table {}", keys[0].0.table), "asked for"))
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

    async fn looked(
        before: &VisibleTables,
        names: &[&'static str],
        others: Code,
    ) -> (VisibleTables, Vec<HiddenTable>) {
        let sources = [("a".to_owned(), Arc::new(Listing(tables(names), others)))].into();
        look(&sources, before, &[Entity::User].into()).await
    }

    #[tokio::test]
    async fn a_table_that_is_hidden_is_told_by_name_until_it_is_shown_or_gone() {
        let (both, hidden) = looked(&VisibleTables::new(), &["one", "two"], Code::Internal).await;
        assert_eq!(hidden, []);
        let (known, hidden) = looked(&both, &["one"], Code::SourceGrantMissing).await;
        assert_eq!(known, both);
        assert!(
            matches!(&hidden[..], [HiddenTable { why, .. }] if why.contains("users.two of source a")),
            "{hidden:?}"
        );
        let (known, hidden) = looked(&known, &["one"], Code::SourceGrantMissing).await;
        assert_eq!((known == both, hidden.len()), (true, 1));
        let (known, hidden) = looked(&known, &["one"], Code::SourceTableMissing).await;
        assert_eq!((known["a"][&Entity::User].len(), hidden.len()), (1, 0));
    }
}
