//! Builds an index anew beside the serving one, which it then replaces in one step.
//!
//! From the moment that the new index is listed, every flush of the projection's lanes writes both. Lanes of the
//! rebuild bring the past into the new one alone. Both may write in any order, since documents have versions and
//! withdrawn ones stay as tombstones. The past is complete when a lane of the rebuild has passed the point where its
//! living lane began to write both, and everything that the living lane withdrew before it: so it continues until it
//! has passed the living lane a second time. An interrupted rebuild resumes from the progress of its lanes.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::projections::Assignment;
use anabranch_pipeline::records::LaneId;
use anabranch_schemas::search::index_after;
use reqwest::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::client::Client;
use super::generations::Generations;
use super::lane::SearchLane;
use super::setup::NeededIndex;
use super::{SearchTarget, dead_letters, progress};

/// State of a projection in a cluster, as far as the index was refreshed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overview {
    pub generations: Generations,
    /// Documents of the serving index, without tombstones.
    pub documents: u64,
    pub tombstones: u64,
    /// Documents that were rejected and are parked.
    pub dead_letters: u64,
    /// Time at which the one that has waited longest was parked, milliseconds since the Unix epoch; `None` without one.
    pub oldest_letter_ms: Option<u64>,
}

impl SearchTarget {
    fn assignment(&self, projection: &str) -> Result<&std::sync::Arc<Assignment>, Fault> {
        self.0.assignments.of_projection(projection).ok_or_else(|| {
            let found = format!("projection {projection} has no index here");
            Fault::new(Code::ConfigInvalid, self.subject(), found)
                .needs("a projection of kind `serial_documents` on this target")
        })
    }

    /// Returns the indexes of a projection.
    pub async fn generations(&self, projection: &str) -> Result<Generations, Fault> {
        let assignment = self.assignment(projection)?;
        let noted = progress::read_indexes(self.client().await?, self, projection).await?;
        Ok(Generations::of(assignment, noted))
    }

    /// Returns the index that a rebuild fills, or would fill.
    pub async fn next_index(&self, projection: &str) -> Result<String, Fault> {
        let alias = self.assignment(projection)?.alias();
        let Generations { serving, building } = self.generations(projection).await?;
        Ok(building.unwrap_or_else(|| index_after(alias, &serving)))
    }

    /// Creates and lists the new index, or finds the rebuild that was begun before; returns the index's name. Flushes
    /// that began before write the old index only: the caller fences them.
    pub async fn begin_rebuild(&self, projection: &str) -> Result<String, Fault> {
        let (account, assignment) = (self.as_setup_account(), self.assignment(projection)?);
        let client = account.client().await?;
        let (serving, index) =
            (self.generations(projection).await?.serving, self.next_index(projection).await?);
        let needed = NeededIndex::beside(assignment, &index);
        needed.ensure(client, self).await?;
        for lane in self.lanes_of_rebuild(assignment, &index) {
            progress::create(client, self, &lane, assignment.lanes, &assignment.fingerprint()).await?;
        }
        progress::note_indexes(client, self, projection, &[&serving, &index]).await?;
        Ok(index)
    }

    fn lanes_of_rebuild(&self, assignment: &Assignment, index: &str) -> Vec<LaneId> {
        let mut lanes = assignment.lane_ids(self.name());
        lanes.iter_mut().for_each(|lane| lane.projection = building_name(&assignment.name, index));
        lanes
    }

    /// Makes the lane that brings the past of a lane into the new index; `None` when there is no such lane.
    pub fn building_lane(&self, id: &LaneId, index: &str) -> Option<SearchLane> {
        let assignment = self.0.assignments.of_lane(id)?;
        let projection = building_name(&id.projection, index);
        let id = LaneId { projection, ..id.clone() };
        Some(SearchLane::building(self.clone(), assignment.clone(), id, index))
    }

    /// Lets the new index serve in place of the old one, in one step; lanes then write it alone. The old one is removed
    /// or stays unchanged from then on; its name is returned.
    pub async fn end_rebuild(
        &self,
        projection: &str,
        index: &str,
        removes_old: bool,
    ) -> Result<String, Fault> {
        let (account, assignment) = (self.as_setup_account(), self.assignment(projection)?);
        let client = account.client().await?;
        let Generations { serving, .. } = self.generations(projection).await?;
        let alias = assignment.alias();
        // The refresh lets the next searches find everything that lanes have written.
        client.refresh(index).await?;
        let mut actions = vec![json!({ "add": { "index": index, "alias": alias } })];
        let answer = client.get(&format!("/{alias}")).await?;
        if answer.status != StatusCode::NOT_FOUND {
            let holders: Map<String, Value> = answer.success(&format!(", alias {alias}"))?.read()?;
            let others = holders.keys().filter(|holder| *holder != index);
            actions.extend(others.map(|other| json!({ "remove": { "index": other, "alias": alias } })));
        }
        let actions = json!({ "actions": actions });
        client.post("/_aliases", actions.to_string()).await?.success(&format!(", alias {alias}"))?;
        progress::note_indexes(client, self, projection, &[index]).await?;
        for lane in self.lanes_of_rebuild(assignment, index) {
            progress::remove(client, self, &lane).await?;
        }
        if serving != index {
            // Each of its documents is in the new index, or has a letter of that index.
            dead_letters::remove_of_index(self.client().await?, self, projection, &serving).await?;
            if removes_old {
                remove_index(client, &serving).await?;
            }
        }
        Ok(serving)
    }

    /// Abandons a rebuild: lanes write the serving index alone, and the new one is removed. Returns its name, or `None`
    /// if there is no rebuild.
    pub async fn abandon_rebuild(&self, projection: &str) -> Result<Option<String>, Fault> {
        let (account, assignment) = (self.as_setup_account(), self.assignment(projection)?);
        let client = account.client().await?;
        let Generations { serving, building } = self.generations(projection).await?;
        let Some(index) = building else { return Ok(None) };
        progress::note_indexes(client, self, projection, &[&serving]).await?;
        for lane in self.lanes_of_rebuild(assignment, &index) {
            progress::remove(client, self, &lane).await?;
        }
        dead_letters::remove_of_index(self.client().await?, self, projection, &index).await?;
        remove_index(client, &index).await?;
        Ok(Some(index))
    }

    /// Counts the documents of an index, without tombstones.
    pub async fn count(&self, index: &str) -> Result<u64, Fault> {
        count(self.client().await?, index, json!({ "withdrawn": false })).await
    }

    /// Returns the state of a projection here.
    pub async fn overview(&self, projection: &str) -> Result<Overview, Fault> {
        let (client, generations) = (self.client().await?, self.generations(projection).await?);
        let letters = self.dead_letters_index();
        let (documents, tombstones, dead_letters, oldest_letter_ms) = tokio::try_join!(
            count(client, &generations.serving, json!({ "withdrawn": false })),
            count(client, &generations.serving, json!({ "withdrawn": true })),
            count(client, &letters, json!({ "projection": projection })),
            oldest_letter(client, &letters, projection),
        )?;
        Ok(Overview { generations, documents, tombstones, dead_letters, oldest_letter_ms })
    }
}

async fn remove_index(client: &Client, index: &str) -> Result<(), Fault> {
    let answer = client.delete(&format!("/{index}"), Vec::new()).await?;
    match answer.status {
        StatusCode::NOT_FOUND => Ok(()),
        _ => answer.success(&format!(", index {index}")).map(drop),
    }
}

/// Counts the documents that have this value.
async fn count(client: &Client, index: &str, term: Value) -> Result<u64, Fault> {
    client.count(index, &json!({ "term": term })).await
}

/// Returns the time at which the oldest dead letter of a projection was parked; `None` without a letter.
async fn oldest_letter(client: &Client, index: &str, projection: &str) -> Result<Option<u64>, Fault> {
    #[derive(Deserialize)]
    struct Reply {
        aggregations: Aggregations,
    }
    #[derive(Deserialize)]
    struct Aggregations {
        oldest: Oldest,
    }
    #[derive(Deserialize)]
    struct Oldest {
        value: Option<f64>,
    }
    let query = json!({
        "size": 0,
        "query": { "term": { "projection": projection } },
        "aggs": { "oldest": { "min": { "field": "parked_at" } } },
    });
    let path = format!("/{index}/_search");
    let answer = client.post(&path, query.to_string()).await?.success(&format!(", index {index}"))?;
    Ok(answer.read::<Reply>()?.aggregations.oldest.value.map(|value| value as u64))
}

/// Returns the name of a rebuild's lanes; no projection can have it.
fn building_name(projection: &str, index: &str) -> String {
    format!("{projection}@{index}")
}
