//! Set-up and pre-flight of a cluster: indexes, aliases, first progress.
//!
//! An index is named by its alias with its version as suffix, so that another version can be built beside it. An
//! existing index is compared with the body from which set-up would create it. Set-up only adds missing things and
//! never guesses: an operator must decide when progress is gone beside documents, or an index is gone beside moved
//! progress.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::failpoints;
use anabranch_pipeline::projections::Assignment;
use anabranch_schemas::search::{self, writing_alias};
use reqwest::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::client::Client;
use super::generations::Generations;
use super::{SETUP_COMMAND, SearchTarget, progress};
use crate::progress::{BEGIN_LOST, Enrolment, refill};

/// The way to another mapping: a server cannot change that of an index.
const OTHER_INDEX: &str = "give the projection another `index`, or delete this one and run `anabranch --config FILE \
     setup --refill PROJECTION`: its lanes read all tables again";

/// The first Elasticsearch version with every feature in use; every OpenSearch has them.
const ELASTICSEARCH_MIN: (u32, u32) = (7, 10);

/// Numbers of things that set-up created; all zero when nothing was missing.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SetupReport {
    /// Indexes, those of progress and dead letters included.
    pub indexes: usize,
    pub aliases: usize,
    pub progress_documents: usize,
}

/// The needed form of an index.
#[derive(Debug)]
pub(super) struct NeededIndex {
    index: String,
    /// The alias by which the index is read, if it has one.
    alias: Option<String>,
    is_written_in_bulk: bool,
    body: Value,
}

/// State of a needed index.
#[derive(Debug)]
enum State {
    Missing,
    /// The index exists; lists the aliases that it lacks, and its differences.
    Existing {
        missing_aliases: Vec<String>,
        faults: Vec<Fault>,
    },
}

impl NeededIndex {
    fn new(index: String, alias: Option<String>, definition: &str) -> Self {
        let body = serde_json::from_str(definition).expect("the definitions are JSON: a test reads them");
        Self { index, alias, is_written_in_bulk: definition != search::PROGRESS, body }
    }

    fn aliases(&self) -> impl Iterator<Item = String> {
        let writing = self.is_written_in_bulk.then(|| writing_alias(&self.index));
        self.alias.clone().into_iter().chain(writing)
    }

    fn controls(target: &SearchTarget) -> [Self; 2] {
        [
            Self::new(target.progress_index(), None, search::PROGRESS),
            Self::new(target.dead_letters_index(), None, search::DEAD_LETTERS),
        ]
    }

    /// Returns the index that serves a projection, and the one that is built beside it.
    fn of(assignment: &Assignment, generations: Generations) -> Vec<Self> {
        let Generations { serving, building } = generations;
        let alias = assignment.alias().to_owned();
        let mut needed = vec![Self { alias: Some(alias), ..Self::beside(assignment, &serving) }];
        needed.extend(building.map(|index| Self::beside(assignment, &index)));
        needed
    }

    /// Returns an index of a projection that does not serve.
    pub(super) fn beside(assignment: &Assignment, index: &str) -> Self {
        let definition = assignment.tables().next().map_or("{}", |table| table.derived.shape.definition);
        Self::new(index.to_owned(), None, definition)
    }

    /// Creates the index if it is missing.
    pub(super) async fn ensure(&self, client: &Client, target: &SearchTarget) -> Result<(), Fault> {
        match self.inspect(client, target).await? {
            State::Missing => self.create(client, target).await,
            State::Existing { missing_aliases, faults } => match faults.into_iter().next() {
                Some(fault) => Err(fault),
                None if missing_aliases.is_empty() => Ok(()),
                None => self.add_aliases(client, &missing_aliases).await,
            },
        }
    }

    fn subject(&self, target: &SearchTarget) -> String {
        format!("{}, index {}", target.subject(), self.index)
    }

    async fn inspect(&self, client: &Client, target: &SearchTarget) -> Result<State, Fault> {
        let names = match &self.alias {
            Some(alias) => format!("{},{alias}", self.index),
            None => self.index.clone(),
        };
        let answer = client.get(&format!("/{names}?ignore_unavailable=true")).await?;
        let found: Map<String, Value> = match answer.status {
            StatusCode::NOT_FOUND => Map::new(),
            _ => answer.success(&format!(", index {}", self.index))?.read()?,
        };
        let subject = self.subject(target);
        let mut faults = Vec::new();
        // The answer lists indexes to which the alias leads beside the index itself.
        if let Some(alias) = &self.alias {
            let others = found.keys().filter(|name| *name != &self.index);
            faults.extend(others.map(|other| {
                let found = match other == alias {
                    true => format!("`{alias}` is an index itself"),
                    false => format!("alias `{alias}` leads to index `{other}`"),
                };
                Fault::new(Code::TargetTableShape, &subject, found)
                    .needs(format!("alias `{alias}` that leads to `{}` alone", self.index))
                    .remedy("give the projection another `index`, or remove the other index or alias")
            }));
        }
        let Some(existing) = found.get(&self.index) else {
            return match faults.into_iter().next() {
                Some(fault) => Err(fault),
                None => Ok(State::Missing),
            };
        };
        for part in ["mappings", "settings"] {
            let mut differences = Vec::new();
            compare(&self.body[part], &existing[part], part, &mut differences);
            faults.extend(differences.into_iter().map(|(found, needed)| {
                Fault::new(Code::TargetTableShape, &subject, found).needs(needed).remedy(OTHER_INDEX)
            }));
        }
        // One alias never leads to two indexes: a rebuild is moving it at this moment, or an operator must decide.
        let is_taken = |alias: &String| {
            self.alias.as_ref() == Some(alias) && found.keys().any(|name| *name != self.index)
        };
        let missing_aliases =
            self.aliases().filter(|alias| existing["aliases"].get(alias).is_none() && !is_taken(alias));
        Ok(State::Existing { missing_aliases: missing_aliases.collect(), faults })
    }

    fn missing(&self, target: &SearchTarget, what: &str) -> Fault {
        Fault::new(Code::TargetTableMissing, self.subject(target), what).remedy(SETUP_COMMAND)
    }

    async fn create(&self, client: &Client, target: &SearchTarget) -> Result<(), Fault> {
        let mut body = self.body.clone();
        body["aliases"] = self.aliases().map(|alias| (alias, json!({}))).collect();
        let answer = client.put(&format!("/{}", self.index), body.to_string()).await?;
        if answer.status == StatusCode::BAD_REQUEST
            && let State::Existing { .. } = self.inspect(client, target).await?
        {
            // Another set-up has created it meanwhile.
            return Ok(());
        }
        answer.success(&format!(", index {}", self.index)).map(drop)
    }

    async fn add_aliases(&self, client: &Client, aliases: &[String]) -> Result<(), Fault> {
        let add = |alias| json!({ "add": { "index": self.index, "alias": alias } });
        let actions = json!({ "actions": aliases.iter().map(add).collect::<Vec<_>>() });
        let thing = format!(", index {}", self.index);
        client.post("/_aliases", actions.to_string()).await?.success(&thing).map(drop)
    }
}

/// Collects (found, needed) for every part of `needed` that differs in `found`. Further fields do no harm.
fn compare(needed: &Value, found: &Value, path: &str, differences: &mut Vec<(String, String)>) {
    match (needed, found) {
        (Value::Object(parts), Value::Object(existing)) => {
            for (name, part) in parts {
                let path = format!("{path}.{name}");
                match existing.get(name) {
                    Some(other) => compare(part, other, &path, differences),
                    None => differences.push((format!("`{path}` is missing"), part.to_string())),
                }
            }
        }
        (Value::String(text), Value::String(other)) if text.eq_ignore_ascii_case(other) => {}
        (needed, found) if needed == found => {}
        (needed, found) => differences.push((format!("`{path}` is {found}"), needed.to_string())),
    }
}

/// Returns the indexes of a projection that do not exist although lanes have written documents.
pub(super) async fn gone_indexes(target: &SearchTarget, projection: &str) -> Result<Vec<String>, Fault> {
    let client = target.client().await?;
    let [progress_index, _] = NeededIndex::controls(target);
    if let State::Missing = progress_index.inspect(client, target).await? {
        return Ok(Vec::new());
    }
    let enrolment = progress::read_enrolment(client, target).await?;
    let mut gone = Vec::new();
    let is_meant = |name: &str| name == projection && enrolment.has_moved(projection);
    for assignment in target.0.assignments.iter().filter(|assignment| is_meant(&assignment.name)) {
        for needed in NeededIndex::of(assignment, generations(client, target, assignment, &enrolment).await?)
        {
            if let State::Missing = needed.inspect(client, target).await? {
                gone.push(needed.index);
            }
        }
    }
    Ok(gone)
}

/// Sets the target up. A missing index of the projection `refilled` is created also beside moved progress: its lanes
/// were asked to read all source tables before.
pub(super) async fn setup(target: &SearchTarget, refilled: Option<&str>) -> Result<SetupReport, Fault> {
    let client = target.client().await?;
    let mut report = SetupReport::default();
    let mut missing = Vec::new();
    let mut unnamed = Vec::new();
    let [progress_index, dead_letters] = NeededIndex::controls(target);
    let enrolment = read_enrolment(client, target).await?;
    for assignment in target.0.assignments.iter() {
        for lane in assignment.lane_ids(target.name()) {
            if let Some(fault) = enrolment.loss(&target.subject(), assignment, &lane) {
                return Err(fault);
            }
        }
        for needed in NeededIndex::of(assignment, generations(client, target, assignment, &enrolment).await?)
        {
            match needed.inspect(client, target).await? {
                State::Missing
                    if enrolment.has_moved(&assignment.name) && refilled != Some(&*assignment.name) =>
                {
                    return Err(gone(target, &assignment.name, &needed));
                }
                State::Missing => missing.push(needed),
                State::Existing { missing_aliases, .. } => {
                    if !enrolment.knows_projection(&assignment.name)
                        && !progress::has_any_of(client, target, &assignment.name).await?
                    {
                        require_empty(client, target, &needed).await?;
                    }
                    unnamed.push((needed, missing_aliases));
                }
            }
        }
    }
    for control in [progress_index, dead_letters] {
        match control.inspect(client, target).await? {
            State::Missing => missing.push(control),
            State::Existing { missing_aliases, .. } => unnamed.push((control, missing_aliases)),
        }
    }
    unnamed.retain(|(_, aliases)| !aliases.is_empty());
    for needed in &missing {
        needed.create(client, target).await?;
    }
    for (needed, aliases) in &unnamed {
        needed.add_aliases(client, aliases).await?;
    }
    (report.indexes, report.aliases) = (missing.len(), unnamed.len());
    failpoints::reach("setup-after-tables").await;
    enrol(client, target, &mut report).await?;
    failpoints::reach("setup-after-progress").await;
    Ok(report)
}

/// Reads progress and enrolment; an index of progress that does not exist holds none.
pub(super) async fn read_enrolment(client: &Client, target: &SearchTarget) -> Result<Enrolment, Fault> {
    let [progress_index, _] = NeededIndex::controls(target);
    match progress_index.inspect(client, target).await? {
        State::Missing => Ok(Enrolment::at(format!("index {}", progress_index.index))),
        State::Existing { .. } => progress::read_enrolment(client, target).await,
    }
}

/// Creates the index of progress if it is missing: a first write would create one with another mapping.
pub(super) async fn ensure_progress_index(client: &Client, target: &SearchTarget) -> Result<(), Fault> {
    let [progress_index, _] = NeededIndex::controls(target);
    progress_index.ensure(client, target).await
}

/// Reads the stored list of indexes; before any progress exists there is none.
async fn generations(
    client: &Client,
    target: &SearchTarget,
    assignment: &Assignment,
    enrolment: &Enrolment,
) -> Result<Generations, Fault> {
    let noted = match enrolment.knows_projection(&assignment.name) {
        true => progress::read_indexes(client, target, &assignment.name).await?,
        false => Vec::new(),
    };
    Ok(Generations::of(assignment, noted))
}

/// Creates progress of new lanes, then stores their enrolment: the next set-up repairs a crash in between.
async fn enrol(client: &Client, target: &SearchTarget, report: &mut SetupReport) -> Result<(), Fault> {
    for assignment in target.0.assignments.iter() {
        for lane in assignment.lane_ids(target.name()) {
            let layout = assignment.fingerprint();
            let made = progress::create(client, target, &lane, assignment.lanes, &layout).await?;
            report.progress_documents += usize::from(made);
        }
        failpoints::reach("setup-progress-sent").await;
        for source in &assignment.sources {
            progress::enrol(client, target, &assignment.name, source).await?;
        }
    }
    Ok(())
}

/// Returns the fault of an index that vanished after lanes wrote documents: set-up would create it without them.
fn gone(target: &SearchTarget, projection: &str, needed: &NeededIndex) -> Fault {
    let found = "it does not exist, although lanes have written documents before";
    Fault::new(Code::TargetTableMissing, needed.subject(target), found)
        .needs("the index with its documents")
        .remedy(format!("restore it together with the index of progress, or {}", refill(projection)))
}

async fn require_empty(client: &Client, target: &SearchTarget, needed: &NeededIndex) -> Result<(), Fault> {
    // Recent writes count too.
    client.refresh(&needed.index).await?;
    if client.count(&needed.index, &json!({ "match_all": {} })).await? == 0 {
        return Ok(());
    }
    let found = "it holds documents, and no progress of any lane is stored";
    Err(Fault::new(Code::TargetProgressLost, needed.subject(target), found)
        .needs("an empty index for a first set-up")
        .remedy(format!(
            "restore the index of progress together with the documents; or, for each source, {BEGIN_LOST}; or delete \
             the index"
        )))
}

pub(super) async fn check(target: &SearchTarget) -> Vec<Fault> {
    let mut faults = Vec::new();
    if let Err(fault) = add_faults(target, &mut faults).await {
        faults.push(fault);
    }
    faults
}

async fn add_faults(target: &SearchTarget, faults: &mut Vec<Fault>) -> Result<(), Fault> {
    let client = target.client().await?;
    check_server(client, target, faults).await?;
    let mut enrolment = None;
    for (number, control) in NeededIndex::controls(target).into_iter().enumerate() {
        match control.inspect(client, target).await? {
            State::Missing => faults.push(control.missing(target, "it does not exist")),
            State::Existing { faults: differences, missing_aliases } => {
                faults.extend(
                    missing_aliases
                        .iter()
                        .map(|alias| control.missing(target, &format!("alias `{alias}` is missing"))),
                );
                if number == 0 && differences.is_empty() {
                    enrolment = Some(progress::read_enrolment(client, target).await?);
                }
                faults.extend(differences);
            }
        }
    }
    for assignment in target.0.assignments.iter() {
        let fault = enrolment.as_ref().and_then(|enrolment| progress_fault(target, assignment, enrolment));
        let has_moved = enrolment.as_ref().is_some_and(|enrolment| enrolment.has_moved(&assignment.name));
        faults.extend(fault);
        let generations = match &enrolment {
            Some(enrolment) => generations(client, target, assignment, enrolment).await?,
            None => Generations::of(assignment, Vec::new()),
        };
        for needed in NeededIndex::of(assignment, generations) {
            match needed.inspect(client, target).await {
                Ok(State::Missing) if has_moved => faults.push(gone(target, &assignment.name, &needed)),
                Ok(State::Missing) => faults.push(needed.missing(target, "it does not exist")),
                Ok(State::Existing { missing_aliases, faults: differences }) => {
                    let missing =
                        |alias: &String| needed.missing(target, &format!("alias `{alias}` is missing"));
                    faults.extend(missing_aliases.iter().map(missing));
                    faults.extend(differences);
                }
                Err(fault) => faults.push(fault),
            }
        }
    }
    Ok(())
}

fn progress_fault(target: &SearchTarget, assignment: &Assignment, enrolment: &Enrolment) -> Option<Fault> {
    assignment.lane_ids(target.name()).iter().find_map(|lane| {
        let new = || {
            Fault::new(Code::TargetProgressLost, format!("lane {lane}"), "no progress was made for it yet")
                .needs("a progress document")
                .remedy(SETUP_COMMAND)
        };
        enrolment
            .loss(&target.subject(), assignment, lane)
            .or_else(|| enrolment.row(lane).is_none().then(new))
    })
}

async fn check_server(client: &Client, target: &SearchTarget, faults: &mut Vec<Fault>) -> Result<(), Fault> {
    #[derive(Deserialize)]
    struct ClusterInfo {
        version: Version,
    }
    #[derive(Deserialize)]
    struct Version {
        number: String,
        distribution: Option<String>,
    }
    let Version { number, distribution } = client.get("/").await?.success("")?.read::<ClusterInfo>()?.version;
    if distribution.is_none() && version_number(&number) < ELASTICSEARCH_MIN {
        faults.push(
            Fault::new(
                Code::TargetRejected,
                target.subject(),
                format!("the server is Elasticsearch {number}"),
            )
            .needs("Elasticsearch 7.10 or OpenSearch 1.0 at least")
            .remedy("upgrade the server"),
        );
    }
    Ok(())
}

/// Parses `7.17.28` as (7, 17).
fn version_number(version: &str) -> (u32, u32) {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differences(needed: Value, found: Value) -> Vec<(String, String)> {
        let mut differences = Vec::new();
        compare(&needed, &found, "mappings", &mut differences);
        differences
    }

    #[test]
    fn every_difference_is_named_and_further_fields_do_no_harm() {
        let fields = json!({ "a": { "type": "keyword" }, "b": { "type": "long" } });
        let needed = json!({ "dynamic": "strict", "properties": fields });
        assert!(differences(needed.clone(), needed.clone()).is_empty());
        let found =
            json!({ "properties": { "a": { "type": "text" }, "b": { "type": "long", "more": 1 }, "c": {} } });
        let named = differences(needed, found);
        assert_eq!(
            named,
            [
                ("`mappings.dynamic` is missing".to_owned(), "\"strict\"".to_owned()),
                ("`mappings.properties.a.type` is \"text\"".to_owned(), "\"keyword\"".to_owned()),
            ]
        );
    }

    #[test]
    fn the_definitions_are_json() {
        for definition in [search::SERIAL_DOCUMENTS, search::PROGRESS, search::DEAD_LETTERS] {
            let needed = NeededIndex::new("i".into(), None, definition);
            assert_eq!(needed.body["mappings"]["dynamic"], "strict");
            assert_eq!(needed.body["settings"]["index"]["translog"]["durability"], "REQUEST");
        }
    }
}
