//! Replaces documents of source rows: an existing document that the flush does not write becomes a tombstone.
//!
//! A document above the watermark would keep out the one that the flush writes at it. So it is removed first, only
//! while it is the one that was found, and the flush waits until the server has forgotten it. The search precedes the
//! check of the lane's revision: a process that was overtaken finds nothing that its successor has written.

use std::collections::HashSet;

use anabranch_pipeline::error::Fault;
use anabranch_pipeline::records::{Cell, Flush, Replacement};
use serde::Deserialize;
use serde_json::json;

use super::bulk::{self, Document};
use super::client::Client;
use super::hits::FoundDocument;
use super::lane::{SearchLane, document_id};
use super::progress;
use super::removal::Removed;

#[derive(Deserialize)]
struct Response {
    docs: Vec<FetchedVersion>,
}

/// An answer without `found` is an error of the server.
#[derive(Deserialize)]
struct FetchedVersion {
    _id: String,
    found: bool,
    _version: Option<u64>,
    _seq_no: Option<u64>,
    _primary_term: Option<u64>,
}

impl SearchLane {
    /// Makes room for the documents that the flush replaces. `revision` is that of the progress that was read.
    pub(super) async fn replace(
        &self,
        client: &Client,
        indexes: &[String],
        (flush, replacement): (&Flush, &Replacement),
        revision: u64,
    ) -> Result<(), Fault> {
        let written: HashSet<String> = ids_of(flush).collect();
        let is_own = |key: &Cell| matches!(key, Cell::Bytes(uuid) if self.lane_of(uuid) == self.id().lane);
        let own = replacement.rows.iter().filter(|(_, key)| is_own(key));
        let ids = own.map(|(shard, key)| document_id(*shard, std::slice::from_ref(key)));
        let ids: Vec<String> = ids.collect();
        if ids.is_empty() {
            return Ok(());
        }
        for index in indexes {
            let stored = get(client, index, &ids).await?;
            let is_above = |got: &&FetchedVersion| {
                got._version.is_some_and(|version| version > replacement.low.as_u64())
            };
            let above = stored.iter().filter(is_above).filter_map(|got| {
                Some(FoundDocument { id: got._id.clone(), sequence: got._seq_no?, term: got._primary_term? })
            });
            let above: Vec<FoundDocument> = above.collect();
            if !above.is_empty() {
                self.require_revision(client, revision).await?;
                bulk::write(client, index, &above).await?;
                Removed::now().until_forgotten(client, std::slice::from_ref(index)).await?;
            }
            let gone = stored.into_iter().filter(|got| !written.contains(&got._id));
            let gone: Vec<Document> = gone.map(|got| self.tombstone(got._id, replacement.low)).collect();
            self.write(client, index, &gone).await?;
        }
        Ok(())
    }

    /// Whether every document that the flush writes exists.
    pub(super) async fn holds(
        &self,
        client: &Client,
        indexes: &[String],
        flush: &Flush,
    ) -> Result<bool, Fault> {
        let ids: Vec<String> = ids_of(flush).collect();
        for index in indexes {
            if !ids.is_empty() && get(client, index, &ids).await?.len() < ids.len() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Requires this revision: until it is overtaken, a process finds no document of a successor.
    pub(super) async fn require_revision(&self, client: &Client, revision: u64) -> Result<(), Fault> {
        let stored = progress::read(client, self.target(), self.id()).await?.stored;
        if stored.progress.revision == revision { Ok(()) } else { Err(self.fenced()) }
    }
}

fn ids_of(flush: &Flush) -> impl Iterator<Item = String> {
    flush.claims().map(|(_, shard, key, _)| document_id(shard, key))
}

/// Returns those of the documents that exist, also as tombstones.
async fn get(client: &Client, index: &str, ids: &[String]) -> Result<Vec<FetchedVersion>, Fault> {
    let path = format!("/{index}/_mget?_source=false");
    let answer =
        client.post(&path, json!({ "ids": ids }).to_string()).await?.success(&format!(", index {index}"))?;
    let Response { docs } = answer.read()?;
    Ok(docs.into_iter().filter(|got| got.found).collect())
}
