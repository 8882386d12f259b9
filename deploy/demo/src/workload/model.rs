//! A worker's belief about its own rows: which exist, and in which tables.
//!
//! The planner changes the model with a transaction, and undoes the changes if it does not commit. The model need not
//! be exact: after a lost connection it is read back from the servers, and the verification never uses it.

use std::collections::HashSet;

use rand::RngExt;
use rand::rngs::StdRng;

use crate::topology::SourceTable;

/// A row that the workload changes: a user, a device, a payment document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    /// The id of a user, or the number of a device or payment document.
    pub id: u64,
    pub source_table: SourceTable,
}

#[derive(Debug)]
enum Undo {
    Remove { source: usize, id: u64 },
    Restore { source: usize, row: Row },
}

/// Rows by source server, and the changes of the open transaction to undo.
#[derive(Debug)]
pub(super) struct Model {
    rows: Vec<Vec<Row>>,
    undo: Vec<Undo>,
    /// Rows that the open transaction touches.
    touched: Vec<u64>,
}

impl Model {
    pub fn new(sources: usize) -> Self {
        Self { rows: vec![Vec::new(); sources], undo: Vec::new(), touched: Vec::new() }
    }

    pub fn count(&self, source: usize) -> usize {
        self.rows[source].len()
    }

    pub fn has(&self, id: u64) -> bool {
        self.rows.iter().flatten().any(|row| row.id == id)
    }

    pub fn pick(&mut self, random: &mut StdRng, source: usize) -> Option<Row> {
        let rows = &self.rows[source];
        let row = *rows.get(random.random_range(0..rows.len().max(1)))?;
        self.touched.push(row.id);
        Some(row)
    }

    pub fn take(&mut self, random: &mut StdRng, source: usize) -> Option<Row> {
        if self.rows[source].is_empty() {
            return None;
        }
        let index = random.random_range(0..self.rows[source].len());
        let row = self.rows[source].swap_remove(index);
        self.undo.push(Undo::Restore { source, row });
        self.touched.push(row.id);
        Some(row)
    }

    /// Takes a row that fits; `None` when no row of the server does.
    pub fn take_fit(
        &mut self,
        random: &mut StdRng,
        source: usize,
        is_fit: impl Fn(&Row) -> bool,
    ) -> Option<Row> {
        let rows = &mut self.rows[source];
        let start = random.random_range(0..rows.len().max(1));
        let index = (start..rows.len()).chain(0..start).find(|index| is_fit(&rows[*index]))?;
        let row = rows.swap_remove(index);
        self.undo.push(Undo::Restore { source, row });
        self.touched.push(row.id);
        Some(row)
    }

    /// Returns up to `count` different rows, spread over the whole list.
    pub fn pick_many(&mut self, random: &mut StdRng, source: usize, count: usize) -> Vec<Row> {
        let rows = &self.rows[source];
        let start = random.random_range(0..rows.len().max(1));
        let picked: Vec<Row> = rows.iter().cycle().skip(start).take(count.min(rows.len())).copied().collect();
        self.touched.extend(picked.iter().map(|row| row.id));
        picked
    }

    pub fn take_many(&mut self, random: &mut StdRng, source: usize, count: usize) -> Vec<Row> {
        (0..count).map_while(|_| self.take(random, source)).collect()
    }

    pub fn add(&mut self, source: usize, row: Row) {
        self.rows[source].push(row);
        self.undo.push(Undo::Remove { source, id: row.id });
        self.touched.push(row.id);
    }

    /// Returns a point of the open transaction for [`Model::roll_back_to`].
    pub fn savepoint(&self) -> usize {
        self.undo.len()
    }

    pub fn roll_back_to(&mut self, savepoint: usize) {
        for undo in self.undo.drain(savepoint..).rev() {
            match undo {
                Undo::Remove { source, id } => {
                    let rows = &mut self.rows[source];
                    if let Some(index) = rows.iter().rposition(|row| row.id == id) {
                        rows.swap_remove(index);
                    }
                }
                Undo::Restore { source, row } => self.rows[source].push(row),
            }
        }
    }

    pub fn commit(&mut self) {
        self.undo.clear();
        self.touched.clear();
    }

    pub fn roll_back(&mut self) {
        self.roll_back_to(0);
        self.touched.clear();
    }

    /// Forgets all rows of the open transaction, whose outcome is unknown, and returns their ids.
    pub fn forget_touched(&mut self) -> Vec<u64> {
        self.undo.clear();
        let mut ids = std::mem::take(&mut self.touched);
        ids.sort_unstable();
        ids.dedup();
        self.forget(&ids);
        ids
    }

    pub fn forget(&mut self, ids: &[u64]) {
        let ids: HashSet<u64> = ids.iter().copied().collect();
        for rows in &mut self.rows {
            rows.retain(|row| !ids.contains(&row.id));
        }
    }
}

#[cfg(test)]
mod tests {
    use anabranch_schemas::change::Entity;
    use rand::SeedableRng;

    use super::*;

    fn model() -> (Model, StdRng) {
        let mut model = Model::new(2);
        for id in 0..10 {
            model.add(
                0,
                Row { id, source_table: SourceTable { entity: Entity::User, database: 0, table: 0 } },
            );
        }
        model.commit();
        (model, StdRng::seed_from_u64(3))
    }

    fn ids(model: &Model, source: usize) -> Vec<u64> {
        let mut ids: Vec<u64> = model.rows[source].iter().map(|row| row.id).collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn a_rolled_back_move_leaves_the_row_where_it_was() {
        let (mut model, mut random) = model();
        let row = model.take(&mut random, 0).unwrap();
        model.add(1, row);
        model.roll_back();
        assert_eq!((ids(&model, 0), ids(&model, 1)), ((0..10).collect(), vec![]));
    }

    #[test]
    fn what_a_transaction_of_unknown_outcome_touched_is_forgotten() {
        let (mut model, mut random) = model();
        let taken = model.take(&mut random, 0).unwrap();
        model.add(1, taken);
        let picked = model.pick(&mut random, 0).unwrap();
        let mut expected = vec![taken.id, picked.id];
        expected.sort_unstable();
        assert_eq!(model.forget_touched(), expected);
        assert_eq!((model.count(0), model.count(1)), (8, 0));
    }
}
