//! The captured tables that sources show, from reconciliation to reconciliation.
//!
//! A revoked grant, or a pattern that no longer fits, hides a table from the list. If it has no derived rows, nothing
//! on either side shows that: only the previous reconciliation knew the table. So each table that is missing from the
//! list is asked for by its name:
//! - A table that is gone is forgotten.
//! - A table that may not be read is reported in each reconciliation, until it is read again or gone.
//! - A table that may be read and is not captured is reported once, since a person may have meant it. It stays known
//!   until it is captured again or gone: its derived rows are no rows of a table that no source has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anabranch_schemas::change::Entity;

use crate::ports::{RowSource, TableVisibility};
use crate::retry::again;

/// Database and table names of one source, by entity.
type TablesOfSource = BTreeMap<Entity, BTreeSet<(String, String)>>;
/// Database and table names, by source and entity.
pub type VisibleTables = BTreeMap<String, TablesOfSource>;

/// The tables that a reconciliation knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownTables {
    /// Tables that sources show, and those that they hide.
    pub shown: VisibleTables,
    /// Tables that were captured, that sources have, and that no pattern captures any more.
    pub uncaptured: VisibleTables,
}

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

/// The answer of a source for a table that its list lacks.
enum Unlisted {
    Gone,
    Uncaptured,
    /// The source does not show it, for this reason.
    Hidden(String),
}

/// Returns the tables that are known now, and those of `before` that sources no longer show. Tables of entities that
/// are not in `asked` stay as they were.
pub async fn find_hidden_tables<S: RowSource>(
    sources: &BTreeMap<String, Arc<S>>,
    before: &KnownTables,
    asked: &BTreeSet<Entity>,
) -> (KnownTables, Vec<HiddenTable>) {
    let (mut known, mut hidden) = (KnownTables::default(), Vec::new());
    for (name, source) in sources {
        let Ok(tables) = again(|| source.tables()).await else {
            // Every store of this source reports the failure.
            keep(&before.shown, name, &mut known.shown);
            keep(&before.uncaptured, name, &mut known.uncaptured);
            continue;
        };
        let of_source = known.shown.entry(name.clone()).or_default();
        for table in tables {
            let place = (table.database.into_owned(), table.table.into_owned());
            of_source.entry(table.entity).or_default().insert(place);
        }
        let mut uncaptured = TablesOfSource::new();
        for (entity, place) in tables_of(&before.shown, name) {
            let now = of_source.entry(entity).or_default();
            if now.contains(place) {
                continue;
            }
            if !asked.contains(&entity) {
                now.insert(place.clone());
                continue;
            }
            let why = match unlisted(&**source, place).await {
                Unlisted::Gone => continue,
                Unlisted::Uncaptured => {
                    uncaptured.entry(entity).or_default().insert(place.clone());
                    "was known in the reconciliation before, and is not captured any more".to_owned()
                }
                Unlisted::Hidden(why) => {
                    now.insert(place.clone());
                    why
                }
            };
            let (database, table) = place;
            hidden.push(HiddenTable {
                entity,
                source: name.clone(),
                place: place.clone(),
                why: format!("table {database}.{table} of source {name} {why}"),
            });
        }
        for (entity, place) in tables_of(&before.uncaptured, name) {
            if of_source.get(&entity).is_some_and(|now| now.contains(place)) {
                continue;
            }
            if asked.contains(&entity) && matches!(unlisted(&**source, place).await, Unlisted::Gone) {
                continue;
            }
            uncaptured.entry(entity).or_default().insert(place.clone());
        }
        if !uncaptured.is_empty() {
            known.uncaptured.insert(name.clone(), uncaptured);
        }
    }
    (known, hidden)
}

/// Keeps what was known of a source that does not answer.
fn keep(before: &VisibleTables, source: &str, known: &mut VisibleTables) {
    if let Some(tables) = before.get(source) {
        known.insert(source.to_owned(), tables.clone());
    }
}

/// Returns the tables of a source, each with its entity.
fn tables_of<'t>(tables: &'t VisibleTables, source: &str) -> Vec<(Entity, &'t (String, String))> {
    let of_source = tables.get(source).into_iter().flatten();
    of_source.flat_map(|(entity, tables)| tables.iter().map(move |table| (*entity, table))).collect()
}

/// Asks for a table that the list of its source lacks. [`RowSource::absence`] answers less: a table that may be read
/// and one that is hidden are both not proved absent.
async fn unlisted(source: &impl RowSource, (database, table): &(String, String)) -> Unlisted {
    match again(|| source.visibility(database, table)).await {
        Ok(TableVisibility::Gone) => Unlisted::Gone,
        Ok(TableVisibility::Readable) => Unlisted::Uncaptured,
        Ok(TableVisibility::Hidden(fault)) => Unlisted::Hidden(format!(
            "was known in the reconciliation before, and is not shown any more: {fault}"
        )),
        Err(fault) => Unlisted::Hidden(format!("is not shown: {fault}")),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use anabranch_schemas::change::{TableIdentity, Value};
    use anabranch_schemas::shard::ShardId;

    use super::*;
    use crate::error::{Code, Fault};
    use crate::ports::SourcePressure;
    use crate::records::{Cell, Chunk, Condition, ScanCursor};

    /// A source that shows these tables and answers for every other one with this code; `None` = it may be read.
    struct Listing(Vec<TableIdentity<'static>>, Option<Code>);

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

        async fn rows(&self, _: &[(TableIdentity<'static>, Vec<Cell>)], _: u16) -> Result<Chunk, Fault> {
            unreachable!("it is not asked")
        }

        async fn visibility(&self, _: &str, table: &str) -> Result<TableVisibility, Fault> {
            let fault = |code| Err(Fault::new(code, format!("table {table}"), "asked for"));
            TableVisibility::of(self.1.map_or(Ok(()), fault))
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
        before: &KnownTables,
        names: &[&'static str],
        others: Option<Code>,
    ) -> (KnownTables, Vec<HiddenTable>) {
        let sources = [("a".to_owned(), Arc::new(Listing(tables(names), others)))].into();
        find_hidden_tables(&sources, before, &[Entity::User].into()).await
    }

    fn names(tables: &VisibleTables) -> Vec<&str> {
        tables_of(tables, "a").into_iter().map(|(_, (_, table))| table.as_str()).collect()
    }

    #[tokio::test]
    async fn a_table_that_is_hidden_is_told_by_name_until_it_is_shown_or_gone() {
        let (both, hidden) = find_with(&KnownTables::default(), &["one", "two"], Some(Code::Internal)).await;
        assert_eq!(hidden, []);
        let (known, hidden) = find_with(&both, &["one"], Some(Code::SourceGrantMissing)).await;
        assert_eq!(known, both);
        assert!(
            matches!(&hidden[..], [HiddenTable { why, .. }] if why.contains("users.two of source a")),
            "{hidden:?}"
        );
        let (known, hidden) = find_with(&known, &["one"], Some(Code::SourceGrantMissing)).await;
        assert_eq!((known == both, hidden.len()), (true, 1));
        let (known, hidden) = find_with(&known, &["one"], Some(Code::SourceTableMissing)).await;
        assert_eq!((names(&known.shown), hidden.len()), (vec!["one"], 0));
    }

    #[tokio::test]
    async fn a_table_that_no_pattern_captures_any_more_is_named_once_and_known_until_it_is_gone() {
        let (both, _) = find_with(&KnownTables::default(), &["one", "two"], None).await;
        let (known, hidden) = find_with(&both, &["one"], None).await;
        let why = "table users.two of source a was known in the reconciliation before, and is not captured any more";
        assert!(matches!(&hidden[..], [table] if table.why == why), "{hidden:?}");
        assert_eq!((names(&known.shown), names(&known.uncaptured)), (vec!["one"], vec!["two"]));
        // It stays as it is, even if its grant is taken away then.
        for code in [None, Some(Code::SourceGrantMissing)] {
            assert_eq!(find_with(&known, &["one"], code).await, (known.clone(), Vec::new()));
        }
        assert_eq!(find_with(&known, &["one", "two"], None).await, (both, Vec::new()));
        let (gone, hidden) = find_with(&known, &["one"], Some(Code::SourceTableMissing)).await;
        assert_eq!((names(&gone.uncaptured), hidden), (Vec::<&str>::new(), Vec::new()));
    }
}
