//! An OpenSearch or Elasticsearch cluster as a store of derived documents, over plain REST that both accept.
//!
//! [`SearchTarget`] is one configured target with the projections that have an index on it. `setup.rs` creates indexes
//! and first progress and runs the pre-flight, [`SearchLane`] in `lane.rs` applies flushes. `client.rs` sends requests,
//! `error.rs` names their faults, `bulk.rs` writes many documents, `progress.rs` stores a lane's progress as a
//! document, `hits.rs` reads hits of searches, `query.rs` finds documents for people, `rebuild.rs` builds an index anew
//! beside the serving one, `dead_letters.rs` lists rejected documents, `rows.rs` reads all documents, `sweep.rs`
//! removes tombstones, `removal.rs` makes room for a replay, `former.rs` forgets a source that left for good, `lost.rs`
//! handles lanes whose progress is lost.

mod bulk;
mod client;
mod dead_letters;
mod error;
mod former;
mod generations;
mod hits;
mod lane;
mod lost;
mod progress;
mod query;
mod rebuild;
mod removal;
mod replace;
mod rows;
mod setup;
mod sweep;

use std::path::PathBuf;
use std::sync::Arc;

use anabranch_pipeline::config::{Config, ServerUrl, TargetConfig, TargetStore};
use anabranch_pipeline::error::Fault;
use anabranch_pipeline::projections::{Assignment, Assignments};
use anabranch_pipeline::records::{LaneId, Progress};
use tokio::sync::OnceCell;

use self::client::Client;
pub use self::dead_letters::DeadLetter;
pub use self::former::SourceTraces;
pub use self::generations::Generations;
pub use self::lane::SearchLane;
pub use self::query::{DocumentQuery, FoundDocument, PART_CHARACTERS_MIN, Page, PageEnd};
pub use self::rebuild::Overview;
pub use self::rows::SearchRows;
pub use self::setup::SetupReport;
use crate::progress::StoredProgress;
use crate::target::{Settings, Target};

/// The command that creates missing indexes and progress documents.
const SETUP_COMMAND: &str = "anabranch --config FILE setup";

/// One configured target cluster. Cheap to clone.
pub type SearchTarget = Target<SearchSettings>;

/// The settings of a target with indexes.
#[derive(Debug)]
pub struct SearchSettings {
    name: String,
    url: ServerUrl,
    setup_url: Option<ServerUrl>,
    ca_file: Option<PathBuf>,
    /// Prefix of the names of the indexes for progress and dead letters.
    control: String,
    assignments: Assignments,
    /// The client is made at the first use; it keeps its connections.
    client: OnceCell<Client>,
}

impl Settings for SearchSettings {
    const STORE: TargetStore = TargetStore::Search;
    type Lane = SearchLane;

    fn new(config: &Config, target: &TargetConfig) -> Self {
        Self {
            name: target.name.clone(),
            url: target.url.clone(),
            setup_url: target.setup_url.clone(),
            ca_file: target.ca_file.clone(),
            control: target.control_database.clone(),
            assignments: Assignments::of(config, &target.name),
            client: OnceCell::new(),
        }
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn assignments(&self) -> &Assignments {
        &self.assignments
    }

    fn lane(target: &SearchTarget, assignment: &Arc<Assignment>, id: &LaneId) -> SearchLane {
        SearchLane::new(target.clone(), Arc::clone(assignment), id.clone())
    }
}

impl SearchTarget {
    /// Returns the documents of a projection; `None` when it has no index here.
    pub fn rows(&self, projection: &str) -> Option<SearchRows> {
        let known = self.0.assignments.of_projection(projection)?;
        Some(SearchRows::new(self.clone(), Arc::clone(known)))
    }

    /// Creates missing indexes, aliases and first progress. Safe to repeat.
    ///
    /// It creates nothing when progress was lost or belongs to another index or number of lanes.
    pub async fn setup(&self) -> Result<SetupReport, Fault> {
        setup::setup(&self.as_setup_account(), None).await
    }

    /// Returns the indexes of a projection that do not exist although its lanes have written documents.
    pub async fn gone_indexes(&self, projection: &str) -> Result<Vec<String>, Fault> {
        setup::gone_indexes(&self.as_setup_account(), projection).await
    }

    /// Sets up as [`Self::setup`] does, and creates also what [`Self::gone_indexes`] returns. Its lanes must have been
    /// asked to read all source tables before.
    pub async fn refill(&self, projection: &str) -> Result<SetupReport, Fault> {
        setup::setup(&self.as_setup_account(), Some(projection)).await
    }

    /// Returns the target with its set-up account, if it has one: that account creates and removes indexes.
    fn as_setup_account(&self) -> Self {
        let Some(url) = self.0.setup_url.clone() else { return self.clone() };
        Self(Arc::new(SearchSettings {
            name: self.0.name.clone(),
            url,
            setup_url: None,
            ca_file: self.0.ca_file.clone(),
            control: self.0.control.clone(),
            assignments: self.0.assignments.clone(),
            client: OnceCell::new(),
        }))
    }

    /// Checks everything that applying depends on; each failed check is one fault. Changes nothing.
    pub async fn check(&self) -> Vec<Fault> {
        setup::check(self).await
    }

    /// Requires an answer of the cluster, and nothing of its content: a refusal of the question is an answer too.
    pub async fn reach(&self) -> Result<(), Fault> {
        self.client().await?.reach().await
    }

    /// Returns the progress of the configured lanes that have begun.
    pub async fn progress(&self) -> Result<Vec<StoredProgress>, Fault> {
        progress::read_all(self).await
    }

    /// Returns the lanes of a source whose progress is lost or damaged. Lanes that have progress of another index or
    /// number of lanes are not among them.
    pub async fn lost_lanes(&self, source: &str) -> Result<Vec<LaneId>, Fault> {
        lost::lost_lanes(self, source).await
    }

    /// Stores progress of lanes in place of what they lost; creates the index of progress if it is gone.
    pub async fn begin_lost_lanes(&self, lanes: &[(LaneId, Progress)]) -> Result<(), Fault> {
        lost::begin(&self.as_setup_account(), lanes).await
    }

    /// `target NAME`, as faults name it.
    fn subject(&self) -> String {
        format!("target {}", self.0.name)
    }

    fn progress_index(&self) -> String {
        format!("{}-progress", self.0.control)
    }

    fn dead_letters_index(&self) -> String {
        format!("{}-dead-letters", self.0.control)
    }

    async fn client(&self) -> Result<&Client, Fault> {
        let settings = &*self.0;
        let make = async || Client::new(self.subject(), &settings.url, settings.ca_file.as_deref());
        settings.client.get_or_try_init(make).await
    }
}
