//! The rows of a source's tables, before and now, from which an operator sees what a new beginning would remove.

use anabranch_pipeline::capture::EntityRows;
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::retry::again;
use serde::Serialize;

use crate::reconciliations::proven_rows;
use crate::wiring::Wiring;

/// The rows of one entity.
#[derive(Debug, Serialize)]
pub(super) struct RowsView<'a> {
    entity: &'static str,
    /// Rows of before, and the reconciliation that counted them; `None` = no report has them.
    before: Option<u64>,
    reconciliation: Option<&'a str>,
    /// Rows that were counted now, and those of larger tables by the server's estimates.
    counted: u64,
    estimated: u64,
}

impl<'a> RowsView<'a> {
    pub(super) fn of(rows: &'a EntityRows) -> Self {
        let before = rows.before.as_ref();
        Self {
            entity: rows.entity.name(),
            before: before.map(|(_, rows)| *rows),
            reconciliation: before.map(|(id, _)| id.as_str()),
            counted: rows.counted,
            estimated: rows.estimated,
        }
    }

    pub(super) fn text(&self) -> String {
        let now = match self.estimated {
            0 => format!("{} now", self.counted),
            estimated => format!("{} and about {estimated} more now", self.counted),
        };
        match (self.before, self.reconciliation) {
            (Some(before), Some(id)) => {
                format!("  rows of {}: {now}, {before} at reconciliation {id}", self.entity)
            }
            _ => format!("  rows of {}: {now}; no reconciliation counted those of before", self.entity),
        }
    }
}

/// Counts the rows of now, and reads those of before. Where the history cannot be read, a request that `needs_none` has
/// no rows of before.
pub(super) async fn read(wiring: &Wiring, source: &str, needs_none: bool) -> Result<Vec<EntityRows>, Fault> {
    let mut before = match again(|| proven_rows(wiring, source)).await {
        Ok(before) => before,
        Err(fault) if needs_none => {
            tracing::warn!(%fault, "the reports of reconciliations cannot be read");
            Default::default()
        }
        Err(fault) => return Err(fault),
    };
    let connector = wiring.source(source)?;
    let mut now = again(|| connector.counted_rows()).await?;
    let mut entities = wiring.source_config(source)?.entities.clone();
    entities.sort_unstable();
    entities.dedup();
    let rows = entities.into_iter().map(|entity| {
        let (counted, estimated) = now.remove(&entity).unwrap_or_default();
        EntityRows { entity, before: before.remove(&entity), counted, estimated }
    });
    Ok(rows.collect())
}

#[cfg(test)]
mod tests {
    use anabranch_schemas::change::Entity;

    use super::*;

    #[test]
    fn both_numbers_are_shown() {
        let before = Some(("r-1".to_owned(), 40));
        let rows = EntityRows { entity: Entity::User, before, counted: 30, estimated: 0 };
        assert_eq!(RowsView::of(&rows).text(), "  rows of user: 30 now, 40 at reconciliation r-1");
        let unknown = EntityRows { before: None, estimated: 7, ..rows };
        let shown = RowsView::of(&unknown).text();
        assert_eq!(
            shown,
            "  rows of user: 30 and about 7 more now; no reconciliation counted those of before"
        );
    }
}
