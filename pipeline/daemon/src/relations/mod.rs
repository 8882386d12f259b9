//! Answers which payment documents belong together, for the HTTP API and the command `flux show`.
//!
//! An answer comes from the relation index alone; sources only name the tables of its claims. It uses the waiting for a
//! point of the binlog, the directory of tables and the freshness of lookups. `view.rs` is the answer.

mod retired_names;
mod view;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::records::FluxPlaces;
use anabranch_pipeline::relations::{self, PageCursor, RelatedDocument, WayUp};
use anabranch_schemas::change::{Entity, TableIdentity};
use anabranch_schemas::flux::id::{Defect, FluxId};
use anabranch_schemas::shard::ShardId;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use self::retired_names::RetiredNames;
pub use self::view::{
    BelowView, ClaimView, DocumentAnswer, DocumentView, EndView, OddTexts, PartsView, RelationsAnswer,
};
use crate::lookup::{AtLeast, Directory, LaneFreshness, PassedPositions, Refusal};
use crate::observe::StatusView;
use crate::wiring::{RelationIndex, Wiring};

/// Connections to each target, and so the requests that are answered at once.
const CONNECTIONS: usize = 16;
/// Requests that wait for their turn, at most. Further ones are refused as too many.
const QUEUED: usize = 512;
/// Documents of a page, at most: some 200 KB.
pub const PAGE_DOCUMENTS_MAX: usize = 1_000;
/// Time between two updates of the knowledge about lanes and tables.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// A question for some of the documents below another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BelowQuestion {
    /// Documents of the page, at most.
    pub limit: usize,
    pub after: Option<PageCursor>,
}

/// Answers questions about payment documents. Clones share everything.
#[derive(Clone)]
pub struct Relations(Arc<RelationService>);

struct RelationService {
    wiring: Wiring,
    projection: String,
    places: Arc<FluxPlaces>,
    index: RelationIndex,
    directory: Directory,
    /// Names of tables that left by a retention rule: no source lists them.
    retired: RetiredNames,
    passage: PassedPositions,
    freshness: Mutex<LaneFreshness>,
    /// One permit for each request that is answered or waits.
    room: Semaphore,
    turns: Semaphore,
}

impl Relations {
    /// Returns the service, not connected yet; `None` when no relation index is configured.
    pub fn new(wiring: &Wiring) -> Option<Self> {
        let (projection, places) = wiring.relations_projection()?;
        Some(Self(Arc::new(RelationService {
            index: wiring.relation_index(projection, CONNECTIONS)?,
            directory: Directory::new(Entity::Flux),
            retired: RetiredNames::new(wiring.derived(projection).ok()?),
            passage: PassedPositions::new(wiring, projection),
            freshness: Mutex::default(),
            room: Semaphore::new(CONNECTIONS + QUEUED),
            turns: Semaphore::new(CONNECTIONS),
            wiring: wiring.clone(),
            projection: projection.to_owned(),
            places: Arc::clone(places),
        })))
    }

    /// Keeps the knowledge about lanes and tables up to date until `cancel`.
    pub async fn keep_current(self, status: impl Fn() -> StatusView, cancel: CancellationToken) {
        let mut ticks = tokio::time::interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let current = async {
            loop {
                ticks.tick().await;
                self.lanes_seen(&status());
                self.name_tables().await;
            }
        };
        tokio::select! {
            () = cancel.cancelled() => {}
            () = current => {}
        }
    }

    /// Asks the sources for tables that are not known yet.
    pub async fn name_tables(&self) {
        self.0.directory.complete(&self.0.wiring).await;
    }

    /// Takes the freshness of the lanes from a status.
    pub fn lanes_seen(&self, status: &StatusView) {
        let freshness = LaneFreshness::of(&self.0.projection, status);
        *self.0.freshness.lock().unwrap_or_else(PoisonError::into_inner) = freshness;
    }

    /// Reads an identifier of the configured system.
    pub fn read_id(&self, text: &str) -> Result<FluxId, Defect> {
        FluxId::parse_of(text.as_bytes(), self.0.places.system())
    }

    /// Reads the bounds of a page.
    pub fn question(&self, limit: Option<usize>, after: Option<&str>) -> Result<BelowQuestion, Refusal> {
        let limit = limit.unwrap_or(PAGE_DOCUMENTS_MAX);
        if !(1..=PAGE_DOCUMENTS_MAX).contains(&limit) {
            let found = format!("limit is {limit}; it can be 1 to {PAGE_DOCUMENTS_MAX}");
            return Err(Refusal::Malformed(found));
        }
        let read = |text| {
            let cursor = PageCursor::parse_of(text, self.0.places.system());
            cursor.ok_or_else(|| Refusal::Malformed("after is not the `next` of an answer".to_owned()))
        };
        Ok(BelowQuestion { limit, after: after.map(read).transpose()? })
    }

    /// Returns what the index has of an identifier, and the way up from it, after the lanes have passed `at_least`.
    pub async fn document(&self, id: &FluxId, at_least: Option<&AtLeast>) -> Result<DocumentAnswer, Refusal> {
        let service = &*self.0;
        let (document, way) = self.ask(at_least, service.with_way_up(id)).await?.unzip();
        let mut answer = DocumentAnswer::new(id, document.as_ref(), way, &service.places, self.freshness());
        let mut tables = Vec::new();
        for claim in document.as_ref().map_or(&[][..], |document| &document.claims) {
            tables.push(service.table(claim.shard).await);
        }
        let claims = document.iter().flat_map(|document| &document.claims).zip(&mut answer.claims);
        for ((claim, view), table) in claims.zip(tables) {
            if let Some((source, table)) = table {
                view.name(source, &table);
                answer.odd.add(&service.places, &table, claim);
            }
        }
        Ok(answer)
    }

    /// Returns some of the documents below an identifier, after the lanes have passed `at_least`. The index may lack
    /// the document itself.
    pub async fn below(
        &self,
        id: &FluxId,
        question: &BelowQuestion,
        at_least: Option<&AtLeast>,
    ) -> Result<RelationsAnswer, Refusal> {
        let service = &*self.0;
        let below = relations::below(&service.index, id, question.after.as_ref(), question.limit);
        let page = self.ask(at_least, below).await?;
        Ok(RelationsAnswer::new(id, page, &service.places, self.freshness()))
    }

    /// Waits for the lanes and for a turn, then does the work.
    async fn ask<T>(
        &self,
        at_least: Option<&AtLeast>,
        work: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Refusal> {
        let service = &*self.0;
        let Ok(_room) = service.room.try_acquire() else { return Err(Refusal::Busy) };
        if let Some(at_least) = at_least {
            service.passage.wait(at_least, &service.directory).await?;
        }
        let Ok(_turn) = service.turns.acquire().await else { return Err(Refusal::Busy) };
        Ok(work.await?)
    }

    fn freshness(&self) -> LaneFreshness {
        *self.0.freshness.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RelationService {
    /// Returns the source of a table and the table, which may have left by a retention rule.
    async fn table(&self, shard: ShardId) -> Option<(String, TableIdentity<'static>)> {
        match self.directory.table(shard) {
            Some((source, table)) => Some((source, table.identity.clone())),
            None => self.retired.table(shard).await,
        }
    }

    async fn with_way_up(&self, id: &FluxId) -> Result<Option<(RelatedDocument, WayUp)>, Fault> {
        let Some(document) = relations::document(&self.index, id).await? else { return Ok(None) };
        let way = relations::way_up(&self.index, &document).await?;
        Ok(Some((document, way)))
    }
}

#[cfg(test)]
mod tests;
