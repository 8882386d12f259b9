//! `restart`: asks every process to try stopped and pausing tasks again.

use clap::Args;

use super::{Cli, Outcome, block_on};
use crate::exit::Exit;
use crate::wiring::Wiring;
use crate::{output, restarts};

/// Try a stopped or pausing task again at once, in whichever process has it; SIGHUP does it for all tasks of one
/// process
#[derive(Debug, Args)]
pub struct Arguments {
    /// Name of the task as in `status` and the log, such as reader/a or lane/birthday/target/a/0
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    task: Option<String>,
    /// Every task
    #[arg(long)]
    all: bool,
}

pub fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let wiring = Wiring::new(cli.configuration()?);
    let task = arguments.task.as_deref();
    block_on(async {
        if let Some(task) = task {
            restarts::require_task(&wiring, task)?;
        }
        restarts::request_restart(wiring.log().await?, task).await
    })?
    .map_err(|fault| vec![fault])?;
    let what = task.map_or_else(|| "every task".to_owned(), |task| format!("task {task}"));
    _ = output::line(&format!("{what} is tried again within seconds, if it has stopped or waits to retry"));
    Ok(Exit::Success)
}
