//! Requests a refresh of a lane, or ends its wait for a table that is gone, through its stored progress.

use std::collections::BTreeSet;

use anabranch_schemas::shard::ShardId;

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

/// Takes tables off the list of those that the lane is to read again; that fences the process that runs it. Returns
/// whether one was on the list; with `is_rehearsal` it stays there. The caller must know that the tables are gone.
pub async fn forget_rereads(
    store: &mut impl LaneStore,
    gone: &BTreeSet<ShardId>,
    is_rehearsal: bool,
) -> Result<bool, Fault> {
    let change = |before: &Progress| Ok(without_rereads(before, gone).filter(|_| !is_rehearsal));
    let before = amend(store, change).await?;
    Ok(without_rereads(&before, gone).is_some())
}

/// Returns the progress without these tables among those that wait to be read again; `None` if none of them does.
fn without_rereads(before: &Progress, gone: &BTreeSet<ShardId>) -> Option<Progress> {
    let mut refresh = before.refresh.clone()?;
    let waiting = refresh.rereads.len();
    refresh.rereads.retain(|shard, _| !gone.contains(shard));
    let is_shorter = refresh.rereads.len() < waiting;
    is_shorter.then(|| Progress { revision: before.revision + 1, refresh: Some(refresh), ..before.clone() })
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
    // Tables that wait to be read again still do. Without their entries, or the sign that more wait than are listed,
    // their derived rows would count as up to date until a refresh of all tables has come to them.
    let waits = before.refresh.as_ref();
    let rereads = waits.map(|refresh| refresh.rereads.clone()).unwrap_or_default();
    let every_waits = waits.is_some_and(|refresh| refresh.every_waits);
    let waiting = rereads.len();
    let refresh = Some(Refresh { rereads, every_waits, ..Refresh::new(scope.clone()) });
    let after = Progress { revision, refresh, was_refreshed: true, ..before.clone() };
    if after.has_room() {
        return Ok(after);
    }
    let removals = before.withdrawals.len();
    let found = format!(
        "its progress has no room beside {waiting} tables to be read again and {removals} with rows to remove"
    );
    Err(refused(id, found).needs("fewer keys in one request, or fewer such tables"))
}

#[cfg(test)]
mod tests {
    use anabranch_schemas::lsn::Lsn;

    use super::*;
    use crate::records::Cell;

    #[test]
    fn the_wait_for_a_table_that_is_gone_ends_and_the_others_stay() {
        let shard = |number| ShardId::from_u64(number).expect("it is small");
        let both =
            Refresh::with_reread(Some(Refresh::with_reread(None, shard(7), Lsn::MAX)), shard(8), Lsn::MAX);
        let before = Progress { revision: 4, refresh: Some(both), ..Progress::default() };
        let after = without_rereads(&before, &[shard(7), shard(9)].into()).expect("one of them waits");
        let left: Vec<ShardId> = after.refresh.iter().flat_map(|left| left.rereads.keys().copied()).collect();
        assert_eq!((after.revision, left), (5, vec![shard(8)]));
        assert_eq!(without_rereads(&after, &[shard(7)].into()), None);
    }

    /// The row has 64 KiB for both, and the target would refuse a longer text.
    #[test]
    fn a_request_for_keys_is_refused_while_tables_that_wait_leave_it_no_room_in_the_progress_row() {
        let id = LaneId { projection: "p".into(), target: "t".into(), source: "s".into(), lane: 0 };
        let shard = |number: u64| ShardId::from_u64((u64::MAX >> 1) - number).expect("it has 63 bits");
        let waiting = (0..1_000).map(|number| (shard(number), Lsn::MAX)).collect();
        let waiting = Refresh { rereads: waiting, ..Refresh::new(Scope::Rereads) };
        let before = Progress { refresh: Some(waiting), ..Progress::default() };
        let keys = |count| Scope::Keys([(shard(0), vec![Cell::Bytes([0xff; 64].into()); count])].into());
        let fault = asked(&id, &keys(KEYS_MAX), &before).expect_err("it would be too long");
        assert_eq!(fault.code(), Code::RefreshRefused);
        assert!(fault.to_string().contains("1000 tables to be read again"), "{fault}");
        assert!(asked(&id, &keys(KEYS_MAX), &Progress::default()).is_ok());
        let after = asked(&id, &keys(50), &before).expect("there is room for some");
        let text = after.refresh.map(|refresh| refresh.to_string()).unwrap_or_default();
        assert!((50_000..56 * 1024).contains(&text.len()), "{} bytes", text.len());
    }

    #[test]
    fn a_refresh_of_all_tables_keeps_what_the_lane_owes() {
        let id = LaneId { projection: "p".into(), target: "t".into(), source: "s".into(), lane: 0 };
        let asked = |refresh: &Refresh| {
            let before = Progress { refresh: Some(refresh.clone()), ..Progress::default() };
            let after = asked(&id, &Scope::Source, &before).expect("it takes the place of any other");
            after.refresh.expect("it was asked for")
        };
        let shard = ShardId::from_u64(7).expect("it is small");
        let waiting = Refresh::with_reread(None, shard, Lsn::MAX);
        assert_eq!(asked(&waiting), Refresh { rereads: waiting.rereads, ..Refresh::of_every_table() });
        // More tables wait than a progress row lists.
        let owed = Refresh { every_waits: true, ..Refresh::of_every_table() };
        assert_eq!(asked(&owed), owed);
        let read = Refresh { rows: 4, ..Refresh::of_every_table() };
        assert_eq!(asked(&read), Refresh::of_every_table(), "one that owes nothing begins again");
    }
}
