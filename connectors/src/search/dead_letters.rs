//! Dead letters: the documents that a server will never take.
//!
//! A letter names a document and its version, and holds none of its values. Its lane removes it once the index has
//! taken the document in this version or a newer one.

use std::collections::BTreeMap;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::records::LaneId;
use anabranch_pipeline::wall_clock;
use anabranch_schemas::lsn::Lsn;
use anabranch_schemas::search::writing_alias;
use reqwest::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::bulk::{self, Document, Rejected};
use super::client::Client;
use super::error::{TypedError, fault};
use super::{SearchTarget, hits};

/// Letters that a lane keeps in memory; a later process of the lane removes those beyond.
const LETTERS_MAX: usize = 10_000;
/// Rounds of a removal without a removed letter after which it fails.
const IDLE_ROUNDS_MAX: u32 = 3;

/// A document that was rejected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    pub projection: String,
    pub source: String,
    pub lane: u32,
    /// The index that rejected it.
    pub index: String,
    pub document: String,
    /// Version of the document.
    pub lsn: u64,
    /// The server's type of error.
    pub reason: String,
    /// Time in milliseconds since the Unix epoch.
    pub parked_at: u64,
}

impl DeadLetter {
    pub fn id(&self) -> String {
        letter_id(&self.index, &self.document)
    }
}

fn letter_id(index: &str, document: &str) -> String {
    format!("{index}:{document}")
}

/// The dead letters of a lane: id and version of each.
#[derive(Debug, Default)]
pub(super) struct DeadLetters(BTreeMap<String, Lsn>);

impl DeadLetters {
    /// Reads the letters that the lane has stored.
    pub(super) async fn read(client: &Client, target: &SearchTarget, lane: &LaneId) -> Result<Self, Fault> {
        let filter = json!([
            { "term": { "projection": lane.projection } },
            { "term": { "source": lane.source } },
            { "term": { "lane": lane.lane } },
        ]);
        let found = find(client, target, &filter, LETTERS_MAX).await?;
        let version = |letter: DeadLetter| Some((letter.id(), Lsn::from_u64(letter.lsn).ok()?));
        Ok(Self(found.into_iter().filter_map(version).collect()))
    }

    /// Returns the letters of documents that the index has taken in the letter's version or a newer one.
    pub(super) fn superseded(
        &self,
        index: &str,
        taken: &[Document],
        rejected: &[Rejected],
    ) -> Vec<(String, Lsn)> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let is_taken = |document: &&Document| rejected.iter().all(|one| one.id != document.id);
        let letter = |document: &Document| {
            let id = letter_id(index, &document.id);
            let is_older = self.0.get(&id).is_some_and(|lsn| *lsn <= document.lsn);
            is_older.then_some((id, document.lsn))
        };
        taken.iter().filter(is_taken).filter_map(letter).collect()
    }

    pub(super) fn forget(&mut self, removed: &[(String, Lsn)]) {
        removed.iter().for_each(|(id, _)| _ = self.0.remove(id));
    }

    pub(super) fn record(&mut self, index: &str, rejected: &[Rejected]) {
        self.0.extend(rejected.iter().map(|one| (letter_id(index, &one.id), one.lsn)));
    }
}

/// Writes the letters of rejected documents.
pub(super) async fn park(
    client: &Client,
    target: &SearchTarget,
    lane: &LaneId,
    index: &str,
    rejected: &[Rejected],
) -> Result<(), Fault> {
    // Letters of a lane that builds an index belong to its projection too.
    let projection = lane.projection.split('@').next().unwrap_or_default();
    let letter = |one: &Rejected| {
        let letter = DeadLetter {
            projection: projection.to_owned(),
            source: lane.source.clone(),
            lane: lane.lane,
            index: index.to_owned(),
            document: one.id.clone(),
            lsn: one.lsn.as_u64(),
            reason: one.reason.clone(),
            parked_at: wall_clock::now_ms(),
        };
        let source = serde_json::to_vec(&letter).expect("texts and numbers are always JSON");
        Document { id: letter.id(), lsn: one.lsn, source }
    };
    let letters: Vec<Document> = rejected.iter().map(letter).collect();
    let place = target.dead_letters_index();
    match bulk::write(client, &place, &letters).await?.first() {
        None => Ok(()),
        Some(one) => Err(Fault::new(
            Code::TargetTableShape,
            format!("{}, index {place}", target.subject()),
            format!("it rejects dead letters ({})", one.reason),
        )
        .needs("the index that set-up made")),
    }
}

/// Removes letters that are not newer than these versions; returns how many it removed.
pub(super) async fn remove(
    client: &Client,
    target: &SearchTarget,
    letters: &[(String, Lsn)],
) -> Result<usize, Fault> {
    #[derive(Deserialize)]
    struct Response {
        items: Vec<Item>,
    }
    #[derive(Deserialize)]
    struct Item {
        delete: Outcome,
    }
    #[derive(Deserialize)]
    struct Outcome {
        status: u16,
        error: Option<TypedError>,
    }
    let place = target.dead_letters_index();
    let mut removed = 0;
    for some in letters.chunks(1000) {
        let line = |(id, lsn): &(String, Lsn)| {
            let version = lsn.as_u64();
            format!(
                "{}\n",
                json!({ "delete": { "_id": id, "version": version, "version_type": "external_gte" } })
            )
        };
        let body: String = some.iter().map(line).collect();
        let path = format!("/{}/_bulk?require_alias=true&refresh=true", writing_alias(&place));
        let answer = client.post(&path, body).await?.success(&format!(", index {place}"))?;
        for Item { delete: Outcome { status, error } } in answer.read::<Response>()?.items {
            match StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR) {
                status if status.is_success() => removed += 1,
                // The letter is gone, or a newer one has replaced it.
                StatusCode::NOT_FOUND | StatusCode::CONFLICT => {}
                status => {
                    let kind = error.map(|error| error.kind).unwrap_or_default();
                    return Err(fault(&format!("{}, index {place}", target.subject()), status, &kind));
                }
            }
        }
    }
    Ok(removed)
}

/// Removes the letters of an index that no lane writes any more.
pub(super) async fn remove_of_index(
    client: &Client,
    target: &SearchTarget,
    projection: &str,
    index: &str,
) -> Result<(), Fault> {
    let filter = json!([{ "term": { "projection": projection } }, { "term": { "index": index } }]);
    loop {
        let letters = find(client, target, &filter, LETTERS_MAX).await?;
        let version = |letter: &DeadLetter| Some((letter.id(), Lsn::from_u64(letter.lsn).ok()?));
        let versions: Vec<_> = letters.iter().filter_map(version).collect();
        if remove(client, target, &versions).await? == 0 {
            return Ok(());
        }
    }
}

/// Returns letters in the order of their versions, the oldest first.
async fn find(
    client: &Client,
    target: &SearchTarget,
    filter: &Value,
    limit: usize,
) -> Result<Vec<DeadLetter>, Fault> {
    let place = target.dead_letters_index();
    client.refresh(&place).await?;
    let query = json!({ "size": limit, "sort": ["lsn"], "query": { "bool": { "filter": filter } } });
    hits::find(client, &place, &query).await
}

/// Returns the number of letters.
async fn count(client: &Client, target: &SearchTarget, filter: &Value) -> Result<u64, Fault> {
    let place = target.dead_letters_index();
    client.refresh(&place).await?;
    client.count(&place, &json!({ "bool": { "filter": filter } })).await
}

/// Rounds of a removal, one after the other, in which letters were found and none was removed.
#[derive(Debug, Default)]
struct IdleRounds(u32);

impl IdleRounds {
    /// Notes a round; returns whether further ones would remove nothing either. Another process may have removed what
    /// one or two rounds found.
    fn are_over(&mut self, removed: usize) -> bool {
        self.0 = if removed == 0 { self.0 + 1 } else { 0 };
        self.0 >= IDLE_ROUNDS_MAX
    }
}

impl SearchTarget {
    /// Returns the oldest letters of a projection, at most `limit`.
    pub async fn dead_letters(&self, projection: &str, limit: usize) -> Result<Vec<DeadLetter>, Fault> {
        let filter = json!([{ "term": { "projection": projection } }]);
        find(self.client().await?, self, &filter, limit.min(LETTERS_MAX)).await
    }

    /// Removes the letters of a source that left for good; returns how many. With `is_rehearsal` it only counts them.
    pub(super) async fn forget_letters_of(
        &self,
        projection: &str,
        source: &str,
        is_rehearsal: bool,
    ) -> Result<u64, Fault> {
        let filter = json!([{ "term": { "projection": projection } }, { "term": { "source": source } }]);
        if is_rehearsal {
            return count(self.client().await?, self, &filter).await;
        }
        let (mut forgotten, mut rounds) = (0, IdleRounds::default());
        loop {
            let letters = find(self.client().await?, self, &filter, LETTERS_MAX).await?;
            if letters.is_empty() {
                return Ok(forgotten);
            }
            let removed = self.drop_letters(&letters).await?;
            forgotten += removed as u64;
            if rounds.are_over(removed) {
                let subject = format!("{}, index {}", self.subject(), self.dead_letters_index());
                let found = format!("its removal of dead letters left {} that it found", letters.len());
                return Err(Fault::new(Code::TargetUnreachable, subject, found)
                    .needs("no process that parks letters of the source")
                    .remedy("repeat the command: it goes on with what is left"));
            }
        }
    }

    /// Removes these letters unless newer ones have replaced them; returns how many it removed.
    pub async fn drop_letters(&self, letters: &[DeadLetter]) -> Result<usize, Fault> {
        let version = |letter: &DeadLetter| Some((letter.id(), Lsn::from_u64(letter.lsn).ok()?));
        let versions: Vec<_> = letters.iter().filter_map(version).collect();
        remove(self.client().await?, self, &versions).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_that_finds_letters_and_removes_none_fails_and_does_not_end_quietly() {
        let mut rounds = IdleRounds::default();
        let over = [5, 0, 0, 1, 0, 0, 0].map(|removed| rounds.are_over(removed));
        assert_eq!(over, [false, false, false, false, false, false, true]);
    }
}
