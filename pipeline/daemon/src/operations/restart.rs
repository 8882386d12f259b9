//! The restart of a task: every process is asked to try it again.

use anabranch_pipeline::error::Fault;

use super::{Actor, CommandText, Recorded, recorded};
use crate::restarts;
use crate::wiring::Wiring;

/// A task that has stopped or waits to retry, or all of them.
#[derive(Debug, Clone)]
pub struct RestartRequest {
    /// Name of the task; `None` = every task.
    pub task: Option<String>,
}

impl RestartRequest {
    /// Returns the command in words.
    pub fn command(&self) -> String {
        match &self.task {
            Some(task) => CommandText::of("restart").word(task).text(),
            None => CommandText::of("restart --all").text(),
        }
    }

    /// Returns what would be done; refuses an unknown task.
    pub fn rehearse(&self, wiring: &Wiring) -> Result<Vec<String>, Fault> {
        self.require_task(wiring)?;
        Ok(vec![format!(
            "{} would be tried again within seconds, if it has stopped or waits to retry",
            self.thing()
        )])
    }

    /// Asks every process, and returns what was done; refuses an unknown task.
    pub async fn carry_out(&self, wiring: &Wiring, actor: &Actor) -> Result<Recorded<Vec<String>>, Fault> {
        self.require_task(wiring)?;
        let newest = async { restarts::newest_request(wiring.log().await?).await };
        let before = newest.await.ok().map(|number| format!("request {number} is the newest"));
        let work = async { restarts::request_restart(wiring.log().await?, self.task.as_deref()).await };
        let after = |number: &u64| format!("request {number}: {}", self.thing());
        let recorded = recorded(wiring, actor, (self.command(), before), work, after).await?;
        Ok(recorded.map(|_| {
            vec![format!(
                "{} is tried again within seconds, if it has stopped or waits to retry",
                self.thing()
            )]
        }))
    }

    fn require_task(&self, wiring: &Wiring) -> Result<(), Fault> {
        self.task.as_deref().map_or(Ok(()), |task| restarts::require_task(wiring, task))
    }

    fn thing(&self) -> String {
        self.task.as_ref().map_or_else(|| "every task".to_owned(), |task| format!("task {task}"))
    }
}
