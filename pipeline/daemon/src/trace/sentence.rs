//! The one sentence of a trace: the stores equal the source, or why they differ. It follows from what was read alone.
//!
//! The gravest difference decides, and the lane that owns the row says why it is there. Without a difference, stores
//! and sources that could not be read come first, then the cache, then rows that make no derived row.

use super::lanes::{LaneReach, TracedLane};
use super::stores::{Difference, DifferenceKind};
use super::view::{CacheEntryView, UnreadView};

/// The facts that were read about one key.
#[derive(Default)]
pub(super) struct Facts<'f> {
    /// Source rows as `database.table of source`.
    pub(super) rows: Vec<String>,
    /// Number of the derived rows that they claim.
    pub(super) claims: usize,
    /// Number of stores.
    pub(super) stores: usize,
    /// Projection and reason of each row that claims nothing of it.
    pub(super) excluded: Vec<(&'f str, &'f str)>,
    pub(super) differences: &'f [Difference],
    pub(super) lanes: &'f [TracedLane],
    /// The source rows changed between two reads.
    pub(super) is_hot: bool,
    pub(super) unread: &'f [UnreadView],
    /// Stores that could not be read, with the reason.
    pub(super) unread_stores: Vec<(String, &'f str)>,
    pub(super) cache: Option<&'f CacheEntryView>,
    /// The log has a change of the key.
    pub(super) is_in_log: bool,
    /// Messages of the log that were searched.
    pub(super) messages: u64,
    /// A lane is to read a table again that has the key or may have it.
    pub(super) owed: Option<String>,
}

/// Says whether the stores equal the source rows, or why they differ.
pub(super) fn sentence(facts: &Facts<'_>) -> String {
    let mut text = match facts.differences.iter().max_by_key(|difference| difference.kind) {
        Some(gravest) => different(facts, gravest),
        None => alike(facts),
    };
    if let Some(unread) = facts.unread.first()
        && !facts.differences.is_empty()
    {
        text.push_str(&format!("; source {} could not be read as a whole", unread.source));
    }
    if let Some(owed) = &facts.owed {
        text.push_str(&format!("; {owed}"));
    }
    text + "."
}

/// Says why one difference is there; it comes from the lane that owns the derived row.
pub(super) fn why(facts: &Facts<'_>, difference: &Difference) -> String {
    let Difference { kind, lane, source_table, .. } = difference;
    let reach = facts.lanes.iter().find(|known| known.id == *lane).map(|known| &known.reach);
    if facts.is_hot {
        return "the source row changed while it was read: trace it again".to_owned();
    }
    match reach.unwrap_or(&LaneReach::Unknown) {
        LaneReach::Paused => {
            let projection = &lane.projection;
            format!("lane {lane} is paused, which `anabranch resume --projection {projection}` ends")
        }
        LaneReach::Failed { state, code } => {
            let code = code.as_deref().unwrap_or("internal");
            format!("lane {lane} is {state} with {code}: `anabranch explain {code}` says what to do")
        }
        LaneReach::Refreshing => format!("lane {lane} reads its tables again and is not through"),
        LaneReach::Replaying => {
            format!("lane {lane} has not begun, or applies a part of the past once more")
        }
        LaneReach::Incomparable => {
            format!("the position of lane {lane} cannot be compared with the source's: `anabranch status`")
        }
        LaneReach::Unknown => format!("it is not known how far lane {lane} is"),
        LaneReach::Lagging { lag_seconds } => {
            let lag = lag_seconds.map_or_else(String::new, |lag| format!(" (behind by {lag:.0} s)"));
            format!("lane {lane} has not reached the change yet{lag}")
        }
        LaneReach::Passed => {
            let ends = match kind {
                DifferenceKind::LeftOver => "removes it",
                DifferenceKind::Stale | DifferenceKind::Missing => "writes it",
            };
            format!(
                "lane {lane} has passed the change, so this stays: the nightly reconciliation or `anabranch refresh \
                 --projection {} --source {} --table {source_table} --key KEY` {ends}",
                lane.projection, lane.source
            )
        }
    }
}

fn different(facts: &Facts<'_>, gravest: &Difference) -> String {
    let Difference { kind, derived, lane, source_table } = gravest;
    let (store, source) = (format!("{}/{}", lane.projection, lane.target), &lane.source);
    let found = match kind {
        DifferenceKind::Missing => {
            format!("{store} lacks a row in {derived} that {source_table} of {source} claims")
        }
        DifferenceKind::Stale => {
            format!("{store} has other values in {derived} than {source_table} of {source} says")
        }
        DifferenceKind::LeftOver => {
            format!("{store} has a row left over in {derived} that {source_table} of {source} does not claim")
        }
    };
    let more = match facts.differences.len() - 1 {
        0 => String::new(),
        1 => " (and there is 1 more difference)".to_owned(),
        more => format!(" (and there are {more} more differences)"),
    };
    format!("{found}{more}: {}", why(facts, gravest))
}

/// Says that nothing differs, as far as everything was read.
fn alike(facts: &Facts<'_>) -> String {
    if let Some((store, why)) = facts.unread_stores.first() {
        return format!("{store} could not be read, and nothing else differs: {why}");
    }
    if let Some(UnreadView { source, why }) = facts.unread.first() {
        return format!("Source {source} could not be read as a whole, and nothing else differs: {why}");
    }
    if let Some(cache) = facts.cache.filter(|cache| cache.differs == Some(true)) {
        let name = &cache.cache;
        return format!(
            "The stores equal the source, but cache {name} holds another answer: its drain removes the entry, or the \
             nightly reconciliation or `anabranch reconcile --now --store cache/{name}` does"
        );
    }
    if facts.rows.is_empty() {
        return match facts.is_in_log {
            true => "Equal: no source table has this key any more, and no store has a row of it (rows of tables that left are not \
                 sought)".to_owned(),
            false => format!(
                "Nothing has this key: no source table, no store, and none of the newest {} messages of the log (rows of \
                 tables that left are not sought)",
                facts.messages
            ),
        };
    }
    let rows = facts.rows.join(", ");
    match facts.excluded.first() {
        Some((projection, reason)) if facts.claims == 0 => format!(
            "Equal: the row in {rows} makes no derived row of {projection} ({reason}), and no store has one"
        ),
        Some((projection, reason)) => format!(
            "Equal: the stores have the {} derived rows that {rows} claims; {projection} gets none ({reason})",
            facts.claims
        ),
        None => format!(
            "Equal: {} has exactly what {rows} claims, {} derived {}",
            if facts.stores == 1 { "the store" } else { "each store" },
            facts.claims,
            if facts.claims == 1 { "row" } else { "rows" }
        ),
    }
}

#[cfg(test)]
mod tests;
