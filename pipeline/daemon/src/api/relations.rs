//! `GET /v1/flux/{id}` and `GET /v1/flux/{id}/relations`: a payment document with the way up from it, and everything
//! below it.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_schemas::flux::id::FluxId;
use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use serde::Deserialize;

use super::problem::Problem;
use super::serials::malformed;
use crate::lookup::AtLeast;
use crate::relations::{DocumentAnswer, Relations, RelationsAnswer};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DocumentRequest {
    at_least: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelationsRequest {
    limit: Option<usize>,
    after: Option<String>,
    at_least: Option<String>,
}

type IdPath = Result<Path<String>, PathRejection>;

pub async fn document(
    State(relations): State<Option<Relations>>,
    id: IdPath,
    wanted: Result<Query<DocumentRequest>, QueryRejection>,
) -> Result<Json<DocumentAnswer>, Problem> {
    let relations = relations.ok_or_else(unconfigured)?;
    let Query(wanted) = wanted.map_err(|rejection| malformed(rejection.body_text()))?;
    let id = read_id(&relations, id)?;
    let place = wanted.at_least.as_deref().map(str::parse::<AtLeast>).transpose()?;
    Ok(Json(relations.document(&id, place.as_ref()).await?))
}

pub async fn below(
    State(relations): State<Option<Relations>>,
    id: IdPath,
    wanted: Result<Query<RelationsRequest>, QueryRejection>,
) -> Result<Json<RelationsAnswer>, Problem> {
    let relations = relations.ok_or_else(unconfigured)?;
    let Query(wanted) = wanted.map_err(|rejection| malformed(rejection.body_text()))?;
    let id = read_id(&relations, id)?;
    let question = relations.question(wanted.limit, wanted.after.as_deref())?;
    let place = wanted.at_least.as_deref().map(str::parse::<AtLeast>).transpose()?;
    Ok(Json(relations.below(&id, &question, place.as_ref()).await?))
}

fn read_id(relations: &Relations, path: IdPath) -> Result<FluxId, Problem> {
    let found = match path {
        Ok(Path(text)) => match relations.read_id(&text) {
            Ok(id) => return Ok(id),
            Err(defect) => defect.to_string(),
        },
        Err(_) => "it is not text; expected: 31 digits".to_owned(),
    };
    let fault = Fault::new(Code::FluxIdMalformed, "identifier", found)
        .remedy("send the 31 digits of a document of this system");
    Err(Problem::from(&fault))
}

fn unconfigured() -> Problem {
    let detail = "this daemon's configuration has no relation index of payment documents";
    Problem::new(Code::FluxUnconfigured, detail, "see `flux_relations` in deploy/flux.example.toml")
}
