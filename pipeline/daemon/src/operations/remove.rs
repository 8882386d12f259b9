//! The removal of what a source or a table leaves behind once it is gone for good.
//!
//! `source.rs` removes everything under the name of a source, and holds the leases of `leases.rs` meanwhile. `table.rs`
//! removes the derived rows of one table. Both work in small steps, each of which is whole by itself. A removal that
//! was cut off is repeated, and goes on with what is left.

mod leases;
mod source;
mod table;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::shard::ShardId;
use serde::Serialize;

use super::{Actor, CommandText, Recorded, recorded};
use crate::reconciliations::{self, DepartedRows};
use crate::wiring::Wiring;

/// The thing that left for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Departed {
    Source(String),
    Table {
        database: String,
        table: String,
        /// The source that had it; `None` = any source of the configuration.
        source: Option<String>,
    },
}

/// A source or a table whose remains are to go.
#[derive(Debug, Clone)]
pub struct RemoveRequest {
    pub departed: Departed,
    /// Owner generation of the tables of a source that left; a table alone has that of its configured source.
    pub generation: u32,
    /// Deletes the stream of the source too.
    pub with_log: bool,
}

/// Everything that a removal found, and removed unless it was a rehearsal.
#[derive(Debug, Default, Serialize)]
pub struct RemoveOutcome {
    pub stores: Vec<StoreOutcome>,
    /// Lanes of the source that have progress; a removal sets them back to nothing.
    pub lanes: usize,
    /// Tables that left by a retention rule; their derived rows go with those of the source.
    pub retired_tables: u64,
    pub tombstones: u64,
    pub dead_letters: u64,
    /// Pauses of this source alone.
    pub pauses: usize,
    pub stream: Option<StreamOutcome>,
    /// Sentences about what keeps the source's name.
    pub stays: Vec<String>,
    /// Further sentences for the operator.
    pub notes: Vec<String>,
}

/// The derived rows of one projection.
#[derive(Debug, Serialize)]
pub struct StoreOutcome {
    pub store: String,
    pub rows: u64,
    pub removed: u64,
    /// Rows of other tables that no source has, which stay; `None` = unknown, because a source listed no tables.
    pub other_rows: Option<u64>,
    /// Sources that did not list their tables.
    pub unlisted_sources: Vec<String>,
    /// The cache whose entries go with the rows: its daemon removes them by the outbox.
    pub cache: Option<String>,
}

/// The stream of a source.
#[derive(Debug, Serialize)]
pub struct StreamOutcome {
    pub stream: String,
    pub messages: u64,
    pub bytes: u64,
    /// It is deleted, or would be.
    pub is_deleted: bool,
}

impl RemoveRequest {
    /// Returns the command in words.
    pub fn command(&self) -> String {
        let command = CommandText::of("remove");
        let command = match &self.departed {
            Departed::Source(name) => command.option("--source", Some(name)),
            Departed::Table { database, table, source } => command
                .option("--table", Some(&format!("{database}.{table}")))
                .option("--source", source.as_deref()),
        };
        let generation = (self.generation > 0).then(|| self.generation.to_string());
        command.option("--generation", generation.as_deref()).flag("--with-log", self.with_log).text()
    }

    /// Returns the name that a person confirms.
    pub fn name(&self) -> String {
        match &self.departed {
            Departed::Source(name) => name.clone(),
            Departed::Table { database, table, .. } => format!("{database}.{table}"),
        }
    }

    /// Returns the thing, as faults and sentences name it.
    pub fn thing(&self) -> String {
        let kind = if matches!(self.departed, Departed::Source(_)) { "source" } else { "table" };
        format!("{kind} {}", self.name())
    }

    /// Returns what a removal would find, or the fault with which it would be refused. Changes nothing.
    pub async fn rehearse(&self, wiring: &Wiring) -> Result<RemoveOutcome, Fault> {
        self.run(wiring, true).await
    }

    /// Removes everything.
    pub async fn carry_out(&self, wiring: &Wiring, actor: &Actor) -> Result<Recorded<RemoveOutcome>, Fault> {
        let after = |outcome: &RemoveOutcome| outcome.lines(false).join("\n");
        recorded(wiring, actor, (self.command(), None), Box::pin(self.run(wiring, false)), after).await
    }

    async fn run(&self, wiring: &Wiring, is_rehearsal: bool) -> Result<RemoveOutcome, Fault> {
        match &self.departed {
            Departed::Source(name) => source::remove(wiring, self, name, is_rehearsal).await,
            Departed::Table { .. } => table::remove(wiring, self, is_rehearsal).await,
        }
    }

    fn refused(&self, found: impl Into<String>) -> Fault {
        Fault::new(Code::RemoveRefused, self.thing(), found)
    }
}

impl RemoveOutcome {
    /// Returns whether the source left anything behind.
    fn is_empty(&self) -> bool {
        let others = self.retired_tables + self.tombstones + self.dead_letters;
        self.rows() == 0
            && others == 0
            && (self.lanes, self.pauses) == (0, 0)
            && self.stream.is_none()
            && self.stays.is_empty()
    }

    /// Returns the number of derived rows in all stores.
    pub fn rows(&self) -> u64 {
        self.stores.iter().map(|store| store.rows).sum()
    }

    /// Adds the rows of a projection.
    fn add_rows(&mut self, wiring: &Wiring, store: &str, rows: DepartedRows) {
        let cache = wiring.cache_of(store).filter(|_| rows.found > 0).map(|cache| cache.config.name.clone());
        let DepartedRows { found, removed, others, unlisted } = rows;
        self.stores.push(StoreOutcome {
            store: store.to_owned(),
            rows: found,
            removed,
            other_rows: unlisted.is_empty().then_some(others),
            unlisted_sources: unlisted.into_iter().collect(),
            cache,
        });
    }

    /// Returns the outcome as sentences, one for each store and thing.
    pub fn lines(&self, is_rehearsal: bool) -> Vec<String> {
        let go = if is_rehearsal { "would be removed" } else { "were removed" };
        let mut lines: Vec<String> = self.stores.iter().map(|store| store.line(is_rehearsal)).collect();
        let retired_tables = match is_rehearsal {
            true => "retired tables with their derived rows, which no store's count includes",
            false => "retired tables with their derived rows",
        };
        let counted = [
            (self.retired_tables, retired_tables),
            (self.tombstones, "tombstones"),
            (self.dead_letters, "dead letters"),
            (self.pauses as u64, "pauses"),
        ];
        let counted = counted.into_iter().filter(|(count, _)| *count > 0);
        lines.extend(counted.map(|(count, things)| format!("{things}: {count} {go}")));
        if self.lanes > 0 {
            let set_back = if is_rehearsal { "would be set back" } else { "were set back" };
            lines.push(format!("{} lanes {set_back} to nothing; their progress rows stay", self.lanes));
        }
        if let Some(StreamOutcome { stream, messages, bytes, is_deleted }) = &self.stream {
            let end = match (is_deleted, is_rehearsal) {
                (false, _) => "stays: --with-log deletes it",
                (true, true) => "would be deleted",
                (true, false) => "was deleted",
            };
            lines.push(format!("stream {stream} of {messages} messages, {bytes} bytes, {end}"));
        }
        lines.extend(self.stays.iter().map(|stays| format!("stays: {stays}")));
        lines.extend(self.notes.iter().cloned());
        lines
    }
}

impl StoreOutcome {
    fn line(&self, is_rehearsal: bool) -> String {
        let Self { store, rows, removed, other_rows, unlisted_sources, cache } = self;
        let mut line = match is_rehearsal {
            true => format!("store {store}: {rows} derived rows would be removed"),
            false => format!("store {store}: {removed} of {rows} derived rows were removed"),
        };
        if let Some(cache) = cache {
            _ = write!(line, ", and a daemon takes their codes out of cache {cache}");
        }
        _ = match other_rows {
            Some(0) => Ok(()),
            Some(others) => write!(
                line,
                "; {others} rows of other tables that no source has stay (`anabranch --config FILE reconcile \
                 remove-foreign --store {store} --dry-run` lists all)"
            ),
            None => write!(
                line,
                "; it is unknown how many rows of other tables that no source has stay, because source {} did not \
                 list its tables",
                unlisted_sources.join(", ")
            ),
        };
        line
    }
}

/// Removes the derived rows of these shards from every projection.
async fn remove_rows(
    wiring: &Wiring,
    shards: &BTreeSet<ShardId>,
    asked: &[String],
    (outcome, is_rehearsal): (&mut RemoveOutcome, bool),
) -> Result<(), Fault> {
    for projection in &wiring.config().projections {
        let store = &projection.name;
        let rows = reconciliations::remove_departed(wiring, store, shards, asked, is_rehearsal).await?;
        outcome.add_rows(wiring, store, rows);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(departed: Departed) -> RemoveRequest {
        RemoveRequest { departed, generation: 0, with_log: false }
    }

    #[test]
    fn a_removal_is_named_by_its_command_and_its_thing() {
        let source = Departed::Source("s".to_owned());
        let source = RemoveRequest { generation: 2, with_log: true, ..request(source) };
        assert_eq!(
            (source.command().as_str(), source.thing().as_str()),
            ("anabranch remove --source s --generation 2 --with-log", "source s")
        );
        let (database, table) = ("d".to_owned(), "t".to_owned());
        let table = Departed::Table { database, table, source: Some("s".to_owned()) };
        let table = request(table);
        let expected = "anabranch remove --table d.t --source s";
        assert_eq!((table.command().as_str(), table.name().as_str()), (expected, "d.t"));
    }

    #[test]
    fn a_rehearsal_lists_what_would_go_and_what_stays() {
        let store = StoreOutcome {
            store: "mapping".to_owned(),
            rows: 7,
            removed: 0,
            other_rows: Some(2),
            unlisted_sources: Vec::new(),
            cache: Some("codes".to_owned()),
        };
        let unsure = StoreOutcome {
            store: "documents".to_owned(),
            rows: 0,
            removed: 0,
            other_rows: None,
            unlisted_sources: vec!["away".to_owned()],
            cache: None,
        };
        let stream = StreamOutcome { stream: "x_s".to_owned(), messages: 3, bytes: 40, is_deleted: false };
        let stays = vec!["register epochs/s".to_owned()];
        let outcome = RemoveOutcome {
            stores: vec![store, unsure],
            lanes: 2,
            retired_tables: 4,
            stream: Some(stream),
            stays,
            ..RemoveOutcome::default()
        };
        let lines = outcome.lines(true);
        assert!(
            lines[0].starts_with("store mapping: 7 derived rows would be removed, and a daemon takes"),
            "{lines:?}"
        );
        assert!(lines[0].contains("2 rows of other tables that no source has stay"), "{lines:?}");
        assert!(lines[1].contains("it is unknown how many rows of other tables"), "{lines:?}");
        assert!(lines[1].contains("source away did not list its tables"), "{lines:?}");
        assert!(lines[2].contains("which no store's count includes: 4 would be removed"), "{lines:?}");
        assert_eq!(lines[3], "2 lanes would be set back to nothing; their progress rows stay");
        assert_eq!(lines[4], "stream x_s of 3 messages, 40 bytes, stays: --with-log deletes it");
        assert_eq!(lines[5], "stays: register epochs/s");
        assert!(!outcome.is_empty() && RemoveOutcome::default().is_empty());
    }
}
