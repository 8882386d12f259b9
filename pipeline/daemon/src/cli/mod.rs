//! The command line: one file a command.
//!
//! A command returns its exit code, or the faults that ended it. This module prints the faults and chooses the exit
//! code from them. A panic ends the process with 70.

mod begin_anew;
mod bundle;
mod calendar;
mod check;
mod completions;
mod confirmation;
mod dead_letters;
mod dispatch;
mod explain;
mod flux;
mod foreign;
mod health;
mod init;
mod lookup;
mod manual;
mod new_file;
mod operations;
mod pause;
mod plan;
mod reconcile;
mod refresh;
mod remove;
mod replay;
mod restart;
mod run;
mod search;
mod selection;
mod setup;
mod status;
mod tail;
mod trace;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;

use anabranch_pipeline::config::Config;
use anabranch_pipeline::error::{Code, Fault};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

use crate::exit::{self, Exit};
use crate::logging::{self, LogFormat};
use crate::{output, settings};

/// Keeps stores derived from sharded MySQL or MariaDB current from the binlog.
#[derive(Debug, Parser)]
#[command(name = "anabranch", version, after_help = exit::HELP, max_term_width = 110)]
pub struct Cli {
    /// Configuration file (deploy/anabranch.example.toml explains every key)
    #[arg(long, global = true, value_name = "FILE", env = "ANABRANCH_CONFIG")]
    config: Option<PathBuf>,
    /// Format of logs and errors on standard error
    #[arg(long, global = true, value_enum, default_value = "text", env = "ANABRANCH_LOG_FORMAT")]
    log_format: LogFormat,
    /// off, error, warn, info, debug, trace; or directives such as anabranch=debug,hyper=info
    #[arg(long, global = true, value_name = "LEVEL", default_value = "info", env = "ANABRANCH_LOG")]
    log_level: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Init(init::Arguments),
    Setup(setup::Arguments),
    Check(check::Arguments),
    Run(run::Arguments),
    Status(status::Arguments),
    Bundle(bundle::Arguments),
    Health(health::Arguments),
    Tail(tail::Arguments),
    Trace(trace::Arguments),
    Lookup(lookup::Arguments),
    Replay(replay::Arguments),
    Refresh(refresh::Arguments),
    BeginAnew(begin_anew::Arguments),
    Remove(remove::Arguments),
    Restart(restart::Arguments),
    Pause(pause::PauseArguments),
    Resume(pause::ResumeArguments),
    Operations(operations::Arguments),
    Reconcile(reconcile::Arguments),
    Search(search::Arguments),
    DeadLetters(dead_letters::Arguments),
    Flux(flux::Arguments),
    Plan(plan::Arguments),
    Calendar(calendar::Arguments),
    Dispatch(dispatch::Arguments),
    Completions(completions::Arguments),
    Manual(manual::Arguments),
    Explain(explain::Arguments),
}

/// Result of a command: its exit code, or the faults that ended it.
type Outcome = Result<Exit, Vec<Fault>>;

/// Runs the command of this process's arguments.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    // The panic hook has already written what happened to standard error.
    catch_unwind(AssertUnwindSafe(|| cli.run())).unwrap_or(Exit::Internal).into()
}

impl Cli {
    fn run(self) -> Exit {
        let outcome = match logging::install(self.log_format, &self.log_level) {
            Ok(()) => self.dispatch(),
            Err(fault) => Err(vec![fault]),
        };
        outcome.unwrap_or_else(|faults| {
            output::faults(self.log_format, &faults);
            Exit::worst(&faults)
        })
    }

    fn dispatch(&self) -> Outcome {
        match &self.command {
            Command::Init(arguments) => init::run(arguments),
            Command::Setup(arguments) => setup::run(self, arguments),
            Command::Check(arguments) => check::run(self, arguments),
            Command::Run(arguments) => run::run(self, arguments),
            Command::Status(arguments) => status::run(self, arguments),
            Command::Bundle(arguments) => bundle::run(self, arguments),
            Command::Health(arguments) => health::run(self, arguments),
            Command::Tail(arguments) => tail::run(self, arguments),
            Command::Trace(arguments) => trace::run(self, arguments),
            Command::Lookup(arguments) => lookup::run(self, arguments),
            Command::Replay(arguments) => replay::run(self, arguments),
            Command::Refresh(arguments) => refresh::run(self, arguments),
            Command::BeginAnew(arguments) => begin_anew::run(self, arguments),
            Command::Remove(arguments) => remove::run(self, arguments),
            Command::Restart(arguments) => restart::run(self, arguments),
            Command::Pause(arguments) => pause::pause(self, arguments),
            Command::Resume(arguments) => pause::resume(self, arguments),
            Command::Operations(arguments) => operations::run(self, arguments),
            Command::Reconcile(arguments) => reconcile::run(self, arguments),
            Command::Search(arguments) => search::run(self, arguments),
            Command::DeadLetters(arguments) => dead_letters::run(self, arguments),
            Command::Flux(arguments) => flux::run(self, arguments),
            Command::Plan(arguments) => plan::run(self, arguments),
            Command::Calendar(arguments) => calendar::run(self, arguments),
            Command::Dispatch(arguments) => dispatch::run(self, arguments),
            Command::Completions(arguments) => Ok(completions::run(arguments)),
            Command::Manual(arguments) => manual::run(arguments),
            Command::Explain(arguments) => explain::run(arguments),
        }
    }

    /// Returns the parsed configuration; without `--config` the process ends as clap ends it for a missing argument.
    fn configuration(&self) -> Result<Config, Vec<Fault>> {
        match &self.config {
            Some(file) => settings::load(file),
            None => Cli::command()
                .error(
                    ErrorKind::MissingRequiredArgument,
                    "this command needs --config FILE (or the environment variable ANABRANCH_CONFIG)",
                )
                .exit(),
        }
    }
}

/// Runs a command's work on a runtime of its own.
fn block_on<T>(work: impl Future<Output = T>) -> Result<T, Vec<Fault>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| vec![Fault::new(Code::Internal, "runtime", "it cannot start").caused_by(error)])?;
    let result = runtime.block_on(work);
    // Tasks that do not end by themselves (a resolver's thread) must not hold the process.
    runtime.shutdown_background();
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_help_lists_every_exit_code() {
        let help = Cli::command().render_long_help().to_string();
        for exit in [Exit::Success, Exit::Definite, Exit::Usage, Exit::Transient, Exit::Internal] {
            assert!(help.contains(&format!("\n  {} ", exit.number())), "{exit:?} is not in:\n{help}");
        }
    }
}
