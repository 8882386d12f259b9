//! The store of one lane: it writes documents, each under its own version, and then progress over the progress it read.
//!
//! There is no transaction. Documents that were written before progress are written again after a crash, to the same
//! effect: no document goes back to an older version. A deleted one stays as a small tombstone, because the server
//! forgets the versions of deleted documents. A stale writer is refused before it writes. One that is paused after that
//! check can only write the log's rows at those positions, and its progress is refused. `removal.rs` explains how a
//! replay from nothing makes room for its documents.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::failpoints;
use anabranch_pipeline::ports::{ClaimsPage, LaneStore, ShardPage};
use anabranch_pipeline::projections::{Assignment, LaneScope, Projection};
use anabranch_pipeline::records::{
    Cell, DerivedRow, DerivedTable, Flush, LaneId, Mutation, MutationAction, OrderedMutation, Progress,
};
use anabranch_pipeline::wall_clock;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::search::index_of;
use anabranch_schemas::shard::ShardId;
use futures::future::try_join_all;
use serde::Serialize;
use tokio::sync::OnceCell;

use super::bulk::{self, Document, Rejected};
use super::client::Client;
use super::dead_letters::{self, DeadLetters};
use super::progress::Read;
use super::removal::{self, Removed};
use super::{SearchTarget, progress};

/// One lane's store.
#[derive(Debug)]
pub struct SearchLane {
    target: SearchTarget,
    assignment: Arc<Assignment>,
    id: LaneId,
    /// The one index that the lane builds anew; `None` = it writes the indexes of its projection.
    built: Option<String>,
    /// Dead letters, read before the first document.
    letters: OnceCell<Mutex<DeadLetters>>,
    /// The last removal, until something is written after it.
    removed: Option<Removed>,
}

impl SearchLane {
    pub(super) fn new(target: SearchTarget, assignment: Arc<Assignment>, id: LaneId) -> Self {
        Self { target, assignment, id, built: None, letters: OnceCell::new(), removed: None }
    }

    /// Makes a lane with a progress of its own that writes one index only.
    pub(super) fn building(
        target: SearchTarget,
        assignment: Arc<Assignment>,
        id: LaneId,
        index: &str,
    ) -> Self {
        Self {
            target,
            assignment,
            id,
            built: Some(index.to_owned()),
            letters: OnceCell::new(),
            removed: None,
        }
    }

    pub fn id(&self) -> &LaneId {
        &self.id
    }

    /// Returns the tables that this lane owns, in the form that the projection takes.
    pub fn scope(&self) -> LaneScope {
        LaneScope { target: self.assignment.target, lane: self.id.lane }
    }

    /// The lane's projection.
    pub fn projection(&self) -> &Projection {
        &self.assignment.projection
    }

    pub(super) fn target(&self) -> &SearchTarget {
        &self.target
    }

    /// Returns the lane that owns a device's documents.
    pub(super) fn lane_of(&self, uuid: &[u8]) -> u32 {
        self.assignment.projection.table_of_source_key(uuid).unwrap_or(self.id.lane)
    }

    pub(super) fn fenced(&self) -> Fault {
        Fault::new(Code::TargetFenced, format!("lane {}", self.id), "another process changed its progress")
            .needs("the progress that this process read last")
    }

    /// Returns the indexes that this flush writes.
    fn indexes(&self, noted: Vec<String>) -> Vec<String> {
        match &self.built {
            Some(index) => vec![index.clone()],
            None if noted.is_empty() => vec![index_of(self.assignment.alias())],
            None => noted,
        }
    }

    /// Makes tombstones of this lane's documents of a shard that are not above the position. They get its version, so
    /// nothing older comes back.
    async fn withdraw(
        &self,
        client: &Client,
        index: &str,
        (shard, lsn): (ShardId, Lsn),
    ) -> Result<(), Fault> {
        let mut pages = removal::find(client, index, self.id.lane, (shard, lsn)).await?;
        loop {
            let found = pages.next().await?;
            if found.is_empty() {
                return Ok(());
            }
            let tombstones: Vec<_> = found.into_iter().map(|found| self.tombstone(found.id, lsn)).collect();
            self.write(client, index, &tombstones).await?;
        }
    }

    /// Removes this lane's documents of a shard; they come again in their own versions. `revision` is that of the
    /// progress that was read.
    async fn remove(
        &mut self,
        client: &Client,
        index: &str,
        (shard, lsn): (ShardId, Lsn),
        revision: u64,
    ) -> Result<(), Fault> {
        let mut pages = removal::find(client, index, self.id.lane, (shard, lsn)).await?;
        let mut found = pages.next().await?;
        // The check follows the search: a process that is overtaken only now has found no document of its successor.
        self.require_revision(client, revision).await?;
        while !found.is_empty() {
            bulk::write(client, index, &found).await?;
            found = pages.next().await?;
        }
        self.removed = Some(Removed::now());
        Ok(())
    }

    /// Writes documents and parks those that the server will never take.
    pub(super) async fn write(
        &self,
        client: &Client,
        index: &str,
        documents: &[Document],
    ) -> Result<(), Fault> {
        let read = async || DeadLetters::read(client, &self.target, &self.id).await.map(Mutex::new);
        let letters = self.letters.get_or_try_init(read).await?;
        let locked = || letters.lock().unwrap_or_else(PoisonError::into_inner);
        let rejected = bulk::write(client, index, documents).await?;
        let superseded = locked().superseded(index, documents, &rejected);
        if !superseded.is_empty() {
            dead_letters::remove(client, &self.target, &superseded).await?;
            locked().forget(&superseded);
        }
        if !rejected.is_empty() {
            for Rejected { id, reason, .. } in &rejected {
                tracing::warn!(
                    lane = %self.id, index, document = id, reason,
                    "the index rejected a document, which is kept as a dead letter"
                );
            }
            dead_letters::park(client, &self.target, &self.id, index, &rejected).await?;
            locked().record(index, &rejected);
        }
        Ok(())
    }

    fn document(&self, table: &DerivedTable, mutation: &OrderedMutation<'_>) -> Document {
        let id = document_id(mutation.shard, mutation.key);
        let values = match mutation.action {
            MutationAction::Delete => return self.tombstone(id, mutation.lsn),
            MutationAction::Upsert(values) => values,
        };
        let mut line = Line::default();
        line.field("shard_id", &mutation.shard.as_u64().to_string());
        line.field("source", &self.id.source);
        line.field("lane", &self.id.lane);
        line.field("lsn", &mutation.lsn.as_u64());
        line.field("withdrawn", &false);
        let names = table.shape.key_columns.iter().chain(table.shape.value_columns);
        for (name, cell) in names.zip(mutation.key.iter().chain(values.iter())) {
            line.cell(name, cell);
        }
        Document { id, lsn: mutation.lsn, source: line.end() }
    }

    pub(super) fn tombstone(&self, id: String, lsn: Lsn) -> Document {
        let mut line = Line::default();
        line.field("source", &self.id.source);
        line.field("lsn", &lsn.as_u64());
        line.field("withdrawn", &true);
        line.field("withdrawn_at", &wall_clock::now_ms());
        Document { id, lsn, source: line.end() }
    }

    /// Writes the documents of the flush; `read` is the progress that it follows.
    async fn apply(
        &mut self,
        client: &Client,
        indexes: &[String],
        flush: &Flush,
        read: &Progress,
    ) -> Result<(), Fault> {
        for (shard, lsn) in flush.withdrawals.iter().copied() {
            for index in indexes {
                // A withdrawal above every position of the lane: the lane begins anew from nothing.
                if lsn > flush.progress.position {
                    self.remove(client, index, (shard, lsn), read.revision).await?;
                } else {
                    self.withdraw(client, index, (shard, lsn)).await?;
                }
            }
        }
        if !flush.withdrawals.is_empty() {
            failpoints::reach("documents-withdrawal-sent").await;
        }
        if let Some(replacement) = &flush.replacement {
            self.replace(client, indexes, (flush, replacement), read.revision).await?;
        }
        if flush.rows() > 0
            && let Some(removed) = self.removed.take()
        {
            removed.until_forgotten(client, indexes).await?;
        }
        self.write_all(client, indexes, flush).await?;
        if flush.replacement.is_some() && !self.holds(client, indexes, flush).await? {
            // An overtaken process has just removed documents above the watermark, and the server remembers them.
            Removed::now().until_forgotten(client, indexes).await?;
            self.write_all(client, indexes, flush).await?;
        }
        if flush.rows() > 0 {
            failpoints::reach("documents-sent").await;
        }
        Ok(())
    }

    async fn write_all(&self, client: &Client, indexes: &[String], flush: &Flush) -> Result<(), Fault> {
        let tables = self.assignment.projection.tables();
        for of_table in flush.ordered().chunk_by(|one, next| one.table == next.table) {
            let table = &tables[of_table[0].table as usize].derived;
            let documents: Vec<Document> =
                of_table.iter().map(|mutation| self.document(table, mutation)).collect();
            try_join_all(indexes.iter().map(|index| self.write(client, index, &documents))).await?;
        }
        Ok(())
    }
}

impl LaneStore for SearchLane {
    async fn load(&mut self) -> Result<Progress, Fault> {
        let stored = progress::read(self.target.client().await?, &self.target, &self.id).await?.stored;
        stored.assigned_to(&self.target.subject(), &self.assignment)
    }

    async fn shards_with_rows(&mut self, shards: BTreeSet<ShardId>) -> Result<BTreeSet<ShardId>, Fault> {
        Ok(shards)
    }

    async fn withdrawn_claims(
        &mut self,
        _: &[(ShardId, Lsn)],
        _: &ClaimsPage,
        _: NonZeroUsize,
    ) -> Result<(Vec<Mutation>, Option<ClaimsPage>), Fault> {
        let found = "its documents are not withdrawn in parts";
        Err(Fault::new(Code::Internal, format!("lane {}", self.id), found).needs("a store with transactions"))
    }

    async fn rows_of_shard(
        &mut self,
        _: &ShardPage,
        _: NonZeroUsize,
        _: &mut (dyn FnMut(DerivedRow<'_>) + Send),
    ) -> Result<Option<ShardPage>, Fault> {
        let found = "its documents are not compared by the lane";
        Err(Fault::new(Code::Internal, format!("lane {}", self.id), found).needs("a store with transactions"))
    }

    fn is_atomic(&self) -> bool {
        false
    }

    async fn commit(&mut self, flush: &Flush) -> Result<(), Fault> {
        let target = self.target.clone();
        let client = target.client().await?;
        // Progress is read each time: a stale writer must change nothing, since none of this is undone.
        let Read { stored, version, indexes } = progress::read(client, &self.target, &self.id).await?;
        if stored.progress.revision + 1 != flush.progress.revision {
            return Err(self.fenced());
        }
        let indexes = self.indexes(indexes);
        self.apply(client, &indexes, flush, &stored.progress).await?;
        let replaced = progress::replace(client, &self.target, &self.id, &stored, version, &flush.progress);
        match failpoints::reach_unanswered("documents-progress-sent", replaced).await? {
            true => Ok(()),
            false => Err(self.fenced()),
        }
    }
}

/// Returns the id of a claim's document.
pub(super) fn document_id(shard: ShardId, key: &[Cell]) -> String {
    let key: Vec<String> = key.iter().map(text).collect();
    format!("{shard}-{}", key.join("-"))
}

/// Returns a cell as text, with U+FFFD for bytes that are no UTF-8: people search, mapping tables have exact bytes.
fn text(cell: &Cell) -> String {
    match cell {
        Cell::Null => String::new(),
        Cell::Int(number) => number.to_string(),
        Cell::UInt(number) => number.to_string(),
        Cell::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
    }
}

/// A JSON object on one line, written field by field.
#[derive(Default)]
struct Line(Vec<u8>);

impl Line {
    fn field(&mut self, name: &str, value: &(impl Serialize + ?Sized)) {
        self.0.push(if self.0.is_empty() { b'{' } else { b',' });
        let infallible = "texts and numbers are always JSON";
        serde_json::to_writer(&mut self.0, name).expect(infallible);
        self.0.push(b':');
        serde_json::to_writer(&mut self.0, value).expect(infallible);
    }

    fn cell(&mut self, name: &str, cell: &Cell) {
        match cell {
            Cell::Null => {}
            Cell::Int(number) => self.field(name, number),
            Cell::UInt(number) => self.field(name, number),
            Cell::Bytes(bytes) => self.field(name, String::from_utf8_lossy(bytes).as_ref()),
        }
    }

    fn end(mut self) -> Vec<u8> {
        self.0.push(b'}');
        self.0
    }
}
