//! `POST /v1/operations` carries out an action of an operator, or says what it would do. `GET /v1/operations` lists
//! what was done, by commands and over HTTP.

use std::collections::HashMap;

use anabranch_pipeline::config::reconcile::Mode;
use anabranch_pipeline::wall_clock;
use axum::extract::{Query, State};
use axum::{Extension, Json};
use serde::Serialize;

use super::Shared;
use super::body::{Body, Fields, FromFields, required, wrong};
use super::guard::Operator;
use super::history::number;
use super::problem::Problem;
use crate::operations::{
    Action, Actor, LaneSelection, OperationView, PauseRequest, RefreshRequest, RestartRequest, ResumeRequest,
    RetryRequest,
};
use crate::reconciliations::ReconcileOrder;

/// Records a page, unless the request asks for fewer.
const PAGE_MAX: u64 = 100;
/// Characters of a pause's reason, which every process keeps and shows.
const REASON_CHARACTERS_MAX: usize = 500;

/// An action, and whether it is only rehearsed.
#[derive(Debug)]
pub(super) struct Order {
    action: Action,
    is_rehearsal: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct Answer {
    dry_run: bool,
    /// The command that does the same.
    command: String,
    /// Sentences for people about the changes that were made, or would be.
    lines: Vec<String>,
    /// Id in the records of operations; `None` for a rehearsal.
    operation: Option<String>,
    /// The records are written; a reconciliation has only its first record yet.
    is_recorded: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct Page {
    /// This daemon's clock, so that a page needs none of its own.
    now_ms: u64,
    /// The newest first.
    operations: Vec<OperationView>,
    /// Value of `before` for the next page; `None` on the last one.
    next: Option<u64>,
}

impl FromFields for Order {
    const KEYS: &'static [&'static str] =
        &["action", "dry_run", "task", "projection", "source", "table", "stores", "mode", "reason"];

    fn from_fields(fields: &mut Fields) -> Result<Self, Problem> {
        let name = required("action", fields.text("action")?)?;
        let is_rehearsal = required("dry_run", fields.flag("dry_run")?)?;
        let action = action(&name, fields)?;
        match fields.rest() {
            Some(key) => Err(wrong(format!("`{key}` is not a key of the action {name}"))),
            None => Ok(Self { action, is_rehearsal }),
        }
    }
}

fn action(name: &str, fields: &mut Fields) -> Result<Action, Problem> {
    Ok(match name {
        "restart" => Action::Restart(RestartRequest { task: fields.text("task")? }),
        "refresh" => {
            let selection = LaneSelection {
                projection: required("projection", fields.text("projection")?)?,
                sources: fields.text("source")?.into_iter().collect(),
                targets: Vec::new(),
            };
            Action::Refresh(RefreshRequest {
                selection,
                table: fields.text("table")?,
                ..RefreshRequest::default()
            })
        }
        "reconcile" => {
            let stores = fields.texts("stores")?.unwrap_or_default();
            Action::Reconcile(ReconcileOrder { mode: mode(fields)?, stores, ..ReconcileOrder::default() })
        }
        "retry-dead-letters" => {
            Action::RetryDeadLetters(RetryRequest { projection: fields.text("projection")? })
        }
        "pause" => Action::Pause(PauseRequest {
            projection: required("projection", fields.text("projection")?)?,
            source: fields.text("source")?,
            reason: reason(fields)?,
        }),
        "resume" => Action::Resume(ResumeRequest {
            projection: required("projection", fields.text("projection")?)?,
            source: fields.text("source")?,
        }),
        _ => {
            let known = "restart, refresh, reconcile, retry-dead-letters, pause, resume";
            return Err(wrong(format!("`action` is none of {known}")));
        }
    })
}

fn mode(fields: &mut Fields) -> Result<Option<Mode>, Problem> {
    match fields.text("mode")?.as_deref() {
        None => Ok(None),
        Some("report") => Ok(Some(Mode::Report)),
        Some("repair") => Ok(Some(Mode::Repair)),
        Some(_) => Err(wrong("`mode` is none of report, repair".to_owned())),
    }
}

fn reason(fields: &mut Fields) -> Result<Option<String>, Problem> {
    let reason = fields.text("reason")?;
    match &reason {
        Some(text) if text.chars().count() > REASON_CHARACTERS_MAX => {
            Err(wrong(format!("`reason` has more than {REASON_CHARACTERS_MAX} characters")))
        }
        _ => Ok(reason),
    }
}

pub(super) async fn carry_out(
    State(Shared(served)): State<Shared>,
    Extension(operator): Extension<Operator>,
    Body(Order { action, is_rehearsal }): Body<Order>,
) -> Result<Json<Answer>, Problem> {
    let (actions, actor) = (&served.context.actions, Actor::of_page(&operator.name));
    let command = action.command();
    if is_rehearsal {
        let lines = action.rehearse(actions.wiring(), &actor).await.map_err(|fault| Problem::from(&fault))?;
        return Ok(Json(Answer { dry_run: true, command, lines, operation: None, is_recorded: false }));
    }
    tracing::info!(operator = operator.name, command, "an operator asks for a change");
    let carried = actions.carry_out(action, actor).await.map_err(|fault| Problem::from(&fault))?;
    Ok(Json(Answer {
        dry_run: false,
        command,
        lines: carried.done,
        operation: Some(carried.operation),
        is_recorded: carried.is_recorded,
    }))
}

pub(super) async fn list(
    State(Shared(served)): State<Shared>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Json<Page>, Problem> {
    let before = number(&query, "before", u64::MAX, u64::MAX)?;
    let limit = number(&query, "limit", PAGE_MAX, PAGE_MAX)?;
    // One more is read, which shows whether there is a next page.
    let newest = served.context.actions.newest(Some(before), limit as usize + 1).await;
    let mut operations = newest.map_err(|fault| Problem::from(&fault))?;
    let has_more = operations.len() > limit as usize;
    operations.truncate(limit as usize);
    let next = operations.last().filter(|_| has_more).map(|last| last.number);
    Ok(Json(Page { now_ms: wall_clock::now_ms(), operations, next }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Parses a body as the route does.
    fn parsed(body: Value) -> Result<Order, Problem> {
        Fields::of::<Order>(body).and_then(|mut fields| Order::from_fields(&mut fields))
    }

    #[test]
    fn each_action_is_the_command_of_the_same_name() {
        for (body, command) in [
            (json!({"action": "restart", "task": "reader/a"}), "anabranch restart reader/a"),
            (json!({"action": "restart", "task": null}), "anabranch restart --all"),
            (
                json!({"action": "refresh", "projection": "birthday", "source": null, "table": null}),
                "anabranch refresh --projection birthday",
            ),
            (
                json!({"action": "refresh", "projection": "birthday", "source": "a", "table": "d.t"}),
                "anabranch refresh --projection birthday --source a --table d.t",
            ),
            (json!({"action": "reconcile", "stores": [], "mode": null}), "anabranch reconcile --now"),
            (
                json!({"action": "reconcile", "stores": ["birthday"], "mode": "report"}),
                "anabranch reconcile --now --store birthday --mode report",
            ),
            (json!({"action": "retry-dead-letters", "projection": null}), "anabranch dead-letters retry"),
            (
                json!({"action": "pause", "projection": "birthday", "source": "a", "reason": "new disks"}),
                "anabranch pause --projection birthday --source a --reason 'new disks'",
            ),
            (json!({"action": "resume", "projection": "birthday"}), "anabranch resume --projection birthday"),
        ] {
            for is_rehearsal in [true, false] {
                let mut body = body.clone();
                body["dry_run"] = is_rehearsal.into();
                let order = parsed(body.clone()).unwrap_or_else(|problem| panic!("{body}: {problem:?}"));
                assert_eq!((order.action.command().as_str(), order.is_rehearsal), (command, is_rehearsal));
            }
        }
    }

    #[test]
    fn a_body_that_means_no_action_is_refused_with_its_place() {
        let long = "x".repeat(REASON_CHARACTERS_MAX + 1);
        for (body, place) in [
            (json!({"action": "restart"}), "`dry_run` is missing"),
            (json!({"action": "restart", "dry_run": null}), "`dry_run` is missing"),
            (json!({"action": "restart", "dry_run": "false"}), "`dry_run` is text; true or false is needed"),
            (json!({"dry_run": true}), "`action` is missing"),
            (json!({"action": "drop", "dry_run": false}), "`action` is none of restart, refresh"),
            (
                json!({"action": "restart", "dry_run": false, "projection": "birthday"}),
                "`projection` is not a key of the action restart",
            ),
            (json!({"action": "pause", "dry_run": false}), "`projection` is missing"),
            (
                json!({"action": "refresh", "dry_run": false, "projection": "b", "keys": ["1"]}),
                "`keys` is not a key of this body",
            ),
            (json!({"action": "reconcile", "dry_run": true, "stores": "b"}), "`stores` is text; a list"),
            (
                json!({"action": "reconcile", "dry_run": true, "stores": [], "mode": "force"}),
                "`mode` is none of report, repair",
            ),
            (
                json!({"action": "pause", "dry_run": true, "projection": "b", "reason": long}),
                "`reason` has more than 500 characters",
            ),
        ] {
            let problem = format!("{:?}", parsed(body.clone()).expect_err("it is refused"));
            assert!(problem.contains("BodyNotUnderstood") && problem.contains(place), "{body}: {problem}");
        }
    }
}
