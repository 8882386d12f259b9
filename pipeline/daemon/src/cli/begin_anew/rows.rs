//! The rows of a source's tables, before and now, from which an operator sees what a new beginning would remove.

use anabranch_pipeline::capture::EntityRows;
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::retry::again;
use serde::Serialize;

use crate::reconciliations::proven_rows;
use crate::wiring::Wiring;

/// The step that follows the remedy of a fault that kept rows from being counted.
const UNCOUNTED: &str = "repeat the command; if the server is known to have all rows, add `--open-gate`, which goes on \
                         without their numbers";

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
    /// Whether the entity's tables leave by a retention rule: then the drift gate does not judge them.
    retained: bool,
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
            retained: rows.is_retained,
        }
    }

    pub(super) fn text(&self) -> String {
        let now = match self.estimated {
            0 => format!("{} now", self.counted),
            estimated => format!("{} and about {estimated} more now", self.counted),
        };
        let before = match (self.before, self.reconciliation) {
            (Some(before), Some(id)) => format!(", {before} at reconciliation {id}"),
            _ => "; no reconciliation counted those of before".to_owned(),
        };
        let retained = if self.retained { "; a retention rule may have removed some" } else { "" };
        format!("  rows of {}: {now}{before}{retained}", self.entity)
    }
}

/// Counts the rows of now, and reads those of before. Where the gate is open, a history that cannot be read leaves out
/// the rows of before, and a failed count leaves out all.
pub(super) async fn read(
    wiring: &Wiring,
    source: &str,
    is_gate_open: bool,
) -> Result<Vec<EntityRows>, Fault> {
    let mut before = match again(|| proven_rows(wiring, source)).await {
        Ok(before) => before,
        Err(fault) if is_gate_open => {
            tracing::warn!(%fault, "the reports of reconciliations cannot be read");
            Default::default()
        }
        Err(fault) => return Err(fault.then(UNCOUNTED)),
    };
    let connector = wiring.source(source)?;
    let mut now = match again(|| connector.counted_rows()).await {
        Ok(now) => now,
        Err(fault) if is_gate_open => {
            tracing::warn!(%fault, "the rows of the source cannot be counted");
            return Ok(Vec::new());
        }
        Err(fault) => return Err(fault.then(UNCOUNTED)),
    };
    let mut entities = wiring.source_config(source)?.entities.clone();
    entities.sort_unstable();
    entities.dedup();
    let rows = entities.into_iter().map(|entity| {
        let (counted, estimated) = now.remove(&entity).unwrap_or_default();
        let is_retained = wiring.config().retains(entity);
        EntityRows { entity, is_retained, before: before.remove(&entity), counted, estimated }
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
        let rows = EntityRows { entity: Entity::User, is_retained: false, before, counted: 30, estimated: 0 };
        assert_eq!(RowsView::of(&rows).text(), "  rows of user: 30 now, 40 at reconciliation r-1");
        let unknown = EntityRows { before: None, estimated: 7, ..rows };
        let shown = RowsView::of(&unknown).text();
        assert_eq!(
            shown,
            "  rows of user: 30 and about 7 more now; no reconciliation counted those of before"
        );
        let shown = RowsView::of(&EntityRows { is_retained: true, ..unknown }).text();
        assert!(shown.ends_with("of before; a retention rule may have removed some"), "{shown}");
    }
}
