//! The relation index of payment documents in a target in memory, as its lanes have written it.

use std::collections::BTreeMap;

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::ports::RelationStore;
use anabranch_pipeline::projections::flux_relations::FluxRelations;
use anabranch_pipeline::records::{Cell, RelationRow};
use anabranch_schemas::flux::id::FluxId;

use super::MemoryTarget;

/// The relation tables of one projection, all on one target.
#[derive(Debug, Clone)]
pub struct MemoryRelations {
    target: MemoryTarget,
    relations: FluxRelations,
    /// System code of every stored identifier.
    system: u16,
}

impl MemoryTarget {
    /// Returns the relation index that the lanes of this target write.
    pub fn relations(&self, relations: &FluxRelations, system: u16) -> MemoryRelations {
        MemoryRelations { target: self.clone(), relations: relations.clone(), system }
    }
}

impl MemoryRelations {
    /// Returns the rows that `is_sought` accepts; it gets the table and the row.
    async fn rows(&self, is_sought: impl Fn(u32, &RelationRow) -> bool) -> Result<Vec<RelationRow>, Fault> {
        let bytes = |cell: &Cell| match cell {
            Cell::Bytes(bytes) => Some(bytes.clone()),
            Cell::Null | Cell::Int(_) | Cell::UInt(_) => None,
        };
        let mut found = BTreeMap::new();
        let stored = self.target.ask(|target| target.rows().into_iter().collect()).await?;
        for ((table, shard, key), (_, values)) in stored {
            let id = bytes(&key[0]).and_then(|id| FluxId::parse_of(&id, self.system).ok());
            let mut values = values.iter().map(bytes);
            let row = RelationRow {
                id: id.expect("lanes write identifiers of the system alone"),
                shard,
                parent: values.next().flatten(),
                amount: values.next().flatten(),
                created: values.next().flatten(),
            };
            if is_sought(table, &row) {
                found.insert(row.order(), row);
            }
        }
        Ok(found.into_values().collect())
    }

    /// Returns whether a table is that of the identifier's partition.
    fn is_of(&self, table: u32, id: &FluxId) -> bool {
        self.relations.table_of(id.parts().partition) == table
    }
}

impl RelationStore for MemoryRelations {
    async fn documents(&self, ids: &[FluxId]) -> Result<Vec<RelationRow>, Fault> {
        self.rows(|table, row| ids.contains(&row.id) && self.is_of(table, &row.id)).await
    }

    async fn children(&self, parents: &[FluxId], limit: usize) -> Result<Vec<RelationRow>, Fault> {
        let is_child = |table, row: &RelationRow| {
            let is_parent = |id: &FluxId| row.parent.as_deref() == Some(id.digits().as_slice());
            parents.iter().any(|id| is_parent(id) && self.is_of(table, id))
        };
        let mut rows = self.rows(is_child).await?;
        rows.truncate(limit);
        Ok(rows)
    }
}
