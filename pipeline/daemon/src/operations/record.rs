//! The two records of an operation: one before its change, one after its end.
//!
//! A change does not wait for its record: when the target is down, the change is made, and a warning says that no
//! record of it was written. An operation that was cut off has no record of its end.

use std::fmt;
use std::time::Duration;

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::Operations;
use anabranch_pipeline::records::{OperationPhase, OperationRecord, OperationWay};
use anabranch_pipeline::wall_clock;

use crate::operator;
use crate::wiring::{OperationRecords, Wiring};

/// Time for one record: a change that a person waits for must not hang on a server that does not answer.
const RECORD_TIME_MAX: Duration = Duration::from_secs(5);

/// The person or the task that asks for an operation.
#[derive(Debug, Clone)]
pub struct Actor {
    pub who: String,
    pub way: OperationWay,
}

impl Actor {
    /// Returns the account that runs this command.
    pub fn of_command() -> Self {
        Self { who: operator::user(), way: OperationWay::Command }
    }

    /// Returns a task of a daemon, which does the work of a command by itself.
    pub fn of_task(name: &str) -> Self {
        Self { who: name.to_owned(), way: OperationWay::Command }
    }

    /// Returns the operator of this name, who asks over HTTP.
    pub fn of_page(name: &str) -> Self {
        Self { who: name.to_owned(), way: OperationWay::Page }
    }
}

/// Writes `who@host`, for registers and reports that keep the name.
impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.who, operator::host())
    }
}

/// An operation whose change may begin.
#[derive(Debug)]
pub struct BegunOperation {
    /// `None` = no target can keep records.
    records: Option<OperationRecords>,
    begun: OperationRecord,
    is_begun_written: bool,
}

impl BegunOperation {
    /// Writes the record of the beginning, with the state before the change.
    pub async fn begin(wiring: &Wiring, actor: &Actor, command: String, before: Option<String>) -> Self {
        let begun = OperationRecord {
            operation: format!("{:016x}", rand::random::<u64>()),
            phase: OperationPhase::Begun,
            at_ms: wall_clock::now_ms(),
            who: actor.who.clone(),
            way: actor.way,
            host: operator::host(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command,
            before,
            after: None,
        };
        let records = wiring.operations().inspect_err(|fault| warn(&begun, fault)).ok();
        let is_begun_written = match &records {
            Some(records) => append(records, &begun).await.inspect_err(|fault| warn(&begun, fault)).is_ok(),
            None => false,
        };
        Self { records, begun, is_begun_written }
    }

    pub fn id(&self) -> &str {
        &self.begun.operation
    }

    /// Returns whether the record of the beginning is written.
    pub fn is_recorded(&self) -> bool {
        self.is_begun_written
    }

    /// Writes the record of the end: what was done, or why it failed. Returns whether both records are written.
    pub async fn end(self, outcome: Result<String, String>) -> bool {
        let Some(records) = self.records else { return false };
        let (phase, after) = match outcome {
            Ok(done) => (OperationPhase::Done, done),
            Err(failed) => (OperationPhase::Failed, failed),
        };
        let at_ms = wall_clock::now_ms();
        let ended = OperationRecord { phase, at_ms, before: None, after: Some(after), ..self.begun };
        let written = append(&records, &ended).await;
        written.inspect_err(|fault| warn(&ended, fault)).is_ok() && self.is_begun_written
    }
}

async fn append(records: &OperationRecords, record: &OperationRecord) -> Result<(), Fault> {
    match tokio::time::timeout(RECORD_TIME_MAX, records.append(record)).await {
        Ok(appended) => appended,
        Err(_) => {
            let found = format!("no answer within {} s", RECORD_TIME_MAX.as_secs());
            Err(Fault::new(Code::TargetUnreachable, "table operations", found))
        }
    }
}

fn warn(record: &OperationRecord, fault: &Fault) {
    tracing::warn!(
        operation = record.operation,
        phase = record.phase.name(),
        who = record.who,
        command = record.command,
        %fault,
        "the operation is carried out, and no record of it was written"
    );
}

/// The changes that an operation has made, and the place of its records.
#[derive(Debug)]
pub struct Recorded<T> {
    pub done: T,
    /// Id of the operation.
    pub operation: String,
    /// Both records are written.
    pub is_recorded: bool,
}

impl<T> Recorded<T> {
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Recorded<U> {
        Recorded { done: change(self.done), operation: self.operation, is_recorded: self.is_recorded }
    }
}

/// Does the work of an operation between its two records; `after` says what was done.
pub async fn recorded<T>(
    wiring: &Wiring,
    actor: &Actor,
    (command, before): (String, Option<String>),
    work: impl Future<Output = Result<T, Fault>>,
    after: impl FnOnce(&T) -> String,
) -> Result<Recorded<T>, Fault> {
    let begun = BegunOperation::begin(wiring, actor, command, before).await;
    let operation = begun.id().to_owned();
    let outcome = work.await;
    let is_recorded = begun.end(outcome.as_ref().map(after).map_err(ToString::to_string)).await;
    outcome.map(|done| Recorded { done, operation, is_recorded })
}
