//! Actions of the live page: changes for which an operator asks over HTTP.
//!
//! An action that has begun is carried out to its end, also when its client goes away. A reconciliation takes hours, so
//! it runs in the background of this process until the daemon stops; another process, or the same action, continues it.

use std::sync::Arc;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::Operations;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{
    Actor, BegunOperation, OperationView, PauseRequest, Recorded, RefreshRequest, RestartRequest,
    ResumeRequest, RetryRequest, newest_reconciliation, plan_lines, reconciliation_end,
};
use crate::reconciliations::{self, ReconcileOrder};
use crate::wiring::{OperationRecords, Wiring};

/// Actions that a process carries out at once.
const ACTIONS_MAX: usize = 8;

/// One change for which an operator asks.
#[derive(Debug, Clone)]
pub enum Action {
    Restart(RestartRequest),
    Refresh(RefreshRequest),
    Reconcile(ReconcileOrder),
    RetryDeadLetters(RetryRequest),
    Pause(PauseRequest),
    Resume(ResumeRequest),
}

/// An action that was carried out: sentences about it, and where its records are.
pub type Carried = Recorded<Vec<String>>;

impl Action {
    /// Returns the command that does the same.
    pub fn command(&self) -> String {
        match self {
            Self::Restart(request) => request.command(),
            Self::Refresh(request) => request.command(),
            Self::Reconcile(order) => format!("anabranch {order}"),
            Self::RetryDeadLetters(request) => request.command(),
            Self::Pause(request) => request.command(),
            Self::Resume(request) => request.command(),
        }
    }

    /// Returns what the action would do, or the fault with which it would be refused. Changes nothing.
    pub async fn rehearse(&self, wiring: &Wiring, actor: &Actor) -> Result<Vec<String>, Fault> {
        match self {
            Self::Restart(request) => request.rehearse(wiring),
            Self::Refresh(request) => {
                let lanes = request.rehearse(wiring).await?;
                all_asked(
                    lanes
                        .into_iter()
                        .map(|asked| asked.outcome.map(|()| request.line(wiring, &asked.lane, true))),
                )
            }
            Self::Reconcile(order) => Ok(plan_lines(&reconciliations::rehearse(wiring, order, false).await?)),
            Self::RetryDeadLetters(request) => request.rehearse(wiring).await.map(or_nothing),
            Self::Pause(request) => Ok(vec![request.rehearse(wiring, actor).await?.line(true)]),
            Self::Resume(request) => Ok(vec![request.rehearse(wiring).await?.line(true)]),
        }
    }

    /// Makes the change; a reconciliation is not awaited, and [`Actions`] has it run.
    async fn carry_out(&self, wiring: &Wiring, actor: &Actor) -> Result<Carried, Fault> {
        match self {
            Self::Restart(request) => request.carry_out(wiring, actor).await,
            Self::Refresh(request) => {
                let Recorded { done, operation, is_recorded } =
                    request.carry_out(wiring, actor, |_| {}).await?;
                let done = all_asked(
                    done.into_iter()
                        .map(|asked| asked.outcome.map(|()| request.line(wiring, &asked.lane, false))),
                )?;
                Ok(Recorded { done, operation, is_recorded })
            }
            Self::Reconcile(_) => {
                Err(Fault::new(Code::Internal, "a reconciliation", "it was to run in the foreground"))
            }
            Self::RetryDeadLetters(request) => Ok(request.carry_out(wiring, actor).await?.map(or_nothing)),
            Self::Pause(request) => {
                Ok(request.carry_out(wiring, actor).await?.map(|outcome| vec![outcome.line(false)]))
            }
            Self::Resume(request) => {
                Ok(request.carry_out(wiring, actor).await?.map(|outcome| vec![outcome.line(false)]))
            }
        }
    }
}

/// Returns the sentences about all lanes, or the first fault.
fn all_asked(lanes: impl Iterator<Item = Result<String, Fault>>) -> Result<Vec<String>, Fault> {
    lanes.collect()
}

fn or_nothing(lines: Vec<String>) -> Vec<String> {
    if lines.is_empty() { vec!["there are no dead letters".to_owned()] } else { lines }
}

/// Everything that operators can do in this process. Cheap to clone.
#[derive(Clone)]
pub struct Actions {
    wiring: Wiring,
    tasks: TaskTracker,
    /// Ends reconciliations that run in the background.
    cancel: CancellationToken,
    /// Places of the actions that are carried out at once: a server that does not answer holds each for a while.
    places: Arc<Semaphore>,
    /// The place of the one reconciliation that this process runs by an action.
    reconciliations: Arc<Semaphore>,
    /// Kept, so that lists of operations share one connection; `None` = no target can keep records.
    records: Option<OperationRecords>,
}

impl Actions {
    /// Makes the actions of a process; `cancel` ends those in the background.
    pub fn new(wiring: &Wiring, cancel: CancellationToken) -> Self {
        Self {
            wiring: wiring.clone(),
            tasks: TaskTracker::new(),
            cancel,
            places: Arc::new(Semaphore::new(ACTIONS_MAX)),
            reconciliations: Arc::new(Semaphore::new(1)),
            records: wiring.operations().ok(),
        }
    }

    pub fn wiring(&self) -> &Wiring {
        &self.wiring
    }

    /// Carries an action out. Dropping the future does not stop it.
    pub async fn carry_out(&self, action: Action, actor: Actor) -> Result<Carried, Fault> {
        let actions = self.clone();
        let place = self.places.clone().try_acquire_owned().map_err(|_| {
            Fault::new(Code::TooManyRequests, "actions", format!("{ACTIONS_MAX} are being carried out"))
                .needs("the end of one: GET /v1/operations shows it")
        })?;
        let work = self.tasks.spawn(async move {
            let _place = place;
            match action {
                Action::Reconcile(order) => actions.reconcile(order, actor).await,
                action => action.carry_out(&actions.wiring, &actor).await,
            }
        });
        work.await.unwrap_or_else(|error| {
            Err(Fault::new(Code::Internal, "an action", "it did not come to its end").caused_by(error))
        })
    }

    /// Begins a reconciliation in the background, or continues one that was cut off.
    async fn reconcile(&self, order: ReconcileOrder, actor: Actor) -> Result<Carried, Fault> {
        let place = self.reconciliations.clone().try_acquire_owned().map_err(|_| {
            Fault::new(
                Code::ReconcileRefused,
                "reconcile",
                "this process runs one that an operator asked for",
            )
            .needs("its end: the list of reconciliations shows how far it is")
        })?;
        let mut lines = plan_lines(&reconciliations::rehearse(&self.wiring, &order, false).await?);
        let before = newest_reconciliation(&self.wiring).await;
        let command = format!("anabranch {order}");
        let begun = BegunOperation::begin(&self.wiring, &actor, command, before).await;
        let (operation, is_recorded) = (begun.id().to_owned(), begun.is_recorded());
        let actions = self.clone();
        self.tasks.spawn(async move {
            let asker = actor.to_string();
            let (wiring, cancel) = (&actions.wiring, &actions.cancel);
            let outcome = reconciliations::run_now(wiring, &order, false, &asker, cancel).await;
            let outcome = reconciliation_end(&outcome);
            tracing::info!(operation = begun.id(), ?outcome, "a reconciliation for an operator has ended");
            begun.end(outcome).await;
            drop(place);
        });
        lines.push(
            "it runs in this process; the lists of operations and reconciliations show its end".to_owned(),
        );
        Ok(Recorded { done: lines, operation, is_recorded })
    }

    /// Returns the newest records of operations below `before`.
    pub async fn newest(&self, before: Option<u64>, limit: usize) -> Result<Vec<OperationView>, Fault> {
        let newest = match &self.records {
            Some(records) => records.newest(before, limit).await?,
            None => self.wiring.operations()?.newest(before, limit).await?,
        };
        Ok(newest.into_iter().map(OperationView::from).collect())
    }

    /// Waits for the end of the process, and then for the actions that have not ended.
    pub async fn finished(self) {
        self.cancel.cancelled().await;
        self.tasks.close();
        self.tasks.wait().await;
    }
}
