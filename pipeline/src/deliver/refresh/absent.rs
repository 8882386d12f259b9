//! A lane ends its wait for a table that the source proves absent, and removes the table's claims.
//!
//! A table may be owed that its server does not have: only transactions that a crossing lost made it, or it was dropped
//! without a trace in the binlog. No reading would end that wait. So once no other table can be read, the lane asks for
//! each owed table that is not listed by its name. The answer that a table does not exist counts as a reading of the
//! table that found no row: the sweep that follows removes the claims and the entry.
//!
//! Why that is right:
//!
//! - A lost grant hides a table too, but the server then refuses the question. Only the answer that no such table
//!   exists is a proof.
//! - The question lies between two watermarks, and one server answers all three. Both watermarks count under the rules
//!   of a chunk: they are of the lane's server and epoch, not older than what the lane had applied, and the lane has
//!   passed the high one. So no claim from below the low watermark has a source row.
//! - A table of that name that comes later has higher versions.
//! - The entry must still stand, at or below the low watermark. A table that was withdrawn or retired meanwhile has
//!   none, and a later record asks for a later reading.
//!
//! The source is asked for some tables at a time, so that a table that can be read again does not wait for a thousand
//! questions, and for each table once in ten seconds.
//!
//! A table without a usual name cannot be asked for and keeps waiting. Such are those of an entity with
//! `removal = "retain"`, whose rows stand when a table is gone. Payment documents always wait, because rows that were
//! retained before a change of that setting stand too.

use std::collections::BTreeSet;

use anabranch_schemas::change::TableIdentity;
use anabranch_schemas::shard::ShardId;
use futures::FutureExt;

use super::aside::Aside;
use super::changed_claims::ChangedClaims;
use super::read::Read;
use super::unlisted::likely;
use super::{Phase, Refresher, Step};
use crate::error::{Class, Fault};
use crate::ports::RowSource;
use crate::records::{Progress, Refresh};

/// Tables for which the source is asked before the lane looks for other work.
const ASKED_MAX: usize = 20;

/// The answers of a source that was asked for tables by their names, up to the first one that it proves absent.
pub(super) struct Absences {
    /// Tables that it does not prove absent.
    hidden: BTreeSet<ShardId>,
    /// The table that it proves absent, as a read without a row.
    absent: Option<(ShardId, Read)>,
}

impl Absences {
    /// Returns the phase that follows. Tables that are not proved absent step aside; `changes` goes on for the absent
    /// one alone.
    pub(super) fn take<'p>(self, aside: &mut Aside, changes: &mut ChangedClaims) -> Phase<'p> {
        aside.asked_for(self.hidden.iter().copied().chain(self.absent.iter().map(|(shard, _)| *shard)));
        aside.step_aside(self.hidden);
        match self.absent {
            Some((shard, read)) => {
                changes.shards = [shard].into();
                Phase::Waiting(Step::Chunk(read, None))
            }
            None => Phase::Resting,
        }
    }
}

impl<'a, S: RowSource> Refresher<'a, S> {
    /// Returns the phase in which the source is asked for some tables that wait and are not listed; `None` if there are
    /// none that can be asked for now.
    pub(super) fn ask_for_absent(&mut self, refresh: &Refresh, progress: &Progress) -> Option<Phase<'a>> {
        if self.entity.may_retire() {
            return None;
        }
        let (tables, set_aside, asked) = (self.tables.as_ref()?, self.aside.tables(), self.aside.asked());
        let is_open = |shard: &ShardId| {
            let is_listed = tables.binary_search_by_key(shard, |table| table.shard).is_ok();
            let is_gone = self.retired.contains(shard) || progress.withdrawals.contains(*shard);
            !is_listed && !is_gone && !set_aside.contains(shard) && !asked.contains(shard)
        };
        let unlisted: BTreeSet<ShardId> = refresh.rereads.keys().copied().filter(is_open).collect();
        if unlisted.is_empty() {
            return None;
        }
        let mut named = likely(self.source, self.entity, &unlisted);
        let shards: BTreeSet<ShardId> = named.iter().map(|table| table.shard).collect();
        self.aside.asked_for(unlisted.difference(&shards).copied());
        named.truncate(ASKED_MAX);
        if named.is_empty() {
            return None;
        }
        self.is_reread = true;
        let (source, epoch) = (self.source, progress.position.epoch());
        let shards = named.iter().map(|table| table.shard).collect();
        self.changes = ChangedClaims::new(epoch, shards, progress.highest_change);
        Some(Phase::Proving(absences(source, named, epoch).boxed()))
    }

    /// Says that the derived rows of an absent table are removed, as its absence is about to be stored.
    pub(super) fn log_absence(&self, read: &Read) {
        if let Some(table) = &read.absent {
            tracing::warn!(
                lane = %self.id, table,
                "the source proves a table absent that waits to be read again: its derived rows are removed"
            );
        }
    }
}

/// Asks for each of these tables by its name, until one is proved absent.
async fn absences<S: RowSource>(
    source: &S,
    tables: Vec<TableIdentity<'static>>,
    epoch: u16,
) -> Result<Absences, Fault> {
    let mut hidden = BTreeSet::new();
    for table in tables {
        let shard = table.shard;
        match source.absence(&table, epoch).await {
            Ok(Some(chunk)) => {
                let absent = Some(format!("{}.{}", table.database, table.table));
                let read = Read { absent, ..Read::of_chunk(chunk) };
                return Ok(Absences { hidden, absent: Some((shard, read)) });
            }
            Err(fault) if fault.class() == Class::Transient => return Err(fault),
            Ok(None) | Err(_) => _ = hidden.insert(shard),
        }
    }
    Ok(Absences { hidden, absent: None })
}
