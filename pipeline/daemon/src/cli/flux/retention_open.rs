//! How many documents of the due tables have an open refund or the like, by the relation index. The counts are advice:
//! a fault costs the count of its table, and the plan stands.

use anabranch_pipeline::error::Fault;
use anabranch_schemas::flux::id::Level;
use anabranch_schemas::flux::retention::YearMonth;
use futures::{Stream, StreamExt};
use jiff::civil::Date;

use super::document_tables::DocumentTable;
use crate::wiring::Wiring;

/// Statements that run at once: each reads the documents of one table.
const STATEMENTS: usize = 4;
/// Faults after which no further table is counted: each may take the ten minutes of its limit.
const FAULTS_MAX: usize = 3;

/// The counts of the due tables.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct OpenDocuments {
    /// The documents of each table that a refund or the like follows within the refunds' time, in the order of the
    /// tables; `None` = a fault, no index, or a name that says no user partition.
    pub of_tables: Vec<Option<u64>>,
    /// A sentence for each fault, and one for the tables that were not counted after too many.
    pub unknown: Vec<String>,
}

impl OpenDocuments {
    /// Counts the open documents of these tables.
    pub(super) async fn of(wiring: &Wiring, tables: &[&DocumentTable], today: Date) -> Self {
        let index = wiring
            .relations_projection()
            .and_then(|(projection, _)| wiring.relation_index(projection, STATEMENTS));
        let months = wiring.config().flux_retention().index_months_after.get();
        let since = YearMonth::of(today).before(months).digits();
        let (index, since) = (&index, since.as_str());
        let counts = futures::stream::iter(tables.iter().copied())
            .map(|table| async move {
                // Every kind that follows a document follows a composite.
                if table.level == Some(Level::Atom) {
                    return (table.name(), Ok(Some(0)));
                }
                let (Some(index), Some(partition)) = (index, table.partition) else {
                    return (table.name(), Ok(None));
                };
                let open = index.open_documents(partition, table.table().identity.shard, since).await;
                (table.name(), open.map(Some))
            })
            .buffered(STATEMENTS);
        Self::gathered(tables.len(), counts).await
    }

    /// Gathers the counts of so many tables, in their order, until there are too many faults.
    async fn gathered(
        tables: usize,
        counts: impl Stream<Item = (String, Result<Option<u64>, Fault>)>,
    ) -> Self {
        let mut counts = std::pin::pin!(counts);
        let mut all = Self::default();
        while all.unknown.len() < FAULTS_MAX
            && let Some((table, count)) = counts.next().await
        {
            all.of_tables.push(count.unwrap_or_else(|fault| {
                all.unknown.push(format!("the index did not say the open documents of {table}: {fault}"));
                None
            }));
        }
        let left = tables - all.of_tables.len();
        if left > 0 {
            all.unknown.push(format!(
                "{left} more due tables were not asked for open documents, because {FAULTS_MAX} tables had faults"
            ));
        }
        all.of_tables.resize(tables, None);
        all
    }
}

#[cfg(test)]
mod tests {
    use anabranch_pipeline::error::Code;

    use super::*;

    type Count = (String, Result<Option<u64>, Fault>);

    async fn gathered(counts: Vec<Count>) -> OpenDocuments {
        OpenDocuments::gathered(counts.len(), futures::stream::iter(counts)).await
    }

    fn fault() -> Result<Option<u64>, Fault> {
        Err(Fault::new(Code::Internal, "target-a", "no answer"))
    }

    #[tokio::test]
    async fn a_fault_costs_the_count_of_its_table() {
        let counts = vec![
            ("d.composite".to_owned(), Ok(Some(7))),
            ("d.broken".to_owned(), fault()),
            ("d.unnamed".to_owned(), Ok(None)),
            ("d.atom".to_owned(), Ok(Some(0))),
        ];
        let open = gathered(counts).await;
        assert_eq!(open.of_tables, [Some(7), None, None, Some(0)]);
        let [unknown] = open.unknown.as_slice() else { panic!("{open:?}") };
        assert!(unknown.starts_with("the index did not say the open documents of d.broken: "), "{unknown}");
    }

    #[tokio::test]
    async fn no_table_is_counted_after_three_faults() {
        let mut counts: Vec<Count> = (0..3).map(|table| (format!("d.t{table}"), fault())).collect();
        counts.extend((3..200).map(|table| (format!("d.t{table}"), Ok(Some(1)))));
        let open = gathered(counts).await;
        assert_eq!(open.of_tables, vec![None; 200]);
        assert_eq!(open.unknown.len(), FAULTS_MAX + 1);
        assert!(open.unknown[FAULTS_MAX].starts_with("197 more due tables were not asked"), "{open:?}");
    }
}
