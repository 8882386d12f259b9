//! An index is built anew beside the one that serves, and takes its place at once.
//!
//! From the moment that the new index is noted, every flush of the projection's lanes goes into both. Lanes of the
//! rebuild bring the past into the new one alone; both may write in any order, since documents have versions and what
//! is withdrawn stays as a tombstone. The past is complete when a lane of the rebuild has passed where its living one
//! was when it began to write both, and everything that the living one withdrew before that: so it goes on until it has
//! passed the living one a second time. A process that is cut off goes on from the progress of the rebuild's lanes.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::projections::Assignment;
use anabranch_pipeline::records::LaneId;
use anabranch_schemas::search::index_behind;
use reqwest::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::client::Client;
use super::generations::Generations;
use super::lane::SearchLane;
use super::setup::Needed;
use super::{SearchTarget, progress};

/// What a projection has in a cluster, as far as the index was refreshed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overview {
    pub generations: Generations,
    /// Documents of the index that serves, without tombstones.
    pub documents: u64,
    pub tombstones: u64,
    /// Documents that were rejected and are parked.
    pub dead_letters: u64,
}

impl SearchTarget {
    fn assignment(&self, projection: &str) -> Result<&std::sync::Arc<Assignment>, Fault> {
        self.0.assignments.of_projection(projection).ok_or_else(|| {
            let found = format!("projection {projection} has no index here");
            Fault::new(Code::ConfigInvalid, self.subject(), found)
        })
    }

    /// The indexes of a projection.
    pub async fn generations(&self, projection: &str) -> Result<Generations, Fault> {
        let assignment = self.assignment(projection)?;
        let noted = progress::read_indexes(self.client().await?, self, projection).await?;
        Ok(Generations::of(assignment, noted))
    }

    /// The index that a rebuild fills, or would.
    pub async fn next_index(&self, projection: &str) -> Result<String, Fault> {
        let alias = self.assignment(projection)?.alias();
        let Generations { serving, building } = self.generations(projection).await?;
        Ok(building.unwrap_or_else(|| index_behind(alias, &serving)))
    }

    /// Makes the new index and notes it, or finds the rebuild that was begun before; the index's name. Flushes that
    /// have begun before still go into the old index only: the caller fences them.
    pub async fn begin_rebuild(&self, projection: &str) -> Result<String, Fault> {
        let (account, assignment) = (self.as_setup_account(), self.assignment(projection)?);
        let client = account.client().await?;
        let (serving, index) =
            (self.generations(projection).await?.serving, self.next_index(projection).await?);
        let needed = Needed::beside(assignment, &index);
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

    /// The lane that brings the past of a lane into the new index.
    pub fn building_lane(&self, id: &LaneId, index: &str) -> Option<SearchLane> {
        let assignment = self.0.assignments.of_lane(id)?;
        let projection = building_name(&id.projection, index);
        let id = LaneId { projection, ..id.clone() };
        Some(SearchLane::building(self.clone(), assignment.clone(), id, index))
    }

    /// Lets the new index serve in place of the old one, in one step, and lanes write it alone. The old one is removed,
    /// or stays as it was then; its name.
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
        // Searches of the next moment shall find what lanes wrote up to now.
        client.post(&format!("/{index}/_refresh"), Vec::new()).await?.success(&format!(", index {index}"))?;
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
        if removes_old && serving != index {
            remove_index(client, &serving).await?;
        }
        Ok(serving)
    }

    /// Gives up a rebuild: lanes write the index that serves alone, and the new one is removed; its name, if there is
    /// one.
    pub async fn abandon_rebuild(&self, projection: &str) -> Result<Option<String>, Fault> {
        let (account, assignment) = (self.as_setup_account(), self.assignment(projection)?);
        let client = account.client().await?;
        let Generations { serving, building } = self.generations(projection).await?;
        let Some(index) = building else { return Ok(None) };
        progress::note_indexes(client, self, projection, &[&serving]).await?;
        for lane in self.lanes_of_rebuild(assignment, &index) {
            progress::remove(client, self, &lane).await?;
        }
        remove_index(client, &index).await?;
        Ok(Some(index))
    }

    /// How many documents of an index there are, without tombstones.
    pub async fn count(&self, index: &str) -> Result<u64, Fault> {
        count(self.client().await?, index, json!({ "withdrawn": false })).await
    }

    /// What a projection has here.
    pub async fn overview(&self, projection: &str) -> Result<Overview, Fault> {
        let (client, generations) = (self.client().await?, self.generations(projection).await?);
        let letters = self.dead_letters_index();
        let (documents, tombstones, dead_letters) = tokio::try_join!(
            count(client, &generations.serving, json!({ "withdrawn": false })),
            count(client, &generations.serving, json!({ "withdrawn": true })),
            count(client, &letters, json!({ "projection": projection })),
        )?;
        Ok(Overview { generations, documents, tombstones, dead_letters })
    }
}

async fn remove_index(client: &Client, index: &str) -> Result<(), Fault> {
    let answer = client.delete(&format!("/{index}"), Vec::new()).await?;
    match answer.status {
        StatusCode::NOT_FOUND => Ok(()),
        _ => answer.success(&format!(", index {index}")).map(drop),
    }
}

/// How many documents have this value.
async fn count(client: &Client, index: &str, term: Value) -> Result<u64, Fault> {
    #[derive(Deserialize)]
    struct Counted {
        count: u64,
    }
    let (path, query) = (format!("/{index}/_count"), json!({ "query": { "term": term } }));
    let answer = client.post(&path, query.to_string()).await?.success(&format!(", index {index}"))?;
    Ok(answer.read::<Counted>()?.count)
}

/// No projection can be named so.
fn building_name(projection: &str, index: &str) -> String {
    format!("{projection}@{index}")
}
