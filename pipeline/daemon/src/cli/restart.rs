//! `restart`: asks every process to try stopped and pausing tasks again.

use clap::Args;

use super::{Cli, Outcome, block_on};
use crate::exit::Exit;
use crate::operations::{Actor, RestartRequest};
use crate::output;
use crate::wiring::Wiring;

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
    /// Say what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
}

pub fn run(cli: &Cli, arguments: &Arguments) -> Outcome {
    let wiring = Wiring::new(cli.configuration()?);
    let request = RestartRequest { task: arguments.task.clone() };
    let work = async {
        match arguments.dry_run {
            true => request.rehearse(&wiring),
            false => Ok(request.carry_out(&wiring, &Actor::of_command()).await?.done),
        }
    };
    let lines = block_on(work)?.map_err(|fault| vec![fault])?;
    lines.iter().for_each(|line| _ = output::line(line));
    Ok(Exit::Success)
}
