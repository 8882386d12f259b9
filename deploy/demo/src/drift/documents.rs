//! Plants drift in documents.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::{Drift, FUTURE_LSN, Hand, Kinds, drift};
use crate::error::Result;
use crate::topology::uuid;
use crate::verify::DocumentLayer;
use crate::workload::SetAside;

const ACTION: &str = "plant drift";
/// Limit of waiting: a server remembers the version of a deleted document for a second or so.
const FORGETS_WITHIN: Duration = Duration::from_secs(30);
const TRY_INTERVAL: Duration = Duration::from_millis(500);
/// Documents in one query.
const STEP_DOCUMENTS: usize = 500;

#[derive(Debug, Clone, Copy)]
enum Kind {
    Missing,
    /// An earlier state of a document, with the version of that time.
    Stale,
    /// A document of a deleted device.
    Resurrected,
    WrongField,
    /// A field with the empty text that must be absent.
    Empty,
    /// A document that lacks one field.
    LackingField,
    /// Two devices have each other's first code.
    Swapped,
    /// Several devices have the same other warehouse.
    SameChange,
    /// A document that is marked as withdrawn.
    Withdrawn,
    /// An earlier state with a version that no log will ever reach.
    Future,
}

const KINDS: [Drift<Kind>; 11] = [
    drift(Kind::Missing, "missing", 1),
    drift(Kind::Stale, "stale", 1),
    drift(Kind::Resurrected, "resurrected", 1),
    drift(Kind::WrongField, "wrong_field", 1),
    drift(Kind::Empty, "empty", 1),
    drift(Kind::LackingField, "lacking_field", 1),
    drift(Kind::Swapped, "swapped", 2),
    drift(Kind::SameChange, "same_change_of_two", 2),
    drift(Kind::SameChange, "same_change_of_four", 4),
    drift(Kind::Withdrawn, "withdrawn", 1),
    drift(Kind::Future, "future_version", 1),
];

/// A document that exists, or that a step writes.
#[derive(Debug, Clone)]
struct Document {
    id: String,
    version: u64,
    fields: Value,
}

enum Step {
    Remove(Document),
    Put(Document),
}

pub(super) async fn plant(
    layer: &DocumentLayer,
    aside: &[SetAside],
    drifts: u64,
    hand: &mut Hand<'_>,
) -> Result<Kinds> {
    let mut documents = stored(layer, aside).await?;
    let lane_of = |document: &Document| document.fields["lane"].as_u64().unwrap_or(0) as u32;
    let lanes = documents.iter().map(lane_of).max().unwrap_or(0) + 1;
    let mut steps = Vec::new();
    let drawn = hand.draw(&KINDS, drifts, |hand, drift| {
        let wanted = drift.keys as usize;
        if documents.len() < wanted {
            return false;
        }
        let mut any = || documents.swap_remove(hand.below(documents.len()));
        let victims = match drift.kind {
            Kind::Swapped => of_two_boxes(any(), &mut documents),
            _ => (0..wanted).map(|_| any()).collect(),
        };
        if victims.is_empty() {
            return false;
        }
        steps.extend(steps_of(drift.kind, victims, lanes, hand));
        true
    });
    carry_out(layer, steps).await?;
    Ok(drawn)
}

/// Returns the documents of the rows set aside that have an agent and a box, as nearly all have.
async fn stored(layer: &DocumentLayer, aside: &[SetAside]) -> Result<Vec<Document>> {
    let mut documents = Vec::new();
    for part in aside.chunks(STEP_DOCUMENTS) {
        let uuids: Vec<String> = part.iter().map(|row| uuid(row.number)).collect();
        let query = json!({ "bool": { "filter": [
            { "terms": { "uuid": uuids } }, { "term": { "withdrawn": false } },
            { "exists": { "field": "first_agent_code" } }, { "exists": { "field": "box_no" } },
        ] } });
        for mut hit in layer.server.hits("pick documents", &layer.index, query).await? {
            let (Some(id), Some(version)) = (hit["_id"].as_str(), hit["_version"].as_u64()) else { continue };
            documents.push(Document { id: id.to_owned(), version, fields: hit["_source"].take() });
        }
    }
    documents.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(documents)
}

/// Returns this document and one of another box: a swap within a box changes nothing. Empty when all are in its box.
fn of_two_boxes(one: Document, documents: &mut Vec<Document>) -> Vec<Document> {
    match documents.iter().position(|other| other.fields["box_no"] != one.fields["box_no"]) {
        Some(source_table) => vec![one, documents.swap_remove(source_table)],
        None => {
            documents.push(one);
            Vec::new()
        }
    }
}

impl Document {
    fn with(&self, changes: &[(&str, Value)]) -> Self {
        let mut document = self.clone();
        for (field, value) in changes {
            document.fields[*field] = value.clone();
        }
        document
    }

    /// Returns the document with another version.
    fn at(mut self, version: u64) -> Self {
        self.fields["lsn"] = version.into();
        Self { version, ..self }
    }
}

fn steps_of(kind: Kind, documents: Vec<Document>, lanes: u32, hand: &mut Hand<'_>) -> Vec<Step> {
    let one = documents[0].clone();
    let earlier = |hand: &mut Hand<'_>| one.with(&[("box_no", format!("{}", hand.nobody()).into())]);
    match kind {
        Kind::Missing => vec![Step::Remove(one)],
        Kind::Stale => {
            let stale = earlier(hand).at(one.version - 1);
            vec![Step::Remove(one), Step::Put(stale)]
        }
        Kind::Resurrected => {
            let uuid = hand.nobody().to_string();
            let shard = one.fields["shard_id"].as_str().unwrap_or_default();
            let lane = crc32fast::hash(uuid.as_bytes()) % lanes;
            let mut other = one.with(&[("uuid", uuid.as_str().into()), ("lane", lane.into())]);
            other.id = format!("{shard}-{uuid}");
            vec![Step::Put(other)]
        }
        Kind::WrongField => vec![Step::Put(one.with(&[("sku_code", "SKU-drift".into())]))],
        Kind::Empty => vec![Step::Put(one.with(&[("box_no", "".into())]))],
        Kind::LackingField => {
            let mut lacking = one;
            lacking.fields.as_object_mut().map(|fields| fields.remove("first_agent_code"));
            vec![Step::Put(lacking)]
        }
        Kind::Swapped => {
            let [one, two] = [&documents[0], &documents[1]];
            let of = |document: &Document| [("box_no", document.fields["box_no"].clone())];
            vec![Step::Put(one.with(&of(two))), Step::Put(two.with(&of(one)))]
        }
        Kind::SameChange => {
            let changed =
                |document: &Document| Step::Put(document.with(&[("warehouse_code", "W-drift".into())]));
            documents.iter().map(changed).collect()
        }
        Kind::Withdrawn => {
            let kept = ["shard_id", "source", "lane", "lsn"].map(|field| (field, one.fields[field].clone()));
            let mut withdrawn = Document { fields: json!({ "withdrawn": true }), ..one }.with(&kept);
            withdrawn.fields["withdrawn_at"] = 0.into();
            vec![Step::Put(withdrawn)]
        }
        Kind::Future => {
            let future = earlier(hand).at(FUTURE_LSN);
            vec![Step::Put(future)]
        }
    }
}

/// Carries out the steps, each under its own version. One below a deleted version waits until that is forgotten.
async fn carry_out(layer: &DocumentLayer, steps: Vec<Step>) -> Result<()> {
    let is_removal = |step: &Step| matches!(step, Step::Remove(_));
    let (mut now, puts): (Vec<Step>, Vec<Step>) = steps.into_iter().partition(is_removal);
    let mut left = puts;
    let began = tokio::time::Instant::now();
    loop {
        now.append(&mut left);
        let refused = send(layer, &now).await?;
        left = now.into_iter().zip(refused).filter(|(_, refused)| *refused).map(|(step, _)| step).collect();
        now = Vec::new();
        if left.is_empty() {
            return Ok(());
        }
        if began.elapsed() > FORGETS_WITHIN {
            return Err(layer.server.failed(ACTION, format!("{} documents are refused", left.len())));
        }
        layer.server.ask(ACTION, Method::POST, &format!("{}/_refresh", layer.index), Value::Null).await?;
        tokio::time::sleep(TRY_INTERVAL).await;
    }
}

/// Sends the steps; returns for each whether its version was refused.
async fn send(layer: &DocumentLayer, steps: &[Step]) -> Result<Vec<bool>> {
    if steps.is_empty() {
        return Ok(Vec::new());
    }
    let mut body = String::new();
    for step in steps {
        let (Step::Remove(document) | Step::Put(document)) = step;
        let source_table = json!({
            "_id": document.id, "version": document.version, "version_type": "external_gte",
        });
        match step {
            Step::Remove(_) => body.push_str(&format!("{}\n", json!({ "delete": source_table }))),
            Step::Put(_) => {
                body.push_str(&format!("{}\n{}\n", json!({ "index": source_table }), document.fields))
            }
        }
    }
    let path = format!("{}/_bulk?refresh=true", layer.index);
    let answer = layer.server.send(ACTION, Method::POST, &path, body).await?;
    let items = answer["items"].as_array().cloned().unwrap_or_default();
    let status = |item: &Value| item.as_object().and_then(|item| item.values().next()?["status"].as_u64());
    let mut refused = Vec::new();
    for item in &items {
        match status(item) {
            Some(200..=299) => refused.push(false),
            Some(409) => refused.push(true),
            _ => return Err(layer.server.failed(ACTION, format!("{item}"))),
        }
    }
    Ok(refused)
}
