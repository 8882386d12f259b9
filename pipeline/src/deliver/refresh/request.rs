//! Requests a refresh of a lane, through its stored progress.

use crate::deliver::rewind::amend;
use crate::error::{Code, Fault};
use crate::ports::LaneStore;
use crate::records::{KEYS_MAX, LaneId, Progress, Refresh, Scope};

/// Requests a refresh; that fences the process that runs the lane, which begins it. Returns the progress before.
///
/// A lane has one refresh at a time. A refresh of all tables replaces any other, and a request for the same scope
/// begins it again. A refresh of tables that only wait to be read again lets any other go first.
pub async fn request_refresh(
    id: &LaneId,
    store: &mut impl LaneStore,
    scope: Scope,
) -> Result<Progress, Fault> {
    require_sound(id, &scope)?;
    amend(store, |before: &Progress| asked(id, &scope, before).map(Some)).await
}

/// Refuses what [`request_refresh`] refuses, and changes nothing. Returns the progress.
pub async fn rehearse_refresh(
    id: &LaneId,
    store: &mut impl LaneStore,
    scope: Scope,
) -> Result<Progress, Fault> {
    require_sound(id, &scope)?;
    amend(store, |before: &Progress| asked(id, &scope, before).map(|_| None)).await
}

fn refused(id: &LaneId, found: String) -> Fault {
    Fault::new(Code::RefreshRefused, format!("lane {id}"), found)
}

fn require_sound(id: &LaneId, scope: &Scope) -> Result<(), Fault> {
    match scope.problem() {
        Some(problem) => Err(refused(id, problem)
            .needs(format!("1 to {KEYS_MAX} keys in one request, each a user id or a uuid"))),
        None => Ok(()),
    }
}

/// Returns the progress with the refresh, unless another one is under way.
fn asked(id: &LaneId, scope: &Scope, before: &Progress) -> Result<Progress, Fault> {
    let is_replaced =
        |other: &Refresh| *scope == Scope::Source || *scope == other.scope || other.scope == Scope::Rereads;
    if before.refresh.as_ref().is_some_and(|other| !is_replaced(other)) {
        return Err(refused(id, "another refresh is under way".to_owned())
            .needs("its end, or a refresh of all tables, which takes its place"));
    }
    let revision = before.revision + 1;
    // Tables that wait to be read again still do, unless all tables are read now.
    let waits = before.refresh.as_ref().filter(|_| *scope != Scope::Source);
    let rereads = waits.map(|refresh| refresh.rereads.clone()).unwrap_or_default();
    let every_waits = waits.is_some_and(|refresh| refresh.every_waits);
    let refresh = Some(Refresh { rereads, every_waits, ..Refresh::new(scope.clone()) });
    Ok(Progress { revision, refresh, was_refreshed: true, ..before.clone() })
}
