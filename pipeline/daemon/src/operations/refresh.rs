//! The request for a refresh: lanes of a projection read their rows from the source again.
//!
//! The request writes progress rows only. The daemon that runs the lanes, or one that starts later, notices and reads
//! the tables beside its feed. A condition is first tried on the source, and one that no lane could read is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;

use anabranch_pipeline::config::EntityConfig;
use anabranch_pipeline::deliver::{rehearse_refresh, request_refresh};
use anabranch_pipeline::error::{Class, Code, Fault};
use anabranch_pipeline::ports::{LaneStore as _, RowSource};
use anabranch_pipeline::projections::key_of_text;
use anabranch_pipeline::records::{COMPARISONS_MAX, Comparison, Condition, LaneId, Scope};
use anabranch_pipeline::retry::again;
use anabranch_schemas::change::TableIdentity;
use anabranch_schemas::lsn::FIRST_EPOCH;
use anabranch_schemas::shard::ShardId;

use super::lanes::names;
use super::{Actor, BegunOperation, CommandText, LaneSelection, Recorded};
use crate::wiring::Wiring;

/// Rows that lanes are to read again.
#[derive(Debug, Clone, Default)]
pub struct RefreshRequest {
    pub selection: LaneSelection,
    /// Only this table of the source, `DATABASE.TABLE`; `None` = all tables.
    pub table: Option<String>,
    /// Only the rows of these user ids or uuids; empty = all rows.
    pub keys: Vec<String>,
    /// Only the rows for which all of these hold; empty = all rows.
    pub conditions: Vec<String>,
}

/// The refresh that one lane was asked for, or the fault with which it was refused.
#[derive(Debug)]
pub struct LaneRefresh {
    pub lane: LaneId,
    pub outcome: Result<(), Fault>,
}

impl RefreshRequest {
    /// Returns the command in words, without keys and conditions.
    pub fn command(&self) -> String {
        self.selection
            .add_to(CommandText::of("refresh"))
            .option("--table", self.table.as_deref())
            .counted("--key", self.keys.len(), "key")
            .counted("--where", self.conditions.len(), "condition")
            .text()
    }

    /// Returns the lanes that would be asked, each with the fault with which it would refuse.
    pub async fn rehearse(&self, wiring: &Wiring) -> Result<Vec<LaneRefresh>, Fault> {
        let (lanes, scope) = self.prepared(wiring).await?;
        let mut asked = Vec::new();
        for lane in lanes {
            let rehearsal = again(async || {
                rehearse_refresh(&lane, &mut wiring.lane(&lane)?, scope.clone()).await.map(drop)
            });
            let outcome = rehearsal.await;
            asked.push(LaneRefresh { lane, outcome });
        }
        Ok(asked)
    }

    /// Asks each lane; the fault of one lane does not hold up the others. `on_lane` gets each outcome at once.
    pub async fn carry_out(
        &self,
        wiring: &Wiring,
        actor: &Actor,
        mut on_lane: impl FnMut(&LaneRefresh),
    ) -> Result<Recorded<Vec<LaneRefresh>>, Fault> {
        let (lanes, scope) = self.prepared(wiring).await?;
        let before = state(wiring, &lanes).await;
        let begun = BegunOperation::begin(wiring, actor, self.command(), before).await;
        let (mut asked, mut silent) = (Vec::new(), BTreeMap::new());
        for lane in lanes {
            let outcome = match silent.get(&lane.target) {
                Some(code) => Err(unasked(&lane, *code)),
                None => {
                    let ask = async || {
                        request_refresh(&lane, &mut wiring.lane(&lane)?, scope.clone()).await.map(drop)
                    };
                    again(ask).await
                }
            };
            if let Err(fault) = &outcome
                && fault.class() == Class::Transient
            {
                silent.insert(lane.target.clone(), fault.code());
            }
            asked.push(LaneRefresh { lane, outcome });
            asked.last().into_iter().for_each(&mut on_lane);
        }
        let operation = begun.id().to_owned();
        let is_recorded = begun.end(summary(&asked)).await;
        Ok(Recorded { done: asked, operation, is_recorded })
    }

    /// Returns what one lane does, or would do, as a sentence.
    pub fn line(&self, wiring: &Wiring, lane: &LaneId, is_rehearsal: bool) -> String {
        let table = self.table.as_deref().unwrap_or("all tables of its source");
        let rows = match self.keys.len() {
            0 if self.conditions.is_empty() => String::new(),
            0 => format!("rows where {} of ", self.conditions.join(" and ")),
            keys => format!("{keys} keys of "),
        };
        let rate = wiring.config().limits.refresh_rows_per_second;
        let rate = rate.map_or(String::new(), |rate| format!(", at most {rate} rows/s"));
        let verb = if is_rehearsal { "would refresh" } else { "refreshes" };
        format!("lane {lane} {verb} {rows}{table}{rate}")
    }

    /// Returns the lanes and the rows that they are to read.
    async fn prepared(&self, wiring: &Wiring) -> Result<(Vec<LaneId>, Scope), Fault> {
        let lanes = self.selection.lanes(wiring, Code::RefreshRefused)?;
        let scope = self.scope(wiring, &lanes).await?;
        Ok((lanes, scope))
    }

    async fn scope(&self, wiring: &Wiring, lanes: &[LaneId]) -> Result<Scope, Fault> {
        let condition = condition(&self.conditions)?;
        let table = match &self.table {
            None => None,
            Some(name) => Some(table(wiring, lanes, name)?),
        };
        if let Some(condition) = condition {
            try_out(wiring, lanes, table, &condition).await?;
            return Ok(Scope::Where(table, condition));
        }
        let Some(shard) = table else { return Ok(Scope::Source) };
        if self.keys.is_empty() {
            return Ok(Scope::Table(shard));
        }
        let refused = || Fault::new(Code::RefreshRefused, "a key", "it is not a user id").needs("a number");
        let entity = wiring.projection(&lanes[0].projection)?.entity();
        let key = |text: &String| key_of_text(entity, text).ok_or_else(refused);
        Ok(Scope::Keys([(shard, self.keys.iter().map(key).collect::<Result<_, _>>()?)].into()))
    }
}

/// Returns the fault of a lane whose target did not answer for another lane. Each wait lasts seconds, and a person
/// waits for all lanes.
fn unasked(lane: &LaneId, code: Code) -> Fault {
    Fault::new(code, format!("lane {lane}"), "its target did not answer for another lane")
        .needs("the target; then ask again")
}

/// Returns position and refresh of each lane that answers, for a record; `None` if no lane does.
async fn state(wiring: &Wiring, lanes: &[LaneId]) -> Option<String> {
    let (mut lines, mut silent) = (Vec::new(), BTreeSet::new());
    for lane in lanes {
        let Ok(mut store) = wiring.lane(lane) else { continue };
        if silent.contains(&lane.target) {
            continue;
        }
        let Ok(progress) = store.load().await else {
            silent.insert(&lane.target);
            continue;
        };
        let refresh = if progress.refresh.is_some() { "a refresh under way" } else { "no refresh" };
        lines.push(format!("{lane} at {}, {refresh}", progress.position));
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// Returns the record of the end: which lanes were asked, and the faults of the others.
fn summary(asked: &[LaneRefresh]) -> Result<String, String> {
    let done: Vec<LaneId> =
        asked.iter().filter(|one| one.outcome.is_ok()).map(|one| one.lane.clone()).collect();
    let faults: Vec<String> =
        asked.iter().filter_map(|one| one.outcome.as_ref().err()).map(ToString::to_string).collect();
    let asked =
        format!("asked for a refresh: {}", if done.is_empty() { "none".to_owned() } else { names(&done) });
    if faults.is_empty() { Ok(asked) } else { Err(format!("{asked}\n{}", faults.join("\n"))) }
}

/// Returns the shard id of the table, which must be captured from the one source of the lanes.
fn table(wiring: &Wiring, lanes: &[LaneId], name: &str) -> Result<ShardId, Fault> {
    let refused = |found: &str| Fault::new(Code::RefreshRefused, format!("table {name}"), found);
    let source = &lanes[0].source;
    if lanes.iter().any(|lane| lane.source != *source) {
        return Err(refused("a table belongs to one source").needs("--source NAME, once"));
    }
    let Some((database, table)) = name.split_once('.') else {
        return Err(refused("it is not a name of a table").needs("DATABASE.TABLE"));
    };
    let entity = wiring.projection(&lanes[0].projection)?.entity();
    let is_captured =
        |known: &EntityConfig| known.entity == entity && known.tables.matches(database, table).is_some();
    if !wiring.config().entities.iter().any(is_captured) {
        return Err(refused("the projection does not read it").needs("a captured table of its entity"));
    }
    let generation = wiring.source_config(source)?.generation;
    Ok(ShardId::of(source, database, table, generation))
}

fn condition(texts: &[String]) -> Result<Option<Condition>, Fault> {
    let comparison = |(place, text): (usize, &String)| {
        text.parse::<Comparison>().map_err(|invalid| {
            Fault::new(Code::RefreshRefused, format!("condition {}", place + 1), invalid.to_string())
                .needs("`COLUMN >= VALUE`, with =, <, <=, > or >=; a value in single quotes has none in it")
        })
    };
    let comparisons = texts.iter().enumerate().map(comparison).collect::<Result<Vec<_>, _>>()?;
    let count = comparisons.len();
    match Condition::new(comparisons) {
        None if count > 0 => {
            Err(Fault::new(Code::RefreshRefused, "the condition", format!("{count} comparisons"))
                .needs(format!("at most {COMPARISONS_MAX}")))
        }
        condition => Ok(condition),
    }
}

/// Tries the condition on a table of each source: a lane would try for ever a condition that its source refuses.
async fn try_out(
    wiring: &Wiring,
    lanes: &[LaneId],
    only: Option<ShardId>,
    condition: &Condition,
) -> Result<(), Fault> {
    let sources: BTreeMap<&str, &LaneId> = lanes.iter().map(|lane| (lane.source.as_str(), lane)).collect();
    for (name, lane) in sources {
        let (source, entity) = (wiring.source(name)?, wiring.projection(&lane.projection)?.entity());
        let is_meant =
            |table: &TableIdentity<'_>| table.entity == entity && only.is_none_or(|only| only == table.shard);
        let tables = RowSource::tables(source).await?;
        match tables.iter().find(|table| is_meant(table)) {
            Some(table) => {
                _ = source.matching(table, condition, None, NonZeroUsize::MIN, FIRST_EPOCH).await?
            }
            None => {
                return Err(Fault::new(
                    Code::SourceTableMissing,
                    format!("source {name}"),
                    "none of its tables is selected",
                )
                .needs("a captured table that the projection reads"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_of_a_record_has_neither_keys_nor_conditions() {
        let request = RefreshRequest {
            selection: LaneSelection {
                projection: "birthday".to_owned(),
                sources: vec!["source-a".to_owned()],
                targets: Vec::new(),
            },
            table: Some("user_00.user_001".to_owned()),
            keys: vec!["4711".to_owned(), "4712".to_owned()],
            conditions: vec!["birthday = '1990-01-01'".to_owned()],
        };
        let expected = "anabranch refresh --projection birthday --source source-a --table user_00.user_001 \
                        --key (2 keys) --where (1 condition)";
        assert_eq!(request.command(), expected);
    }
}
